"""A record and its row in the index are one: created, changed, deleted and rolled back together."""

import asyncio
import subprocess
import sys
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from typing import cast

import psycopg
import pytest

from duly.errors import (
    CannotBegin,
    InvalidOption,
    NoScheduleTable,
    NotInTransaction,
    ScheduleExists,
    ScheduleNotFound,
    StoreUnavailable,
)
from duly.index import IndexRow, ScheduleCollection, SyncScheduleIndex
from duly.testing import ManualClock
from duly.testing.index_conformance import DAY, HOUR, MINUTE, NOW
from tests.index.support import Index, Place
from tests.jobs.support import wait_until

KEY = "schedules/digest"
HOURLY = {"cron": "0 * * * *"}


class Kept:
    """A collection whose verbs are called without await."""

    def __init__(self, place: Place, index: Index | None, pattern: str = "schedules/*") -> None:
        self.clock = ManualClock(NOW)
        database = place.address if index is None else None
        self.collection = ScheduleCollection(
            pattern=pattern, index=index, database=database, clock=self.clock
        )

    def __getattr__(self, verb: str):
        return lambda *given: asyncio.run(getattr(self.collection, verb)(*given))


@pytest.fixture
def kept(place, index):
    kept = Kept(place, index)
    yield kept
    kept.collection.close()


def indexed(cron="0 * * * *", timezone=None, next_fire_at=NOW + HOUR, key=KEY):
    return IndexRow("anna", key, cron, timezone, next_fire_at)


# Mirroring ---------------------------------------------------------------------------------------


@pytest.mark.spec("R209")
def test_a_new_record_is_indexed(place, kept):
    state = {"cron": "0 9 * * *", "timezone": "Europe/Istanbul", "audience": ["tech", 1.5, None]}
    record = kept.create("anna", KEY, state)
    assert record.state == {**state, "enabled": True}
    assert kept.get("anna", KEY) == record
    assert place.rows() == [indexed("0 9 * * *", "Europe/Istanbul", NOW + 6 * HOUR)]


@pytest.mark.spec("R209")
def test_a_record_that_is_not_enabled_is_not_indexed(place, kept):
    kept.create("anna", KEY, {**HOURLY, "enabled": False})
    assert place.rows() == []
    kept.update("anna", KEY, {"enabled": True})
    assert place.rows() == [indexed()]
    kept.update("anna", KEY, {"enabled": False})
    assert place.rows() == []
    assert kept.get("anna", KEY).state == {**HOURLY, "timezone": None, "enabled": False}


@pytest.mark.spec("R209")
def test_a_change_of_cron_or_zone_is_indexed(place, kept):
    kept.create("anna", KEY, HOURLY)
    kept.update("anna", KEY, {"cron": "0 9 * * *"})
    assert place.rows() == [indexed("0 9 * * *", None, NOW + 9 * HOUR)]
    kept.update("anna", KEY, {"timezone": "Asia/Tokyo"})
    assert place.rows() == [indexed("0 9 * * *", "Asia/Tokyo", NOW + DAY)]


@pytest.mark.spec("R209")
def test_a_deleted_record_is_not_indexed(place, kept):
    kept.create("anna", KEY, HOURLY)
    assert kept.delete("anna", KEY) is True
    assert place.rows() == []
    assert kept.get("anna", KEY) is None
    assert kept.delete("anna", KEY) is False


@pytest.mark.spec("R209")
@pytest.mark.parametrize("bad", [{"cron": "nonsense"}, {"timezone": "X/Y"}])
def test_a_bad_expression_or_zone_is_not_indexed_until_it_is_corrected(place, kept, warnings, bad):
    kept.create("anna", KEY, HOURLY)
    kept.update("anna", KEY, bad)
    assert place.rows() == []
    assert kept.get("anna", KEY).state == {**HOURLY, "timezone": None, "enabled": True, **bad}
    assert len(warnings) == 1
    assert "is not indexed" in warnings[0]
    kept.update("anna", KEY, {**HOURLY, "timezone": None})
    assert place.rows() == [indexed()]


def test_a_change_of_something_else_does_not_lose_a_time_that_is_due(place, kept):
    kept.create("anna", KEY, HOURLY)
    kept.clock.advance(3600 + 60)
    kept.update("anna", KEY, {"audience": "tech"})
    assert place.rows() == [indexed(next_fire_at=NOW + HOUR)]


def test_what_the_collection_indexes_is_claimed_and_advanced(index, kept):
    kept.create("anna", KEY, {"cron": "H * * * *"})
    [first] = SyncScheduleIndex(index).claim_due(NOW + HOUR)
    [second] = SyncScheduleIndex(index).claim_due(NOW + 2 * HOUR)
    assert second.next_fire_at == first.next_fire_at + HOUR


# One transaction ---------------------------------------------------------------------------------


@pytest.mark.spec("R210")
def test_a_failed_mirror_leaves_no_record(place, kept):
    kept.create("anna", KEY, HOURLY)
    refuse_writes_to_the_index(place)
    with pytest.raises(Exception, match="refused"):
        kept.create("anna", "schedules/other", HOURLY)
    with pytest.raises(Exception, match="refused"):
        kept.update("anna", KEY, {"cron": "5 * * * *"})
    with pytest.raises(Exception, match="refused"):
        kept.delete("anna", KEY)
    assert [record.state["cron"] for record in kept.list("anna")] == ["0 * * * *"]
    assert place.rows() == [indexed()]


def refuse_writes_to_the_index(place: Place) -> None:
    if place.is_sqlite:
        for verb in ("INSERT", "UPDATE", "DELETE"):
            place.ask(
                f"CREATE TRIGGER no_{verb} BEFORE {verb} ON schedule_index "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
    else:
        place.ask(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'refused'; END $$"
        )
        place.ask(
            "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON schedule_index "
            "EXECUTE FUNCTION refuse()"
        )


@pytest.mark.spec("R210")
def test_records_of_a_transaction_are_stored_and_indexed_together_or_not_at_all(place, kept):
    def fail_at_the_end() -> None:
        with kept.collection.transaction() as records:
            records.create("anna", KEY, HOURLY)
            records.create("anna", "schedules/other", HOURLY)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_the_end()
    assert place.rows() == []
    with kept.collection.transaction() as records:
        records.create("anna", KEY, HOURLY)
        assert records.get("anna", KEY) is not None
        assert place.rows() == []  # nobody else sees it yet
    assert place.rows() == [indexed()]


@pytest.mark.spec("R210")
def test_a_record_in_the_users_transaction_is_indexed_in_it(place, kept):
    with closing(place.connect()) as connection:
        kept.collection.on(connection).create("anna", KEY, HOURLY)
        connection.rollback()
        assert (place.rows(), kept.list("anna")) == ([], [])
        records = kept.collection.on(connection)
        records.create("anna", KEY, HOURLY)
        records.update("anna", KEY, {"cron": "30 * * * *"})
        connection.commit()
    assert place.rows() == [indexed("30 * * * *", None, NOW + 30 * MINUTE)]


def test_a_connection_in_autocommit_is_refused(place, kept):
    how = {"isolation_level": None} if place.is_sqlite else {"autocommit": True}
    with closing(place.connect(**how)) as connection, pytest.raises(NotInTransaction):
        kept.collection.on(connection)


KILLED = """
import os, signal, sys
from duly.index import PostgresScheduleIndex, ScheduleCollection, SqliteScheduleIndex

kind = SqliteScheduleIndex if sys.argv[1] == "sqlite" else PostgresScheduleIndex
collection = ScheduleCollection(index=kind(sys.argv[2]))
with collection.transaction() as records:
    records.delete("anna", "schedules/digest")
    records.create("anna", "schedules/other", {"cron": "0 * * * *"})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.spec("R210")
def test_a_process_that_is_killed_leaves_records_and_index_as_they_were(place, kept):
    kept.create("anna", KEY, HOURLY)
    kind = "sqlite" if place.is_sqlite else "postgres"
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, kind, place.address], timeout=60, check=False
    )
    assert ended.returncode == -9
    assert [record.key for record in kept.list("anna")] == [KEY]
    assert place.rows() == [indexed()]


def test_changes_of_one_record_at_once_lose_nothing(place, kept):
    kept.create("anna", KEY, HOURLY)

    async def change_all():
        changes = [{str(number): number} for number in range(20)]
        update = kept.collection.update
        await asyncio.gather(*(update("anna", KEY, change) for change in changes))

    asyncio.run(change_all())
    state = kept.get("anna", KEY).state
    assert all(state[str(number)] == number for number in range(20))


# Rebuilding --------------------------------------------------------------------------------------


@pytest.mark.spec("R210")
def test_a_rebuild_reproduces_the_index(place, kept):
    kept.create("anna", KEY, HOURLY)
    kept.create("bert", KEY, {"cron": "0 9 * * *", "timezone": "Asia/Tokyo"})
    kept.create("bert", "schedules/off", {**HOURLY, "enabled": False})
    kept.create("bert", "schedules/bad", {"cron": "nonsense"})
    before = place.rows()
    assert len(before) == 2
    place.ask("DELETE FROM schedule_index")
    assert kept.rebuild() == 2
    assert place.rows() == before


@pytest.mark.spec("R210")
def test_a_rebuild_corrects_rows_that_differ_from_their_records(place, kept):
    for key in (KEY, "schedules/off", "schedules/late"):
        kept.create("anna", key, HOURLY)
    kept.update("anna", "schedules/off", {"enabled": False})
    before = place.rows()
    add = "INSERT INTO schedule_index VALUES ('anna', ?, '* * * * *', NULL, 5)"
    place.ask(add, "schedules/off")
    place.ask(add, "schedules/orphan")
    place.ask("UPDATE schedule_index SET cron = '7 * * * *' WHERE key = ?", KEY)
    place.ask("UPDATE schedule_index SET next_fire_at = ? WHERE key = 'schedules/late'", NOW * 2)
    assert kept.rebuild() == 2
    assert place.rows() == before


@pytest.mark.spec("R210")
def test_a_rebuild_keeps_what_is_due(place, kept):
    kept.create("anna", KEY, HOURLY)
    kept.clock.advance(2 * 3600)
    kept.rebuild()
    assert place.rows() == [indexed(next_fire_at=NOW + HOUR)]


def test_a_rebuild_leaves_rows_of_other_patterns_alone(place, index, kept):
    other = Kept(place, index, "reports/*")
    other.create("anna", "reports/weekly", HOURLY)
    place.ask("INSERT INTO schedule_index VALUES ('anna', 'mine', '* * * * *', NULL, 5)")
    before = place.rows()
    assert kept.rebuild() == 0
    assert place.rows() == before
    other.collection.close()


def test_a_rebuild_takes_any_number_of_records(place, kept):
    with kept.collection.transaction() as records:
        for number in range(2_100):
            records.create(f"user {number % 7}", f"schedules/{number}", HOURLY)
    before = place.rows()
    place.ask("DELETE FROM schedule_index")
    assert kept.rebuild() == 2_100
    assert place.rows() == before


# Without an index, and with another --------------------------------------------------------------


@pytest.mark.spec("R211")
def test_without_an_index_the_collection_works(place):
    kept = Kept(place, None)
    kept.create("anna", KEY, HOURLY)
    kept.update("anna", KEY, {"enabled": False, "note": "x"})
    assert kept.get("anna", KEY).state == {
        **HOURLY,
        "timezone": None,
        "enabled": False,
        "note": "x",
    }
    assert [record.key for record in kept.list("anna")] == [KEY]
    with pytest.raises(InvalidOption, match="has no index to rebuild"):
        kept.rebuild()
    assert kept.delete("anna", KEY) is True
    with pytest.raises(Exception, match="schedule_index"):
        place.rows()  # there is not even a table
    kept.collection.close()


class Foreign:
    """An index of somebody else's, in no transaction of ours, that lives on one event loop."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], IndexRow] = {}
        self.fails = False
        self.loops: set[object] = set()

    async def upsert(self, row: IndexRow) -> None:
        self.loops.add(asyncio.get_running_loop())
        if self.fails:
            raise OSError("unreachable")
        self.rows[row.user_id, row.key] = row

    async def claim_due(self, now: int, limit: int = 100) -> list[IndexRow]:
        return []

    async def remove(self, user_id: str, key: str) -> None:
        self.rows.pop((user_id, key), None)


def test_an_index_elsewhere_is_mirrored_before_the_record_is_committed(place):
    foreign = Foreign()

    async def main():
        clock = ManualClock(NOW)
        collection = ScheduleCollection(index=foreign, database=place.address, clock=clock)
        await collection.create("anna", KEY, HOURLY)
        assert list(foreign.rows.values()) == [indexed()]
        foreign.fails = True
        with pytest.raises(OSError, match="unreachable"):
            await collection.create("anna", "schedules/other", HOURLY)
        assert [record.key for record in await collection.list("anna")] == [KEY]
        assert foreign.loops == {asyncio.get_running_loop()}
        foreign.fails = False
        foreign.rows.clear()
        assert await collection.rebuild() == 1
        assert list(foreign.rows.values()) == [indexed()]
        with collection.transaction() as records:  # without a loop of the caller's
            records.delete("anna", KEY)
        assert foreign.rows == {}
        collection.close()

    asyncio.run(main())


class Slow(Foreign):
    """One that is asked, and does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def upsert(self, row: IndexRow) -> None:
        self.asked += 1
        await asyncio.Event().wait()


def test_to_close_on_the_loop_of_an_index_that_is_waited_for_gives_it_up(place):
    async def main():
        slow = Slow()
        collection = ScheduleCollection(index=slow, database=place.address)
        keys = [f"schedules/{name}" for name in ("left", "waits")]
        left, waits = [asyncio.create_task(collection.create("anna", k, HOURLY)) for k in keys]
        async with asyncio.timeout(60):
            # On SQLite the second waits for the write lock of the first, and asks after that.
            while slow.asked < 1:
                await asyncio.sleep(0.001)
        left.cancel()
        collection.close()
        with pytest.raises(StoreUnavailable, match="the wait for the index was canceled"):
            await waits

    asyncio.run(main())
    without = ScheduleCollection(database=place.address)
    assert asyncio.run(without.list("anna")) == []
    without.close()


def test_to_close_an_index_ends_what_waits_for_it():
    slow = Slow()
    blocking = SyncScheduleIndex(slow)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(blocking.upsert, indexed())
        wait_until(lambda: slow.asked, "it is asked")
        blocking.close()
        assert isinstance(waits.exception(60), CancelledError)


def test_where_the_records_live_must_be_clear(place, index, tmp_path):
    with pytest.raises(InvalidOption, match="is required, unless the index is a duly index"):
        ScheduleCollection()
    with pytest.raises(InvalidOption, match="leave it out"):
        ScheduleCollection(index=index, database=place.address)
    with pytest.raises(CannotBegin):
        ScheduleCollection(database=object())


def test_a_connection_of_the_users_holds_the_records(place):
    with closing(place.connect()) as connection:
        index = place.open_on(connection)
        collection = ScheduleCollection(index=index, clock=ManualClock(NOW))
        asyncio.run(collection.create("anna", KEY, HOURLY))
        assert place.rows() == [indexed()]
        collection.close()
        index.close()


# Keys, states and the table ----------------------------------------------------------------------


@pytest.mark.parametrize("key", ["digest", "schedules/", "schedules/a/b", "Schedules/a", 7, ""])
def test_a_key_must_fit_the_pattern(kept, key):
    for call in (lambda: kept.create("anna", key, HOURLY), lambda: kept.get("anna", key)):
        with pytest.raises(InvalidOption, match="key"):
            call()


def test_a_pattern_is_text(tmp_path):
    with pytest.raises(InvalidOption, match="pattern: give text"):
        ScheduleCollection(pattern=cast(str, 5), database=tmp_path / "x.db")


@pytest.mark.parametrize("state", [None, 5, "x", [], [("cron", "0 8 * * *")]])
def test_a_state_is_a_mapping(place, kept, state):
    with pytest.raises(InvalidOption, match=r"^state: give a mapping"):
        kept.create("anna", KEY, state)
    with pytest.raises(InvalidOption, match=r"^state: give a mapping"):
        kept.update("anna", KEY, state)
    kept.create("anna", KEY, HOURLY)
    with pytest.raises(InvalidOption, match=r"^state: give a mapping"):
        kept.update("anna", KEY, state)
    assert place.rows() == [indexed()]


@pytest.mark.parametrize("pattern", ["schedules", "*/*", ""])
def test_a_pattern_needs_one_star(tmp_path, pattern):
    with pytest.raises(InvalidOption, match="exactly one star"):
        ScheduleCollection(pattern=pattern, database=tmp_path / "x.db")


@pytest.mark.parametrize(
    ("state", "option"),
    [
        ({}, "cron"),
        ({"cron": 5}, "cron"),
        ({**HOURLY, "timezone": 5}, "timezone"),
        ({**HOURLY, "enabled": "yes"}, "enabled"),
        ({**HOURLY, "x": float("nan")}, r"state\.x"),
        ({**HOURLY, "x": {1, 2}}, r"state\.x"),
    ],
)
def test_a_state_that_cannot_be_stored_is_refused(place, kept, state, option):
    with pytest.raises(InvalidOption, match=f"^{option}: "):
        kept.create("anna", KEY, state)
    assert (kept.list("anna"), place.rows()) == ([], [])


def test_a_second_record_of_a_key_is_refused_and_a_missing_one_cannot_be_changed(place, kept):
    with pytest.raises(ScheduleNotFound):
        kept.update("anna", KEY, {"enabled": False})
    kept.create("anna", KEY, HOURLY)
    with pytest.raises(ScheduleExists):
        kept.create("anna", KEY, {"cron": "5 * * * *"})
    kept.create("bert", KEY, HOURLY)
    assert place.rows()[0] == indexed()


@pytest.mark.spec("R212")
def test_a_missing_table_is_named_with_its_ddl(place, index):
    collection = ScheduleCollection(index=index, skip_schema_init=True)
    with pytest.raises(NoScheduleTable, match="the table schedule_records does not exist"):
        asyncio.run(collection.create("anna", KEY, HOURLY))
    ScheduleCollection(index=index).close()
    ScheduleCollection(index=index).close()
    asyncio.run(collection.create("anna", KEY, HOURLY))
    collection.close()


@pytest.mark.postgres
def test_a_dsn_of_either_form_is_known(postgres_url):
    for dsn in (postgres_url, psycopg.conninfo.make_conninfo(postgres_url)):
        collection = ScheduleCollection(database=dsn)
        assert asyncio.run(collection.get("anna", KEY)) is None
        collection.close()
