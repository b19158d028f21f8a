"""How a waiting run leaves its code, whatever the code does about it; and what code is refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from duly import (
    AsyncCtx,
    AsyncWorkflowCtx,
    Ctx,
    Duly,
    StepFailed,
    Tx,
    WorkflowCtx,
    WorkflowEnded,
    current,
)
from duly.errors import CannotCancelSelf, UseCtx
from duly.testing import advance, drain
from tests.jobs.support import Database

DAY = timedelta(days=1)


def _returns(ctx: WorkflowCtx) -> Any:
    try:
        ctx.sleep(DAY)
    finally:
        return "early"  # noqa: B012


def _raises(ctx: WorkflowCtx) -> Any:
    try:
        ctx.sleep(DAY)
    except BaseException:
        raise ValueError("early") from None


def _swallows(ctx: WorkflowCtx) -> Any:
    with contextlib.suppress(BaseException):
        ctx.sleep(DAY)
    with contextlib.suppress(BaseException):
        ctx.send(ctx.job_id, "late", 1)
    return "early"


def _effects(ctx: WorkflowCtx) -> Any:
    try:
        ctx.sleep(DAY)
    finally:
        ctx.send(ctx.job_id, "late", 1)


@pytest.mark.spec("N98")
@pytest.mark.parametrize("waits", [_returns, _raises, _swallows, _effects])
@pytest.mark.parametrize("in_branch", [False, True])
def test_a_suspended_run_waits_whatever_its_code_returns_or_raises(
    app: Duly, waits: Callable[[WorkflowCtx], Any], in_branch: bool
):
    woken = False

    def code(ctx: WorkflowCtx) -> Any:
        if woken:
            ctx.sleep(DAY)
            return "done"
        return waits(ctx)

    @app.workflow
    def order(ctx: WorkflowCtx) -> Any:
        return ctx.gather(ctx.branch(code))[0] if in_branch else code(ctx)

    job = app.run(order)
    drain(app)
    assert (job.state, job.record.hold, job.record.error_message) == ("pending", None, None)
    woken = True
    advance(app, DAY)
    assert job.result() == "done"


@pytest.mark.spec("N98")
def test_an_async_run_waits_whatever_its_code_does(app: Duly):
    woken = False

    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> str:
        if not woken:
            with contextlib.suppress(BaseException):
                await ctx.sleep(DAY)
            with contextlib.suppress(BaseException):
                await ctx.now()
            raise ValueError
        await ctx.sleep(DAY)
        return "done"

    job = app.run(order)
    drain(app)
    assert (job.state, job.record.hold) == ("pending", None)
    woken = True
    advance(app, DAY)
    assert job.result() == "done"


@pytest.mark.spec("N98")
def test_context_managers_exit_at_each_suspension(app: Duly):
    log: list[str] = []

    @contextlib.contextmanager
    def resource() -> Any:
        log.append("open")
        try:
            yield
        finally:
            log.append("close")

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        with resource():
            ctx.sleep(DAY)

    job = app.run(order)
    advance(app, DAY)
    assert job.state == "succeeded"
    assert log == ["open", "close"] * 2


@pytest.mark.spec("N98")
@pytest.mark.parametrize("catches", [False, True])
def test_a_time_limit_of_asyncio_holds_the_run(app: Duly, catches: bool):
    done: list[str] = []

    @app.action
    async def slow(ctx: AsyncCtx) -> None:
        await asyncio.sleep(60)

    @app.action
    async def other(ctx: AsyncCtx) -> None:
        done.append("other")

    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> None:
        try:
            async with asyncio.timeout(0.01):
                await ctx.gather(slow.bind(), slow.bind())
        except TimeoutError:
            if not catches:
                raise
            await ctx.step(other)

    job = app.run(order)
    drain(app, raises=False)
    assert (job.state, job.record.hold, done) == ("pending", "error", [])
    assert "use timeout=" in (job.record.error_message or "")


# What is refused ---------------------------------------------------------------------------------


def _held_with(app: Duly, workflow: Any, *args: Any) -> str:
    job = app.run(workflow, *args)
    drain(app, raises=False)
    assert (job.state, job.record.hold) == ("pending", "error")
    return job.record.error_message or ""


@pytest.mark.spec("N105")
def test_operations_in_another_thread_are_refused(app: Duly):
    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        errors: list[BaseException] = []

        def work() -> None:
            try:
                ctx.now()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise errors[0]

    assert "use ctx.gather with ctx.branch" in _held_with(app, order)


@pytest.mark.spec("N105")
@pytest.mark.parametrize("what", ["gather", "task", "to_thread", "uuid"])
def test_operations_in_another_task_are_refused(app: Duly, what: str):
    @app.action
    async def ok(ctx: AsyncCtx) -> None: ...

    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> None:
        async def draw() -> None:
            ctx.uuid()

        if what == "gather":
            await asyncio.gather(ctx.step(ok), ctx.step(ok))
        elif what == "task":
            await asyncio.create_task(ctx.sleep(1))
        elif what == "uuid":
            await asyncio.create_task(draw())
        else:
            await asyncio.to_thread(ctx.uuid)

    assert "UseCtx" in _held_with(app, order)


@pytest.mark.spec("N105")
@pytest.mark.parametrize("where", ["branch", "step"])
def test_the_context_of_the_workflow_is_refused_in_its_branches_and_steps(app: Duly, where: str):
    outer: list[WorkflowCtx] = []

    @app.action
    def nested(ctx: Ctx) -> None:
        with pytest.raises(UseCtx, match="use the context that it is given"):
            outer[0].now()
        with pytest.raises(UseCtx):
            outer[0].uuid()

    def branch(ctx: WorkflowCtx) -> None:
        outer[0].now()

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        outer[:] = [ctx]
        if where == "step":
            ctx.step(nested)
        else:
            ctx.gather(ctx.branch(branch))
        return "done"

    if where == "step":
        job = app.run(order)
        drain(app)
        assert job.result() == "done"
    else:
        assert "use the context that it is given" in _held_with(app, order)


VERBS: dict[str, Callable[[Duly, Any, Any], object]] = {
    "run": lambda app, f, job: app.run(f),
    "run_after": lambda app, f, job: app.run_after(1, f),
    "run_many": lambda app, f, job: app.run_many([f.bind()]),
    "batch": lambda app, f, job: app.batch([f.bind()]),
    "cancel": lambda app, f, job: app.cancel(job),
    "send": lambda app, f, job: app.send(job, "x"),
    "transaction": lambda app, f, job: app.transaction().__enter__(),
    "on": lambda app, f, job: app.on(cast(Any, object())).run(f),
    "result": lambda app, f, job: job.result(),
    "state": lambda app, f, job: job.state,
    "find": lambda app, f, job: app.find(f, "key"),
    "approve": lambda app, f, job: app.approve(job),
    "reject": lambda app, f, job: app.reject(job),
    "call": lambda app, f, job: f(None),
}


@pytest.mark.spec("N105")
@pytest.mark.parametrize("verb", VERBS)
def test_the_app_is_refused_in_workflow_code(app: Duly, db: Database, verb: str):
    @app.action
    def ok(ctx: Ctx) -> None: ...

    @app.workflow(name="waits")
    def waits(ctx: WorkflowCtx) -> None:
        ctx.approval("?")

    other = app.run(waits)
    drain(app)

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        VERBS[verb](app, ok, other)

    message = _held_with(app, order)
    assert "UseCtx" in message, message
    assert db.scalar("SELECT count(*) FROM @jobs") == 2


@pytest.mark.spec("N105")
def test_in_a_step_the_app_is_as_usual(app: Duly):
    @app.action
    def ok(ctx: Ctx) -> None: ...

    @app.action
    def uses(ctx: Ctx) -> str:
        app.run(ok)
        with app.transaction() as tx:
            tx.run(ok)
        return current(Ctx).job_id

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        return ctx.step(uses)

    job = app.run(order)
    drain(app)
    assert job.result() not in (None, job.id)
    assert len(app.jobs(function=ok)) == 2


@pytest.mark.spec("N105")
@pytest.mark.parametrize("who", ["run", "step", "child"])
def test_a_run_that_cancels_itself_is_refused(app: Duly, db: Database, who: str):
    @app.mutation
    def cancel(tx: Tx, job_id: str) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('x')")
        tx.cancel(job_id)

    @app.workflow
    def child(ctx: WorkflowCtx, parent: str) -> str:
        try:
            ctx.cancel(parent)
        except CannotCancelSelf:
            ctx.sleep(1)
            return "refused"
        return "canceled"

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            if who == "run":
                ctx.cancel(ctx.job_id)
            elif who == "step":
                ctx.step(cancel, ctx.job_id)
            else:
                return ctx.step(child, ctx.job_id)
        except (CannotCancelSelf, StepFailed) as error:
            ctx.sleep(1)
            return "refused" if "CannotCancelSelf" in repr(error) else str(error)
        return "canceled"

    job = app.run(order)
    advance(app, 10)
    assert job.result() == "refused"
    assert db.notes() == []


@pytest.mark.spec("N105")
def test_what_was_refused_is_refused_again_when_the_run_continues(app: Duly):
    seen: list[str] = []

    @app.workflow(events={"a": int})
    def other(ctx: WorkflowCtx) -> None: ...

    ended = app.run(other)
    drain(app)

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            ctx.send(ended, "a", 1)
        except WorkflowEnded as error:
            seen.append(f"{error} {error.job_id} {error.state}")
        try:
            ctx.send(ended, "b", 1)
        except Exception as error:
            seen.append(type(error).__name__)
        try:
            ctx.cancel("00000000-0000-7000-8000-000000000000")
        except Exception as error:
            seen.append(type(error).__name__)
        ctx.sleep(DAY)
        return "done"

    job = app.run(order)
    advance(app, DAY)
    assert job.result() == "done"
    half = len(seen) // 2
    assert seen[:half] == seen[half:]
    assert seen[1:3] == ["InvalidOption", "JobNotFound"]
