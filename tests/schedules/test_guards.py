"""The guards, in their order: the first one that objects decides, with one row and no job."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from duly import AsyncCtx, Budget, Ctx, Duly, ManualClock, Unique
from duly.testing import drain
from tests.jobs.support import Database, Hire, on_sqlite, prepare
from tests.schedules.support import at, ledger, tick_all, utc

YEAR = 365 * 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx) -> None: ...

    return post


@pytest.mark.spec("R107", "R108", "N3")
def test_the_first_guard_that_objects_decides(
    app: Duly, db: Database, clock: ManualClock, post: Any
):
    days = [f"2026-07-{day:02d}" for day in range(1, 31)]
    app.calendars.create("never", "skip_dates", dates=[*days, "2027-01-01"])
    app.schedules.create(
        "digest",
        post,
        cron="0 9 * * *",
        calendar="never",
        condition={"/last_24h_stats/total": {"gt": 100}},
        budget=Budget(runs=1, per=YEAR),
    )
    blocking = app.schedules.run("digest").job
    assert blocking is not None
    app.pause(by="anna")
    app.functions.pause("post")
    app.schedules.skip_next("digest", by="bert")

    def one_tick(day: int) -> tuple[str | None, dict[str, Any]]:
        at(clock, utc(2026, 7, day, 9))
        tick_all(app)
        [tick] = app.schedules.ticks("digest", after=utc(2026, 7, day, 9))
        assert (tick.outcome, tick.job_id) == ("skipped", None)
        assert db.count("@jobs") + db.count("@history") == 1
        return tick.reason, tick.detail

    assert one_tick(1) == ("kill_switch", {"by": "anna"})
    app.resume()
    app.schedules.skip_next("digest", by="bert")
    assert one_tick(2) == ("target_paused", {"function": "post"})
    app.functions.deprecate("post")
    app.schedules.skip_next("digest", by="bert")
    assert one_tick(3) == ("target_deprecated", {"function": "post"})
    app.functions.restore("post")
    app.schedules.skip_next("digest", by="bert")
    assert one_tick(4) == ("operator", {"by": "bert"})
    assert one_tick(5) == ("budget_exceeded", {"runs": 1, "spent": 1, "per": YEAR})
    app.schedules.update("digest", budget=None)
    assert one_tick(6) == ("overlap_in_flight", {"job": blocking.id})
    drain(app)
    reason, detail = one_tick(7)
    assert (reason, detail["calendar"], detail["date"]) == ("calendar", "never", "2026-07-07")
    app.schedules.detach("digest")
    reason, detail = one_tick(8)
    assert reason == "condition_failed"
    assert detail["why"] == "/last_24h_stats/total is 0, expected > 100"
    assert detail["checks"][0]["actual"] == 0
    app.schedules.update("digest", condition=None)

    at(clock, utc(2026, 7, 9, 9))
    tick_all(app)
    assert ledger(app, "digest")[-1] == ("dispatched", None)
    assert len(app.schedules.ticks("digest")) == 10


@pytest.mark.spec("R107")
def test_an_operator_who_runs_it_now_is_not_asked_for_calendar_and_condition(
    app: Duly, clock: ManualClock, post: Any
):
    app.calendars.create("never", "only_dates", dates=["2027-01-01"])
    app.schedules.create(
        "digest",
        post,
        cron="0 9 * * *",
        calendar="never",
        condition={"/signal_rpc_result/nothing": {"eq": 1}},
        budget=Budget(runs=2, per=60),
    )
    app.schedules.skip_next("digest")
    first = app.schedules.run("digest")
    assert (first.outcome, first.kind, first.at) == ("dispatched", "manual", utc(2026, 7, 1))
    clock.advance(1)
    assert app.schedules.run("digest").detail == {"job": first.job_id}
    drain(app)
    clock.advance(1)
    assert app.schedules.run("digest").outcome == "dispatched"
    drain(app)
    clock.advance(1)
    assert app.schedules.run("digest").reason == "budget_exceeded"
    app.functions.pause("post")
    clock.advance(1)
    assert app.schedules.run("digest").reason == "target_paused"
    app.pause()
    clock.advance(1)
    assert app.schedules.run("digest").reason == "kill_switch"
    # None of it has moved its own ticks.
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 1, 9)


def test_every_run_now_is_one_however_many_ask_at_once(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create(
        "digest", post, cron="0 9 * * *", overlap="allow", rotation=[{}, {}], remaining=500
    )
    with ThreadPoolExecutor(8) as pool:
        ticks = list(pool.map(lambda _: app.schedules.run("digest"), range(80)))
    assert {tick.outcome for tick in ticks} == {"dispatched"}
    # The clock stands still, and each has an instant of its own.
    now = clock.now()
    assert sorted(tick.record.tick_at for tick in ticks) == list(range(now, now + 80))
    assert len({tick.job_id for tick in ticks}) == len(app.jobs(limit=500)) == 80
    schedule = app.schedules.get("digest")
    assert (schedule.rotation_index, schedule.remaining) == (80, 420)
    assert [e.action for e in app.core.ready().audit_of(f"schedule:{schedule.id}")].count(
        "schedule.run"
    ) == 80
    assert len(drain(app)) == 80


@pytest.mark.spec("N20")
def test_runs_in_one_millisecond_all_count(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create(
        "digest", post, cron="0 9 * * *", overlap="allow", budget=Budget(runs=3, per=3600)
    )
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    runs = [app.schedules.run("digest").reason for _ in range(3)]
    assert runs == [None, None, "budget_exceeded"]


def test_the_job_of_a_tick_is_the_one_that_there_is(app: Duly, clock: ManualClock):
    """A function may say that there is only one job of it."""

    @app.action(unique=Unique())
    def only(ctx: Ctx) -> None: ...

    job = app.run(only)
    app.schedules.create("digest", only, cron="0 9 * * *", overlap="allow")
    run = app.schedules.run("digest")
    assert run.job_id == app.schedules.get("digest").last_job_id == job.id
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert app.schedules.get("digest").last_job_id == job.id
    assert {tick.job_id for tick in app.schedules.ticks("digest")} == {job.id}


# Cycles ------------------------------------------------------------------------------------------


@pytest.mark.spec("N19")
def test_a_job_of_a_schedule_cannot_run_that_schedule(app: Duly, clock: ManualClock):
    ticks: list[Any] = []

    @app.action
    def loop(ctx: Ctx) -> None:
        clock.advance(1)
        ticks.append(app.schedules.run("loop"))

    schedule = app.schedules.create("loop", loop, cron="0 9 * * *", overlap="allow")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert len(drain(app)) == 1
    [tick] = ticks
    assert (tick.outcome, tick.reason) == ("skipped", "cycle_detected")
    assert tick.detail == {"schedule": "loop"}
    assert tick.record.schedule_id == schedule.id


@pytest.mark.spec("R107")
def test_a_cycle_is_looked_for_after_the_budget_and_before_overlapping_jobs(
    app: Duly, clock: ManualClock
):
    reasons: list[str | None] = []

    @app.action
    def loop(ctx: Ctx) -> None:
        # The job that runs is in flight too, whichever guard objects first.
        for budget in (Budget(runs=1, per=YEAR), None):
            app.schedules.update("loop", budget=budget)
            clock.advance(1)
            reasons.append(app.schedules.run("loop").reason)

    app.schedules.create("loop", loop, cron="0 9 * * *", overlap="skip")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert app.schedules.run("loop").reason == "overlap_in_flight"
    drain(app)
    assert reasons == ["budget_exceeded", "cycle_detected"]


@pytest.mark.spec("N19")
def test_async_bodies_and_their_threads_are_inside_their_job_too(app: Duly, clock: ManualClock):
    ticks: list[Any] = []

    @app.action
    async def loop(ctx: AsyncCtx) -> None:
        clock.advance(1)
        ticks.append(await app.aio.schedules.run("loop"))
        clock.advance(1)
        ticks.append(await asyncio.to_thread(app.schedules.run, "loop"))
        clock.advance(1)
        ticks.append(app.schedules.run("loop"))

    app.schedules.create("loop", loop, cron="0 9 * * *", overlap="allow")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    drain(app)
    assert [tick.reason for tick in ticks] == ["cycle_detected"] * 3


@pytest.mark.spec("N19")
def test_a_chain_of_schedules_ends_where_it_began(app: Duly, clock: ManualClock):
    @app.action
    def first(ctx: Ctx) -> None:
        clock.advance(1)
        app.schedules.run("second")

    @app.action
    def second(ctx: Ctx) -> None:
        clock.advance(1)
        # Not by itself, but by a job that it schedules.
        ctx.run(third)

    @app.action
    def third(ctx: Ctx) -> None:
        clock.advance(1)
        app.schedules.run("first")

    app.schedules.create("first", first, cron="0 9 * * *", overlap="allow")
    app.schedules.create("second", second, cron="0 9 1 1 *", overlap="allow")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert sorted(job.function for job in drain(app)) == ["first", "second", "third"]
    assert ledger(app, "second") == [("dispatched", None)]
    assert ledger(app, "first") == [("dispatched", None), ("skipped", "cycle_detected")]


@pytest.mark.spec("N19")
def test_a_job_that_calls_its_own_function_is_no_cycle(app: Duly, clock: ManualClock):
    @app.action
    def walk(ctx: Ctx, steps: int = 3) -> None:
        if steps:
            ctx.run(walk, steps - 1)
        elif app.schedules.get("other").last_dispatch is None:
            # Another schedule of the same function is another schedule.
            app.schedules.run("other")

    app.schedules.create("walk", walk, cron="0 9 * * *")
    app.schedules.create("other", walk.bind(0), cron="0 9 1 1 *")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert len(drain(app)) == 5
    assert ledger(app, "other") == [("dispatched", None)]


@pytest.mark.spec("N19")
def test_a_backfill_is_no_way_around(app: Duly, clock: ManualClock):
    answers: list[Any] = []

    @app.action
    def loop(ctx: Ctx) -> None:
        answers.extend(app.schedules.backfill("loop", utc(2026, 6, 1), utc(2026, 6, 3)))

    app.schedules.create("loop", loop, cron="0 9 * * *", overlap="allow")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    drain(app)
    assert [tick.reason for tick in answers] == ["cycle_detected"] * 2


ISOLATED = """
import os
from duly import Ctx, Duly
from duly.clock import ManualClock

app = Duly(os.environ["CYCLE_URL"])

@app.action(isolate="process")
def loop(ctx: Ctx) -> str:
    return app.schedules.run("loop").reason or "dispatched"
"""


@on_sqlite
@pytest.mark.spec("N19")
def test_a_process_of_its_own_is_inside_its_job_too(
    url: str, hire: Hire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "cycle_app.py").write_text(ISOLATED)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("CYCLE_URL", url)
    import cycle_app  # type: ignore[import-not-found]

    app: Duly = prepare(cycle_app.app)
    app.schedules.create("loop", cycle_app.loop, every=600, overlap="allow")
    job = app.schedules.run("loop").job
    assert job is not None
    hire(app).work()
    assert job.result(0) == "cycle_detected"
    app.close()
