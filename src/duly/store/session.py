"""One connection inside one transaction, and the verbs that both databases do the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from duly import fault
from duly.ids import is_id
from duly.model.job import (
    Claim,
    ErrorKind,
    Hold,
    JobFilter,
    JobRecord,
    Kind,
    Lost,
    NewJob,
    Settlement,
    State,
)
from duly.store import statements as sql
from duly.store.base import HeldJobs, QueuePause, WorkerInfo
from duly.store.statements import Statement

CANCEL_PAGE = 500
Row = tuple[Any, ...]


class Session(ABC):
    """Runs duly's statements; what it does is committed, or not, by whoever opened it."""

    @abstractmethod
    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]: ...

    @abstractmethod
    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one of the texts that statements.py composes."""

    @abstractmethod
    def array(self, values: Iterable[str]) -> Any:
        """Many strings as one parameter."""

    @abstractmethod
    def insert_jobs(self, jobs: Sequence[NewJob]) -> None: ...

    @abstractmethod
    def insert_canceled(self, jobs: Sequence[NewJob], by: str, now: int) -> None: ...

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement], now: int) -> set[str]: ...

    @abstractmethod
    def move_canceled(self, parameters: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def lanes(self) -> list[Row]: ...

    # Reading

    def get(self, job_id: str) -> JobRecord | None:
        """Live first, then history: one statement over both can miss a row on the move."""
        if not is_id(job_id):
            return None
        for statement in (sql.GET_LIVE, sql.GET_HISTORY, sql.GET_KEPT):
            rows = self.run(statement, {"id": job_id})
            if rows:
                return record(rows[0])
        return None

    def find(self, filter: JobFilter) -> list[JobRecord]:
        found: dict[str, JobRecord] = {}
        for table in sql.tables_for(filter.state):
            text = sql.list_jobs(filter, table)
            for row in self.run_text(text, sql.parameters_of(filter)):
                found[row[0]] = record(row)
        newest_first = sorted(found.values(), key=lambda job: job.id, reverse=True)
        return newest_first[: filter.limit]

    # Cancel

    def cancel(self, job_id: str, by: str, now: int) -> bool | None:
        if not is_id(job_id):
            return None
        if self.cancel_live([job_id], by, now):
            return True
        return None if self.get(job_id) is None else False

    def cancel_live(self, job_ids: Iterable[str], by: str, now: int) -> int:
        """Cancel those that are unfinished, and what descends from them through unfinished jobs."""
        level = self._ids(sql.LIVE_IDS, {"ids": self.array(job_ids)})
        canceled = 0
        from_parent = False
        while level:
            self._move(level, now, by=by, from_parent=from_parent)
            fault.point("cancel.moved")
            canceled += len(level)
            # A new statement, so that children committed meanwhile are seen.
            level = self._ids(sql.CHILD_IDS, {"ids": self.array(level)})
            from_parent = True
        return canceled

    def cancel_page(self, filter: JobFilter, after: str, by: str, now: int) -> tuple[int, str]:
        """Cancel one page of matching jobs; how many, and where the next page starts ("" = end)."""
        parameters = sql.parameters_of(filter) | {"after_id": after, "limit": CANCEL_PAGE}
        page = [row[0] for row in self.run_text(sql.live_matching(filter), parameters)]
        canceled = self.cancel_live(page, by, now) if page else 0
        return canceled, page[-1] if len(page) == CANCEL_PAGE else ""

    def expire(self, now: int) -> int:
        expired = self._ids(sql.EXPIRED_IDS, {"now": now})
        if expired:
            message = "not started before it expired"
            self._move(expired, now, error_kind=ErrorKind.EXPIRED, error_message=message)
        return len(expired)

    def _move(
        self,
        job_ids: Sequence[str],
        now: int,
        *,
        by: str | None = None,
        from_parent: bool = False,
        error_kind: str | None = None,
        error_message: str | None = None,
    ) -> None:
        self.move_canceled(
            {
                "ids": self.array(job_ids),
                "now": now,
                "by": by,
                "from_parent": from_parent,
                "error_kind": error_kind,
                "error_message": error_message,
            }
        )

    # Enqueue

    def insert_children(
        self, parent: tuple[str, int], jobs: Sequence[NewJob], by: str, now: int
    ) -> bool:
        alive = self.lock_running(*parent)
        if alive:
            self.insert_jobs(jobs)
        else:
            self.insert_canceled(jobs, by, now)
        fault.point("child.inserted")
        return alive

    def lock_running(self, job_id: str, token: int) -> bool:
        """Whether the job still runs under this token; it stays so until the transaction ends."""
        return bool(self.run(sql.LOCK_PARENT, {"id": job_id, "token": token}))

    # Workers

    def register(self, worker: WorkerInfo, now: int) -> None:
        self.run(
            sql.INSERT_WORKER,
            {
                "id": worker.id,
                "app": worker.app,
                "host": worker.host,
                "pid": worker.pid,
                "queues": None if worker.queues is None else _json(worker.queues),
                "functions": _json(worker.functions),
                "slots": worker.slots,
                "alone": worker.alone,
                "now": now,
            },
        )

    def workers(self) -> list[WorkerInfo]:
        return [_worker(row) for row in self.run(sql.WORKERS)]

    def beats(self) -> dict[str, int]:
        return dict(self.run(sql.BEATS))

    def holdings(self, worker_id: str) -> dict[str, int]:
        return dict(self.run(sql.HOLDINGS, {"id": worker_id}))

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost, bool], Settlement],
        now: int,
    ) -> int | None:
        rows = self.run(sql.LOCK_WORKER, {"id": worker_id})
        if not rows or (beat is not None and rows[0][1] != beat):
            return None
        alone = bool(rows[0][0])
        lost = [Lost(*row) for row in self.run(sql.RUNNING_OF, {"worker": worker_id})]
        self.settle([judge(job, alone) for job in lost], now)
        fault.point("rescue.moved")
        self.run(sql.DELETE_WORKER, {"id": worker_id})
        return len(lost)

    def time_out(self, before: int, judge: Callable[[Claim], Settlement], now: int) -> int:
        overdue = [Claim(*row) for row in self.run(sql.OVERDUE, {"before": before})]
        return len(self.settle([judge(claim) for claim in overdue], now))

    # Holds

    def known_functions(self) -> set[str]:
        rows = self.run(sql.KNOWN_FUNCTIONS)
        return {name for (text,) in rows for name in msgspec.json.decode(text, type=list[str])}

    def unknown_at_heads(self, now: int) -> list[str]:
        """Due jobs at the head of their lane whose function no worker lists."""
        known = self.array(sorted(self.known_functions()))
        unknown: list[str] = []
        for queue, priority, run_at in self.lanes():
            if run_at <= now:
                where = {"queue": queue, "priority": priority, "now": now, "functions": known}
                unknown += self._ids(sql.UNKNOWN_AT_HEAD, where)
        return unknown

    def hold(self, job_ids: Iterable[str], reason: Hold) -> None:
        self.run(sql.SET_HOLD, {"ids": self.array(job_ids), "hold": reason})

    def release(self, hold: Hold, functions: Iterable[str]) -> int:
        """Free up to 1,000 jobs of these functions that are held for this reason."""
        where = {"hold": hold, "functions": self.array(functions)}
        held = self._ids(sql.HELD_IDS, where)
        if held:
            self.run(sql.CLEAR_HOLD, {"ids": self.array(held)})
        return len(held)

    def held(self) -> list[HeldJobs]:
        return [HeldJobs(*row) for row in self.run(sql.HELD)]

    # Queues

    def paused_queues(self) -> list[QueuePause]:
        return [QueuePause(*row) for row in self.run(sql.QUEUES) if row[1] is not None]

    def _ids(self, statement: Statement, parameters: Mapping[str, Any]) -> list[str]:
        return [row[0] for row in self.run(statement, parameters)]


def record(row: Row) -> JobRecord:
    """A row of one of the three job tables as a value."""
    fields = list(row)
    fields[2] = Kind(fields[2])
    fields[5] = State(fields[5])
    return JobRecord(*fields)


def _worker(row: Row) -> WorkerInfo:
    id_, app, host, pid, queues, functions, slots, alone, beat, started_at = row
    return WorkerInfo(
        id_,
        app,
        host,
        pid,
        None if queues is None else msgspec.json.decode(queues, type=tuple[str, ...]),
        msgspec.json.decode(functions, type=tuple[str, ...]),
        slots,
        bool(alone),
        beat,
        started_at,
    )


def _json(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()
