"""The tests' own ground: the PostgreSQL server, the stores' fixtures and the rule about skips."""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tests import conftest
from tests.postgres import fresh_database, join_server, server_folder, temporary_postgres

TOP = Path(__file__).parent.parent
PATIENCE = 60.0
CONFTESTS = sorted((TOP / "tests").rglob("conftest.py"))
Fixture = type(pytest.fixture(lambda: None))

USE_A_SERVER_FOR_EVER = """
import time
from tests.postgres import join_server, server_folder

with server_folder() as folder:
    print(folder, join_server(folder), flush=True)
    time.sleep(3600)
"""


def answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def show(dsn: str, setting: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT current_setting(%s)", [setting]).fetchone()
    assert row is not None
    return str(row[0])


def wait_until_gone(folder: Path) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while folder.exists():
        assert time.monotonic() < give_up_at, f"{folder} is still there"
        time.sleep(0.05)


def run_pytest(
    folder: Path, source: str, *options: str, ci: bool
) -> "subprocess.CompletedProcess[str]":
    """Run pytest in a folder of its own, with the habits of this one."""
    (folder / "test_it.py").write_text(f"import pytest\n\n{source}\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = postgres torture spec\n")
    environment = {**os.environ, "CI": "true" if ci else "", "PYTHONPATH": str(TOP)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # most of the time of such a run
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.conftest", *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


PASSES = "def test_a(long_run): assert long_run is {long}"
FAILS_AS_EXPECTED = "@pytest.mark.xfail\ndef test_b(): assert False"
IS_SKIPPED = 'def test_c(): pytest.skip("no such machine")'
SKIPS_THE_MODULE = 'import pytest\npytest.skip("no such library", allow_module_level=True)'


def test_a_url_comes_from_each_store(url, request):
    assert url.startswith(("sqlite:///", "postgresql://"))
    is_postgres = request.node.get_closest_marker("postgres") is not None
    assert is_postgres == url.startswith("postgresql://")


def test_tests_do_not_share_a_database(postgres_server):
    with fresh_database(postgres_server) as first, fresh_database(postgres_server) as second:
        assert first != second
        assert answers(first)
        assert answers(second)
    assert not answers(first)
    assert answers(postgres_server)


def test_a_database_goes_even_while_it_is_used(postgres_server):
    with fresh_database(postgres_server) as url:
        connection = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()


def test_a_temporary_server_takes_settings_and_goes_with_its_block():
    with temporary_postgres({"max_connections": "21"}) as dsn:
        assert show(dsn, "max_connections") == "21"
        assert show(dsn, "fsync") == "on"
    assert not answers(dsn)


def test_a_folder_has_one_server():
    with server_folder(in_memory=True) as folder:
        assert join_server(folder) == join_server(folder)
    assert not folder.exists()


def test_a_server_that_cannot_start_says_why():
    with (
        server_folder() as folder,
        pytest.raises(RuntimeError, match="unrecognized configuration parameter"),
    ):
        join_server(folder, {"no_such_setting": "1"})
    assert not folder.exists()


def test_a_server_ends_when_its_user_is_killed():
    user = subprocess.Popen(
        [sys.executable, "-c", USE_A_SERVER_FOR_EVER], cwd=TOP, stdout=subprocess.PIPE, text=True
    )
    with user:
        assert user.stdout is not None
        folder, dsn = user.stdout.readline().split()
        assert answers(dsn)
        user.send_signal(signal.SIGKILL)
    wait_until_gone(Path(folder))
    assert not answers(dsn)


def test_what_a_killed_user_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with server_folder() as used:
        left = used.with_name(f"{used.name}-left")
        left.mkdir()
        (left / "alive").touch()
        for folder in (used, left):
            os.utime(folder, (0, 0))
        with server_folder():
            assert not left.exists()
            assert used.exists()


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_in_ci_a_skipped_test_fails_the_run(tmp_path, workers):
    (tmp_path / "test_module.py").write_text(SKIPS_THE_MODULE)
    run = run_pytest(tmp_path, IS_SKIPPED, workers, ci=True)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "skipped tests fail the run in CI" in run.stdout
    assert "test_it.py::test_c: Skipped: no such machine" in run.stdout
    assert "test_module.py: Skipped: no such library" in run.stdout


def test_in_ci_a_run_without_skips_passes(tmp_path):
    source = f"{PASSES.format(long=True)}\n{FAILS_AS_EXPECTED}"
    run = run_pytest(tmp_path, source, "--long", ci=True)
    assert run.returncode == pytest.ExitCode.OK, run.stdout


def test_elsewhere_a_skipped_test_passes(tmp_path):
    source = f"{PASSES.format(long=False)}\n{IS_SKIPPED}"
    run = run_pytest(tmp_path, source, ci=False)
    assert run.returncode == pytest.ExitCode.OK, run.stdout


@pytest.mark.parametrize("file", CONFTESTS, ids=lambda file: file.parent.name)
def test_a_conftest_has_only_fixtures_of_its_own(file):
    """Those that several folders use are in tests/fixtures.py."""
    name = ".".join(file.relative_to(TOP).with_suffix("").parts)
    names = vars(importlib.import_module(name))
    fixtures = [value for value in names.values() if isinstance(value, Fixture)]
    assert [fixture.__name__ for fixture in fixtures if fixture.__module__ != name] == []
    assert "__all__" not in names


@pytest.mark.parametrize("workers", [1, 2, 4, 6])
def test_each_worker_begins_with_other_long_tests(workers):
    long = ["torture/test_kill.py", "browser/test_live.py", "cli/test_dev.py", "test_typing.py"]
    long += ["torture/test_poison.py", "torture/test_levels.py"]
    places = [*(f"jobs/test_{n}.py" for n in range(18)), *long]
    items: list[Any] = [SimpleNamespace(path=TOP / "tests" / place) for place in places]
    dealt = conftest.dealt(items, workers)
    assert sorted(map(id, dealt)) == sorted(map(id, items))
    begun = [dealt[start] for start in range(0, len(items), len(items) // workers)]
    assert [items.index(item) for item in begun] == list(range(18, 18 + workers))
