"""Trouble with the database neither fails nor holds a run: it goes on when that is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duly import AsyncWorkflowCtx, Ctx, Duly, WorkflowCtx, fault
from duly.clock import ManualClock
from duly.errors import StoreUnavailable
from tests.jobs.support import Database, Hire


def test_an_outage_while_a_run_is_read_does_not_fail_it(
    app: Duly, clock: ManualClock, db: Database, hire: Hire
) -> None:
    @app.workflow
    def flow(ctx: WorkflowCtx) -> int:
        ctx.sleep(1)
        return 7

    worker = hire()
    job = app.run(flow)
    worker.work()
    clock.advance(1)
    db.execute("ALTER TABLE @steps RENAME COLUMN error TO gone")
    worker.work()
    assert (job.state, job.attempt) == ("pending", 0)

    db.execute("ALTER TABLE @steps RENAME COLUMN gone TO error")
    clock.advance(60)
    worker.work()
    assert job.result() == 7


@pytest.mark.parametrize("is_async", [False, True])
def test_an_outage_while_an_operation_is_recorded_does_not_hold_the_run(
    app: Duly, clock: ManualClock, hire: Hire, is_async: bool
) -> None:
    begun: list[str] = []

    @app.action
    def charge(ctx: Ctx, name: str) -> str:
        begun.append(name)
        return name

    @app.workflow
    def flow(ctx: WorkflowCtx) -> list[str]:
        # Nor does code that catches everything get to see it.
        try:
            [first] = ctx.gather(ctx.branch(lambda inner: inner.step(charge, "a")))
        except Exception:
            return ["went on"]
        return [first]

    @app.workflow
    async def flow_async(ctx: AsyncWorkflowCtx) -> list[str]:
        try:
            first = await ctx.step(charge, "a")
            await ctx.now()
        except Exception:
            return ["went on"]
        return [first]

    worker = hire()
    job = app.run(flow_async if is_async else flow)
    with fault.inject(refusing("workflow.recorded", 2)):
        worker.work()
    assert (job.state, job.attempt, begun) == ("pending", 0, ["a"])

    clock.advance(60)
    worker.work()
    assert (job.result(), begun) == (["a"], ["a"])


def refusing(point: str, nth: int) -> Callable[[str], None]:
    passes = iter(range(nth))

    def handler(name: str) -> None:
        if name == point and next(passes, None) == nth - 1:
            raise StoreUnavailable("the answer was lost")

    return handler
