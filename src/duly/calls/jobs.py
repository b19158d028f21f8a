"""`Job` and `AsyncJob`: the handles that callers get on jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

import msgspec

from duly.clock import from_ms, os_monotonic, os_sleep
from duly.errors import JobCanceled, JobFailed, JobNotFound, ResultTimeout
from duly.model.job import LEFT_OUT, JobFilter, JobRecord, State, Trigger
from duly.model.progress import Event, Look
from duly.model.stored_values import read, word
from duly.runtime.transaction_guard import refuse_waiting_inside_mutation

if TYPE_CHECKING:
    from duly.core import Core

R_co = TypeVar("R_co", covariant=True)

_POLL_FIRST = 0.002
_POLL_LAST = 0.050
MAX_CHILDREN = 10_000


class JobFailure(msgspec.Struct, frozen=True):
    """Why a job failed, or why its last attempt did."""

    kind: str | None
    message: str
    traceback: str | None


class Progress(msgspec.Struct, frozen=True):
    """How far a job is: what it said last."""

    value: float
    """From 0 to 1."""
    note: str | None
    at: datetime


class LogLine(msgspec.Struct, frozen=True):
    """One line of a job's log; `seq` grows, with gaps."""

    seq: int
    at: datetime
    level: str
    text: str


class Job(Generic[R_co]):
    """One durable call. What can still change is read from the store when it is asked for.

    Once the job is finished nothing changes any more, and nothing more is read.
    """

    def __init__(
        self,
        core: Core,
        job_id: str,
        decode: Callable[[str | None], Any],
        read: Callable[[str], JobRecord | None],
        record: JobRecord | None = None,
        *,
        existed: bool = False,
    ) -> None:
        self._core = core
        self._id = job_id
        self._decode = decode
        self._read = read
        self._record = record
        self._existed = existed

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        return self._id

    @property
    def existed(self) -> bool:
        """Whether the call that gave it found it there, under its key, and stored no other."""
        return self._existed

    @property
    def record(self) -> JobRecord:
        """Everything the store knows, in one read."""
        if not _is_final(self._record):
            self._record = self._read(self._id)
        if self._record is None:
            raise JobNotFound(self._id)
        return self._record

    @property
    def state(self) -> State:
        return self.record.state

    @property
    def function(self) -> str:
        return (self._record or self.record).function

    @property
    def arguments(self) -> dict[str, Any]:
        """What it was called with, as plain JSON data; redacted ones show as ***."""
        known = self._record
        if known is None or known.args == LEFT_OUT:
            known = self.record
        return arguments_of(known)

    @property
    def attempt(self) -> int:
        return self.record.attempt

    @property
    def created_at(self) -> datetime:
        return from_ms((self._record or self.record).created_at)

    @property
    def scheduled_at(self) -> datetime:
        """When the caller wanted it to run; never changes."""
        return from_ms((self._record or self.record).scheduled_at)

    @property
    def run_at(self) -> datetime:
        """When it is due: later than scheduled after a failed attempt."""
        return from_ms(self.record.run_at)

    @property
    def started_at(self) -> datetime | None:
        return _instant(self.record.started_at)

    @property
    def completed_at(self) -> datetime | None:
        """When it reached its final state; None until then."""
        return _instant(self.record.completed_at)

    @property
    def error(self) -> JobFailure | None:
        """Why it failed; while it waits for a retry, why the last attempt did."""
        return failure_of(self.record)

    @property
    def canceled_by(self) -> str | None:
        """`operator`, `job:<id>` of the job whose code did it, or `parent:<id>`."""
        return self.record.canceled_by

    @property
    def parent_id(self) -> str | None:
        return (self._record or self.record).parent_id

    @property
    def retry_of(self) -> str | None:
        """The job that this one repeats, on request."""
        return (self._record or self.record).retry_of

    @property
    def batch_id(self) -> str | None:
        return (self._record or self.record).batch_id

    @property
    def trigger(self) -> Trigger:
        """What started it: a call, a schedule, a webhook, a workflow, the HTTP API."""
        return word((self._record or self.record).trigger, Trigger, Trigger.MANUAL)

    @property
    def actor(self) -> str | None:
        """Who or what did, if that is known: the id of the schedule, for example."""
        return (self._record or self.record).actor

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job to finish and return what it returned.

        Raises JobFailed, JobCanceled, or ResultTimeout after so many seconds.
        """
        refuse_waiting_inside_mutation()
        until = None if timeout is None else os_monotonic() + timeout
        pause = _POLL_FIRST
        while not (record := self.record).state.is_terminal:
            if until is not None and os_monotonic() >= until:
                raise ResultTimeout(self._id, record.state, timeout or 0)
            os_sleep(pause)
            pause = min(pause * 1.5, _POLL_LAST)
        value: R_co = _result_of(record, self._decode)
        return value

    @property
    def progress(self) -> Progress | None:
        """What the attempt that runs, or ran last, said of its progress; None if nothing."""
        looks = self._core.ready().look([self._id])
        if not looks:
            # There is no such job, or none that is committed: reading it tells them apart.
            _ = self.record
        return _progress_in(looks)

    def logs(self, after: int = 0) -> list[LogLine]:
        """What the job has logged, after the line with that `seq`."""
        return _lines_of(self._core, self._id, after)

    def watch(self, timeout: float | None = None) -> Generator[Event]:
        """The job's state now, then every newer one, until its last.

        States that follow each other fast may be merged; the last always comes. After so many
        seconds it ends without.
        """
        refuse_waiting_inside_mutation()
        return self._core.watchers.watch(self._id, timeout)

    def cancel(self) -> bool:
        """Cancel it and what it has scheduled; False if it was finished already."""
        won = self._core.cancel(self._id, "operator")
        if won is None:
            raise JobNotFound(self._id)
        return won

    def children(self) -> list[Job[Any]]:
        """The jobs that this one has scheduled, newest first."""
        found = self._core.find(JobFilter(parent_id=self._id, limit=MAX_CHILDREN))
        return [job_from(self._core, record, self._core.get) for record in found]


Read = Callable[[str], Awaitable[JobRecord | None]]


class AsyncJob(Generic[R_co]):
    """The same, for async code: whatever asks the store is awaited.

    However many tasks wait for results, no thread waits with them.
    """

    def __init__(
        self,
        core: Core,
        job_id: str,
        decode: Callable[[str | None], Any],
        read: Read,
        record: JobRecord | None = None,
        *,
        existed: bool = False,
    ) -> None:
        self._core = core
        self._id = job_id
        self._decode = decode
        self._read = read
        self._record = record
        self._existed = existed

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncJob) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        return self._id

    @property
    def existed(self) -> bool:
        """Whether the call that gave it found it there, under its key, and stored no other."""
        return self._existed

    async def record(self) -> JobRecord:
        """Everything the store knows, in one read."""
        record = self._record
        if not _is_final(record):
            record = self._record = await self._read(self._id)
        if record is None:
            raise JobNotFound(self._id)
        return record

    async def state(self) -> State:
        return (await self.record()).state

    async def arguments(self) -> dict[str, Any]:
        """What it was called with, as plain JSON data; redacted ones show as ***."""
        known = self._record
        if known is None or known.args == LEFT_OUT:
            known = await self.record()
        return arguments_of(known)

    async def attempt(self) -> int:
        return (await self.record()).attempt

    async def error(self) -> JobFailure | None:
        """Why it failed; while it waits for a retry, why the last attempt did."""
        return failure_of(await self.record())

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job to finish and return what it returned; as Job.result."""
        refuse_waiting_inside_mutation()
        until = None if timeout is None else os_monotonic() + timeout
        pause = _POLL_FIRST
        while not (record := await self.record()).state.is_terminal:
            if until is not None and os_monotonic() >= until:
                raise ResultTimeout(self._id, record.state, timeout or 0)
            await asyncio.sleep(pause if pause < _POLL_LAST else _until_next_look())
            pause = min(pause * 1.5, _POLL_LAST)
        value: R_co = _result_of(record, self._decode)
        return value

    async def progress(self) -> Progress | None:
        """What the attempt that runs, or ran last, said of its progress; None if nothing."""
        looks = await self._core.threads.look(lambda: self._core.ready().look([self._id]))
        if not looks:
            await self.record()
        return _progress_in(looks)

    async def logs(self, after: int = 0) -> list[LogLine]:
        """What the job has logged, after the line with that `seq`."""
        return await self._core.threads.read(partial(_lines_of, self._core, self._id, after))

    def watch(self, timeout: float | None = None) -> AsyncGenerator[Event]:
        """The job's state now, then every newer one, until its last; as Job.watch."""
        return watch_async(self._core, self._id, timeout)

    async def cancel(self) -> bool:
        """Cancel it and what it has scheduled; False if it was finished already."""
        won = await self._core.threads.call(partial(self._core.cancel, self._id, "operator"))
        if won is None:
            raise JobNotFound(self._id)
        return won

    async def children(self) -> list[AsyncJob[Any]]:
        """The jobs that this one has scheduled, newest first."""
        which = JobFilter(parent_id=self._id, limit=MAX_CHILDREN)
        found = await self._core.threads.read(partial(self._core.find, which))
        return [async_job_from(self._core, record, committed(self._core)) for record in found]


def _is_final(record: JobRecord | None) -> TypeGuard[JobRecord]:
    """Whether the record is final and complete; what a list leaves out is read when asked for."""
    return (
        record is not None
        and record.state.is_terminal
        and LEFT_OUT not in (record.args, record.result)
    )


def _result_of(record: JobRecord, decode: Callable[[str | None], Any]) -> Any:
    if record.state == State.FAILED:
        raise JobFailed(
            record.id,
            record.error_kind or "user",
            record.error_message or "",
            record.error_traceback,
        )
    if record.state == State.CANCELED:
        raise JobCanceled(record.id, record.canceled_by)
    return decode(record.result)


def arguments_of(record: JobRecord) -> dict[str, Any]:
    """What a job was called with, as plain JSON data; nothing if that cannot be read."""
    return read(record.args, dict[str, Any], {})


def failure_of(record: JobRecord) -> JobFailure | None:
    """Why it failed, or why its last attempt did."""
    if record.error_kind is None and record.error_message is None:
        return None
    return JobFailure(record.error_kind, record.error_message or "", record.error_traceback)


def _progress_in(looks: Sequence[Look]) -> Progress | None:
    for look in looks:
        if look.has_progress and look.value is not None and look.updated_at is not None:
            return Progress(look.value, look.note, from_ms(look.updated_at))
    return None


def _lines_of(core: Core, job_id: str, after: int) -> list[LogLine]:
    entries = core.ready().logs(job_id, after)
    return [LogLine(e.seq, from_ms(e.logged_at), e.level, e.line) for e in entries]


def watch_async(core: Core, job_id: str, timeout: float | None) -> AsyncGenerator[Event]:
    refuse_waiting_inside_mutation()
    return core.watchers.watch_async(job_id, timeout)


def _until_next_look() -> float:
    """Those who have waited for long look at the same moments, so that they share a read."""
    return _POLL_LAST - asyncio.get_running_loop().time() % _POLL_LAST


def committed(core: Core) -> Read:
    """How async code reads a job as it is committed."""
    return lambda job_id: core.threads.look(lambda: core.get(job_id))


def job_from(
    core: Core,
    record: JobRecord,
    read: Callable[[str], JobRecord | None],
    *,
    existed: bool = False,
) -> Job[Any]:
    """The job of a stored record."""
    return Job(
        core, record.id, core.functions.result_decoder(record), read, record, existed=existed
    )


def async_job_from(core: Core, record: JobRecord, read: Read) -> AsyncJob[Any]:
    return AsyncJob(core, record.id, core.functions.result_decoder(record), read, record)


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)
