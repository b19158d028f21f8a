"""The schema: made once, changed only by numbered steps, refused where this code may not use it."""

import contextlib
import logging
import os
import re
import sqlite3
import stat
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql as compose

from duly import Ctx, Duly
from duly.errors import NotMigrated, StoreError, StoreMissing, StoreTooNew
from duly.store import migrate
from duly.store.migrate import Migration
from duly.store.postgres import PostgresStore
from duly.store.sqlite import SqliteStore
from duly.store.statements import Dialect
from duly.store.table import Store
from duly.testing.conformance import StoreConformance
from duly.testing.conformance.ground import NOW, at_the_same_time, new_job
from tests.store.processes import run_together

STEPS = migrate.code_version("sqlite")


def open_store(url: str) -> Any:
    if url.startswith("sqlite:///"):
        return SqliteStore(Path(url.removeprefix("sqlite:///")))
    return PostgresStore(url)


def table(store: Store, name: str) -> str:
    return f"duly_{name}" if isinstance(store, SqliteStore) else f"duly.{name}"


def write(store: Store, statement: str) -> None:
    with store.transaction() as tx:
        tx.execute(statement)


@pytest.fixture
def store(url: str) -> Any:
    """A store, migrated."""
    store = open_store(url)
    store.migrate(NOW)
    yield store
    store.close()


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that this code has one more step."""
    known = migrate.migrations

    def release(text: str, min_code: int) -> None:
        def migrations(dialect: Dialect) -> list[Migration]:
            steps = known(dialect)
            return [*steps, Migration(steps[-1].version + 1, "more", min_code, text)]

        monkeypatch.setattr(migrate, "migrations", migrations)

    return release


def test_migrating_takes_every_step_once(url):
    store = open_store(url)
    dialect: Dialect = "sqlite" if isinstance(store, SqliteStore) else "postgres"
    names = [step.name for step in migrate.migrations(dialect)]
    assert [name for name, _ in store.pending_migrations()] == names
    assert store.migrate(NOW) == names
    assert store.migrate(NOW) == []
    assert store.pending_migrations() == []
    store.close()


def test_both_databases_have_the_same_steps():
    sqlite, postgres = migrate.migrations("sqlite"), migrate.migrations("postgres")
    assert [(s.version, s.name, s.min_code) for s in sqlite] == [
        (s.version, s.name, s.min_code) for s in postgres
    ]
    assert [s.version for s in sqlite] == list(range(1, len(sqlite) + 1))


def test_the_script_does_by_hand_what_migrate_does(url):
    store = open_store(url)
    script = store.migration_script(NOW)
    if isinstance(store, SqliteStore):
        by_hand = sqlite3.connect(store.path)
        by_hand.executescript(script)
        by_hand.close()
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(script.encode())
    store.open(NOW)
    assert store.migrate(NOW) == []
    store.enqueue([new_job()])
    store.close()


def test_a_step_that_was_applied_with_another_text_is_refused(store, monkeypatch):
    known = migrate.migrations
    changed = [
        Migration(step.version, step.name, step.min_code, step.text + "SELECT 1;\n")
        for step in known("sqlite" if isinstance(store, SqliteStore) else "postgres")
    ]
    monkeypatch.setattr(migrate, "migrations", lambda dialect: changed)
    with pytest.raises(StoreError, match="different text"):
        store.migrate(NOW)
    with pytest.raises(StoreError, match="different text"):
        store.pending_migrations()


@pytest.mark.spec("N29")
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_comment_can_be_reworded_but_no_statement(dialect):
    for step in migrate.migrations(dialect):
        assert "--" not in re.sub(r"--.*", "", step.text)
        assert not re.search(r"'[^'\n]*--[^'\n]*'", re.sub(r"^\s*--.*", "", step.text, flags=re.M))
        reworded = msgspec.structs.replace(step, text=step.text + "\n-- Another comment.\n")
        changed = msgspec.structs.replace(step, text=step.text + "\nSELECT 1;\n")

        assert reworded.checksum == step.checksum
        assert changed.checksum != step.checksum


def test_old_and_new_code_run_side_by_side_through_a_migration(url, next_release, monkeypatch):
    """An old worker keeps running while the schema grows, and runs jobs that new code enqueues."""
    old = Duly(url)
    old.migrate()

    @old.action
    def work(ctx: Ctx) -> int:
        return ctx.attempt

    with old:
        assert old.run(work).result(20) == 1
        new = Duly(url, auto_migrate=True)
        work_of_new = new.action(work.body)
        with monkeypatch.context():
            column = f"ALTER TABLE {table(new.store, 'jobs')} ADD COLUMN more text;"
            next_release(column, min_code=STEPS)
            assert new.migrate() == ["more"]
            from_new = new.run(work_of_new)
        monkeypatch.undo()
        from_old = old.run(work)
        assert (from_new.result(20), from_old.result(20)) == (1, 1)
    for app in (old, new):
        app.close()


@pytest.mark.spec("N29")
def test_old_code_runs_on_a_store_that_new_code_has_expanded(store, url, next_release, monkeypatch):
    with monkeypatch.context():
        next_release(f"CREATE TABLE {table(store, 'extra')} (n integer);", min_code=1)
        assert store.migrate(NOW) == ["more"]
        monkeypatch.undo()
    old = open_store(url)
    old.open(NOW)
    old.enqueue([new_job()])
    assert old.migrate(NOW) == []
    old.close()


@pytest.mark.spec("N29")
def test_old_code_is_refused_by_a_store_that_needs_newer_code(
    store, url, next_release, monkeypatch
):
    code = STEPS
    next_release(f"CREATE TABLE {table(store, 'extra')} (n integer);", min_code=code + 1)
    store.migrate(NOW)
    monkeypatch.undo()
    old = open_store(url)
    with pytest.raises(StoreTooNew, match="upgrade duly") as refusal:
        old.open(NOW)
    assert (refusal.value.code, refusal.value.min_code) == (code, code + 1)
    old.close()


def test_new_code_on_an_old_store_migrates_sqlite_and_asks_for_it_on_postgres(
    store, url, next_release
):
    next_release(f"CREATE TABLE {table(store, 'extra')} (n integer);", min_code=1)
    new = open_store(url)
    if isinstance(store, SqliteStore):
        new.open(NOW)
        write(new, "INSERT INTO duly_extra VALUES (1)")
    else:
        with pytest.raises(NotMigrated, match="run `duly migrate`"):
            new.open(NOW)
    new.close()


def test_a_step_that_fails_leaves_the_store_as_it_was(store, url, next_release, monkeypatch):
    extra = table(store, "extra")
    next_release(f"CREATE TABLE {extra} (n integer);\nCREATE TABLE {extra} (n integer);", 1)
    with pytest.raises(StoreError):
        store.migrate(NOW)
    monkeypatch.undo()
    again = open_store(url)
    again.open(NOW)
    write(again, f"CREATE TABLE {extra} (n integer)")
    again.close()


MIGRATE = """
store = open_store(sys.argv[2])
ready()
print(len(store.migrate(NOW)))
store.open(NOW)
store.close()
"""


def test_processes_that_migrate_at_the_same_time_take_the_steps_once(url):
    outputs = run_together(MIGRATE, url, count=3)
    assert sorted(int(output) for output in outputs) == [0, 0, STEPS]


def test_threads_that_migrate_at_the_same_time_take_the_steps_once(url):
    stores = [open_store(url) for _ in range(4)]
    taken = at_the_same_time([partial(store.migrate, NOW) for store in stores])
    assert sorted(len(names) for names in taken) == [0, 0, 0, STEPS]
    for store in stores:
        store.close()


def test_handles_that_open_a_new_file_at_the_same_time_agree(tmp_path):
    (tmp_path / "duly.db").touch()
    outputs = run_together(
        "store = open_store(sys.argv[2])\nready()\nstore.open(NOW)\nprint(store.workers())",
        f"sqlite:///{tmp_path}/duly.db",
        count=3,
    )
    assert outputs == ["[]\n"] * 3


def test_a_store_without_tables_says_what_to_do(url):
    store = open_store(url)
    if isinstance(store, SqliteStore):
        store.path.touch()
    for use in (lambda: store.enqueue([new_job()]), store.lanes, store.workers):
        with pytest.raises(NotMigrated, match="run `duly migrate`"):
            use()
    store.close()


def test_postgres_is_not_opened_before_it_is_migrated(postgres_url):
    store = PostgresStore(postgres_url)
    with pytest.raises(NotMigrated, match="run `duly migrate`"):
        store.open(NOW)
    store.close()


def test_a_missing_file_is_not_created_by_the_way(tmp_path):
    store = SqliteStore(tmp_path / "duly.db")
    for use in (lambda: store.open(NOW), lambda: store.enqueue([new_job()]), store.workers):
        with pytest.raises(StoreMissing, match="create it with `duly migrate`"):
            use()
    assert list(tmp_path.glob("duly.db*")) in ([], [tmp_path / "duly.db-duly"])
    store.close()


# The SQLite file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_that_duly_creates_are_private(tmp_path, open_umask):
    store = SqliteStore(tmp_path / "duly.db")
    store.migrate(NOW)
    store.enqueue([new_job()])
    modes = {path.name: mode(path) for path in tmp_path.rglob("*")}
    assert modes.pop("duly.db-duly") == 0o700
    assert {"duly.db", "duly.db-wal", "duly.db-shm", "next", "write"} <= modes.keys()
    assert set(modes.values()) == {0o600}
    store.close()


def test_the_mode_of_a_file_that_exists_is_kept(tmp_path, open_umask):
    path = tmp_path / "shop.db"
    path.touch()
    path.chmod(0o640)
    store = SqliteStore(path)
    store.migrate(NOW)
    assert mode(path) == 0o640
    store.close()


def test_the_users_own_data_and_settings_are_left_alone(tmp_path):
    path = tmp_path / "shop.db"
    own = sqlite3.connect(path)
    own.executescript("CREATE TABLE mine (n); INSERT INTO mine VALUES (1); PRAGMA user_version = 7")
    store = SqliteStore(path)
    store.migrate(NOW)
    assert own.execute("SELECT n FROM mine").fetchall() == [(1,)]
    assert own.execute("PRAGMA user_version").fetchone() == (7,)
    own.close()
    store.close()


def test_turning_on_the_write_ahead_log_is_announced_once(tmp_path, caplog):
    path = tmp_path / "shop.db"
    own = sqlite3.connect(path)
    own.execute("CREATE TABLE mine (n)")
    assert own.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    store = SqliteStore(path)
    with caplog.at_level(logging.INFO, logger="duly"):
        store.migrate(NOW)
        store.migrate(NOW)
        with contextlib.closing(SqliteStore(path)) as other:
            other.open(NOW)
    announced = [record for record in caplog.records if "WAL" in record.getMessage()]
    assert [record.levelname for record in announced] == ["INFO"]
    assert str(path) in announced[0].getMessage()
    own.close()
    own = sqlite3.connect(path)
    assert own.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    own.close()
    store.close()


# A PostgreSQL role without the right to change the schema

# At least one test for every statement that the store has.
WITHOUT_DDL = """
    a_child_of_a_job_that_was_taken_away_is_stored_canceled
    a_paused_queue_is_not_claimed
    a_job_that_must_run_alone_is_claimed_by_its_id_only
    the_lanes_say_where_claimable_jobs_stand_and_since_when
    settling_and_claiming_are_one_exchange
    a_large_batch_is_settled_whole
    a_finished_job_cannot_be_changed
    everything_that_descends_through_unfinished_jobs_goes_along
    all_matching_jobs_are_canceled
    what_is_done_in_a_transaction_happens_together
    the_bodys_writes_and_its_success_are_one_commit
    members_of_a_shared_transaction_are_undone_alone
    a_beat_answers_who_still_has_a_row
    a_lost_action_runs_again_only_if_it_asked_for_retries
    a_job_past_its_deadline_is_settled
    a_job_that_was_not_started_in_time_expires
    a_due_job_of_a_function_that_no_worker_lists_is_held
    jobs_that_were_held_for_want_of_a_worker_are_freed_by_one
    results_go_however_long_nobody_cleaned_up
    the_newest_finished_job_of_every_function_outlives_retention
    a_watcher_is_woken_by_another_stores_work
    pages_follow_each_other_without_gap_or_repetition
""".split()
GRANT = """
CREATE ROLE {role} LOGIN PASSWORD 'x';
GRANT USAGE ON SCHEMA duly TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA duly TO {role};
GRANT CREATE ON SCHEMA public TO {role};
"""
CLEAN = """
TRUNCATE duly.jobs, duly.history, duly.kept, duly.workers, duly.queues;
DROP TABLE IF EXISTS notes;
"""


class Unprivileged(StoreConformance):
    url = ""

    def make_store(self) -> Store:
        return PostgresStore(self.url)

    def reopen(self, store: Store) -> Store:
        return PostgresStore(self.url)

    def table(self, name: str) -> str:
        return f"duly.{name}"


def test_a_role_that_may_not_change_the_schema_runs_everything_but_migrate(migrated_postgres):
    role = "plain_" + migrated_postgres.rpartition("_")[2]
    Unprivileged.url = migrated_postgres.replace("://", f"://{role}:x@", 1).replace(
        migrated_postgres.partition("://")[2].partition("@")[0] + "@", "", 1
    )
    with psycopg.connect(migrated_postgres, autocommit=True) as own:
        own.execute(compose.SQL(GRANT).format(role=compose.Identifier(role)))
        try:
            for name in WITHOUT_DDL:
                suite = Unprivileged()
                getattr(suite, f"test_{name}")()
                suite.teardown_method()
                own.execute(CLEAN)
            with (
                contextlib.closing(PostgresStore(Unprivileged.url)) as store,
                pytest.raises(StoreError, match="permission denied"),
            ):
                store.migrate(NOW)
        finally:
            own.execute(compose.SQL("DROP OWNED BY {}").format(compose.Identifier(role)))
            own.execute(compose.SQL("DROP ROLE {}").format(compose.Identifier(role)))
