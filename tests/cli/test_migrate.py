"""`duly migrate`, `--check` for deploy scripts, `--sql` for those who apply it themselves."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

APP = "tests.cli.shop:app"


@pytest.fixture
def migrate(run, url, tmp_path):
    def migrate(*options):
        env = {"SHOP_FOLDER": str(tmp_path)}
        return run("--app", APP, "migrate", *options, url=url, env=env)

    return migrate


STEPS = (
    "0001_jobs",
    "0002_functions",
    "0003_tracking",
    "0004_schedules",
    "0005_server",
    "0006_lists",
    "0007_lines",
    "0008_hooks",
    "0009_lock_retries",
    "0010_waiting",
    "0011_threads",
    "0012_batches",
    "0013_declared_calendars",
    "0014_workflows",
)


def apply(script: str, url: str) -> None:
    """Run a script as the database's own client would."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.executescript(script)
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(script.encode())


def test_it_says_what_it_did_and_does_it_once(migrate):
    assert migrate().stdout == "".join(f"applied {step}\n" for step in STEPS)
    assert migrate().stdout == "nothing to do\n"


def test_check_answers_by_its_exit_code_and_changes_nothing(migrate):
    for _ in range(2):
        answer = migrate("--check")
        assert (answer.returncode, answer.stdout) == (
            1,
            "".join(f"to do: {step}\n" for step in STEPS),
        )
    migrate()
    answer = migrate("--check")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_the_printed_sql_is_all_that_is_needed(migrate, url):
    script = migrate("--sql")
    assert script.returncode == 0
    assert migrate("--check").returncode == 1
    apply(script.stdout, url)
    assert migrate("--check").returncode == 0
    assert migrate("--sql").stdout == ""
