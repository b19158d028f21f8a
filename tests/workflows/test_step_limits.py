"""A mutation that is a step has the time limit of a mutation."""

from __future__ import annotations

import pytest

from duly import AsyncTx, AsyncWorkflowCtx, Duly, ManualClock, StepFailed, Tx, WorkflowCtx
from tests.jobs.support import Database, Gate, Hire

pytestmark = pytest.mark.spec("N115")

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def test_a_step_that_takes_too_long_is_interrupted(
    app: Duly, hire: Hire, clock: ManualClock, db: Database, url: str
):
    gate = Gate()

    @app.mutation
    def slow(tx: Tx) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('slow')")
        gate.pass_through()
        tx.execute("SELECT pg_sleep(60)" if url.startswith("postgres") else ENDLESS)

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            ctx.step(slow)
        except StepFailed as error:
            return f"{error.kind}: {error.message}"
        return "no limit"

    job = app.run(order)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    clock.advance(app.store.mutation_seconds + 0.1)
    gate.open()
    worker.insist()
    # It was silent for longer than it may be, and gave the run back.
    worker.beat()
    worker.work()
    seconds = app.store.mutation_seconds
    assert job.result(0) == f"timeout: slow ran longer than {seconds:g} s"
    assert db.notes() == []
    assert not worker.worker._watchdog._watched


def test_a_quick_step_is_not_watched_any_more(app: Duly, hire: Hire, clock: ManualClock):
    @app.mutation
    def quick(tx: Tx) -> int:
        return 1

    @app.mutation
    async def quick_async(tx: AsyncTx) -> int:
        return 2

    @app.workflow
    def order(ctx: WorkflowCtx) -> int:
        return ctx.step(quick)

    @app.workflow
    async def async_order(ctx: AsyncWorkflowCtx) -> int:
        return await ctx.step(quick) + await ctx.step(quick_async)

    jobs = [app.run(order), app.run(async_order)]
    worker = hire()
    worker.work()
    assert [job.result(0) for job in jobs] == [1, 3]
    assert not worker.worker._watchdog._watched
