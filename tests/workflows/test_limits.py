"""Limits and bad input: a clear error before anything is half written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import pytest

from duly import AsyncCtx, Ctx, Duly, Redact, StepFailed, Tx, WorkflowCtx, current
from duly.errors import InvalidFunction, InvalidOption, NoCurrentJob
from duly.testing import advance, drain
from tests.jobs.support import Database
from tests.workflows.support import shape_of

DAY = timedelta(days=1)


@pytest.mark.spec("N106")
@pytest.mark.parametrize("what", ["now", "send", "step", "event", "gather", "run"])
def test_a_run_records_only_so_much(
    app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch, what: str
):
    monkeypatch.setattr("duly.workflows.run.MAX_RECORDS", 5)
    done: list[int] = []

    @app.action
    def step(ctx: Ctx) -> None:
        done.append(1)

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        for _ in range(5):
            ctx.now()
        if what == "now":
            ctx.now()
        elif what == "send":
            ctx.send(ctx.job_id, "x")
        elif what == "step":
            ctx.step(step)
        elif what == "event":
            ctx.wait_for("x")
        elif what == "gather":
            ctx.gather(step.bind())
        else:
            ctx.run(step)

    job = app.run(order)
    drain(app, raises=False)
    assert job.state == "failed"
    assert "can record at most 5 steps" in (job.record.error_message or "")
    assert (len(shape_of(app, job)), done, db.scalar("SELECT count(*) FROM @jobs")) == (5, [], 0)


@pytest.mark.spec("N106")
def test_a_mutation_whose_result_is_too_much_has_no_effect(
    app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.workflows.run.MAX_RECORDED_BYTES", 1000)

    @app.mutation
    def note(tx: Tx, n: int) -> str:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (str(n),))
        return 600 * "x"

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        ctx.step(note, 1)
        ctx.step(note, 2)

    job = app.run(order)
    drain(app, raises=False)
    assert (job.state, db.notes()) == ("failed", ["1"])
    assert "of results" in (job.record.error_message or "")


@pytest.mark.spec("N106")
@pytest.mark.parametrize("size", [40_000, 3_000_000])
def test_large_results_and_arguments_are_the_same_at_each_wake(app: Duly, size: int):
    seen: list[int] = []

    @app.action
    def large(ctx: Ctx, text: str) -> str:
        return text + "é"

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        text = ctx.step(large, size * "x")
        seen.append(len(text))
        ctx.sleep(DAY)
        return text[-1]

    job = app.run(order)
    advance(app, DAY)
    assert (job.result(), seen) == ("é", [size + 1] * 2)


@pytest.mark.spec("N106")
def test_a_result_of_the_run_that_cannot_be_stored_holds_it(app: Duly):
    @app.workflow
    def order(ctx: WorkflowCtx) -> object:
        return object()

    job = app.run(order)
    drain(app, raises=False)
    assert (job.state, job.record.hold) == ("pending", "error")


@pytest.mark.spec("N106")
def test_wrong_uses_are_refused_with_what_to_write(app: Duly):
    @app.action
    async def slow(ctx: AsyncCtx) -> None: ...

    @app.action
    def ok(ctx: Ctx) -> None: ...

    seen: list[str] = []

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        tries: list[Any] = [
            lambda: ctx.step(slow),
            lambda: ctx.gather(limit=0),
            lambda: ctx.gather(errors="ignore"),  # type: ignore[arg-type]
            lambda: ctx.first(),
            lambda: ctx.approval("?", options=[]),
            lambda: ctx.wait_for(""),
        ]
        for each in tries:
            with pytest.raises((InvalidFunction, InvalidOption)) as caught:
                each()
            seen.append(str(caught.value))
        ctx.step(ok)
        ctx.sleep(DAY)

    job = app.run(order)
    advance(app, DAY)
    assert job.state == "succeeded"
    assert len(seen) == 12
    assert "async def" in seen[0]


@pytest.mark.spec("N109")
def test_redacted_arguments_do_not_appear_in_errors(app: Duly, db: Database):
    @app.mutation
    def inner(tx: Tx, secret: Annotated[str, Redact]) -> None:
        raise ValueError(f"inner {secret}")

    @app.action
    def charge(ctx: Ctx, card: Annotated[str, Redact]) -> None:
        raise ValueError(f"declined {card}")

    @app.action
    def calls(ctx: Ctx) -> None:
        ctx.call(inner, "sesame-2")

    told: list[str] = []

    @app.workflow
    def order(ctx: WorkflowCtx, secret: Annotated[str, Redact]) -> None:
        for step in (charge.bind("sesame-1"), calls.bind()):
            try:
                ctx.gather(step)
            except StepFailed as error:
                told.append(str(error))
        raise KeyError(f"mine: {secret}")

    job = app.run(order, "sesame-3")
    drain(app, raises=False)
    assert job.record.hold == "error"
    shown = (job.record.error_message or "") + (job.record.error_traceback or "")
    errors = [text for (text,) in db.execute("SELECT error FROM @steps WHERE error IS NOT NULL")]
    assert len(errors) == 4
    assert "sesame" not in shown + "".join((*errors, *told))


@pytest.mark.spec("N95")
def test_a_step_has_an_id_and_attempts_of_its_own(app: Duly):
    seen: list[tuple[Any, ...]] = []
    wrapped: list[str] = []

    @app.around
    def around(ctx: Ctx) -> Iterator[None]:
        wrapped.append(ctx.job_id)
        yield

    @app.action
    def charge(ctx: Ctx, n: int) -> None:
        seen.append((ctx.job_id, ctx.workflow_id, ctx.attempt, ctx.function))  # type: ignore[attr-defined]
        assert current(Ctx) is ctx
        assert dict(ctx.arguments) == {"n": n}

    @app.mutation
    def note(tx: Tx) -> None:
        seen.append((tx.job_id, tx.workflow_id, tx.attempt, tx.function))  # type: ignore[attr-defined]
        assert current(Tx) is tx

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        with pytest.raises(NoCurrentJob):
            current(Ctx)
        ctx.step(charge, 1)
        ctx.step(charge, 2)
        ctx.gather(note.bind())
        ctx.sleep(DAY)

    job = app.run(order)
    advance(app, DAY)
    assert job.state == "succeeded"
    assert len({job.id, *(step[0] for step in seen)}) == 4
    assert [step[1:] for step in seen] == [
        (job.id, 1, "charge"), (job.id, 1, "charge"), (job.id, 1, "note")
    ]  # fmt: skip
    assert wrapped == [step[0] for step in seen[:2]]


@pytest.mark.spec("N107")
def test_steps_with_options_of_jobs_are_children_and_end_with_their_run(app: Duly):
    @app.action(queue="far")
    def far(ctx: Ctx) -> int:
        return 7

    @app.mutation
    def starts(tx: Tx) -> None:
        tx.run(far)

    @app.workflow
    def nested(ctx: WorkflowCtx) -> int:
        return ctx.step(far)

    @app.workflow
    def order(ctx: WorkflowCtx) -> list[Any]:
        ctx.step(starts)
        return ctx.gather(far.bind(), nested.bind())

    app.queues.pause("far")
    canceled, job = app.run(order), app.run(order)
    drain(app)
    assert len(app.jobs(function=far)) == 6
    app.cancel(canceled)
    states = [child.state for child in app.jobs(function=far)]
    assert sorted(states) == ["canceled"] * 3 + ["pending"] * 3
    app.queues.resume("far")
    drain(app)
    assert job.result() == [7, 7]


@pytest.mark.spec("N107")
def test_a_child_that_was_canceled_is_a_failed_step(app: Duly):
    @app.action(queue="far")
    def far(ctx: Ctx) -> int:
        return 7

    @app.workflow
    def order(ctx: WorkflowCtx) -> list[str]:
        found: list[str] = []
        for wait in (lambda: ctx.step(far), lambda: ctx.wait(ctx.run(far))):
            try:
                wait()
            except StepFailed as error:
                found.append(f"{error.kind}")
        ctx.sleep(DAY)
        return found

    job = app.run(order)
    app.queues.pause("far")
    for _ in range(2):
        drain(app)
        app.cancel(app.jobs(function=far, state="pending")[0])
    advance(app, DAY)
    assert job.result() == ["canceled", "canceled"]
