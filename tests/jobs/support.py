"""Support for the tests of jobs: a worker that works when told, and plain SQL alongside duly.

Time is a ManualClock wherever it matters. Bodies run in the worker's own threads, so a test waits
for a condition, with a deadline, and never for a length of time.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from duly import Duly, Job, State, Tx
from duly.errors import StoreError
from duly.model.job import Claim
from duly.runtime.heartbeat import Heartbeat
from duly.runtime.janitor import EXHAUSTED_RETENTION, RETENTION, Janitor
from duly.runtime.worker import Worker
from duly.store.base import ClaimRequest
from duly.store.placeholders import to_psycopg
from duly.store.sqlite import SqliteStore

# For what only one of the two databases can do.
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize(
    "url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)

PATIENCE = 60.0
DAY = timedelta(days=1).total_seconds()


def wait_until(holds: Callable[[], object], what: str = "the condition") -> None:
    """Return as soon as the condition holds; fail the test if it never does."""
    give_up_at = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < give_up_at, f"{what} did not come true"
        time.sleep(0.001)


def prepare(app: Duly) -> Duly:
    """Create duly's tables and one of the user's."""
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
    return app


class CountingWorker(Worker):
    """Counts what it has claimed, so that a pass that found nothing is known."""

    claimed = 0

    def _start(self, claims: Sequence[Claim]) -> None:
        self.claimed += len(claims)
        super()._start(claims)

    def _flush(self) -> None:
        # Its loops do not run, so nothing else would record the attempts that have ended.
        with suppress(StoreError):
            self.one_pass() if self.store.finishes_with_claim else self.finish_pass()
        super()._flush()


class ManualWorker:
    """A worker whose loops take a step only when the test says so."""

    def __init__(
        self,
        app: Duly,
        *,
        concurrency: int = 10,
        threads: int = 10,
        queues: Sequence[str] | None = None,
        alone: str | None = None,
    ) -> None:
        app.ready()
        self.worker = CountingWorker(
            app.core, concurrency=concurrency, threads=threads, queues=queues, alone=alone
        )
        self._beat = Heartbeat(self.worker)
        self._stopped = False
        self.worker.register()

    @property
    def id(self) -> str:
        return self.worker.id

    def start_due(self) -> None:
        """Claim the due jobs and start them; do not wait for them to end."""
        self._beat.one_pass()
        self.worker.one_pass()

    def claim_only(self) -> None:
        """Claim the due jobs as the last act before a crash: no body starts."""
        worker = self.worker
        queues = tuple(sorted({lane.queue for lane in worker.store.lanes()}))
        request = ClaimRequest(
            worker.id, queues, worker._functions, worker.concurrency, limited=True
        )
        worker.store.exchange([], request, worker.clock.now())

    def settle(self) -> None:
        """Record the outcomes of bodies that have ended, and claim nothing."""
        if not self.worker.store.finishes_with_claim:
            self.worker.finish_pass()
            self.worker._slots.release_ended()
            return
        self.worker._stopping = True
        try:
            self.worker.one_pass()
        finally:
            self.worker._stopping = False

    def beat(self) -> None:
        """Send a heartbeat, rescue dead workers' jobs, and tell bodies whose job was taken away."""
        self._beat.one_pass()

    def watch(self) -> None:
        """Tell bodies that have timed out."""
        self.worker._watch_pass()

    def insist(self) -> None:
        """Keep telling them until they have ended."""
        give_up_at = time.monotonic() + PATIENCE
        while self.worker._busy:
            assert time.monotonic() < give_up_at, "a body does not stop"
            self.watch()
            time.sleep(0.002)

    def work(self) -> None:
        """Run all due jobs, and the jobs that become due through them, until none is left."""
        give_up_at = time.monotonic() + PATIENCE
        claimed = -1
        while claimed != self.worker.claimed or not self.worker.idle:
            assert time.monotonic() < give_up_at, "the worker never came to rest"
            self.wait_for_bodies()
            self.settle()
            claimed = self.worker.claimed
            self.start_due()

    def wait_for_bodies(self) -> None:
        """Wait until no body is running."""
        self.worker._wait_until_quiet(PATIENCE)

    def wait_for(self, job: Job[Any]) -> None:
        """Settle until the job has ended, while other bodies continue."""

        def ended() -> bool:
            self.settle()
            return job.state.is_terminal

        wait_until(ended, f"the end of {job}")

    def fall_silent(self) -> None:
        """Look dead to the others, like a suspended process: its bodies continue later."""
        store: Any = self.worker.store
        store.abandon(self.id)

    def die(self) -> None:
        """End as a killed process would: no heartbeat, no lock, nothing reported to the store."""
        self.worker._outcomes.take()
        self.worker._held.clear()
        self.worker._slots._held.clear()
        self.worker._slots._ended.clear()
        self.fall_silent()

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.worker.stop(PATIENCE)


class Hire(Protocol):
    """How the fixture `hire` is called."""

    def __call__(
        self,
        of: Duly = ...,
        *,
        concurrency: int = ...,
        threads: int | None = ...,
        queues: Sequence[str] | None = ...,
        alone: str | None = ...,
    ) -> ManualWorker: ...


def rescue_the_dead(observer: ManualWorker) -> None:
    """Send heartbeats until the observer has noticed every dead worker."""
    for _ in range(10):
        observer.beat()


def tidy(
    app: Duly, *, retention: timedelta = RETENTION, exhausted: timedelta = EXHAUSTED_RETENTION
) -> None:
    """Let a janitor do everything there is to do now."""
    janitor = Janitor(app.ready(), app.clock, retention=retention, exhausted_retention=exhausted)
    while janitor.one_pass() == 0:
        pass


class Database:
    """The database as other programs see it: plain SQL on its own connection."""

    def __init__(self, url: str) -> None:
        self.is_sqlite = url.startswith("sqlite")
        self._url = url
        self._open: list[Any] = []

    @cached_property
    def _own(self) -> Any:
        # Not before it is needed: on PostgreSQL a connection takes longer than many tests.
        return self.connect()

    def connect(self) -> Any:
        """One more connection, in autocommit."""
        connection: Any
        if self.is_sqlite:
            path = self._url.removeprefix("sqlite:///")
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        else:
            connection = psycopg.connect(self._url, autocommit=True)
        self._open.append(connection)
        return connection

    def execute(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement, with `?` for parameters and @jobs for duly's tables; return its rows."""
        cursor = self._own.execute(self.text(text), parameters)
        return list(cursor.fetchall()) if cursor.description else []

    def text(self, text: str) -> str:
        named = text.replace("@", "duly_" if self.is_sqlite else "duly.")
        return named if self.is_sqlite else to_psycopg(named)

    def scalar(self, text: str, *parameters: object) -> Any:
        return self.execute(text, *parameters)[0][0]

    def count(self, table: str) -> int:
        found: int = self.scalar(f"SELECT count(*) FROM {table}")
        return found

    def notes(self) -> list[str]:
        """What the mutations of a test have written, in order."""
        return [text for (text,) in self.execute("SELECT text FROM notes ORDER BY text")]

    def snapshot(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table that a job touches."""
        tables = ("@jobs", "@history", "@kept", "@queues", "notes")
        return {t: sorted(self.execute(f"SELECT * FROM {t}"), key=repr) for t in tables}

    def close(self) -> None:
        for connection in self._open:
            connection.close()


class Gate:
    """Where a body reports that it has arrived, and waits to be let through."""

    def __init__(self) -> None:
        self._came = threading.Semaphore(0)
        self._open = threading.Event()

    def pass_through(self) -> None:
        self._came.release()
        assert self._open.wait(PATIENCE), "nobody opened the gate"

    def wait_for_one(self) -> None:
        assert self._came.acquire(timeout=PATIENCE), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()


@contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    """Do the work in another thread; the value waits for it and gives its answer."""
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def answer() -> Any:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the other thread does not end"
        if errors:
            raise errors[0]
        return answers[0]

    yield answer
    thread.join(PATIENCE)


def raise_state(tx: Tx, sqlstate: str) -> None:
    """Run into a PostgreSQL error."""
    tx.execute(f"DO $$ BEGIN RAISE EXCEPTION 'trouble' USING ERRCODE = '{sqlstate}'; END $$")


def make_conflict(db: Database, tx: Tx, folder: Path) -> None:
    """Run into an error, inside a body, that the driver attributes to another transaction."""
    if not db.is_sqlite:
        raise_state(tx, "40001")
    with (
        closing(sqlite3.connect(folder / "other.db", isolation_level=None)) as holder,
        closing(sqlite3.connect(folder / "other.db", isolation_level=None, timeout=0)) as waiter,
    ):
        holder.execute("BEGIN IMMEDIATE")
        waiter.execute("BEGIN IMMEDIATE")


def lose_patience(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a locked database is unavailable at once, not after ten seconds."""
    monkeypatch.setattr("duly.store.sqlite.store.WAIT_SECONDS", 0.01)
    app.close()


def enforce_foreign_keys(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if SQLite had been built to enforce them; PostgreSQL always does."""
    if isinstance(app.store, SqliteStore):
        connect = SqliteStore.connect

        def strict(store: SqliteStore) -> sqlite3.Connection:
            connection = connect(store)
            connection.execute("PRAGMA foreign_keys = ON")
            return connection

        app.close()
        monkeypatch.setattr(SqliteStore, "connect", strict)


def state_of(job: Job[Any]) -> State:
    """The state as it is now, in words that a type checker does not remember."""
    return job.state


class Undo(Exception):
    """What a test raises to have a transaction rolled back."""


@contextmanager
def undone() -> Iterator[None]:
    """The block ends by raising Undo."""
    with pytest.raises(Undo):
        yield
