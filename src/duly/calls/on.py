"""`app.on(handle)`: the app's verbs inside a transaction that you manage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from duly.calls.jobs import AsyncJob, Job
from duly.calls.verbs import AsyncVerbs, Verbs
from duly.errors import NotCommittedYet
from duly.functions.function import Call
from duly.model.job import JobFilter, JobRecord, NewJob
from duly.model.workflow import NewEvent
from duly.runtime.transaction_guard import refuse_handles_inside_mutation
from duly.store import steps
from duly.store.base import Address
from duly.store.handles import AsyncUserHandle, UserHandle
from duly.store.steps import Steps
from duly.store.workflows import send

if TYPE_CHECKING:
    from duly.core import Core

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Verb = Callable[[Address], Steps[T]]

BY = "operator"


class SyncHandle(Protocol):
    """What sqlite3, psycopg, SQLAlchemy and Django handles have in common."""

    def commit(self) -> None: ...


class DjangoProxy(Protocol):
    """Django's `connection`, which looks up the thread's connection at each use."""

    def __getattr__(self, item: str) -> Any: ...


class AsyncHandle(Protocol):
    """What aiosqlite, async psycopg and async SQLAlchemy handles have in common."""

    def commit(self) -> Awaitable[None]: ...


class AsyncpgHandle(Protocol):
    """An asyncpg connection, which has no commit method."""

    def is_in_transaction(self) -> bool: ...


class On(Verbs):
    """The app's methods inside your transaction: their effects commit or roll back with it."""

    _commits_later = True

    def __init__(self, core: Core, borrowed: UserHandle, *, notify: bool) -> None:
        self._core = core
        self._borrowed = borrowed
        self._notify = notify

    def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        wakes = self._notify and self._core.is_due_soon(jobs)
        calls = wakes and self._borrowed.calls_after_commit()
        notify = wakes and not calls
        found = self._take(lambda to: steps.insert(to.dialect, jobs, notify=notify), writes=True)
        if calls:
            self._borrowed.after_commit(self._core.wake)
        return found

    def records(self, filter: JobFilter) -> Sequence[JobRecord]:
        """Jobs as they are stored, including redacted values; for internal use."""
        return self._take(lambda _: steps.find(filter))

    def _get(self, job_id: str) -> JobRecord | None:
        record = self._take(lambda _: steps.get(job_id))
        return None if record is None else self._core.redaction.shown(record)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._core.redaction.shown_all(self.records(filter))

    def _cancel(self, job_id: str) -> bool | None:
        now = self._core.now()
        return self._take(
            lambda to: steps.cancel_for_user(to.dialect, job_id, BY, now), writes=True
        )

    def _send(self, event: NewEvent) -> None:
        now = self._core.now()
        calls = self._notify and self._borrowed.calls_after_commit()
        notify = self._notify and not calls
        self._take(lambda to: send(to.dialect, event, now, notify=notify), writes=True)
        if calls:
            self._borrowed.after_commit(self._core.wake)

    def _take(self, verb: Verb[T], *, writes: bool = False) -> T:
        refuse_handles_inside_mutation()
        address = self._core.ready().address()
        return self._borrowed.take(address, verb(address), writes=writes)

    def _handle(self, call: Call[R], job: NewJob, found: Mapping[str, str]) -> Job[R]:
        decode = call.function.signature.decode_result
        job_id, existed = found.get(job.id, job.id), job.id in found
        return OnJob(self._core, job_id, decode, partial(committed, self._core), existed=existed)

    def _from_record(self, record: JobRecord) -> Job[Any]:
        return OnJob(
            self._core, record.id, self._core.functions.result_decoder(record), self._look, record
        )

    def _look(self, job_id: str) -> JobRecord:
        """The job as committed, or else as the open transaction sees it."""
        record = self._core.get(job_id)
        if record is None and self._borrowed.is_open():
            record = self._get(job_id)
        return present(job_id, record)


class AsyncOn(AsyncVerbs):
    """Like `On`, for a handle whose methods are awaited."""

    _commits_later = True

    def __init__(self, core: Core, borrowed: AsyncUserHandle, *, notify: bool) -> None:
        self._core = core
        self._borrowed = borrowed
        self._notify = notify

    async def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        wakes = self._notify and self._core.is_due_soon(jobs)
        calls = wakes and self._borrowed.calls_after_commit()
        notify = wakes and not calls

        def insert(to: Address) -> Steps[dict[str, str]]:
            return steps.insert(to.dialect, jobs, notify=notify)

        found = await self._take(insert, writes=True)
        if calls:
            self._borrowed.after_commit(self._core.wake)
        return found

    async def _get(self, job_id: str) -> JobRecord | None:
        record = await self._take(lambda _: steps.get(job_id))
        return None if record is None else (await self._shown([record]))[0]

    async def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return await self._shown(await self._take(lambda _: steps.find(filter)))

    async def _shown(self, records: Sequence[JobRecord]) -> Sequence[JobRecord]:
        # The store must be asked what functions of other services redact.
        if all(record.function in self._core.functions.registered for record in records):
            return self._core.redaction.shown_all(records)
        return await self._core.threads.read(partial(self._core.redaction.shown_all, records))

    async def _cancel(self, job_id: str) -> bool | None:
        def cancel(to: Address) -> Steps[bool | None]:
            return steps.cancel_for_user(to.dialect, job_id, BY, self._core.clock.now())

        return await self._take(cancel, writes=True)

    async def _send(self, event: NewEvent) -> None:
        calls = self._notify and self._borrowed.calls_after_commit()
        notify = self._notify and not calls

        def deliver(to: Address) -> Steps[tuple[int, bool]]:
            return send(to.dialect, event, self._core.clock.now(), notify=notify)

        await self._take(deliver, writes=True)
        if calls:
            self._borrowed.after_commit(self._core.wake)

    async def _take(self, verb: Verb[T], *, writes: bool = False) -> T:
        refuse_handles_inside_mutation()
        if not self._core.functions.is_fresh():
            await self._core.threads.read(self._core.functions.refresh)
        address = self._core.store.address()
        return await self._borrowed.take(address, verb(address), writes=writes)

    def _handle(self, call: Call[R], job: NewJob, found: Mapping[str, str]) -> AsyncJob[R]:
        decode = call.function.signature.decode_result
        job_id, existed = found.get(job.id, job.id), job.id in found
        read = partial(committed_async, self._core)
        return AsyncOnJob(self._core, job_id, decode, read, existed=existed)

    def _from_record(self, record: JobRecord) -> AsyncJob[Any]:
        decode = self._core.functions.result_decoder(record)
        return AsyncOnJob(self._core, record.id, decode, self._look, record)

    async def _look(self, job_id: str) -> JobRecord:
        record = await self._core.threads.read(lambda: self._core.get(job_id))
        if record is None and self._borrowed.is_open():
            record = await self._get(job_id)
        return present(job_id, record)


# The jobs ----------------------------------------------------------------------------------------


class OnJob(Job[R_co]):
    """A job that others see, and that can be waited for, only after your transaction commits."""

    def result(self, timeout: float | None = None) -> R_co:
        """Like Job.result; raises NotCommittedYet before your transaction commits."""
        committed(self._core, self._id)
        return super().result(timeout)

    def cancel(self) -> bool:
        """Like Job.cancel; raises NotCommittedYet before your transaction commits."""
        committed(self._core, self._id)
        return super().cancel()


class AsyncOnJob(AsyncJob[R_co]):
    """`OnJob` for async code."""

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job; see OnJob.result."""
        await committed_async(self._core, self._id)
        return await super().result(timeout)

    async def cancel(self) -> bool:
        """Cancel the job; see OnJob.cancel."""
        await committed_async(self._core, self._id)
        return await super().cancel()


def committed(core: Core, job_id: str) -> JobRecord:
    # A read waits for no lock, so your open transaction does not block it.
    return present(job_id, core.get(job_id))


async def committed_async(core: Core, job_id: str) -> JobRecord:
    return present(job_id, await core.threads.read(lambda: core.get(job_id)))


def present(job_id: str, record: JobRecord | None) -> JobRecord:
    if record is None:
        raise NotCommittedYet(job_id)
    return record
