"""`Job` and `AsyncJob`: one job, to read, wait for and cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

import msgspec

from duly.calls import runs
from duly.calls.runs import StepInfo, WaitInfo
from duly.clock import from_ms, os_monotonic, os_sleep
from duly.errors import InvalidOption, JobCanceled, JobFailed, JobNotFound, ResultTimeout
from duly.model.job import LEFT_OUT, JobFailure, JobFilter, JobRecord, State, Trigger
from duly.model.progress import Event, Look
from duly.model.stored_values import read, word
from duly.runtime.transaction_guard import (
    refuse_in_workflow,
    refuse_waiting_inside_mutation,
)

if TYPE_CHECKING:
    from duly.core import Core

R_co = TypeVar("R_co", covariant=True)

_POLL_FIRST = 0.002
_POLL_LAST = 0.050
MAX_CHILDREN = 10_000


class Progress(msgspec.Struct, frozen=True):
    """The progress that a job last reported."""

    value: float
    """From 0 to 1; 1 once the job has succeeded."""
    note: str | None
    at: datetime


class LogLine(msgspec.Struct, frozen=True):
    """One line of a job's log; `seq` increases, with gaps."""

    seq: int
    at: datetime
    level: str
    text: str


class Job(Generic[R_co]):
    """One job. Properties that can change are read from the store on each access.

    Once the job has finished, nothing changes any more, so nothing is read again.
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
        """The id of the job."""
        return self._id

    @property
    def existed(self) -> bool:
        """Whether the call found an existing job with its key, so that no new job was stored."""
        return self._existed

    @property
    def record(self) -> JobRecord:
        """Everything that the store has about the job, in one read."""
        refuse_in_workflow("result")
        if not _is_final(self._record):
            self._record = self._read(self._id)
        if self._record is None:
            raise JobNotFound(self._id)
        return self._record

    @property
    def state(self) -> State:
        """The current state: pending, running, succeeded, failed or canceled."""
        return self.record.state

    @property
    def function(self) -> str:
        """The name of its function."""
        return (self._record or self.record).function

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call, as plain JSON data; redacted ones are shown as ***."""
        known = self._record
        if known is None or known.args == LEFT_OUT:
            known = self.record
        return arguments_of(known)

    @property
    def attempt(self) -> int:
        """How many attempts have been counted, including the current one."""
        return self.record.attempt

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return from_ms((self._record or self.record).created_at)

    @property
    def scheduled_at(self) -> datetime:
        """When the caller scheduled it to run; this never changes."""
        return from_ms((self._record or self.record).scheduled_at)

    @property
    def run_at(self) -> datetime:
        """When it is due: later than `scheduled_at` after a failed attempt."""
        return from_ms(self.record.run_at)

    @property
    def started_at(self) -> datetime | None:
        """When its current or last attempt started; None while it is pending."""
        return _instant(self.record.started_at)

    @property
    def completed_at(self) -> datetime | None:
        """When it reached its final state; None before that."""
        return _instant(self.record.completed_at)

    @property
    def error(self) -> JobFailure | None:
        """Why it failed; while it waits for a retry, why the last attempt failed."""
        return failure_of(self.record)

    @property
    def canceled_by(self) -> str | None:
        """Who canceled it: `operator`, `job:<id>` for a job's code, or `parent:<id>`."""
        return self.record.canceled_by

    @property
    def parent_id(self) -> str | None:
        """The id of the job whose code enqueued it, if any."""
        return (self._record or self.record).parent_id

    @property
    def retry_of(self) -> str | None:
        """The id of the job that this one retries, if any."""
        return (self._record or self.record).retry_of

    @property
    def batch_id(self) -> str | None:
        """The id of its batch, if it belongs to one."""
        return (self._record or self.record).batch_id

    @property
    def trigger(self) -> Trigger:
        """What enqueued it: a call, a schedule, a webhook or the HTTP API."""
        return word((self._record or self.record).trigger, Trigger, Trigger.MANUAL)

    @property
    def actor(self) -> str | None:
        """The id or name of what enqueued it, if known: for example the id of the schedule."""
        return (self._record or self.record).actor

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job to finish and return what it returned.

        Raises JobFailed or JobCanceled, or ResultTimeout after `timeout` seconds. In a mutation it
        raises WouldWaitForItself unless the job has ended.
        """
        until = None if timeout is None else os_monotonic() + timeout
        pause = _POLL_FIRST
        while not (record := self.record).state.is_terminal:
            refuse_waiting_inside_mutation()
            if until is not None and os_monotonic() >= until:
                raise ResultTimeout(self._id, record.state, timeout or 0)
            os_sleep(pause)
            pause = min(pause * 1.5, _POLL_LAST)
        value: R_co = _result_of(record, self._decode)
        return value

    @property
    def progress(self) -> Progress | None:
        """What the latest attempt reported, 1 if it succeeded; None if it reported nothing."""
        looks = self._core.ready().look([self._id])
        if not looks:
            # The job does not exist or is not committed; reading it tells which.
            _ = self.record
        return _progress_in(looks)

    def logs(self, after: int = 0) -> list[LogLine]:
        """Return the job's log lines after the one with that `seq`."""
        return _lines_of(self._core, self._id, after)

    def watch(self, timeout: float | None = None) -> Generator[Event]:
        """Yield the job's state now, then each newer one, until it has ended.

        States that follow each other quickly may be merged; the last one is always yielded, unless
        `timeout` seconds have passed before.
        """
        refuse_waiting_inside_mutation()
        return self._core.watchers.watch(self._id, timeout)

    def cancel(self) -> bool:
        """Cancel the job and the jobs it has enqueued; False if it had finished already."""
        won = self._core.cancel(self._id, "operator")
        if won is None:
            raise JobNotFound(self._id)
        return won

    def steps(self) -> list[StepInfo]:
        """Return what a workflow has recorded, in the order in which people read it."""
        refuse_in_workflow("steps")
        return runs.steps_of(self._core, self._id)

    @property
    def waits(self) -> tuple[WaitInfo, ...]:
        """What a pending workflow waits for; empty for other jobs."""
        return runs.waits_of(self._core, self.record)

    def children(self) -> list[Job[Any]]:
        """Return the jobs that this one has enqueued, newest first."""
        found = self._core.find(JobFilter(parent_id=self._id, limit=MAX_CHILDREN))
        return [job_from(self._core, record, self._core.get) for record in found]


Read = Callable[[str], Awaitable[JobRecord | None]]


def decoder_of(job: Job[Any] | AsyncJob[Any]) -> Callable[[str | None], Any]:
    """How the result of a job is decoded."""
    return job._decode  # pyright: ignore[reportPrivateUsage]


class AsyncJob(Generic[R_co]):
    """A `Job` for async code: everything that queries the store is awaited.

    Any number of tasks can wait for results without occupying a thread each.
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
        """The id of the job."""
        return self._id

    @property
    def existed(self) -> bool:
        """Whether the call found an existing job with its key, so that no new job was stored."""
        return self._existed

    async def record(self) -> JobRecord:
        """Everything that the store has about the job, in one read."""
        refuse_in_workflow("result")
        record = self._record
        if not _is_final(record):
            record = self._record = await self._read(self._id)
        if record is None:
            raise JobNotFound(self._id)
        return record

    async def state(self) -> State:
        """The current state: pending, running, succeeded, failed or canceled."""
        return (await self.record()).state

    async def arguments(self) -> dict[str, Any]:
        """The arguments of the call, as plain JSON data; redacted ones are shown as ***."""
        known = self._record
        if known is None or known.args == LEFT_OUT:
            known = await self.record()
        return arguments_of(known)

    async def attempt(self) -> int:
        """How many attempts have been counted, including the current one."""
        return (await self.record()).attempt

    async def error(self) -> JobFailure | None:
        """Why it failed; while it waits for a retry, why the last attempt failed."""
        return failure_of(await self.record())

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job to finish and return what it returned; see Job.result."""
        until = None if timeout is None else os_monotonic() + timeout
        pause = _POLL_FIRST
        while not (record := await self.record()).state.is_terminal:
            refuse_waiting_inside_mutation()
            if until is not None and os_monotonic() >= until:
                raise ResultTimeout(self._id, record.state, timeout or 0)
            await asyncio.sleep(pause if pause < _POLL_LAST else _until_next_look())
            pause = min(pause * 1.5, _POLL_LAST)
        value: R_co = _result_of(record, self._decode)
        return value

    async def progress(self) -> Progress | None:
        """What the latest attempt reported, 1 if it succeeded; None if it reported nothing."""
        looks = await self._core.threads.look(lambda: self._core.ready().look([self._id]))
        if not looks:
            await self.record()
        return _progress_in(looks)

    async def logs(self, after: int = 0) -> list[LogLine]:
        """Return the job's log lines after the one with that `seq`."""
        return await self._core.threads.read(partial(_lines_of, self._core, self._id, after))

    def watch(self, timeout: float | None = None) -> AsyncGenerator[Event]:
        """Yield the job's state now, then each newer one, until it has ended; see Job.watch."""
        return watch_async(self._core, self._id, timeout)

    async def cancel(self) -> bool:
        """Cancel the job and the jobs it has enqueued; False if it had finished already."""
        won = await self._core.threads.call(partial(self._core.cancel, self._id, "operator"))
        if won is None:
            raise JobNotFound(self._id)
        return won

    async def steps(self) -> list[StepInfo]:
        """Return what a workflow has recorded, in the order in which people read it."""
        refuse_in_workflow("steps")
        return await self._core.threads.read(partial(runs.steps_of, self._core, self._id))

    async def waits(self) -> tuple[WaitInfo, ...]:
        """What a pending workflow waits for; empty for other jobs."""
        record = await self.record()
        return await self._core.threads.read(partial(runs.waits_of, self._core, record))

    async def children(self) -> list[AsyncJob[Any]]:
        """Return the jobs that this one has enqueued, newest first."""
        which = JobFilter(parent_id=self._id, limit=MAX_CHILDREN)
        found = await self._core.threads.read(partial(self._core.find, which))
        return [async_job_from(self._core, record, committed(self._core)) for record in found]


def _is_final(record: JobRecord | None) -> TypeGuard[JobRecord]:
    """Whether the record is final and complete; lists leave out long values."""
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


def state_from(state: State | str | None) -> State | None:
    """A state that a caller gave, checked."""
    try:
        return None if state is None else State(state)
    except ValueError:
        raise InvalidOption("state", f"must be one of {', '.join(State)}, not {state!r}") from None


def arguments_of(record: JobRecord) -> dict[str, Any]:
    """The arguments of a job, as plain JSON data; empty if they cannot be read."""
    return read(record.args, dict[str, Any], {})


def failure_of(record: JobRecord) -> JobFailure | None:
    """Why the job, or its last attempt, failed."""
    if record.error_kind is None and record.error_message is None:
        return None
    return JobFailure(record.error_kind, record.error_message or "", record.error_traceback)


def _progress_in(looks: Sequence[Look]) -> Progress | None:
    for look in looks:
        if look.progress is not None and look.updated_at is not None:
            return Progress(look.progress, look.note, from_ms(look.updated_at))
    return None


def _lines_of(core: Core, job_id: str, after: int) -> list[LogLine]:
    entries = core.ready().logs(job_id, after)
    return [LogLine(e.seq, from_ms(e.logged_at), e.level, e.line) for e in entries]


def watch_async(core: Core, job_id: str, timeout: float | None) -> AsyncGenerator[Event]:
    refuse_waiting_inside_mutation()
    return core.watchers.watch_async(job_id, timeout)


def _until_next_look() -> float:
    """Callers that have waited for long look at the same moments, so that they share a read."""
    return _POLL_LAST - asyncio.get_running_loop().time() % _POLL_LAST


def committed(core: Core) -> Read:
    """How async code reads a committed job."""
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
