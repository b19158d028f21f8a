"""What a step may depend on is durable before it begins."""

from __future__ import annotations

import pytest

from duly import AsyncCtx, AsyncWorkflowCtx, Duly, Retry
from tests.jobs.support import Database, Hire


@pytest.mark.parametrize("retry", [None, Retry(attempts=3)])
@pytest.mark.parametrize("how", ["step", "gather", "first"])
def test_a_result_is_recorded_before_the_next_action_begins(
    app: Duly, db: Database, hire: Hire, retry: Retry | None, how: str
) -> None:
    recorded: list[tuple[str, str]] = []

    @app.action
    async def charge(ctx: AsyncCtx) -> str:
        return "p1"

    @app.action(retry=retry)
    async def tell(ctx: AsyncCtx, payment: str) -> None:
        rows = db.execute("SELECT name, state FROM @steps WHERE name = 'charge'")
        recorded.extend((name, state) for name, state in rows)

    @app.workflow
    async def checkout(ctx: AsyncWorkflowCtx) -> None:
        payment = await ctx.step(charge)
        if how == "gather":
            await ctx.gather(tell.bind(payment), tell.bind(payment))
        elif how == "first":
            await ctx.first(tell.bind(payment))
        else:
            await ctx.step(tell, payment)

    job = app.run(checkout)
    hire().work()
    assert job.state == "succeeded"
    assert set(recorded) == {("charge", "succeeded")}
