"""The test kit answers what a workflow waits for, and finds code that does not repeat itself."""

from __future__ import annotations

import itertools
from datetime import timedelta

import msgspec
import pytest

from duly import AsyncWorkflowCtx, Ctx, Duly, Workflow, WorkflowCtx
from duly.errors import JobFailed
from duly.testing import (
    History,
    advance,
    approve,
    assert_steps,
    deliver,
    drain,
    history,
    replay,
)

pytestmark = pytest.mark.spec("N111")


@pytest.fixture
def order(app: Duly) -> Workflow[[int], str]:
    @app.action
    def charge(ctx: Ctx, order: int) -> str:
        return f"p{order}"

    @app.workflow
    def order(ctx: WorkflowCtx, number: int) -> str:
        payment = ctx.step(charge, number)
        ctx.sleep(timedelta(days=1))
        parcel = ctx.wait_for("packed")
        if not ctx.approval("Send it?"):
            return "rejected"
        return f"{payment} {parcel} {ctx.step(charge, number + 1)}"

    return order


def test_answers_are_given_only_to_a_run_that_waits_for_them(
    app: Duly, order: Workflow[[int], str]
):
    job = app.run(order, 7)
    with pytest.raises(AssertionError, match="waits for timer"):
        deliver(app, job, "packed", "box")
    advance(app, timedelta(days=1))
    with pytest.raises(AssertionError, match="does not wait for event 'pakced'"):
        deliver(app, job, "pakced", "box")
    deliver(app, job, "packed", "box")
    assert_steps(app, job, "charge")
    assert approve(app, job, by="ada").by == "ada"
    assert job.result() == "p7 box p8"
    assert_steps(app, job, "charge", "charge#2")
    charge = app.functions["charge"]
    assert_steps(app, job, charge.bind(7), charge)
    with pytest.raises(AssertionError, match="expected the steps"):
        assert_steps(app, job, charge.bind(7), charge.bind(7))


def test_paranoid_draining_finds_arguments_that_change(app: Duly):
    numbers = itertools.count()

    @app.action
    def charge(ctx: Ctx, order: int) -> int:
        return order

    @app.workflow
    def fickle(ctx: WorkflowCtx) -> int:
        return ctx.step(charge, next(numbers)) + ctx.step(charge, 1)

    @app.workflow
    def steady(ctx: WorkflowCtx) -> int:
        return ctx.step(charge, ctx.random().randrange(10)) + ctx.step(charge, 1)

    job = app.run(fickle)
    drain(app)
    assert job.state == "succeeded"
    app.run(steady)
    drain(app, paranoid=True)
    app.run(fickle)
    with pytest.raises(JobFailed, match="when it runs again"):
        drain(app, paranoid=True)


def test_a_history_is_replayed_without_effects(app: Duly, order: Workflow[[int], str]):
    job = app.run(order, 7)
    drain(app)
    early = history(app, job)
    advance(app, timedelta(days=1))
    deliver(app, job, "packed", "box")
    approve(app, job)
    late = msgspec.json.decode(msgspec.json.encode(history(app, job)), type=History)
    before = len(app.jobs())
    replay(app, early)
    replay(app, late)
    assert len(app.jobs()) == before
    changed = msgspec.structs.replace(late, args='{"number":8}')
    with pytest.raises(AssertionError, match="recorded with"):
        replay(app, changed)
    without = msgspec.structs.replace(late, steps=late.steps[1:])
    with pytest.raises(AssertionError, match="history has nothing"):
        replay(app, without)


def test_a_history_of_an_async_workflow_is_replayed(app: Duly):
    @app.action
    def charge(ctx: Ctx, order: int) -> int:
        return order

    @app.workflow
    async def both(ctx: AsyncWorkflowCtx) -> list[int]:
        return await ctx.gather(charge.bind(1), charge.bind(2))

    job = app.run(both)
    drain(app)
    assert job.result() == [1, 2]
    replay(app, history(app, job))
