"""`AsyncTx`: a transaction for async code, whose statements all run in one thread.

In an async mutation it is the worker's thread, which waits for the body and meanwhile does what the
body submits. `app.aio.transaction()` starts another thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor, Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from duly.calls.jobs import Read
from duly.calls.orm import open_async_session
from duly.calls.verbs import AsyncVerbs
from duly.errors import TransactionEnded
from duly.model.job import JobFilter, JobRecord, NewJob
from duly.model.workflow import NewEvent
from duly.runtime.threads import submit, to_the_end
from duly.runtime.transaction_guard import enter, is_inside, leave, refuse_inside_mutation
from duly.store.base import Rows

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from duly.calls.context import Tx
    from duly.core import Core

T = TypeVar("T")

INTERRUPT_AGAIN = 0.02
CANCELED = "a statement was canceled, so the transaction is rolled back"


class AsyncTx(AsyncVerbs):
    """A `Tx` for async code: its methods are coroutines.

    An async mutation gets it as its first argument; `app.aio.transaction()` opens one outside any
    job. If the task of a statement is canceled, the statement is interrupted and the transaction is
    rolled back, even if the cancellation is caught.
    """

    _commits_later = True

    def __init__(self, core: Core, tx: Tx, lane: Lane) -> None:
        self._core = core
        self._tx = tx
        self._lane = lane
        self._session: AsyncSession | None = None

    @property
    def job_id(self) -> str | None:
        """The id of the job that runs this mutation; None in `app.aio.transaction()`."""
        return self._tx.job_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._tx.attempt

    @property
    def function(self) -> str | None:
        """The name of the mutation that runs; None in `app.aio.transaction()`."""
        return self._tx.function

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the mutation, by name, without defaults and redaction."""
        return self._tx.arguments

    @property
    def state(self) -> Any:
        """What `Duly(worker_lifespan=…)` yielded in this worker process."""
        return self._tx.state

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement in the transaction. `?` marks a parameter on every database."""
        return await self._do(lambda tx: tx.execute(sql, parameters))

    @property
    def session(self) -> AsyncSession:
        """A SQLAlchemy AsyncSession inside the transaction; it is flushed when the body ends.

        Its commit and rollback do not end the transaction: they release, or return to, a savepoint.
        Objects stay usable after its commit.
        """
        self._lane.check()
        if self._session is None:
            raw = self._tx.connection
            self._session = open_async_session(self._core.store, raw, self._orm, self._lane.is_here)
            self._tx._use_session(self._session.sync_session)  # pyright: ignore[reportPrivateUsage]
        return self._session

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None]:
        """Undo what the block does, and only that, if it raises."""
        point = self._tx.savepoint()
        await self._do(lambda _: point.__enter__())
        try:
            yield
        except BaseException as error:
            if not self._lane.ended:
                undo = partial(point.__exit__, type(error), error, error.__traceback__)
                await _undone(self._lane.submit(undo), error)
            raise
        await self._do(lambda _: point.__exit__(None, None, None))

    def call_is(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Name the call that runs in the transaction."""
        self._tx.call_is(function, arguments)

    async def _run_body(self, body: Callable[[AsyncTx], Coroutine[Any, Any, T]]) -> T:
        """Run the body of a mutation. Tasks that it leaves behind can no longer use this tx."""
        try:
            value = await body(self)
            self._lane.check()
        finally:
            self._lane.close()
        return value

    async def _do(self, work: Callable[[Tx], T]) -> T:
        self._lane.check()
        try:
            return await asyncio.wrap_future(self._lane.statement(partial(work, self._tx)))
        except asyncio.CancelledError:
            self._lane.broken = True
            stop = self._tx._interrupt  # pyright: ignore[reportPrivateUsage]
            self._core.threads.start(partial(self._lane.interrupt, stop))
            raise

    async def _orm(self, work: Callable[[], T]) -> T:
        return await self._do(lambda _: work())

    async def _off_loop(self, work: Callable[[], T], functions: Iterable[object]) -> T:
        # As in a Tx, the functions that were known when the transaction started count.
        if is_inside() and all(map(self._core.functions.is_here, functions)):
            return work()
        return await super()._off_loop(work, functions)

    def _parent_id(self) -> str | None:
        return self._tx._parent_id()  # pyright: ignore[reportPrivateUsage]

    def _reader(self) -> Read:
        return self._get

    async def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        return await self._do(lambda tx: tx._insert(jobs))  # pyright: ignore[reportPrivateUsage]

    async def _get(self, job_id: str) -> JobRecord | None:
        if self._lane.ended:
            return await self._core.threads.look(partial(self._core.get, job_id))
        return await self._do(lambda tx: tx._get(job_id))  # pyright: ignore[reportPrivateUsage]

    async def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return await self._do(lambda tx: tx._list(filter))  # pyright: ignore[reportPrivateUsage]

    async def _cancel(self, job_id: str) -> bool | None:
        return await self._do(lambda tx: tx._cancel(job_id))  # pyright: ignore[reportPrivateUsage]

    async def _send(self, event: NewEvent) -> None:
        await self._do(lambda tx: tx._send(event))  # pyright: ignore[reportPrivateUsage]


class AsyncTransaction(AbstractAsyncContextManager[AsyncTx]):
    """Opens a transaction on its own thread, and ends both."""

    def __init__(
        self,
        core: Core,
        opening: Callable[[], AbstractContextManager[Tx]],
        *,
        is_body: bool = False,
    ) -> None:
        self._core = core
        self._opening = opening
        self._is_body = is_body
        self._lane = Lane(core.threads.for_transaction())
        self._stack = ExitStack()

    async def __aenter__(self) -> AsyncTx:
        refuse_inside_mutation("transaction")
        self._release = await self._core.threads.seat()
        try:
            tx = await asyncio.wrap_future(self._lane.submit(self._begin))
        except BaseException as error:
            # If the task was canceled, the thread may still be waiting for the database.
            self._close(error)
            raise
        self._block = enter(is_body=self._is_body)
        return AsyncTx(self._core, tx, self._lane)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self._block)
        if error is not None:
            await _undone(self._close(error), error)
        elif self._lane.broken:
            error = TransactionEnded(CANCELED)
            await _undone(self._close(error), error)
            raise error
        else:
            await to_the_end(asyncio.wrap_future(self._close(None)))

    def _begin(self) -> Tx:
        return self._stack.enter_context(self._opening())

    def _close(self, error: BaseException | None) -> Future[None]:
        """Let the thread commit or roll back, then end."""
        ended = self._lane.submit(partial(self._end, error))
        ended.add_done_callback(lambda _: self._release())
        self._lane.close()
        return ended

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._stack.close()
        else:
            self._stack.__exit__(type(error), error, error.__traceback__)


async def _undone(undoing: Future[Any], error: BaseException) -> None:
    """Wait until the thread has undone the work that failed."""
    # An abandoned coroutine is being collected: there is no event loop left to wait in.
    if isinstance(error, GeneratorExit):
        return
    try:
        await to_the_end(asyncio.wrap_future(undoing))
    except Exception:
        # A canceled task must end as canceled, whatever other errors occur.
        if not isinstance(error, asyncio.CancelledError):
            raise


class Lane:
    """The thread of one transaction."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._change = threading.Condition()
        self._in_statement = False
        self._interrupted = False
        self._working_in: int | None = None
        self.broken = False
        self.ended = False

    def check(self) -> None:
        """Refuse work on a transaction that has ended or will be rolled back."""
        if self.ended:
            raise TransactionEnded("the transaction of this tx has ended; use tx only inside it")
        if self.broken:
            raise TransactionEnded(CANCELED)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return submit(self._executor, partial(self._work, work))

    def statement(self, work: Callable[[], T]) -> Future[T]:
        """As `submit`, for statements that can be interrupted."""
        return self.submit(partial(self._do, work))

    @contextmanager
    def here(self) -> Generator[None]:
        """Within this block, the current thread works on the transaction."""
        before, self._working_in = self._working_in, threading.get_ident()
        try:
            yield
        finally:
            self._working_in = before

    def is_here(self) -> bool:
        """Whether this code runs in the thread, rather than on an event loop."""
        return self._working_in == threading.get_ident()

    def _work(self, work: Callable[[], T]) -> T:
        with self.here():
            return work()

    def _do(self, work: Callable[[], T]) -> T:
        with self._change:
            if self._interrupted:
                raise TransactionEnded(CANCELED)
            self._in_statement = True
        try:
            return work()
        finally:
            with self._change:
                self._in_statement = False
                self._change.notify()

    def interrupt(self, stop: Callable[[], None]) -> None:
        """Called in another thread: end the running statement, but never the rollback after it."""
        with self._change:
            self._interrupted = True
            while self._in_statement:
                stop()
                # An interrupt that comes before the driver has started its statement has no effect.
                self._change.wait(INTERRUPT_AGAIN)

    def close(self) -> None:
        """End the thread after the work it already has."""
        self.ended = True
        self._executor.shutdown(wait=False)
