"""The values that store verbs take and return."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from duly.errors import NonRetryable, RetryAfter, StoreError, StoreUnavailable
from duly.model.job import (
    Claim,
    JobFilter,
    JobRecord,
    NewJob,
    TrackedJob,
)
from duly.model.progress import LogEntry
from duly.model.workflow import NewEvent, Put
from duly.store.statements import Dialect

if TYPE_CHECKING:
    pass

POOL = 20
"""How many connections a process has for its callers."""

_thread = threading.local()


def become_own_loop() -> None:
    """Mark this thread as one of duly's own loops.

    There are few, and they never wait behind callers.
    """
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
    threads: int = 0
    """How many sync actions it runs at the same time, apart from its slots; 0 if it does not
    say."""
    threaded: tuple[str, ...] = ()
    """The functions that need a thread."""


class ClaimRequest(msgspec.Struct, frozen=True):
    """A worker's request: at most `limit` due jobs of these functions, queue by queue."""

    worker_id: str
    queues: tuple[str, ...]
    functions: tuple[str, ...]
    limit: int
    floors: Mapping[tuple[str, int], int] = {}
    """By queue and priority: jobs due earlier than this need not be looked at."""
    limited: bool = False
    """Whether to include jobs under limits, because a lane reported some. Otherwise they may be
    left out."""
    freed: tuple[tuple[str, int], ...] = ()
    """Attempts (job id, token) whose bodies have ended. Their slots are freed, and the jobs that
    wait for them are claimed in the same transaction, before any others."""
    served: tuple[str, ...] | None = None
    """The queues to claim those waiting jobs from; None for any queue."""


class Lane(msgspec.Struct, frozen=True):
    """Claimable jobs of one queue and priority exist; the earliest is due at `run_at`."""

    queue: str
    priority: int
    run_at: int
    limited: bool = False
    """Whether some jobs, in any lane, can only be claimed by a request that has `limited` set."""


class CancelJobs(msgspec.Struct, frozen=True):
    """Cancel the unfinished ones of these jobs, and their descendants."""

    ids: Sequence[str]
    by: str
    only_pending: bool


class RepeatJobs(msgspec.Struct, frozen=True):
    """Insert these jobs, which repeat others, and their hooks. See Store.replay."""

    jobs: Sequence[TrackedJob]
    expires_at: int


class MoveJobs(msgspec.Struct, frozen=True):
    """Change when those of these jobs that are pending become due."""

    ids: Sequence[str]
    run_at: int


Change = CancelJobs | RepeatJobs | MoveJobs
"""What a bulk job does to one page of jobs."""


class HeldJobs(msgspec.Struct, frozen=True):
    """How many jobs of one function are held for one reason (counted up to 10,000)."""

    hold: str
    function: str
    count: int
    oldest_run_at: int


class DatabaseInfo(msgspec.Struct, frozen=True):
    """The database, as operators see it."""

    name: str
    version: str
    journal_mode: str | None = None
    """SQLite only."""
    network_file_system: str | None = None
    """The network file system that holds the SQLite file, if there is one."""
    longest_transaction_ms: int | None = None
    """How long the oldest open transaction has been open, as far as PostgreSQL lets us see."""
    isolation: str | None = None
    """The isolation level that PostgreSQL gives to transactions that do not set one."""
    pool: int | None = None
    """How many connections a process has for its callers."""
    connections: int | None = None
    """Connections in use on the server, out of `max_connections`."""
    max_connections: int | None = None
    reserved_connections: int = 0
    """How many of them only superusers and certain roles can use."""
    is_pooled: bool = False
    """Whether duly connects through a pooler, so that the server's limits are not those of
    clients."""
    transaction_timeout_ms: int | None = None
    """The time after which the server ends a transaction, or an idle one."""


class Address(msgspec.Struct, frozen=True):
    """Which database a store is in, to compare with connections that users bring."""

    dialect: Dialect
    schema: str
    store_id: str
    where: str
    """The same, as text for people."""
    hint: str = ""
    """What to do about a connection to another database."""


class Rows:
    """The result of `tx.execute`: the rows, as tuples, and the number of affected rows."""

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
        """The only row. Raises LookupError for any other number of rows."""
        if len(self._rows) != 1:
            raise LookupError(f"expected one row, but the statement returned {len(self._rows)}")
        return self._rows[0]

    def scalar(self) -> Any:
        """The first column of the first row, or None."""
        return self._rows[0][0] if self._rows else None


def driver_error(error: BaseException) -> BaseException:
    """The driver's own exception, which SQLAlchemy and Django wrap."""
    original = getattr(error, "orig", None)
    if type(error).__module__ == "django.db.utils":
        original = error.__cause__
    return original if isinstance(original, BaseException) else error


class StoreTx(Protocol):
    """An open transaction: either all of its changes are applied or none."""

    @property
    def connection(self) -> Any:
        """The driver's own connection."""
        ...

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        """Run the user's statement; `?` marks a parameter on every database."""
        ...

    def insert_jobs(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """See Store.enqueue."""
        ...

    def get(self, job_id: str) -> JobRecord | None: ...

    def find(self, filter: JobFilter) -> Sequence[JobRecord]: ...

    def cancel(self, job_id: str, by: str, now: int) -> bool | None:
        """True if this call canceled it, False if it had finished, None if there is no such job."""
        ...

    def lock_running(self, job_id: str, token: int) -> bool:
        """Whether the job still runs under this token.

        That stays true until the transaction ends.
        """
        ...

    def put_steps(self, puts: Sequence[Put], /) -> bool:
        """Record steps of a workflow with the effects of this transaction."""
        ...

    def send(self, event: NewEvent, now: int) -> None:
        """Send an event to a workflow."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """Roll back only the block if it raises."""
        ...

    def interrupt(self) -> None:
        """Called from another thread: make the current statement fail."""
        ...


class NeedsAlone(BaseException):
    """A body in a shared transaction did something that affects all of it: run it again, alone.

    Not an Exception, so that a body that catches everything does not swallow it.
    """


MEMBER = f"duly_member_{os.urandom(8).hex()}"
"""The savepoint of a member. No body uses this name by accident."""


# A constraint, a value that does not fit, a user's trigger.
_REFUSALS_OF_A_ROW = {"DataError", "IntegrityError", "RaiseException"}


def is_refusal_of_a_row(error: Exception) -> bool:
    """Whether the row being written is at fault, rather than the store as a whole."""
    if not isinstance(error, StoreError) or isinstance(error, StoreUnavailable):
        return False
    names = {each.__name__ for each in type(error.__cause__).__mro__}
    return bool(names & _REFUSALS_OF_A_ROW)


class RowsLocked(StoreError):
    """Other transactions have locked the rows of some jobs; all the others were settled."""

    def __init__(self, settled: set[str], locked: set[str]) -> None:
        self.settled = settled
        self.locked = locked
        super().__init__(f"the rows of {len(locked)} ended jobs are locked by other transactions")


class Blame(StrEnum):
    """The cause of a mutation's error, which decides whether it runs again."""

    BODY = "body"
    CONFLICT = "conflict"
    """Another transaction won: serialization, deadlock, a locked file."""
    LOCK = "lock"
    """The body's own statement would not wait for a lock: NOWAIT, `lock_timeout`, busy."""
    DATABASE = "database"
    """The connection is lost, or the database in trouble: full, read-only, out of memory."""


def blame(error: BaseException, blame_one: Callable[[BaseException], Blame]) -> Blame:
    """The cause of an error, even if the body raised its own exception because of it.

    `NonRetryable` and `RetryAfter` from the body take precedence. So does what the body makes of a
    lock.
    """
    if isinstance(error, NonRetryable | RetryAfter):
        return Blame.BODY
    for each in causes(error):
        found = blame_one(each)
        if found in (Blame.CONFLICT, Blame.DATABASE):
            return found
    return blame_one(driver_error(error))


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and every other one that it wraps or was raised from or during."""
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        following = left.pop()
        if following is not None and not any(following is known for known in found):
            found.append(following)
            left += following.__cause__, following.__context__
            yield driver_error(following)


class MutationLane(Protocol):
    """A dedicated connection for mutation bodies, used by one thread.

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
        """Store the member's log lines, before its last statement."""
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
        """Called from another thread: stop the current statement."""
        ...

    def renew(self) -> None:
        """Discard any state that a body may have left on the connection."""
        ...

    def blame(self, error: BaseException) -> Blame:
        """The cause of the error that ended a body or its transaction.

        Must be called before the connection is rolled back or renewed.
        """
        ...

    def is_refusal(self, error: BaseException) -> bool:
        """Whether the error came from the database rather than from the body's own code."""
        ...

    def has_refused(self) -> bool:
        """Whether the member was refused something that it might get when run alone.

        Also true if the body hid the refusal.
        """
        ...

    def close(self) -> None: ...
