"""The part of a store that differs by database: connecting, reading, writing, and a few verbs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from duly.model.job import Claim, Lost, NewJob, Settlement
from duly.store.base import (
    Address,
    Blame,
    ClaimRequest,
    DatabaseInfo,
    MutationLane,
    StoreTx,
    WorkerInfo,
)
from duly.store.session import Session

T = TypeVar("T")


class Engine(ABC):
    """One database.

    Verbs that depend on the time take `now`; none of them reads a clock for the jobs.
    """

    mutation_lanes: int
    """How many mutations run at the same time, each on its own connection."""
    mutations_share: bool
    """Whether mutations share transactions by default."""
    mutation_group: int
    """How many mutations may share one transaction."""
    mutation_group_seconds: float
    """The time after which no more mutations join a shared transaction."""
    mutation_backlog: int
    """How many claimed mutations may wait for a connection before the worker stops claiming
    more."""
    mutation_seconds: float
    """The time limit of a mutation's body."""
    finishes_with_claim: bool
    """Whether settling and claiming in one transaction is faster than doing both separately."""

    wrong_database_hint: str = ""
    """What to do about a handle that belongs to another database."""

    tells_changes: bool
    """Whether `watch` sets its bell for every change of a job, not only when a job is due."""

    @abstractmethod
    def read(self, ask: Callable[[Session], T]) -> T:
        """Read committed data."""

    @abstractmethod
    def read_in_time(self, ask: Callable[[Session], T]) -> T:
        """The same for queries that may have no index. Raises QueryTooBroad if it takes long."""

    @abstractmethod
    def write(self, work: Callable[[Session], T]) -> T:
        """Run `work` in a transaction.

        On return it is durable; if it raises, it has left no trace.
        """

    def write_one(self, work: Callable[[Session], T]) -> T:
        """The same for a single statement."""
        return self.write(work)

    @abstractmethod
    def migrate(self, now: int) -> Sequence[str]:
        """Create or upgrade the tables. Return the names of the applied steps."""

    @abstractmethod
    def pending_migrations(self) -> Sequence[tuple[str, str]]:
        """The name and SQL of every step that `migrate` would apply."""

    @abstractmethod
    def migration_script(self, now: int) -> str:
        """Everything that `migrate` would run, as plain SQL; empty if there is nothing to do."""

    @abstractmethod
    def open(self, now: int) -> None:
        """Connect, and check that this code may use the store."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def address(self) -> Address:
        """Which database it is in. Known once the store is open."""

    @abstractmethod
    def database(self) -> DatabaseInfo:
        """The kind of database, and its settings."""

    @abstractmethod
    def enqueue(self, jobs: Sequence[NewJob], *, ring: bool = False) -> Mapping[str, str]:
        """Insert all jobs durably, or none; except those whose keys are held by other jobs.

        Returns, for the id of each job that was not inserted, the id of the job that holds its key.
        With `ring`, workers in other processes are notified.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[StoreTx]:
        """A user transaction: commits at the end of the block, rolls back if it raises."""

    @abstractmethod
    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        """Settle ended attempts and claim due jobs. Return the settled ids and the new claims.

        Each settlement is fenced by its token; those that do not match are left as they are. A
        claim is durable when this returns. Raises RowsLocked if some attempts could not be settled
        yet.
        """

    @abstractmethod
    def mutation_lane(self) -> MutationLane: ...

    @abstractmethod
    def blame(self, error: BaseException) -> Blame:
        """The cause of the error that ended a user transaction."""

    @abstractmethod
    def register(self, worker: WorkerInfo, now: int) -> None:
        """Add the worker's row and free the jobs that were held for lack of its functions."""

    @abstractmethod
    def deregister(self, worker_id: str, now: int) -> None:
        """Remove the row of a worker that runs nothing, and any slots that it still has."""

    @abstractmethod
    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        """Send heartbeats, and read the database's clock if it is authoritative.

        Return the workers that still have a row.
        """

    @abstractmethod
    def is_dead(self, worker_id: str) -> bool | None:
        """Whether the worker's process is gone; None if only heartbeats can tell."""

    @abstractmethod
    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost], Settlement],
        now: int,
    ) -> int | None:
        """Settle every job of a dead worker and remove its row, in one transaction.

        `judge(job)` decides how. Does nothing and returns None if the worker has sent a heartbeat
        since.
        """

    @abstractmethod
    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        """Remove some finished jobs that are older than the cutoff. Return 0 when none are left."""

    @abstractmethod
    def ring(self) -> None:
        """Notify workers everywhere that there may be jobs. Cheap; a notification may get lost."""

    @abstractmethod
    def watch(self, bell: threading.Event, stop: threading.Event) -> None:
        """Set the bell whenever the store may have changed, until stopped. Runs in a thread."""
