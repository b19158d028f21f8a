"""A store inside a user's transaction: a rollback undoes everything done through it.

Jobs are claimed, run and finished by the usual statements, each in a savepoint, on the connection
that your test will roll back.
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

from duly.calls.jobs import Job
from duly.calls.on import On
from duly.core import Core
from duly.errors import InvalidOption
from duly.model.job import (
    Claim,
    JobFilter,
    JobRecord,
    Lost,
    NewJob,
    Settlement,
    State,
    finished,
)
from duly.model.progress import LogEntry
from duly.runtime.home import Home
from duly.runtime.threads import Threads
from duly.runtime.transaction_guard import refuse_handles_inside_mutation
from duly.store import steps, workers
from duly.store.base import Address, Blame, ClaimRequest, DatabaseInfo, Rows, StoreTx, WorkerInfo
from duly.store.handles import (
    AlchemyConnection,
    AlchemySession,
    DjangoHandle,
    PlainSqlite,
    UserHandle,
    borrow,
    factories_aside,
)
from duly.store.jobs import holds, rescue
from duly.store.jobs.reports import write_reports
from duly.store.session import Session
from duly.store.sqlite import SqliteStore, SqliteTx
from duly.store.steps import Row
from duly.store.table import Store

T = TypeVar("T")


@contextmanager
def inside(core: Core, handle: Any) -> Generator[Home]:
    """Run everything that the app does in the block in the handle's transaction.

    Work of other threads runs in the thread that the handle belongs to.
    """
    refuse_handles_inside_mutation()
    if core.service is not None:
        raise InvalidOption("on", "stop the app first: its worker cannot see your transaction")
    store = InsideStore(core.ready(), handle)
    home = Home()
    # One at a time: savepoints that do not end in order end each other.
    threads, core.threads = (
        core.threads,
        Threads(lambda _, __: home, transactions=1, here=lambda: home),
    )
    before = core.exchange(store, core.clock)
    try:
        yield home
    finally:
        core.exchange(*before)
        core.threads = threads


class InsideJob(Job[Any]):
    """A job as the handle's transaction sees it, or, after that has ended, as committed.

    A job that was rolled back stays as it was last seen.
    """

    def __init__(self, core: Core, record: JobRecord, handle: Any) -> None:
        super().__init__(core, record.id, core.functions.result_decoder(record), self._look, record)
        self._borrowed = _borrow(handle)
        self._on = On(core, self._borrowed, notify=False)
        self._seen = record

    def _look(self, job_id: str) -> JobRecord:
        if self._borrowed.is_open():
            found = self._on._get(job_id)  # pyright: ignore[reportPrivateUsage]
        else:
            found = self._core.get(job_id)
        self._seen = found or self._seen
        return self._seen

    def cancel(self) -> bool:
        return self._on.cancel(self) if self._borrowed.is_open() else super().cancel()


def pending_inside(core: Core, handle: Any, filter: JobFilter) -> Sequence[JobRecord]:
    """The jobs as stored, in the handle's transaction."""
    return On(core, _borrow(handle), notify=False).records(filter)


def _borrow(handle: Any) -> UserHandle:
    borrowed = borrow(handle)
    if not isinstance(borrowed, UserHandle):
        raise _not_supported(handle)
    return borrowed


class InsideStore(Store):
    """The app's store, inside one open transaction."""

    mutation_lanes = 1
    mutations_share = False
    mutation_group = 1
    mutation_group_seconds = math.inf
    mutation_backlog = 1
    mutation_seconds = math.inf
    finishes_with_claim = True
    tells_changes = False

    def __init__(self, own: Store, handle: Any) -> None:
        self._own = own
        self._session, self._tx = _sessions(own, handle)

    def read(self, ask: Callable[[Session], T]) -> T:
        return ask(self._session)

    def read_in_time(self, ask: Callable[[Session], T]) -> T:
        return ask(self._session)

    def write(self, work: Callable[[Session], T]) -> T:
        with self._tx.savepoint():
            return work(self._session)

    # Schema

    def migrate(self, now: int) -> Sequence[str]:
        return ()

    def pending_migrations(self) -> Sequence[tuple[str, str]]:
        return ()

    def migration_script(self, now: int) -> str:
        return ""

    def open(self, now: int) -> None:
        """Does nothing: the handle is already open."""

    def close(self) -> None:
        """Does nothing: the handle belongs to the test."""

    def address(self) -> Address:
        return self._own.address()

    def database(self) -> DatabaseInfo:
        return self._own.database()

    # Jobs

    def enqueue(self, jobs: Sequence[NewJob], *, ring: bool = False) -> Mapping[str, str]:
        return self._tx.insert_jobs(jobs)

    @contextmanager
    def transaction(self) -> Generator[StoreTx]:
        with self._tx.savepoint():
            yield self._tx

    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        def both(session: Any) -> tuple[set[str], Sequence[Claim]]:
            settled: set[str] = session.settle(settlements, now)
            return settled, session.claim(request, now) if request else ()

        return self.write(both)

    def blame(self, error: BaseException) -> Blame:
        return Blame.BODY

    def mutation_lane(self) -> InsideLane:
        return InsideLane(self._session, self._tx)

    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        return 0

    # Workers: the only one is the test itself.

    def register(self, worker: WorkerInfo, now: int) -> None:
        self.write(lambda s: workers.register(s, worker, now))
        holds.release_for(self, worker.functions)

    def deregister(self, worker_id: str, now: int) -> None:
        self.write(lambda s: rescue.deregister(s, worker_id, now))

    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        return set(worker_ids)

    def is_dead(self, worker_id: str) -> bool | None:
        return False

    def rescue(
        self, worker_id: str, beat: int | None, judge: Callable[[Lost], Settlement], now: int
    ) -> int | None:
        return self.write(lambda s: rescue.rescue(s, worker_id, beat, judge, now))

    # Waking: no other process sees the transaction.

    def ring(self) -> None: ...

    def watch(self, bell: threading.Event, stop: threading.Event) -> None: ...


class InsideLane:
    """Mutations in the handle's transaction, each in a savepoint."""

    def __init__(self, session: Session, tx: StoreTx) -> None:
        self._session = session
        self.tx = tx
        self._savepoint: AbstractContextManager[None] | None = None

    def begin(self, shared: bool) -> None:
        self._savepoint = self.tx.savepoint()
        self._savepoint.__enter__()

    def commit(self) -> None:
        savepoint, self._savepoint = self._savepoint, None
        assert savepoint is not None
        savepoint.__exit__(None, None, None)

    def rollback(self) -> None:
        savepoint, self._savepoint = self._savepoint, None
        if savepoint is not None:
            undo = _Undo()
            with suppress(_Undo):
                savepoint.__exit__(_Undo, undo, None)

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        end = finished(claim, State.SUCCEEDED, result=result)
        return bool(self._session.settle([end], now))

    def log(self, lines: Sequence[LogEntry]) -> None:
        write_reports(self._session, [], lines)

    def enter(self) -> None:
        """Never shared."""

    def leave(self) -> None: ...

    def undo(self) -> bool:
        return False

    def interrupt(self) -> None: ...

    def renew(self) -> None: ...

    def blame(self, error: BaseException) -> Blame:
        return Blame.BODY

    def is_refusal(self, error: BaseException) -> bool:
        return False

    def has_refused(self) -> bool:
        return False

    def close(self) -> None:
        self.rollback()


class _Undo(Exception):
    """Rolls back a savepoint."""


def _sessions(own: Store, handle: Any) -> tuple[Session, StoreTx]:
    raw = _driver(_borrow(handle), own.address())
    if isinstance(own, SqliteStore) and isinstance(raw, sqlite3.Connection):
        return UsersSqlite(raw), UsersSqliteTx(raw)
    if any(base.__module__ == "psycopg" for base in type(raw).__mro__):
        # This is only reached with psycopg installed.
        from duly.store.postgres import PostgresSession, PostgresStore, PostgresTx

        assert isinstance(own, PostgresStore)
        return PostgresSession(raw, own), PostgresTx(raw, own)
    raise _not_supported(raw)


def _not_supported(handle: Any) -> InvalidOption:
    return InvalidOption(
        "on",
        "drain works inside a sqlite3 or psycopg transaction, including SQLAlchemy's and "
        f"Django's, but not with {type(handle).__module__}; use override(app) instead",
    )


class UsersSqlite(PlainSqlite):
    """duly's statements on the user's connection, which may have its own row factory."""

    def _plain(self, text: str, parameters: Any) -> list[Row]:
        with factories_aside(self.raw):
            return super()._plain(text, parameters)


class UsersSqliteTx(SqliteTx):
    """Shows bodies what a worker would show; the connection itself keeps the user's settings."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._session = UsersSqlite(connection)

    def execute(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        with factories_aside(self.connection):
            return super().execute(text, parameters)


def _driver(borrowed: UserHandle, address: Address) -> Any:
    """The driver's connection below a handle, in an open transaction."""
    no_job = "00000000-0000-0000-0000-000000000000"
    borrowed.take(address, steps.get(no_job), writes=True)
    if isinstance(borrowed, AlchemySession):
        return borrowed.handle.connection().connection.driver_connection
    if isinstance(borrowed, AlchemyConnection):
        return borrowed.handle.connection.driver_connection
    return borrowed.handle.connection if isinstance(borrowed, DjangoHandle) else borrowed.handle
