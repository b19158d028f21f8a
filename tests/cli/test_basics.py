"""Help, version, and where the app is found."""

from __future__ import annotations

from pathlib import Path

import pytest

import duly

TINY = """
from duly import Ctx, Duly

{name} = Duly("sqlite:///tiny.db")


@{name}.action
def hello(ctx: Ctx) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an app in `tiny.py` and another one under a name of its own."""
    (tmp_path / "tiny.py").write_text(TINY.format(name="app"))
    (tmp_path / "other.py").write_text(TINY.format(name="jobs"))
    return tmp_path


def test_help_names_every_command(run):
    answer = run("--help")
    assert answer.returncode == 0
    assert {"migrate", "ticker", "version", "worker"} <= set(answer.stdout.split())
    assert answer.stderr == ""


@pytest.mark.parametrize("command", ["worker", "ticker", "migrate", "version"])
def test_every_command_has_help(run, command):
    answer = run(command, "--help")
    assert answer.returncode == 0
    assert command in answer.stdout


def test_version_is_the_version(run):
    assert run("version").stdout == f"{duly.__version__}\n"
    assert run("--version").stdout == f"duly {duly.__version__}\n"


@pytest.mark.parametrize("app", ["tiny:app", "tiny", "tiny.py:app", "other:jobs", "other.py:jobs"])
def test_an_app_is_found_by_module_or_by_file(run, project, app):
    answer = run("--app", app, "migrate", cwd=project)
    assert answer.stdout.startswith("applied 0001_jobs\napplied 0002_functions\n"), answer.stderr
    assert (project / "tiny.db").exists()


@pytest.mark.spec("N50")
def test_a_relative_database_is_in_the_working_directory(run, project, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    answer = run("--app", f"{project}/tiny.py:app", "migrate", cwd=elsewhere)
    assert answer.returncode == 0, answer.stderr
    assert (elsewhere / "tiny.db").exists()
    assert not (project / "tiny.db").exists()


@pytest.mark.spec("N50")
@pytest.mark.parametrize(
    "command",
    [["worker"], ["ticker"], ["serve", "--port=0"], ["run", "hello"], ["doctor"], ["jobs", "list"]],
    ids=" ".join,
)
def test_only_migrate_creates_a_missing_database(run, project, tmp_path_factory, command):
    assert run("--app", "tiny:app", "migrate", cwd=project).returncode == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    answer = run("--app", f"{project}/tiny.py:app", *command, cwd=elsewhere)
    assert answer.returncode == 1
    assert f"there is no database at {elsewhere}/tiny.db; " in answer.stdout + answer.stderr
    assert list(elsewhere.iterdir()) == []


def test_the_environment_names_the_app(run, project):
    answer = run("migrate", cwd=project, env={"DULY_APP": "other:jobs"})
    assert answer.returncode == 0, answer.stderr


def test_the_project_names_the_app(run, project):
    (project / "pyproject.toml").write_text('[tool.duly]\napp = "other:jobs"\n')
    assert run("migrate", cwd=project).returncode == 0


def test_the_command_line_wins_over_the_environment_and_the_project(run, project):
    (project / "pyproject.toml").write_text('[tool.duly]\napp = "nowhere:app"\n')
    answer = run("--app", "tiny:app", "migrate", cwd=project, env={"DULY_APP": "nowhere:app"})
    assert answer.returncode == 0, answer.stderr
