"""`app.aio`: the app's verbs for async code, without blocking the event loop.

The drivers are synchronous, so each store operation runs in a thread that duly manages. A
transaction stays on one thread from beginning to end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from duly.calendars import AsyncCalendars
from duly.calls.batches import AsyncBatch, batch_of
from duly.calls.bulk import AsyncBulk
from duly.calls.context import Tx, open_tx
from duly.calls.jobs import Read, watch_async
from duly.calls.twins import awaited
from duly.calls.verbs import AsyncVerbs
from duly.errors import TransactionEnded
from duly.functions.function import Function
from duly.functions.times import Instant
from duly.gateway import AsyncGateways
from duly.model.job import JobFilter, JobRecord, KeyedJob, NewJob
from duly.model.progress import Event
from duly.observe.view import AsyncObserve
from duly.runtime.threads import submit, to_the_end
from duly.runtime.transaction_guard import enter, leave, refuse_inside_mutation
from duly.schedules.twin import AsyncSchedules
from duly.store.base import HeldJobs, WorkerInfo

if TYPE_CHECKING:
    from duly.app.duly import Duly
    from duly.core import Core

T = TypeVar("T")

INTERRUPT_AGAIN = 0.02
CANCELED = "a statement was canceled, so the transaction is rolled back"


class AsyncApp(AsyncVerbs):
    """`app.aio`: the app's methods as coroutines, which do not block the event loop.

    If the task of a call is canceled, the call may or may not have taken effect, as with any other
    database.
    """

    def __init__(self, app: Duly) -> None:
        self._app = app
        self._core = app.core
        self.calendars: AsyncCalendars = AsyncCalendars(app.core, app.calendars)
        self.schedules: AsyncSchedules = AsyncSchedules(app.core, app.schedules)
        self.bulk: AsyncBulk = AsyncBulk(self._core)
        self.gateways: AsyncGateways = AsyncGateways(app.core, app.gateways)
        self.observe: AsyncObserve = AsyncObserve(app.core, app.observe)

    async def function(self, name: str) -> Function[..., Any]:
        """Return the function with that name, registered here or published by its workers."""
        return await self._core.threads.read(partial(self._core.functions.function, name))

    async def batch_of(self, batch_id: str) -> AsyncBatch:
        """Return the batch with that id; BatchNotFound if there is none."""
        found = await self._core.threads.read(partial(batch_of, self._core, batch_id))
        return AsyncBatch(self._core, found.id)

    async def cancel_all(
        self,
        function: Function[..., Any] | str | None = None,
        *,
        queue: str | None = None,
        owner: str | None = None,
        after: Instant | None = None,
        before: Instant | None = None,
    ) -> int:
        """Cancel every unfinished job that matches, due in [after, before); returns how many."""
        return await self._core.threads.call(
            lambda: self._app.cancel_all(
                function, queue=queue, owner=owner, after=after, before=before
            )
        )

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are currently registered."""
        return await self._core.threads.read(self._app.workers)

    async def held(self) -> Sequence[HeldJobs]:
        """Due jobs that cannot start, counted by reason and function."""
        return await self._core.threads.read(self._app.held)

    def watch(self, job_id: str, timeout: float | None = None) -> AsyncGenerator[Event]:
        """Yield the state of a job now, then each newer one, until it ends: `async for event in …`.

        Raises JobNotFound if there is no such job.
        """
        return watch_async(self._core, job_id, timeout)

    def transaction(self) -> AbstractAsyncContextManager[AsyncTx]:
        """Open a transaction outside any job: `async with app.aio.transaction() as tx: …`.

        It commits at the end of the block. Any exception, including cancellation of the task, rolls
        it back. The `tx` cannot be used after the block.
        """
        return _Transaction(self._core)

    async def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        # Here, so that it runs in the caller's context.
        refuse_inside_mutation("run")
        if any(isinstance(job, KeyedJob) for job in jobs):
            return await self._core.threads.call(partial(self._core.insert, jobs))
        found: Mapping[str, str] = await self._core.threads.join(self._core.insert_each, jobs)
        return found

    async def _get(self, job_id: str) -> JobRecord | None:
        return await self._core.threads.look(partial(self._core.get, job_id))

    async def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return await self._core.threads.read(partial(self._core.find, filter))

    async def _cancel(self, job_id: str) -> bool | None:
        return await self._core.threads.call(partial(self._core.cancel, job_id, "operator"))


class AsyncTx(AsyncVerbs):
    """A `Tx` for async code: its methods are coroutines.

    If the task of a statement is canceled, the statement is interrupted and the transaction is
    rolled back, even if the cancellation is caught.
    """

    _commits_later = True

    def __init__(self, core: Core, tx: Tx, lane: _Lane) -> None:
        self._core = core
        self._tx = tx
        self._lane = lane

    execute: Final = awaited(Tx.execute)

    @asynccontextmanager
    async def savepoint(self) -> AsyncGenerator[None]:
        """Undo what the block does, and only that, if it raises."""
        point = self._tx.savepoint()
        await self._do(lambda _: point.__enter__())
        try:
            yield
        except BaseException as error:
            undo = partial(point.__exit__, type(error), error, error.__traceback__)
            await _undone(self._lane.submit(undo), error)
            raise
        await self._do(lambda _: point.__exit__(None, None, None))

    async def _do(self, work: Callable[[Tx], T], reads: bool = False) -> T:
        self._lane.check()
        try:
            return await asyncio.wrap_future(self._lane.statement(partial(work, self._tx)))
        except asyncio.CancelledError:
            self._lane.broken = True
            self._core.threads.start(partial(self._lane.interrupt, self._tx))
            raise

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


class _Transaction(AbstractAsyncContextManager[AsyncTx]):
    """Opens a transaction on its own thread, and ends both."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lane = _Lane(core.threads.for_transaction())
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
        self._block = enter()
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
        return self._stack.enter_context(open_tx(self._core))

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


class _Lane:
    """The thread of one transaction."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._change = threading.Condition()
        self._in_statement = False
        self._interrupted = False
        self.broken = False
        self.ended = False

    def check(self) -> None:
        """Refuse work on a transaction that has ended or will be rolled back."""
        if self.ended:
            raise TransactionEnded("the transaction of this tx has ended; use tx only inside it")
        if self.broken:
            raise TransactionEnded(CANCELED)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return submit(self._executor, work)

    def statement(self, work: Callable[[], T]) -> Future[T]:
        """As `submit`, for statements that can be interrupted."""
        return self.submit(partial(self._do, work))

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

    def interrupt(self, tx: Tx) -> None:
        """Called in another thread: end the running statement, but never the rollback after it."""
        with self._change:
            self._interrupted = True
            while self._in_statement:
                tx._open().interrupt()  # pyright: ignore[reportPrivateUsage]
                # An interrupt that comes before the driver has started its statement has no effect.
                self._change.wait(INTERRUPT_AGAIN)

    def close(self) -> None:
        """End the thread after the work it already has."""
        self.ended = True
        self._executor.shutdown(wait=False)
