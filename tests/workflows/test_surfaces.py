"""What people see of a run: its steps, what it waits for, and why it has not gone on."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import timedelta
from typing import Annotated, Any

import pytest

from duly import AsyncApp, Ctx, Duly, ManualClock, Redact, Retry, StepInfo, WaitInfo, WorkflowCtx
from duly.errors import InvalidOption
from duly.testing import advance, drain

HOUR = timedelta(hours=1)


def labels(steps: list[StepInfo]) -> list[str]:
    return [step.label for step in steps]


def only(app: Duly, job: Any) -> WaitInfo:
    [wait] = app.job(job.id).waits
    return wait


@pytest.mark.spec("N90")
def test_steps_are_listed_as_people_read_them(app: Duly):
    @app.action
    def charge(ctx: Ctx, order: int, card: Annotated[str, Redact]) -> str:
        return f"p{order}"

    @app.action
    def fail(ctx: Ctx) -> None:
        raise ValueError("no")

    def part(ctx: WorkflowCtx, number: int) -> str:
        return ctx.step(charge, number, "4242")

    @app.workflow
    def checkout(ctx: WorkflowCtx) -> None:
        ctx.step(charge, 1, "4242")
        ctx.gather(*(ctx.branch(part, number) for number in range(11)))
        try:
            ctx.step(fail)
        finally:
            ctx.approval("Release it?", to="ann")

    job = app.run(checkout)
    drain(app, raises=False)

    steps = job.steps()
    numbers = ["", *(f"#{number}" for number in range(2, 13))]
    between = ["charge", "gather", *(f"charge{each}" for each in numbers[1:])]
    assert labels(steps) == [*between, "fail", "approval"]
    orders = [step.arguments["order"] for step in steps if step.name == "charge"]
    assert orders == [1, *range(11)]
    assert {step.arguments["card"] for step in steps if step.name == "charge"} == {"***"}
    first, failed, asked = steps[0], steps[-2], steps[-1]
    assert (first.kind, first.state, first.attempt) == ("action", "succeeded", 1)
    assert first.result == "p1"
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at
    assert failed.error is not None
    assert (failed.state, failed.error.message) == ("failed", "ValueError: no")
    assert (asked.state, asked.arguments["text"], asked.result) == ("waiting", "Release it?", None)


@pytest.mark.spec("N90")
def test_what_a_run_waits_for_is_listed(app: Duly, clock: ManualClock):
    @app.action(queue="slow")
    def pack(ctx: Ctx) -> str:
        return "parcel"

    @app.action(retry=Retry(attempts=3, delay=60, jitter=0))
    def flaky(ctx: Ctx) -> None:
        if ctx.attempt == 1:
            raise ValueError("again")

    @app.workflow
    def checkout(ctx: WorkflowCtx) -> None:
        ctx.step(flaky)
        ctx.sleep(HOUR)
        ctx.wait_for("packed", timeout=24 * 3600)
        ctx.approval("Release it?", to="ann", timeout=HOUR, options=("yes", "no"))
        ctx.step(pack)

    job = app.run(checkout)
    assert job.waits == (), "it has not started"
    drain(app)
    retry = only(app, job)
    assert (retry.kind, retry.name, retry.step) == ("retry", "flaky", "flaky")
    assert retry.error is not None
    assert retry.error.message == "ValueError: again"
    advance(app, 60)
    sleep = only(app, job)
    assert (sleep.kind, sleep.step) == ("timer", "sleep")
    advance(app, HOUR)
    packed = only(app, job)
    assert (packed.kind, packed.name) == ("event", "packed")
    assert packed.since is not None
    assert packed.until == packed.since + 24 * HOUR
    app.send(job, "packed", {"id": 1})
    drain(app)
    asked = only(app, job)
    assert (asked.kind, asked.text, asked.to) == ("approval", "Release it?", "ann")
    assert asked.options == ("yes", "no")
    app.approve(job)
    app.queues.pause("slow")
    drain(app)
    child = only(app, job)
    assert (child.kind, child.step) == ("job", "pack")
    assert child.name == job.children()[0].id
    assert job.steps()[-1].job_id == child.name
    app.queues.resume("slow")
    drain(app)
    assert (job.state, job.waits) == ("succeeded", ())
    assert job.steps()[2].result == {"id": 1}


@pytest.mark.spec("N90")
def test_async_jobs_have_the_same(app: Duly):
    @app.workflow
    def wait(ctx: WorkflowCtx) -> None:
        ctx.wait_for("go")

    job = app.run(wait)
    drain(app)

    async def look(aio: AsyncApp) -> tuple[list[StepInfo], tuple[WaitInfo, ...]]:
        found = await aio.job(job.id)
        return await found.steps(), await found.waits()

    assert asyncio.run(look(app.aio)) == (job.steps(), job.waits)
    assert labels(job.steps()) == ["go"]


@pytest.mark.spec("N90")
def test_payloads_that_are_redacted_are_not_shown(app: Duly, url: str):
    @app.workflow(events={"card": Annotated[str, Redact]})
    def pay(ctx: WorkflowCtx) -> int:
        return len(ctx.wait_for("card"))

    job = app.run(pay)
    app.send(job, "card", "4242")
    drain(app)
    assert job.result() == 4
    assert [step.result for step in job.steps()] == ["***"]
    app.functions.publish()
    with closing(Duly(url)) as elsewhere:
        steps = elsewhere.job(job.id).steps()
    assert [step.result for step in steps] == ["***"], "what is published says so"


@pytest.mark.spec("N91")
def test_the_data_of_an_approval_fits_its_schema(app: Duly):
    schema = {
        "type": "object",
        "properties": {"days": {"type": "integer"}},
        "required": ["days"],
    }

    @app.workflow
    def ask(ctx: WorkflowCtx) -> Any:
        return ctx.approval("When?", schema=schema).data

    job, other = app.run(ask), app.run(ask)
    drain(app)
    assert only(app, job).data_schema == schema
    for data in (None, {}, {"days": "two"}):
        with pytest.raises(InvalidOption, match="data"):
            app.approve(job, data=data)
    app.approve(job, data={"days": 2})
    app.reject(other)
    drain(app)
    assert (job.result(), other.result()) == ({"days": 2}, None)


# Why ---------------------------------------------------------------------------------------------


def why(app: Duly, job: Any) -> str:
    return app.why(job).text


@pytest.mark.spec("N93")
def test_why_a_run_waits(app: Duly, hire: Any, clock: ManualClock):
    @app.action(queue="slow")
    def pack(ctx: Ctx) -> None: ...

    @app.action(retry=Retry(attempts=3, delay=60, jitter=0))
    def flaky(ctx: Ctx) -> None:
        if ctx.attempt == 1:
            raise ValueError("again")

    @app.workflow
    def checkout(ctx: WorkflowCtx) -> None:
        ctx.wait_for("packed", timeout=24 * 3600)
        ctx.approval("Release it?", to="ann")
        ctx.step(pack)
        ctx.step(flaky)
        ctx.sleep(HOUR)

    job = app.run(checkout)
    worker = hire(queues=["default"])
    assert "checkout has not run yet: " in why(app, job)
    worker.work()
    clock.advance(3 * 3600)
    assert why(app, job) == (
        "checkout is waiting: it has been waiting for event 'packed' for 3 hours, "
        "and times out in 21 hours."
    )
    [reason] = app.why(job).reasons
    assert (reason.cause, reason.until) == ("waits_for_event", clock.now() + 21 * 3_600_000)
    app.send(job, "packed")
    assert "it starts immediately" in why(app, job)
    worker.work()
    clock.advance(60)
    assert why(app, job) == (
        "checkout is waiting: it has been waiting for approval 'approval' for 1 minute "
        "(asked of ann: Release it?)."
    )
    app.approve(job)
    worker.work()
    [child] = job.children()
    assert f"it has been waiting for job {child.id} to end" in why(app, job)
    assert app.why(job).reasons[0].jobs == (child.id,)
    other = hire(queues=["slow"])
    other.work()
    worker.work()
    assert "attempt 1 of its step flaky failed (ValueError: again), the next" in why(app, job)
    clock.advance(60)
    worker.work()
    assert "it sleeps until 2" in why(app, job)


@pytest.mark.spec("N93")
def test_why_a_run_is_held(app: Duly, hire: Any):
    @app.workflow
    def typo(ctx: WorkflowCtx) -> None:
        raise KeyError("adress")

    job = app.run(typo)
    worker = hire()
    worker.work()
    assert why(app, job).startswith("typo is held: its code raised KeyError: 'adress'; it ")
    [reason] = app.why(job).reasons
    assert reason.cause == "code_raised"
    assert "in typo" in (reason.traceback or "")
    assert job.waits == ()


@pytest.mark.spec("N93")
def test_why_a_history_that_does_not_fit_is_held(app: Duly, hire: Any):
    names = ["one", "two"]

    @app.workflow
    def changing(ctx: WorkflowCtx) -> None:
        ctx.wait_for(names[0])

    job = app.run(changing)
    worker = hire()
    worker.work()
    names.reverse()
    app.send(job, "one")
    worker.work()
    [reason] = app.why(job).reasons
    assert reason.cause == "history_mismatch"
    assert "the history has event one, but the code has event two" in why(app, job)
