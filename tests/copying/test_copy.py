"""A store that is moved goes on in the other database as if nothing had happened."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from duly import Ctx, Duly, JobFailed, ManualClock, State, Unique, fault
from duly.errors import CopyDiffers, CopyRefused, StoreMoved
from duly.runtime.copy_store import CopyProgress, CopyReport, copy_store, give_up_copy, plan_copy
from duly.store.copy_end import BusyCounts, CopyEnd
from duly.store.copy_statements import KEYS, NUMBERING
from duly.testing.conformance.ground import new_job
from tests.copying.house import House, fill
from tests.jobs.support import Database, Gate, ManualWorker, in_thread, wait_until
from tests.schedules.support import ledger
from tests.server.hooked import send


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def house(sqlite_url: str, clock: ManualClock) -> Iterator[House]:
    """An app on SQLite that has something in every table."""
    house = House(sqlite_url, clock)
    fill(house)
    yield house
    house.close()


def move(house: House, url: str, **options: Any) -> CopyReport:
    target = Duly(url, clock=house.clock)
    try:
        return copy_store(house.app.store, target.store, house.clock, **options)
    finally:
        target.close()


def give_up(house: House, url: str) -> bool:
    target = Duly(url, clock=house.clock)
    try:
        return give_up_copy(house.app.store, target.store, house.clock)
    finally:
        target.close()


@pytest.fixture
def moved(house: House, postgres_url: str) -> Iterator[House]:
    """The same app, there."""
    move(house, postgres_url)
    there = House(postgres_url, house.clock)
    there.broken = False
    yield there
    there.close()


def rows(db: Database, table: str) -> list[Any]:
    """Every row of a table, whatever the database calls true and whatever it numbers."""
    if db.is_sqlite:
        names = db.execute(f"SELECT name FROM pragma_table_info('duly_{table}')")
    else:
        where = f"WHERE table_schema = 'duly' AND table_name = '{table}'"
        names = db.execute(f"SELECT column_name FROM information_schema.columns {where}")
    own = NUMBERING if table == "history" else ()
    columns = sorted(name for (name,) in names if name not in own)
    chosen = ", ".join(f'"{column}"' for column in columns)
    found = [tuple(map(plain, row)) for row in db.execute(f"SELECT {chosen} FROM @{table}")]
    return [columns, *sorted(found, key=repr)]


def plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, bytes | int | float | None) else str(value)


@pytest.mark.spec("N17")
def test_every_row_of_every_table_arrives(house, postgres_url):
    told: list[CopyProgress] = []
    before = {table: rows(house.db, table) for table in KEYS}
    assert [table for table, found in before.items() if len(found) == 1] == []

    report = move(house, postgres_url, tell=told.append)

    there = Database(postgres_url)
    after = {table: rows(there, table) for table in KEYS}
    opened = [row for row in after["audit"] if "store.open" in row]
    assert len(opened) == 1
    after["audit"].remove(opened[0])
    closed = [row for row in after["audit"] if "store.close" in row]
    before["audit"] = sorted([*before["audit"][1:], *closed], key=repr)
    before["audit"].insert(0, after["audit"][0])
    assert after == before
    meta = dict(there.execute("SELECT key, value FROM @meta"))
    zones = dict(house.db.execute("SELECT key, value FROM @meta WHERE key LIKE 'zone%'"))
    assert zones.items() <= meta.items()
    assert {"copy", "refused", "copying"}.isdisjoint(meta)
    # Whatever numbers rows by itself would have to be set beyond what was copied.
    assert there.execute("SELECT 1 FROM pg_sequences WHERE schemaname = 'duly'") == []
    assert there.execute("SELECT 1 FROM pg_trigger WHERE tgname = 'refuse_write'") == []
    # Retention empties whole buckets, by the day.
    days = "bucket <> completed_at / 86400000 % 16"
    assert there.scalar(f"SELECT count(*) FROM @history WHERE {days}") == 0
    there.close()
    assert report.tables == {t: len(r) - 1 for t, r in before.items()}
    assert (told[-1].step, told[-1].done) == ("verify", told[-1].total)
    assert told[-1].total == sum(report.tables.values())


@pytest.mark.spec("N17")
def test_what_was_begun_goes_on_there(house, moved, clock):
    app = moved.app
    there = {name: app.job(job.id) for name, job in house.jobs.items()}
    assert there["succeeded"].result(timeout=0) == "before"
    with pytest.raises(JobFailed, match="always"):
        there["failed"].result(timeout=0)
    assert there["canceled"].state == State.CANCELED
    assert [line.text for line in there["retried"].logs()] == ["trying in the end"]
    # Keys are held by the jobs that held them.
    note = app.function("note")
    unique = note.using(unique=Unique("k", "unfinished"), owner="ada", tags=["x"])
    assert app.run_after(1800, unique, "unique").id == there["unique"].id
    again = app.run(note.using(idempotency_key="i"), "idempotent")
    assert again.id == there["idempotent"].id
    assert send(app, delivery="d-1").outcome == "duplicate"
    assert app.tokens.check(house.secret) is not None
    assert [pause.name for pause in app.queues.paused()] == ["mail"]
    assert app.queues.limits() == {"reports": 2}

    moved.work()
    (event,) = app.webhooks.list()
    members = ["all done", "idempotent", "member 0", "member 1", "member 2", "traced"]
    assert moved.db.notes() == sorted([event.id, *members])

    clock.advance(600)
    moved.tick()
    moved.work()
    assert (there["retried"].attempt, there["retried"].result(timeout=0)) == (2, "in the end")
    assert moved.db.notes() == sorted([event.id, *members, "in the end", "often", "often"])
    # Every five minutes exactly once, whichever store it fell into.
    ticks = [tick.at for tick in reversed(app.schedules.ticks("often"))]
    assert [(t - ticks[0]).total_seconds() for t in ticks] == [0, 300, 600]

    clock.advance(3600)
    moved.work()
    left = {name for name, job in there.items() if not job.state.is_terminal}
    assert left == {"order", "paused"}
    assert {"debounced", "unique", "second"} <= set(moved.db.notes())
    assert len(set(moved.db.notes())) == len(moved.db.notes()) - 1


@pytest.mark.spec("N17")
def test_a_run_of_a_workflow_goes_on_there(house, moved):
    moved.app.queues.resume("mail")
    moved.work()
    assert moved.app.job(house.jobs["order"].id).result() == "step child 5"
    assert moved.db.scalar("SELECT count(*) FROM notes WHERE text = 'step'") == 0
    moved.app.send(house.jobs["order"].id, "packed", 6, once="k")


@pytest.mark.spec("N17")
def test_the_source_refuses_everybody_and_says_where_it_has_moved(house, moved, clock):
    told = r"this store was moved to test_\w+ on 127.0.0.1; use it there"
    note, before = house.app.function("note"), rows(house.db, "jobs")
    late = Duly(house.url, clock=clock)
    with pytest.raises(StoreMoved, match=told):
        late.ready()
    # Those who had it open before are told when they write.
    with pytest.raises(StoreMoved, match=told):
        house.app.run(note, "late")
    with pytest.raises(StoreMoved, match=told), house.app.transaction() as tx:
        tx.run(note, "late")
    with pytest.raises(StoreMoved, match=told):
        house.jobs["unique"].cancel()
    clock.advance(600)
    with pytest.raises(StoreMoved, match=told):
        house.tick()
    handle = house.db.connect()
    handle.execute("BEGIN")
    with pytest.raises(sqlite3.IntegrityError, match=told):
        house.app.on(handle).run(note, "late")
    assert rows(house.db, "jobs") == before
    # What is there can still be read.
    assert house.app.job(house.jobs["succeeded"].id).result(timeout=0) == "before"
    assert "late" not in house.db.notes()


@pytest.mark.spec("N17")
def test_a_store_comes_back_the_same_way(moved, tmp_path, clock):
    back = f"sqlite:///{tmp_path}/back.db"
    before = {table: rows(moved.db, table) for table in KEYS if table != "audit"}
    report = move(moved, back)
    db = Database(back)
    assert {table: rows(db, table) for table in KEYS if table != "audit"} == before
    assert report.tables["audit"] == db.count("@audit") - 1
    db.close()
    with pytest.raises(StoreMoved, match=r"was moved to .*back.db"):
        moved.app.run(moved.app.function("note"), "late")
    handle = moved.db.connect()
    handle.autocommit = False
    with pytest.raises(psycopg.Error, match="was moved"):
        moved.app.on(handle).run(moved.app.function("note"), "late")
    handle.rollback()
    there = House(back, clock)
    there.broken = False
    there.work()
    assert {"idempotent", "all done"} <= set(there.db.notes())
    there.close()


# What runs ---------------------------------------------------------------------------------------


def test_long_rows_behind_short_ones_do_not_come_all_at_once(
    house, postgres_url, clock, monkeypatch
):
    most = 100_000
    monkeypatch.setattr("duly.runtime.copy_store.PAGE_BYTES", most)
    read: list[int] = []
    ask = CopyEnd.rows

    def rows_of(end: CopyEnd, table: str, *given: Any) -> list[Any]:
        rows = ask(end, table, *given)
        if table in ("jobs", "history"):
            read.append(sum(len(value) for row in rows for value in row if type(value) is str))
        return rows

    monkeypatch.setattr(CopyEnd, "rows", rows_of)
    # The next page is larger after small rows.
    jobs = [new_job(args="{}") for _ in range(60)] + [new_job(args="x" * 50_000) for _ in range(30)]
    jobs.append(new_job(args="x" * 3 * most))
    house.app.store.enqueue(jobs)
    for job in jobs[60::2]:
        house.app.store.cancel(job.id, "test", clock.now())
    move(house, postgres_url)
    assert max(read) < 4 * most
    assert sorted(read)[-5] < 2 * most, "but for the one that is longer than a page"


def busy(house: House) -> tuple[ManualWorker, Gate]:
    """A worker in the middle of an action."""
    house.work()
    gate = Gate()

    @house.app.action
    def slow(ctx: Ctx) -> str:
        gate.pass_through()
        return house.app.run(house.app.function("note"), "of slow").id

    house.jobs["slow"] = house.app.run(slow)
    worker = ManualWorker(house.app)
    worker.start_due()
    gate.wait_for_one()
    return worker, gate


@pytest.mark.spec("N17")
def test_a_copy_that_does_not_wait_is_refused_while_a_job_runs(house, postgres_url):
    worker, gate = busy(house)
    before = {table: rows(house.db, table) for table in KEYS}
    with pytest.raises(CopyRefused, match=r"1 job is still running after 0 s, .*--wait"):
        move(house, postgres_url, wait=0)
    # Both stores are as they were, and go on.
    assert {table: rows(house.db, table) for table in KEYS} == before
    assert house.app.paused is None
    gate.open()
    worker.work()
    assert house.jobs["slow"].state == State.SUCCEEDED
    worker.stop()
    there = Duly(postgres_url, clock=house.clock)
    assert list(there.jobs()) == []
    there.close()


@pytest.mark.spec("N17")
def test_running_jobs_may_end_and_nothing_starts_or_ticks_meanwhile(
    house, postgres_url, clock, caplog
):
    worker, gate = busy(house)
    waited: list[CopyProgress] = []
    refused: list[str] = []

    def look(progress: CopyProgress) -> None:
        if progress.step == "wait" and not waited:
            waited.append(progress)
            late = house.app.run(house.app.function("note"), "while it drains")
            worker.start_due()
            assert late.state == State.PENDING
            clock.advance(300)
            with pytest.raises(StoreMoved) as told:
                house.tick()
            refused.append(str(told.value))
            gate.open()
        elif progress.step == "wait":
            worker.wait_for_bodies()
            worker.settle()
            clock.advance(0.2)

    move(house, postgres_url, tell=look, wait=3600)
    assert (waited[0].done, refused[0].split(" to ")[0]) == (1, "this store is being copied")
    # The ticker blames no schedule.
    assert "trying its schedules one by one" not in caplog.text
    there = House(postgres_url, clock)
    there.tick()
    there.work()
    child = there.app.job(house.jobs["slow"].id).result(timeout=0)
    assert there.app.job(child).result(timeout=0) == "of slow"
    assert {"while it drains", "of slow"} <= set(there.db.notes())
    assert [tick for tick in ledger(there.app, "often") if tick[0] != "dispatched"] == []
    assert there.app.paused is None
    there.close()
    worker.fall_silent()


@pytest.mark.spec("N17")
def test_what_a_dead_worker_left_is_rescued_first(house, postgres_url, clock):
    worker, gate = busy(house)
    worker.die()
    gate.open()
    move(house, postgres_url, tell=lambda _: clock.advance(0.2))
    there = Duly(postgres_url, clock=clock)
    failed = there.job(house.jobs["slow"].id)
    assert failed.error is not None
    assert failed.error.kind == "worker_lost"
    there.close()


def test_the_kill_switch_moves_too(house, postgres_url, clock):
    house.app.pause("freeze", by="ada")
    move(house, postgres_url)
    there = Duly(postgres_url, clock=clock)
    paused = there.paused
    assert paused is not None
    assert (paused.paused_by, paused.note) == ("ada", "freeze")
    there.close()


# Failures ----------------------------------------------------------------------------------------


class Cut(Exception):
    pass


def cut_at(point: str, nth: int = 1) -> Any:
    passes = iter(range(1, nth + 1))

    def handler(at: str) -> None:
        if at == point and next(passes) == nth:
            raise Cut

    return fault.inject(handler)


POINTS = [p for p in fault.POINTS if p.startswith("copy.")]
BEFORE_HAND_OVER = POINTS[: POINTS.index("copy.handed_over")]


@pytest.mark.spec("N17")
@pytest.mark.parametrize("point", BEFORE_HAND_OVER)
def test_a_copy_that_was_given_up_leaves_the_source_as_it_was(house, postgres_url, clock, point):
    before = {table: rows(house.db, table) for table in KEYS if table != "audit"}
    with cut_at(point, 5 if point == "copy.paged" else 1), pytest.raises(Cut):
        move(house, postgres_url)
    half = Duly(postgres_url, clock=clock)
    with pytest.raises(StoreMoved, match=r"is being filled from .*duly.db and cannot be used"):
        half.ready()

    assert give_up(house, postgres_url) == (point != "copy.marked")
    assert {table: rows(house.db, table) for table in KEYS if table != "audit"} == before
    assert list(half.jobs()) == []
    house.app.run(house.app.function("note"), "goes on")
    house.work()
    assert "goes on" in house.db.notes()
    half.close()
    # And once more, from the beginning.
    assert not move(house, postgres_url).resumed


@pytest.mark.spec("N17")
def test_what_an_earlier_copy_left_is_removed(house, postgres_url):
    """The target could not be reached when that was given up."""
    with cut_at("copy.verified"), pytest.raises(Cut):
        move(house, postgres_url)
    assert give_up(house, "postgresql://nobody@127.0.0.1:1/none")
    house.work()
    house.jobs["unique"].cancel()

    assert not move(house, postgres_url).resumed
    there = Database(postgres_url)
    assert rows(there, "jobs") == rows(house.db, "jobs")
    there.close()


@pytest.mark.spec("N17")
def test_after_the_hand_over_there_is_no_way_back(house, postgres_url, clock):
    with cut_at("copy.handed_over"), pytest.raises(Cut):
        move(house, postgres_url)
    for url in (house.url, postgres_url):
        app = Duly(url, clock=clock)
        with pytest.raises(StoreMoved):
            app.ready()
    with pytest.raises(CopyRefused, match=r"was moved to .*; this cannot be undone"):
        give_up(house, postgres_url)
    assert move(house, postgres_url).resumed
    again = move(house, postgres_url)
    assert again.already_done
    there = Duly(postgres_url, clock=clock)
    assert there.job(house.jobs["succeeded"].id).result(timeout=0) == "before"
    there.close()


@pytest.mark.spec("N17")
@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("jobs", "UPDATE {} SET args = '{{}}' WHERE id = (SELECT min(id::text) FROM {})::uuid"),
        ("history", "DELETE FROM {} WHERE state = 'failed'"),
        ("counters", "UPDATE {} SET value = value + 1"),
        ("logs", "INSERT INTO {0} SELECT job_id, seq + 1, logged_at, level, line FROM {0}"),
    ],
)
def test_what_differs_is_found_before_anything_is_handed_over(house, postgres_url, table, change):
    def tamper(point: str) -> None:
        if point == "copy.filled":
            db = Database(postgres_url)
            with pytest.raises(psycopg.Error, match="is being filled from"):
                db.execute(change.format(f"@{table}", f"@{table}"))
            db.execute("BEGIN")
            db.execute("INSERT INTO @meta VALUES ('copying', '')")
            db.execute(change.format(f"@{table}", f"@{table}"))
            db.execute("DELETE FROM @meta WHERE key = 'copying'")
            db.execute("COMMIT")
            db.close()

    with fault.inject(tamper), pytest.raises(CopyDiffers) as differs:
        move(house, postgres_url)
    assert differs.value.tables == [table]
    with pytest.raises(StoreMoved):
        house.app.run(house.app.function("note"), "late")
    assert give_up(house, postgres_url)
    move(house, postgres_url)


@pytest.mark.spec("N17")
def test_a_target_that_holds_anything_is_refused(house, postgres_url, tmp_path, clock):
    before = rows(house.db, "jobs")
    with pytest.raises(CopyRefused, match="the same store"):
        move(house, house.url)
    used = Duly(postgres_url, clock=clock)
    used.migrate()
    used.queues.pause("mail")
    with pytest.raises(CopyRefused, match=r"already contains data \(audit, queues\)"):
        move(house, postgres_url)
    plan = plan_copy(house.app.store, used.store, clock)
    assert (plan.refused, plan.tables["jobs"]) == (
        "the target already contains data",
        len(before) - 1,
    )
    # It was not touched, nor was the source.
    used.queues.resume("mail")
    used.close()
    house.app.run(house.app.function("note"), "goes on")

    other = f"sqlite:///{tmp_path}/other.db"
    with cut_at("copy.closed"), pytest.raises(Cut):
        move(house, other)
    # While it is copied to one place it cannot be copied to another, nor that filled from another.
    with pytest.raises(CopyRefused, match=r"the source is being copied to .*other.db"):
        move(house, f"sqlite:///{tmp_path}/third.db")
    stranger = House(f"sqlite:///{tmp_path}/stranger.db", clock)
    with pytest.raises(CopyRefused, match="the target is being filled from"):
        move(stranger, other)
    stranger.close()


def test_two_at_a_time_do_not_fill_a_target_twice(house, postgres_url):
    """Another copier gets ahead of this one between two pages."""
    passed: list[str] = []

    def overtake(point: str) -> None:
        if point == "copy.paged" and not passed:
            passed.append(point)
            move(house, postgres_url)

    with (
        fault.inject(overtake),
        pytest.raises(CopyRefused, match="aborted or taken over by another process"),
    ):
        move(house, postgres_url)
    there = Database(postgres_url)
    assert rows(there, "jobs") == rows(house.db, "jobs")
    there.close()


def test_rows_of_all_sizes_are_copied_in_many_pages(sqlite_url, postgres_url, clock):
    house = House(sqlite_url, clock)
    note = house.app.function("note")
    sizes = [1, 900_000, 10, 1_000_000, 1_000_000, 1_000_000, 1_000_000, 5]
    house.app.run_many(note.bind("x" * size) for size in sizes)
    house.app.run_many(note.bind(f"small {n} 'quoted' \\ %s \u00e9") for n in range(2_500))
    passed: list[str] = []
    with fault.inject(passed.append):
        move(house, postgres_url)
    assert passed.count("copy.paged") > 10
    there = Database(postgres_url)
    assert rows(there, "jobs") == rows(house.db, "jobs")
    there.close()
    house.close()


@pytest.mark.spec("N17")
def test_a_transaction_of_the_users_is_waited_for(postgres_url, tmp_path, clock):
    """Whose insert nobody sees yet when the source is closed."""
    house = House(postgres_url, clock)
    handle, db = house.db.connect(), Database(postgres_url)
    handle.autocommit = False
    job = house.app.on(handle).run(house.app.function("note"), "in time")

    def commit_when_awaited() -> None:
        wait_until(lambda: db.scalar("SELECT count(*) FROM pg_locks WHERE NOT granted"), "a lock")
        handle.commit()

    there = f"sqlite:///{tmp_path}/there.db"
    with in_thread(commit_when_awaited) as committed:
        move(house, there)
        committed()
    moved = House(there, clock)
    moved.work()
    assert moved.app.job(job.id).result(timeout=0) == "in time"
    for each in (moved, house, db):
        each.close()


@pytest.mark.spec("N17")
def test_a_job_that_starts_at_the_last_moment_keeps_the_source_open(
    url, tmp_path, clock, monkeypatch
):
    """It is claimed after somebody has looked, and before the source is shut."""
    house = House(url, clock)
    house.app.run(house.app.function("fail"))
    worker = ManualWorker(house.app)
    there = f"sqlite:///{tmp_path}/there.db"

    def look(end: CopyEnd) -> BusyCounts:
        house.app.resume()
        worker.claim_only()
        return BusyCounts(0, 0)

    monkeypatch.setattr(CopyEnd, "busy", look)
    with pytest.raises(CopyRefused, match="1 job is still running"):
        move(house, there, wait=0)
    monkeypatch.undo()
    house.app.run(house.app.function("note"), "goes on")
    worker.die()
    house.close()


def test_who_has_been_overtaken_in_part_stops(house, postgres_url):
    """Another copier gets ahead by a page, and stops there."""
    passed: list[str] = []

    def overtake(point: str) -> None:
        if point == "copy.paged" and not passed:
            passed.append(point)
            with cut_at("copy.paged"), pytest.raises(Cut):
                move(house, postgres_url)

    with (
        fault.inject(overtake),
        pytest.raises(CopyRefused, match="another copy to the same target is running"),
    ):
        move(house, postgres_url)
    assert move(house, postgres_url).resumed
