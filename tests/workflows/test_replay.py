"""Code that no longer fits a history holds the run, says why, and each build tries it once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from duly import Ctx, Duly, Job, StepFailed, Tx, WorkflowCtx
from duly.testing import advance, drain
from tests.jobs.support import Database, Hire, tidy

pytestmark = pytest.mark.spec("N103")
DAY = timedelta(days=1)
Code = Callable[[WorkflowCtx], object]


class Rejected(Exception):
    """Declared by the workflow."""


class Deployed:
    """A workflow whose code changes between its wakes."""

    def __init__(self, app: Duly, code: Code) -> None:
        self.app, self.code = app, code
        self.done: list[str] = []

        @app.action(name="a")
        def a(ctx: Ctx, n: int = 0) -> str:
            self.done.append(f"a{n}")
            return "A"

        @app.action(name="b")
        def b(ctx: Ctx) -> str:
            self.done.append("b")
            return "B"

        @app.workflow(name="order", raises=(Rejected,))
        def order(ctx: WorkflowCtx) -> object:
            return self.code(ctx)

        self.a, self.b, self.order = a, b, order

    def deploy(self, code: Code, build: str | None = None) -> None:
        self.code = code
        if build is not None:
            object.__setattr__(self.app.core, "_build", None)
            self.app.core.settings = _with_build(self.app, build)


def _result(job: Job[Any]) -> Any:
    assert job.state == "succeeded", job.record.error_message
    return job.result()


def _with_build(app: Duly, build: str) -> Any:
    import msgspec

    return msgspec.structs.replace(app.core.settings, build=build)


def _old(it: Deployed) -> Code:
    def code(ctx: WorkflowCtx) -> str:
        ctx.step(it.a, 1)
        ctx.step(it.b)
        ctx.sleep(DAY)
        return "old"

    return code


def _changes(it: Deployed) -> dict[str, tuple[Code, str]]:
    def inserted(ctx: WorkflowCtx) -> None:
        ctx.step(it.a, 1)
        ctx.step(it.a, 2)
        ctx.step(it.b)
        ctx.sleep(DAY)

    def removed(ctx: WorkflowCtx) -> None:
        ctx.step(it.b)
        ctx.sleep(DAY)

    def reordered(ctx: WorkflowCtx) -> None:
        ctx.step(it.b)
        ctx.step(it.a, 1)
        ctx.sleep(DAY)

    def other_kind(ctx: WorkflowCtx) -> None:
        ctx.step(it.a, 1)
        ctx.run(it.b)
        ctx.sleep(DAY)

    def ends_early(ctx: WorkflowCtx) -> None:
        ctx.step(it.a, 1)

    def fails_early(ctx: WorkflowCtx) -> None:
        ctx.step(it.a, 1)
        raise Rejected

    def without_record(ctx: WorkflowCtx) -> None:
        ctx.step(it.a, 1)
        ctx.uuid()
        ctx.step(it.b)

    def waits(ctx: WorkflowCtx) -> None:
        ctx.step(it.a, 1)
        ctx.step(it.b)
        ctx.wait_for("sleep")

    return {
        "inserted": (inserted, "operation 2 the history has action b, but the code has action a"),
        "removed": (removed, "operation 1 the history has action a, but the code has action b"),
        "reordered": (reordered, "operation 1 the history has action a, but the code has action b"),
        "other_kind": (other_kind, "the history has action b, but the code has enqueue b"),
        "ends_early": (
            ends_early,
            "operation 2 the history has action b, but the code has the end",
        ),
        "fails_early": (fails_early, "operation 2 the history has action b, but the code has the"),
        "without_record": (without_record, "operation 3 the history has sleep sleep, but the code"),
        "waits": (waits, "operation 3 the history has sleep sleep, but the code has event sleep"),
    }


@pytest.mark.parametrize("change", _changes(None))  # type: ignore[arg-type]
def test_a_change_that_does_not_fit_holds_the_run_and_does_nothing(app: Duly, change: str):
    it = Deployed(app, lambda ctx: None)
    it.deploy(_old(it))
    job = app.run(it.order)
    drain(app)
    assert it.done == ["a1", "b"]
    code, message = _changes(it)[change]
    it.deploy(code, "new")
    advance(app, DAY, raises=False)
    assert (job.state, job.record.hold) == ("pending", "history")
    assert message in (job.record.error_message or "")
    assert it.done == ["a1", "b"]
    # The old code goes on with it.
    it.deploy(_old(it), "old again")
    advance(app, 10)
    assert (_result(job), it.done) == ("old", ["a1", "b"])
    assert job.record.error_message is None


def test_each_build_tries_a_held_run_once(app: Duly, db: Database, hire: Hire):
    tries: list[str] = []
    it = Deployed(app, lambda ctx: None)

    def wrong(ctx: WorkflowCtx) -> None:
        ctx.step(it.a, 1)
        tries.append(app.core.build)
        raise KeyError("oops")

    it.deploy(wrong, "1")
    job = app.run(it.order)
    advance(app, 100, raises=False)
    assert (tries, job.record.hold) == (["1"], "error")
    # Also if its name contains that of another one.
    for build in ("11", "1", "11", "2", "1", "2", "11"):
        it.deploy(wrong, build)
        advance(app, 10, raises=False)
    assert tries == ["1", "11", "2"]
    assert job.record.hold == "error"
    assert "KeyError: 'oops'" in (job.record.error_message or "")
    assert "in wrong" in (job.record.error_traceback or "")
    # An operator lets any build try again.
    app.core.ready().resume_run(job.id)
    advance(app, 10, raises=False)
    assert tries == ["1", "11", "2", "11"]
    it.deploy(lambda ctx: ctx.step(it.a, 1), "3")
    advance(app, 10)
    assert (_result(job), it.done) == ("A", ["a1"])


def test_a_held_run_is_not_tried_again_by_the_same_code_for_an_event(app: Duly):
    tries: list[int] = []
    it = Deployed(app, lambda ctx: None)

    def wrong(ctx: WorkflowCtx) -> None:
        tries.append(1)
        raise KeyError("oops")

    it.deploy(wrong, "1")
    job = app.run(it.order)
    drain(app, raises=False)
    app.send(job, "x", 5)
    advance(app, 100, raises=False)
    assert (tries, job.record.hold) == ([1], "error")
    it.deploy(lambda ctx: ctx.wait_for("x"), "2")
    advance(app, 10)
    assert _result(job) == 5


def test_a_held_run_can_be_canceled(app: Duly):
    it = Deployed(app, lambda ctx: dict[str, int]()["x"])
    job = app.run(it.order)
    drain(app, raises=False)
    assert app.cancel(job)
    assert job.state == "canceled"


@pytest.mark.parametrize("raises", [SystemExit, GeneratorExit, RecursionError, MemoryError])
def test_any_other_exception_holds_the_run(app: Duly, raises: type[BaseException]):
    def wrong(ctx: WorkflowCtx) -> None:
        raise raises

    it = Deployed(app, wrong)
    job = app.run(it.order)
    drain(app, raises=False)
    assert (job.state, job.record.hold) == ("pending", "error")


def test_an_exception_that_cannot_be_shown_holds_the_run(app: Duly):
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    def wrong(ctx: WorkflowCtx) -> None:
        raise Odd

    it = Deployed(app, wrong)
    job = app.run(it.order)
    drain(app, raises=False)
    assert (job.state, job.record.hold) == ("pending", "error")


def test_declared_exceptions_and_failed_steps_fail_the_run(app: Duly):
    def rejected(ctx: WorkflowCtx) -> None:
        raise Rejected("no")

    it = Deployed(app, rejected)
    job = app.run(it.order)
    drain(app, raises=False)
    assert (job.state, job.record.error_kind) == ("failed", "user")
    assert job.record.error_message == "Rejected: no"

    class WithKind(Rejected):
        kind: ClassVar = ["unhashable"]

    def with_kind(ctx: WorkflowCtx) -> None:
        raise WithKind

    it.deploy(with_kind)
    job = app.run(it.order)
    drain(app, raises=False)
    assert (job.state, job.record.error_kind) == ("failed", "user")


def test_a_failed_step_is_the_same_live_and_on_replay(app: Duly):
    seen: list[object] = []

    class CardDeclined(Exception):
        pass

    @app.action
    def charge(ctx: Ctx) -> None:
        raise CardDeclined("no money")

    @app.mutation
    def note(tx: Tx) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('x')")
        raise CardDeclined("no money")

    @app.action
    def unstorable(ctx: Ctx) -> object:
        return object()

    @app.action
    def exits(ctx: Ctx) -> None:
        raise SystemExit(3)

    @app.action
    def odd(ctx: Ctx) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise ValueError

        raise Odd

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        for step in (charge, note, unstorable, exits, odd):
            try:
                ctx.step(step)
            except StepFailed as error:
                cause = error.__cause__ or (
                    None if error.__suppress_context__ else error.__context__
                )
                seen.append(
                    (error.name, error.kind, error.message, str(error), cause,
                     error.was(CardDeclined))
                )  # fmt: skip
        ctx.sleep(DAY)
        return "done"

    job = app.run(order)
    drain(app)
    first, seen[:] = list(seen), []
    advance(app, DAY)
    assert _result(job) == "done"
    assert seen == first
    assert [s[1] for s in first] == ["user", "user", "unstorable_result", "user", "user"]  # type: ignore[index]
    assert first[0] == (
        "charge", "user", "CardDeclined: no money",
        "step charge failed: CardDeclined: no money", None, True,
    )  # fmt: skip


def test_names_with_numbers_are_different_names(app: Duly):
    name = "n#1"

    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        ctx.wait_for(name)
        ctx.sleep(DAY)

    job = app.run(order)
    app.send(job, "n#1")
    drain(app)
    name = "n#2"
    advance(app, DAY, raises=False)
    assert job.record.hold == "history"


def test_values_are_the_same_at_each_wake(app: Duly):
    seen: list[tuple[Any, ...]] = []

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        values = (ctx.now(), ctx.uuid(), ctx.uuid(), ctx.random().random(), ctx.now())
        seen.append(values)
        ctx.sleep(DAY)
        seen[-1] += (ctx.uuid(),)
        ctx.sleep(DAY)
        return "done"

    job: Any = app.run(order)
    advance(app, DAY * 2)
    assert _result(job) == "done"
    assert len(seen) == 3
    assert seen[0] == seen[1][:5] == seen[2][:5]
    assert seen[1] == seen[2]
    assert len({str(v) for v in seen[2] if hasattr(v, "hex") and not isinstance(v, float)}) == 3


def test_a_clock_that_goes_back_wakes_nobody_twice(app: Duly):
    done: list[int] = []

    @app.action
    def a(ctx: Ctx) -> None:
        done.append(1)

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        ctx.sleep(100)
        ctx.step(a)
        ctx.sleep(100)
        return "done"

    job = app.run(order)
    advance(app, 100)
    clock: Any = app.core.clock
    clock.jump(-90)
    tidy(app)
    advance(app, 300)
    assert (_result(job), done) == ("done", [1])
