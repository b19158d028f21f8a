"""`duly init`: a first app to start from."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

import duly
from tests.cli.processes import environment
from tests.cli.terminal import Terminal

DEMO = (Path(duly.__file__).parent / "cli" / "demo.py").read_text()
NAMED = {"tool": {"duly": {"app": "tasks:app", "set_up": "tasks:set_up"}}}


def test_it_writes_an_app_that_runs(terminal: Terminal, tmp_path):
    ran = terminal.run("init", cwd=tmp_path, columns=80)
    assert "wrote tasks.py" in ran.plain
    assert 'app = "tasks:app"' in ran.plain
    assert "duly dev" in ran.plain
    code = (tmp_path / "tasks.py").read_text()
    assert code.split('"""', 2)[2] == DEMO.split('"""', 2)[2]
    assert "python tasks.py" in code
    assert "duly init" not in code
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text()) == NAMED

    subprocess.run([sys.executable, "tasks.py"], cwd=tmp_path, env=environment(), check=True)
    job = terminal.run(
        "run", "send", "author=Ada", "text=hello", "--no-wait", "--json", cwd=tmp_path
    ).json
    assert (job["function"], job["state"]) == ("send", "pending")
    assert (tmp_path / "duly-dev.db").exists()


@pytest.mark.parametrize("before", [None, "", "*.pyc", "*.db\n*.db-duly/\n", "# ours\n\n*.pyc\n"])
def test_git_ignores_the_database_and_the_files_beside_it(
    terminal: Terminal, tmp_path, before: str | None
):
    ignored = tmp_path / ".gitignore"
    if before is not None:
        ignored.write_text(before)
    terminal.run("init", cwd=tmp_path)
    text = ignored.read_text()
    assert text.startswith(before or "")
    lines = text.splitlines()
    assert len(set(lines)) == len(lines)
    terminal.run("init", "more.py", cwd=tmp_path)
    assert ignored.read_text() == text

    subprocess.run([sys.executable, "tasks.py"], cwd=tmp_path, env=environment(), check=True)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    with closing(sqlite3.connect(tmp_path / "duly-dev.db")) as reader:
        reader.execute("SELECT * FROM messages")  # so that SQLite's own files are there
        made = {path.name for path in tmp_path.glob("duly-dev.db*")}
        assert made == {"duly-dev.db", "duly-dev.db-wal", "duly-dev.db-shm", "duly-dev.db-duly"}
        status = ["git", "status", "--porcelain", "--untracked-files=all"]
        seen = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "duly-dev" not in seen.stdout
    assert "tasks.py" in seen.stdout


def test_nothing_is_overwritten(terminal: Terminal, tmp_path):
    (tmp_path / "tasks.py").write_text("mine = True\n")
    ran = terminal.run("init", cwd=tmp_path, code=1)
    assert "tasks.py already exists; it was not changed" in ran.err
    assert (tmp_path / "tasks.py").read_text() == "mine = True\n"
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.py"]


def test_a_project_gets_the_lines_and_keeps_its_own(terminal: Terminal, tmp_path):
    project, mine = tmp_path / "pyproject.toml", '[project]\nname = "shop"'
    project.write_text(mine)
    ran = terminal.run("init", cwd=tmp_path)
    assert "added to pyproject.toml" in ran.out
    assert project.read_text().startswith(f"{mine}\n\n")
    assert tomllib.loads(project.read_text()) == {"project": {"name": "shop"}, **NAMED}

    for other in ('[tool.duly]\napp = "shop:app"\n', "tool = {}\n", "no toml"):
        project.write_text(other)
        name = f"tasks{len(other)}.py"
        ran = terminal.run("init", name, cwd=tmp_path)
        assert "did not change pyproject.toml" in ran.out
        assert f'app = "{Path(name).stem}:app"' in ran.out
        assert project.read_text() == other


def test_in_a_folder_of_its_own(terminal: Terminal, tmp_path):
    ran = terminal.run("init", "shop/tasks.py", cwd=tmp_path, code=1)
    assert "there is no folder shop" in ran.err
    (tmp_path / "shop").mkdir()
    answer = terminal.run("init", "shop/tasks.py", "--json", cwd=tmp_path).json
    assert answer["app"] == "shop/tasks.py:app"
    assert (tmp_path / "shop" / "tasks.py").exists()
    terminal.run("dev", "--for=0.5s", "--port=8951", cwd=tmp_path)
    listed = terminal.run("schedules", "list", "--json", cwd=tmp_path).json
    assert len(listed) == 3


def test_names_that_are_no_modules(terminal: Terminal, tmp_path):
    for name, says in (
        ("tasks.txt", "not a module name"),
        ("my-tasks.py", "not a module name"),
        ("duly.py", "would hide duly itself"),
    ):
        assert says in terminal.run("init", name, cwd=tmp_path, code=2).err
    assert list(tmp_path.iterdir()) == []
