"""The store in one SQLite file.

duly's own writes go through one connection, grouped into shared commits; mutation bodies and user
transactions have their own connections. All of them, in all processes, take turns at the turnstile.
Reads use a small pool of other connections and never wait for writers (WAL).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from duly import errors, fault
from duly.clock import os_monotonic, os_sleep
from duly.model.job import (
    Claim,
    KeyedJob,
    Lost,
    NewJob,
    Settlement,
)
from duly.store import migrate, workers
from duly.store.base import Address, Blame, ClaimRequest, DatabaseInfo, WorkerInfo, blame
from duly.store.commit import GroupCommit, Ticket
from duly.store.fork import ForkGate
from duly.store.jobs import holds, rescue
from duly.store.jobs.enqueue import insert_jobs
from duly.store.jobs.retention import OLDEST_AT_ONCE
from duly.store.migrate import (
    CREATE_META,
    CREATE_MIGRATIONS,
    READ_META,
    READ_MIGRATIONS,
    WRITE_META,
    WRITE_MIGRATION,
)
from duly.store.sqlite import mounts
from duly.store.sqlite.commits import Insert, Write, alone, together
from duly.store.sqlite.connection import Connection, close_all
from duly.store.sqlite.errors import (
    blame_one,
    translate,
    translated,
    translated_if_ours,
    translated_locks,
)
from duly.store.sqlite.fork import INHERITED, STORES
from duly.store.sqlite.lane import BodyConnection, SqliteMutationLane
from duly.store.sqlite.session import WORDS, SqliteSession
from duly.store.sqlite.tx import SqliteTx
from duly.store.statements import (
    both,
)
from duly.store.table import Store
from duly.store.turnstile import WAIT_SECONDS, Turnstile, open_private

JOURNAL_MODE = both("PRAGMA journal_mode")


log = logging.getLogger(__name__)

T = TypeVar("T")
MINIMUM = (3, 37, 0)
POLL_SECONDS = 0.0025
RETAINED_AT_ONCE = 500
# After each turn, other processes have the file for this many times as long as the statements took,
# up to a limit.
RETAIN_REST = 3.0
LONGEST_REST = 0.1
LEFTOVER_SECONDS = 60.0


class SqliteStore(Store):
    """See `duly.store.table.Store`, which lists the verbs."""

    mutation_lanes = 1
    mutations_share = True
    mutation_group = 100
    mutation_group_seconds = 0.010
    mutation_backlog = 100
    mutation_seconds = 5.0
    finishes_with_claim = True
    tells_changes = True

    def __init__(self, path: Path | None, *, synchronous: str = "FULL") -> None:
        """If `path` is None, the store is a private temporary file, deleted with the store."""
        self._temporary = tempfile.mkdtemp(prefix="duly-") if path is None else None
        if self._temporary:
            weakref.finalize(self, _remove_in, os.getpid(), self._temporary)
        self.path = Path(self._temporary, "duly.db") if self._temporary else path or Path()
        self.where = "a temporary file" if self._temporary else str(self.path)
        self._synchronous = "OFF" if self._temporary else synchronous
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._opening = threading.Lock()
        self.gate = ForkGate()
        self._connections: set[Connection] = set()
        # At process exit it would close connections that threads still use: see fork.py.
        weakref.finalize(self, close_all, self._connections).atexit = False
        self._forking = self._left_open = self._inherits = False
        self._idle: list[Connection] = []
        self._idle_bodies: list[BodyConnection] = []
        self._worker_locks: dict[str, int] = {}
        self._turnstile: Turnstile | None = None
        self._writer: SqliteSession | None = None
        self._group: GroupCommit[Write] = GroupCommit(self._commit_batch)
        self._opened = False
        self._store_id = ""
        STORES.add(self)

    # Connections

    @property
    def folder(self) -> Path:
        """Where the lock files are."""
        return self.path.with_name(self.path.name + "-duly")

    @property
    def turnstile(self) -> Turnstile:
        with self._lock:
            if self._turnstile is None:
                with translated_locks(self.where):
                    self.folder.mkdir(mode=0o700, exist_ok=True)
                    written_ahead = self.path.with_name(self.path.name + "-wal")
                    self._turnstile = Turnstile(self.folder, written_ahead)
            return self._turnstile

    def connect(self) -> Connection:
        if self._inherits:
            raise errors.StoreError(
                f"{self.where} was in use when this process was forked, so its locks cannot be "
                "trusted here; start the process with 'spawn' or 'forkserver'"
            )
        if not self.path.exists():
            raise errors.StoreMissing(
                f"there is no database at {self.path}; create it with `duly migrate`, "
                "or change to the directory that contains it"
            )
        with translated(self.where), self.gate:
            raw = sqlite3.connect(
                self.path,
                timeout=WAIT_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=Connection,
            )
            raw.held_in = self._connections
            self._connections.add(raw)
            try:
                raw.execute(f"PRAGMA synchronous = {self._synchronous}")
            except BaseException:
                raw.close()
                raise
        return raw

    def close_connections(self) -> None:
        """Close every connection, at a moment when none is in use.

        They are opened again when needed.
        """
        self._shut_and_close()
        self.gate.reopen()

    def _shut_and_close(self) -> bool:
        """Keep callers out and close every connection.

        Return False if some are in use and stay open.
        """
        unused = self.gate.shut()
        with self._lock:
            idle = [*self._idle, *(body.raw for body in self._idle_bodies)]
            close_all(self._connections if unused else idle)
            self._idle, self._idle_bodies = [], []
            if unused:
                self._writer = None
        return unused

    # Fork

    def close_for_fork(self) -> None:
        """Let the child inherit no connection.

        If one is in use, the child must not touch the file.
        """
        self._forking = True
        self._left_open = not self._shut_and_close()

    def reopen_after_fork(self) -> None:
        """In the parent."""
        if self._forking:
            self._forking = False
            self.gate.reopen()

    def forget_after_fork(self) -> None:
        """In a forked child: use no connection of the parent, and hold none of its locks."""
        self._forking = False
        self._inherits = self._inherits or self._left_open
        # Closing one of the parent's connections would checkpoint the database while it uses it.
        INHERITED.extend(self._connections)
        self._connections.clear()
        for file in self._worker_locks.values():
            os.close(file)
        if self._turnstile:
            self._turnstile.close()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._opening = threading.Lock()
        self.gate = ForkGate()
        self._idle, self._idle_bodies = [], []
        self._worker_locks = {}
        self._writer = self._turnstile = None
        self._group = GroupCommit(self._commit_batch)
        self._temporary = None

    # Schema

    def migrate(self, now: int) -> Sequence[str]:
        self._create()
        with translated(self.where):
            self._use_wal()
            taken = self.write(lambda session: self._apply(session, now))
        self._opened = False
        names: list[str] = taken
        return names

    def _create(self) -> None:
        """duly's own files are private; an existing file keeps its mode."""
        if self.path.exists():
            return
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise errors.StoreError(f"cannot create {self.path}: {error.strerror}") from error

    def _use_wal(self) -> None:
        # SQLite does not wait for processes that change the mode at the same time, so take turns.
        with self.gate, self.turnstile, contextlib.closing(self.connect()) as raw:
            (mode,) = raw.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                raw.execute("PRAGMA journal_mode = WAL")
                log.info("turned on WAL for %s", self.where)

    def _apply(self, session: SqliteSession, now: int) -> list[str]:
        session.run(CREATE_META)
        session.run(CREATE_MIGRATIONS)
        steps = migrate.missing("sqlite", dict(session.run(READ_MIGRATIONS)))
        meta: dict[str, str] = dict(session.run(READ_META))
        for step in steps:
            for statement in migrate.split(step.text):
                session.raw.execute(statement)
            session.run(
                WRITE_MIGRATION,
                {
                    "version": step.version,
                    "name": step.name,
                    "checksum": step.checksum,
                    "now": now,
                },
            )
            meta |= {"version": str(step.version), "min_code": str(step.min_code)}
        if steps:
            meta.setdefault("store_id", migrate.new_store_id())
            for key, value in meta.items():
                session.run(WRITE_META, {"key": key, "value": value})
        return [step.name for step in steps]

    def pending_migrations(self) -> Sequence[tuple[str, str]]:
        return [(step.name, step.text) for step in migrate.missing("sqlite", self._applied())]

    def migration_script(self, now: int) -> str:
        return migrate.script("sqlite", WORDS, self._applied(), now)

    def _applied(self) -> dict[int, str]:
        if self.path.exists():
            with contextlib.suppress(errors.NotMigrated):
                return dict(self.read(lambda s: s.run(READ_MIGRATIONS)))
        return {}

    def open(self, now: int) -> None:
        with self._opening:
            if self._opened:
                return
            if sqlite3.sqlite_version_info < MINIMUM:
                raise errors.StoreTooOld(
                    f"SQLite {sqlite3.sqlite_version} is too old; duly needs 3.37 or newer"
                )
            if self._temporary or (self.path.exists() and self.pending_migrations()):
                self.migrate(now)
            meta = self._meta()
            migrate.check("sqlite", meta)
            self._store_id = meta.get("store_id", "")
            self._opened = True

    def address(self) -> Address:
        return Address("sqlite", "", self._store_id, self.where, self.wrong_database_hint)

    def database(self) -> DatabaseInfo:
        mode: str = self.read(lambda s: s.run(JOURNAL_MODE)[0][0])
        network = mounts.network_file_system(self.path)
        return DatabaseInfo("SQLite", sqlite3.sqlite_version, mode, network)

    def _meta(self) -> dict[str, str]:
        try:
            return dict(self.read(lambda s: s.run(READ_META)))
        except errors.NotMigrated:
            return {}

    def close(self) -> None:
        self.close_connections()
        with self._lock:
            if self._turnstile:
                self._turnstile.close()
            self._turnstile = None
            self._opened = False
            if self._temporary:
                shutil.rmtree(self._temporary, ignore_errors=True)

    # Reading and writing

    def read(self, ask: Callable[[SqliteSession], T]) -> T:
        with self.gate:
            with self._lock:
                raw = self._idle.pop() if self._idle else None
            raw = raw or self.connect()
            try:
                with translated(self.where):
                    answer = ask(SqliteSession(raw))
            except BaseException:
                raw.close()
                raise
            with self._lock:
                self._idle.append(raw)
            return answer

    def read_in_time(self, ask: Callable[[SqliteSession], T]) -> T:
        return self.read(lambda s: s.in_time(ask))

    def write(self, work: Callable[[SqliteSession], T]) -> T:
        """Run `work` in a transaction that other callers may share. Durable on return."""
        answer: T = self._group.write(work)
        return answer

    def _commit_batch(self, tickets: list[Ticket[Write]]) -> None:
        with self.gate:
            writer = self._writer = self._writer or self._open_writer()
            try:
                self._commit_in_turn(writer, self.turnstile, tickets)
            except errors.StoreReadOnly:
                self._drop_writer(writer)
                raise
            self._translate_errors(tickets)
            if any(isinstance(ticket.error, errors.StoreReadOnly) for ticket in tickets):
                self._drop_writer(writer)

    def _open_writer(self) -> SqliteSession:
        raw = self.connect()
        # SQLite would open the file read-only, and keep it so for this connection.
        if not os.access(self.path, os.W_OK):
            raw.close()
            raise errors.StoreReadOnly(f"{self.where}: check the file's permissions")
        return SqliteSession(raw)

    def _drop_writer(self, writer: SqliteSession) -> None:
        """A connection opened while the file was read-only stays read-only."""
        writer.raw.close()
        self._writer = None

    def _translate_errors(self, tickets: list[Ticket[Write]]) -> None:
        for ticket in tickets:
            if isinstance(ticket.error, sqlite3.Error):
                meaning = translate(ticket.error, self.where)
                meaning.__cause__ = ticket.error
                ticket.error = meaning

    def _commit_in_turn(
        self, session: SqliteSession, turnstile: Turnstile, tickets: list[Ticket[Write]]
    ) -> None:
        try:
            with translated(self.where):
                turnstile.enter(session)
                self._commit_all(session, tickets, turnstile.begun)
            turnstile.leave(session)
        except BaseException:
            # Even after Ctrl-C just before the first line of `leave`.
            turnstile.leave(session)
            raise

    def _commit_all(
        self, session: SqliteSession, tickets: list[Ticket[Write]], begun: Callable[[], None]
    ) -> None:
        if len(tickets) == 1:
            alone(session, tickets[0], begun)
        elif not together(session, tickets, begun):
            for ticket in tickets:
                ticket.error = None
                try:
                    alone(session, ticket, begun)
                except Exception as error:
                    ticket.error = error

    # Enqueue

    def enqueue(self, jobs: Sequence[NewJob], *, ring: bool = False) -> Mapping[str, str]:
        if any(isinstance(job, KeyedJob) for job in jobs):
            existing: Mapping[str, str] = self.write(lambda s: insert_jobs(s, jobs))
        else:
            existing = self.write(Insert(jobs))
        fault.point("enqueue.committed")
        return existing

    @contextlib.contextmanager
    def transaction(self) -> Generator[SqliteTx]:
        with self._lock:
            body = self._idle_bodies.pop() if self._idle_bodies else None
        body = body or BodyConnection(self)
        try:
            body.begin()
        except BaseException:
            body.close()
            raise
        try:
            with translated_if_ours(self.where):
                yield body.tx
                body.commit()
        except BaseException:
            body.rollback()
            body.close()
            raise
        with self._lock:
            self._idle_bodies.append(body)

    # Run

    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        def both(session: SqliteSession) -> tuple[set[str], Sequence[Claim]]:
            settled = session.settle(settlements, now)
            return settled, session.claim(request, now) if request else ()

        answer = self.write(both)
        if settlements:
            fault.point("finish.committed")
        return answer

    def blame(self, error: BaseException) -> Blame:
        return blame(error, blame_one)

    def mutation_lane(self) -> SqliteMutationLane:
        return SqliteMutationLane(self)

    # Workers: a worker is alive as long as its process holds the lock on its file.

    def register(self, worker: WorkerInfo, now: int) -> None:
        with translated_locks(self.where):
            self.folder.mkdir(mode=0o700, exist_ok=True)
            file = open_private(self._worker_file(worker.id))
        fcntl.flock(file, fcntl.LOCK_EX)
        self._worker_locks[worker.id] = file
        self.write(lambda s: workers.register(s, worker, now))
        self._remove_leftovers(os.fstat(file).st_mtime)
        holds.release_for(self, worker.functions)

    def _remove_leftovers(self, now: float) -> None:
        """Remove lock files of killed workers that had no row yet, or no longer had one.

        A recent file may belong to a worker that is about to lock it.
        """
        known = set(self.beats())
        for file in self.folder.glob("worker-*"):
            worker_id = file.name.removeprefix("worker-")
            with contextlib.suppress(FileNotFoundError):
                is_old = now - file.stat().st_mtime > LEFTOVER_SECONDS
                if is_old and worker_id not in known and self.is_dead(worker_id):
                    file.unlink()

    def deregister(self, worker_id: str, now: int) -> None:
        try:
            self.write(lambda s: rescue.deregister(s, worker_id, now))
        except BaseException:
            # The row is left to be rescued, and the rescue must not wait for this process to end.
            self.abandon(worker_id)
            raise
        self._drop_lock(worker_id)

    def abandon(self, worker_id: str) -> None:
        """Release a worker's lock, as if it had died."""
        file = self._worker_locks.pop(worker_id, None)
        if file is not None:
            os.close(file)

    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        """The kernel knows whether workers are alive, so nothing has to be written."""
        return set(self.beats()) & set(worker_ids)

    def is_dead(self, worker_id: str) -> bool | None:
        if worker_id in self._worker_locks:
            return False
        try:
            file = os.open(self._worker_file(worker_id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._process_is_gone(worker_id)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(file)

    def _process_is_gone(self, worker_id: str) -> bool:
        """The lock file was removed: check for the process itself."""
        for worker in self.workers():
            if worker.id == worker_id:
                return not Path(f"/proc/{worker.pid}").exists() and not _alive(worker.pid)
        return True

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost], Settlement],
        now: int,
    ) -> int | None:
        rescued = self.write(lambda s: rescue.rescue(s, worker_id, beat, judge, now))
        fault.point("rescue.committed")
        if rescued is not None:
            self._worker_file(worker_id).unlink(missing_ok=True)
        return rescued

    def _worker_file(self, worker_id: str) -> Path:
        return self.folder / f"worker-{worker_id}"

    def _drop_lock(self, worker_id: str) -> None:
        self._worker_file(worker_id).unlink(missing_ok=True)
        self.abandon(worker_id)

    # Upkeep

    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        """Remove some hundreds, in short turns with pauses between them for other writers."""

        def forget_some(session: SqliteSession) -> tuple[int, float]:
            began = os_monotonic()
            return session.retain(cutoff, exhausted_after), os_monotonic() - began

        removed = 0
        while removed < RETAINED_AT_ONCE:
            gone, took = self.write(forget_some)
            removed += gone
            if gone < OLDEST_AT_ONCE:
                break
            os_sleep(min(RETAIN_REST * took, LONGEST_REST))
        return removed

    # Waking

    def ring(self) -> None:
        """Other processes watch the file itself."""

    def watch(self, bell: threading.Event, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._look_for_changes(bell, stop)
            except (errors.StoreError, sqlite3.Error) as error:
                log.warning("not watching the file for changes, polling instead: %s", error)
                stop.wait(1)

    def _look_for_changes(self, bell: threading.Event, stop: threading.Event) -> None:
        raw = self.connect()
        try:
            seen = None
            while not stop.wait(POLL_SECONDS):
                with self.gate:
                    raw = self.connect() if raw.gone else raw
                    (version,) = raw.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    seen = version
                    bell.set()
        finally:
            raw.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove_in(pid: int, folder: str) -> None:
    """Remove a private folder, unless this is a forked child."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
