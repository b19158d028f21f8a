"""What must every store do, and which of it is atomic?

Two stores implement this protocol, SQLite and PostgreSQL; `duly.testing.StoreConformance` is the
suite that any other one has to pass. Every verb takes `now`: a store never asks a clock what time
it is for the jobs. A verb either happens as a whole or, if it raises, not at all.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from duly.errors import NonRetryable, RetryAfter, StoreError, StoreUnavailable
from duly.model.access import RequestClaim, TokenRecord
from duly.model.calendar import Calendar
from duly.model.decide import Facts, Signal
from duly.model.endpoint import EndpointRecord
from duly.model.function import FunctionInfo, Published, Status
from duly.model.gateway import GatewayRecord
from duly.model.inbox import EventPage, FoundEvent, InboxFilter, InboxRecord
from duly.model.job import (
    Claim,
    JobFilter,
    JobRecord,
    KeyEntry,
    Lost,
    NewJob,
    Settlement,
    TrackedJob,
)
from duly.model.keys import KeyWait
from duly.model.measure import Count, Depth, ScheduleCounts
from duly.model.news import Changes, Cursor
from duly.model.progress import LogEntry, Look, ProgressReport
from duly.model.schedule import Plan, ScheduleRecord, TickRecord
from duly.store.declared import Settle, Stored
from duly.store.expectations import MakeAlert
from duly.store.inbox import MakeEventJobs
from duly.store.inbox import Stored as StoredEvent
from duly.store.schedules.audit import AuditEntry, Deed
from duly.store.schedules.calendars import CalendarRecord
from duly.store.schedules.data import Edit, ScheduleFilter, TickFilter
from duly.store.schedules.facts import Range
from duly.store.schedules.ledger import MakeJobs
from duly.store.schedules.retention import Day
from duly.store.schedules.runs import Choose
from duly.store.schedules.ticking import Ticked
from duly.store.statements import Dialect
from duly.store.system import SystemTable
from duly.store.views import Ended, Run, Tally

if TYPE_CHECKING:
    from duly.store.copying import CopyEnd

POOL = 20
"""How many connections a process has for its callers."""

_thread = threading.local()


def become_own_loop() -> None:
    """This thread is one of duly's own, of which there are few: it never waits behind callers."""
    _thread.is_own_loop = True


def is_own_loop() -> bool:
    return getattr(_thread, "is_own_loop", False)


class WorkerInfo(msgspec.Struct, frozen=True):
    """One row of the workers table: a process that runs jobs."""

    id: str
    app: str
    host: str
    pid: int
    queues: tuple[str, ...] | None
    functions: tuple[str, ...]
    slots: int
    alone: bool
    beat: int
    started_at: int


class ClaimRequest(msgspec.Struct, frozen=True):
    """What a worker asks for: at most `limit` due jobs of these functions, queue by queue."""

    worker_id: str
    queues: tuple[str, ...]
    functions: tuple[str, ...]
    limit: int
    floors: Mapping[tuple[str, int], int] = {}
    """By queue and priority: no job due earlier than this needs to be looked at."""
    limited: bool = False
    """Whether jobs under limits may be among them, as a lane has said; without it they may be
    left alone."""
    freed: tuple[tuple[str, int], ...] = ()
    """Attempts (job id, token) whose bodies have ended. Their slots are freed, and those that wait
    for them are claimed in the same transaction, before anything else."""
    served: tuple[str, ...] | None = None
    """The queues of which those may be; None: any."""


class Lane(msgspec.Struct, frozen=True):
    """Claimable jobs of one queue and priority exist; the earliest is due at `run_at`."""

    queue: str
    priority: int
    run_at: int
    limited: bool = False
    """Whether some jobs, of any lane, can be claimed only by a request that says `limited`."""


class QueuePause(msgspec.Struct, frozen=True):
    name: str
    paused_at: int
    paused_by: str | None
    note: str | None


class CancelJobs(msgspec.Struct, frozen=True):
    """Cancel those of these jobs that are unfinished, and what descends from them."""

    ids: Sequence[str]
    by: str
    only_pending: bool


class RepeatJobs(msgspec.Struct, frozen=True):
    """Insert these jobs, which repeat others; as Store.replay."""

    jobs: Sequence[TrackedJob]
    expires_at: int


class MoveJobs(msgspec.Struct, frozen=True):
    """Let those of these jobs that are pending be due at another time."""

    ids: Sequence[str]
    run_at: int


Change = CancelJobs | RepeatJobs | MoveJobs
"""What a bulk job does to one page of jobs."""


class HeldJobs(msgspec.Struct, frozen=True):
    """So many jobs of one function are held for one reason (counted up to 10,000)."""

    hold: str
    function: str
    count: int
    oldest_run_at: int


class Engine(msgspec.Struct, frozen=True):
    """The database as those see it who look after it."""

    name: str
    version: str
    journal_mode: str | None = None
    """Of SQLite."""
    network_file_system: str | None = None
    """On which the file of SQLite is, if it is on one."""
    longest_transaction_ms: int | None = None
    """For how long somebody's transaction has been open, as far as PostgreSQL tells us."""
    isolation: str | None = None
    """What PostgreSQL gives to transactions that do not say which level they need."""
    pool: int | None = None
    """How many connections a process has for its callers."""
    connections: int | None = None
    """How many the server has in use, of `max_connections`."""
    max_connections: int | None = None
    transaction_timeout_ms: int | None = None
    """After what the server ends a transaction, or one that is idle."""


class Address(msgspec.Struct, frozen=True):
    """Which database a store is in, for those who come with a connection of their own."""

    dialect: Dialect
    schema: str
    store_id: str
    where: str
    """The same for people."""


class Rows:
    """What `tx.execute` returns: the rows of a statement, as tuples, and how many it touched."""

    __slots__ = ("_rows", "rowcount")

    def __init__(self, rows: Sequence[tuple[Any, ...]], rowcount: int) -> None:
        self._rows = rows
        self.rowcount: int = rowcount

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def all(self) -> list[tuple[Any, ...]]:
        """Every row."""
        return list(self._rows)

    def first(self) -> tuple[Any, ...] | None:
        """The first row, or None."""
        return self._rows[0] if self._rows else None

    def one(self) -> tuple[Any, ...]:
        """The only row; any other number of rows is a LookupError."""
        if len(self._rows) != 1:
            raise LookupError(f"expected one row, the statement returned {len(self._rows)}")
        return self._rows[0]

    def scalar(self) -> Any:
        """The first column of the first row, or None."""
        return self._rows[0][0] if self._rows else None


def driver_error(error: BaseException) -> BaseException:
    """What the driver raised: SQLAlchemy and Django wrap it."""
    original = getattr(error, "orig", None)
    if type(error).__module__ == "django.db.utils":
        original = error.__cause__
    return original if isinstance(original, BaseException) else error


class StoreTx(Protocol):
    """An open transaction: everything done in it happens together or not at all."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        """Run the user's statement; `?` marks a parameter on every database."""
        ...

    def insert_jobs(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """As Store.enqueue."""
        ...

    def get(self, job_id: str) -> JobRecord | None: ...

    def find(self, filter: JobFilter) -> Sequence[JobRecord]: ...

    def cancel(self, job_id: str, by: str, now: int) -> bool | None:
        """True if it won, False if the job was finished, None if there is no such job."""
        ...

    def lock_running(self, job_id: str, token: int) -> bool:
        """Whether the job still runs under this token; it stays so until the transaction ends."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """Everything inside is undone, alone, when the block raises."""
        ...

    def interrupt(self) -> None:
        """Called from another thread: make the statement that runs now fail."""
        ...


class NeedsAlone(BaseException):
    """A body in a shared transaction did what concerns all of it: run it again, alone.

    Not an Exception, so that a body that catches everything does not swallow it.
    """


MEMBER = f"duly_member_{os.urandom(8).hex()}"
"""The savepoint of a member, by a name that no body meets by accident."""


# A constraint, a value that does not fit, a trigger of the user's.
_REFUSALS_OF_A_ROW = {"DataError", "IntegrityError", "RaiseException"}


def is_refusal_of_a_row(error: Exception) -> bool:
    """Whether what was to be written is at fault, and not the store as a whole."""
    if not isinstance(error, StoreError) or isinstance(error, StoreUnavailable):
        return False
    names = {each.__name__ for each in type(error.__cause__).__mro__}
    return bool(names & _REFUSALS_OF_A_ROW)


class RowsLocked(StoreError):
    """Somebody's transaction holds the rows of some jobs; all others were settled."""

    def __init__(self, settled: set[str], locked: set[str]) -> None:
        self.settled = settled
        self.locked = locked
        super().__init__(f"the rows of {len(locked)} ended jobs are locked by other transactions")


class Blame(StrEnum):
    """Who is to blame for a mutation's error, which decides whether it runs again."""

    BODY = "body"
    CONFLICT = "conflict"
    """Another transaction won: serialization, deadlock, a locked file."""
    LOCK = "lock"
    """The body's own statement would not wait for a lock: NOWAIT, `lock_timeout`, busy."""
    DATABASE = "database"
    """The connection is lost, or the database in trouble: full, read-only, out of memory."""


def blame(error: BaseException, blame_one: Callable[[BaseException], Blame]) -> Blame:
    """Who is to blame for an error, also where the body has raised one of its own instead.

    What the body itself says of another attempt counts, and what it makes of a lock.
    """
    if isinstance(error, NonRetryable | RetryAfter):
        return Blame.BODY
    for each in causes(error):
        found = blame_one(each)
        if found in (Blame.CONFLICT, Blame.DATABASE):
            return found
    return blame_one(driver_error(error))


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and every other one that it wraps, or was raised from or instead of."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        following = left.pop()
        if following is not None and not any(following is known for known in found):
            found.append(following)
            left += following.__cause__, following.__context__
            yield driver_error(following)


class MutationLane(Protocol):
    """A connection of its own for mutation bodies, used by one thread.

    begin → (enter → body through `tx` → (finish → leave) | undo)* → commit | rollback.
    """

    @property
    def tx(self) -> StoreTx: ...

    def begin(self, shared: bool) -> None:
        """Open the transaction; `shared` if several members will use it."""
        ...

    def enter(self) -> None:
        """Open one member's savepoint."""
        ...

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        """The member's last statement: the fenced move to succeeded.

        In a shared transaction it may wait for `commit`, which then raises if a job was taken away.
        Raises TransactionEnded when the body has ended the transaction.
        """
        ...

    def log(self, lines: Sequence[LogEntry]) -> None:
        """Write down what the member has logged, before its last statement."""
        ...

    def leave(self) -> None:
        """Keep what the member did."""
        ...

    def undo(self) -> bool:
        """Undo what the member did. False: the whole transaction is gone, with all members."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def interrupt(self) -> None:
        """From another thread: stop the statement that runs now."""
        ...

    def renew(self) -> None:
        """Forget whatever a body may have left on the connection."""
        ...

    def blame(self, error: BaseException) -> Blame:
        """Who is to blame for what has ended a body, or the transaction around it.

        Asked before the connection is rolled back or renewed.
        """
        ...

    def is_refusal(self, error: BaseException) -> bool:
        """Whether the error came from the database and not from the body's own code."""
        ...

    def has_refused(self) -> bool:
        """Whether the member was refused what it might get alone, even if it hides that."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """The verbs. Each says what is atomic."""

    mutation_lanes: int
    """How many mutations run at the same time, each on a connection of its own."""
    mutations_share: bool
    """Whether mutations share transactions without having asked for it."""
    mutation_group: int
    """How many may share one."""
    mutation_group_seconds: float
    """After how long no more join."""
    mutation_backlog: int
    """How many claimed ones may wait for a connection before no more are claimed."""
    mutation_seconds: float
    """How long a body may take."""
    finishes_with_claim: bool
    """Whether settling and claiming in one transaction is faster than side by side."""

    tells_changes: bool
    """Whether `watch` sets its bell at every change of a job, and not only when one is due."""

    # Schema
    def migrate(self, now: int) -> Sequence[str]:
        """Create or upgrade the tables; the names of the steps taken."""
        ...

    def pending_migrations(self) -> Sequence[tuple[str, str]]:
        """Name and SQL of every step that `migrate` would take."""
        ...

    def migration_script(self, now: int) -> str:
        """Everything that `migrate` would run, as plain SQL; empty if there is nothing to do."""
        ...

    def open(self, now: int) -> None:
        """Connect and make sure that this code may use the store."""
        ...

    def close(self) -> None: ...

    def address(self) -> Address:
        """Which database it is in; known once it is open."""
        ...

    # Copy
    def copy_end(self) -> CopyEnd:
        """The store as one end of a copy; it need not be open, and may be closed to all others."""
        ...

    # Enqueue
    def enqueue(self, jobs: Sequence[NewJob], *, ring: bool = False) -> Mapping[str, str]:
        """Insert all of them, durably, or none; but for those whose keys somebody holds.

        By the id of each of these, the id of the job that holds them. With `ring`, workers in
        other processes are told.
        """
        ...

    def enqueue_audited(self, jobs: Sequence[NewJob], deed: Deed) -> Mapping[str, str]:
        """As enqueue, and write down who wanted it if the first of them is stored."""
        ...

    def enqueue_child(
        self, parent: tuple[str, int], jobs: Sequence[NewJob], by: str, now: int
    ) -> Mapping[str, str] | None:
        """Insert jobs of a running action, if its row still carries the token; as enqueue.

        Otherwise they are stored canceled, and the answer is None.
        """
        ...

    def transaction(self) -> AbstractContextManager[StoreTx]:
        """A transaction of the user's: commits at the end of the block, rolls back if it raises."""
        ...

    # Run
    def lanes(self) -> Sequence[Lane]:
        """Every queue and priority with claimable jobs, and when the first one is due."""
        ...

    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        """Settle what has ended and claim what is due: the ids that settled, the new claims.

        Each settlement is fenced by its token; the others are left as they are. A claim is durable
        when this returns. Raises RowsLocked if some could not be settled yet.
        """
        ...

    def start_bodies(self, attempts: Sequence[tuple[str, int]]) -> set[str]:
        """The bodies of these attempts (job id, token) start now: calls with their keys make other
        jobs from here on. The ids of those that still run; no other body may start.
        """
        ...

    def claim_alone(
        self, job_id: str, worker_id: str, functions: Sequence[str], now: int
    ) -> Claim | None:
        """Claim one job that must run in a process of its own, if it is of these functions."""
        ...

    def due_alone(
        self, functions: Sequence[str], queues: Sequence[str] | None, now: int
    ) -> Sequence[str]:
        """Some due jobs of that kind, of these functions and queues; None: of any queue."""
        ...

    def mutation_lane(self) -> MutationLane: ...

    # Cancel
    def cancel(self, job_id: str, by: str, now: int, deed: Deed | None = None) -> bool | None:
        """Cancel a job and its unfinished descendants in one transaction; as StoreTx.cancel.

        The deed is written down if it won.
        """
        ...

    def cancel_matching(self, filter: JobFilter, by: str, now: int) -> int:
        """Cancel every unfinished job that matches, in batches; how many were canceled."""
        ...

    # Read
    def get(self, job_id: str) -> JobRecord | None: ...

    def find(self, filter: JobFilter) -> Sequence[JobRecord]:
        """Newest first."""
        ...

    def look(self, job_ids: Collection[str]) -> Sequence[Look]:
        """Where jobs stand and what they said last, in one or two statements for all of them.

        A job that is not in the store is not in the answer.
        """
        ...

    def logs(self, job_id: str, after: int) -> Sequence[LogEntry]:
        """The log lines of a job that come after one, in order."""
        ...

    # Reports
    def report(self, progress: Sequence[ProgressReport], lines: Sequence[LogEntry]) -> None:
        """Write down what attempts have said; repeated, it changes nothing.

        Progress counts only while its attempt runs, and only if nothing newer is known.
        """
        ...

    def is_kept(self, entry: KeyEntry, now: int) -> bool:
        """Whether a call with this key has come before, and is remembered."""
        ...

    def key_wait(self, job_id: str, now: int) -> KeyWait | None:
        """What a job waits for that is held for its key; None if it has none, or is gone."""
        ...

    def batch_counts(self, batch_id: str) -> Mapping[str, int]:
        """How many members of a batch are in which state, at one moment."""
        ...

    def repeated(self, job_ids: Sequence[str]) -> set[str]:
        """Those of these jobs that were repeated by others."""
        ...

    def replay(
        self, jobs: Sequence[TrackedJob], expires_at: int, deed: Deed | None = None
    ) -> Mapping[str, str]:
        """Insert jobs that repeat others (`retry_of`), all or none.

        One that was repeated before is not repeated again until then; by the id of the repeated
        job, the id of the one that does. The deed is written down if there is a new one.
        """
        ...

    # Bulk jobs
    def count(self, filter: JobFilter, *, live: bool) -> int:
        """How many unfinished jobs match, or how many finished ones; none of duly's own."""
        ...

    def live_ids(self, filter: JobFilter, after: str) -> Sequence[str]:
        """The next unfinished jobs that match, oldest first, after one; as `count` has them."""
        ...

    def finished(self, filter: JobFilter, after: str) -> Sequence[JobRecord]:
        """The same among the finished ones."""
        ...

    def change_page(
        self,
        running: tuple[str, int],
        change: Change,
        checkpoint: Callable[[int], str],
        now: int,
    ) -> int | None:
        """Change some jobs for a running job (id, token), and write down how far it is; how many.

        Both happen together: `checkpoint(how many)` becomes the running job's arguments. Nothing
        happens, and the answer is None, if it does not run any more under that token.
        """
        ...

    # Workers
    def register(self, worker: WorkerInfo, now: int) -> None:
        """Add the worker's row and free the jobs that were held for want of its functions."""
        ...

    def deregister(self, worker_id: str, now: int) -> None:
        """Remove the row of a worker that has nothing running, and what slots it has left."""
        ...

    def workers(self) -> Sequence[WorkerInfo]: ...

    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        """Prove life, and take the database's time where it is the truth; who still has a row."""
        ...

    def beats(self) -> dict[str, int]:
        """Every worker's beat counter."""
        ...

    def is_dead(self, worker_id: str) -> bool | None:
        """Whether the worker's process is gone; None where only beats can tell."""
        ...

    def holdings(self, worker_id: str) -> dict[str, int]:
        """Token by job id of the rows that carry the worker's id."""
        ...

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost], Settlement],
        now: int,
    ) -> int | None:
        """Settle every job of a dead worker and remove its row, in one transaction.

        `judge(job)` decides. Does nothing and answers None if the worker has beaten since.
        """
        ...

    # Upkeep
    def time_out(self, before: int, judge: Callable[[Claim], Settlement | None], now: int) -> int:
        """Settle running jobs whose deadline is `before` or older, where `judge` says how."""
        ...

    def expire(self, now: int) -> int:
        """Cancel pending jobs that were not started in time."""
        ...

    def hold_unknown(self, now: int) -> int:
        """Hold due jobs of functions that are paused or that no worker lists; how many.

        Those of a deleted function are canceled.
        """
        ...

    def release_known(self) -> int:
        """Free held jobs of functions that are listed and not paused any more; how many."""
        ...

    def free_hooks(self, after: Sequence[str]) -> tuple[Sequence[str], int]:
        """Free hooks that wait for no unfinished job any more, whatever the reason.

        Looks at some that come after one, by its function and id; the last of them, () at the end,
        and how many were freed.
        """
        ...

    def held(self) -> Sequence[HeldJobs]: ...

    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        """Remove some finished jobs that are older than the cutoff; 0 when none are left."""
        ...

    # Limits
    def release_slots(self, ended: Sequence[tuple[str, int]], now: int) -> bool:
        """The bodies of these attempts (job id, token) have really ended: free their slots.

        Those who wait for them are freed in the same transaction; whether anybody can start now.
        Repeated, it changes nothing.
        """
        ...

    def slots_of(self, worker_id: str) -> set[tuple[str, int]]:
        """The attempts (job id, token) that hold slots for this worker."""
        ...

    def admit_waiters(self, after: str, now: int) -> tuple[str, bool]:
        """Free whoever waits for a key that leaves something, whatever the reason.

        Looks at some keys that come after one; the last of them, "" at the end, and whether
        anybody can start now.
        """
        ...

    def forget_keys(self, now: int) -> int:
        """Remove some keys, and starts that count for a rate, whose time is over; how many."""
        ...

    # Functions
    def publish(self, functions: Sequence[Published], now: int, *, force: bool = False) -> None:
        """Describe functions to everybody; their status stays as it is.

        A description that was replaced before, or that belongs to another app, changes nothing
        unless it is forced.
        """
        ...

    def functions(self) -> Sequence[FunctionInfo]: ...

    def function(self, name: str) -> FunctionInfo | None: ...

    def statuses(self) -> Mapping[str, Status]:
        """The functions that are not active."""
        ...

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
        """Give a published function, and its aliases, a status, if it has an allowed one now."""
        ...

    def relist(self, worker_id: str, functions: Sequence[str]) -> None:
        """The worker has other functions now; jobs that waited for them are freed."""
        ...

    # Webhooks
    def receive_webhook(self, record: InboxRecord, make_jobs: MakeEventJobs | None) -> StoredEvent:
        """Store a delivery and its jobs in one transaction, unless the delivery is there already.

        Without jobs it is stored as filtered. The job of an entity is held until the earlier ones
        of the same webhook and entity have ended.
        """
        ...

    def event(self, event_id: str) -> FoundEvent | None:
        """A received webhook and its job; None also if retention has removed the job."""
        ...

    def events(self, filter: InboxFilter) -> EventPage:
        """Some of them without their bodies, newest first; see EventPage."""
        ...

    def retry_event(
        self,
        event_id: str,
        again: Callable[[JobRecord], TrackedJob],
        expires_at: int,
        by: str | None,
        now: int,
    ) -> str | None:
        """Run the job of an event that failed or was canceled again, audited: the new job's id.

        None, and nothing happens, if there is no such event, or it has not failed.
        """
        ...

    def retain_events(self, after: str, cutoff: int) -> tuple[str, int]:
        """Forget events from before the cutoff, some of those after one, whose job is gone, or
        which were filtered; where to go on, "" at the end, and how many went."""
        ...

    # Measures
    def depths(self, now: int) -> Sequence[Depth]:
        """How many jobs wait and run, by queue, counted up to a limit."""
        ...

    def oldest_due(self) -> int | None:
        """When the schedule that is due first is, or was, due, whoever may tick it."""
        ...

    def schedule_counts(self) -> ScheduleCounts:
        """How many schedules there are, counted up to a limit."""
        ...

    def waiting_functions(self) -> Sequence[str]:
        """The functions that unfinished jobs call which do not run, up to 1,000 of them."""
        ...

    def engine(self) -> Engine:
        """What kind of database it is, and how that is set up."""
        ...

    def required_zone_data(self) -> str:
        """The version of the zone data that a ticker must have; "" if any will do."""
        ...

    def tally(self, now: int, overdue: int, day: int, owner: str | None) -> Tally:
        """How many there are of what operators look for; of all owners if it is None.

        `overdue`: schedules that were due before it count as such; `day`: since when failed jobs
        are counted.
        """
        ...

    def recent_runs(self, schedule_ids: Sequence[str], limit: int) -> Mapping[str, list[Run]]:
        """The newest finished jobs of each of these schedules, newest first."""
        ...

    def function_runs(self, functions: Sequence[str], limit: int) -> Mapping[str, list[Run]]:
        """The newest jobs of each of these functions that succeeded or failed, newest first."""
        ...

    def throughput(self, since: int, step: int, owner: str | None) -> Sequence[Ended]:
        """How many jobs have ended in which step of time, and how: of the newest 10,000 that were
        stored since then."""
        ...

    def add_counts(self, counts: Sequence[Count]) -> None:
        """Add to the counts that all processes share."""
        ...

    def counts(self) -> Sequence[Count]:
        """What all processes have counted so far."""
        ...

    def traces(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        """The `traceparent` of those jobs that belong to a trace."""
        ...

    def system_tables(self) -> Sequence[SystemTable]:
        """duly's own tables, with their rows counted up to a limit."""
        ...

    def system_rows(
        self, table: str, after: Sequence[str | int] | None, limit: int
    ) -> Sequence[Mapping[str, Any]]:
        """Rows of one of duly's tables beyond a key, in the order of their keys.

        Without what users have written: arguments, results, bodies, secrets.
        """
        ...

    # Queues
    def pause_queue(self, name: str, by: str | None, note: str | None, now: int) -> None:
        """Start no more of its jobs; audited, as all that is done to queues."""
        ...

    def resume_queue(self, name: str, by: str | None, now: int) -> None: ...

    def limit_queue(self, name: str, at_once: int | None, by: str | None, now: int) -> None:
        """Run at most so many jobs of the queue at once, over all workers; None: any number."""
        ...

    def queue_limits(self) -> Mapping[str, int]: ...

    def paused_queues(self) -> Sequence[QueuePause]: ...

    # Schedules
    def due_schedules(
        self, now: int, limit: int, *, zone_data: str, signals_for: str | None = None
    ) -> Sequence[ScheduleRecord]:
        """The schedules that are due, oldest first.

        Zoned ones only for those whose zone data is of the version that `take_zone_data` has seen,
        or later. With `signals_for`, those of other apps that ask for a signal are left to them.
        """
        ...

    def next_due(self, *, zone_data: str, signals_for: str | None = None) -> int | None:
        """When the next schedule is due that somebody with this zone data may tick."""
        ...

    def tick(
        self,
        now: int,
        page: int,
        signals: Mapping[str, Signal],
        make_jobs: MakeJobs,
        *,
        zone_data: str,
        signals_for: str | None = None,
        only: str | None = None,
    ) -> Ticked:
        """Decide one page of due schedules, in one transaction; or the one with that id.

        Each tick becomes one row of the ledger and, if it is dispatched, its jobs; a slot that has
        a row gets no job. The schedule moves on to its next tick; one that cannot be decided is
        parked. Schedules that somebody else has locked are left to them.
        """
        ...

    def park_schedule(self, schedule_id: str, error: str, now: int) -> None:
        """Let a schedule rest that cannot be ticked, with the error."""
        ...

    def missing_functions(self) -> Sequence[str]:
        """The functions for want of which schedules are parked."""
        ...

    def revive_schedules(self, functions: Sequence[str], now: int) -> int:
        """Let up to 100 schedules that were parked for want of these functions tick again, from
        now; how many."""
        ...

    def take_zone_data(self, version: str) -> bool:
        """Require this version of the zone data, unless a later one is required: older tickers
        leave zoned schedules alone. Whether stored ticks have to be computed anew with it."""
        ...

    def compute_zoned(self, version: str, after: str, now: int) -> str | None:
        """Compute the next ticks of up to 100 zoned schedules after one anew; the last of them.

        None if there are no more, or if a later version is required meanwhile.
        """
        ...

    def re_aim(self, now: int, zone_data: str) -> int:
        """Let schedules that somebody has moved on by a clock ahead of this one stand at the first
        tick that is still to come and has no row in the ledger; how many. Zoned ones as in `tick`.
        """
        ...

    def run_schedule(
        self,
        schedule_id: str,
        choose: Choose,
        make_jobs: MakeJobs,
        now: int,
        *,
        by: str | None = None,
        parent_id: str | None = None,
        ancestors: frozenset[str] = frozenset(),
        slots: Range | None = None,
        run_id: str | None = None,
    ) -> Sequence[TickRecord] | None:
        """Run ticks that no trigger asks for, while the schedule is locked: what became of each.

        None if there is no such schedule. A slot that has a row is answered with the reason
        `schedule_slot_exists`, and audited; `slots` is where those are looked for first. Under a
        `run_id` a run is made once: asked for again, it is what became of it, or nothing if the
        ledger keeps that no longer.
        """
        ...

    def facts(
        self,
        plans: Sequence[Plan],
        now: int,
        signals: Mapping[str, Signal] | None = None,
        slots: Range | None = None,
    ) -> Facts:
        """What ticks of these schedules would be decided by now."""
        ...

    def add_schedule(self, record: ScheduleRecord, by: str | None, now: int) -> bool:
        """Store a new schedule; False if there is one of that app, owner and key."""
        ...

    def edit_schedule(
        self,
        schedule_id: str,
        change: Edit,
        action: str,
        by: str | None,
        detail: Mapping[str, Any] | None,
        now: int,
    ) -> ScheduleRecord | None:
        """Change a schedule while it is locked, and write down who did; as it is then.

        None if there is no such schedule. A change that answers None changes nothing.
        """
        ...

    def remove_schedule(self, schedule_id: str, by: str | None, now: int) -> bool:
        """Remove a schedule. Its unfinished jobs, and its ledger, stay."""
        ...

    def schedule(self, schedule_id: str) -> ScheduleRecord | None: ...

    def find_schedule(self, app: str, owner: str, key: str) -> ScheduleRecord | None: ...

    def schedules(self, filter: ScheduleFilter) -> Sequence[ScheduleRecord]:
        """Oldest first."""
        ...

    def is_scheduled(self, functions: Sequence[str]) -> bool:
        """Whether a schedule calls one of these functions."""
        ...

    def scheduled_functions(self) -> set[str]:
        """The functions that at least one schedule targets."""
        ...

    def ticks(self, schedule_id: str, filter: TickFilter) -> Sequence[TickRecord]:
        """Rows of the ledger, newest first."""
        ...

    def retain_ticks(self, after: str, cutoff: int) -> tuple[str, int]:
        """Forget old ticks and costs of some schedules that come after one: the last of them, ""
        at the end, and how many ticks went.

        A schedule keeps its newest hundred, and what its budget looks at. What goes is added to the
        row of its day in the same transaction.
        """
        ...

    def days(self, schedule_id: str) -> Sequence[Day]:
        """What is left of ticks and jobs that are gone: one row for every day (UTC) with any."""
        ...

    def ledger_days(self, schedule_id: str) -> Sequence[Day]:
        """The same of the ticks and jobs that are still there: of the newest 10,000 of a kind."""
        ...

    def calendars_of(self, plans: Sequence[Plan]) -> Mapping[str, Calendar]:
        """The calendars that are attached to these schedules, by what they call them."""
        ...

    def next_check(self) -> int | None:
        """When the next promise of a schedule is to be checked."""
        ...

    def check_promises(self, now: int, make_alert: MakeAlert) -> int:
        """Check some promises that are due, in one transaction with the jobs that tell of those
        that were broken; how many were looked at."""
        ...

    def set_cost(self, job_id: str, token: int, amount: float) -> None:
        """What an attempt of a schedule's job has cost so far; for other jobs nothing happens."""
        ...

    def declared(self, app: str, calendars: Sequence[str] = ()) -> Stored:
        """What there is of the schedules that an app declares, and of these calendars by name."""
        ...

    def apply_declared(
        self, app: str, calendars: Sequence[str], settle: Settle, by: str | None, now: int
    ) -> None:
        """Change the schedules that an app declares, all in one transaction.

        Whoever does that for the same app at the same time waits, and then sees what was done.
        """
        ...

    def pause_everything(self, by: str | None, note: str | None, now: int) -> None:
        """Start no job of any queue and dispatch no tick until it is resumed; audited."""
        ...

    def resume_everything(self, by: str | None, now: int) -> bool:
        """The contrary; False if nothing was paused."""
        ...

    def kill_switch(self) -> QueuePause | None:
        """Who turned everything off, if it is off."""
        ...

    # Calendars
    def add_calendar(self, record: CalendarRecord, by: str | None, now: int) -> bool:
        """Store a new calendar; False if its owner has one of that name."""
        ...

    def edit_calendar(
        self,
        calendar_id: str,
        change: Callable[[CalendarRecord], CalendarRecord | None],
        by: str | None,
        now: int,
    ) -> CalendarRecord | None:
        """Change a calendar; the ticks that it moves to other days are moved anew."""
        ...

    def remove_calendar(self, calendar_id: str, by: str | None, now: int) -> bool:
        """Remove a calendar; the schedules that it was attached to go on without it."""
        ...

    def calendar(self, calendar_id: str) -> CalendarRecord | None: ...

    def calendar_named(self, owner: str, name: str) -> CalendarRecord | None: ...

    def calendars_in_use(self) -> Mapping[str, Calendar]:
        """All that are attached to a schedule, by what schedules call them."""
        ...

    def calendars(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[CalendarRecord]:
        """A page of them, oldest first; of all owners if it is None."""
        ...

    # Audit
    def audit(
        self,
        action: str,
        target: str,
        actor: str | None,
        detail: Mapping[str, Any] | None,
        now: int,
    ) -> None:
        """Write down who did what to what."""
        ...

    def audit_of(self, target: str, limit: int = 100) -> Sequence[AuditEntry]:
        """What was done to something, newest first."""
        ...

    def audit_page(
        self,
        target: str | None,
        before: str | None,
        limit: int,
        *,
        actor: str | None = None,
        action: str | None = None,
    ) -> Sequence[AuditEntry]:
        """What was done to anything, or to one thing, before an entry; newest first.

        `action`: one, or the first words of some: schedule stands for schedule.create too.
        QueryTooBroad if too many others were done or did something.
        """
        ...

    # Live events
    def newest(self, now: int) -> Cursor:
        """Where one begins who wants to see what comes."""
        ...

    def sees_writers(self) -> bool:
        """Whether one can know of everybody who writes now; if not, `changes` may miss ends."""
        ...

    def changes(self, cursor: Cursor, now: int, limit: int) -> Changes:
        """What has changed since: at most so many of each kind; some of it may come twice.

        Nothing is left out that has ended, whatever order transactions commit in.
        """
        ...

    # Access
    def add_token(self, record: TokenRecord, by: str | None, now: int) -> bool:
        """Store a token, audited; False if there is one of that id."""
        ...

    def revoke_token(self, token_id: str, by: str | None, now: int) -> bool:
        """Let nobody use it any more, audited; False if that was so already."""
        ...

    def use_token(self, token_id: str, now: int) -> None:
        """Note when it was used last."""
        ...

    def token(self, token_id: str) -> TokenRecord | None: ...

    def token_by_digest(self, digest: str) -> TokenRecord | None: ...

    def tokens(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[TokenRecord]:
        """A page of them, oldest first; of all owners if it is None."""
        ...

    def has_tokens(self, now: int) -> bool:
        """Whether anybody could use one."""
        ...

    def claim_request(self, claim: RequestClaim) -> RequestClaim:
        """What is known of the first request of this actor under this key: this one, if none."""
        ...

    def request_done(self, claim: RequestClaim) -> None:
        """Remember that what the request makes was made."""
        ...

    def give_up_request(self, claim: RequestClaim) -> None:
        """Let the key be used for another request, unless this one was done."""
        ...

    def forget_requests(self, now: int) -> int:
        """Forget up to 1,000 requests that nobody may repeat any more; how many."""
        ...

    # Endpoints
    def add_endpoint(self, record: EndpointRecord, by: str | None, now: int) -> bool:
        """Store a new endpoint, audited; False if its owner has one of that name."""
        ...

    def edit_endpoint(
        self,
        endpoint_id: str,
        change: Callable[[EndpointRecord], EndpointRecord | None],
        by: str | None,
        now: int,
    ) -> EndpointRecord | None:
        """Change an endpoint, audited, under its lock; EndpointExists if the name is taken."""
        ...

    def remove_endpoint(self, endpoint_id: str, by: str | None, now: int) -> bool: ...

    def endpoint(self, endpoint_id: str) -> EndpointRecord | None: ...

    def endpoint_named(self, owner: str, name: str) -> EndpointRecord | None: ...

    def endpoints(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[EndpointRecord]:
        """A page of them, oldest first; of all owners if it is None."""
        ...

    # Gateways
    def add_gateway(self, record: GatewayRecord, by: str | None, now: int) -> bool:
        """Store a gateway, audited; False if its owner has one of that name."""
        ...

    def remove_gateway(self, gateway_id: str, by: str | None, now: int) -> bool:
        """Forget a gateway, audited; False if there is none."""
        ...

    def gateway(self, gateway_id: str) -> GatewayRecord | None: ...

    def gateway_named(self, owner: str, name: str) -> GatewayRecord | None: ...

    def gateways(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[GatewayRecord]:
        """A page of them, oldest first; of all owners if it is None."""
        ...

    def note_gateway(self, record: GatewayRecord) -> None:
        """Write down what was heard of a gateway, unless something later was."""
        ...

    # Waking
    def ring(self) -> None:
        """Tell workers everywhere that there is something to do; cheap, and allowed to get lost."""
        ...

    def watch(self, bell: threading.Event, stop: threading.Event) -> None:
        """Set the bell whenever the store may have changed, until stopped. Runs in a thread."""
        ...
