"""The part of a store that differs by database: connecting, reading, writing, and a few verbs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from duly.model.job import Claim, Lost, NewJob, Settlement
from duly.store.base import Address, ClaimRequest, DatabaseInfo, MutationLane, StoreTx, WorkerInfo
from duly.store.session import Session

T = TypeVar("T")


class Engine(ABC):
    """One database. Every verb takes `now`: none asks a clock what time it is for the jobs."""

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

    @abstractmethod
    def read(self, ask: Callable[[Session], T]) -> T:
        """Look at what is committed."""

    @abstractmethod
    def read_in_time(self, ask: Callable[[Session], T]) -> T:
        """The same for what no index may serve: QueryTooBroad if it takes long."""

    @abstractmethod
    def write(self, work: Callable[[Session], T]) -> T:
        """Do it in a transaction that is durable, or leaves no trace, when this returns."""

    def write_one(self, work: Callable[[Session], T]) -> T:
        """The same for a single statement."""
        return self.write(work)

    @abstractmethod
    def migrate(self, now: int) -> Sequence[str]:
        """Create or upgrade the tables; the names of the steps taken."""

    @abstractmethod
    def pending_migrations(self) -> Sequence[tuple[str, str]]:
        """Name and SQL of every step that `migrate` would take."""

    @abstractmethod
    def migration_script(self, now: int) -> str:
        """Everything that `migrate` would run, as plain SQL; empty if there is nothing to do."""

    @abstractmethod
    def open(self, now: int) -> None:
        """Connect and make sure that this code may use the store."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def address(self) -> Address:
        """Which database it is in; known once it is open."""

    @abstractmethod
    def database(self) -> DatabaseInfo:
        """What kind of database it is, and how that is set up."""

    @abstractmethod
    def enqueue(self, jobs: Sequence[NewJob], *, ring: bool = False) -> Mapping[str, str]:
        """Insert all of them, durably, or none; but for those whose keys somebody holds.

        By the id of each of these, the id of the job that holds them. With `ring`, workers in
        other processes are told.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[StoreTx]:
        """A transaction of the user's: commits at the end of the block, rolls back if it raises."""

    @abstractmethod
    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        """Settle what has ended and claim what is due: the ids that settled, the new claims.

        Each settlement is fenced by its token; the others are left as they are. A claim is durable
        when this returns. Raises RowsLocked if some could not be settled yet.
        """

    @abstractmethod
    def mutation_lane(self) -> MutationLane: ...

    @abstractmethod
    def register(self, worker: WorkerInfo, now: int) -> None:
        """Add the worker's row and free the jobs that were held for want of its functions."""

    @abstractmethod
    def deregister(self, worker_id: str, now: int) -> None:
        """Remove the row of a worker that has nothing running, and what slots it has left."""

    @abstractmethod
    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        """Prove life, and take the database's time where it is the truth; who still has a row."""

    @abstractmethod
    def is_dead(self, worker_id: str) -> bool | None:
        """Whether the worker's process is gone; None where only beats can tell."""

    @abstractmethod
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

    @abstractmethod
    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        """Remove some finished jobs that are older than the cutoff; 0 when none are left."""

    @abstractmethod
    def ring(self) -> None:
        """Tell workers everywhere that there is something to do; cheap, and allowed to get lost."""

    @abstractmethod
    def watch(self, bell: threading.Event, stop: threading.Event) -> None:
        """Set the bell whenever the store may have changed, until stopped. Runs in a thread."""
