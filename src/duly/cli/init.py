"""`duly init`: write a starter app."""

from __future__ import annotations

import keyword
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import click

from duly.cli.command import EXIT_USAGE, Command, fail
from duly.cli.root import Root

PROJECT = Path("pyproject.toml")
IGNORED = Path(".gitignore")
DATABASE_FILES = ("*.db", "*.db-wal", "*.db-shm", "*.db-duly/")


class Project(NamedTuple):
    """The new text of pyproject.toml (None: leave it alone), and what to say about it."""

    text: str | None
    description: str


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default="tasks.py")
@click.pass_obj
def init(root: Root, file: Path) -> None:
    """Write a starter app.

    It is a copy of the demo that `duly dev` runs, and is named in pyproject.toml so that commands
    find it. Its database is listed in .gitignore. Existing files are not overwritten.

    \b
    duly init
    duly init shop/tasks.py
    """
    _check(file)
    app = f"{file.stem}:app" if file.parent == Path() else f"{file.as_posix()}:app"
    set_up = f"{app.removesuffix(':app')}:set_up"
    lines = f'[tool.duly]\napp = "{app}"\nset_up = "{set_up}"\n'
    project = _project(lines)
    _write(file, _code(file))
    if project.text is not None:
        PROJECT.write_text(project.text, encoding="utf-8")
    ignored = _ignore_databases()
    root.out.show(
        {"file": str(file), "app": app, "project": project.description, "gitignore": ignored},
        lambda: None,
    )
    root.out.say(f"wrote {file}\n{ignored}\n{project.description}:\n")
    root.out.say("".join(f"    {line}\n" for line in lines.splitlines()))
    root.out.say(f"Next:\n\n{_commands(file)}")


def _check(file: Path) -> None:
    if file.suffix != ".py" or not file.stem.isidentifier():
        fail(f"{file} is not a module name; give one like tasks.py", EXIT_USAGE)
    if keyword.iskeyword(file.stem):
        fail(f"{file.stem} is a Python keyword; give another name", EXIT_USAGE)
    if file.stem == "duly" or file.stem in sys.stdlib_module_names:
        hidden = "duly itself" if file.stem == "duly" else "a standard library module"
        fail(f"a module called {file.stem} would hide {hidden}; give another name", EXIT_USAGE)
    if not file.parent.is_dir():
        fail(f"there is no folder {file.parent}", hint="create it first")


def _code(file: Path) -> str:
    """The demo, with a docstring that says how to run the copy."""
    demo = files("duly.cli").joinpath("demo.py").read_text(encoding="utf-8")
    _, docstring, code = demo.split('"""', 2)
    summary = docstring.partition("\n")[0]
    return f'"""{summary}\n\n{_commands(file)}"""{code}'


def _commands(file: Path) -> str:
    width = len(f"python {file}    ")
    return (
        f"    {'duly dev':<{width}}runs set_up() and the app, and shows its activity\n"
        f"    {f'python {file}':<{width}}runs only set_up(): do this before `duly worker`\n"
    )


def _project(lines: str) -> Project:
    if not PROJECT.exists():
        return Project(lines, f"wrote {PROJECT}")
    text = PROJECT.read_text(encoding="utf-8")
    separator = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    changed = text + separator + lines
    if _is_toml(text) and _is_toml(changed):
        return Project(changed, f"added to {PROJECT}")
    # It names an app already, or has a form that lines cannot be appended to.
    return Project(None, f"did not change {PROJECT}; add this so that commands find the app")


def _ignore_databases() -> str:
    """Keep SQLite databases, and the files next to them, out of Git."""
    text = IGNORED.read_text(encoding="utf-8") if IGNORED.exists() else ""
    missing = [line for line in DATABASE_FILES if line not in map(str.strip, text.splitlines())]
    if not missing:
        return f"did not change {IGNORED}"
    separator = "" if not text or text.endswith("\n") else "\n"
    added = "".join(f"{line}\n" for line in missing)
    with IGNORED.open("a", encoding="utf-8") as file:
        file.write(f"{separator}{added}")
    return f"added to {IGNORED}" if text else f"wrote {IGNORED}"


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        fail(
            f"{file} already exists; it was not changed",
            hint="give another name: duly init jobs.py",
        )
