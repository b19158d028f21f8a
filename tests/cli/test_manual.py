"""The commands of docs/how-to/command-line.md do what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.cli.processes import TOP
from tests.cli.terminal import Terminal

PAGE = TOP / "docs/how-to/command-line.md"
BLOCK = re.compile(r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(\w+)\n(.*?)^```$", re.M | re.S)
EXITS = {"doctor": {0, 1}, "why": {0, 1}}
"""Of those that say by it whether all is well."""
FILES = {"python": "shop.py", "toml": "pyproject.toml", "crontab": "cron.txt"}


def test_the_page_is_true(terminal: Terminal, tmp_path: Path) -> None:
    ran = 0
    said = ""
    for not_run, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language in FILES:
            (tmp_path / FILES[language]).write_text(text)
        elif language == "sh" and not not_run:
            for line in text.splitlines():
                command, _, file = line.partition(" > ")
                program, *arguments = shlex.split(command)
                assert program == "duly", line
                ended = terminal.run(*arguments, cwd=tmp_path, code=None)
                if file:
                    (tmp_path / file).write_text(ended.out)
                assert ended.code in EXITS.get(arguments[0], {0}), (line, ended)
                said = ended.out
                ran += 1
        elif language == "text":
            # What a command has printed; … stands for what is different each time.
            for shown in filter(None, text.splitlines()):
                assert shown.removesuffix("…").rstrip() in said
    assert ran >= 20
