"""What the database has after each verb, which handles are taken, and what is said of bad rows."""

import asyncio
import logging
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import psycopg_pool
import pytest

from duly.errors import (
    CannotBegin,
    InvalidOption,
    InvalidTime,
    NoScheduleTable,
    NotInTransaction,
    StoreMissing,
    StoreUnavailable,
)
from duly.index import IndexRow, PostgresScheduleIndex, SqliteScheduleIndex, SyncScheduleIndex
from duly.index import statements as sql
from duly.index.postgres import open_postgres
from duly.testing.index_conformance import HOUR, MINUTE, NOW, row
from tests.index.support import on_postgres, on_sqlite
from tests.jobs.support import wait_until


def claim(index, now=NOW, limit=100):
    return SyncScheduleIndex(index).claim_due(now, limit)


def upsert(index, *rows):
    for one in rows:
        SyncScheduleIndex(index).upsert(one)


def keys(rows):
    return [one.key for one in rows]


@pytest.mark.spec("R198")
def test_two_upserts_of_a_user_and_key_are_one_row_with_the_latest_values(place, index):
    upsert(index, row(cron="1 * * * *", timezone="Asia/Tokyo"), row(cron="2 * * * *"))
    assert place.rows() == [row(cron="2 * * * *")]


@pytest.mark.spec("R200", "R208")
def test_a_claim_leaves_the_next_time_after_the_given_now(place, index):
    upsert(index, row(next_fire_at=NOW - 5 * MINUTE))
    assert claim(index, NOW + 7) == [row(next_fire_at=NOW - 5 * MINUTE)]
    assert place.times() == {"digest": NOW + HOUR}
    assert claim(index, NOW + 3 * HOUR) == [row(next_fire_at=NOW + HOUR)]
    assert place.times() == {"digest": NOW + 4 * HOUR}


@pytest.mark.spec("R202")
def test_a_bad_row_is_not_advanced_and_warned_of_once(place, index, warnings):
    upsert(index, row("bad", NOW - 1, cron="nonsense"), row("zone", timezone="X/Y"), row("good"))
    for _ in range(3):
        claim(index)
    assert place.times() == {"bad": NOW - 1, "zone": NOW, "good": NOW + HOUR}
    assert len(warnings) == 2
    assert "schedule 'bad' of 'anna' does not fire until it is corrected: 'nonsense'" in warnings[0]
    assert "there is no time zone 'X/Y'" in warnings[1]


@pytest.mark.spec("R202")
def test_a_row_that_is_bad_in_another_way_is_warned_of_again(index, warnings):
    for cron in ("bad", "worse", "bad"):
        upsert(index, row(cron=cron))
        for _ in range(2):
            claim(index)
    assert len(warnings) == 3


@pytest.mark.spec("R203")
def test_more_bad_rows_than_a_page_do_not_hide_the_good_ones(place, index, warnings):
    place.insert_due(1_100, NOW - 1)
    place.ask("UPDATE schedule_index SET cron = 'nonsense'")
    upsert(index, row("good"), row("other"))
    assert keys(claim(index, limit=1)) == ["good"]
    assert keys(claim(index, limit=1)) == ["other"]
    assert claim(index, limit=1) == []
    assert len(warnings) == 1_100


@pytest.mark.spec("R204")
def test_rows_that_are_due_together_are_claimed_by_user_and_key(index):
    upsert(index, row("b", user_id="x"), row("a", user_id="x"), row("z", user_id="w"))
    assert keys(claim(index)) == ["z", "a", "b"]


# Locks and crashes -------------------------------------------------------------------------------


@pytest.mark.spec("R206")
@on_sqlite
def test_sqlite_locks_when_the_claim_begins(place, index):
    """Not at the first write: a claim that has read would then fail to upgrade its lock."""
    with closing(place.connect()) as other:
        with (
            index.database.transaction(),
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")


@pytest.mark.spec("R206")
@on_sqlite
def test_a_claim_on_sqlite_waits_for_a_writer_before_it_reads(place, index):
    """Read first and locked later, it would have to give up, or claim from an old snapshot."""

    async def main():
        with closing(place.connect(isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.ensure_future(index.claim_due(NOW))
            other.execute(
                "INSERT INTO schedule_index VALUES ('anna', 'late', '* * * * *', NULL, 1)"
            )
            other.execute("COMMIT")
            assert keys(await waiting) == ["late"]

    asyncio.run(main())


@pytest.mark.spec("R206")
@on_postgres
def test_postgres_skips_what_another_claim_has_locked(place):
    # A claim that waits instead fails soon.
    index = place.open_on(f"{place.address}?options=-c%20lock_timeout%3D100ms")
    expected = place.insert_due(10)
    with place.connect() as other:
        other.execute("SELECT 1 FROM schedule_index WHERE key < '0004' FOR UPDATE")
        assert keys(claim(index, limit=3)) == expected[4:7]
        assert keys(claim(index)) == expected[7:]
    assert keys(claim(index)) == expected[:4]
    index.close()


@on_postgres
def test_a_claim_does_not_depend_on_the_defaults_of_the_session(place):
    """In a snapshot of its own a claim fails where another has just committed one."""
    options = "default_transaction_isolation=serializable -c synchronous_commit=off"
    index = place.open_on(f"{place.address}?options=-c%20{quote(options)}")
    with index.database.transaction() as tx:
        shown = tx.raw.execute("SHOW transaction_isolation").fetchone()
        assert shown == ("read committed",)
        assert tx.raw.execute("SHOW synchronous_commit").fetchone() == ("on",)
    index.close()


@pytest.mark.spec("R207")
def test_an_error_inside_a_claim_leaves_the_rows_due(place, index):
    from duly import fault

    def fail(at: str) -> None:
        raise RuntimeError(at)

    upsert(index, row())
    with fault.inject(fail), pytest.raises(RuntimeError, match=r"index\.advanced"):
        claim(index)
    assert place.rows() == [row()]
    assert claim(index) == [row()]


@on_sqlite
def test_a_claim_whose_caller_has_gone_is_rolled_back(place, index):
    upsert(index, row())

    async def main():
        with closing(place.connect(isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.ensure_future(index.claim_due(NOW))
            # The claim is in its thread, and waits for the lock.
            await asyncio.sleep(0)
            wait_until(lambda: not index.database._idle._mine(), "it has a connection")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            other.execute("COMMIT")

    asyncio.run(main())
    index.close()  # waits for the thread
    assert place.rows() == [row()]


def test_a_lost_connection_is_replaced(place, index):
    upsert(index, row())
    if place.is_sqlite:
        index.database.close()
    else:
        place.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'duly index' AND datname = current_database()"
        )
    assert claim(index) == [row()]


# Handles -----------------------------------------------------------------------------------------


def test_a_connection_of_the_users_is_used_one_transaction_at_a_time(place):
    with closing(place.connect()) as connection:
        index = place.open_on(connection)
        asyncio.run(index.upsert(row()))
        assert place.rows() == [row()]  # committed
        assert asyncio.run(index.claim_due(NOW)) == [row()]
        asyncio.run(index.remove("anna", "digest"))
        assert place.rows() == []
        index.close()
        connection.execute("SELECT 1")  # it is the user's to close


@pytest.mark.parametrize(("autocommit", "kind"), [(True, "own"), (False, "own"), (True, "pool")])
@on_postgres
def test_psycopg_handles_of_every_kind_are_taken(place, autocommit, kind):
    handle: Any
    if kind == "pool":
        handle = psycopg_pool.ConnectionPool(place.address, min_size=1, open=True)
    else:
        handle = psycopg.connect(place.address, autocommit=autocommit)
    with handle:
        index = PostgresScheduleIndex(handle)
        upsert(index, row())
        assert place.rows() == [row()]
        assert claim(index) == [row()]
        index.close()


@on_sqlite
def test_row_and_text_factories_of_the_user_reach_nothing(place):
    with closing(place.connect(isolation_level=None)) as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        index = SqliteScheduleIndex(connection)
        upsert(index, row())
        assert claim(index) == [row()]
        assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)


@pytest.mark.spec("R207")
def test_a_connection_inside_a_transaction_is_refused(place):
    """What it claims would be due again if the user rolled back."""
    with closing(place.connect()) as connection:
        index = place.open_on(connection)
        upsert(index, row())
        connection.execute("UPDATE schedule_index SET cron = '1 * * * *'")
        for attempt in (lambda: claim(index), lambda: place.open_on(connection)):
            with pytest.raises(CannotBegin, match="commit first, or use on"):
                attempt()
        connection.rollback()
        assert claim(index) == [row()]


@on_sqlite
def test_an_sqlite_connection_that_cannot_begin_is_refused(place):
    class AlwaysInside(sqlite3.Connection):
        autocommit = False

    with (
        closing(place.connect(factory=AlwaysInside)) as connection,
        pytest.raises(CannotBegin, match="connect without autocommit=False"),
    ):
        SqliteScheduleIndex(connection)


@pytest.mark.parametrize("handle", [object(), 7, None])
def test_a_handle_without_transactions_is_refused(handle):
    with pytest.raises(CannotBegin, match="cannot begin a transaction"):
        SqliteScheduleIndex(handle)
    with pytest.raises(CannotBegin, match="cannot begin a transaction"):
        PostgresScheduleIndex(handle)


@pytest.mark.parametrize("path", ["", ":memory:", "sqlite:///x.db"])
def test_what_is_no_file_is_refused(path):
    with pytest.raises(InvalidOption, match="give the path of a file"):
        SqliteScheduleIndex(path)


def test_without_psycopg_the_message_says_what_to_install(monkeypatch):
    from duly.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r'pip install "duly\[postgres\]"'):
        PostgresScheduleIndex("postgresql://nowhere")


def test_a_server_that_cannot_be_reached_is_said_to_be():
    with pytest.raises(StoreUnavailable):
        PostgresScheduleIndex("postgresql+psycopg://127.0.0.1:1/x?connect_timeout=2")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"user_id": 7}, InvalidOption),
        ({"key": "a\0b"}, InvalidOption),
        ({"timezone": "\ud800"}, InvalidOption),
        ({"next_fire_at": 1.5}, InvalidTime),
        ({"next_fire_at": True}, InvalidTime),
        ({"next_fire_at": 2**63}, InvalidTime),
    ],
)
def test_a_row_that_no_database_takes_is_refused(values, error):
    fields = {"user_id": "a", "key": "b", "cron": "c", "timezone": None, "next_fire_at": 0}
    with pytest.raises(error):
        IndexRow(**fields | values)


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.0, True])
def test_a_limit_that_makes_no_sense_is_refused(tmp_path, limit):
    index = SqliteScheduleIndex(tmp_path / "index.db")
    with pytest.raises(InvalidOption, match="limit"):
        claim(index, limit=limit)
    index.close()


# In a transaction of the user's ------------------------------------------------------------------


@pytest.mark.spec("R210")
def test_upsert_and_remove_are_part_of_the_users_transaction(place, index):
    upsert(index, row("old"))
    with closing(place.connect()) as connection:
        for end in (connection.rollback, connection.commit):
            rows = index.on(connection)
            rows.upsert(row("new"))
            rows.remove("anna", "old")
            assert keys(place.rows()) == ["old"]
            end()
    assert keys(place.rows()) == ["new"]


def test_a_connection_in_autocommit_is_refused(place, index):
    how = {"isolation_level": None} if place.is_sqlite else {"autocommit": True}
    with closing(place.connect(**how)) as connection:
        with pytest.raises(NotInTransaction):
            index.on(connection)
        connection.execute("BEGIN")
        rows = index.on(connection)
        rows.upsert(row())
        connection.execute("COMMIT")
        with pytest.raises(NotInTransaction):
            rows.upsert(row("late"))
    assert keys(place.rows()) == ["digest"]


def test_a_handle_for_another_database_is_refused(place, index):
    with pytest.raises(InvalidOption, match=r"give a (sqlite3|psycopg) connection, not"):
        index.on(object())


# The table ---------------------------------------------------------------------------------------


@pytest.mark.spec("R212")
def test_a_missing_table_is_named_with_its_ddl(place):
    if place.is_sqlite:
        place.connect().close()
    index = place.open(skip_schema_init=True)
    blocking = SyncScheduleIndex(index)
    for call in (
        lambda: blocking.upsert(row()),
        lambda: blocking.remove("anna", "digest"),
        lambda: blocking.claim_due(NOW),
    ):
        with pytest.raises(NoScheduleTable, match="the table schedule_index does not exist") as at:
            call()
        assert at.value.ddl in str(at.value)
    run_script(place, at.value.ddl)
    upsert(index, row())
    assert claim(index) == [row()]
    index.close()


def run_script(place, script):
    with closing(place.connect()) as connection:
        connection.executescript(script) if place.is_sqlite else connection.execute(script)
        connection.commit()


@on_sqlite
def test_a_missing_file_is_created_only_with_the_table(place, tmp_path):
    index = place.open(skip_schema_init=True)
    with pytest.raises(StoreMissing):
        claim(index)
    assert list(tmp_path.iterdir()) == []
    place.open().close()
    assert (tmp_path / "duly.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.spec("R212")
def test_the_table_is_created_once(place, index):
    upsert(index, row())
    place.open().close()
    assert place.rows() == [row()]


@pytest.mark.spec("R212")
@on_postgres
def test_two_that_create_the_table_at_once_do_not_fail(place):
    waits = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    database = open_postgres(place.address)
    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as first:
            first.run(sql.LOCK_SCHEMA)
            first.run_script(sql.SCHEMA[sql.INDEX_TABLE])
            second = pool.submit(place.open)
            wait_until(lambda: place.ask(waits), "the second waits for the first")
        second.result(20).close()
    database.close()


@pytest.mark.spec("R212")
@on_postgres
def test_a_role_that_may_not_create_tables_uses_those_that_are_there(place, index):
    role = f"role_{place.address.rpartition('/')[2]}"
    place.ask(f"CREATE ROLE {role}")
    place.ask(f"GRANT SELECT, INSERT, UPDATE, DELETE ON schedule_index TO {role}")
    limited = place.open_on(f"{place.address}?options=-c%20role%3D{role}")
    upsert(limited, row())
    assert claim(limited) == [row()]
    limited.close()
    place.ask(f"DROP OWNED BY {role}")
    place.ask(f"DROP ROLE {role}")


def test_the_table_is_the_one_of_the_document(place, index):
    if place.is_sqlite:
        [(table,)] = place.ask("SELECT sql FROM sqlite_master WHERE name = 'schedule_index'")
        assert "WITHOUT ROWID" in table
        given = {"now": 5, "at": 1, "user_id": "", "key": "", "limit": 2}
        with closing(place.connect()) as connection:
            plan = connection.execute(f"EXPLAIN QUERY PLAN {sql.DUE.sqlite}", given).fetchall()
        # One range of the index, in its order: nothing is sorted, nothing is scanned.
        assert len(plan) == 1
        assert plan[0][3].startswith(
            "SEARCH schedule_index USING INDEX idx_schedule_index_next_fire_at"
        )
    else:
        columns = place.ask(
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
            "WHERE table_name = 'schedule_index' ORDER BY ordinal_position"
        )
        assert columns == [
            ("user_id", "text", "NO"),
            ("key", "text", "NO"),
            ("cron", "text", "NO"),
            ("timezone", "text", "YES"),
            ("next_fire_at", "bigint", "NO"),
        ]
        indexes = place.ask("SELECT indexname FROM pg_indexes WHERE tablename = 'schedule_index'")
        assert ("idx_schedule_index_next_fire_at",) in indexes


# Without an event loop ---------------------------------------------------------------------------


class Foreign:
    """An index of somebody else's."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def upsert(self, row: IndexRow) -> None:
        await asyncio.sleep(0)
        self.calls.append(row)

    async def claim_due(self, now: int, limit: int = 100) -> list[IndexRow]:
        return [row(next_fire_at=now)]

    async def remove(self, user_id: str, key: str) -> None:
        self.calls.append((user_id, key, asyncio.get_running_loop()))


def test_the_adapter_runs_any_index_on_one_event_loop_of_its_own():
    foreign = Foreign()
    blocking = SyncScheduleIndex(foreign)
    blocking.upsert(row())
    assert blocking.claim_due(5) == [row(next_fire_at=5)]
    blocking.remove("a", "b")
    blocking.remove("c", "d")
    blocking.close()
    assert foreign.calls[0] == row()
    assert foreign.calls[1][2] is foreign.calls[2][2]


@on_sqlite
def test_a_claim_says_nothing_of_good_rows(index, caplog):
    with caplog.at_level(logging.INFO, "duly.index"):
        upsert(index, row())
        claim(index)
    assert caplog.records == []


def test_the_page_shows_the_tables_as_they_are():
    page = Path(__file__).parents[2] / "docs/how-to/schedule-index.md"
    text = page.read_text(encoding="utf-8")
    assert [ddl for ddl in sql.SCHEMA[sql.INDEX_TABLE] if ddl not in text] == []
