"""Async code calls an app without blocking its event loop."""

import asyncio
import contextvars
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import pytest

from duly import AsyncCtx, Ctx, Duly, ManualClock, Mutation, State, Tx
from duly.calls.context import open_tx
from duly.errors import (
    InvalidArgument,
    JobCanceled,
    JobFailed,
    JobNotFound,
    ResultTimeout,
    StoreError,
    TooManyJobs,
    TransactionEnded,
    UseTx,
    WouldWaitForItself,
)
from duly.runtime.service import Service
from duly.runtime.threads import CALLS, READS, Threads, to_the_end
from duly.store.sqlite import SqliteStore
from tests.jobs.support import (
    PATIENCE,
    Database,
    Gate,
    Hire,
    Undo,
    in_thread,
    on_sqlite,
    undone,
    wait_until,
)

T = TypeVar("T")
Note = Mutation[[str], str]


@pytest.fixture
def note(app: Duly) -> Note:
    @app.mutation
    def note(tx: Tx, text: str) -> str:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    return note


def play(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario in an event loop of its own; fail if it never ends."""

    async def in_time() -> T:
        return await asyncio.wait_for(scenario, PATIENCE)

    return asyncio.run(in_time())


async def until(holds: Callable[[], object], what: str = "the condition") -> None:
    """As wait_until, while the loop goes on."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.001)


async def beats(count: int = 50) -> None:
    """The loop goes round so many times, and lets other threads run."""
    for _ in range(count):
        await asyncio.sleep(0.0005)


@contextmanager
def locked(db: Database) -> Iterator[Callable[[], None]]:
    """Nobody else can write, until the function given is called."""
    holder = db.connect()
    holder.execute("BEGIN IMMEDIATE" if db.is_sqlite else "BEGIN")
    if not db.is_sqlite:
        holder.execute("LOCK TABLE duly.jobs, duly.workers, notes IN ACCESS EXCLUSIVE MODE")
    released = False

    def release() -> None:
        nonlocal released
        if not released:
            released = True
            holder.execute("ROLLBACK")

    try:
        yield release
    finally:
        release()


def transaction_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("duly-transaction")]


# The verbs ---------------------------------------------------------------------------------------


def test_every_way_to_call_a_function_is_awaited(
    app: Duly, clock: ManualClock, db: Database, note: Note, hire: Hire
):
    soon = datetime.fromtimestamp(clock.now() / 1000, UTC) + timedelta(seconds=5)

    async def scenario() -> list[str]:
        jobs = [
            await app.aio.run(note, "run"),
            await app.aio.run(await app.aio.function("note"), text="name"),
            await app.aio.run_after(5, note, "run_after"),
            await app.aio.run_at(soon, note, "run_at"),
            *await app.aio.run_many(note.bind(text) for text in ("many 1", "many 2")),
        ]
        assert await app.aio.run_many([]) == []
        clock.advance(5)
        await asyncio.to_thread(hire().work)
        return [await job.result(0) for job in jobs]

    assert sorted(play(scenario())) == db.notes()
    assert len(db.notes()) == 6


def test_jobs_are_looked_up_and_canceled(app: Duly, note: Note):
    async def scenario() -> None:
        first, second, third = await app.aio.run_many(note.bind(text) for text in "abc")
        assert await app.aio.job(second.id) == second
        assert await app.aio.jobs(function=note) == [third, second, first]
        assert [await j.state() for j in await app.aio.jobs(state="pending", limit=1)] == [
            State.PENDING
        ]

        assert await app.aio.cancel(first) is True
        assert await app.aio.cancel(app.job(second.id)) is True
        assert await app.aio.cancel(third.id) is True
        assert await third.cancel() is False
        with pytest.raises(JobNotFound):
            await app.aio.cancel("nothing")
        with pytest.raises(JobNotFound):
            await app.aio.job("nothing")

    play(scenario())


def test_the_verbs_of_the_app_alone_are_awaited(app: Duly, note: Note, hire: Hire):
    worker = hire()

    async def scenario() -> None:
        await app.aio.run_many(note.using(owner="ada").bind(text) for text in "ab")
        kept = await app.aio.run(note, "c")
        assert await app.aio.cancel_all(note, owner="ada") == 2
        assert await kept.state() == State.PENDING
        assert [w.id for w in await app.aio.workers()] == [worker.id]
        assert list(await app.aio.held()) == []

    play(scenario())


def test_a_job_of_async_code_tells_what_a_job_tells(app: Duly, note: Note, hire: Hire):
    @app.action
    def parent(ctx: Ctx) -> None:
        ctx.run_after(60, note, "child")
        raise ValueError("no luck")

    async def scenario() -> None:
        job = await app.aio.run(parent)
        same = await app.aio.job(job.id)
        assert (job, hash(job), repr(job)) == (same, hash(same), f"<job {job.id}>")
        assert job != await app.aio.run(note, "other")
        assert await job.state() == State.PENDING
        assert await job.error() is None
        with pytest.raises(ResultTimeout):
            await job.result(timeout=0)

        await asyncio.to_thread(hire().work)

        assert await job.state() == State.FAILED
        assert await job.attempt() == 1
        assert await job.arguments() == {}
        assert (await job.record()).function == "parent"
        error = await job.error()
        assert error is not None
        assert error.message == "ValueError: no luck"
        (child,) = await job.children()
        assert (await child.record()).parent_id == job.id
        with pytest.raises(JobFailed, match="no luck"):
            await job.result()
        await child.cancel()
        with pytest.raises(JobCanceled):
            await child.result()

    play(scenario())


def test_the_sync_verbs_work_in_async_code_too(app: Duly, note: Note, hire: Hire):
    async def scenario() -> str:
        job = app.run(note, "sync")
        await asyncio.to_thread(hire().work)
        return job.result(0)

    assert play(scenario()) == "sync"


def test_errors_arrive_as_they_are(app: Duly, note: Note):
    async def scenario() -> None:
        with pytest.raises(InvalidArgument, match="text"):
            await app.aio.run(note, 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="text"):
            await app.aio.run(app.function("note"), text=5)
        with pytest.raises(error_of_the_driver(app)):
            await twice(app)
        mine = Undo()
        with pytest.raises(Undo) as caught:
            async with app.aio.transaction():
                raise mine
        assert caught.value is mine

    play(scenario())


TWICE = "INSERT INTO odd VALUES (1), (1)"


async def twice(app: Duly) -> None:
    async with app.aio.transaction() as tx:
        await tx.execute("CREATE TABLE odd (n integer PRIMARY KEY)")
        await tx.execute(TWICE)


def error_of_the_driver(app: Duly) -> type[Exception]:
    """What sync code gets for the same."""

    def twice_in_sync_code() -> None:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE odd (n integer PRIMARY KEY)")
            tx.execute(TWICE)

    with pytest.raises(Exception, match=r"(?i)unique") as caught:
        twice_in_sync_code()
    assert not isinstance(caught.value, StoreError)
    return caught.type


def test_what_a_future_cannot_carry_arrives_as_another_error(app: Duly, hire: Hire):
    """An await that never returned would be the alternative."""

    @app.mutation
    def empty(tx: Tx) -> int:
        return next(iter(tx.execute("SELECT text FROM notes")))[0]  # type: ignore[no-any-return]

    @app.action
    async def ask(ctx: AsyncCtx) -> int:
        return await ctx.call(empty)

    job = app.run(ask)
    hire().work()

    assert job.error is not None
    assert "StopIteration" in job.error.message


# The loop goes on --------------------------------------------------------------------------------


async def enqueue(app: Duly, note: Note) -> None:
    await app.aio.run(note, "a")


async def enqueue_many(app: Duly, note: Note) -> None:
    await app.aio.run_many([note.bind("a"), note.bind("b")])


async def cancel_them(app: Duly, note: Note) -> None:
    await app.aio.cancel_all(note)


async def write_in_a_transaction(app: Duly, note: Note) -> None:
    async with app.aio.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        await tx.run(note, "b")


async def start_and_stop(app: Duly, note: Note) -> None:
    async with app:
        await app.aio.jobs()


def watch_the_loop(app: Duly, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The verbs of the store that the main thread, which runs the loop, calls from now on."""
    called: list[str] = []
    store: Any = app.ready()

    def watched(name: str) -> Callable[..., Any]:
        verb = getattr(store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                called.append(name)
            return verb(*args, **kwargs)

        return call

    for name, _ in inspect.getmembers(type(store), inspect.isfunction):
        if not name.startswith("_"):
            monkeypatch.setattr(store, name, watched(name))
    return called


def test_no_verb_asks_the_store_in_the_loop(
    app: Duly, url: str, note: Note, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    worker = hire()
    elsewhere = Duly(url, clock=app.clock)
    called = watch_the_loop(app, monkeypatch), watch_the_loop(elsewhere, monkeypatch)

    async def scenario() -> None:
        job = await app.aio.run(note, "a")
        await app.aio.run_many([note.bind("b")])
        await elsewhere.aio.run(await elsewhere.aio.function("note"), text="by name")
        await elsewhere.aio.run_many([(await elsewhere.aio.function("note")).bind(text="x")])
        async with app.aio.transaction() as tx:
            await tx.execute("SELECT 1")
            await (await tx.run_after(60, note, "c")).record()
            await tx.jobs()
        await asyncio.to_thread(worker.work)
        await job.result()
        await job.children()
        for found in await app.aio.jobs(state="pending"):
            await found.cancel()
        await app.aio.cancel_all(note)
        await app.aio.workers()
        await app.aio.held()

    play(scenario())
    assert called == ([], [])
    elsewhere.close()


@pytest.mark.parametrize(
    "call", [enqueue, enqueue_many, cancel_them, write_in_a_transaction, start_and_stop]
)
def test_the_loop_goes_on_while_the_database_is_locked(
    app: Duly, db: Database, note: Note, call: Callable[[Duly, Note], Coroutine[Any, Any, None]]
):
    """It is the loop that unlocks it: if it stood still, nothing would ever be unlocked."""
    app.run_after(60, note, "to be canceled")

    async def scenario() -> None:
        with locked(db) as release:
            calls = [asyncio.create_task(call(app, note)) for _ in range(3)]
            await beats()
            assert [task.done() for task in calls] == [False] * 3
            release()
            await asyncio.gather(*calls)

    play(scenario())


def test_reads_do_not_queue_behind_writes_that_wait(app: Duly, db: Database, note: Note):
    """On PostgreSQL the lock of this test stops readers as well."""
    job = app.run_after(60, note, "first")

    async def scenario() -> None:
        with locked(db) as release:
            writes = [asyncio.create_task(enqueue(app, note)) for _ in range(2 * CALLS)]
            await beats()
            if db.is_sqlite:
                assert await (await app.aio.job(job.id)).state() == State.PENDING
                assert [found.id for found in await app.aio.jobs()] == [job.id]
            assert not any(write.done() for write in writes)
            release()
            await asyncio.gather(*writes)

    play(scenario())


def test_a_transaction_does_not_queue_behind_the_calls_that_wait_for_it(
    app: Duly, db: Database, note: Note
):
    """What is known of the functions has grown old, so the store has to be asked first."""

    async def scenario() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('first')")
            context = contextvars.Context()
            calls = [
                asyncio.create_task(enqueue(app, note), context=context) for _ in range(2 * CALLS)
            ]
            await beats()
            app.core.functions._fresh_until = 0.0
            await asyncio.wait_for(tx.run_after(60, note, "inside"), 5)
        await asyncio.gather(*calls)

    play(scenario())
    assert db.count("@jobs") == 2 * CALLS + 1


def test_two_hundred_wait_for_results_and_occupy_no_thread_each(app: Duly, note: Note, hire: Hire):
    worker = hire(concurrency=50)

    async def scenario() -> None:
        jobs = await app.aio.run_many(note.bind(f"{n:03}") for n in range(200))
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        await beats()
        for _ in range(20):
            await app.aio.run_after(60, note, "meanwhile")
        own = [t for t in threading.enumerate() if t.name.startswith("duly-")]
        assert len(own) <= CALLS + READS
        assert not any(task.done() for task in waiting)

        await asyncio.to_thread(worker.work)

        assert await asyncio.gather(*waiting) == [f"{n:03}" for n in range(200)]

    play(scenario())


def test_those_who_wait_look_together(app: Duly, note: Note, monkeypatch: pytest.MonkeyPatch):
    """Else two hundred who wait would change threads some thousand times a second."""
    rounds: list[int] = []
    ask_all = Threads._ask_all

    def counted(threads: Threads, *how: Any) -> None:
        rounds.append(len(how[2]))
        ask_all(threads, *how)

    monkeypatch.setattr(Threads, "_ask_all", counted)

    async def scenario() -> None:
        jobs = await app.aio.run_many(note.bind("x") for _ in range(100))
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        await until(lambda: rounds and max(rounds[5:], default=0) == 100, "a look of all of them")
        for task in waiting:
            task.cancel()

    play(scenario())


def test_concurrent_calls_share_commits(
    app: Duly, db: Database, note: Note, monkeypatch: pytest.MonkeyPatch
):
    # Nobody asks for the status of functions meanwhile.
    monkeypatch.setattr("duly.functions.known_functions.STATUS_SECONDS", 3600.0)
    group = vars(app.ready())["_group" if db.is_sqlite else "_enqueues"]
    commits: list[int] = []
    commit = group._commit

    def counted(tickets: list[Any]) -> None:
        commits.append(len(tickets))
        commit(tickets)

    group._commit = counted

    async def scenario() -> None:
        # The first one asks about its function before.
        await enqueue(app, note)
        await asyncio.gather(*(enqueue(app, note) for _ in range(20)))
        assert commits == [1, 1]
        with locked(db) as release:
            first = asyncio.create_task(enqueue(app, note))
            await until(lambda: len(commits) == 3, "a call that waits for the lock")
            calls = [asyncio.create_task(enqueue(app, note)) for _ in range(20)]
            await until(lambda: len(group._waiting) == 1, "the queue behind the first")
            release()
            await asyncio.gather(first, *calls)

    play(scenario())
    assert commits == [1, 1, 1, 1]
    assert db.count("@jobs") == 42


def test_two_loops_in_two_threads_use_one_app(app: Duly, note: Note, hire: Hire):
    worker = hire()

    async def scenario(name: str) -> list[str]:
        jobs = await asyncio.gather(*(app.aio.run(note, f"{name} {n}") for n in range(10)))
        async with app.aio.transaction() as tx:
            jobs.append(await tx.run(note, f"{name} tx"))
        return list(await asyncio.gather(*(job.result() for job in jobs)))

    with in_thread(lambda: play(scenario("a"))) as a, in_thread(lambda: play(scenario("b"))) as b:
        wait_until(lambda: len(app.jobs(state="pending")) == 22, "all of them")
        worker.work()
        assert (len(a()), len(b())) == (11, 11)
        assert set(a()).isdisjoint(b())


def test_context_variables_reach_the_thread(app: Duly):
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")

    async def scenario() -> tuple[str, str]:
        word.set("given")
        return await app.core.threads.call(word.get), await app.core.threads.read(word.get)

    assert play(scenario()) == ("given", "given")


# Transactions ------------------------------------------------------------------------------------


def test_a_transaction_commits_at_the_end_of_the_block(
    app: Duly, db: Database, note: Note, hire: Hire
):
    async def scenario() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (?)", ("by hand",))
            job = await tx.run(note, "by job")
            assert (await tx.execute("SELECT count(*) FROM notes")).scalar() == 1
            assert await job.state() == State.PENDING
            assert await tx.jobs(function=note) == [job]
            assert await tx.job(job.id) == job
            doomed = await tx.run_after(60, note, "never")
            assert await tx.cancel(doomed) is True
            with pytest.raises(JobNotFound):
                app.store.get(job.id) or app.job(job.id)
            assert db.notes() == []
        assert db.notes() == ["by hand"]
        with pytest.raises(TransactionEnded):
            await tx.execute("SELECT 1")
        await asyncio.to_thread(hire().work)
        assert await job.result(0) == "by job"

    play(scenario())
    assert db.notes() == ["by hand", "by job"]
    wait_until(lambda: not transaction_threads(), "the end of its thread")


def test_a_transaction_that_raises_leaves_nothing(app: Duly, db: Database, note: Note):
    async def scenario() -> None:
        with undone():
            async with app.aio.transaction() as tx:
                await tx.execute("INSERT INTO notes VALUES ('a')")
                await tx.run(note, "b")
                raise Undo
        assert await app.aio.jobs() == []

    play(scenario())
    assert db.notes() == []


def test_a_savepoint_is_undone_alone(app: Duly, db: Database, note: Note):
    async def scenario() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('before')")
            with undone():
                async with tx.savepoint():
                    await tx.execute("INSERT INTO notes VALUES ('inside')")
                    await tx.run(note, "inside")
                    raise Undo
            async with tx.savepoint():
                await tx.execute("INSERT INTO notes VALUES ('kept')")

    play(scenario())
    assert db.notes() == ["before", "kept"]
    assert db.count("@jobs") == 0


def test_a_limit_that_was_passed_is_told_at_the_end(app: Duly, db: Database, note: Note):
    async def scenario() -> None:
        async with app.aio.transaction() as tx:
            with pytest.raises(TooManyJobs):
                await tx.run_many(note.bind("x") for _ in range(1001))

    with pytest.raises(TooManyJobs):
        play(scenario())
    assert db.count("@jobs") == 0


def test_inside_a_transaction_only_tx_touches_the_store(app: Duly, db: Database, note: Note):
    """On SQLite anything else would wait for the transaction, and the transaction for it."""
    job = app.run_after(60, note, "x")

    async def scenario() -> None:
        async with app.aio.transaction():
            with pytest.raises(UseTx):
                await app.aio.run(note, "a")
            with pytest.raises(UseTx):
                app.run(note, "a")
            with pytest.raises(UseTx):
                await asyncio.create_task(app.aio.cancel(job.id))
            with pytest.raises(UseTx):
                async with app.aio.transaction():
                    pass
            with pytest.raises(WouldWaitForItself):
                await (await app.aio.job(job.id)).result()
        await app.aio.run(note, "after")

    play(scenario())
    assert db.count("@jobs") == 2


def test_other_tasks_are_free_while_one_has_a_transaction_open(app: Duly, db: Database, note: Note):
    async def scenario() -> None:
        opened, go_on = asyncio.Event(), asyncio.Event()

        async def holder() -> None:
            async with app.aio.transaction() as tx:
                await tx.execute("INSERT INTO notes VALUES ('a')")
                opened.set()
                await go_on.wait()

        holding = asyncio.create_task(holder())
        await opened.wait()
        other = asyncio.create_task(enqueue(app, note))
        await beats()
        go_on.set()
        await asyncio.gather(holding, other)

    play(scenario())
    assert db.count("@jobs") == 1


def test_a_task_that_outlives_the_transaction_is_free_again(app: Duly, db: Database, note: Note):
    async def scenario() -> None:
        over = asyncio.Event()

        async def later() -> None:
            await over.wait()
            await app.aio.run(note, "later")

        async with app.aio.transaction():
            task = asyncio.create_task(later())
        over.set()
        await task

    play(scenario())
    assert db.count("@jobs") == 1


def test_transactions_beyond_the_bound_wait_without_a_thread(
    app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.runtime.threads.TRANSACTIONS", 2)
    most, inside = 0, set[int]()

    async def write(n: int) -> None:
        nonlocal most
        async with app.aio.transaction() as tx:
            inside.add(n)
            await tx.execute("INSERT INTO notes VALUES (?)", (f"{n:02}",))
            assert len(inside) <= 2
            most = max(most, len(transaction_threads()))
            inside.remove(n)

    async def scenario() -> None:
        await asyncio.gather(*(write(n) for n in range(12)))

    play(scenario())
    assert db.notes() == [f"{n:02}" for n in range(12)]
    # A thread that has given its place back may still be ending.
    assert most < 12


# Cancellation ------------------------------------------------------------------------------------

ENDLESS = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    " INSERT INTO notes SELECT 'never' FROM n WHERE reached(i) < 0"
)

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


class Endless:
    """A statement that never ends by itself, and tells when it has begun."""

    def __init__(self, app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._db = db
        self._begun = threading.Event()
        if db.is_sqlite:
            connect = SqliteStore.connect

            def with_function(store: SqliteStore) -> Any:
                connection = connect(store)
                connection.create_function("reached", 1, self._reached)
                return connection

            app.close()
            monkeypatch.setattr(SqliteStore, "connect", with_function)
        else:
            db.execute("CREATE FUNCTION reached(i int) RETURNS int LANGUAGE sql AS 'SELECT i'")

    def _reached(self, i: int) -> int:
        self._begun.set()
        return i

    def has_begun(self) -> bool:
        if self._db.is_sqlite:
            return self._begun.is_set()
        return bool(self._db.scalar(f"{SESSIONS} AND state = 'active' AND query LIKE 'WITH REC%'"))


@pytest.fixture
def endless(app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch) -> Endless:
    return Endless(app, db, monkeypatch)


async def assert_nothing_is_left(app: Duly, db: Database) -> None:
    """No thread, no lock, no open transaction, no row."""
    await until(lambda: not transaction_threads(), "the end of the thread")
    if not db.is_sqlite:
        assert db.scalar(f"{SESSIONS} AND state LIKE 'idle in%'") == 0
    async with app.aio.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('next')")
    assert db.notes() == ["next"]


def test_a_task_canceled_in_the_middle_of_a_statement_rolls_back(
    app: Duly, db: Database, endless: Endless
):
    async def work() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('before')")
            await tx.execute(ENDLESS)

    async def scenario() -> None:
        task = asyncio.create_task(work())
        await until(endless.has_begun, "the statement")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_nothing_is_left(app, db)

    play(scenario())


def test_a_cancellation_that_was_caught_still_rolls_back(app: Duly, db: Database, endless: Endless):
    """Nobody knows how much of the statement was done."""

    async def work() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('before')")
            statement = asyncio.create_task(tx.execute(ENDLESS))
            await until(endless.has_begun, "the statement")
            statement.cancel()
            with pytest.raises(asyncio.CancelledError):
                await statement
            with pytest.raises(TransactionEnded, match="canceled"):
                await tx.execute("SELECT 1")

    async def scenario() -> None:
        with pytest.raises(TransactionEnded, match="canceled"):
            await work()
        await assert_nothing_is_left(app, db)

    play(scenario())


def test_a_task_canceled_in_a_savepoint_rolls_back(app: Duly, db: Database, endless: Endless):
    async def work() -> None:
        async with app.aio.transaction() as tx, tx.savepoint():
            await tx.execute("INSERT INTO notes VALUES ('before')")
            await tx.execute(ENDLESS)

    async def scenario() -> None:
        task = asyncio.create_task(work())
        await until(endless.has_begun, "the statement")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_nothing_is_left(app, db)

    play(scenario())


def test_a_task_canceled_between_two_statements_rolls_back(app: Duly, db: Database):
    async def scenario() -> None:
        opened = asyncio.Event()

        async def work() -> None:
            async with app.aio.transaction() as tx, tx.savepoint():
                await tx.execute("INSERT INTO notes VALUES ('before')")
                opened.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await opened.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Over means over: the lock is free at this moment, not a little later.
        assert db.notes() == []
        await assert_nothing_is_left(app, db)

    play(scenario())


@on_sqlite
def test_a_task_canceled_while_it_waits_for_its_turn_ends_at_once(
    app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch
):
    """On PostgreSQL the beginning of a transaction waits for nobody."""
    monkeypatch.setattr("duly.runtime.threads.TRANSACTIONS", 1)

    async def work() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('never')")

    async def scenario() -> None:
        with locked(db):
            task = asyncio.create_task(work())
            await until(transaction_threads, "the thread")
            await beats()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await assert_nothing_is_left(app, db)

    play(scenario())


@pytest.mark.parametrize("raises", [None, Undo, asyncio.CancelledError])
def test_the_transaction_is_over_when_the_block_has_been_left(
    app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch, raises: type[BaseException] | None
):
    gate = Gate()

    @contextmanager
    def slow_to_end(core: Any) -> Iterator[Tx]:
        with ExitStack() as stack:
            stack.callback(gate.pass_through)
            yield stack.enter_context(open_tx(core))

    monkeypatch.setattr("duly.app.aio.open_tx", slow_to_end)

    async def work() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('a')")
            if raises is not None:
                raise raises

    async def scenario() -> None:
        task = asyncio.create_task(work())
        await asyncio.to_thread(gate.wait_for_one)
        await beats()
        assert not task.done()
        gate.open()
        await asyncio.wait([task])
        assert task.cancelled() or type(task.exception()) is (raises or type(None))

    play(scenario())
    assert db.notes() == ([] if raises else ["a"])


def test_an_abandoned_transaction_is_rolled_back(app: Duly, db: Database):
    """Its coroutine is closed while no loop runs, so nothing can be awaited any more."""
    loop = asyncio.new_event_loop()
    opened = asyncio.Event()

    async def work() -> None:
        async with app.aio.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('never')")
            opened.set()
            await asyncio.Event().wait()

    coroutine = work()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.wait_for(opened.wait(), PATIENCE))
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()
    loop.close()

    play(assert_nothing_is_left(app, db))


def test_a_task_that_waits_for_a_result_can_be_canceled(app: Duly, note: Note):
    job = app.run_after(60, note, "x")

    async def scenario() -> None:
        found = await app.aio.job(job.id)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await found.result()
        assert await found.state() == State.PENDING

    play(scenario())


def test_a_call_that_has_not_begun_is_not_made():
    """More calls than threads: those that were canceled in the queue never happen."""
    threads, gate, made = Threads(), Gate(), []

    async def scenario() -> None:
        first = [asyncio.create_task(threads.call(gate.pass_through)) for _ in range(CALLS)]
        for _ in range(CALLS):
            await asyncio.to_thread(gate.wait_for_one)
        last = asyncio.create_task(threads.call(lambda: made.append("late")))
        await beats()
        last.cancel()
        with pytest.raises(asyncio.CancelledError):
            await last
        gate.open()
        await asyncio.gather(*first)
        await threads.call(lambda: made.append("next"))

    play(scenario())
    threads.close()
    assert made == ["next"]


def test_what_was_asked_for_just_before_the_threads_go_is_done_by_others():
    threads = Threads()

    async def scenario() -> None:
        joining = asyncio.create_task(threads.join(lambda asked: [(asked, None)], "join"))
        looking = asyncio.create_task(threads.look(lambda: "look"))
        await asyncio.sleep(0)
        threads.close()
        assert await joining == ["join"]
        assert await looking == "look"

    play(scenario())
    threads.close()


class Exhausted(ThreadPoolExecutor):
    """A system that lets nobody have another thread."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")


def test_all_who_ask_are_told_that_no_thread_can_be_started():
    threads = Threads(Exhausted)

    async def scenario() -> None:
        tasks = [asyncio.create_task(threads.look(lambda: 1)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [
            asyncio.CancelledError,
            RuntimeError,
            RuntimeError,
        ]

    play(scenario())
    threads.close()


def call_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("duly-call")]


def test_what_must_end_is_waited_for_despite_cancellations():
    async def scenario() -> None:
        commit: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(to_the_end(commit))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        commit.set_result("committed")
        with pytest.raises(asyncio.CancelledError):
            await task

    play(scenario())


# Running -----------------------------------------------------------------------------------------


@pytest.fixture
def running_app(url: str) -> Iterator[Duly]:
    app = Duly(url)
    app.migrate()
    yield app
    app.close()


def test_an_app_runs_jobs_inside_async_with(running_app: Duly):
    app = running_app

    @app.action
    async def double(ctx: AsyncCtx, n: int) -> int:
        return 2 * n

    async def scenario() -> int:
        async with app as same:
            assert same is app
            return await (await app.aio.run(double, 21)).result()

    assert play(scenario()) == 42
    assert app.core.service is None


def test_stopping_waits_for_running_jobs_and_not_in_the_loop(running_app: Duly):
    """It is the loop that lets the job end, while the app stops."""
    app = running_app
    gate = Gate()

    @app.action
    def hold(ctx: Ctx) -> str:
        gate.pass_through()
        return "held"

    async def scenario() -> str:
        async with app:
            job = await app.aio.run(hold)
            await asyncio.to_thread(gate.wait_for_one)
            opening = asyncio.create_task(open_when_stopping())
        await opening
        return await job.result(0)

    async def open_when_stopping() -> None:
        await until(lambda: app.core.service is None, "the stop")
        await beats()
        gate.open()

    assert play(scenario()) == "held"


def test_an_app_whose_start_is_canceled_does_not_run(app: Duly, db: Database):
    async def scenario() -> None:
        with locked(db) as release:
            task = asyncio.create_task(start_and_stop(app, None))  # type: ignore[arg-type]
            await beats()
            task.cancel()
            await beats()
            release()
            with pytest.raises(asyncio.CancelledError):
                await task
        # Whatever a thread still does is done after this.
        await asyncio.to_thread(app.core.threads.close)
        assert app.core.service is None
        assert list(await app.aio.workers()) == []

    play(scenario())


class StoppedMeanwhile:
    """A worker of this process that another thread stops while it is about to be woken."""

    def __init__(self, app: Duly) -> None:
        self._app = app
        app.core.service = cast(Service, self)
        self.worker = self.loop = self
        self.woken = 0

    @property
    def is_here(self) -> bool:
        self._app.core.service = None
        return True

    def wake(self) -> None:
        self.woken += 1

    wake_ticker = look = wake


def test_jobs_are_stored_once_though_the_worker_is_stopped_meanwhile(
    app: Duly, db: Database, note: Note
):
    async def two() -> None:
        await asyncio.gather(enqueue(app, note), enqueue(app, note))

    wakes: list[Callable[[], object]] = [
        lambda: app.run(note, "sync"),
        lambda: play(two()),
        app.core.wake_ticker,
        app.core.tell_bodies,
    ]
    for wake in wakes:
        stopped = StoppedMeanwhile(app)
        wake()
        assert stopped.woken == 1
    assert db.count("@jobs") == 3


def test_an_error_of_waking_is_not_taken_for_one_of_storing(
    app: Duly, db: Database, note: Note, monkeypatch: pytest.MonkeyPatch
):
    def wake() -> None:
        raise OSError("nobody can be woken")

    async def two() -> list[object]:
        calls = [enqueue(app, note), enqueue(app, note)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    monkeypatch.setattr(app.core, "_wake_here", wake)
    assert [str(answer) for answer in play(two())] == ["nobody can be woken"] * 2
    assert db.count("@jobs") == 2


def test_closing_waits_for_calls_that_are_under_way(app: Duly):
    gate, order = Gate(), []

    def call() -> None:
        gate.pass_through()
        order.append("called")

    def close() -> None:
        app.close()
        order.append("closed")

    async def scenario() -> None:
        calling = asyncio.create_task(app.core.threads.call(call))
        await asyncio.to_thread(gate.wait_for_one)
        closing = asyncio.create_task(asyncio.to_thread(close))
        await beats()
        gate.open()
        await asyncio.gather(calling, closing)

    play(scenario())
    assert order == ["called", "closed"]


def test_closing_ends_the_threads_and_the_next_call_has_new_ones(
    app: Duly, db: Database, note: Note
):
    before = set(threading.enumerate())
    play(enqueue(app, note))
    assert set(call_threads()) - before

    app.close()

    started = set(threading.enumerate()) - before
    assert [thread for thread in started if thread.name.startswith("duly-")] == []
    play(enqueue(app, note))
    assert db.count("@jobs") == 2


FORK = """
import asyncio, os, sys
from duly import Duly, Tx

app = Duly(sys.argv[1])

@app.mutation
def note(tx: Tx) -> None: ...

async def call() -> None:
    await asyncio.gather(*(app.aio.run(note) for _ in range(5)))
    async with app.aio.transaction() as tx:
        await tx.run(note)

asyncio.run(call())
child = os.fork()
asyncio.run(call())
if not child:
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_has_threads_of_its_own(app: Duly, db: Database, url: str):
    command = [sys.executable, "-W", "ignore", "-c", FORK, url]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    assert db.count("@jobs") == 18
