"""An async mutation keeps the promises of a mutation, and its body runs on the event loop."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import duly
import duly.testing as kit
from duly import (
    AsyncCtx,
    AsyncMutation,
    AsyncTx,
    Ctx,
    Duly,
    ErrorKind,
    Group,
    Job,
    ManualClock,
    Retry,
    State,
    Tx,
    fault,
)
from duly.errors import (
    InvalidFunction,
    JobFailed,
    NoCurrentJob,
    TransactionEnded,
    UseTx,
    WouldWaitForItself,
)
from duly.store.sqlite import SqliteStore
from tests.jobs.support import (
    PATIENCE,
    Database,
    Gate,
    Hire,
    ManualWorker,
    Undo,
    make_conflict,
    on_postgres,
    state_of,
    wait_until,
)
from tests.levels import at_every_level

pytestmark = pytest.mark.spec("N66")


@pytest.fixture
def note(app: Duly) -> AsyncMutation[[str], str]:
    @app.mutation
    async def note(tx: AsyncTx, text: str) -> str:
        await tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    return note


def kind_of(job: Job[Any]) -> str | None:
    return None if job.error is None else job.error.kind


def on_loop(worker: ManualWorker) -> None:
    """Return when the loop has done what was handed to it before."""
    loop = worker.worker._async._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE)


# One transaction ---------------------------------------------------------------------------------


@at_every_level
def test_effects_children_and_success_become_visible_together(
    app: Duly, db: Database, note: Any, hire: Hire
):
    seen: list[tuple[int, str, int]] = []

    @app.mutation
    async def plan(tx: AsyncTx) -> str | None:
        await tx.execute("INSERT INTO notes VALUES ('effect')")
        await asyncio.sleep(0)
        child = await tx.run_after(60, note, "child")
        assert await child.state() == State.PENDING
        with pytest.raises(WouldWaitForItself):
            await child.result()
        assert (tx.function, dict(tx.arguments), tx.attempt) == ("plan", {}, 1)
        return tx.job_id

    job = app.run(plan)
    worker = hire()

    def look(point: str) -> None:
        if point in ("mutation.body_done", "mutation.finished", "mutation.committed"):
            children = db.scalar("SELECT count(*) FROM @jobs WHERE function = 'note'")
            state = db.scalar("SELECT state FROM @all_jobs WHERE function = 'plan'")
            seen.append((len(db.notes()), state, children))

    with fault.inject(look):
        worker.work()

    assert seen == [(0, "running", 0), (0, "running", 0), (1, job.state, 1)]
    assert (job.state, job.result(0)) == (State.SUCCEEDED, job.id)
    assert [child.function for child in job.children()] == ["note"]


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_an_exception_undoes_everything_and_the_loop_goes_on(
    app: Duly, db: Database, note: Any, hire: Hire, error: type[BaseException]
):
    @app.mutation
    async def explode(tx: AsyncTx) -> None:
        await tx.execute("INSERT INTO notes VALUES ('never')")
        await tx.run(note, "never")
        raise error("no")

    exploding, noting = app.run(explode), app.run(note, "fine")
    hire().work()

    assert (exploding.state, kind_of(exploding)) == (State.FAILED, ErrorKind.USER)
    with pytest.raises(JobFailed, match=f"{error.__name__}: no"):
        exploding.result(0)
    assert noting.state == State.SUCCEEDED
    assert (db.notes(), len(app.jobs())) == (["fine"], 2)


def test_an_async_mutation_may_ask_for_retries(app: Duly, db: Database, clock: Any, hire: Hire):
    attempts: list[int] = []

    @app.mutation(retry=Retry(attempts=3, delay=1, jitter=0))
    async def flaky(tx: AsyncTx) -> int:
        attempts.append(tx.attempt)
        await tx.execute("INSERT INTO notes VALUES (?)", (str(tx.attempt),))
        if tx.attempt < 3:
            raise ValueError("no")
        return tx.attempt

    job = app.run(flaky)
    worker = hire()
    while not job.state.is_terminal:
        worker.work()
        clock.advance(60)

    assert (job.result(0), attempts, db.notes()) == (3, [1, 2, 3], ["3"])


def test_after_a_conflict_the_body_runs_again(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, tmp_path: Path
):
    bodies: list[int] = []

    @app.mutation
    async def note(tx: AsyncTx) -> None:
        bodies.append(tx.attempt)
        await tx.execute("INSERT INTO notes VALUES ('once')")
        if len(bodies) < 3:
            await tx._do(lambda sync: make_conflict(db, sync, tmp_path))

    job = app.run(note)
    worker = hire()
    while not job.state.is_terminal:
        worker.work()
        clock.advance(60)

    assert (job.state, bodies, db.notes()) == (State.SUCCEEDED, [1, 1, 1], ["once"])


def test_a_body_whose_job_was_canceled_before_it_began_does_not_run(
    app: Duly, db: Database, note: Any, hire: Hire
):
    job = app.run(note, "never")
    worker = hire()

    def cancel_after_claim(point: str) -> None:
        if point == "worker.claimed":
            assert app.cancel(job) is True

    with fault.inject(cancel_after_claim):
        worker.start_due()
    worker.work()

    assert (job.state, db.notes(), worker.worker.idle) == (State.CANCELED, [], True)


def test_log_lines_belong_to_the_transaction(app: Duly, hire: Hire):
    log = logging.getLogger("shop")

    @app.mutation
    async def talk(tx: AsyncTx, fails: bool) -> None:
        log.warning("before")
        await tx.execute("SELECT 1")
        await asyncio.to_thread(log.warning, "in a thread")
        if fails:
            raise ValueError

    talking, failing = app.run(talk, False), app.run(talk, True)
    worker = hire()
    worker.worker._while_running.enter_context(_captured())
    worker.work()

    for job in (talking, failing):
        assert [line.text for line in job.logs()] == ["before", "in a thread"]


def _captured() -> Any:
    from duly.runtime.reports import captured_logging

    return captured_logging()


def test_a_savepoint_undoes_its_block_alone(app: Duly, db: Database, note: Any, hire: Hire):
    @app.mutation
    async def keep(tx: AsyncTx) -> None:
        async with tx.savepoint():
            await tx.execute("INSERT INTO notes VALUES ('kept')")
        with suppress(Undo):
            async with tx.savepoint():
                await tx.execute("INSERT INTO notes VALUES ('undone')")
                await tx.run(note, "undone")
                raise Undo
        async with tx.savepoint():
            await tx.execute("INSERT INTO notes VALUES ('last')")

    job = app.run(keep)
    hire().work()

    assert (job.state, db.notes(), job.children()) == (State.SUCCEEDED, ["kept", "last"], [])


def test_statements_of_several_tasks_run_one_after_the_other(app: Duly, db: Database, hire: Hire):
    @app.mutation
    async def note(tx: AsyncTx) -> int:
        texts = [f"{n:02}" for n in range(20)]
        write = "INSERT INTO notes VALUES (?)"
        await asyncio.gather(*(tx.execute(write, (text,)) for text in texts))
        count: int = (await tx.execute("SELECT count(*) FROM notes")).scalar()
        return count

    job = app.run(note)
    hire().work()

    assert (job.result(0), len(db.notes())) == (20, 20)


def test_a_body_may_await_nothing(app: Duly, hire: Hire):
    @app.mutation
    async def answer(tx: AsyncTx, n: int) -> int:
        return n

    jobs = app.run_many(answer.bind(n) for n in range(20))
    hire().work()

    assert [job.result(0) for job in jobs] == list(range(20))


def test_a_task_that_is_left_behind_cannot_use_the_transaction(app: Duly, db: Database, hire: Hire):
    over = threading.Event()
    answers: list[object] = []

    async def use(tx: AsyncTx) -> None:
        await asyncio.to_thread(over.wait, PATIENCE)
        for use in (lambda: tx.execute("INSERT INTO notes VALUES ('late')"), lambda: tx.run(note)):
            try:
                answers.append(await use())
            except TransactionEnded as error:
                answers.append(str(error))

    @app.mutation
    async def note(tx: AsyncTx) -> None:
        await tx.execute("INSERT INTO notes VALUES ('in time')")

    async def follow(tx: AsyncTx, ready: asyncio.Event) -> None:
        """Continues in the same round of the loop as the body, just after its end."""
        await ready.wait()
        with pytest.raises(TransactionEnded):
            await tx.execute("INSERT INTO notes VALUES ('just after the end')")

    @app.mutation
    async def leave(tx: AsyncTx) -> None:
        tasks.append(asyncio.create_task(use(tx)))
        ready = asyncio.Event()
        tasks.append(asyncio.create_task(follow(tx, ready)))
        asyncio.get_running_loop().call_soon(ready.set)
        await ready.wait()

    tasks: list[asyncio.Task[None]] = []
    app.run(leave)
    worker = hire()
    worker.work()
    app.run(note)
    worker.work()
    over.set()
    wait_until(lambda: all(task.done() for task in tasks))

    assert tasks[1].exception() is None
    assert answers == ["the transaction of this tx has ended; use tx only inside it"] * 2
    assert db.notes() == ["in time"]


def test_a_statement_that_was_canceled_fails_the_body_even_if_it_goes_on(
    app: Duly, db: Database, hire: Hire
):
    """Nobody knows how much of the statement was done."""

    @app.mutation
    async def hurry(tx: AsyncTx) -> None:
        statement = asyncio.create_task(tx.execute("INSERT INTO notes VALUES ('never')"))
        await asyncio.sleep(0)
        statement.cancel()
        with suppress(asyncio.CancelledError):
            await statement

    job = app.run(hurry)
    hire().work()

    with pytest.raises(JobFailed, match="a statement was canceled"):
        job.result(0)
    assert db.notes() == []


def test_the_app_cannot_be_used_inside(app: Duly, note: Any, hire: Hire):
    @app.mutation
    async def use(tx: AsyncTx) -> str:
        assert duly.current() is tx
        assert duly.current(AsyncTx) is tx
        with pytest.raises(NoCurrentJob, match="has a AsyncTx, not a Tx"):
            duly.current(Tx)
        with pytest.raises(UseTx):
            app.run(note, "sync")
        with pytest.raises(UseTx):
            await app.aio.run(note, "async")
        with pytest.raises(UseTx):
            await asyncio.create_task(app.aio.run(note, "in a task"))
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(UseTx):
                async with app.aio.transaction():
                    pass
        return "refused"

    job = app.run(use)
    hire().work()

    assert (job.result(0), len(app.jobs())) == ("refused", 1)


def test_limits_of_a_mutation_hold(app: Duly, note: Any, hire: Hire):
    @app.mutation
    async def breed(tx: AsyncTx) -> None:
        with suppress(duly.DulyError):
            await tx.run_many(note.bind(str(n)) for n in range(1_001))

    job = app.run(breed)
    hire().work()

    with pytest.raises(JobFailed, match="at most 1,000 jobs"):
        job.result(0)
    assert len(app.jobs()) == 1


# Canceling and time limits -----------------------------------------------------------------------


@on_postgres
def test_a_canceled_body_is_canceled_where_it_awaits(app: Duly, db: Database, hire: Hire):
    """On SQLite, whoever cancels waits for the transaction to end."""
    gate = Gate()
    ends: list[str] = []

    @app.mutation
    async def wait(tx: AsyncTx) -> None:
        await tx.execute("INSERT INTO notes VALUES ('never')")
        gate.pass_through()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
            ends.append("cleaned up")
            raise

    job = app.run(wait)
    worker = hire()
    gate.open()
    worker.start_due()
    gate.wait_for_one()
    assert job.cancel() is True
    worker.beat()
    worker.work()

    assert (job.state, ends, db.notes()) == (State.CANCELED, ["cleaned up"], [])


@pytest.mark.parametrize("swallows", [False, True])
def test_a_body_past_its_limit_is_canceled_and_rolled_back(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, swallows: bool
):
    began = threading.Event()
    ends: list[str] = []

    @app.mutation(timeout=1)
    async def wait(tx: AsyncTx) -> str:
        await tx.execute("INSERT INTO notes VALUES ('never')")
        began.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            with pytest.raises(duly.Canceled):
                await tx.execute("INSERT INTO notes VALUES ('too late')")
            # Reminders do not interrupt this.
            for _ in range(3):
                worker.watch()
                await asyncio.sleep(0)
            ends.append("cleaned up")
            if not swallows:
                raise
        return "swallowed"

    job = app.run(wait)
    worker = hire()
    worker.start_due()
    assert began.wait(PATIENCE)
    clock.advance(1)
    worker.insist()
    worker.work()

    assert (job.state, kind_of(job)) == (State.FAILED, ErrorKind.TIMEOUT)
    assert (ends, db.notes()) == (["cleaned up"], [])


class Slow:
    """A statement that waits until it is let go: for a lock, or for a function of SQLite's."""

    def __init__(self, app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._db = db
        self._gate = Gate()
        self.text = "INSERT INTO notes SELECT 'slow' WHERE slowly()"
        if db.is_sqlite:
            connect = SqliteStore.connect

            def with_function(store: SqliteStore) -> Any:
                connection = connect(store)
                connection.create_function("slowly", 0, self._slowly)
                return connection

            app.close()
            monkeypatch.setattr(SqliteStore, "connect", with_function)
        else:
            self.text = "INSERT INTO notes VALUES ('slow')"
            self._holder = db.connect()
            self._holder.execute("BEGIN; LOCK TABLE notes IN EXCLUSIVE MODE")

    def _slowly(self) -> int:
        self._gate.pass_through()
        return 1

    def wait_until_it_runs(self) -> None:
        if self._db.is_sqlite:
            self._gate.wait_for_one()
        else:
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            wait_until(lambda: self._db.scalar(waits))

    def let_go(self) -> None:
        if self._db.is_sqlite:
            self._gate.open()
        else:
            self._holder.execute("ROLLBACK")


@pytest.fixture
def slow(app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(app, db, monkeypatch)


def test_while_a_statement_waits_the_loop_runs_others(
    app: Duly, db: Database, hire: Hire, slow: Slow
):
    turns: list[int] = []

    @app.mutation
    async def write(tx: AsyncTx) -> None:
        await tx.execute(slow.text)

    @app.action
    async def turn() -> None:
        for n in range(3):
            await asyncio.sleep(0)
            turns.append(n)

    writing, turning = app.run(write), app.run(turn)
    worker = hire()
    worker.start_due()
    slow.wait_until_it_runs()
    wait_until(lambda: len(turns) == 3)
    assert state_of(writing) == State.RUNNING
    slow.let_go()
    worker.work()

    assert (writing.state, turning.state, db.notes()) == ("succeeded", "succeeded", ["slow"])


@on_postgres
def test_a_statement_past_the_limit_is_interrupted(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, slow: Slow
):
    @app.mutation(timeout=1)
    async def write(tx: AsyncTx) -> None:
        await tx.execute(slow.text)

    job = app.run(write)
    worker = hire()
    worker.start_due()
    slow.wait_until_it_runs()
    clock.advance(1)
    worker.insist()
    worker.work()
    slow.let_go()

    assert (job.state, kind_of(job), db.notes()) == (State.FAILED, ErrorKind.TIMEOUT, [])


def test_a_worker_that_stops_leaves_no_transaction_open(app: Duly, db: Database, hire: Hire):
    stop_meanwhile(app, db, hire, stubborn=False)


@on_postgres
def test_a_body_that_does_not_stop_ends_with_its_loop(app: Duly, db: Database, hire: Hire):
    """On SQLite the worker first waits ten seconds for the lock that the body holds."""
    stop_meanwhile(app, db, hire, stubborn=True)


def stop_meanwhile(app: Duly, db: Database, hire: Hire, *, stubborn: bool) -> None:
    began = threading.Event()

    @app.mutation
    async def wait(tx: AsyncTx) -> None:
        await tx.execute("INSERT INTO notes VALUES ('never')")
        while True:
            try:
                began.set()
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    job = app.run(wait)
    worker = hire()
    worker.start_due()
    assert began.wait(PATIENCE)
    worker.worker.stop(0)
    worker._stopped = True
    wait_until(lambda: not any(t.name.startswith("duly-mutation") for t in threading.enumerate()))

    assert db.notes() == []
    db.execute("INSERT INTO notes VALUES ('free')")
    assert state_of(job) in (State.PENDING, State.RUNNING)


# Sharing a commit --------------------------------------------------------------------------------


@pytest.mark.parametrize("grouped", [False, True])
def test_they_share_a_commit_only_if_asked_to(app: Duly, db: Database, hire: Hire, grouped: bool):
    shared: list[bool] = []
    commits: list[str] = []

    @app.mutation(group=grouped)
    async def note(tx: AsyncTx, n: int) -> None:
        shared.append(tx._tx._shared)
        await tx.execute("INSERT INTO notes VALUES (?)", (str(n),))
        if n == 1:
            raise ValueError("not the others")

    jobs = app.run_many(note.bind(n) for n in range(4))
    worker = hire()
    with fault.inject(lambda point: commits.append(point)):
        worker.work()

    assert shared == [grouped] * 4
    assert commits.count("mutation.committed") == (1 if grouped else 3)
    assert [job.state for job in jobs] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert db.notes() == ["0", "2", "3"]


def test_one_that_shares_a_commit_and_needs_a_session_runs_alone(
    app: Duly, db: Database, hire: Hire
):
    shared: list[bool] = []

    @app.mutation(group=True)
    async def note(tx: AsyncTx, n: int) -> None:
        session = tx.session
        shared.append(tx._tx._shared)
        await session.execute(sa_text("INSERT INTO notes VALUES (:n)"), {"n": str(n)})

    jobs = app.run_many(note.bind(n) for n in range(3))
    hire().work()

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert (shared, len(db.notes())) == ([False] * 3, 3)


def sa_text(statement: str) -> Any:
    import sqlalchemy

    return sqlalchemy.text(statement)


# Around, ctx.call, groups ------------------------------------------------------------------------


def test_sync_and_async_wrappers_are_part_of_the_transaction(app: Duly, db: Database, hire: Hire):
    order: list[str] = []

    @app.around
    def sync_one(tx: Tx | AsyncTx) -> Iterator[None]:
        order.append(type(tx).__name__)
        yield
        order.append("after")

    @app.around
    async def async_one(tx: AsyncTx) -> AsyncIterator[None]:
        await tx.execute("INSERT INTO notes VALUES ('before')")
        yield
        await tx.execute("INSERT INTO notes VALUES ('after')")

    @app.around
    def of_actions(ctx: Ctx | AsyncCtx) -> Iterator[None]:
        order.append("of actions")
        yield

    @app.mutation
    async def note(tx: AsyncTx, fails: bool) -> None:
        order.append("body")
        if fails:
            raise ValueError

    worker = hire()
    noting = app.run(note, False)
    worker.work()
    failing = app.run(note, True)
    worker.work()

    assert (noting.state, failing.state) == (State.SUCCEEDED, State.FAILED)
    assert order == ["AsyncTx", "body", "after", "AsyncTx", "body"]
    assert db.notes() == ["after", "before"]


def test_an_async_wrapper_of_sync_mutations_is_refused(app: Duly):
    with pytest.raises(InvalidFunction, match="`AsyncTx` or `AsyncCtx`, without Tx"):

        @app.around
        async def wrong(tx: Tx | AsyncTx) -> AsyncIterator[None]:
            yield


def test_an_async_action_calls_one_in_a_transaction_of_its_own(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.mutation
    async def double(tx: AsyncTx, n: int) -> int:
        assert duly.current(AsyncTx) is tx
        assert (tx.job_id, tx.function, dict(tx.arguments)) == (None, "double", {"n": n})
        with pytest.raises(UseTx):
            app.on(db.connect())
        await tx.execute("INSERT INTO notes VALUES ('effect')")
        await tx.run(note, "child")
        if n < 0:
            raise ValueError("negative")
        return 2 * n

    @app.action
    async def act(ctx: AsyncCtx) -> int:
        with pytest.raises(ValueError, match="negative"):
            await ctx.call(double, -1)
        result = await ctx.call(double, 21)
        assert duly.current(AsyncCtx) is ctx
        return result

    job = app.run(act)
    hire().work()

    assert (job.result(0), db.notes()) == (42, ["child", "effect"])
    assert [child.function for child in job.children()] == ["note"]


def test_a_call_in_an_action_that_was_canceled_leaves_nothing(
    app: Duly, db: Database, note: Any, hire: Hire
):
    """On SQLite the action is canceled before the transaction begins, or after its end."""
    gate = Gate()

    @app.action
    async def act(ctx: AsyncCtx) -> None:
        gate.pass_through()
        await ctx.call(note, "never")

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    job.cancel()
    gate.open()
    worker.work()

    assert (job.state, db.notes()) == (State.CANCELED, [])


def test_an_action_past_its_limit_cancels_the_mutation_that_it_calls(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    began = threading.Event()

    @app.mutation
    async def wait(tx: AsyncTx) -> None:
        await tx.execute("INSERT INTO notes VALUES ('never')")
        began.set()
        await asyncio.sleep(PATIENCE)

    @app.action(timeout=1)
    async def act(ctx: AsyncCtx) -> None:
        await ctx.call(wait)

    job = app.run(act)
    worker = hire()
    worker.start_due()
    assert began.wait(PATIENCE)
    clock.advance(1)
    worker.watch()
    worker.wait_for_bodies()
    worker.work()

    assert (kind_of(job), db.notes()) == (ErrorKind.TIMEOUT, [])
    db.execute("INSERT INTO notes VALUES ('free')")


def test_a_sync_action_cannot_call_one(app: Duly, note: Any, hire: Hire):
    @app.action
    def act(ctx: Ctx) -> None:
        ctx.call(note, "never")

    job = app.run(act)
    hire().work()

    with pytest.raises(JobFailed, match="note is an async mutation, which needs an event loop"):
        job.result(0)


def test_groups_and_calls_by_name_know_them(app: Duly, db: Database, hire: Hire):
    group = Group("shop")

    @group.mutation(priority=9)
    async def note(tx: AsyncTx, text: str) -> None:
        await tx.execute("INSERT INTO notes VALUES (?)", (text,))

    app.include(group)
    app.run(app.function("shop.note"), text="by name")
    app.run(note.using(priority=1), "directly")
    worker = hire()
    worker.work()

    assert db.notes() == ["by name", "directly"]
    assert app.functions.info("shop.note").kind == "mutation"
    assert note.is_async


def test_the_wrong_context_is_refused_with_what_to_write(app: Duly):
    with pytest.raises(InvalidFunction, match=r"of an async def under .* must be `tx: AsyncTx`"):

        @app.mutation
        async def sync_context(tx: Tx) -> None: ...

    with pytest.raises(InvalidFunction, match=r"of a def under .* must be `tx: Tx`"):

        @app.mutation  # type: ignore[arg-type]
        def async_context(tx: AsyncTx) -> None: ...

    with pytest.raises(InvalidFunction, match="AsyncTx is not the context of an async def"):

        @app.action
        async def of_an_action(tx: AsyncTx) -> None: ...


# In tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_loop", [False, True])
def test_drain_runs_them(app: Duly, db: Database, note: Any, in_loop: bool):
    @app.mutation
    async def plan(tx: AsyncTx) -> None:
        await asyncio.sleep(0)
        await tx.run(note, "child")
        async with tx.savepoint():
            await tx.execute("INSERT INTO notes VALUES ('effect')")

    @app.mutation
    async def fail(tx: AsyncTx) -> None:
        await tx.execute("INSERT INTO notes VALUES ('never')")
        raise ValueError("no")

    @app.action
    async def call(ctx: AsyncCtx) -> str:
        return await ctx.call(note, "called")

    for function in (plan, fail, call):
        app.run(function)

    async def in_async_test() -> list[Job[Any]]:
        return kit.drain(app, raises=False)

    ran = asyncio.run(in_async_test()) if in_loop else kit.drain(app, raises=False)

    states = {job.function: job.state for job in ran}
    assert states.pop("fail") == State.FAILED
    assert states == dict.fromkeys(("plan", "call", "note"), State.SUCCEEDED)
    assert db.notes() == ["called", "child", "effect"]


@pytest.mark.parametrize("in_loop", [False, True])
def test_drain_runs_them_inside_the_transaction_of_a_test(
    app: Duly, db: Database, note: Any, in_loop: bool
):
    @app.mutation
    async def plan(tx: AsyncTx) -> None:
        await tx.run(note, "child")
        await tx.execute("INSERT INTO notes VALUES ('effect')")

    def test() -> list[str]:
        handle = db.connect()
        handle.execute("BEGIN")
        app.on(handle).run(plan)
        ran = kit.drain(app, on=handle)
        handle.execute("ROLLBACK")
        return [job.function for job in ran]

    async def in_async_test() -> list[str]:
        return test()

    assert (asyncio.run(in_async_test()) if in_loop else test()) == ["plan", "note"]
    assert (db.notes(), app.jobs()) == ([], [])


def test_what_must_end_the_test_ends_it(app: Duly):
    @app.mutation
    async def stop(tx: AsyncTx) -> None:
        pytest.fail("no further")

    app.run(stop)
    with pytest.raises(pytest.fail.Exception, match="no further"):
        kit.drain(app)


def test_a_test_calls_them_directly(app: Duly, db: Database, note: Any):
    async def test() -> None:
        async with app.aio.transaction() as tx:
            assert await note(tx, "direct") == "direct"
            assert (tx.job_id, tx.function) == (None, None)
        assert await kit.async_ctx(app).call(note, "ctx") == "ctx"

    asyncio.run(test())
    assert db.notes() == ["ctx", "direct"]
