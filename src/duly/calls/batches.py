"""Batches: jobs that are enqueued together, their progress, and one hook when all have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from duly.calls.jobs import Job, job_from
from duly.calls.twins import Twin, awaited
from duly.clock import os_monotonic, os_sleep
from duly.errors import NotCommittedYet, ResultTimeout
from duly.functions.function import Call, Function
from duly.functions.new_job import hook_job, new_jobs, tracked
from duly.ids import new_id
from duly.model.job import JobFilter, NewJob, State
from duly.runtime.transaction_guard import refuse_inside_mutation, refuse_waiting_inside_mutation

if TYPE_CHECKING:
    from duly.core import Core

MAX_LISTED = 10_000
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
    def value(self) -> float:
        """The finished share, from 0 to 1."""
        return self.ended / self.total if self.total else 1.0


class Batch:
    """Jobs that were enqueued together. Properties that can change are read on each access."""

    def __init__(self, core: Core, batch_id: str, *, unseen: bool = False) -> None:
        self._core = core
        self._id = batch_id
        self._unseen = unseen
        """Whether some members may not be committed yet."""

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

    def progress(self) -> BatchProgress:
        """How many members are in each state, at one moment."""
        progress = BatchProgress(**self._core.ready().batch_counts(self._id))
        if self._unseen and not progress.total:
            raise NotCommittedYet(self._id, "batch")
        self._unseen = False
        return progress

    def jobs(self, state: State | None = None) -> list[Job[Any]]:
        """The members, newest first."""
        self._refuse_unseen()
        filter = JobFilter(batch_id=self._id, state=state, limit=MAX_LISTED)
        found = self._core.find(filter)
        return [job_from(self._core, record, self._core.get) for record in found]

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
        refuse_waiting_inside_mutation()
        until = None if timeout is None else os_monotonic() + timeout
        pause = _POLL_FIRST
        while not (progress := self.progress()).done:
            if until is not None and os_monotonic() >= until:
                raise ResultTimeout(self._id, State.PENDING, timeout or 0)
            os_sleep(pause)
            pause = min(pause * 1.5, _POLL_LAST)
        return progress

    def _refuse_unseen(self) -> None:
        if self._unseen:
            self.progress()


class AsyncBatch(Twin[Batch]):
    """A `Batch` for async code; its methods are awaited."""

    def __init__(self, core: Core, batch_id: str, *, unseen: bool = False) -> None:
        super().__init__(core, Batch(core, batch_id, unseen=unseen))

    def __repr__(self) -> str:
        return repr(self._sync)

    @property
    def id(self) -> str:
        """The id of the batch."""
        return self._sync.id

    progress: Final = awaited(Batch.progress, reads=True)
    cancel: Final = awaited(Batch.cancel)


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
