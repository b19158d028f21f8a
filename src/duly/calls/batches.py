"""Batches: jobs that are enqueued together, their progress, and one hook when all have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final

import msgspec

from duly.calls.jobs import (
    AsyncJob,
    Job,
    arguments_of,
    async_job_from,
    committed,
    job_from,
    state_from,
)
from duly.calls.replay import NOTHING, Replay, joined, replay_page, within_bytes
from duly.calls.twins import Twin, awaited
from duly.clock import os_monotonic, os_sleep
from duly.errors import (
    BatchNotFound,
    InvalidOption,
    JobCanceled,
    JobFailed,
    NotCommittedYet,
    ResultTimeout,
)
from duly.functions.function import Call, Function
from duly.functions.new_job import hook_job, new_jobs, tracked
from duly.ids import FIRST_ID, new_id
from duly.model.job import JobFilter, JobRecord, NewJob, State
from duly.runtime.transaction_guard import refuse_inside_mutation, refuse_waiting_inside_mutation

if TYPE_CHECKING:
    from duly.core import Core

PAGE = 1_000
_POLL_FIRST = 0.002
_POLL_LAST = 0.100


class BatchProgress(msgspec.Struct, frozen=True):
    """How many members of a batch are in each state."""

    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0

    @property
    def total(self) -> int:
        """The number of members."""
        return self.pending + self.running + self.ended

    @property
    def ended(self) -> int:
        """The number of members that have ended, whatever their outcome."""
        return self.succeeded + self.failed + self.canceled

    @property
    def done(self) -> bool:
        """Whether all members have ended."""
        return not (self.pending or self.running)

    @property
    def all_succeeded(self) -> bool:
        """Whether all members have succeeded."""
        return self.succeeded == self.total

    @property
    def value(self) -> float:
        """The finished share, from 0 to 1."""
        return self.ended / self.total if self.total else 1.0


class Batch:
    """Jobs that were enqueued together. Properties that can change are read on each access.

    A member that is retried is replaced by the new job, in its place.
    """

    def __init__(
        self,
        core: Core,
        batch_id: str,
        *,
        unseen: bool = False,
        existing: Sequence[Job[Any]] = (),
    ) -> None:
        self._core = core
        self._id = batch_id
        self._unseen = unseen
        """Whether some members may not be committed yet."""
        self._existing = tuple(existing)

    def __repr__(self) -> str:
        return f"<batch {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """The id of the batch."""
        return self._id

    @property
    def existing(self) -> tuple[Job[Any], ...]:
        """Existing jobs that were returned for calls with keys, instead of storing new members.

        They are not members. Only the result of `batch` has them; that of `batch_of` does not.
        """
        return self._existing

    def progress(self) -> BatchProgress:
        """How many members are in each state, at one moment."""
        progress = BatchProgress(**self._core.ready().batch_counts(self._id))
        if self._unseen and not progress.total:
            raise NotCommittedYet(self._id, "batch")
        self._unseen = False
        return progress

    def jobs(self, state: State | str | None = None) -> Iterator[Job[Any]]:
        """Iterate over the members, in the order of the calls; reads a page at a time."""
        chosen = state_from(state)
        self._refuse_unseen()
        return self._jobs(chosen)

    def results(
        self, timeout: float | None = None, *, return_exceptions: bool = False
    ) -> Iterator[Any]:
        """Iterate over what the members returned, in the order of the calls; waits for each.

        The first member that has not succeeded raises JobFailed or JobCanceled. With
        `return_exceptions`, the exception is yielded in its place. Raises ResultTimeout after
        `timeout` seconds.
        """
        self._refuse_unseen()
        until = None if timeout is None else os_monotonic() + timeout
        return (_outcome(job, until, return_exceptions) for job in self._jobs(None))

    def retry(self, state: State | str | None = None) -> Replay:
        """Retry the failed and canceled members, or only those in one of these states.

        `on_complete` also waits for the new jobs if it has not started yet, and is not called again
        if it has.
        """
        refuse_inside_mutation("batch.retry")
        chosen = state_from(state)
        if chosen not in (None, State.FAILED, State.CANCELED):
            raise InvalidOption("state", f"must be failed or canceled, not {chosen}")
        self._refuse_unseen()
        total = NOTHING
        for each in (State.FAILED, State.CANCELED) if chosen is None else (chosen,):
            after = FIRST_ID
            while page := _page(self._core, self._id, each, after):
                done = within_bytes(self._core, [record for _, record in page])
                total = joined(total, replay_page(self._core, done))
                after = page[len(done) - 1][0]
        return total

    def cancel(self) -> int:
        """Cancel every unfinished member and return how many there were. The hook is called."""
        refuse_inside_mutation("batch.cancel")
        self._refuse_unseen()
        filter = JobFilter(batch_id=self._id)
        canceled = self._core.ready().cancel_matching(filter, "operator", self._core.now())
        if canceled:
            self._core.tell_bodies()
        return canceled

    def wait(self, timeout: float | None = None) -> BatchProgress:
        """Wait until every member has ended; raises ResultTimeout after `timeout` seconds."""
        until = None if timeout is None else os_monotonic() + timeout
        pause = _POLL_FIRST
        while not (progress := self.progress()).done:
            refuse_waiting_inside_mutation()
            if until is not None and os_monotonic() >= until:
                raise ResultTimeout(self._id, State.PENDING, timeout or 0)
            os_sleep(pause)
            pause = min(pause * 1.5, _POLL_LAST)
        return progress

    def _jobs(self, state: State | None) -> Iterator[Job[Any]]:
        after = FIRST_ID
        while page := _page(self._core, self._id, state, after):
            after = page[-1][0]
            for record in _shown(self._core, page):
                yield job_from(self._core, record, self._core.get)

    def _refuse_unseen(self) -> None:
        if self._unseen:
            self.progress()


class AsyncBatch(Twin[Batch]):
    """A `Batch` for async code; its methods are awaited, and its iterators are async."""

    def __init__(
        self,
        core: Core,
        batch_id: str,
        *,
        unseen: bool = False,
        existing: Sequence[AsyncJob[Any]] = (),
    ) -> None:
        super().__init__(core, Batch(core, batch_id, unseen=unseen))
        self._existing = tuple(existing)

    def __repr__(self) -> str:
        return repr(self._sync)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncBatch) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """The id of the batch."""
        return self._sync.id

    @property
    def existing(self) -> tuple[AsyncJob[Any], ...]:
        """Existing jobs that were returned for calls with keys; see Batch.existing."""
        return self._existing

    progress: Final = awaited(Batch.progress, reads=True)
    retry: Final = awaited(Batch.retry)
    cancel: Final = awaited(Batch.cancel)

    async def wait(self, timeout: float | None = None) -> BatchProgress:
        """Wait until every member has ended; raises ResultTimeout after `timeout` seconds."""
        until = None if timeout is None else os_monotonic() + timeout
        pause = _POLL_FIRST
        while not (progress := await self.progress()).done:
            refuse_waiting_inside_mutation()
            if until is not None and os_monotonic() >= until:
                raise ResultTimeout(self.id, State.PENDING, timeout or 0)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _POLL_LAST)
        return progress

    async def jobs(self, state: State | str | None = None) -> AsyncGenerator[AsyncJob[Any]]:
        """Iterate over the members, in the order of the calls: `async for job in batch.jobs()`."""
        core, chosen, after = self._core, state_from(state), FIRST_ID
        await self._do(methodcaller("_refuse_unseen"), reads=True)
        while page := await core.threads.read(partial(_page, core, self.id, chosen, after)):
            after = page[-1][0]
            for record in await core.threads.read(partial(_shown, core, page)):
                yield async_job_from(core, record, committed(core))

    async def results(
        self, timeout: float | None = None, *, return_exceptions: bool = False
    ) -> AsyncGenerator[Any]:
        """Iterate over what the members returned, in the order of the calls; see Batch.results."""
        until = None if timeout is None else os_monotonic() + timeout
        async for job in self.jobs():
            try:
                value = await job.result(_left(until))
            except (JobFailed, JobCanceled) as error:
                if not return_exceptions:
                    raise
                value = error
            yield value


Page = list[tuple[str, JobRecord]]
"""Some members, each with its place among the calls."""


def _page(core: Core, batch_id: str, state: State | None, after: str) -> Page:
    return core.ready().batch_members(batch_id, state, after, PAGE)


def _shown(core: Core, page: Page) -> Sequence[JobRecord]:
    return core.redaction.shown_all([record for _, record in page])


def _outcome(job: Job[Any], until: float | None, return_exceptions: bool) -> Any:
    try:
        return job.result(_left(until))
    except (JobFailed, JobCanceled) as error:
        if not return_exceptions:
            raise
        return error


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - os_monotonic())


def batch_of(core: Core, batch_id: str) -> Batch:
    """The batch with that id; BatchNotFound if there is none."""
    store = core.ready()
    if not store.batch_has_members(batch_id):
        hook = store.get(batch_id)
        # The hook of a batch has its id: an empty batch is known by its hook.
        if hook is None or arguments_of(hook).get("batch_id") != batch_id:
            raise BatchNotFound(batch_id)
    return Batch(core, batch_id)


def batch_rows(
    calls: Sequence[Call[Any]],
    hook: Function[..., Any] | None,
    now: int,
    parent_id: str | None,
    idempotency_ms: int,
) -> tuple[str, list[NewJob]]:
    """The id of a new batch and the rows of its members, first, and of their hooks."""
    rows = [new_jobs(call, now, now, parent_id, idempotency_ms) for call in calls]
    batch_id = new_id(now)
    last = [] if hook is None else [_hook_of_batch(hook, batch_id, held=bool(rows), now=now)]
    members: list[NewJob] = [tracked(each[0], batch_id=batch_id) for each in rows]
    hooks = [row for each in rows for row in each[1:]]
    return batch_id, [*members, *hooks, *last]


def _hook_of_batch(hook: Function[..., Any], batch_id: str, *, held: bool, now: int) -> NewJob:
    """The hook has the id of its batch; the hook of an empty batch starts immediately."""
    job = hook_job(hook, {"batch_id": batch_id}, now)
    return msgspec.structs.replace(job, id=batch_id, hold=job.hold if held else None)
