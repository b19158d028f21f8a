"""Workflows of the workload. Each step leaves a trace: a row of `marks`, or a line of `starts`."""

from __future__ import annotations

from contextlib import suppress

from duly import AsyncWorkflowCtx, Ctx, Duly, StepFailed, Tx, WorkflowCtx
from duly.functions.function import Function
from tests.torture.kill.trace import Trace


def add_journeys(app: Duly, trace: Trace) -> tuple[Function[[], None], ...]:
    """A sync and an async one, which do the same."""

    @app.mutation
    def mark(tx: Tx, run: str) -> None:
        tx.execute("INSERT INTO marks (job_id) VALUES (?)", (run,))

    @app.action
    def pay(ctx: Ctx) -> None:
        trace.append("starts", ctx.job_id, ctx.attempt)

    @app.workflow
    def journey(ctx: WorkflowCtx) -> None:
        with suppress(StepFailed):
            ctx.step(pay)
        ctx.step(mark, ctx.job_id)
        ctx.sleep(0.02)
        ctx.gather(mark.bind(ctx.job_id), ctx.timer(0.01))

    @app.workflow
    async def journey_async(ctx: AsyncWorkflowCtx) -> None:
        with suppress(StepFailed):
            await ctx.step(pay)
        await ctx.step(mark, ctx.job_id)
        await ctx.sleep(0.02)
        await ctx.gather(mark.bind(ctx.job_id), ctx.timer(0.01))

    return journey, journey_async
