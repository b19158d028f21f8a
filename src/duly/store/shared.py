"""The verbs that every store does in the same way: one session, one transaction each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from duly import fault
from duly.model.function import FunctionInfo, Published, Status
from duly.model.job import (
    Claim,
    Hold,
    JobFilter,
    JobRecord,
    Lost,
    NewJob,
    Settlement,
)
from duly.store import statements as sql
from duly.store.base import HeldJobs, Lane, QueuePause, WorkerInfo
from duly.store.session import Session

S = TypeVar("S", bound=Session)
T = TypeVar("T")

FIRST_ID = "00000000-0000-0000-0000-000000000000"


class SharedVerbs(ABC, Generic[S]):
    """A store is how it reads and how it writes; the rest follows."""

    @abstractmethod
    def _read(self, ask: Callable[[S], T]) -> T:
        """Look at what is committed."""

    @abstractmethod
    def _write(self, work: Callable[[S], T]) -> T:
        """Do it in a transaction that is durable, or leaves no trace, when this returns."""

    def _single(self, work: Callable[[S], T]) -> T:
        """The same for a single statement."""
        return self._write(work)

    # Enqueue

    def enqueue_child(
        self, parent: tuple[str, int], jobs: Sequence[NewJob], by: str, now: int
    ) -> bool:
        return self._write(lambda s: s.insert_children(parent, jobs, by, now))

    # Run

    def lanes(self) -> Sequence[Lane]:
        return [Lane(*row) for row in self._read(lambda s: s.lanes())]

    def claim_alone(self, job_id: str, worker_id: str, now: int) -> Claim | None:
        where = {"id": job_id, "worker": worker_id, "now": now}
        rows = self._single(lambda s: s.run(sql.CLAIM_ALONE, where))
        return Claim(*rows[0]) if rows else None

    def due_alone(self, now: int) -> Sequence[str]:
        return [row[0] for row in self._read(lambda s: s.run(sql.DUE_ALONE, {"now": now}))]

    # Cancel

    def cancel(self, job_id: str, by: str, now: int) -> bool | None:
        return self._write(lambda s: s.cancel(job_id, by, now))

    def cancel_matching(self, filter: JobFilter, by: str, now: int) -> int:
        canceled, after = self._write(lambda s: s.cancel_page(filter, FIRST_ID, by, now))
        while after:
            more, after = self._write(lambda s: s.cancel_page(filter, after, by, now))  # noqa: B023
            canceled += more
        return canceled

    # Read

    def get(self, job_id: str) -> JobRecord | None:
        return self._read(lambda s: s.get(job_id))

    # Workers

    def workers(self) -> Sequence[WorkerInfo]:
        return self._read(lambda s: s.workers())

    def beats(self) -> dict[str, int]:
        return self._read(lambda s: s.beats())

    def holdings(self, worker_id: str) -> dict[str, int]:
        return self._read(lambda s: s.holdings(worker_id))

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost, bool], Settlement],
        now: int,
    ) -> int | None:
        rescued = self._write(lambda s: s.rescue(worker_id, beat, judge, now))
        fault.point("rescue.committed")
        return rescued

    def relist(self, worker_id: str, functions: Sequence[str]) -> None:
        self._write(lambda s: s.relist(worker_id, functions))
        self._release(functions)

    def _release(self, functions: Sequence[str]) -> None:
        """Free the jobs that waited for somebody who has these functions."""
        for hold in (Hold.FUNCTION, Hold.SIGNATURE):
            while self._write(lambda s: s.release(hold, functions)):  # noqa: B023
                pass

    # Upkeep

    def time_out(self, before: int, judge: Callable[[Claim], Settlement], now: int) -> int:
        return self._write(lambda s: s.time_out(before, judge, now))

    def expire(self, now: int) -> int:
        return self._write(lambda s: s.expire(now))

    def hold_unknown(self, now: int) -> int:
        stuck = self._read(lambda s: s.stuck_at_heads(now))
        return self._write(lambda s: s.hold_stuck(stuck, now)) if stuck else 0

    def release_known(self) -> int:
        return sum(
            self._write(lambda s: s.release(hold, functions))  # noqa: B023
            for hold, functions in self._read(lambda s: s.freed()).items()
        )

    def held(self) -> Sequence[HeldJobs]:
        return self._read(lambda s: s.held())

    # Functions

    def publish(self, functions: Sequence[Published], now: int, *, force: bool = False) -> None:
        self._write(lambda s: s.publish(functions, now, force))

    def functions(self) -> Sequence[FunctionInfo]:
        return self._read(lambda s: s.functions())

    def function(self, name: str) -> FunctionInfo | None:
        return self._read(lambda s: s.function(name))

    def statuses(self) -> Mapping[str, Status]:
        return self._read(lambda s: s.statuses())

    def set_status(
        self,
        name: str,
        status: Status,
        allowed: Sequence[Status],
        *,
        by: str | None,
        note: str | None,
        now: int,
    ) -> bool:
        return self._write(lambda s: s.set_status(name, status, allowed, by=by, note=note, now=now))

    # Queues

    def pause_queue(self, name: str, by: str | None, note: str | None, now: int) -> None:
        values = {"name": name, "by": by, "note": note, "now": now}
        self._write(lambda s: s.run(sql.PAUSE_QUEUE, values))

    def resume_queue(self, name: str) -> None:
        self._write(lambda s: s.run(sql.RESUME_QUEUE, {"name": name}))

    def paused_queues(self) -> Sequence[QueuePause]:
        return self._read(lambda s: s.paused_queues())
