"""Ticks that became due while no ticker was running; and the ledger always adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duly import Ctx, Duly, ManualClock, State
from duly.clock import to_ms
from duly.model.schedule import TickFilter, TickRecord
from duly.model.trigger import Cron, Every, Trigger
from duly.runtime.ticker import Ticker
from duly.schedules import Tick
from duly.store.schedules.tick import PASS_TICKS
from duly.testing import drain
from tests.jobs.support import Hire
from tests.schedules.support import at, tick_all, utc

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
START = utc(2026, 7, 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def ran(app: Duly) -> list[str]:
    return []


@pytest.fixture
def post(app: Duly, ran: list[str]):
    @app.action
    def post(ctx: Ctx, name: str = "") -> str:
        ran.append(name)
        return name

    return post


def oldest_first(app: Duly, key: str) -> list[Tick]:
    return app.schedules.ticks(key, limit=10_000)[::-1]


@pytest.mark.spec("R36")
def test_what_was_due_meanwhile_runs_one_after_the_other_oldest_first(app: Duly, clock, hire: Hire):
    together: list[int] = []
    running: list[str] = []

    @app.action
    def post(ctx: Ctx) -> None:
        running.append(ctx.job_id)
        together.append(len(running))
        running.remove(ctx.job_id)

    app.schedules.create("s", post, every=5 * MINUTE, catch_up=10)
    clock.advance(30 * 60)
    tick_all(app)
    ticks = oldest_first(app, "s")
    assert [tick.at for tick in ticks] == [START + n * 5 * MINUTE for n in range(1, 7)]
    assert {tick.outcome for tick in ticks} == {"dispatched"}
    assert app.schedules.get("s").next_tick == START + 35 * MINUTE

    worker = hire(concurrency=6)
    order: list[str] = []
    for _ in range(6):
        worker.start_due()
        running_now = app.jobs(state=State.RUNNING)
        order += [job.id for job in running_now if job.id not in order]
        worker.wait_for_bodies()
        worker.settle()
        order += [
            job.id for job in reversed(app.jobs(state=State.SUCCEEDED)) if job.id not in order
        ]
    worker.work()
    assert order == [tick.job_id for tick in ticks]
    assert together == [1] * 6
    for tick in ticks:
        assert tick.job is not None
        assert tick.job.scheduled_at == tick.at


@pytest.mark.spec("R37")
@pytest.mark.parametrize("trigger", [{"every": 5 * MINUTE}, {"cron": "*/5 * * * *"}])
def test_of_too_many_the_newest_fire_and_the_others_are_one_row(app: Duly, clock, post, trigger):
    app.schedules.create("s", post, catch_up=3, **trigger)
    clock.advance(3600 + 7)
    tick_all(app)
    missed, *rest = oldest_first(app, "s")
    assert (missed.outcome, missed.kind, missed.count) == ("missed", "missed", 9)
    assert (missed.first, missed.at) == (START + 5 * MINUTE, START + 45 * MINUTE)
    assert missed.job_id is None
    assert [tick.at for tick in rest] == [START + n * MINUTE for n in (50, 55, 60)]
    assert {tick.outcome for tick in rest} == {"dispatched"}
    after = app.schedules.get("s").next_tick
    assert after == START + 65 * MINUTE
    tick_all(app)
    assert len(oldest_first(app, "s")) == 4


@pytest.mark.spec("R37")
@pytest.mark.parametrize("catch_up", [0, 1, 10, 1_000])
def test_years_of_missed_ticks_are_not_gone_through(
    app: Duly, clock, post, catch_up, monkeypatch: pytest.MonkeyPatch
):
    app.schedules.create("s", post, cron="* * * * *", catch_up=catch_up)
    at(clock, utc(2031, 7, 1, 0, 0, 30))
    steps: list[int] = []
    for name in ("next_after", "prev_before"):
        monkeypatch.setattr(Cron, name, _counted(getattr(Cron, name), steps))
    tick_all(app)
    keeps = max(1, catch_up)  # the newest is on time
    assert len(steps) < 100 + 3 * keeps
    first = oldest_first(app, "s")[0]
    minutes = int((utc(2031, 7, 1) - START) / MINUTE)
    assert (first.outcome, first.count) == ("missed", minutes - keeps)
    assert len(oldest_first(app, "s")) == keeps + 1


def _counted(step: Callable[[Cron, int], int | None], steps: list[int]) -> Any:
    def counted(trigger: Cron, instant: int) -> int | None:
        steps.append(instant)
        return step(trigger, instant)

    return counted


@pytest.mark.spec("R37", "R157")
def test_a_late_tick_counts_only_within_the_window(app: Duly, clock, post):
    app.schedules.create("s", post, every=10 * MINUTE, catch_up=10, catch_up_window=25 * MINUTE)
    clock.advance(3600 + 60)
    tick_all(app)
    missed, *rest = oldest_first(app, "s")
    assert (missed.count, missed.at) == (3, START + 30 * MINUTE)
    assert [tick.at for tick in rest] == [START + n * MINUTE for n in (40, 50, 60)]


@pytest.mark.spec("R36", "N3")
def test_jitter_keeps_nothing_back_that_is_due(app: Duly, clock, post):
    """Of those that are due the newest count; one that jitter delays is not due yet."""
    app.schedules.create(
        "s", post, every=5 * MINUTE, jitter=timedelta(minutes=30), catch_up=4, overlap="allow"
    )
    for _ in range(40):
        clock.advance(7 * 60)
        tick_all(app)
    rows = [tick.record for tick in oldest_first(app, "s")]
    assert all(row.due_at <= row.decided_at for row in rows if row.outcome != "missed")
    assert accounted(rows, Every(300_000, to_ms(START))) is None
    for before, after in pairwise(rows):
        assert before.tick_at < after.tick_at


@pytest.mark.spec("R38", "R2")
def test_one_that_catches_up_a_lot_does_not_keep_back_the_others(app: Duly, clock, post):
    app.schedules.create("many", post, cron="* * * * *", catch_up=1_000, overlap="allow")
    others = [app.schedules.create(f"s{n:03}", post, every=HOUR) for n in range(120)]
    clock.advance(1_000 * 60)
    ticker = Ticker(app.core)
    assert ticker.one_pass() == 0
    assert len(oldest_first(app, "many")) == 1_000 == PASS_TICKS
    assert ticker.one_pass() == 0
    # All of its ticks in one go, and then the others, page by page.
    tick_all(app)
    for other in others:
        assert [tick.outcome for tick in oldest_first(app, other.id)] == ["missed"] + [
            "dispatched"
        ] * 10


@pytest.mark.spec("R38")
def test_a_page_of_many_ticks_is_written_in_parts(app: Duly, clock, post):
    keys = [f"s{n}" for n in range(5)]
    for key in keys:
        app.schedules.create(key, post, cron="* * * * *", catch_up=400, overlap="allow")
    clock.advance(400 * 60)
    ticker = Ticker(app.core)
    delays = [ticker.one_pass() for _ in range(2)]
    assert delays[0] == 0 < delays[1]
    assert [len(oldest_first(app, key)) for key in keys] == [400] * 5


@pytest.mark.spec("R39", "R40")
def test_while_its_target_is_paused_ticks_are_skipped_and_nothing_piles_up(
    app: Duly, clock, post, ran
):
    app.schedules.create("s", post, every=HOUR)
    app.functions.pause(post, by="ada")
    for _ in range(3):
        clock.advance(3600)
        tick_all(app)
    assert [(t.outcome, t.reason) for t in oldest_first(app, "s")] == [
        ("skipped", "target_paused")
    ] * 3
    assert app.jobs() == []
    assert app.schedules.get("s").next_tick == START + 4 * HOUR

    app.functions.resume(post)
    tick_all(app)
    assert app.jobs() == []
    clock.advance(3600)
    tick_all(app)
    assert [t.outcome for t in oldest_first(app, "s")] == ["skipped"] * 3 + ["dispatched"]
    drain(app)
    assert len(ran) == 1


@pytest.mark.spec("R39")
def test_ticks_of_a_deprecated_function_are_skipped(app: Duly, clock, post):
    app.schedules.create("s", post, every=HOUR)
    app.functions.deprecate(post)
    clock.advance(3600)
    tick_all(app)
    [tick] = oldest_first(app, "s")
    assert (tick.outcome, tick.reason, tick.job_id) == ("skipped", "target_deprecated", None)


@pytest.mark.spec("R42")
def test_a_pause_in_the_midst_of_catching_up_suppresses_what_is_left(app: Duly, clock, post, ran):
    for key in ("first", "second"):
        app.schedules.create(key, post, every=5 * MINUTE)
    clock.advance(30 * 60)
    ticker = Ticker(app.core, page=1)
    assert ticker.one_pass() == 0
    app.functions.pause(post)
    tick_all(app)
    assert [t.outcome for t in oldest_first(app, "first")] == ["dispatched"] * 6
    assert [t.reason for t in oldest_first(app, "second")] == ["target_paused"] * 6
    assert app.schedules.get("second").next_tick == START + 35 * MINUTE
    # What was dispatched before waits, as any job of a paused function does.
    drain(app)
    assert ran == []
    app.functions.resume(post)
    drain(app)
    assert len(ran) == 6


# The ledger adds up -------------------------------------------------------------------------------


LATER = 1 << 62


def accounted(rows: list[TickRecord], trigger: Trigger, until: int | None = None) -> str | None:
    """What is wrong if the rows are not exactly the trigger's instants, each once."""
    slots = {row.tick_at: row.decided_at for row in rows if row.kind == "slot"}
    if len(slots) != sum(row.kind == "slot" for row in rows):
        return "a slot has two rows"
    missed: set[int] = set()
    for row in rows:
        if row.kind == "missed":
            inside = set(trigger.between(row.first_at or 0, row.tick_at + 1))
            inside -= {tick_at for tick_at in inside if slots.get(tick_at, LATER) <= row.decided_at}
            if len(inside) != row.count or row.tick_at not in inside:
                return f"a missed row says {row.count}, and there are {len(inside)}"
            if inside & missed:
                return "a tick is in two missed rows"
            missed |= inside
    # What was missed may have been filled by hand since.
    covered = missed | slots.keys()
    if not covered:
        return None if until is None else _none_due(trigger, until)
    last = max(covered) if until is None else until
    expected = list(trigger.between(to_ms(START) + 1, last + 1))
    return None if sorted(covered) == expected else f"{sorted(covered)} is not {expected}"


def _none_due(trigger: Trigger, until: int) -> str | None:
    missing = list(trigger.between(to_ms(START) + 1, until + 1))
    return f"{missing} have no rows" if missing else None


ZONES = ("UTC", "America/New_York", "Australia/Lord_Howe", "Europe/Istanbul")
EXPRESSIONS = (
    "*/5 * * * *",
    "30 2 * * *",
    "0,30 1 * * *",
    "0 9 * * 1-5",
    "15 */3 * * *",
    "0 0 1,15 * *",
    "H H * * *",
)
triggers = st.one_of(
    st.builds(
        lambda text, tz: {"cron": text, "tz": tz},
        st.sampled_from(EXPRESSIONS),
        st.sampled_from(ZONES),
    ),
    st.builds(lambda s: {"every": s}, st.sampled_from([300, 1_000, 3_600, 86_400])),
)
policies = st.fixed_dictionaries(
    {
        "catch_up": st.sampled_from([0, 1, 3, 10, 200]),
        "overlap": st.sampled_from(["allow", "skip", "buffer_all", "buffer_one"]),
    },
    optional={
        "catch_up_window": st.sampled_from([600, 7_200]),
        "jitter": st.sampled_from([30, 900]),
    },
)
spans = st.lists(
    st.tuples(
        st.sampled_from([1, 60, 299, 3_600, 40_000, 86_400, 700_000]),
        st.sampled_from(["one", "two", "kill", "pause", "backfill"]),
    ),
    min_size=1,
    max_size=8,
)


@contextmanager
def fresh(app: Duly) -> Iterator[None]:
    """The same store for every example, without what the last one left."""
    for schedule in app.schedules.list(limit=200):
        app.schedules.remove(schedule)
    app.resume()
    yield


@pytest.mark.spec("N1", "R27", "R36", "R37")
@settings(
    max_examples=settings().max_examples // 6,  # each is a life on a database
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(trigger=triggers, policy=policies, spans=spans)
def test_the_ledger_is_the_instants_of_the_trigger_each_exactly_once(
    app: Duly, clock: ManualClock, post, trigger, policy, spans
):
    clock.jump((to_ms(START) - clock.now()) / 1000)
    with fresh(app):
        schedule = app.schedules.create("s", post, **trigger, **policy)
        tickers = [Ticker(app.core, page=1), Ticker(app.core)]
        for seconds, what in spans:
            if what == "kill":
                app.pause(by="test")
            elif what == "pause":
                app.functions.restore(post)
                app.functions.pause(post)
            clock.advance(seconds)
            if what == "backfill":
                since = max(to_ms(START) + 1, clock.now() - 20_000_000)
                if schedule.trigger.count_between(since, clock.now()) <= 200:
                    app.schedules.backfill("s", since, clock.now())
            for ticker in tickers if what == "two" else tickers[:1]:
                while ticker.one_pass() == 0:
                    pass
            app.resume()
            app.functions.restore(post)
            if what == "one":
                drain(app)
        if "jitter" in policy:
            clock.advance(1_000)
            tick_all(app)
        stored = schedule.trigger
        assert isinstance(stored, Cron | Every)
        rows = list(app.ready().ticks(schedule.id, TickFilter(limit=100_000)))
        until = None if "jitter" in policy else clock.now()
        assert accounted(rows, stored, until) is None
        following = app.schedules.get("s").next_tick
        assert following is not None
        if "jitter" not in policy:
            assert to_ms(following) == stored.next_after(clock.now())
        jobs = [row.job_id for row in rows if row.outcome == "dispatched"]
        assert len(set(jobs)) == len(jobs)


@pytest.mark.spec("N1", "N3", "R157")
@pytest.mark.parametrize("catch_up", [0, 1, 10])
def test_what_jitter_has_held_back_is_not_late(app: Duly, clock, post, catch_up: int):
    app.schedule("s", post, every=1, jitter=60, overlap="allow", catch_up=catch_up)
    ticker = Ticker(app.core)
    for _ in range(200):
        ticker.one_pass()
        clock.advance(1)
    ticks = oldest_first(app, "s")
    assert {tick.outcome for tick in ticks} == {"dispatched"}
    assert len(ticks) > 100
    # After an outage it is: more than a minute, and what is held back, is not made up for.
    clock.advance(3600)
    tick_all(app)
    assert oldest_first(app, "s")[len(ticks)].outcome == "missed"


@pytest.mark.spec("N1", "N23", "R157")
@pytest.mark.parametrize("catch_up", [0, 10])
def test_what_a_calendar_has_moved_is_not_late(app: Duly, clock, post, catch_up: int):
    days = [f"2026-07-{day:02}" for day in range(2, 14)]
    app.calendars.create("closed", "skip_dates", dates=[*days, "2027-07-01"])
    app.schedules.create(
        "s",
        post,
        cron="0 9 * * *",
        calendar="closed",
        shift="next",
        overlap="allow",
        catch_up=catch_up,
    )
    for day in range(1, 17):
        at(clock, utc(2026, 7, day, 9))
        tick_all(app)
    assert [(t.at.day, t.outcome) for t in oldest_first(app, "s")] == [
        (day, "dispatched") for day in range(1, 17)
    ]


@pytest.mark.spec("N23", "R30")
@pytest.mark.parametrize("verb", ["create", "enable"])
def test_a_tick_whose_moved_time_is_past_does_not_come(app: Duly, clock, post, verb: str):
    """Saturday and Sunday are closed; on Saturday the tick of Sunday has become that of Friday."""
    dates = ["2026-07-04", "2026-07-05", "2027-07-01"]
    app.calendars.create("closed", "skip_dates", dates=dates)
    made: dict[str, Any] = {"cron": "0 9 * * *", "calendar": "closed", "shift": "previous"}
    if verb == "enable":
        app.schedules.create("s", post, enabled=False, **made)
    at(clock, utc(2026, 7, 4, 12))
    if verb == "enable":
        assert app.schedules.preview("s", 1)[0].utc == utc(2026, 7, 6, 9)
        app.schedules.enable("s")
    else:
        app.schedules.create("s", post, **made)
    tick_all(app)
    assert oldest_first(app, "s") == []
    assert app.schedules.get("s").next_tick == utc(2026, 7, 6, 9)
