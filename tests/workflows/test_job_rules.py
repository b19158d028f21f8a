"""A run is a job that is claimed many times: what counts once, and what counts for the whole."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest

from duly import (
    AsyncCtx,
    AsyncWorkflowCtx,
    AttemptInfo,
    Ctx,
    Duly,
    Limit,
    Retry,
    StepFailed,
    Tx,
    Unique,
    WorkflowCtx,
)
from duly.testing import advance, drain
from tests.jobs.support import Database, Gate, Hire, rescue_the_dead, tidy, wait_until
from tests.workflows.support import start_until, stopped_at, take_over

pytestmark = pytest.mark.spec("N102")
DAY = timedelta(days=1)


# Time limits -------------------------------------------------------------------------------------


def test_a_timeout_covers_the_whole_run_and_no_sleep_restarts_it(app: Duly):
    @app.workflow(timeout=100)
    def order(ctx: WorkflowCtx) -> None:
        for _ in range(10):
            ctx.sleep(30)

    job = app.run(order)
    advance(app, 99, raises=False)
    assert job.state == "pending"
    advance(app, 1, raises=False)
    assert (job.state, job.record.error_kind) == ("failed", "timeout")
    assert "100 s" in (job.record.error_message or "")


def test_a_timeout_ends_a_run_that_waits_for_something_else(app: Duly):
    @app.workflow(timeout=100)
    def order(ctx: WorkflowCtx) -> None:
        ctx.wait_for("never")

    job = app.run_after(1000, order)
    advance(app, 1099, raises=False)
    assert job.state == "pending"
    advance(app, 1, raises=False)
    assert (job.state, job.record.error_kind) == ("failed", "timeout")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_timeout_ends_a_run_that_is_awake(app: Duly, hire: Hire, is_async: bool):
    gate = Gate()
    done: list[str] = []

    @app.action
    def later(ctx: Ctx) -> None:
        done.append("later")

    if is_async:

        @app.action
        async def slow(ctx: AsyncCtx) -> None:
            gate._came.release()
            await asyncio.sleep(60)

        @app.workflow(timeout=100, name="order")
        async def order(ctx: AsyncWorkflowCtx) -> None:
            await ctx.sleep(60)
            await ctx.step(slow)
            await ctx.step(later)

    else:

        @app.action
        def slow_too(ctx: Ctx) -> None:
            gate.pass_through()

        @app.workflow(timeout=100, name="order")
        def order(ctx: WorkflowCtx) -> None:
            ctx.sleep(60)
            ctx.step(slow_too)
            ctx.step(later)

    clock: Any = app.core.clock
    job: Any = app.run(order)
    worker = hire()
    worker.work()
    clock.advance(60)
    worker.start_due()
    gate.wait_for_one()
    clock.advance(39)
    worker.watch()
    assert job.state == "running"
    clock.advance(1)
    worker.watch()
    worker.wait_for(job)
    assert (job.state, job.record.error_kind) == ("failed", "timeout")
    gate.open()
    worker.wait_for_bodies()
    worker.settle()
    assert (job.state, done) == ("failed", [])


def test_a_run_that_has_begun_does_not_expire(app: Duly):
    @app.workflow(expires=100)
    def order(ctx: WorkflowCtx) -> str:
        ctx.sleep(1000)
        return "done"

    begun, late = app.run(order), app.run_after(50, order)
    drain(app)
    app.queues.pause("default")
    app.core.clock.advance(500)  # type: ignore[attr-defined]
    tidy(app)
    app.queues.resume("default")
    advance(app, 1000)
    assert (begun.state, late.state) == ("succeeded", "canceled")


def test_a_run_whose_first_worker_died_does_not_expire(app: Duly, hire: Hire):
    @app.workflow(expires=100)
    def order(ctx: WorkflowCtx) -> str:
        ctx.now()
        return "done"

    job = app.run(order)
    worker = hire()
    with stopped_at("workflow.recorded") as stop:
        start_until(worker, stop)
        other = take_over(hire, worker)
        app.core.clock.advance(500)  # type: ignore[attr-defined]
        tidy(app)
        other.work()
    assert job.result() == "done"


# Attempts and crashes ----------------------------------------------------------------------------


def test_wakes_use_up_no_attempts_and_the_first_start_counts(app: Duly):
    seen: list[Any] = []

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        seen.append(ctx.begun_at)
        for _ in range(5):
            ctx.sleep(10)

    job = app.run(order)
    advance(app, 100)
    assert (job.state, job.attempt) == ("succeeded", 1)
    assert len(seen) == 6
    assert len(set(seen)) == 1
    assert job.record.started_at == round(seen[0].timestamp() * 1000)


def test_steps_retry_without_attempts_of_the_run(app: Duly):
    waits: list[float] = []

    @app.action(retry=Retry(attempts=4, delay=10, factor=1, jitter=0))
    def flaky(ctx: Ctx) -> str:
        waits.append(app.core.clock.now() / 1000)
        raise ValueError(f"attempt {ctx.attempt}")

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            ctx.step(flaky)
        except StepFailed as error:
            return error.message
        return ""

    job = app.run(order)
    advance(app, 100)
    assert job.result() == "ValueError: attempt 4"
    assert job.attempt == 1
    assert [b - a for a, b in itertools.pairwise(waits)] == [10, 10, 10]


def test_a_run_that_gets_on_between_crashes_is_never_alone(app: Duly, hire: Hire, db: Database):
    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        for _ in range(5):
            ctx.now()
        return "done"

    job = app.run(order)
    worker = hire()
    for _ in range(4):
        with stopped_at("workflow.recorded") as stop:
            start_until(worker, stop)
            worker = take_over(hire, worker)
        assert db.scalar("SELECT crashes FROM @jobs") == 1
    worker.work()
    assert job.result() == "done"


def test_a_run_that_never_gets_on_goes_to_a_process_of_its_own(app: Duly, hire: Hire, db: Database):
    @app.action(retry=Retry())
    def kill(ctx: Ctx) -> None: ...

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        ctx.step(kill)

    app.run(order)
    worker = hire()
    for _ in range(2):
        with stopped_at("workflow.step_starting") as stop:
            start_until(worker, stop)
            worker = take_over(hire, worker)
    assert db.execute("SELECT crashes, hold FROM @jobs") == [(2, "alone")]


# Keys and limits ---------------------------------------------------------------------------------


def test_a_slot_is_free_while_a_run_is_asleep_and_its_key_is_not(app: Duly, db: Database):
    @app.workflow(limit=Limit(at_once=1, key="k"))
    def order(ctx: WorkflowCtx, n: int) -> None:
        ctx.sleep(100)

    keyed = order.using(unique=Unique("key", scope="unfinished"))
    jobs = [app.run(order, n) for n in range(3)]
    job = app.run(keyed, 7)
    drain(app)
    assert db.scalar("SELECT count(*) FROM @jobs WHERE begun_at IS NOT NULL") == 4
    assert app.run(keyed, 7).id == job.id
    assert getattr(app.find(order, "key"), "id", None) == job.id
    advance(app, 100)
    assert [j.state for j in (*jobs, job)] == ["succeeded"] * 4
    assert app.find(order, "key") is None


@pytest.mark.parametrize("crashes", [False, True])
def test_a_run_counts_once_for_a_rate(app: Duly, hire: Hire, db: Database, crashes: bool):
    @app.workflow(limit=Limit(rate=2, per=3600, key="k"))
    def order(ctx: WorkflowCtx) -> None:
        for _ in range(5):
            ctx.sleep(10)

    first = app.run(order)
    worker = hire()
    if crashes:
        with stopped_at("workflow.recorded") as stop:
            start_until(worker, stop)
            worker = take_over(hire, worker)
    clock: Any = app.core.clock
    for _ in range(6):
        worker.work()
        clock.advance(10)
    worker.work()
    assert first.state == "succeeded"
    assert db.scalar("SELECT count(*) FROM @starts") == 1
    second, third = app.run(order), app.run(order)
    worker.work()
    assert {second.state, third.state} == {"pending"}
    assert db.scalar("SELECT count(*) FROM @starts") == 2


# What people see ---------------------------------------------------------------------------------


def test_log_lines_progress_and_cost_cover_all_claims(app: Duly, db: Database):
    @app.action
    def costly(ctx: Ctx, n: int) -> None:
        ctx.log(f"step {n}")
        ctx.cost(1)
        ctx.cost(0.5)

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        for n in range(12):
            ctx.log(f"before {n}")
            ctx.step(costly, n)
            ctx.progress(n / 20, f"at {n}")
            ctx.sleep(10)
        ctx.log("end")

    app.schedule("orders", order.bind(), every=86_400)
    app.schedules.apply()
    advance(app, DAY + timedelta(seconds=200))
    [job] = app.jobs(function=order)
    lines = [entry.text for entry in job.logs()]
    assert lines == [*(f"{w} {n}" for n in range(12) for w in ("before", "step")), "end"]
    progress = job.progress
    assert progress is not None
    assert (progress.value, progress.note) == (1.0, "at 11")
    assert db.scalar("SELECT sum(amount) FROM @costs") == 18


@pytest.mark.parametrize("is_async", [False, True])
def test_log_lines_of_branches_are_stored_once(app: Duly, is_async: bool):
    def branch(ctx: WorkflowCtx, n: int) -> None:
        ctx.log(f"{n}a")
        ctx.sleep(10 * n)
        ctx.log(f"{n}b")
        ctx.now()

    async def async_branch(ctx: AsyncWorkflowCtx, n: int) -> None:
        ctx.log(f"{n}a")
        await ctx.sleep(10 * n)
        ctx.log(f"{n}b")
        await ctx.now()

    if is_async:

        @app.workflow(name="order")
        async def order(ctx: AsyncWorkflowCtx) -> None:
            ctx.log("begin")
            await ctx.gather(*[ctx.branch(async_branch, n) for n in (1, 2, 3)])
            ctx.log("gathered")
            await ctx.sleep(10)
            ctx.log("end")

    else:

        @app.workflow(name="order")
        def order(ctx: WorkflowCtx) -> None:
            ctx.log("begin")
            ctx.gather(*[ctx.branch(branch, n) for n in (1, 2, 3)])
            ctx.log("gathered")
            ctx.sleep(10)
            ctx.log("end")

    job: Any = app.run(order)
    advance(app, 100)
    assert job.state == "succeeded"
    lines = [entry.text for entry in job.logs()]
    assert lines == ["begin", "1a", "2a", "3a", "1b", "2b", "3b", "gathered", "end"]


def test_hooks_are_told_of_a_run_once(app: Duly):
    told: list[str] = []

    @app.on_start
    def start(info: AttemptInfo) -> None:
        told.append(f"start {info.function}")

    @app.on_success
    def success(info: AttemptInfo) -> None:
        told.append(f"success {info.function}")

    @app.on_retry
    def retry(info: AttemptInfo) -> None:
        told.append(f"retry {info.function}")

    @app.on_failure
    def failure(info: AttemptInfo) -> None:
        told.append(f"failure {info.function}")

    @app.mutation
    def note(tx: Tx) -> None: ...

    @app.workflow
    def order(ctx: WorkflowCtx, fails: bool) -> None:
        ctx.step(note)
        for _ in range(3):
            ctx.sleep(10)
        if fails:
            ctx.wait_for("never", timeout=1)

    app.run(order, False)
    advance(app, 100)
    assert told == ["start order", "success order"]
    told.clear()
    app.run(order, True)
    advance(app, 100, raises=False)
    assert told == ["start order", "failure order"]


def test_a_worker_that_stops_gives_its_runs_back_at_their_next_operation(app: Duly, hire: Hire):
    gate = Gate()
    done: list[int] = []

    @app.action
    def slow(ctx: Ctx, n: int) -> int:
        done.append(n)
        if n == 0:
            gate.pass_through()
        return n

    @app.workflow
    def order(ctx: WorkflowCtx) -> int:
        return sum(ctx.step(slow, n) for n in range(3))

    job = app.run(order)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    wait_until(lambda: worker.worker._stopping)
    gate.open()
    stopping.join()
    assert (job.state, done, job.record.error_message) == ("pending", [0], None)
    other = hire()
    other.work()
    assert (job.result(), done) == (3, [0, 1, 2])


def test_a_silent_worker_begins_no_step(app: Duly, hire: Hire):
    gate = Gate()
    done: list[int] = []

    @app.action
    def slow(ctx: Ctx, n: int) -> int:
        done.append(n)
        if n == 0:
            gate.pass_through()
        return n

    @app.workflow
    def order(ctx: WorkflowCtx) -> int:
        return sum(ctx.step(slow, n) for n in range(3))

    job = app.run(order)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    app.core.clock.advance(11)  # type: ignore[attr-defined]
    gate.open()
    worker.wait_for_bodies()
    worker.settle()
    assert (job.state, done) == ("pending", [0])
    rescue_the_dead(worker)
    worker.work()
    assert (job.result(), done) == (3, [0, 1, 2])
