"""Hooks: functions that are told when attempts start, succeed, fail or are retried."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from types import FunctionType
from typing import Annotated, Any

import pytest

from duly import Action, AsyncCtx, AsyncTx, AttemptInfo, Ctx, Duly, Group, Redact, Retry, State, Tx
from duly.clock import from_ms
from duly.errors import Canceled, InvalidFunction
from duly.runtime import hooks as hooks_module
from duly.runtime.heartbeat import rescue
from duly.runtime.janitor import TIMEOUT_GRACE, Janitor
from duly.testing import advance, drain
from tests.jobs.support import (
    PATIENCE,
    Gate,
    Hire,
    on_sqlite,
    rescue_the_dead,
)

ALL = ("on_start", "on_success", "on_failure", "on_retry")
AGAIN = Retry(attempts=2, delay=60, jitter=0)


class Told:
    """What the hooks of an app were told."""

    def __init__(self, app: Duly) -> None:
        self.app = app
        self.infos: list[AttemptInfo] = []
        self.states: list[State] = []
        for name in ALL:
            getattr(app, name)(self.hear)

    def hear(self, info: AttemptInfo) -> None:
        # As another program would see it: the outcome is durable.
        self.states.append(self.app.job(info.job_id).state)
        self.infos.append(info)

    def take(self) -> list[tuple[str, int, str]]:
        self.app.core.hook_calls.wait(PATIENCE)
        taken = [(info.function, info.attempt, str(info.state)) for info in self.infos]
        self.infos.clear()
        self.states.clear()
        return taken


@pytest.fixture
def told(app: Duly) -> Told:
    return Told(app)


def three_kinds(app: Duly) -> list[Any]:
    """Mutations and actions, sync and async, that fail when told."""

    @app.mutation(retry=AGAIN)
    def mutate(tx: Tx, fails: int) -> None:
        tx.execute("INSERT INTO notes VALUES ('written')")
        fail(tx.attempt, fails)

    @app.mutation(retry=AGAIN)
    async def mutate_async(tx: AsyncTx, fails: int) -> None:
        await tx.execute("INSERT INTO notes VALUES ('written')")
        fail(tx.attempt, fails)

    @app.action(retry=AGAIN)
    def act(ctx: Ctx, fails: int) -> None:
        fail(ctx.attempt, fails)

    @app.action(retry=AGAIN)
    async def fetch(ctx: AsyncCtx, fails: int) -> None:
        await asyncio.sleep(0)
        fail(ctx.attempt, fails)

    return [mutate, mutate_async, act, fetch]


def fail(attempt: int, fails: int) -> None:
    if attempt <= fails:
        raise ValueError(f"failure {attempt}")


@pytest.mark.spec("N64")
@pytest.mark.parametrize("fails", [0, 1, 2])
def test_hooks_are_told_of_every_attempt_and_its_outcome(
    app: Duly, hire: Hire, told: Told, fails: int
):
    last = "failed" if fails == 2 else "succeeded"
    for function in three_kinds(app):
        name = function.name
        first = [(name, 1, "running"), (name, 1, "pending" if fails else last)]
        second = [(name, 2, "running"), (name, 2, last)] if fails else []

        job = app.run(function, fails)
        worker = hire()
        worker.work()
        app.core.hook_calls.wait(PATIENCE)
        ended = told.infos[-1]
        assert (ended.job_id, ended.queue) == (job.id, "default")
        assert ended.duration == 0, "the clock stands still"
        if fails:
            assert ended.error
            assert (ended.error.kind, ended.error.message) == ("user", "ValueError: failure 1")
            assert "Traceback" in (ended.error.traceback or "")
            assert ended.next_attempt_at == from_ms(app.clock.now()) + timedelta(minutes=1)
        else:
            assert (ended.error, ended.next_attempt_at) == (None, None)
        assert told.take() == first
        app.clock.advance(60)  # type: ignore[attr-defined]  # pyright: ignore
        worker.work()
        assert told.take() == second
        worker.stop()

        app.run(function, fails)
        drain(app)
        assert told.take() == first
        advance(app, 60, raises=False)
        assert told.take() == second


@pytest.mark.spec("N64")
def test_an_outcome_is_durable_before_its_hook_is_called(app: Duly, hire: Hire, told: Told):
    kinds = three_kinds(app)
    worker = hire()
    for fails in (0, 1):
        app.run_many([function.bind(fails) for function in kinds])
        worker.work()
    app.core.hook_calls.wait(PATIENCE)
    ended = [
        (info.state, state)
        for info, state in zip(told.infos, told.states, strict=True)
        if info.state != State.RUNNING
    ]
    assert len(ended) == 8
    assert all(was_told == stored for was_told, stored in ended)


@pytest.mark.spec("N64")
def test_an_outcome_that_the_fence_refuses_is_not_told(app: Duly, hire: Hire, told: Told):
    gate = Gate()

    @app.action(retry=AGAIN)
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    @app.action(retry=AGAIN)
    def stop(ctx: Ctx) -> None:
        gate.pass_through()
        raise Canceled

    @app.mutation
    def mutate(tx: Tx) -> None:
        gate.pass_through()

    for function in (act, stop, mutate):
        # As it is taken away from a worker that does not know it yet.
        gate = Gate()
        worker = hire(threads=1)
        job = app.run(function)
        worker.start_due()
        gate.wait_for_one()
        if function is mutate and app.store.address().dialect == "sqlite":
            gate.open()  # on SQLite nobody else can write meanwhile
            continue
        app.cancel(job)
        gate.open()
        worker.work()
        assert job.state == State.CANCELED
        assert told.take() == [(function.name, 1, "running")]


@pytest.mark.spec("N64")
def test_a_time_out_is_told_whoever_notices_it(app: Duly, hire: Hire, told: Told):
    gate = Gate()

    @app.action(timeout=5)
    def wait(ctx: Ctx) -> None:
        gate.pass_through()

    worker = hire()
    app.run(wait)
    worker.start_due()
    gate.wait_for_one()
    app.clock.advance(6)  # type: ignore[attr-defined]  # pyright: ignore
    worker.watch()
    worker.settle()
    assert told.take() == [("wait", 1, "running"), ("wait", 1, "failed")]
    gate.open()
    worker.work()

    # A janitor, when the worker does not.
    gate = Gate()
    app.run(wait)
    worker.start_due()
    gate.wait_for_one()
    janitor = Janitor(app.ready(), app.clock, hooks=app.core.hook_calls)
    for _ in range(2):
        app.clock.advance(6 + TIMEOUT_GRACE)  # type: ignore[attr-defined]  # pyright: ignore
        janitor.one_pass()
    app.core.hook_calls.wait(PATIENCE)
    assert told.infos[-1].error
    assert told.infos[-1].error.message == "wait ran longer than 5 s"
    assert told.take() == [("wait", 1, "running"), ("wait", 1, "failed")]
    gate.open()
    worker.work()
    assert told.take() == [], "the fence has refused its late outcome"


@pytest.mark.spec("N64")
def test_the_worker_that_rescues_a_job_tells_its_hooks(app: Duly, hire: Hire, told: Told):
    @app.action
    def once(ctx: Ctx) -> None: ...

    @app.action(retry=AGAIN, queue="mail")
    def twice(ctx: Ctx) -> None: ...

    @app.mutation
    def mutate(tx: Tx) -> None: ...

    dead, alive = hire(), hire()
    app.run_many([once.bind(), twice.bind(), mutate.bind()])
    dead.claim_only()
    dead.die()
    rescue_the_dead(alive)
    app.core.hook_calls.wait(PATIENCE)
    errors = {info.function: info.error for info in told.infos}
    assert errors["once"]
    assert errors["once"].kind == "worker_lost"
    assert {info.queue for info in told.infos} == {"default", "mail"}
    expected = [("mutate", 1, "pending"), ("once", 1, "failed"), ("twice", 1, "pending")]
    assert sorted(told.take()) == expected
    rescue(app.store, app.clock, dead.id, None, app.core.hook_calls)
    assert told.take() == [], "it was rescued already"


@pytest.mark.spec("N64")
def test_a_job_that_is_interrupted_is_told_but_not_one_that_is_given_back(
    app: Duly, hire: Hire, told: Told
):
    gate = Gate()

    @app.action(retry=AGAIN)
    def wait(ctx: Ctx) -> None:
        gate.pass_through()

    worker = hire()
    app.run(wait)
    worker.start_due()
    gate.wait_for_one()
    worker.worker.stop(0)
    gate.open()
    assert told.take() == [("wait", 1, "running"), ("wait", 1, "pending")]

    def define(kind: type) -> Action[[Any], None]:
        @app.action(queue="other")
        def act(ctx: Ctx, n: kind) -> None: ...  # type: ignore[valid-type]  # pyright: ignore

        return act

    job = app.run(define(int), 1)
    define(list)
    hire(queues=["other"]).work()
    assert job.record.hold == "signature"
    assert told.take() == []


@pytest.mark.spec("N64")
def test_a_mutation_that_runs_again_in_its_attempt_is_told_once(app: Duly, hire: Hire, told: Told):
    runs: list[bool] = []

    @app.mutation(group=True)
    def mutate(tx: Tx, alone: bool) -> None:
        runs.append(alone)
        if alone:
            _ = tx.connection  # refused in a shared transaction: this one runs again, alone

    app.run_many([mutate.bind(False), mutate.bind(True)])
    hire().work()
    assert runs.count(True) == 2
    assert sorted(told.take()) == 2 * [("mutate", 1, "running")] + 2 * [("mutate", 1, "succeeded")]


@pytest.mark.spec("N64")
def test_a_hook_that_fails_changes_nothing(
    app: Duly, hire: Hire, told: Told, caplog: pytest.LogCaptureFixture
):
    def broken(info: AttemptInfo) -> None:
        raise SystemExit(f"no {info.state}")

    for name in ALL:
        getattr(app, name)(broken)
    heard: list[AttemptInfo] = []
    app.on_success(heard.append)

    @app.action
    def act(ctx: Ctx) -> str:
        return "done"

    for start in (hire().work, lambda: drain(app)):
        job = app.run(act)
        start()
        assert job.result(0) == "done"
        assert told.take() == [("act", 1, "running"), ("act", 1, "succeeded")]
        assert [info.job_id for info in heard] == [job.id]
        heard.clear()
    assert caplog.text.count("no succeeded") == 2
    assert "a hook failed, which changes nothing about job" in caplog.text


@pytest.mark.spec("N64")
def test_a_slow_hook_holds_up_no_job_and_calls_that_do_not_fit_are_dropped(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(hooks_module, "MAX_WAITING", 5)
    gate = Gate()
    heard: list[AttemptInfo] = []

    @app.on_success
    def slow(info: AttemptInfo) -> None:
        gate.pass_through()
        heard.append(info)

    @app.action
    def act(ctx: Ctx) -> None: ...

    worker = hire()
    first = app.run(act)
    worker.work()
    gate.wait_for_one()
    jobs = app.run_many(act.bind() for _ in range(20))
    with caplog.at_level(logging.WARNING):
        worker.work()
    assert {job.state for job in (first, *jobs)} == {State.SUCCEEDED}
    assert "hooks are slower than jobs: 1 calls of hooks dropped so far" in caplog.text
    assert app.core.hook_calls._dropped == 15
    app.core.hook_calls.wait(0)
    assert "the hooks did not end within 0 s; calls that wait: 5" in caplog.text
    gate.open()
    app.core.hook_calls.wait(PATIENCE)
    assert len(heard) == 6


@pytest.mark.spec("N64")
def test_without_a_hook_for_it_nothing_is_queued_and_no_thread_started(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    group = Group("other")
    group.on_failure(lambda info: None)
    app.include(group)

    @app.action
    def act(ctx: Ctx) -> None: ...

    worker = hire()
    app.run(act)
    for work in ("started", "settled", "_put"):
        monkeypatch.setattr(hooks_module.HookCalls, work, lambda *_: pytest.fail("some work"))
    worker.work()
    assert app.core.hook_calls._thread is None


@pytest.mark.spec("N64")
def test_redacted_arguments_do_not_appear(app: Duly, hire: Hire, told: Told):
    @app.action(retry=AGAIN)
    def pay(ctx: Ctx, card: Annotated[str, Redact]) -> None:
        raise ValueError(f"the card {card} was refused")

    for start in (hire().work, lambda: drain(app)):
        app.run(pay, "4242-4242")
        start()
        app.core.hook_calls.wait(PATIENCE)
        assert told.infos[-1].error
        assert told.infos[-1].error.message == "ValueError: the card *** was refused"
        assert "4242" not in repr(told.infos)
        told.take()


@pytest.mark.spec("N64")
def test_hooks_of_a_group_are_told_of_its_functions_only(app: Duly, hire: Hire):
    group = Group("shop")
    heard: list[str] = []
    app.include(group)

    @group.action
    def send(ctx: Ctx) -> None: ...

    @app.action
    def act(ctx: Ctx) -> None: ...

    worker = hire()

    @group.on_success
    def of_group(info: AttemptInfo) -> None:
        heard.append(f"group {info.function}")

    @app.on_success
    def of_app(info: AttemptInfo) -> None:
        heard.append(f"app {info.function}")

    app.run(act)
    worker.work()
    app.run(send)
    worker.work()
    app.core.hook_calls.wait(PATIENCE)
    assert heard == ["app act", "app shop.send", "group shop.send"]


@pytest.mark.spec("N64")
def test_a_hook_of_a_cell_that_runs_again_replaces_the_old_one(app: Duly):
    heard: list[int] = []

    def define(version: int) -> None:
        def cell(info: AttemptInfo) -> None:
            heard.append(version)

        assert isinstance(cell, FunctionType)
        cell.__qualname__ = "cell"
        app.on_success(cell)
        app.on_success(lambda info: heard.append(10 * version))

    @app.action
    def act(ctx: Ctx) -> None: ...

    define(1)
    define(2)
    app.run(act)
    drain(app)
    assert heard == [2, 10, 20]


@pytest.mark.spec("N64")
def test_what_cannot_be_a_hook_is_refused(app: Duly):
    async def asynchronous(info: AttemptInfo) -> None: ...

    def generator(info: AttemptInfo) -> Iterator[None]:
        yield

    def without() -> None: ...

    def with_two(a: object, b: object) -> None: ...

    @app.action
    def act(ctx: Ctx) -> None: ...

    wrong: dict[Any, str] = {
        asynchronous: "use asyncio.run inside it",
        generator: "use @app.around",
        without: "is called with one argument, an AttemptInfo",
        with_two: "is called with one argument, an AttemptInfo",
        act: "use on_complete=",
        "text": "takes a function, not 'text'",
    }
    for hook, reason in wrong.items():
        for name in ALL:
            with pytest.raises(InvalidFunction, match=reason):
                getattr(app, name)(hook)
    assert not app.core.functions.hooks


@on_sqlite
def test_a_hook_may_enqueue_jobs_and_stop_the_app(app: Duly):
    ended = threading.Event()

    @app.action
    def report(ctx: Ctx, job_id: str) -> None: ...

    @app.action
    def act(ctx: Ctx) -> None: ...

    @app.on_success
    def after(info: AttemptInfo) -> None:
        if info.function == "act":
            app.run(report, info.job_id)
        else:
            app.stop()
            ended.set()

    app.start()
    app.run(act)
    assert ended.wait(PATIENCE)
    assert [job.function for job in app.jobs(state="succeeded")] == ["report", "act"]
