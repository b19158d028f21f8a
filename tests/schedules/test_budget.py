"""Budgets: the largest number of runs, or the highest cost, in any window."""

import asyncio
import math
from typing import Any

import pytest

from duly import AsyncCtx, Budget, Ctx, Duly, ManualClock, Retry
from duly.errors import InvalidOption, UseTx
from duly.testing import ctx as make_ctx
from duly.testing import drain
from tests.jobs.support import Database, Gate, Hire
from tests.schedules.support import at, ledger, tick_all, utc

HOUR = 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx) -> None: ...

    return post


@pytest.mark.spec("N20", "N3")
def test_runs_within_the_window_are_counted_to_its_edge(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("often", post, every=600, budget=Budget(runs=2, per=HOUR))
    for minute in range(10, 140, 10):
        at(clock, utc(2026, 7, 1, minute // 60, minute % 60))
        tick_all(app)
        drain(app)
    minutes = [
        tick.at.hour * 60 + tick.at.minute
        for tick in reversed(app.schedules.ticks("often", outcome="dispatched"))
    ]
    # At 70 the run of 10 is exactly one window old, and counts no more.
    assert minutes == [10, 20, 70, 80, 130]
    skip = app.schedules.ticks("often", reason="budget_exceeded", limit=1)[0]
    assert skip.detail == {"runs": 2, "spent": 2, "per": HOUR}


@pytest.mark.spec("N20", "N9")
@pytest.mark.parametrize("budget", [Budget(runs=1, per=86_400), Budget(cost=1, per=86_400)])
def test_a_run_counts_a_tick_that_was_moved_to_before_its_time(
    app: Duly, clock: ManualClock, budget: Budget
):
    @app.action
    def spend(ctx: Ctx) -> None:
        ctx.cost(1)

    app.schedules.create("digest", spend, cron="0 9 * * *", overlap="allow", budget=budget)
    app.schedules.move_next("digest", utc(2026, 7, 1, 7))
    at(clock, utc(2026, 7, 1, 7))
    tick_all(app)
    drain(app)
    at(clock, utc(2026, 7, 1, 7, 30))
    assert app.schedules.run("digest").reason == "budget_exceeded"
    # The tick has the time that it is called by: so has its window.
    at(clock, utc(2026, 7, 2, 9))
    tick_all(app)
    assert app.schedules.ticks("digest", limit=1)[0].outcome == "dispatched"


@pytest.mark.spec("N20")
def test_the_window_ends_to_the_millisecond(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create(
        "digest", post, cron="0 9 1 1 *", overlap="allow", budget=Budget(runs=1, per=10)
    )
    assert app.schedules.run("digest").outcome == "dispatched"
    clock.advance(9.999)
    assert app.schedules.run("digest").reason == "budget_exceeded"
    clock.advance(0.001)
    assert app.schedules.run("digest").outcome == "dispatched"


@pytest.mark.spec("N20")
def test_ticks_that_are_caught_up_are_counted_among_each_other(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create("often", post, every=600, budget=Budget(runs=2, per=HOUR), catch_up=20)
    at(clock, utc(2026, 7, 1, 2))
    tick_all(app)
    minutes = [
        tick.at.hour * 60 + tick.at.minute
        for tick in reversed(app.schedules.ticks("often", outcome="dispatched"))
    ]
    assert minutes == [10, 20, 70, 80]
    assert len(app.schedules.ticks("often")) == 12


@pytest.mark.spec("N20")
def test_cost_is_what_jobs_say_to_the_edge_of_the_window(
    app: Duly, db: Database, clock: ManualClock
):
    @app.action
    def spend(ctx: Ctx) -> None:
        ctx.cost(1.5)
        ctx.cost(0)
        ctx.cost(1)

    schedule = app.schedules.create("spend", spend, every=600, budget=Budget(cost=5, per=HOUR))
    for minute in range(10, 90, 10):
        at(clock, utc(2026, 7, 1, minute // 60, minute % 60))
        tick_all(app)
        drain(app)
    outcomes = [outcome for outcome, _ in ledger(app, "spend")]
    assert outcomes == ["dispatched"] * 2 + ["skipped"] * 4 + ["dispatched"] * 2
    skip = app.schedules.ticks("spend", reason="budget_exceeded")[0]
    assert skip.detail == {"cost": 5, "spent": 5, "per": HOUR}
    stored = db.execute("SELECT schedule_id, amount FROM @costs")
    assert [(str(of), amount) for of, amount in stored] == [(schedule.id, 2.5)] * 4


@pytest.mark.spec("N20")
def test_ticks_that_are_caught_up_see_the_costs_of_their_own_window(app: Duly, clock: ManualClock):
    @app.action
    def spend(ctx: Ctx) -> None:
        ctx.cost(5)

    app.schedules.create("spend", spend, every=600, budget=Budget(cost=5, per=HOUR), catch_up=20)
    clock.advance(600)
    drain(app)
    at(clock, utc(2026, 7, 1, 1, 20))
    tick_all(app)
    outcomes = [outcome for outcome, _ in ledger(app, "spend")]
    assert outcomes == ["dispatched", *["skipped"] * 5, "dispatched", "dispatched"]


@pytest.mark.spec("N20")
def test_what_was_spent_is_spent_whatever_becomes_of_the_job(
    app: Duly, db: Database, clock: ManualClock
):
    @app.action(retry=Retry(attempts=3, delay=0, jitter=0))
    def spend(ctx: Ctx) -> None:
        ctx.cost(2)
        ctx.cost(1)
        raise ConnectionError

    app.schedules.create("spend", spend, every=600, budget=Budget(cost=9, per=HOUR))
    clock.advance(600)
    tick_all(app)
    drain(app, raises=False)
    assert app.jobs()[0].state == "failed"
    # Three attempts, each of which has cost 3.
    assert [amount for (amount,) in db.execute("SELECT amount FROM @costs")] == [3, 3, 3]
    clock.advance(600)
    tick_all(app)
    assert app.schedules.ticks("spend")[0].detail["spent"] == 9


@pytest.mark.spec("N20")
def test_a_body_that_was_canceled_goes_on_spending(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action
    def spend(ctx: Ctx) -> None:
        gate.pass_through()
        ctx.cost(4)

    app.schedules.create("spend", spend, every=600, budget=Budget(cost=4, per=HOUR))
    clock.advance(600)
    tick_all(app)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    assert app.schedules.ticks("spend")[0].job.cancel()  # type: ignore[union-attr]
    gate.open()
    worker.wait_for_bodies()
    worker.settle()
    assert db.scalar("SELECT sum(amount) FROM @costs") == 4


@pytest.mark.spec("N20")
def test_an_async_action_awaits_it_and_tasks_may_spend_at_once(
    app: Duly, db: Database, clock: ManualClock
):
    @app.action
    async def spend(ctx: AsyncCtx) -> None:
        await asyncio.gather(*(ctx.cost(1) for _ in range(10)))

    app.schedules.create("spend", spend, every=600, budget=Budget(cost=10, per=HOUR))
    clock.advance(600)
    tick_all(app)
    drain(app)
    assert db.execute("SELECT amount FROM @costs") == [(10,)]


def test_a_run_now_costs_too_and_a_job_of_no_schedule_nothing(
    app: Duly, db: Database, clock: ManualClock
):
    @app.action
    def spend(ctx: Ctx) -> None:
        ctx.cost(3)

    app.schedules.create("spend", spend, every=600, budget=Budget(cost=3, per=HOUR))
    app.run(spend)
    drain(app)
    make_ctx(app).cost(1)
    assert db.count("@costs") == 0
    assert app.schedules.run("spend").outcome == "dispatched"
    drain(app)
    clock.advance(1)
    assert app.schedules.run("spend").reason == "budget_exceeded"


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf, -math.inf, True, "1", None, 1e16])
def test_a_cost_is_a_number(app: Duly, amount: Any):
    with pytest.raises(InvalidOption) as raised:
        make_ctx(app).cost(amount)
    assert raised.value.field == "cost"


def test_a_cost_is_no_part_of_a_transaction(app: Duly):
    with app.transaction(), pytest.raises(UseTx):
        make_ctx(app).cost(1)


@pytest.mark.parametrize(
    "given",
    [
        {"per": 60},
        {"runs": 1, "cost": 1, "per": 60},
        {"runs": 0, "per": 60},
        {"runs": 10_001, "per": 60},
        {"runs": 1.5, "per": 60},
        {"cost": 0, "per": 60},
        {"cost": math.nan, "per": 60},
        {"runs": 1, "per": 0},
        {"runs": 1, "per": 400 * 86_400},
        {"runs": 1, "per": math.inf},
    ],
)
def test_a_budget_makes_sense(given: Any):
    with pytest.raises(InvalidOption) as raised:
        Budget(**given)
    assert raised.value.field == "budget"
