"""`app.aio`: the app's verbs for async code, without blocking the event loop.

The drivers are synchronous, so each store operation runs in a thread that duly manages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from duly.calendars import AsyncCalendars
from duly.calls.async_tx import AsyncTransaction, AsyncTx
from duly.calls.batches import AsyncBatch, batch_of
from duly.calls.bulk import AsyncBulk
from duly.calls.context import open_tx
from duly.calls.jobs import watch_async
from duly.calls.verbs import AsyncVerbs
from duly.functions.function import Function
from duly.functions.times import Instant
from duly.gateway import AsyncGateways
from duly.model.job import JobFilter, JobRecord, KeyedJob, NewJob
from duly.model.progress import Event
from duly.model.workflow import NewEvent
from duly.observe.view import AsyncObserve
from duly.runtime.transaction_guard import refuse_in_workflow, refuse_inside_mutation
from duly.schedules.twin import AsyncSchedules
from duly.store.base import HeldJobs, WorkerInfo

if TYPE_CHECKING:
    from duly.app.duly import Duly


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
        return AsyncTransaction(self._core, partial(open_tx, self._core))

    async def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        # Here, so that it runs in the caller's context.
        refuse_inside_mutation("run")
        if any(isinstance(job, KeyedJob) for job in jobs):
            return await self._core.threads.call(partial(self._core.insert, jobs))
        found: Mapping[str, str] = await self._core.threads.join(self._core.insert_each, jobs)
        return found

    async def _get(self, job_id: str) -> JobRecord | None:
        refuse_in_workflow("job")
        return await self._core.threads.look(partial(self._core.get, job_id))

    async def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        refuse_in_workflow("jobs")
        return await self._core.threads.read(partial(self._core.find, filter))

    async def _cancel(self, job_id: str) -> bool | None:
        return await self._core.threads.call(partial(self._core.cancel, job_id, "operator"))

    async def _send(self, event: NewEvent) -> None:
        await self._core.threads.call(partial(self._core.send, event))
