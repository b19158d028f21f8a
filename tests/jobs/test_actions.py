"""Actions: what is guaranteed to a function with side effects."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, ErrorKind, ManualClock, Retry, State, Tx, fault
from duly.errors import Canceled, StoreUnavailable
from duly.model.retry import system_delay
from duly.runtime.alone import AloneRuns
from duly.runtime.heartbeat import rescue
from tests.jobs.support import Database, Gate, Hire, lose_patience, rescue_the_dead, state_of


@pytest.fixture
def note(app: Duly) -> Any:
    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))

    return note


@pytest.mark.spec("R63")
def test_what_an_action_has_scheduled_runs_though_it_fails(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.action
    def act(ctx: Ctx) -> None:
        ctx.run(note, "sync")
        ctx.run_many([note.bind("bulk")])
        raise ValueError("after scheduling")

    @app.action
    async def act_async(ctx: AsyncCtx) -> None:
        await ctx.run(note, "async")
        raise ValueError("after scheduling")

    jobs = [app.run(act), app.run(act_async)]
    hire().work()

    assert [job.state for job in jobs] == [State.FAILED, State.FAILED]
    assert db.notes() == ["async", "bulk", "sync"]
    assert [len(job.children()) for job in jobs] == [2, 1]


def test_an_async_action_that_exits_in_a_task_of_its_own_ends_no_other(
    app: Duly, hire: Hire, caplog: pytest.LogCaptureFixture
):
    """asyncio lets SystemExit out of the event loop itself."""
    going_on = asyncio.Event()

    @app.action
    async def leave(ctx: AsyncCtx) -> None:
        async def sub() -> None:
            raise SystemExit(1)

        await asyncio.gather(sub())

    @app.action
    async def wait(ctx: AsyncCtx) -> str:
        await going_on.wait()
        return "went on"

    @app.action
    async def go_on(ctx: AsyncCtx) -> None:
        going_on.set()

    worker = hire()
    waiting, leaving = app.run(wait), app.run(leave)
    worker.start_due()
    worker.wait_for(leaving)
    app.run(go_on)
    worker.start_due()
    worker.work()

    assert leaving.state == State.FAILED
    assert waiting.result(0) == "went on"
    assert "the event loop of async actions continues" in caplog.text


@pytest.mark.parametrize("which", ["both", "mutation"])
def test_what_no_thread_can_be_started_for_is_given_back_and_comes_again(
    app: Duly, note: Any, clock: ManualClock, hire: Hire, which: str, monkeypatch: Any
):
    @app.action
    async def act(ctx: AsyncCtx) -> str:
        return "acted"

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(("duly-async", "duly-mutation")):
            raise RuntimeError("can't start new thread")
        start(thread)

    jobs = [app.run(note, "noted")] + ([app.run(act)] if which == "both" else [])
    worker = hire()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            worker.start_due()
    worker.settle()
    for job in jobs:
        assert (job.state, job.attempt, job.record.system_retries) == (State.PENDING, 0, 1)
        assert job.record.error_message == "could not be started: can't start new thread"
    assert worker.worker._busy == 0

    clock.advance(1)
    worker.work()
    assert {job.state for job in jobs} == {State.SUCCEEDED}


@pytest.mark.spec("R64")
def test_the_job_of_an_action_can_end_before_the_action(
    app: Duly, db: Database, note: Any, hire: Hire
):
    gate = Gate()

    @app.action
    def act(ctx: Ctx) -> str:
        child = ctx.run(note, "child")
        gate.pass_through()
        return child.state

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    worker.start_due()
    (child,) = job.children()
    child.result(timeout=60)
    assert state_of(job) == State.RUNNING
    assert db.notes() == ["child"]
    gate.open()
    worker.work()

    assert job.result(0) == "succeeded"


@pytest.mark.spec("R80")
def test_running_is_committed_before_the_code_starts(app: Duly, db: Database, hire: Hire):
    seen: list[tuple[str, int, Any]] = []

    def look() -> None:
        seen.extend(db.execute("SELECT state, token % 2, worker_id FROM @jobs"))

    @app.action
    def act(ctx: Ctx) -> None:
        look()

    app.run(act)
    worker = hire()
    with fault.inject(lambda point: look() if point == "action.starting" else None):
        worker.work()

    assert [(state, odd, str(by)) for state, odd, by in seen] == [("running", 1, worker.id)] * 2


@pytest.mark.spec("R81", "N18")
def test_the_action_of_a_dead_worker_fails_and_never_runs_again(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()
    bodies: list[str] = []

    @app.action
    def act(ctx: Ctx) -> str:
        bodies.append(ctx.job_id)
        gate.pass_through()
        return "too late"

    job = app.run(act)
    dead = hire()
    dead.start_due()
    gate.wait_for_one()
    dead.die()
    living = hire()
    rescue_the_dead(living)
    gate.open()
    clock.advance(3600)
    living.work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.kind == ErrorKind.WORKER_LOST
    assert bodies == [job.id]
    assert [worker.id for worker in app.workers()] == [living.id]


@pytest.mark.spec("R81", "R89")
def test_the_late_end_of_an_attempt_that_was_given_up_changes_nothing(app: Duly, hire: Hire):
    """Its worker was taken for dead, and another one runs the job again."""
    gates = {1: Gate(), 2: Gate()}

    @app.action(retry=Retry(attempts=5, delay=0, jitter=0))
    def act(ctx: Ctx) -> str:
        gates[ctx.attempt].pass_through()
        return f"attempt {ctx.attempt}"

    job = app.run(act)
    silent, living = hire(), hire()
    silent.start_due()
    gates[1].wait_for_one()
    silent.fall_silent()
    rescue_the_dead(living)
    living.start_due()
    gates[2].wait_for_one()

    gates[1].open()
    silent.wait_for_bodies()
    silent.settle()
    assert (state_of(job), job.attempt) == (State.RUNNING, 2)
    gates[2].open()
    living.work()

    assert job.result(0) == "attempt 2"


def test_a_job_that_must_run_alone_is_left_to_apps_that_know_it_and_serve_its_queue(
    app: Duly, url: str, db: Database, clock: ManualClock, hire: Hire
):
    @app.action
    def act(ctx: Ctx) -> str:
        return "done"

    job = app.run(act)
    db.execute("UPDATE @jobs SET hold = 'alone', crashes = 2")
    stranger = Duly(url, name="stranger", clock=clock)

    @stranger.action
    def other(ctx: Ctx) -> None: ...

    wanted: list[str] = []

    class Runs(AloneRuns):
        def start(self, job_id: str) -> None:
            wanted.append(job_id)

    for of, queues in ((stranger, None), (app, ["another"])):
        service = of.service(concurrency=1, queues=queues)
        service.worker.register()
        service.janitor._alone_runs = Runs(of.core, None)
        service.janitor.one_pass()
        service.worker.store.deregister(service.worker.id, 0)
    assert wanted == []
    hire(stranger, alone=job.id).worker.claim_alone(job.id)
    assert (job.state, job.record.crashes) == (State.PENDING, 2)

    alone = hire(alone=job.id)
    alone.worker.claim_alone(job.id)
    alone.work()
    assert job.result(0) == "done"
    stranger.close()


@pytest.mark.spec("N18")
def test_only_crashes_that_a_living_worker_witnessed_convict_a_job(
    app: Duly, clock: ManualClock, hire: Hire
):
    @app.mutation
    def poison(tx: Tx) -> None: ...

    job = app.run(poison)
    living = hire(queues=["another"])
    for crashes in (1, 2):
        victim = hire()
        victim.claim_only()
        victim.die()
        rescue_the_dead(living)
        assert (job.state, job.record.crashes) == (State.PENDING, crashes)
    assert job.record.hold == "alone"
    hire().work()
    assert state_of(job) == State.PENDING

    def die_alone(*, witnessed: bool) -> None:
        alone = hire(alone=job.id)
        clock.advance(max(0.0, (job.record.run_at - clock.now()) / 1000))
        assert app.store.claim_alone(job.id, alone.id, [job.function], clock.now()) is not None
        alone.die()
        if witnessed:
            rescue(app.store, clock, alone.id, None, witnessed=True)
        else:
            rescue_the_dead(living)

    for deaths in range(1, 9):
        die_alone(witnessed=False)
        assert (job.state, job.record.hold, job.record.crashes) == (State.PENDING, "alone", 2)
        assert job.record.system_retries == deaths
    # It may be the job that takes down everything around it: so it comes less and less often.
    assert job.record.run_at <= clock.now() + system_delay(deaths - 1, 1.0) * 1000
    assert "died, together with the worker that started it" in str(app.why(job))
    die_alone(witnessed=True)
    assert (job.state, job.record.hold, job.record.crashes) == (State.PENDING, "alone", 3)
    die_alone(witnessed=True)

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.kind == ErrorKind.CRASH_LOOP
    assert job.error.message == "its process died 4 times, at last while it ran only this job"


# Storing the end


def _make_history_unwritable(db: Database) -> Callable[[], None]:
    """Let the store fail to take any end of a job, in a way that may pass; how to undo that."""
    other = db.connect()
    if db.is_sqlite:
        other.execute("BEGIN IMMEDIATE")
        return lambda: other.execute("ROLLBACK")
    other.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'away' USING ERRCODE = '08006'; END $$"
    )
    other.execute(
        "CREATE TRIGGER fail BEFORE INSERT ON duly.history FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    return lambda: other.execute("DROP TRIGGER fail ON duly.history")


@pytest.mark.spec("R82")
def test_a_result_that_cannot_be_written_now_is_written_later(
    app: Duly, db: Database, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    lose_patience(app, monkeypatch)
    bodies: list[int] = []

    @app.action
    def act(ctx: Ctx) -> str:
        bodies.append(ctx.attempt)
        return "kept"

    job = app.run(act)
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    restore = _make_history_unwritable(db)
    for _ in range(3):
        worker.settle()
        assert state_of(job) == State.RUNNING
        assert not worker.worker.idle
    restore()
    worker.work()

    assert job.result(0) == "kept"
    assert bodies == [1]


@pytest.mark.spec("R82")
def test_a_result_that_waits_to_be_written_is_dropped_when_the_job_was_canceled(
    app: Duly, db: Database, hire: Hire
):
    away = True

    @app.action
    def act(ctx: Ctx) -> str:
        return "dropped"

    def fail(point: str) -> None:
        if point == "finish.moving" and away:
            raise StoreUnavailable("away")

    job = app.run(act)
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    with fault.inject(fail):
        worker.settle()
        assert state_of(job) == State.RUNNING
        assert job.cancel() is True
        away = False
        worker.work()

    assert job.state == State.CANCELED
    assert job.record.result is None
    assert worker.worker.idle


# Retries


@pytest.mark.parametrize("is_async", [False, True])
def test_an_action_with_retries_is_repeated_until_it_succeeds(
    app: Duly, clock: ManualClock, hire: Hire, is_async: bool
):
    @app.action(name="sync", retry=Retry(attempts=3))
    def act(ctx: Ctx) -> int:
        if ctx.attempt < 3:
            raise ConnectionError
        return ctx.attempt

    @app.action(name="async", retry=Retry(attempts=3))
    async def act_async(ctx: AsyncCtx) -> int:
        await asyncio.sleep(0)
        if ctx.attempt < 3:
            raise ConnectionError
        return ctx.attempt

    job = app.run(act_async) if is_async else app.run(act)
    worker = hire()
    for _ in range(3):
        worker.work()
        clock.advance(60)

    assert job.result(0) == 3


def test_an_action_without_retries_runs_at_most_once(app: Duly, clock: ManualClock, hire: Hire):
    bodies: list[int] = []

    @app.action
    def act(ctx: Ctx) -> None:
        bodies.append(ctx.attempt)
        raise ConnectionError

    job = app.run(act)
    worker = hire()
    for _ in range(3):
        worker.work()
        clock.advance(86_400)

    assert job.state == State.FAILED
    assert bodies == [1]


@pytest.mark.spec("N18")
@pytest.mark.parametrize("is_async", [False, True])
def test_an_action_that_takes_too_long_times_out(
    app: Duly, clock: ManualClock, hire: Hire, is_async: bool
):
    gate = Gate()
    told: list[bool] = []

    @app.action(name="sync", timeout=5)
    def act(ctx: Ctx) -> str:
        gate.pass_through()
        told.append(ctx.canceled)
        with pytest.raises(Canceled):
            ctx.check()
        return "too late"

    @app.action(name="async", timeout=5)
    async def act_async(ctx: AsyncCtx) -> str:
        try:
            await asyncio.to_thread(gate.pass_through)
        except asyncio.CancelledError:
            told.append(ctx.canceled)
            raise
        return "too late"

    job = app.run(act_async) if is_async else app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    clock.advance(4.9)
    worker.watch()
    worker.settle()
    assert state_of(job) == State.RUNNING
    clock.advance(0.1)
    worker.watch()
    worker.settle()
    # Failed at once; the body is told, and its end no longer matters.
    assert job.error is not None
    assert job.error.kind == ErrorKind.TIMEOUT
    assert job.error.message == f"{job.function} ran longer than 5 s"
    gate.open()
    worker.work()

    assert told == [True]
    assert job.state == State.FAILED
    assert job.record.result is None


# Calling a mutation now


def test_call_runs_a_mutation_at_once_and_returns_what_it_returns(
    app: Duly, db: Database, hire: Hire
):
    seen: list[Any] = []

    @app.mutation
    def insert(tx: Tx, texts: tuple[str, ...]) -> int:
        for text in texts:
            tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return len(texts)

    @app.action
    def act(ctx: Ctx) -> None:
        seen.append(ctx.call(insert, ("a", "b")))
        seen.append(db.notes())

    @app.action
    async def act_async(ctx: AsyncCtx) -> None:
        seen.append(await ctx.call(insert, ("c",)))

    worker = hire()
    app.run(act)
    worker.work()
    app.run(act_async)
    worker.work()

    assert seen == [2, ["a", "b"], 1]
    assert db.notes() == ["a", "b", "c"]
    assert len(app.jobs(function=insert)) == 0


def test_a_call_that_raises_leaves_nothing_and_raises_in_the_action(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.mutation
    def explode(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        tx.run(note, "never either")
        raise KeyError("inside")

    @app.action
    def act(ctx: Ctx) -> str:
        with pytest.raises(KeyError, match="inside"):
            ctx.call(explode)
        ctx.run(note, "after")
        return "went on"

    job = app.run(act)
    hire().work()

    assert job.result(0) == "went on"
    assert db.notes() == ["after"]


def test_jobs_scheduled_by_a_called_mutation_are_children_of_the_action(
    app: Duly, note: Any, hire: Hire
):
    @app.mutation
    def plan(tx: Tx) -> str:
        return tx.run_after(60, note, "child").id

    @app.action
    def act(ctx: Ctx) -> str:
        return ctx.call(plan)

    job = app.run(act)
    hire().work()

    assert [child.id for child in job.children()] == [job.result(0)]


def test_a_canceled_action_can_no_longer_call(app: Duly, db: Database, note: Any, hire: Hire):
    gate = Gate()

    @app.action
    def act(ctx: Ctx) -> None:
        gate.pass_through()
        ctx.call(note, "never")

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    job.cancel()
    gate.open()
    worker.work()

    assert job.state == State.CANCELED
    assert db.notes() == []


def test_call_takes_only_mutations(app: Duly, hire: Hire):
    @app.action
    def other(ctx: Ctx) -> None: ...

    @app.action
    def act(ctx: Ctx) -> None:
        ctx.call(other)  # type: ignore[arg-type]

    job = app.run(act)
    hire().work()

    assert job.error is not None
    assert job.error.message == "InvalidFunction: ctx.call runs a mutation, not <action other>"


def test_the_busy_error_of_a_users_own_database_is_no_business_of_dulys(
    app: Duly, hire: Hire, tmp_path: Any
):
    @app.action
    def act(ctx: Ctx) -> None:
        raise sqlite3.OperationalError("database is locked")

    job = app.run(act)
    hire().work()

    assert job.state == State.FAILED
