"""Retention of ticks and of schedules' jobs, and the counts that outlive them."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Any

import pytest

from duly import Budget, Ctx, Duly, ManualClock
from duly.clock import to_ms
from duly.errors import InvalidOption
from duly.model.decide import MAX_DETAIL, encode_detail
from duly.model.history import Day
from duly.model.schedule_options import DAY_MS
from duly.runtime.janitor import Janitor
from duly.store.postgres.session import PostgresSession
from duly.store.postgres.store import PostgresStore
from duly.store.schedules.retention import OldTicks, _forget_ticks
from duly.store.statements import HISTORY_BUCKETS
from duly.testing import advance, drain
from tests.jobs.support import DAY, Database, wait_until
from tests.schedules.support import tick_all, utc

HOUR = timedelta(hours=1)
START = utc(2026, 7, 1)
FIRST_DAY = to_ms(START) // DAY_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def post(app: Duly):
    @app.action
    def post(ctx: Ctx, fail: bool = False) -> None:
        if fail:
            raise ValueError("asked to")

    return post


def tidy(app: Duly) -> None:
    """All that a janitor does in some time, at once."""
    janitor = Janitor(app.ready(), app.clock, **app.core.settings.keep)
    for _ in range(10):
        janitor.one_pass()


def plant(db: Database, schedule_id: str, ticks: list[tuple[int, str, str]]) -> None:
    """Rows of the ledger that never were: time, kind and outcome."""
    columns = "schedule_id, kind, tick_at, outcome, reason, job_id, due_at, decided_at, count"
    for tick_at, kind, outcome in ticks:
        values: list[Any] = [schedule_id, kind, tick_at, outcome]
        values += ["calendar" if outcome == "skipped" else None]
        values += [schedule_id if outcome == "dispatched" else None, tick_at, tick_at]
        values += [5 if outcome == "missed" else None]
        marks = ", ".join("?" * len(values))
        db.execute(f"INSERT INTO @ticks ({columns}) VALUES ({marks})", *values)


def times(db: Database, schedule_id: str) -> list[int]:
    found = db.execute(
        "SELECT tick_at FROM @ticks WHERE schedule_id = ? ORDER BY tick_at", schedule_id
    )
    return [tick_at for (tick_at,) in found]


@pytest.mark.spec("R105")
def test_ticks_are_kept_for_thirty_days(app: Duly, clock, post, db: Database):
    schedule = app.schedules.create("s", post, every=HOUR)
    minutes = [to_ms(START) + n * 60_000 for n in range(300)]
    plant(db, schedule.id, [(tick_at, "slot", "dispatched") for tick_at in minutes])
    clock.advance(30 * DAY + 120 * 60)
    tidy(app)
    assert times(db, schedule.id) == minutes[120:]
    clock.advance(60)
    tidy(app)
    assert times(db, schedule.id) == minutes[121:]


@pytest.mark.spec("R105")
def test_the_last_hundred_are_kept_for_ever(app: Duly, clock, post, db: Database):
    schedule = app.schedules.create("s", post, every=HOUR)
    minutes = [to_ms(START) + n * 60_000 for n in range(300)]
    plant(db, schedule.id, [(tick_at, "slot", "dispatched") for tick_at in minutes])
    plant(db, schedule.id, [(tick_at, "manual", "dispatched") for tick_at in minutes[:20]])
    clock.advance(400 * DAY)
    tidy(app)
    assert len(times(db, schedule.id)) == 100 + 20
    assert times(db, schedule.id)[20:] == minutes[200:]


@pytest.mark.spec("R105", "R110", "R158")
def test_a_backfill_of_what_was_removed_has_to_be_asked_for(app: Duly, clock, post, db: Database):
    schedule = app.schedules.create("s", post, cron="0 * * * *", overlap="allow")
    hours = [to_ms(START) + n * 3_600_000 for n in range(240)]
    plant(db, schedule.id, [(tick_at, "slot", "dispatched") for tick_at in hours])
    before = utc(2026, 6, 30)
    first, last = START, utc(2026, 7, 1, 3)
    assert {tick.reason for tick in app.schedules.backfill("s", before, START, dry_run=True)} == {
        None
    }
    clock.advance(60 * DAY)
    tidy(app)
    # The last hundred stand there; the last one that is gone is of 6 July.
    assert len(times(db, schedule.id)) == 100
    for start, end in ((first, last), (before, START), (utc(2026, 7, 6, 23), utc(2026, 7, 8))):
        for dry_run in (True, False):
            with pytest.raises(InvalidOption, match="before 2026-07-07 00:00:00"):
                app.schedules.backfill("s", start, end, dry_run=dry_run)
    assert len(times(db, schedule.id)) == 100
    known = app.schedules.backfill("s", utc(2026, 7, 7), utc(2026, 7, 8))
    assert {tick.reason for tick in known} == {"schedule_slot_exists"}
    new = app.schedules.backfill("s", utc(2026, 8, 1), utc(2026, 8, 1, 2))
    assert [tick.outcome for tick in new] == ["dispatched"] * 2
    # No tick lies in there.
    assert app.schedules.backfill("s", utc(2026, 7, 1, 0, 1), utc(2026, 7, 1, 0, 59)) == []
    again = app.schedules.backfill("s", first, last, without_ledger=True)
    assert [tick.outcome for tick in again] == ["dispatched"] * 3


@pytest.mark.spec("R105")
def test_how_long_is_a_setting(url, clock, app: Duly, post, db: Database):
    schedule = app.schedules.create("s", post, every=HOUR)
    minutes = [to_ms(START) + n * 60_000 for n in range(300)]
    plant(db, schedule.id, [(tick_at, "slot", "dispatched") for tick_at in minutes])
    short = Duly(url, clock=clock, ledger_retention=timedelta(hours=3))
    clock.advance(4 * 3600)
    tidy(short)
    assert times(db, schedule.id) == minutes[60:]
    short.close()
    with pytest.raises(InvalidOption):
        Duly(url, ledger_retention=timedelta(0))


@pytest.mark.spec("R105")
def test_the_walk_reaches_every_schedule_and_leaves_nothing_of_removed_ones(
    app: Duly, clock, post, db: Database
):
    ids = [app.schedules.create(f"s{n}", post, every=HOUR).id for n in range(450)]
    old = to_ms(START)
    for schedule_id in ids:
        plant(db, schedule_id, [(old, "slot", "skipped")])
    for schedule_id in ids[::2]:
        app.schedules.remove(schedule_id)
    clock.advance(31 * DAY)
    tidy(app)
    left = {str(row[0]) for row in db.execute("SELECT schedule_id FROM @ticks")}
    assert left == set(ids[1::2])
    assert {day.skipped for each in ids[::2] for day in app.ready().days(each)} == {1}


@pytest.mark.spec("R92", "R105")
def test_a_row_for_each_day_outlives_the_ticks(app: Duly, clock, post, db: Database):
    schedule = app.schedules.create("s", post, every=HOUR)
    day = DAY_MS
    rows = [(to_ms(START) + n, "slot", "dispatched") for n in range(1_500)]
    rows += [(to_ms(START) + day + n, "slot", "skipped") for n in range(30)]
    rows += [(to_ms(START) + day + 7, "missed", "missed")]
    rows += [(to_ms(START) + 2 * day + n, "manual", "dispatched") for n in range(3)]
    plant(db, schedule.id, rows)
    app.schedules.remove(schedule)
    clock.advance(31 * DAY)
    tidy(app)
    assert app.ready().days(schedule.id) == [
        Day(FIRST_DAY, 1_500, 0, 0, 0, 0, 0),
    ]
    clock.advance(5 * DAY)
    tidy(app)
    tidy(app)
    assert app.ready().days(schedule.id) == [
        Day(FIRST_DAY, 1_500, 0, 0, 0, 0, 0),
        Day(FIRST_DAY + 1, 0, 30, 5, 0, 0, 0),
        Day(FIRST_DAY + 2, 3, 0, 0, 0, 0, 0),
    ]
    assert times(db, schedule.id) == []


@pytest.mark.spec("R92")
def test_a_row_for_each_day_outlives_the_jobs(app: Duly, clock, post, db: Database):
    good = app.schedules.create("good", post, cron="0 */6 * * *")
    bad = app.schedules.create("bad", post.bind(fail=True), cron="0 12 * * *")
    app.run(post)
    advance(app, timedelta(days=2, hours=1), raises=False)
    canceled = app.schedules.run("good", by="ada").job
    assert canceled is not None
    canceled.cancel()
    advance(app, timedelta(days=12), raises=False)

    def ended(schedule_id: str) -> list[tuple[int, ...]]:
        days = app.ready().days(schedule_id)
        return [(d.day - FIRST_DAY, d.succeeded, d.failed, d.canceled) for d in days]

    assert ended(good.id)[:3] == [(0, 3, 0, 0), (1, 4, 0, 0), (2, 4, 0, 1)]
    assert ended(bad.id)[:3] == [(0, 0, 1, 0), (1, 0, 1, 0), (2, 0, 1, 0)]
    # Counted once: what is gone and what is still there are all that ever was.
    gone = sum(sum(row[1:]) for row in [*ended(good.id), *ended(bad.id)])
    left = db.scalar("SELECT count(*) FROM @history WHERE trigger = 'schedule'")
    dispatched = db.scalar("SELECT count(*) FROM @ticks WHERE outcome = 'dispatched'")
    assert gone + left == dispatched


@pytest.mark.spec("R92")
@pytest.mark.parametrize("what", ["ticks", "jobs"])
def test_two_janitors_count_a_day_once(postgres_url: str, clock: ManualClock, what: str):
    """Where there is one writer at a time, as in SQLite, they cannot meet."""
    app = Duly(postgres_url, clock=clock)
    db, store = Database(postgres_url), app.ready()
    assert isinstance(store, PostgresStore)

    @app.action
    def post(ctx: Ctx) -> None: ...

    schedule = app.schedules.create("s", post, every=HOUR)
    advance(app, HOUR)
    before = clock.now() + 1
    bucket = before // DAY_MS % HISTORY_BUCKETS
    clock.advance(60)
    app.run(post)  # the latest job of a function is kept
    drain(app)

    def forget(session: PostgresSession) -> None:
        if what == "ticks":
            _forget_ticks(session, OldTicks(schedule.id, "slot", before))
        else:
            session.retain_bucket(bucket, before, before, whole=False)

    def forget_while_another_does(session: PostgresSession) -> None:
        forget(session)
        other.start()
        wait_until(
            lambda: (
                not other.is_alive() or db.scalar("SELECT count(*) FROM pg_locks WHERE NOT granted")
            )
        )

    other = threading.Thread(target=lambda: store._write_once(forget))
    store._write_once(forget_while_another_does)
    other.join()
    [day] = store.days(schedule.id)
    assert (day.dispatched, day.succeeded) == ((1, 0) if what == "ticks" else (0, 1))
    db.close()
    app.close()


@pytest.mark.spec("R105", "N20")
def test_what_a_budget_looks_at_is_kept_as_long_as_it_does(app: Duly, clock, post, db: Database):
    """Otherwise retention would change the outcome of a tick."""
    month = timedelta(days=90).total_seconds()
    schedule = app.schedules.create("s", post, cron="0 0 * * *", budget=Budget(runs=150, per=month))
    plain = app.schedules.create("plain", post, cron="0 0 * * *")
    rows = [(to_ms(START) + n * 1000, "slot", "dispatched") for n in range(150)]
    for each in (schedule, plain):
        plant(db, each.id, rows)
    clock.advance(60 * DAY)
    tidy(app)
    assert len(times(db, schedule.id)) == 150
    assert len(times(db, plain.id)) == 100
    tick_all(app)
    assert {tick.reason for tick in app.schedules.ticks("s", outcome="skipped")} == {
        "budget_exceeded"
    }


@pytest.mark.spec("R105")
def test_costs_go_with_their_ticks(app: Duly, clock, post, db: Database):
    schedule = app.schedules.create("s", post, cron="0 0 1 1 *")
    for n in range(3):
        moment = to_ms(START) + n * DAY_MS
        plant(db, schedule.id, [(moment, "slot", "dispatched")])
        db.execute(
            "INSERT INTO @costs (schedule_id, job_id, token, tick_at, amount)"
            " VALUES (?, ?, 1, ?, 2.5)",
            *(schedule.id, schedule.id, moment),
        )
    clock.advance(31.5 * DAY)
    tidy(app)
    assert db.count("@costs") == 1


@pytest.mark.spec("R105")
def test_a_detail_is_stored_up_to_a_stated_size():
    long = encode_detail({"why": "x" * 10_000, "checks": ["y" * 10_000]})
    assert len(long) <= MAX_DETAIL
    assert '"truncated":true' in long
    half = encode_detail({"error": "no file \udcff"})
    assert json.loads(half) == {"why": "no file \\udcff", "truncated": True}
