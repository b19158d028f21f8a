"""The store in one SQLite file.

Writes of duly's own go through one connection, grouped into shared commits; mutation bodies and
user transactions have connections of their own. All of them, in all processes, take turns at the
turnstile. Reads use a small pool of other connections and never wait for writers (WAL).
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
from typing import Any, TypeVar

import msgspec

from duly import errors, fault
from duly.clock import os_monotonic
from duly.model.job import (
    Again,
    Claim,
    Finish,
    JobFilter,
    JobRecord,
    Lost,
    NewJob,
    Settlement,
    State,
)
from duly.model.progress import LogEntry
from duly.store import migrate, steps
from duly.store import statements as sql
from duly.store.base import (
    CLAIM_BYTES,
    Address,
    ClaimRequest,
    Rows,
    WorkerInfo,
    driver_error,
)
from duly.store.commit import GroupCommit, Ticket
from duly.store.fork import ForkGate
from duly.store.limits import Picked, Starting
from duly.store.placeholders import to_sqlite
from duly.store.schedule_statements import EVERYTHING, ROLL_UP_JOBS
from duly.store.session import Session
from duly.store.shared import SharedVerbs
from duly.store.statements import Statement
from duly.store.steps import Ask, Row
from duly.store.turnstile import PATIENCE, Turnstile, open_private

log = logging.getLogger(__name__)

T = TypeVar("T")
MINIMUM = (3, 37, 0)
POLL_SECONDS = 0.003
LEFTOVER_SECONDS = 60.0
FIND_SECONDS = 10.0

WORDS = sql.words_for("sqlite")
SQL = sql.compile_all("sqlite", WORDS)

# Texts of our own for what a body must not do: Python caches prepared statements by their text, and
# a cached one would pass the authorizer unseen.
_BEGIN = "BEGIN IMMEDIATE -- duly"
_COMMIT = "COMMIT -- duly"
_ROLLBACK = "ROLLBACK -- duly"

ENDED_IN_BODY = "the body ended the transaction (INSERT OR ROLLBACK does that too)"


class Connection(sqlite3.Connection):
    """A connection that was closed for a fork says so; its owner opens another."""

    gone = False


class SqliteSession(Session):
    """duly's statements on one sqlite3 connection."""

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.raw = connection

    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]:
        return self._plain(SQL[statement], parameters)

    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        return self._plain(sql.render(text, "sqlite", WORDS), parameters)

    def _plain(self, text: str, parameters: Any) -> list[Row]:
        try:
            return self._rows(text, parameters)
        except sqlite3.OperationalError as error:
            if not str(error).startswith("Could not decode to UTF-8"):
                raise
            # One damaged row must not stop the others for ever. Reading all text through Python is
            # slow, so it is done only where one was met; what has written is repeated as a whole.
            self.raw.text_factory = _lenient
            if not text.startswith("SELECT"):
                raise
            return self._rows(text, parameters)

    def _rows(self, text: str, parameters: Any) -> list[Row]:
        cursor = self.raw.cursor()
        # A row factory that a user set on the connection must not reach us.
        cursor.row_factory = None
        try:
            return cursor.execute(text, parameters).fetchall()
        except BaseException:
            # A statement that has not ended keeps its snapshot: the next BEGIN would be refused.
            cursor.close()
            raise

    def answer(self, ask: Ask) -> list[Row]:
        statement, parameters = ask
        if isinstance(statement, Statement) and isinstance(parameters, list):
            self.many(statement, parameters)
            return []
        return super().answer(ask)

    def many(self, statement: Statement, rows: Sequence[Row]) -> int:
        return self.raw.cursor().executemany(SQL[statement], rows).rowcount

    def insert_canceled(self, jobs: Sequence[NewJob], by: str, now: int) -> None:
        values = [(*row, now, by) for row in steps.rows(jobs, sql.FINAL_FIELDS)]
        self.many(sql.INSERT_CANCELED, values)

    def lanes(self) -> list[Row]:
        lanes: list[Row] = []
        after: Row = ("", -1)
        while True:
            rows = self.run(sql.LANES, {"queue": after[0], "priority": after[1]})
            if not rows:
                return lanes
            lanes += rows
            after = rows[0]

    def claim(self, request: ClaimRequest, now: int) -> list[Claim]:
        closed = {name for (name,) in self.run(sql.CLOSED_FUNCTIONS)}
        functions = self.array(name for name in request.functions if name not in closed)
        rules = self.run(sql.QUEUE_RULES)
        paused = {name for name, paused_at, _ in rules if paused_at is not None}
        limited = {name: at_once for name, _, at_once in rules if at_once is not None}
        if EVERYTHING in paused:
            return []
        while True:
            starting = Starting(self, limited, request.worker_id, now)
            queues = [q for q in request.queues if q not in paused and not starting.is_full(q)]
            picked = self._pick(queues, functions, request.limit, now)
            if not picked:
                return []
            claims = self._start(picked, starting, request.worker_id, now)
            fault.point("worker.claiming")
            # What was turned away is out of the way now.
            if claims or not starting.refused:
                order = {job.id: place for place, job in enumerate(picked)}
                claims.sort(key=lambda claim: order[claim.id])
                return claims

    def _pick(self, queues: Sequence[str], functions: str, most: int, now: int) -> list[Picked]:
        picked: list[Picked] = []
        bytes_left = CLAIM_BYTES
        for queue in queues:
            if len(picked) >= most:
                break
            where = {"queue": queue, "functions": functions, "now": now}
            for row in self.run(sql.PICK, where | {"limit": most - len(picked)}):
                job_id, size, limit_key, rules = row
                bytes_left -= size
                if bytes_left < 0 and picked:
                    break
                picked.append(Picked(job_id, queue, limit_key, rules))
        return picked

    def _start(
        self, picked: Sequence[Picked], starting: Starting, worker_id: str, now: int
    ) -> list[Claim]:
        if starting.counts(picked):
            claims = starting.start(picked)
            starting.turn_away()
            return claims
        which = {"ids": self.array(job.id for job in picked), "worker": worker_id, "now": now}
        return [Claim(*row) for row in self.run(sql.CLAIM, which)]

    def settle(self, settlements: Sequence[Settlement], now: int) -> set[str]:
        finishes = [s for s in settlements if isinstance(s, Finish)]
        settled = self._finish(finishes, now)
        for again in settlements:
            if isinstance(again, Again) and self._return(again):
                settled.add(again.id)
        return settled

    def _finish(self, finishes: Sequence[Finish], now: int) -> set[str]:
        if not finishes:
            return set()
        rows = [_finish_row(finish, now) for finish in finishes]
        if self.many(sql.FINISH, rows) != len(rows):
            return self._sort_out(finishes)
        fault.point("finish.moving")
        self.many(sql.FORGET_FINISHED, [row[:2] for row in rows])
        fault.point("finish.moved")
        return {finish.id for finish in finishes}

    def _sort_out(self, finishes: Sequence[Finish]) -> set[str]:
        """Some tokens were stale: the moved ones are those whose live row can now be deleted."""
        return {f.id for f in finishes if self.many(sql.FORGET_FINISHED, [(f.id, f.token)])}

    def _return(self, again: Again) -> bool:
        cursor = self.raw.cursor()
        cursor.execute(SQL[sql.AGAIN], msgspec.structs.asdict(again))
        fault.point("give_back.moved")
        return cursor.rowcount == 1

    def in_time(self, ask: Callable[[SqliteSession], T]) -> T:
        """A filter that no index serves must not keep the caller waiting for ever."""
        until = os_monotonic() + FIND_SECONDS
        self.raw.set_progress_handler(lambda: os_monotonic() > until, 10_000)
        try:
            return ask(self)
        except sqlite3.OperationalError as error:
            if _code(error) != "SQLITE_INTERRUPT":
                raise
            message = "no index serves this filter quickly; narrow the filter"
            raise errors.QueryTooBroad(message) from error
        finally:
            self.raw.set_progress_handler(None, 0)

    def retain(self, cutoff: int, exhausted_after: int) -> int:
        oldest = self.run(sql.OLDEST_FINISHED)
        # Nearly in order of time: a clock may have been set back between two of them.
        expired = [row for row in oldest if row[4] < cutoff]
        if not expired:
            dropped = self.run(sql.DROP_KEPT, {"exhausted_after": exhausted_after})
            self.forget_reports([row[0] for row in dropped])
            return 0
        newest = {row[2]: row for row in sorted(expired, key=lambda row: str(row[1]))}
        keep = [row[1] for row in expired if row[3] and row[4] >= exhausted_after]
        keep += [row[1] for row in newest.values() if self._is_newest(row) and row[1] not in keep]
        if keep:
            self.run(sql.KEEP, {"ids": self.array(keep)})
        self.run(ROLL_UP_JOBS, {"ids": self.array(row[1] for row in expired)})
        self.run(sql.DELETE_FINISHED, {"ids": self.array(row[1] for row in expired)})
        self.forget_reports([row[1] for row in expired if row[1] not in keep])
        return len(expired)

    def _is_newest(self, row: Row) -> bool:
        return not self.run(sql.NEWER_FINISHED, {"function": row[2], "id": row[1]})


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")


class SqliteTx:
    """A transaction in the hands of user code."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._session = SqliteSession(connection)
        self._savepoints = 0

    @property
    def connection(self) -> sqlite3.Connection:
        return self._session.raw

    @property
    def _open(self) -> SqliteSession:
        """After INSERT OR ROLLBACK each statement would commit by itself: refuse it."""
        if not self._session.raw.in_transaction:
            raise errors.TransactionEnded(ENDED_IN_BODY)
        return self._session

    def execute(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        cursor = self._open.raw.cursor()
        cursor.row_factory = None
        cursor.execute(to_sqlite(text), parameters)
        return Rows(cursor.fetchall(), cursor.rowcount)

    def insert_jobs(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        return self._open.insert_jobs(jobs)

    def get(self, job_id: str) -> JobRecord | None:
        return self._open.get(job_id)

    def find(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._open.find(filter)

    def cancel(self, job_id: str, by: str, now: int) -> bool | None:
        return self._open.cancel(job_id, by, now)

    def lock_running(self, job_id: str, token: int) -> bool:
        return self._open.lock_running(job_id, token)

    @contextlib.contextmanager
    def savepoint(self) -> Generator[None]:
        self._savepoints += 1
        name = f"tx_{self._savepoints}"
        raw = self._open.raw
        raw.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            if raw.in_transaction:
                raw.execute(f"ROLLBACK TO {name}")
                raw.execute(f"RELEASE {name}")
            raise
        raw.execute(f"RELEASE {name}")

    def interrupt(self) -> None:
        self._session.raw.interrupt()


# What a body must not do, and what would outlive its transaction on this connection.
_ENDS = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_OUTLASTS = (
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
)


class BodyConnection:
    """A write connection that user code may touch: it can change data, not end the transaction.

    A connection that a body has altered (a pragma, a temporary table) serves no other body.
    """

    _shared = False

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._turn = store.turnstile
        self._in_body = False
        self._has_turn = False
        self._connect()

    def _connect(self) -> None:
        self.raw = self._store.connect()
        self.raw.set_authorizer(self._authorize)
        self.session = SqliteSession(self.raw)
        self.tx = SqliteTx(self.raw)
        self._altered = False

    def _authorize(self, action: int, _: str | None, value: str | None, *more: object) -> int:
        if not self._in_body:
            return sqlite3.SQLITE_OK
        if action in _ENDS:
            return sqlite3.SQLITE_DENY
        if action in _OUTLASTS or (action == sqlite3.SQLITE_PRAGMA and value is not None):
            self._altered = True
            return sqlite3.SQLITE_DENY if self._shared else sqlite3.SQLITE_OK
        return sqlite3.SQLITE_OK

    def begin(self) -> None:
        self._store.gate.__enter__()
        try:
            if self.raw.gone:
                self._connect()
            self._turn.__enter__()
        except BaseException:
            self._store.gate.__exit__()
            raise
        self._has_turn = True
        try:
            with translated(self._store.where):
                self.raw.execute(_BEGIN)
        except BaseException:
            self._end_turn()
            raise
        self._in_body = True

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.__exit__()
            self._store.gate.__exit__()

    def commit(self) -> None:
        self._in_body = False
        if not self.raw.in_transaction:
            raise errors.TransactionEnded(ENDED_IN_BODY)
        self.raw.execute(_COMMIT)
        self._end_turn()
        self._renew_if_altered()

    def rollback(self) -> None:
        self._in_body = False
        try:
            if self.raw.in_transaction:
                self.raw.execute(_ROLLBACK)
        finally:
            self._end_turn()
        self._renew_if_altered()

    def _renew_if_altered(self) -> None:
        if self._altered:
            self.renew()

    @contextlib.contextmanager
    def _ours(self) -> Generator[None]:
        """duly's own statements in between."""
        self._in_body = False
        try:
            yield
        finally:
            self._in_body = True

    def renew(self) -> None:
        self.raw.close()
        self._connect()

    def close(self) -> None:
        self.raw.close()


class SqliteMutationLane(BodyConnection):
    """Runs mutation bodies: a savepoint for each member of a shared transaction."""

    def begin(self, shared: bool = False) -> None:
        self._shared = shared
        super().begin()

    def enter(self) -> None:
        if self._shared:
            with self._ours():
                self.raw.execute("SAVEPOINT duly_member -- duly")

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        with self._ours():
            if not self.raw.in_transaction:
                raise errors.TransactionEnded(ENDED_IN_BODY)
            if self._shared and self._altered:
                raise errors.TransactionEnded("the body went on without what it was refused")
            done = Finish(claim.id, claim.token, State.SUCCEEDED, result)
            return bool(self.session.settle([done], now))

    def log(self, lines: Sequence[LogEntry]) -> None:
        # If the body has ended its transaction, `finish` says so.
        if self.raw.in_transaction:
            with self._ours():
                self.session.report([], lines)

    def leave(self) -> None:
        if self._shared:
            with self._ours():
                self.raw.execute("RELEASE duly_member -- duly")

    def undo(self) -> bool:
        with self._ours():
            if not self._shared or not self.raw.in_transaction:
                return False
            self.raw.execute("ROLLBACK TO duly_member -- duly")
            self.raw.execute("RELEASE duly_member -- duly")
            self._altered = False
            return True

    def interrupt(self) -> None:
        self.raw.interrupt()

    def is_conflict(self, error: BaseException) -> bool:
        error = driver_error(error)
        busy = isinstance(error, sqlite3.Error) and _code(error) in ("SQLITE_BUSY", "SQLITE_LOCKED")
        return busy or isinstance(error, errors.StoreUnavailable)

    def is_system(self, error: BaseException) -> bool:
        error = driver_error(error)
        name = _code(error) if isinstance(error, sqlite3.Error) else ""
        broken = name in ("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_NOMEM", "SQLITE_CANTOPEN")
        # What `begin` raises is never the body's doing.
        return broken or (isinstance(error, errors.StoreError) and not self.is_conflict(error))

    def is_refusal(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), sqlite3.Error)


Write = Callable[[SqliteSession], Any]


class SqliteStore(SharedVerbs[SqliteSession]):
    """See `duly.store.base.Store`, which says what each verb promises."""

    mutation_lanes = 1
    mutations_share = True
    mutation_group = 50
    mutation_backlog = 100
    mutation_seconds = 5.0
    finishes_with_claim = True
    tells_changes = True

    def __init__(self, path: Path | None, *, synchronous: str = "FULL") -> None:
        """`path` None is a private temporary file that goes with the store."""
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
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._forking = self._left_open = self._inherits = False
        self._idle: list[Connection] = []
        self._idle_bodies: list[BodyConnection] = []
        self._worker_locks: dict[str, int] = {}
        self._turnstile: Turnstile | None = None
        self._writer: SqliteSession | None = None
        self._group: GroupCommit[Write] = GroupCommit(self._commit_batch)
        self._opened = False
        self._store_id = ""
        _stores.add(self)

    # Connections

    @property
    def folder(self) -> Path:
        """Where the lock files are."""
        return self.path.with_name(self.path.name + "-duly")

    @property
    def turnstile(self) -> Turnstile:
        with self._lock:
            if self._turnstile is None:
                self.folder.mkdir(mode=0o700, exist_ok=True)
                self._turnstile = Turnstile(self.folder)
            return self._turnstile

    def connect(self) -> Connection:
        if self._inherits:
            raise errors.StoreError(
                f"{self.where} was in use when this process was forked, so its locks cannot be "
                "trusted here; start the process with 'spawn' or 'forkserver'"
            )
        if not self.path.exists():
            raise errors.StoreMissing(
                f"there is no database at {self.path}; create it with `duly migrate`"
            )
        with translated(self.where), self.gate:
            raw = sqlite3.connect(
                self.path,
                timeout=PATIENCE,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=Connection,
            )
            raw.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._connections.add(raw)
        return raw

    # Fork

    def close_for_fork(self) -> None:
        """Let the child inherit no connection; if one is in use, it must not touch the file."""
        self._forking = True
        self._left_open = not self.gate.shut()
        if not self._left_open:
            for raw in self._connections:
                raw.gone = True
                raw.close()
            self._idle, self._idle_bodies, self._writer = [], [], None

    def reopen_after_fork(self) -> None:
        """In the parent."""
        if self._forking:
            self._forking = False
            self.gate.reopen()

    def forget_after_fork(self) -> None:
        """In a forked child: nothing of the parent's is used, nor its worker locks held."""
        self._forking = False
        self._inherits = self._inherits or self._left_open
        # Closing a connection of the parent's would checkpoint its database under its feet.
        _inherited.append((list(self._connections), self._idle_bodies))
        for file in self._worker_locks.values():
            os.close(file)
        if self._turnstile:
            self._turnstile.close()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._opening = threading.Lock()
        self.gate = ForkGate()
        self._connections = weakref.WeakSet()
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
            taken = self._write(lambda session: self._apply(session, now))
        self._opened = False
        names: list[str] = taken
        return names

    def _create(self) -> None:
        """duly's own files are private; the modes of a file that exists are kept."""
        if self.path.exists():
            return
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise errors.StoreError(f"cannot create {self.path}: {error.strerror}") from error

    def _use_wal(self) -> None:
        # SQLite does not wait for others that change the mode at the same time: take turns.
        with self.gate, self.turnstile, contextlib.closing(self.connect()) as raw:
            (mode,) = raw.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                raw.execute("PRAGMA journal_mode = WAL")
                log.info("turned on WAL for %s", self.where)

    def _apply(self, session: SqliteSession, now: int) -> list[str]:
        session.run(sql.CREATE_META)
        session.run(sql.CREATE_MIGRATIONS)
        steps = migrate.missing("sqlite", dict(session.run(sql.READ_MIGRATIONS)))
        meta: dict[str, str] = dict(session.run(sql.READ_META))
        for step in steps:
            for statement in migrate.split(step.text):
                session.raw.execute(statement)
            session.run(
                sql.WRITE_MIGRATION,
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
                session.run(sql.WRITE_META, {"key": key, "value": value})
        return [step.name for step in steps]

    def pending_migrations(self) -> Sequence[tuple[str, str]]:
        return [(step.name, step.text) for step in migrate.missing("sqlite", self._applied())]

    def migration_script(self, now: int) -> str:
        return migrate.script("sqlite", WORDS, self._applied(), now)

    def _applied(self) -> dict[int, str]:
        if self.path.exists():
            with contextlib.suppress(errors.NotMigrated):
                return dict(self._read(lambda s: s.run(sql.READ_MIGRATIONS)))
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
        return Address("sqlite", "", self._store_id, self.where)

    def _meta(self) -> dict[str, str]:
        try:
            return dict(self._read(lambda s: s.run(sql.READ_META)))
        except errors.NotMigrated:
            return {}

    def close(self) -> None:
        with self._lock:
            for raw in self._idle:
                raw.close()
            for body in self._idle_bodies:
                body.close()
            if self._writer:
                self._writer.raw.close()
            if self._turnstile:
                self._turnstile.close()
            self._idle, self._idle_bodies = [], []
            self._writer = self._turnstile = None
            self._opened = False
            if self._temporary:
                shutil.rmtree(self._temporary, ignore_errors=True)

    # Reading and writing

    def _read(self, ask: Callable[[SqliteSession], T]) -> T:
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

    def _read_in_time(self, ask: Callable[[SqliteSession], T]) -> T:
        return self._read(lambda s: s.in_time(ask))

    def _write(self, work: Callable[[SqliteSession], T]) -> T:
        """Do the work in a transaction that other callers may share; durable on return."""
        answer: T = self._group.write(work)
        return answer

    def _commit_batch(self, tickets: list[Ticket[Write]]) -> None:
        with self.gate, translated(self.where):
            if self._writer is None:
                self._writer = SqliteSession(self.connect())
            with self.turnstile:
                self._commit_in_turn(self._writer, tickets)
        for ticket in tickets:
            if isinstance(ticket.error, sqlite3.Error):
                meaning = _translate(ticket.error, self.where)
                meaning.__cause__ = ticket.error
                ticket.error = meaning

    def _commit_in_turn(self, session: SqliteSession, tickets: list[Ticket[Write]]) -> None:
        if len(tickets) == 1:
            _alone(session, tickets[0])
        elif not _together(session, tickets):
            for ticket in tickets:
                ticket.error = None
                try:
                    _alone(session, ticket)
                except Exception as error:
                    ticket.error = error

    # Enqueue

    def enqueue(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        existing = self._write(lambda s: s.insert_jobs(jobs))
        fault.point("enqueue.committed")
        return existing

    @contextlib.contextmanager
    def transaction(self) -> Generator[SqliteTx]:
        with self._lock:
            body = self._idle_bodies.pop() if self._idle_bodies else None
        body = body or BodyConnection(self)
        body.begin()
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

        answer = self._write(both)
        if settlements:
            fault.point("finish.committed")
        return answer

    def mutation_lane(self) -> SqliteMutationLane:
        return SqliteMutationLane(self)

    # Workers: a worker lives as long as its process holds the lock on its file.

    def register(self, worker: WorkerInfo, now: int) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        file = open_private(self._worker_file(worker.id))
        fcntl.flock(file, fcntl.LOCK_EX)
        self._worker_locks[worker.id] = file
        self._write(lambda s: s.register(worker, now))
        self._remove_leftovers(os.fstat(file).st_mtime)
        self._release(worker.functions)

    def _remove_leftovers(self, now: float) -> None:
        """Lock files of workers that were killed just before they had a row, or after it went.

        A young file may be that of a worker which is about to lock it.
        """
        known = set(self.beats())
        for file in self.folder.glob("worker-*"):
            worker_id = file.name.removeprefix("worker-")
            with contextlib.suppress(FileNotFoundError):
                is_old = now - file.stat().st_mtime > LEFTOVER_SECONDS
                if is_old and worker_id not in known and self.is_dead(worker_id):
                    file.unlink()

    def deregister(self, worker_id: str) -> None:
        try:
            self._write(lambda s: s.deregister(worker_id))
        except BaseException:
            # The row is left to be rescued, which must not wait for the end of this process.
            self.abandon(worker_id)
            raise
        self._drop_lock(worker_id)

    def abandon(self, worker_id: str) -> None:
        """Let go of a worker's lock, as its death would."""
        file = self._worker_locks.pop(worker_id, None)
        if file is not None:
            os.close(file)

    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        """The kernel holds the proof of life; nothing has to be written."""
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
        """The lock file was removed by somebody: ask for the process itself."""
        for worker in self.workers():
            if worker.id == worker_id:
                return not Path(f"/proc/{worker.pid}").exists() and not _alive(worker.pid)
        return True

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost, bool], Settlement],
        now: int,
    ) -> int | None:
        rescued = super().rescue(worker_id, beat, judge, now)
        if rescued is not None:
            self._worker_file(worker_id).unlink(missing_ok=True)
        return rescued

    def _worker_file(self, worker_id: str) -> Path:
        return self.folder / f"worker-{worker_id}"

    def _drop_lock(self, worker_id: str) -> None:
        self._worker_file(worker_id).unlink(missing_ok=True)
        self.abandon(worker_id)

    # Upkeep

    def time_out(self, before: int, judge: Callable[[Claim], Settlement], now: int) -> int:
        # The write lock is only for those who have something to write.
        due = self._read(lambda s: s.run(sql.OVERDUE, {"before": before}))
        return super().time_out(before, judge, now) if due else 0

    def expire(self, now: int) -> int:
        due = self._read(lambda s: s.run(sql.EXPIRED_IDS, {"now": now}))
        return super().expire(now) if due else 0

    def release_known(self) -> int:
        released = 0
        for hold, functions in self._read(lambda s: s.freed()).items():
            if self._read(lambda s: s.held_ids(hold, functions)):  # noqa: B023
                released += self._write(lambda s: s.release(hold, functions))  # noqa: B023
        return released

    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        return self._write(lambda s: s.retain(cutoff, exhausted_after))

    # Waking

    def ring(self) -> None:
        """Other processes watch the file itself."""

    def watch(self, bell: threading.Event, stop: threading.Event) -> None:
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


def _alone(session: SqliteSession, ticket: Ticket[Write]) -> None:
    raw = session.raw
    raw.execute(_BEGIN)
    try:
        ticket.value = ticket.work(session)
        raw.execute(_COMMIT)
    except BaseException:
        if raw.in_transaction:
            raw.execute(_ROLLBACK)
        raise


def _together(session: SqliteSession, tickets: Sequence[Ticket[Write]]) -> bool:
    """All in one transaction, a savepoint each. False: it broke, nothing of it happened."""
    raw = session.raw
    raw.execute(_BEGIN)
    try:
        for ticket in tickets:
            if not _one_of_many(session, ticket):
                return False
        raw.execute(_COMMIT)
        return True
    except Exception:
        log.debug("a shared commit failed; its writes are repeated one by one", exc_info=True)
        return False
    finally:
        if raw.in_transaction:
            raw.execute(_ROLLBACK)


def _one_of_many(session: SqliteSession, ticket: Ticket[Write]) -> bool:
    raw = session.raw
    raw.execute("SAVEPOINT duly_write")
    try:
        ticket.value = ticket.work(session)
    except Exception as error:
        if not raw.in_transaction:
            return False
        ticket.error = error
        raw.execute("ROLLBACK TO duly_write")
    raw.execute("RELEASE duly_write")
    return True


def _finish_row(finish: Finish, now: int) -> Row:
    return (
        finish.id,
        finish.token,
        finish.state,
        now,
        finish.result,
        finish.error_kind,
        finish.error_message,
        finish.error_traceback,
        finish.exhausted,
    )


# Errors ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def translated(where: str) -> Generator[None]:
    """Errors of the driver as errors of duly."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(error, where) from error


@contextlib.contextmanager
def translated_if_ours(where: str) -> Generator[None]:
    """In a user's transaction only errors about the store itself; others stay the driver's."""
    try:
        yield
    except sqlite3.Error as error:
        meaning = _translate(error, where)
        if type(meaning) is errors.StoreError:
            raise
        raise meaning from error


def _translate(error: Exception, where: str) -> Exception:
    if not isinstance(error, sqlite3.Error):
        return error
    name, text = _code(error), str(error)
    if "no such table" in text and "duly_" in text:
        return errors.NotMigrated(f"{where}: {text}; run `duly migrate`")
    if name in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"):
        return errors.StoreUnavailable(
            f"{where} was locked for {PATIENCE:g} s; is a transaction left open somewhere?"
        )
    if name == "SQLITE_FULL":
        return errors.StoreFull(f"{where}: {text}; free some space, nothing was written")
    if name == "SQLITE_READONLY":
        return errors.StoreReadOnly(f"{where}: {text}; check the file's and folder's permissions")
    if name in ("SQLITE_IOERR", "SQLITE_CANTOPEN"):
        return errors.StoreUnavailable(f"{where}: {text}")
    return errors.StoreError(f"{where}: {text}")


def _code(error: BaseException) -> str:
    """The primary result code: extended ones begin with its name."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return "_".join(name.split("_")[:2])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove_in(pid: int, folder: str) -> None:
    """Remove a private folder, but not from a forked child."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


# Fork --------------------------------------------------------------------------------------------

_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_forking = threading.RLock()
_inherited: list[object] = []


def _before_fork() -> None:
    _forking.acquire()
    for store in _stores:
        store.close_for_fork()


def _after_fork_in_parent() -> None:
    for store in _stores:
        store.reopen_after_fork()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.RLock()
    for store in _stores:
        store.forget_after_fork()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
