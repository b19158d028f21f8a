"""One connection inside one transaction, and the verbs that both databases do the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec

from duly import fault
from duly.model.function import CLOSED, FunctionInfo, Published, Status
from duly.model.job import (
    Claim,
    ErrorKind,
    Hold,
    JobFilter,
    JobRecord,
    Lost,
    NewJob,
    Settlement,
    State,
    TrackedJob,
)
from duly.model.progress import LogEntry, Look, ProgressReport, oldest_seq_for
from duly.model.stored import read
from duly.store import inbox, limits, steps
from duly.store import schedule_statements as schedule_sql
from duly.store import statements as sql
from duly.store.base import (
    CancelJobs,
    Change,
    ClaimRequest,
    HeldJobs,
    QueuePause,
    RepeatJobs,
    WorkerInfo,
)
from duly.store.schedules.audit import Deed, audit, audit_gone, write_down
from duly.store.schedules.rows import schedule_of
from duly.store.statements import Dialect, Statement
from duly.store.steps import Ask, Row, Steps, drive

CANCEL_PAGE = 500
RETRY_OF = "retry-of"
T = TypeVar("T")


class Session(ABC):
    """Runs duly's statements; what it does is committed, or not, by whoever opened it."""

    dialect: Dialect

    @abstractmethod
    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]: ...

    @abstractmethod
    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run one of the texts that statements.py composes."""

    @abstractmethod
    def insert_canceled(self, jobs: Sequence[NewJob], by: str, now: int) -> None: ...

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement], now: int) -> set[str]: ...

    @abstractmethod
    def lanes(self) -> list[Row]: ...

    @abstractmethod
    def claim(self, request: ClaimRequest, now: int) -> list[Claim]: ...

    def take(self, verb: Steps[T]) -> T:
        """Run a verb that is written as steps."""
        return drive(verb, self.answer)

    def answer(self, ask: Ask) -> list[Row]:
        parameters = cast(Mapping[str, Any], ask.parameters)
        if isinstance(ask.statement, str):
            return self.run_text(ask.statement, parameters)
        return self.run(ask.statement, parameters)

    def array(self, values: Iterable[str]) -> Any:
        """Many strings as one parameter."""
        return steps.array(self.dialect, values)

    # Reading

    def get(self, job_id: str) -> JobRecord | None:
        return self.take(steps.get(job_id))

    def find(self, filter: JobFilter) -> list[JobRecord]:
        return self.take(steps.find(filter))

    def look(self, job_ids: Collection[str]) -> list[Look]:
        return self.take(steps.look(self.dialect, job_ids))

    # Progress and log lines

    def report(self, progress: Sequence[ProgressReport], lines: Sequence[LogEntry]) -> None:
        self.take(steps.report(self.dialect, progress, lines))
        for job_id, oldest in _oldest_lines(lines).items():
            self.run(sql.FORGET_LOGS, {"job_id": job_id, "seq": oldest})

    def logs(self, job_id: str, after: int) -> list[Row]:
        return self.run(sql.READ_LOGS, {"job_id": job_id, "after": after})

    def forget_reports(self, job_ids: Sequence[str]) -> None:
        """What finished jobs have said goes with them."""
        if job_ids:
            which = {"ids": self.array(job_ids)}
            self.run(sql.FORGET_PROGRESS_OF, which)
            self.run(sql.FORGET_LOGS_OF, which)
            self.run(sql.FORGET_TRACES_OF, which)

    # Cancel

    def cancel(self, job_id: str, by: str, now: int, deed: Deed | None = None) -> bool | None:
        won = self.take(steps.cancel(self.dialect, job_id, by, now))
        if won:
            write_down(self, deed)
        return won

    def cancel_live(
        self, job_ids: Iterable[str], by: str, now: int, *, only_pending: bool = False
    ) -> int:
        verb = steps.cancel_live(self.dialect, job_ids, by, now, only_pending=only_pending)
        return self.take(verb)

    def cancel_page(self, filter: JobFilter, after: str, by: str, now: int) -> tuple[int, str]:
        """Cancel one page of matching jobs; how many, and where the next page starts ("" = end)."""
        parameters = sql.parameters_of(filter) | {"after_id": after, "limit": CANCEL_PAGE}
        page = [row[0] for row in self.run_text(sql.live_matching(filter), parameters)]
        only_pending = filter.state == State.PENDING
        canceled = self.cancel_live(page, by, now, only_pending=only_pending) if page else 0
        return canceled, page[-1] if len(page) == CANCEL_PAGE else ""

    def expire(self, now: int) -> int:
        expired = self._ids(sql.EXPIRED_IDS, {"now": now})
        if expired:
            message = "not started before it expired"
            self.take(
                steps.move_canceled(
                    self.dialect,
                    expired,
                    now,
                    error_kind=ErrorKind.EXPIRED,
                    error_message=message,
                )
            )
        return len(expired)

    # Enqueue

    def insert_jobs(self, jobs: Sequence[NewJob], ring: bool = False) -> dict[str, str]:
        return self.take(steps.insert(self.dialect, jobs, notify=ring))

    def insert_audited(self, jobs: Sequence[NewJob], deed: Deed) -> dict[str, str]:
        existing = self.insert_jobs(jobs)
        if jobs[0].id not in existing:
            write_down(self, deed)
        return existing

    def insert_children(
        self, parent: tuple[str, int], jobs: Sequence[NewJob], by: str, now: int
    ) -> dict[str, str] | None:
        existing = self.insert_jobs(jobs) if self.lock_running(*parent) else None
        if existing is None:
            self.insert_canceled(jobs, by, now)
        fault.point("child.inserted")
        return existing

    def lock_running(self, job_id: str, token: int) -> bool:
        """Whether the job still runs under this token; it stays so until the transaction ends."""
        return bool(self.run(sql.LOCK_PARENT, {"id": job_id, "token": token}))

    def start_bodies(self, attempts: Sequence[tuple[str, int]]) -> set[str]:
        started = [
            self.run(sql.START_BODY, {"id": job_id, "token": token})
            for job_id, token in sorted(attempts)
        ]
        return {row[0] for rows in started for row in rows}

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

    def deregister(self, worker_id: str, now: int) -> None:
        self.run(sql.DELETE_WORKER, {"id": worker_id})
        # Nobody else would ever free them.
        limits.release_all(self, worker_id, now)

    def workers(self) -> list[WorkerInfo]:
        return [_worker(row) for row in self.run(sql.WORKERS)]

    def beats(self) -> dict[str, int]:
        return dict(self.run(sql.BEATS))

    def holdings(self, worker_id: str) -> dict[str, int]:
        return dict(self.run(sql.HOLDINGS, {"worker": worker_id}))

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost], Settlement],
        now: int,
    ) -> int | None:
        rows = self.run(sql.LOCK_WORKER, {"id": worker_id})
        if not rows or (beat is not None and rows[0][0] != beat):
            return None
        lost = [Lost(*row) for row in self.run(sql.RUNNING_OF, {"worker": worker_id})]
        self.settle([judge(job) for job in lost], now)
        limits.release_all(self, worker_id, now)
        fault.point("rescue.moved")
        self.run(sql.DELETE_WORKER, {"id": worker_id})
        return len(lost)

    def due_alone(
        self, functions: Sequence[str], queues: Sequence[str] | None, now: int
    ) -> list[str]:
        of = None if queues is None else self.array(queues)
        which = {"functions": self.array(functions), "queues": of, "now": now}
        return [row[0] for row in self.run(sql.DUE_ALONE, which)]

    def overdue(self, before: int) -> list[Claim]:
        return [Claim(*row) for row in self.run(sql.OVERDUE, {"before": before})]

    # Batches, replays

    def batch_counts(self, batch_id: str) -> dict[str, int]:
        return dict(self.run(sql.BATCH_COUNTS, {"id": batch_id}))

    def free_hooks(self, job_ids: Sequence[str]) -> int:
        return len(self.run(sql.FREE_HOOKS, {"ids": self.array(job_ids)}))

    def repeated(self, job_ids: Sequence[str]) -> set[str]:
        where = {"scope": RETRY_OF, "keys": self.array(job_ids)}
        return {row[0] for row in self.run(sql.KEYS_TAKEN, where)}

    def replay(
        self, jobs: Sequence[TrackedJob], expires_at: int, deed: Deed | None = None
    ) -> dict[str, str]:
        """Insert jobs that repeat others, unless those were repeated before; who repeats whom."""
        fresh: list[TrackedJob] = []
        repeated: dict[str, str] = {}
        for job in jobs:
            assert job.retry_of is not None
            key = {"scope": RETRY_OF, "key": job.retry_of}
            if self.run(sql.TAKE_KEY, key | {"job_id": job.id, "expires_at": expires_at}):
                fresh.append(inbox.repeat(self, job))
                repeated[job.retry_of] = job.id
            else:
                repeated[job.retry_of] = self.run(sql.HOLDER_OF_KEY, key)[0][0]
        self.insert_jobs(fresh)
        if fresh:
            write_down(self, deed)
        return repeated

    # Bulk jobs

    def count(self, filter: JobFilter, live: bool) -> int:
        tables: Sequence[sql.Table] = ("jobs",) if live else sql.FINISHED
        texts = [sql.count_jobs(filter, table) for table in tables]
        return sum(self.run_text(text, sql.parameters_of(filter))[0][0] for text in texts)

    def live_ids(self, filter: JobFilter, after: str) -> list[str]:
        parameters = sql.parameters_of(filter) | {"after_id": after}
        return [row[0] for row in self.run_text(sql.live_page(filter), parameters)]

    def finished(self, filter: JobFilter, after: str) -> list[JobRecord]:
        parameters = sql.parameters_of(filter) | {"after_id": after}
        found: dict[str, JobRecord] = {}
        for table in sql.FINISHED:
            rows = self.run_text(sql.finished_page(filter, table), parameters)
            found |= {row[0]: steps.record(row) for row in rows}
        return sorted(found.values(), key=lambda job: job.id)[: filter.limit]

    def change_page(
        self,
        running: tuple[str, int],
        change: Change,
        checkpoint: Callable[[int], str],
        now: int,
    ) -> int | None:
        if not self.lock_running(*running):
            return None
        changed = self._change(change, now)
        fault.point("bulk.changed")
        job_id, token = running
        self.run(sql.CHECKPOINT, {"id": job_id, "token": token, "args": checkpoint(changed)})
        return changed

    def _change(self, change: Change, now: int) -> int:
        if isinstance(change, RepeatJobs):
            repeated = self.replay(change.jobs, change.expires_at)
            return sum(repeated[job.retry_of or ""] == job.id for job in change.jobs)
        any_state = isinstance(change, CancelJobs) and not change.only_pending
        which = sql.LIVE_IDS if any_state else sql.PENDING_IDS
        found = self._ids(which, {"ids": self.array(change.ids)})
        if isinstance(change, CancelJobs):
            self.cancel_live(found, change.by, now)
        elif found:
            self.run(sql.RESCHEDULE, {"ids": self.array(found), "run_at": change.run_at})
        return len(found)

    # Holds

    def known_functions(self) -> set[str]:
        rows = self.run(sql.KNOWN_FUNCTIONS)
        return {name for (text,) in rows for name in read(text, list[str], [])}

    def stuck_at_heads(self, now: int) -> list[tuple[str, str]]:
        """Due jobs at the head of their lane that nobody may start: id and function."""
        statuses = self.statuses()
        known = self.array(
            sorted(name for name in self.known_functions() if statuses.get(name) not in CLOSED)
        )
        stuck: list[tuple[str, str]] = []
        for queue, priority, run_at, *_ in self.lanes():
            if run_at <= now:
                where = {"queue": queue, "priority": priority, "now": now, "functions": known}
                stuck += [(row[0], row[1]) for row in self.run(sql.UNKNOWN_AT_HEAD, where)]
        return stuck

    def hold_stuck(self, stuck: Sequence[tuple[str, str]], now: int) -> int:
        """Hold jobs that nobody may start; cancel those of deleted functions.

        The statuses are read again: one may have changed since the jobs were found.
        """
        statuses = {name: Status(status) for name, status in self.run(sql.LOCK_STATUSES)}
        known = self.known_functions()
        paused = [i for i, f in stuck if statuses.get(f) == Status.PAUSED]
        deleted = [i for i, f in stuck if statuses.get(f) == Status.DELETED]
        unknown = [i for i, f in stuck if statuses.get(f) not in CLOSED and f not in known]
        self.hold(unknown, Hold.FUNCTION)
        self.hold(paused, Hold.PAUSED)
        if deleted:
            self.cancel_live(deleted, "operator", now, only_pending=True)
        return len(unknown) + len(paused) + len(deleted)

    def freed(self) -> dict[Hold, set[str]]:
        """The functions whose jobs need not be held any more, by the hold."""
        known = self.known_functions()
        statuses = self.statuses()
        paused = {name for name, status in statuses.items() if status == Status.PAUSED}
        # What waits for a key is canceled with its function once it is not held.
        deleted = {name for name, status in statuses.items() if status == Status.DELETED}
        return {Hold.FUNCTION: known, Hold.PAUSED: known - paused, Hold.KEY: deleted}

    def hold(self, job_ids: Sequence[str], reason: Hold) -> None:
        if job_ids:
            self.run(sql.SET_HOLD, {"ids": self.array(job_ids), "hold": reason})

    def release(self, hold: Hold, functions: Iterable[str]) -> int:
        """Free up to 1,000 jobs of these functions that are held for this reason."""
        held = self.held_ids(hold, functions)
        if held:
            self.run(sql.CLEAR_HOLD, {"ids": self.array(held)})
        return len(held)

    def held_ids(self, hold: Hold, functions: Iterable[str]) -> list[str]:
        return self._ids(sql.HELD_IDS, {"hold": hold, "functions": self.array(functions)})

    def held(self) -> list[HeldJobs]:
        return [HeldJobs(*row) for row in self.run(sql.HELD)]

    # Functions

    def publish(self, functions: Sequence[Published], now: int, force: bool) -> None:
        # In one order, so that workers that start together do not lock each other out; a function
        # before its aliases, which take its status.
        for function in sorted(functions, key=lambda f: (f.alias_of is not None, f.name)):
            fields = msgspec.structs.asdict(function)
            digest = function.digest()
            self.run(sql.PUBLISH, fields | {"digest": digest, "now": now, "force": force})

    def functions(self) -> list[FunctionInfo]:
        return [_function(row) for row in self.run(sql.FUNCTIONS)]

    def function(self, name: str) -> FunctionInfo | None:
        rows = self.run(sql.FUNCTION, {"name": name})
        return _function(rows[0]) if rows else None

    def statuses(self) -> dict[str, Status]:
        return {name: Status(status) for name, status in self.run(sql.STATUSES)}

    def set_status(
        self,
        name: str,
        status: Status,
        allowed: Iterable[Status],
        *,
        by: str | None,
        note: str | None,
        now: int,
    ) -> bool:
        values = {"name": name, "status": status, "by": by, "note": note, "now": now}
        changed = self.run(sql.SET_STATUS, values | {"allowed": self.array(allowed)})
        detail: dict[str, Any] = {"note": note}
        if status == Status.DELETED and changed:
            names = self.array(row[0] for row in changed)
            gone = self.run(schedule_sql.DELETE_SCHEDULES_OF, {"functions": names})
            records = [schedule_of(row) for row in gone]
            audit_gone(self, records, by, now)
            detail["removed"] = [record.id for record in records]
        if changed:
            audit(self, f"function.{status}", f"function:{name}", by, detail, now)
        return (name,) in changed

    def relist(self, worker_id: str, functions: Iterable[str]) -> None:
        self.run(sql.RELIST_WORKER, {"id": worker_id, "functions": _json(functions)})

    # Keys

    def admit_waiters(self, key: str, now: int) -> bool:
        return limits.follow(self, [key], now)

    def forget_keys(self, now: int) -> int:
        """Some of the keys and starts whose time is over."""
        expired = (sql.FORGET_KEYS, sql.FORGET_STARTS)
        return sum(len(self.run(statement, {"now": now})) for statement in expired)

    # Queues

    def paused_queues(self) -> list[QueuePause]:
        return [
            QueuePause(*row)
            for row in self.run(sql.QUEUES)
            if row[1] is not None and row[0] != schedule_sql.EVERYTHING
        ]

    def _ids(self, statement: Statement, parameters: Mapping[str, Any]) -> list[str]:
        return [row[0] for row in self.run(statement, parameters)]


def _worker(row: Row) -> WorkerInfo:
    id_, app, host, pid, queues, functions, slots, alone, beat, started_at = row
    return WorkerInfo(
        id_,
        app,
        host,
        pid,
        None if queues is None else read(queues, tuple[str, ...], ()),
        read(functions, tuple[str, ...], ()),
        slots,
        bool(alone),
        beat,
        started_at,
    )


def _function(row: Row) -> FunctionInfo:
    fields = list(row)
    fields[5] = bool(fields[5])
    fields[8] = Status(fields[8])
    return FunctionInfo(*fields)


def _oldest_lines(lines: Iterable[LogEntry]) -> dict[str, int]:
    """Where the lines of a job begin that are kept, of those that have older ones."""
    oldest = {entry.job_id: oldest_seq_for(entry.seq) for entry in lines}
    return {job_id: seq for job_id, seq in oldest.items() if seq > 0}


def _json(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()
