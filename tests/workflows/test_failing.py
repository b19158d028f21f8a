"""A run that fails cancels what it has started; one that succeeds leaves it."""

from __future__ import annotations

import pytest

from duly import Ctx, Duly, Fail, WorkflowCtx
from duly.testing import advance, drain

pytestmark = pytest.mark.spec("N112")


@pytest.mark.parametrize("fails", [True, False])
def test_a_failed_run_cancels_its_unfinished_children(app: Duly, fails: bool):
    @app.action
    def later(ctx: Ctx, n: int) -> int:
        return n

    @app.workflow
    def parent(ctx: WorkflowCtx) -> None:
        ctx.run(later, 1)
        ctx.run_after(3600, later, 2)
        ctx.sleep(60)
        if fails:
            raise Fail("not today")

    job = app.run(parent)
    drain(app)
    advance(app, 60, raises=False)
    assert job.state == ("failed" if fails else "succeeded")
    second, first = job.children()
    assert (first.state, first.result()) == ("succeeded", 1)
    assert second.state == ("canceled" if fails else "pending")
    assert second.canceled_by == (f"parent:{job.id}" if fails else None)


def test_a_run_that_times_out_cancels_its_unfinished_children(app: Duly):
    @app.action
    def later(ctx: Ctx) -> None: ...

    @app.workflow(timeout=60)
    def parent(ctx: WorkflowCtx) -> None:
        ctx.run_after(3600, later)
        ctx.sleep(3600)

    job = app.run(parent)
    advance(app, 61, raises=False)
    assert job.error is not None
    assert (job.state, job.error.kind) == ("failed", "timeout")
    assert [child.state for child in job.children()] == ["canceled"]


def test_the_jobs_that_lose_a_race_are_canceled_if_they_are_the_runs_own(app: Duly):
    @app.action
    def work(ctx: Ctx, n: int) -> int:
        return n

    @app.action(queue="slow")
    def slow(ctx: Ctx) -> int:
        return 0

    elsewhere = app.run_after(7200, work, 1)

    @app.workflow
    def race(ctx: WorkflowCtx) -> int:
        own = ctx.run_after(7200, work, 2)
        index, _ = ctx.first(app_job, own, slow_call, ctx.timer(60))
        ctx.sleep(60)
        return index

    app_job, slow_call = elsewhere, slow.bind()
    app.queues.pause("slow")
    job = app.run(race)
    drain(app)
    advance(app, 60)
    assert elsewhere.state == "pending"
    assert sorted((child.function, child.state) for child in job.children()) == [
        ("slow", "canceled"),
        ("work", "canceled"),
    ]
    advance(app, 60)
    assert job.result() == 3
