"""Code that the pages only show is right: commands and options exist, Python can be compiled."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import click
import pytest

from duly.cli.root import cli
from tests.docs.test_code_blocks import PAGES, name

FENCED = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
SHELL = {"sh", "bash"}
OPERATORS = set("|&;<>()")
PROGRAM = re.compile(r"(?:^|/)duly$")


def fenced(page: Path, languages: set[str]) -> Iterator[str]:
    for _, language, text in FENCED.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield dedent(text)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each call of duly in a shell script."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        arguments: list[str] | None = None
        for token in lexer:
            if set(token) <= OPERATORS:
                if arguments is not None:
                    yield arguments
                arguments = None
            elif arguments is not None:
                arguments.append(token)
            elif PROGRAM.search(token):
                arguments = []
        if arguments is not None:
            yield arguments


def check(arguments: list[str]) -> None:
    """Raise an error of click if there is no such command or option."""
    command: click.Command = cli
    context, rest = click.Context(cli), arguments
    while True:
        _, rest, _ = command.make_parser(context).parse_args(list(rest))
        if not isinstance(command, click.Group) or not rest:
            return
        part = command.get_command(context, rest[0])
        assert part is not None, f"there is no command {rest[0]!r}"
        context, command, rest = click.Context(part, parent=context), part, rest[1:]


CALLS = [
    (page, arguments)
    for page in PAGES
    for text in fenced(page, SHELL)
    for arguments in commands(text)
]


@pytest.mark.parametrize(
    ("page", "arguments"), CALLS, ids=[f"{name(page)}: {' '.join(call)}" for page, call in CALLS]
)
def test_a_command_of_a_page_exists(page: Path, arguments: list[str]):
    check(arguments)


def test_the_commands_are_found():
    assert len(CALLS) > 80
    script = "DULY_APP=x duly --app a:b jobs list | cut -f1 && venv/bin/duly migrate  # first\n"
    assert list(commands(script)) == [["--app", "a:b", "jobs", "list"], ["migrate"]]


@pytest.mark.parametrize("arguments", [["jobs", "list", "--nonsense"], ["worker", "--cores=2"]])
def test_an_option_that_does_not_exist_is_noticed(arguments: list[str]):
    with pytest.raises(click.NoSuchOption):
        check(arguments)


# The code of django.md is compared with the example that it is from.
SHOWN = [page for page in PAGES if page.name != "django.md" and any(fenced(page, {"py"}))]


@pytest.mark.parametrize("page", SHOWN, ids=name)
def test_python_that_is_not_run_can_be_compiled(page: Path):
    """Parts of other files, and code that needs a library which is not installed here."""
    for text in fenced(page, {"py"}):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "duly":
                module = importlib.import_module(str(node.module))
                assert [each.name for each in node.names if not hasattr(module, each.name)] == []
