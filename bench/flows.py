"""The measured workflows. Their steps do as little as possible."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from bench.marks import Marks
from duly import AsyncCtx, AsyncWorkflowCtx, Ctx, Duly, Retry, Tx, WorkflowCtx
from duly.calls.kinds import AsyncWorkflow, Workflow

RECORDS = 100
"""How many steps a run has recorded before it waits."""
WOKEN = "go"
"""The event it waits for."""


class Flows(NamedTuple):
    """Each takes the number of its steps."""

    actions: AsyncWorkflow[[int], int]
    retried: AsyncWorkflow[[int], int]
    mutations: AsyncWorkflow[[int], int]
    sync_actions: Workflow[[int], int]
    waiting: AsyncWorkflow[[int], None]
    sleeping: AsyncWorkflow[[int], None]


def add_flows(app: Duly, marks: Marks | None) -> Flows:
    """Add them to the app. Only a worker needs marks."""

    def mark() -> None:
        assert marks is not None
        marks.mark()

    @app.action
    async def act(ctx: AsyncCtx, n: int) -> int:
        return n

    @app.action(retry=Retry(3))
    async def try_act(ctx: AsyncCtx, n: int) -> int:
        return n

    @app.action
    def sync_act(ctx: Ctx, n: int) -> int:
        return n

    @app.mutation
    def mutate(tx: Tx, n: int) -> int:
        return n

    @app.workflow
    async def actions(ctx: AsyncWorkflowCtx, steps: int) -> int:
        total = sum([await ctx.step(act, n) for n in range(steps)])
        mark()
        return total

    @app.workflow
    async def retried(ctx: AsyncWorkflowCtx, steps: int) -> int:
        total = sum([await ctx.step(try_act, n) for n in range(steps)])
        mark()
        return total

    @app.workflow
    async def mutations(ctx: AsyncWorkflowCtx, steps: int) -> int:
        total = sum([await ctx.step(mutate, n) for n in range(steps)])
        mark()
        return total

    @app.workflow
    def sync_actions(ctx: WorkflowCtx, steps: int) -> int:
        total = sum([ctx.step(sync_act, n) for n in range(steps)])
        mark()
        return total

    @app.workflow
    async def waiting(ctx: AsyncWorkflowCtx, steps: int) -> None:
        """Wait, with some records, for the moment at which it is woken."""
        for n in range(steps):
            await ctx.step(try_act, n)
        if not ctx.replaying:
            mark()
        sent_at = await ctx.wait_for(WOKEN, int)
        assert marks is not None
        marks.ping(sent_at)

    @app.workflow
    async def sleeping(ctx: AsyncWorkflowCtx, steps: int) -> None:
        for n in range(steps):
            await ctx.step(try_act, n)
        mark()
        await ctx.sleep(timedelta(days=1))

    return Flows(actions, retried, mutations, sync_actions, waiting, sleeping)
