"""Run the published suite on each of duly's stores, and on one as a third party might write it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import psycopg.sql
import pytest

from duly.errors import TransactionEnded
from duly.store.postgres import PostgresStore
from duly.store.sqlite import SqliteStore
from duly.store.table import Store
from duly.testing import StoreConformance

NOW = 1_767_225_600_000


@pytest.mark.spec("R217")
class TestSqliteFile(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_store(self) -> Store:
        store = SqliteStore(self.folder / "duly.db")
        store.migrate(NOW)
        return store

    def reopen(self, store: Store) -> Store:
        return SqliteStore(cast(SqliteStore, store).path)

    def make_empty_store(self) -> Store:
        return SqliteStore(self.folder / "empty.db")

    def table(self, name: str) -> str:
        return f"duly_{name}"


@pytest.mark.spec("R217")
class TestSqliteMemory(TestSqliteFile):
    def make_store(self) -> Store:
        return SqliteStore(None)


@pytest.mark.spec("R217")
class TestPostgres(StoreConformance):
    @pytest.fixture(autouse=True)
    def _place(self, migrated_postgres: str, postgres_server: str) -> None:
        self.url, self.server = migrated_postgres, postgres_server

    def make_store(self) -> Store:
        return PostgresStore(self.url)

    def reopen(self, store: Store) -> Store:
        return PostgresStore(self.url)

    def make_empty_store(self) -> Store:
        return PostgresStore(self.server)

    def table(self, name: str) -> str:
        return f"duly.{name}"

    def test_a_body_that_ends_the_transaction_and_begins_another_does_not_finish(self) -> None:
        [claim] = [self.claim_new()]
        lane = self.store.mutation_lane()
        lane.begin(False)
        lane.enter()
        lane.tx.connection.execute("COMMIT; BEGIN")
        with pytest.raises(TransactionEnded):
            lane.finish(claim, None, NOW)
        lane.rollback()
        lane.close()
        assert self.state(claim.id) == "running"

    def test_shared_commits_stay_durable_where_the_database_turned_that_off(self) -> None:
        database = psycopg.sql.Identifier(self.url.rpartition("/")[2])
        turn_off = psycopg.sql.SQL("ALTER DATABASE {} SET synchronous_commit = off")
        with psycopg.connect(self.url, autocommit=True) as own:
            own.execute(turn_off.format(database))
        lane = PostgresStore(self.url).mutation_lane()
        lane.begin(True)
        for _ in range(2):
            lane.enter()
            assert lane.tx.execute("SHOW synchronous_commit").scalar() == "on"
            lane.tx.execute("SET LOCAL synchronous_commit = off")
            lane.leave()
        assert lane.tx.execute("SHOW synchronous_commit").scalar() == "on"
        lane.rollback()
        lane.close()


@pytest.mark.long
@pytest.mark.spec("R217", "N38")
class TestPostgresRepeatableRead(TestPostgres):
    level = "repeatable read"


@pytest.mark.long
@pytest.mark.spec("R217", "N38")
class TestPostgresSerializable(TestPostgres):
    level = "serializable"


# What a third party would write. It uses nothing from this project's tests.
THIRD_PARTY = """
from duly.store.sqlite import SqliteStore
from duly.testing import StoreConformance


class Wrapped:
    def __init__(self):
        self._inner = SqliteStore(None)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Forgetful(Wrapped):
    def exchange(self, settlements, request, now):
        settled, claims = self._inner.exchange(settlements, request, now)
        return {s.id for s in settlements}, claims


class TestWrapped(StoreConformance):
    def make_store(self):
        return Wrapped()


class TestForgetful(StoreConformance):
    def make_store(self):
        return Forgetful()
"""


def run_elsewhere(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "test_mine.py").write_text(THIRD_PARTY)
    (folder / "pytest.ini").write_text("[pytest]\n")
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": source, "CI": ""}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.spec("R217")
def test_a_third_party_runs_the_suite_on_a_store_of_its_own(tmp_path, long_run):
    some = "" if long_run else " and (claim or handle or finish or cancel or tamper)"
    run = run_elsewhere(tmp_path, "-k", f"TestWrapped{some}")
    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout
    # Two stores for the same database and tampering were not offered.
    assert "skipped" in run.stdout


@pytest.mark.spec("R217")
def test_the_suite_finds_a_store_that_breaks_the_contract(tmp_path):
    run = run_elsewhere(tmp_path, "-k", "TestForgetful and token")
    assert run.returncode == 1, run.stdout
    assert "FAILED test_mine.py::TestForgetful::test_only_the_token_of_the_running" in run.stdout
    # pytest explains the asserts of the suite as if they were the user's own.
    assert "E       AssertionError: assert {" in run.stdout


def test_the_testing_package_needs_no_pytest():
    probe = "import sys; sys.modules['pytest'] = None; from duly.testing import StoreConformance"
    source = str(Path(__file__).parents[2] / "src")
    subprocess.run([sys.executable, "-c", probe], env={"PYTHONPATH": source}, check=True)
