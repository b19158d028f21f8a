"""Whatever goes wrong is one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import subprocess

import pytest

APP = "tests.cli.shop:app"
SECRET = "hunter2"


def only_line(answer: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("duly: ")
    assert SECRET not in line
    return line


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("nowhere.py:app", "no file nowhere.py"),
        ("tests.cli.shop:missing", "no duly app called 'missing'"),
        ("tests.cli.shop:make", "no duly app called 'make'"),
    ],
)
def test_an_app_that_is_not_there(run, app, says, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    answer = run("--app", app, "worker", url=url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert says in only_line(answer)


def test_no_app_at_all(run, tmp_path):
    answer = run("worker", cwd=tmp_path)
    assert answer.returncode == 1
    assert "--app module:name" in only_line(answer)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"mysql://me:{SECRET}@host/shop", "is no database URL"),
        ("sqlite://shop.db", "names no file"),
        ("sqlite:////nowhere/shop.db", "create it with `duly migrate`"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/shop", "cannot connect to PostgreSQL"),
        (f"postgresql://me:{SECRET} x@127.0.0.1:1/shop", "cannot be read"),
        (f"postgresql://me:{SECRET}%zz@127.0.0.1:1/shop", "cannot be read"),
        (f"postgresql://me:{SECRET}@127.0.0.1:port/shop", "port"),
    ],
)
def test_a_database_that_is_not_there(run, url, says, tmp_path):
    answer = run("--app", APP, "worker", url=url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert says in only_line(answer)


def test_a_file_that_is_no_database(run, tmp_path):
    (tmp_path / "shop.db").write_text("anything else" * 100)
    url = f"sqlite:///{tmp_path}/shop.db"
    answer = run("--app", APP, "worker", url=url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert "not a database" in only_line(answer)


def test_a_wrong_password_is_not_repeated(run, postgres_url, tmp_path):
    user, _, host = postgres_url.rpartition("@")
    url = f"{user.rpartition(':')[0]}:{SECRET}@{host}"
    answer = run("--app", APP, "worker", url=url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert "password authentication failed" in only_line(answer)


def test_a_postgresql_database_without_the_tables(run, postgres_url, tmp_path):
    answer = run("--app", APP, "worker", url=postgres_url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert "run `duly migrate`" in only_line(answer)


@pytest.mark.parametrize("arguments", [["nonsense"], ["worker", "--processes=0"], []])
def test_a_wrong_command_line_is_exit_2(run, arguments):
    answer = run(*arguments)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
