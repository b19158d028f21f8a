"""A tick becomes exactly one row of the ledger, and a job if nothing speaks against it."""

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from duly import Ctx, Duly, ManualClock, State, fault
from duly.calls.kinds import Action
from duly.clock import from_ms, to_ms
from duly.model.job import NewJob, Trigger
from duly.model.schedule import Outcome, Reason
from duly.runtime.ticker import POLL_SECONDS, Ticker
from duly.store.schedules.ledger import TickJobOrder
from duly.testing import drain
from tests.jobs.support import Database
from tests.levels import at_every_level
from tests.schedules.support import at, tick_all, utc

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly):
    @app.action
    def post(ctx: Ctx, audience: str = "all") -> str:
        return audience

    return post


@pytest.mark.spec("R1", "R9")
def test_a_due_schedule_dispatches_a_job_that_says_where_it_comes_from(app: Duly, clock, post):
    schedule = app.schedules.create("digest", post.bind("tech"), cron="0 9 * * *")
    at(clock, utc(2026, 7, 1, 8, 59, 59))
    tick_all(app)
    assert app.schedules.ticks("digest") == []
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 1, 9)

    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    [tick] = app.schedules.ticks("digest")
    assert (tick.outcome, tick.at, tick.lag) == ("dispatched", utc(2026, 7, 1, 9), timedelta())
    [job] = drain(app)
    assert (job.id, job.result()) == (tick.job_id, "tech")
    assert (job.trigger, job.actor, job.scheduled_at) == (Trigger.SCHEDULE, schedule.id, tick.at)
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 2, 9)


@pytest.mark.spec("R9")
def test_a_tick_takes_the_way_of_a_call_by_hand(app: Duly, clock):
    """The same options, hooks and arguments: only trigger, actor and times differ."""

    @app.action
    def after(ctx: Ctx, job_id: str) -> None: ...

    @app.action(queue="mail", priority=7, timeout=30, tags=("a",), on_complete=after)
    def send(ctx: Ctx, to: str, copies: int = 1) -> str:
        return to * copies

    app.schedules.create("s", send.bind("ada", copies=2), every=HOUR)
    clock.advance(3600)
    by_hand = app.run(send, "ada", copies=2).record
    tick_all(app)
    [tick] = app.schedules.ticks("s")
    assert tick.job is not None
    by_tick = tick.job.record

    same = ("function", "kind", "queue", "priority", "timeout_ms", "tags", "args", "hold", "retry")
    assert [getattr(by_tick, f) for f in same] == [getattr(by_hand, f) for f in same]
    assert by_tick.trigger == Trigger.SCHEDULE
    assert [job.result() for job in drain(app) if job.function == "send"] == ["adaada"] * 2


def make_many(app: Duly, post: Action[..., Any], n: int) -> list[str]:
    return [app.schedules.create(f"s{i:04}", post, every=HOUR).id for i in range(n)]


@pytest.mark.spec("R2")
@pytest.mark.parametrize(("due", "passes"), [(100, [100]), (101, [100, 1])])
def test_a_page_holds_a_hundred_and_the_next_comes_at_once(app: Duly, clock, post, due, passes):
    make_many(app, post, due)
    clock.advance(3600)
    ticker = Ticker(app.core)
    for n, ticked in enumerate(passes):
        before = len(app.jobs(limit=1000))
        delay = ticker.one_pass()
        assert len(app.jobs(limit=1000)) - before == ticked
        assert (delay == 0) == (n < len(passes) - 1)
    assert delay == POLL_SECONDS


@pytest.mark.spec("R3")
def test_a_thousand_due_schedules_are_dispatched_once_each(app: Duly, clock, post, db: Database):
    ids = make_many(app, post, 1_000)
    clock.advance(3600)
    tick_all(app)
    tick_all(app)
    actors = [actor for (actor,) in db.execute("SELECT actor FROM @jobs")]
    assert sorted(actors) == sorted(ids)


@pytest.mark.spec("R4")
def test_the_oldest_comes_first_and_among_equals_the_smaller_id(app: Duly, clock, post):
    late = app.schedules.create("late", post, cron="30 1 * * *")
    equal = [app.schedules.create(f"equal {n}", post, cron="0 1 * * *") for n in range(3)]
    early = app.schedules.create("early", post, cron="30 0 * * *")
    at(clock, utc(2026, 7, 1, 2))
    ticker = Ticker(app.core, page=1)
    order: list[str | None] = []
    for _ in range(5):
        known = {job.id for job in app.jobs()}
        ticker.one_pass()
        order += [job.actor for job in app.jobs() if job.id not in known]
    assert order == [early.id, *sorted(each.id for each in equal), late.id]


def broken(db: Database, schedule_id: str, column: str, value: str) -> None:
    db.execute(f"UPDATE @schedules SET {column} = ? WHERE id = ?", value, schedule_id)


BAD = [
    ("trigger", "not json"),
    ("trigger", '{"kind":"cron","expression":"60 * * * *","tz":"UTC"}'),
    ("trigger", '{"every":"soon"}'),
    ("policies", '{"overlap":"sometimes"}'),
    ("policies", "[]"),
    ("rotation", '[1, "two"]'),
    ("options", "{"),
]


@pytest.mark.spec("R5")
@pytest.mark.parametrize(("column", "value"), BAD)
def test_a_schedule_that_makes_no_sense_is_parked_and_blocks_nobody(
    app: Duly, clock, post, db: Database, column, value
):
    before, bad, after = make_many(app, post, 3)
    broken(db, bad, column, value)
    clock.advance(3600)
    tick_all(app)

    assert {job.actor for job in app.jobs()} == {before, after}
    [parked] = app.schedules.list(parked=True)
    assert (parked.id, parked.status) == (bad, "parked")
    assert parked.error
    assert app.schedules.ticks(bad) == []
    clock.advance(3600)
    tick_all(app)
    assert len(app.schedules.ticks(after)) == 2


@pytest.mark.spec("R5")
def test_more_bad_ones_than_a_page_holds_block_nobody(app: Duly, clock, post, db: Database):
    bad = make_many(app, post, 25)
    good = app.schedules.create("good", post, every=HOUR)
    db.execute("UPDATE @schedules SET trigger = 'no' WHERE id <> ?", good.id)
    clock.advance(3600)
    tick_all(app, page=10)
    assert len(app.schedules.ticks(good.id)) == 1
    assert {each.id for each in app.schedules.list(parked=True)} == set(bad)


@pytest.mark.spec("R5", "N36")
def test_a_job_that_cannot_be_stored_parks_its_schedule_alone(app: Duly, clock, post, monkeypatch):
    """The transaction of the page fails as a whole; then each is tried by itself."""
    first, bad, last = make_many(app, post, 3)
    make = app.core.jobs_of_tick

    def with_a_flaw(order: TickJobOrder, now: int) -> Sequence[NewJob]:
        jobs = make(order, now)
        if order.plan.id == bad:
            return [msgspec.structs.replace(job, priority=99) for job in jobs]
        return jobs

    monkeypatch.setattr(app.core, "jobs_of_tick", with_a_flaw)
    clock.advance(3600)
    tick_all(app)
    assert {job.actor for job in app.jobs()} == {first, last}
    assert [each.id for each in app.schedules.list(parked=True)] == [bad]


@pytest.mark.spec("R5")
def test_what_goes_wrong_for_all_of_them_parks_none(app: Duly, clock, post):
    make_many(app, post, 3)
    clock.advance(3600)
    bug = fail_at("ticker.decided", KeyError("a bug"))
    with fault.inject(bug), pytest.raises(KeyError):
        tick_all(app)
    assert app.schedules.list(parked=True) == []
    tick_all(app)
    assert len(app.jobs()) == 3


@pytest.mark.spec("R5")
def test_one_that_was_mended_meanwhile_is_not_parked(app: Duly, clock, post):
    schedule = app.schedules.create("s", post, every=HOUR)
    app.ready().park_schedule(schedule.id, "it was bad before", clock.now())
    assert app.schedules.get("s").status == "enabled"


def fail_at(point: str, error: BaseException) -> Callable[[str], None]:
    def handler(name: str) -> None:
        if name == point:
            raise error

    return handler


INSIDE = ("ticker.decided", "ticker.noted", "ticker.enqueued", "ticker.written")


@pytest.mark.spec("R6", "R8")
@pytest.mark.parametrize("point", INSIDE)
def test_a_pass_that_dies_before_its_commit_has_done_nothing(app: Duly, clock, post, db, point):
    make_many(app, post, 3)
    clock.advance(3600)
    due = db.execute("SELECT id, next_tick_at, due_at FROM @schedules ORDER BY id")
    with fault.inject(fail_at(point, KeyboardInterrupt("gone"))), pytest.raises(KeyboardInterrupt):
        tick_all(app)
    assert db.execute("SELECT id, next_tick_at, due_at FROM @schedules ORDER BY id") == due
    assert (db.count("@jobs"), db.count("@ticks")) == (0, 0)

    tick_all(app)
    assert (db.count("@jobs"), db.count("@ticks")) == (3, 3)


@pytest.mark.spec("R6")
def test_a_pass_whose_answer_is_lost_is_not_repeated(app: Duly, clock, post, db):
    make_many(app, post, 3)
    clock.advance(3600)
    gone = fail_at("ticker.committed", KeyboardInterrupt("gone"))
    with fault.inject(gone), pytest.raises(KeyboardInterrupt):
        tick_all(app)
    tick_all(app)
    assert (db.count("@jobs"), db.count("@ticks")) == (3, 3)


@pytest.mark.spec("R34", "R35")
@pytest.mark.parametrize("trigger", [{"every": timedelta(minutes=10)}, {"cron": "*/10 * * * *"}])
def test_what_comes_next_is_counted_from_the_nominal_time(app: Duly, clock, post, trigger):
    app.schedules.create("s", post, **trigger)
    at(clock, utc(2026, 7, 1, 0, 10, 7))
    tick_all(app)
    [tick] = app.schedules.ticks("s")
    assert (tick.at, tick.lag) == (utc(2026, 7, 1, 0, 10), timedelta(seconds=7))
    assert app.schedules.get("s").next_tick == utc(2026, 7, 1, 0, 20)


@pytest.mark.spec("R102")
def test_an_interval_ticks_first_one_interval_after_it_was_made(app: Duly, clock, post):
    app.schedules.create("plain", post, every=HOUR)
    app.schedules.create("later", post, every=HOUR, start_at=utc(2026, 7, 1, 3, 30))
    app.schedules.create("at once", post, every=HOUR, fire_at_once=True)
    for _ in range(5):
        tick_all(app)
        drain(app)
        clock.advance(3600)

    def ticks(key: str) -> list[tuple[int, int]]:
        return [(tick.at.hour, tick.at.minute) for tick in reversed(app.schedules.ticks(key))]

    assert ticks("plain") == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert ticks("later") == [(3, 30)]
    assert ticks("at once") == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]


class RunningClock(ManualClock):
    """A clock that is later whenever it is looked at."""

    def now(self) -> int:
        self.advance(0.007)
        return super().now()


@pytest.mark.spec("R102")
def test_an_interval_does_not_tick_when_it_is_made_though_time_goes_on(app: Duly, url):
    clock = RunningClock(utc(2026, 7, 1))
    with contextlib.ExitStack() as closing:

        def release(days: int) -> Duly:
            release = closing.enter_context(contextlib.closing(Duly(url, clock=clock)))

            @release.action
            def post(ctx: Ctx) -> None: ...

            release.schedule("declared", post, every=timedelta(days=days))
            release.schedule("at once", post, every=timedelta(days=days), fire_at_once=True)
            return release

        app = release(1)
        app.schedules.apply()
        app.schedules.create("made", app.function("post"), every=timedelta(days=1))
        for key in ("declared", "made"):
            made = app.schedules.get(key)
            assert made.next_tick == made.created + timedelta(days=1)
            for behind in (0, 3600):
                # The process that enables it may have a clock that is behind.
                clock.jump(-behind)
                app.schedules.disable(key)
                assert app.schedules.enable(key).next_tick == made.next_tick
                clock.jump(behind)
        at_once = app.schedules.get("at once")
        assert at_once.next_tick == at_once.created

        before = from_ms(clock.now())
        app.schedules.update("made", every=timedelta(days=2))
        release(2).schedules.apply()
        for key in ("declared", "made"):
            tick = app.schedules.get(key).next_tick
            assert tick is not None
            assert before < tick - timedelta(days=2) < from_ms(clock.now())


@pytest.mark.spec("R106")
def test_h_is_the_same_for_a_schedule_wherever_it_is_ticked(app: Duly, clock, post, url):
    spread = [app.schedules.create(f"s{n}", post, cron="H * * * *").next_tick for n in range(30)]
    assert len({tick.minute for tick in spread if tick}) > 10
    clock.advance(7200)
    tick_all(app)
    [tick, before] = app.schedules.ticks("s0")
    assert tick.at - before.at == HOUR
    assert before.at == spread[0]

    elsewhere = Duly(url, clock=clock)
    assert elsewhere.schedules.get("s0").next_tick == tick.at + HOUR
    elsewhere.close()


@pytest.mark.spec("R109")
def test_a_skip_leaves_the_last_dispatch_as_it_was(app: Duly, clock, post):
    app.schedules.create("s", post, every=HOUR, rotation=[{"audience": "a"}, {"audience": "b"}])
    clock.advance(3600)
    tick_all(app)
    drain(app)
    before = app.schedules.get("s")
    app.pause()
    clock.advance(3600)
    tick_all(app)
    after = app.schedules.get("s")
    assert [tick.outcome for tick in app.schedules.ticks("s")] == ["skipped", "dispatched"]
    assert (after.last_dispatch, after.last_job_id) == (before.last_dispatch, before.last_job_id)
    assert after.rotation_index == before.rotation_index == 1
    assert (before.next_tick, after.next_tick) == (utc(2026, 7, 1, 2), utc(2026, 7, 1, 3))


@pytest.mark.spec("R111")
def test_the_ledger_stores_no_reason_that_is_not_in_the_list(app: Duly, clock, post, db: Database):
    schedule = app.schedules.create("s", post, every=HOUR)
    columns = "(schedule_id, kind, tick_at, outcome, reason, due_at, decided_at)"

    def insert(n: int, outcome: str, reason: str | None) -> None:
        values = (schedule.id, "slot", n, outcome, reason, n, n)
        db.execute(f"INSERT INTO @ticks {columns} VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    for n, reason in enumerate(Reason):
        insert(n, "skipped", reason)
    assert db.count("@ticks") == len(Reason) == 10
    for outcome, refused in [
        ("skipped", "because"),
        ("skipped", None),
        ("missed", "calendar"),
        ("dispatched", "calendar"),
        ("dispatched", None),
        ("lost", None),
    ]:
        with pytest.raises((sqlite3.Error, psycopg.Error)):
            insert(99, outcome, refused)
    assert {tick.reason for tick in app.schedules.ticks("s")} == set(Reason)
    assert set(Outcome) == {"dispatched", "skipped", "missed"}


@pytest.mark.spec("R110", "R216")
@at_every_level
def test_a_slot_is_dispatched_once_also_if_the_schedule_says_it_is_due_again(
    app: Duly, clock, post, db: Database
):
    """As after a restore of one table, or by hand: the row of the ledger decides."""
    rotation = [{"audience": "a"}, {"audience": "b"}, {"audience": "c"}]
    schedule = app.schedules.create("s", post, every=HOUR, rotation=rotation, remaining=5)
    clock.advance(3600)
    tick_all(app)
    [first] = app.schedules.ticks("s")
    before = app.schedules.get("s")
    drain(app)
    back = to_ms(first.at)
    db.execute("UPDATE @schedules SET next_tick_at = ?, due_at = ?", back, back)
    db.execute("UPDATE @schedules SET last_tick_at = NULL")
    tick_all(app)

    assert [tick.record for tick in app.schedules.ticks("s")] == [first.record]
    after = app.schedules.get("s")
    assert after.next_tick == before.next_tick == utc(2026, 7, 1, 2)
    assert (after.rotation_index, after.remaining) == (1, 4)
    assert (after.last_job_id, after.last_dispatch) == (first.job_id, before.last_dispatch)
    assert len(app.jobs()) == 1
    [audited] = [
        entry
        for entry in app.ready().audit_of(f"schedule:{schedule.id}")
        if entry.action == "schedule_slot_exists"
    ]
    assert str(back) in (audited.detail or "")


@pytest.mark.spec("R110")
def test_a_slot_that_a_backfill_has_taken_is_not_dispatched_again(app: Duly, clock, post):
    rotation = [{"audience": audience} for audience in "abcdef"]
    app.schedules.create("s", post, every=HOUR, overlap="allow", rotation=rotation)
    clock.advance(3 * 3600 + 60)  # no ticker runs in the meantime
    filled = app.schedules.backfill("s", utc(2026, 7, 1, 1), utc(2026, 7, 1, 2, 30), by="ada")
    assert [tick.outcome for tick in filled] == ["dispatched"] * 2
    drain(app)
    tick_all(app)
    ticks = app.schedules.ticks("s")
    assert [tick.at.hour for tick in ticks] == [3, 2, 1]
    assert {tick.outcome for tick in ticks} == {"dispatched"}
    assert [tick.rotation_index for tick in ticks] == [2, 1, 0]
    again = app.schedules.backfill("s", utc(2026, 7, 1, 1), utc(2026, 7, 1, 2, 30))
    assert [tick.reason for tick in again] == ["schedule_slot_exists"] * 2


@pytest.mark.spec("R218", "R216")
def test_after_a_step_back_only_what_was_not_dispatched_takes_its_turn(app: Duly, clock, post):
    rotation = [{"audience": audience} for audience in "abcdef"]
    app.schedules.create("s", post, cron="0 * * * *", overlap="allow", rotation=rotation)
    for _ in range(3):
        clock.advance(3600)
        tick_all(app)
    clock.jump(-3 * 3600)
    app.schedules.disable("s")
    app.schedules.enable("s")
    clock.advance(5 * 3600)
    tick_all(app)
    ticks = app.schedules.ticks("s")[::-1]
    assert [tick.at.hour for tick in ticks] == [1, 2, 3, 4, 5]
    inputs = [tick.job.arguments["audience"] for tick in ticks if tick.job]
    assert inputs == ["a", "b", "c", "d", "e"]


@pytest.mark.spec("R218", "R216")
def test_a_clock_that_steps_back_runs_no_slot_twice(app: Duly, clock, post):
    app.schedules.create("s", post, cron="0 * * * *", rotation=[{"audience": x} for x in "abcdef"])
    for _ in range(3):
        clock.advance(3600)
        tick_all(app)
        drain(app)
    clock.jump(-2.5 * 3600)
    tick_all(app)
    assert len(app.schedules.ticks("s")) == 3

    # A process that makes it count from now again uses a time that has passed.
    app.schedules.disable("s")
    app.schedules.enable("s")
    assert app.schedules.get("s").next_tick == utc(2026, 7, 1, 1)
    for _ in range(6):
        tick_all(app)
        drain(app)
        clock.advance(1800)
    tick_all(app)
    ticks = app.schedules.ticks("s")
    assert [tick.at.hour for tick in ticks] == [3, 2, 1]
    assert [tick.rotation_index for tick in ticks] == [2, 1, 0]
    clock.advance(3600)
    tick_all(app)
    drain(app)
    assert [tick.rotation_index for tick in app.schedules.ticks("s")] == [3, 2, 1, 0]
    assert len(app.jobs(state=State.SUCCEEDED)) == 4
