"""gather and first: each branch has its own scope, and replays as it ran."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from duly import (
    AsyncCtx,
    AsyncWorkflowCtx,
    Ctx,
    Duly,
    Fail,
    Retry,
    StepFailed,
    Tx,
    WaitTimeout,
    WorkflowCtx,
)
from duly.testing import advance, drain
from tests.jobs.support import Database, Gate, Hire, rescue_the_dead, wait_until
from tests.workflows.support import shape_of, start_until, stopped_at

pytestmark = pytest.mark.spec("N99")
DAY = timedelta(days=1)


class Rejected(Exception):
    """What the workflows here declare."""


def test_the_failure_of_a_branch_is_the_same_when_the_run_continues(app: Duly):
    seen: list[str] = []

    @app.action
    def fail(ctx: Ctx, n: int) -> None:
        raise ValueError(f"no {n}")

    @app.action
    def ok(ctx: Ctx, n: int) -> int:
        return n

    def rejecting(ctx: WorkflowCtx) -> None:
        ctx.step(ok, 1)
        raise Rejected("by hand")

    def failing(ctx: WorkflowCtx) -> None:
        raise Fail("enough")

    @app.workflow(raises=(Rejected,))
    def order(ctx: WorkflowCtx) -> str:
        for what in (
            fail.bind(7), ctx.branch(rejecting), ctx.branch(failing), ctx.event("never"),
            ctx.branch(lambda c: c.wait_for("never", timeout=1)),
        )[0:3]:  # fmt: skip
            try:
                ctx.gather(ok.bind(1), what, ok.bind(2))
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}")
        ctx.sleep(DAY)
        return "done"

    job = app.run(order)
    drain(app)
    first, seen[:] = list(seen), []
    advance(app, DAY)
    assert job.result() == "done"
    assert seen == first == [
        "StepFailed: step fail failed: ValueError: no 7", "Rejected: by hand", "Fail: enough",
    ]  # fmt: skip


def test_a_timeout_in_a_branch_is_caught_as_what_it_is_on_replay_too(app: Duly):
    seen: list[str] = []

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            ctx.gather(ctx.branch(lambda c: c.wait_for("never", timeout=10)))
        except WaitTimeout:
            seen.append("timeout")
        ctx.sleep(DAY)
        return "done"

    job = app.run(order)
    advance(app, 20)
    advance(app, DAY)
    assert job.result() == "done"
    assert seen == ["timeout"] * 2


def test_what_others_had_not_done_when_a_branch_failed_is_never_done(app: Duly):
    done: list[int] = []

    @app.action
    def fail(ctx: Ctx) -> None:
        raise ValueError

    @app.action
    def ok(ctx: Ctx, n: int) -> None:
        done.append(n)

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            ctx.gather(ok.bind(1), fail.bind(), ok.bind(2))
        except StepFailed:
            ctx.sleep(DAY)
        return "done"

    job = app.run(order)
    advance(app, DAY)
    assert (job.result(), done) == ("done", [1])


def test_other_branches_of_an_async_gather_end_at_their_next_operation(app: Duly):
    done: list[str] = []

    def has_failed(run: str) -> bool:
        return any(step.state == "failed" for step in app.core.ready().steps_of(run, 10))

    @app.action
    async def fail(ctx: AsyncCtx) -> None:
        raise ValueError

    @app.action
    async def slow(ctx: AsyncCtx) -> None:
        while not await asyncio.to_thread(has_failed, ctx.workflow_id):  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        done.append("slow")

    @app.action
    async def later(ctx: AsyncCtx) -> None:
        done.append("later")

    async def branch(ctx: AsyncWorkflowCtx) -> None:
        await ctx.step(slow)
        await ctx.step(later)

    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> str:
        try:
            await ctx.gather(fail.bind(), ctx.branch(branch))
        except StepFailed:
            done.append("caught")
        return "done"

    job = app.run(order)
    drain(app)
    assert (job.result(), done) == ("done", ["slow", "caught"])


def test_a_mistake_in_a_branch_holds_the_run_at_once(app: Duly):
    done: list[str] = []

    @app.action
    def ok(ctx: Ctx, n: int) -> None:
        done.append(str(n))

    def wrong(ctx: WorkflowCtx) -> None:
        raise KeyError("oops")

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        try:
            ctx.gather(ctx.branch(wrong), ok.bind(1))
        except KeyError:
            ctx.step(ok, 2)

    job = app.run(order)
    drain(app, raises=False)
    assert (job.state, job.record.hold, done) == ("pending", "error", [])
    assert "KeyError: 'oops'" in (job.record.error_message or "")


def test_a_mistake_in_an_async_branch_stops_the_others_and_awaits_them(app: Duly):
    done: list[str] = []
    wrong_now = asyncio.Event()

    @app.action
    async def slow(ctx: AsyncCtx) -> None:
        await wrong_now.wait()
        await asyncio.sleep(0.02)
        done.append("slow")

    @app.action
    async def later(ctx: AsyncCtx) -> None:
        done.append("later")

    async def branch(ctx: AsyncWorkflowCtx) -> None:
        await ctx.step(slow)
        await ctx.step(later)

    async def wrong(ctx: AsyncWorkflowCtx) -> None:
        await ctx.now()
        wrong_now.set()
        raise KeyError("oops")

    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> None:
        await ctx.gather(ctx.branch(branch), ctx.branch(wrong))

    job = app.run(order)
    drain(app, raises=False)
    assert (job.state, job.record.hold, done) == ("pending", "error", ["slow"])


def test_errors_can_be_returned(app: Duly):
    @app.action
    def fail(ctx: Ctx) -> None:
        raise ValueError("no")

    def rejecting(ctx: WorkflowCtx) -> None:
        raise Rejected

    @app.workflow(raises=(Rejected,))
    def order(ctx: WorkflowCtx) -> list[str]:
        found = ctx.gather(fail.bind(), ctx.branch(rejecting), ctx.timer(5), errors="return")
        return [type(each).__name__ for each in found]

    job = app.run(order)
    advance(app, 10)
    assert job.result() == ["StepFailed", "Rejected", "NoneType"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_limit_counts_what_has_begun_and_not_ended_across_wakes(app: Duly, is_async: bool):
    begun: list[int] = []

    @app.action
    def begin(ctx: Ctx, n: int) -> None:
        begun.append(n)

    def branch(ctx: WorkflowCtx, n: int) -> int:
        ctx.step(begin, n)
        ctx.sleep(10 * n)
        return n

    async def async_branch(ctx: AsyncWorkflowCtx, n: int) -> int:
        await ctx.step(begin, n)
        await ctx.sleep(10 * n)
        return n

    if is_async:

        @app.workflow(name="order")
        async def order(ctx: AsyncWorkflowCtx) -> list[int]:
            many = [ctx.branch(async_branch, n) for n in (3, 1, 2, 4)]
            return await ctx.gather(*many, limit=2)

    else:

        @app.workflow(name="order")
        def order(ctx: WorkflowCtx) -> list[int]:
            return ctx.gather(*[ctx.branch(branch, n) for n in (3, 1, 2, 4)], limit=2)

    job: Any = app.run(order)
    drain(app)
    assert sorted(begun) == [1, 3]
    advance(app, 10)
    assert begun[2:] == [2]
    advance(app, 20)
    assert begun[3:] == [4]
    advance(app, 40)
    assert job.result() == [3, 1, 2, 4]


def test_a_finished_gather_does_nothing_new_when_its_branch_has_changed(app: Duly):
    changed = False
    done: list[int] = []

    @app.action
    def ok(ctx: Ctx, n: int) -> None:
        done.append(n)

    def branch(ctx: WorkflowCtx) -> None:
        ctx.step(ok, 1)
        if changed:
            ctx.step(ok, 2)

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        ctx.gather(ctx.branch(branch))
        ctx.sleep(DAY)

    job = app.run(order)
    drain(app)
    changed = True
    advance(app, DAY, raises=False)
    assert (job.record.hold, done) == ("history", [1])
    assert "operation 2 of branch /0.0" in (job.record.error_message or "")


# first -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timer_first", [False, True])
def test_an_event_sent_before_the_timer_was_over_wins(app: Duly, timer_first: bool):
    @app.workflow
    def order(ctx: WorkflowCtx) -> list[Any]:
        ctx.sleep(1)
        both = [ctx.timer(60), ctx.event("paid")] if timer_first else [
            ctx.event("paid"), ctx.timer(60)
        ]  # fmt: skip
        return list(ctx.first(*both))

    job = app.run(order)
    advance(app, 1)
    app.queues.pause("default")
    advance(app, 50)
    app.send(job, "paid", 5)
    advance(app, 50)
    app.queues.resume("default")
    drain(app)
    assert job.result() == ([1, 5] if timer_first else [0, 5])


def test_an_event_sent_after_the_timer_was_over_loses_and_is_kept(app: Duly):
    @app.workflow
    def order(ctx: WorkflowCtx) -> list[Any]:
        index, _ = ctx.first(ctx.event("paid"), ctx.timer(60))
        return [index, ctx.wait_for("paid")]

    job = app.run(order)
    drain(app)
    app.queues.pause("default")
    advance(app, 100)
    app.send(job, "paid", 5)
    app.queues.resume("default")
    drain(app)
    assert job.result() == [1, 5]


def test_only_a_timer_ends_the_time_for_events(app: Duly):
    """A branch that begins with a sleep is not over with it."""

    def slow(ctx: WorkflowCtx) -> str:
        ctx.sleep(10)
        ctx.sleep(100)
        return "slow"

    @app.workflow
    def order(ctx: WorkflowCtx) -> list[Any]:
        return list(ctx.first(ctx.event("paid"), ctx.branch(slow)))

    job = app.run(order)
    advance(app, 50)
    app.send(job, "paid", 5)
    drain(app)
    assert job.result() == [0, 5]


def test_what_loses_takes_nothing_and_its_approval_and_jobs_end(app: Duly):
    @app.action(queue="far")
    def far(ctx: Ctx) -> None: ...

    def ask(ctx: WorkflowCtx) -> bool:
        return bool(ctx.approval("Now?"))

    @app.workflow
    def order(ctx: WorkflowCtx) -> list[Any]:
        first = ctx.first(ctx.event("a"), ctx.branch(ask), far.bind(), ctx.event("b"))
        ctx.sleep(DAY)
        return [*first, ctx.wait_for("a", timeout=1, default="none")]

    job = app.run(order)
    app.queues.pause("far")
    drain(app)
    app.send(job, "b", 1)
    drain(app)
    [child] = app.jobs(function=far)
    assert child.state == "canceled"
    with pytest.raises(Exception, match="has happened first"):
        app.approve(job)
    app.send(job, "a", 2)
    advance(app, DAY)
    assert job.result() == [3, 1, 2]


def test_losers_are_closed_although_the_worker_died_in_between(app: Duly, hire: Hire):
    def ask(ctx: WorkflowCtx) -> bool:
        return bool(ctx.approval("Now?"))

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        ctx.first(ctx.event("a"), ctx.branch(ask))
        ctx.sleep(DAY)
        return "done"

    job = app.run(order)
    drain(app)
    app.send(job, "a")
    worker = hire()
    # The first point after the event was taken: the record of the winner.
    with stopped_at("workflow.recorded") as stop:
        start_until(worker, stop)
        assert shape_of(app, job)[0][2] == "succeeded"
        worker.die()
        other = hire()
        rescue_the_dead(other)
        other.work()
    with pytest.raises(Exception, match="has happened first"):
        app.approve(job)


# Side by side ------------------------------------------------------------------------------------


def test_two_async_branches_never_take_the_same_event(app: Duly):
    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> list[int]:
        return await ctx.gather(*[ctx.event("n") for _ in range(20)])

    job = app.run(order)
    for n in range(20):
        app.send(job, "n", n)
    drain(app)
    assert sorted(job.result() or []) == list(range(20))
    # At once: the run did not have to begin again.
    assert job.record.token <= 5


def test_approvals_of_async_branches_have_different_names(app: Duly):
    async def ask(ctx: AsyncWorkflowCtx, n: int) -> str:
        return (await ctx.approval(f"Number {n}?")).by or ""

    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> list[str]:
        return await ctx.gather(*[ctx.branch(ask, n) for n in range(3)])

    job = app.run(order)
    drain(app)
    for name in ("approval", "approval#3", "approval#2"):
        app.approve(job, name, by=name)
    drain(app)
    assert sorted(job.result() or []) == ["approval", "approval#2", "approval#3"]


@pytest.mark.parametrize("how", ["timeout", "stop"])
def test_branches_end_with_their_run(app: Duly, hire: Hire, how: str):
    ended: list[str] = []
    started = Gate()

    @app.action
    async def slow(ctx: AsyncCtx, n: int) -> None:
        started._came.release()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(f"slow {n}")

    @app.workflow(timeout=100)
    async def order(ctx: AsyncWorkflowCtx) -> None:
        await ctx.gather(slow.bind(1), slow.bind(2))

    job = app.run(order)
    worker = hire()
    worker.start_due()
    started.wait_for_one()
    started.wait_for_one()
    if how == "timeout":
        app.core.clock.advance(101)  # type: ignore[attr-defined]
        worker.insist()
        worker.wait_for(job)
        assert (job.state, job.record.error_kind) == ("failed", "timeout")
    else:
        worker.worker.stop(0)
        worker._stopped = True
        assert job.state == "pending"
    wait_until(lambda: len(ended) == 2)


def test_calls_that_retry_wait_side_by_side(app: Duly, db: Database):
    tries: list[int] = []

    @app.action(retry=Retry(attempts=3, delay=10))
    def flaky(ctx: Ctx, n: int) -> int:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError
        return n

    @app.mutation
    def note(tx: Tx) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('x')")

    @app.workflow
    def order(ctx: WorkflowCtx) -> list[int | None]:
        return ctx.gather(flaky.bind(1), note.bind(), flaky.bind(2))

    job = app.run(order)
    advance(app, DAY)
    assert job.result() == [1, None, 2]
    assert (sorted(tries), db.notes()) == ([1, 1, 2, 2, 3, 3], ["x"])
