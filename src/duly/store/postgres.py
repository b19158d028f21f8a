"""The store in a PostgreSQL schema of its own.

Every statement is one round trip where it can be. READ COMMITTED, SKIP LOCKED, batches in id order,
no session state. The server's clock is the truth: its offset is measured at connect and with each
beat.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import select
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from duly import errors, fault
from duly.clock import os_monotonic, os_sleep
from duly.model.job import (
    Again,
    Claim,
    Finish,
    JobFilter,
    JobRecord,
    KeyedJob,
    NewJob,
    Settlement,
)
from duly.model.progress import LogEntry
from duly.store import limits, migrate
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
from duly.store.limits import Picked, Starting
from duly.store.placeholders import to_psycopg
from duly.store.schedule_statements import ROLL_UP_JOBS
from duly.store.session import Session
from duly.store.shared import SharedVerbs
from duly.store.statements import Statement
from duly.store.steps import TRACKED, Row, columns, insert_keyed, without

try:
    import psycopg
    import psycopg.conninfo
    import psycopg.postgres
    from psycopg.adapt import AdaptersMap
    from psycopg.pq import TransactionStatus
    from psycopg.rows import tuple_row
    from psycopg.types import TypesRegistry
except ImportError as missing:
    raise errors.MissingExtra("postgres", "PostgreSQL") from missing

log = logging.getLogger(__name__)

T = TypeVar("T")
Connection = psycopg.Connection[Any]
FollowClock = Callable[[float, float, float], None]

MINIMUM = 140000
RING_EVERY = 0.005
TRIES = 20
_LEVELS = tuple(range(9, -1, -1))

_SCHEME = re.compile(r"^(postgres|postgresql)(\+\w+)?://")

# What makes a transaction fail through no fault of its own.
CONFLICTS = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
)


# Where the last vacuum found the table empty, PostgreSQL expects one job to match and compares each
# of a batch with each other one, until the next vacuum: 900 ms for 1,000 jobs, and nothing for few.
SMALL_BATCH = 16


def _plain_adapters() -> AdaptersMap:
    types = TypesRegistry()
    psycopg.postgres.register_default_types(types)
    adapters = AdaptersMap(types=types)
    psycopg.postgres.register_default_adapters(adapters)
    return adapters


# What psycopg has at first: whatever a user registers, for all or for a connection, is not in it.
ADAPTERS = _plain_adapters()


class PlainCursor(psycopg.Cursor[Row]):
    """A cursor that no setting of a user's reaches."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


class PlainAsyncCursor(psycopg.AsyncCursor[Row]):
    """The same for async connections."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


class PostgresSession(Session):
    """duly's statements on one psycopg connection."""

    dialect = "postgres"

    def __init__(self, connection: Connection, store: PostgresStore) -> None:
        self.raw = connection
        self._store = store

    def run(
        self,
        statement: Statement,
        parameters: Mapping[str, Any] = {},
        prepare: bool | None = None,
    ) -> list[Row]:
        return self._plain(self._store.sql[statement], parameters, prepare)

    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        return self._plain(sql.render(text, "postgres", self._store.words).encode(), parameters)

    def _plain(
        self, text: bytes, parameters: Mapping[str, Any], prepare: bool | None = None
    ) -> list[Row]:
        with PlainCursor(self.raw) as cursor:
            cursor.execute(text, parameters or None, prepare=prepare)
            return cursor.fetchall() if cursor.description else []

    def insert_jobs_once(self, jobs: Sequence[NewJob]) -> None:
        self.run(sql.INSERT_JOBS_ONCE, columns(jobs, TRACKED))
        self.run(sql.FORGET_REPEATED, {"ids": [job.id for job in jobs]})

    def insert_keyed_once(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        keyed = [job for job in jobs if isinstance(job, KeyedJob)]
        existing = self.take(insert_keyed(keyed))
        self.run(sql.FORGET_REPEATED, {"ids": [job.id for job in keyed]})
        plain = without(jobs, keyed, existing)
        if plain:
            self.insert_jobs_once(plain)
        return existing

    def insert_canceled(self, jobs: Sequence[NewJob], by: str, now: int) -> None:
        if jobs:
            values = columns(jobs, sql.FINAL_FIELDS)
            self.run(sql.INSERT_CANCELED, values | {"by": by, "now": now})

    def lanes(self) -> list[Row]:
        return self.run(sql.LANES)

    def claim(self, request: ClaimRequest, now: int) -> list[Claim]:
        if request.limited:
            while True:
                claims, refused = self.claim_limited(request, now)
                if claims or not refused:
                    return claims
        fault.point("worker.claiming")
        due = _due_arrays(request, request.queues, now)
        rows = self.run(sql.CLAIM, due | {"worker": request.worker_id})
        return _in_order([Claim(*row) for row in rows], request)

    def claim_limited(self, request: ClaimRequest, now: int) -> tuple[list[Claim], bool]:
        """Claim also what is under a limit; and whether jobs were turned away."""
        fault.point("worker.claiming")
        limited = limits.limited_queues(self)
        limits.lock(self, [limits.queue_key(q) for q in request.queues if q in limited])
        served = {name: most for name, most in limited.items() if name in request.queues}
        starting = Starting(self, served, request.worker_id, now)
        queues = [queue for queue in request.queues if not starting.is_full(queue)]
        rows = self.run(sql.PICK_LIMITED, _due_arrays(request, queues, now)) if queues else []
        places = {queue: place for place, queue in enumerate(request.queues)}
        rows.sort(key=lambda row: (places[row[1]], -row[4], row[5], row[0]))
        claims = starting.start([Picked(*row[:4]) for row in rows])
        starting.turn_away()
        return _in_order(claims, request), bool(starting.refused)

    def settle(self, settlements: Sequence[Settlement], now: int) -> set[str]:
        in_id_order = sorted(settlements, key=lambda settlement: settlement.id)
        finishes = [s for s in in_id_order if isinstance(s, Finish)]
        agains = [s for s in in_id_order if isinstance(s, Again)]
        settled: set[str] = set()
        prepare = None
        if len(settlements) > SMALL_BATCH:
            self.run(sql.NO_NESTED_LOOPS)
            prepare = False
        if finishes:
            fault.point("finish.moving")
            rows = self.run(sql.FINISH, _finish_arrays(finishes, now), prepare)
            settled |= {row[0] for row in rows}
            fault.point("finish.moved")
        if agains:
            rows = self.run(sql.AGAIN, _again_arrays(agains), prepare)
            settled |= {row[0] for row in rows}
            fault.point("give_back.moved")
        return settled

    def drop_kept(self, exhausted_after: int) -> None:
        dropped = self.run(sql.DROP_KEPT, {"exhausted_after": exhausted_after})
        self.forget_reports([row[0] for row in dropped])

    def retain_bucket(self, bucket: int, cutoff: int, exhausted_after: int, whole: bool) -> None:
        limits = {"bucket": bucket, "cutoff": cutoff, "exhausted_after": exhausted_after}
        self.run(sql.KEEP, limits)
        self.run(ROLL_UP_JOBS, {"bucket": bucket, "cutoff": cutoff})
        for forget in (sql.FORGET_PROGRESS_IN, sql.FORGET_LOGS_IN):
            self.run(forget, {"bucket": bucket, "cutoff": cutoff})
        if whole:
            self.run(sql.SHORT_LOCK_WAIT)
            self.run_text(sql.TRUNCATE_BUCKET.format(bucket=bucket), {})
        else:
            self.run(sql.DELETE_FINISHED, {"bucket": bucket, "cutoff": cutoff})


class PostgresTx:
    """A transaction in the hands of user code."""

    def __init__(self, connection: Connection, store: PostgresStore) -> None:
        self._session = PostgresSession(connection, store)
        self._savepoints = 0

    @property
    def connection(self) -> Connection:
        return self._session.raw

    @property
    def _open(self) -> PostgresSession:
        """After a COMMIT in the body each statement would commit by itself: refuse it."""
        if self._session.raw.info.transaction_status == TransactionStatus.IDLE:
            raise errors.TransactionEnded("the body ended the transaction")
        return self._session

    def execute(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        with psycopg.Cursor(self._open.raw) as cursor:
            # Parameters are always given, so that `%%` means the same with and without them.
            cursor.execute(to_psycopg(text).encode(), tuple(parameters))
            rows = cursor.fetchall() if cursor.description else []
            return Rows(rows, cursor.rowcount)

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
        raw.execute(f"SAVEPOINT {name}".encode())
        try:
            yield
        except BaseException:
            if raw.info.transaction_status != TransactionStatus.IDLE and not raw.closed:
                raw.execute(f"ROLLBACK TO {name}".encode())
            raise
        raw.execute(f"RELEASE {name}".encode())

    def interrupt(self) -> None:
        self._session.raw.cancel_safe(timeout=2)


class PostgresMutationLane:
    """Runs mutation bodies, each in a transaction of its own unless the group is shared."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._shared = False
        self._xid = ""
        self._connect()

    def _connect(self) -> None:
        self.raw = self._store.connect()
        self.tx = PostgresTx(self.raw, self._store)
        self._session = PostgresSession(self.raw, self._store)

    def begin(self, shared: bool = False) -> None:
        if is_hung_up(self.raw):
            self.raw.close()
            self._connect()
        self._shared = shared
        self._xid = self._store.begin(self.raw)

    def enter(self) -> None:
        if self._shared:
            self.raw.execute("SAVEPOINT duly_member")

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        status = self.raw.info.transaction_status
        if status == TransactionStatus.IDLE:
            raise errors.TransactionEnded("the body ended the transaction")
        if status == TransactionStatus.INERROR:
            raise errors.TransactionEnded(
                "a statement failed and the body went on; use tx.savepoint() around it"
            )
        fence = {"id": claim.id, "token": claim.token, "xid": self._xid}
        moved = self._session.run(sql.FINISH_MUTATION, fence | {"result": result, "now": now})
        if not moved and self._session.run(sql.CURRENT_XID)[0][0] != self._xid:
            raise errors.TransactionEnded("the body ended the transaction and began another")
        return bool(moved)

    def log(self, lines: Sequence[LogEntry]) -> None:
        # If the body has broken its transaction, `finish` says so.
        if self.raw.info.transaction_status == TransactionStatus.INTRANS:
            self._session.report([], lines)

    def leave(self) -> None:
        if self._shared:
            # Whatever the member SET LOCAL must not reach the next one.
            reset = b"RELEASE duly_member; RESET ALL; RESET ROLE"
            self.raw.execute(reset + self._store.after_reset)

    def undo(self) -> bool:
        alive = not self.raw.closed and (self.raw.info.transaction_status != TransactionStatus.IDLE)
        if not self._shared or not alive:
            return False
        self.raw.execute("ROLLBACK TO duly_member; RELEASE duly_member")
        return True

    def commit(self) -> None:
        self.raw.execute("COMMIT")

    def rollback(self) -> None:
        if not self.raw.closed:
            self.raw.rollback()

    def interrupt(self) -> None:
        self.raw.cancel_safe(timeout=2)

    def renew(self) -> None:
        self.raw.close()

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), CONFLICTS)

    def is_system(self, error: BaseException) -> bool:
        return isinstance(error, errors.StoreUnavailable) or _is_lost(driver_error(error))

    def is_refusal(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), psycopg.Error)

    def close(self) -> None:
        self.raw.close()


class PostgresStore(SharedVerbs[PostgresSession]):
    """See `duly.store.base.Store`, which says what each verb promises."""

    mutation_lanes = 8
    mutations_share = False
    mutation_group = 50
    mutation_backlog = 32
    mutation_seconds = 60.0
    finishes_with_claim = False
    tells_changes = False

    def __init__(
        self,
        url: str,
        *,
        schema: str = "duly",
        pooler: bool = False,
        follow_clock: FollowClock | None = None,
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise errors.InvalidOption("schema", "use lower-case letters, digits and _")
        self._url = _SCHEME.sub("postgresql://", url)
        _check_url(self._url)
        self._pooler = pooler
        self._follow_clock = follow_clock
        self.words = sql.words_for("postgres", schema)
        texts = sql.compile_all("postgres", self.words)
        self.sql = {statement: text.encode() for statement, text in texts.items()}
        self.sync_local = b""
        self.after_reset = b""
        self._begin = b"BEGIN; " + self.sql[sql.CURRENT_XID]
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._enqueues: GroupCommit[Sequence[NewJob]] = GroupCommit(self._insert_together)
        self._bell: _Bell | None = None
        self._opened = False
        self._store_id = ""
        _stores_to_forget_after_fork.add(self)

    # Connections

    def connect(self) -> Connection:
        """A new connection; also asks the server what time it is."""
        try:
            raw = psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None if self._pooler else 5,
                connect_timeout=10,
                # A peer that vanished without a word is noticed, not waited for.
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=30_000,
            )
        except psycopg.ProgrammingError:
            # What the driver says quotes the part that it cannot read, which may be the password.
            raise errors.InvalidURL(
                "the PostgreSQL URL cannot be read; write special characters as %40, %20 and so on"
            ) from None
        except psycopg.Error as error:
            raise errors.StoreUnavailable(f"cannot connect to PostgreSQL: {_first(error)}") from (
                error
            )
        try:
            self._greet(raw)
        except BaseException:
            raw.close()
            raise
        return raw

    def _greet(self, raw: Connection) -> None:
        session = PostgresSession(raw, self)
        with translated():
            self._ask_time(session)
            if session.run(sql.SYNCHRONOUS_COMMIT)[0][0] == "off":
                # Whoever turned it off did so for other data than promises that must be kept.
                self._insist_on_durable_commits(raw)

    def _insist_on_durable_commits(self, raw: Connection) -> None:
        if self._pooler:
            self.sync_local = self.after_reset = b"; SET LOCAL synchronous_commit = on"
            self._begin = b"BEGIN" + self.sync_local + b"; " + self.sql[sql.CURRENT_XID]
        else:
            self.after_reset = b"; SET synchronous_commit = on"
            raw.execute("SET synchronous_commit = on")

    def _ask_time(self, session: PostgresSession) -> None:
        asked = os_monotonic()
        server = session.run(sql.SERVER_TIME)[0][0]
        if self._follow_clock:
            self._follow_clock(server, asked, os_monotonic())

    @contextlib.contextmanager
    def _borrow(self) -> Generator[PostgresSession]:
        with self._lend() as session, translated():
            yield session

    @contextlib.contextmanager
    def _lend(self) -> Generator[PostgresSession]:
        """A connection nobody else uses; one that broke or is left in a transaction is dropped."""
        raw = self._take_idle() or self.connect()
        try:
            yield PostgresSession(raw, self)
        finally:
            if raw.closed or raw.info.transaction_status != TransactionStatus.IDLE:
                raw.close()
            else:
                with self._lock:
                    self._idle.append(raw)

    def _take_idle(self) -> Connection | None:
        """A connection that the server has not ended while nobody used it."""
        while True:
            with self._lock:
                raw = self._idle.pop() if self._idle else None
            if raw is None or not is_hung_up(raw):
                return raw
            raw.close()

    def begin(self, raw: Connection) -> str:
        """Open a transaction; its id, which proves later that it is still the same one."""
        cursor = raw.execute(self._begin)
        while cursor.nextset():
            pass
        return str(cursor.fetchall()[0][0])

    def _read(self, ask: Callable[[PostgresSession], T]) -> T:
        """Ask; once more on a new connection if the old one turns out to be dead."""
        try:
            with self._borrow() as session:
                return ask(session)
        except errors.StoreUnavailable:
            self._drop_idle()
            with self._borrow() as session:
                return ask(session)

    def _read_in_time(self, ask: Callable[[PostgresSession], T]) -> T:
        def bounded(session: PostgresSession) -> T:
            session.run(sql.SHORT_QUERY)
            return ask(session)

        return self._write(bounded)

    def _write(self, work: Callable[[PostgresSession], T]) -> T:
        """Do the work in a transaction; repeated when it lost against another one."""
        for attempt in range(TRIES):
            try:
                return self._write_once(work)
            except _Conflict:
                os_sleep(random.random() * 0.01 * 2 ** min(attempt, 6))
        raise errors.StoreUnavailable("the database kept reporting conflicts; try again")

    def _write_once(self, work: Callable[[PostgresSession], T]) -> T:
        with self._borrow() as session:
            self.begin(session.raw)
            try:
                answer = work(session)
                session.raw.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    session.raw.rollback()
                raise
            return answer

    def _single(self, work: Callable[[PostgresSession], T]) -> T:
        """One statement, which is a transaction by itself."""
        if self.sync_local:
            return self._write(work)
        for attempt in range(TRIES):
            try:
                with self._borrow() as session:
                    return work(session)
            except _Conflict:
                os_sleep(random.random() * 0.01 * 2 ** min(attempt, 6))
        raise errors.StoreUnavailable("the database kept reporting conflicts; try again")

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for raw in idle:
            raw.close()

    def forget_after_fork(self) -> None:
        """In a forked child: the sockets belong to the parent."""
        _inherited.append((self._idle, self._bell))
        self._lock = threading.Lock()
        self._idle = []
        self._enqueues = GroupCommit(self._insert_together)
        self._bell = None

    # Schema

    def migrate(self, now: int) -> Sequence[str]:
        return self._write(lambda session: self._apply(session, now))

    def _apply(self, session: PostgresSession, now: int) -> list[str]:
        if session.raw.info.server_version < MINIMUM:
            raise errors.StoreTooOld("duly needs PostgreSQL 14 or newer")
        session.run(sql.LOCK_MIGRATIONS)
        session.run(sql.CREATE_SCHEMA)
        session.run(sql.CREATE_META)
        session.run(sql.CREATE_MIGRATIONS)
        steps = migrate.missing("postgres", dict(session.run(sql.READ_MIGRATIONS)))
        meta: dict[str, str] = dict(session.run(sql.READ_META))
        for step in steps:
            session.raw.execute(migrate.in_schema(step.text, self.words).encode())
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
        steps = migrate.missing("postgres", self._applied())
        return [(step.name, migrate.in_schema(step.text, self.words)) for step in steps]

    def migration_script(self, now: int) -> str:
        return migrate.script("postgres", self.words, self._applied(), now)

    def _applied(self) -> dict[int, str]:
        with contextlib.suppress(errors.NotMigrated):
            return dict(self._read(lambda s: s.run(sql.READ_MIGRATIONS)))
        return {}

    def open(self, now: int) -> None:
        if self._opened:
            return
        try:
            meta: dict[str, str] = dict(self._read(lambda s: s.run(sql.READ_META)))
        except errors.NotMigrated:
            meta = {}
        migrate.check("postgres", meta)
        self._store_id = meta.get("store_id", "")
        self._opened = True

    def address(self) -> Address:
        return Address("postgres", self.words["schema"], self._store_id, _place(self._url))

    def close(self) -> None:
        if self._bell:
            self._bell.stop()
        self._bell = None
        self._drop_idle()
        self._opened = False

    # Enqueue

    def enqueue(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        existing: Mapping[str, str] = {}
        if any(isinstance(job, KeyedJob) for job in jobs):
            existing = self._insert_keyed(jobs)
        else:
            self._enqueues.write(jobs)
        fault.point("enqueue.committed")
        return existing

    def _insert_keyed(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """By themselves: who waits for the holder of a key lets nobody else wait."""
        try:
            return self._write(lambda s: s.insert_jobs(jobs))
        except errors.StoreUnavailable:
            self._drop_idle()
            return self._write(lambda s: s.insert_keyed_once(jobs))

    def _insert_together(self, tickets: list[Ticket[Sequence[NewJob]]]) -> None:
        try:
            self._insert([job for ticket in tickets for job in ticket.work])
        except errors.StoreUnavailable:
            raise
        except Exception:
            if len(tickets) == 1:
                raise
            for ticket in tickets:
                try:
                    self._insert(ticket.work)
                except Exception as error:
                    ticket.error = error

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        try:
            self._single(lambda s: s.insert_jobs(jobs))
        except errors.StoreUnavailable:
            # The answer was lost, or the connection was dead before the question.
            self._drop_idle()
            self._write(lambda s: s.insert_jobs_once(jobs))

    @contextlib.contextmanager
    def transaction(self) -> Generator[PostgresTx]:
        with self._lend() as session, translated_if_ours(self.words["schema"]):
            xid = self.begin(session.raw)
            try:
                yield PostgresTx(session.raw, self)
                if session.raw.info.transaction_status == TransactionStatus.IDLE or (
                    session.run(sql.CURRENT_XID)[0][0] != xid
                ):
                    raise errors.TransactionEnded("the transaction was ended inside the block")
                session.raw.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    session.raw.rollback()
                raise

    # Run

    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        settled: set[str] = set()
        if settlements:
            one_statement = (
                len(settlements) <= SMALL_BATCH and len({type(s) for s in settlements}) == 1
            )
            write = self._single if one_statement else self._write
            settled = write(lambda s: s.settle(settlements, now))
            fault.point("finish.committed")
        if request is None:
            return settled, ()
        return settled, self._claim(request, now)

    def _claim(self, request: ClaimRequest, now: int) -> Sequence[Claim]:
        if not request.limited:
            return self._single(lambda s: s.claim(request, now))
        while True:
            # A transaction for each look: the locks of keys are taken in one order, and not long.
            claims, refused = self._write(lambda s: s.claim_limited(request, now))
            if claims or not refused:
                return claims

    def mutation_lane(self) -> PostgresMutationLane:
        return PostgresMutationLane(self)

    # Workers: a worker lives as long as its counter grows.

    def register(self, worker: WorkerInfo, now: int) -> None:
        self._write(lambda s: s.register(worker, now))
        self._release(worker.functions)

    def deregister(self, worker_id: str) -> None:
        self._write(lambda s: s.deregister(worker_id))

    def abandon(self, worker_id: str) -> None:
        """Nothing has to be let go: without beats the worker is dead. For tests."""

    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        with self._borrow() as session:
            self._ask_time(session)
            rows = session.run(sql.BEAT, {"ids": list(worker_ids)})
            return {row[0] for row in rows}

    def is_dead(self, worker_id: str) -> bool | None:
        return None

    # Upkeep

    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        for bucket, whole, look in _expired_buckets(cutoff, now):
            limits = {"bucket": bucket, "cutoff": cutoff}
            if self._read(lambda s: s.run(look, limits)):  # noqa: B023
                try:
                    self._write_once(
                        lambda s: s.retain_bucket(bucket, cutoff, exhausted_after, whole)  # noqa: B023
                    )
                except _Conflict:
                    log.info("bucket %s of the history is being read; it is emptied later", bucket)
        self._write(lambda s: s.drop_kept(exhausted_after))
        return 0

    # Waking

    def ring(self) -> None:
        if self._bell is None:
            with self._lock:
                if self._bell is None:
                    self._bell = _Bell(self._notify)
        self._bell.ring()

    def _notify(self) -> None:
        with self._borrow() as session:
            session.run(sql.NOTIFY)

    def watch(self, bell: threading.Event, stop: threading.Event) -> None:
        if self._pooler:
            stop.wait()
            return
        while not stop.is_set():
            try:
                self._listen(bell, stop)
            except (errors.StoreUnavailable, psycopg.Error) as error:
                log.warning("not listening for wake-ups, polling instead: %s", _first(error))
                stop.wait(1)

    def _listen(self, bell: threading.Event, stop: threading.Event) -> None:
        with contextlib.closing(self.connect()) as raw:
            raw.execute(self.sql[sql.LISTEN])
            bell.set()
            while not stop.is_set():
                for _ in raw.notifies(timeout=0.5, stop_after=1):
                    bell.set()


class _Bell:
    """At most one NOTIFY every few milliseconds, from a thread of its own.

    A NOTIFY in every transaction would take a database-wide lock at every commit.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._rung = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-bell", daemon=True)
        self._thread.start()

    def ring(self) -> None:
        if not self._rung.is_set():
            self._rung.set()

    def stop(self) -> None:
        """End the thread, so that it gives back no connection after the store was closed."""
        self._stopped.set()
        self._rung.set()
        self._thread.join(2)

    def _run(self) -> None:
        while self._rung.wait() and not self._stopped.is_set():
            self._rung.clear()
            try:
                self._notify()
            except Exception as error:
                log.debug("a wake-up got lost: %s", error)
            if self._stopped.wait(RING_EVERY):
                return


# Parameters --------------------------------------------------------------------------------------


def _check_url(url: str) -> None:
    """Refuse what libpq cannot read; its own words are not shown, they may quote the password."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        parameter = re.match(r'invalid URI query parameter: "[^"]*"', str(error))
        reason = parameter[0] if parameter else "write %xx for special characters in it"
        raise errors.InvalidURL(f"the PostgreSQL URL cannot be read: {reason}") from None
    ports = str(given.get("port") or "").split(",")
    if not all(port == "" or port.isdecimal() for port in ports):
        raise errors.InvalidURL(f"the PostgreSQL URL has no numeric port: {given['port']!r}")


def _place(url: str) -> str:
    """The database as it may be named in a message."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    return f"{given.get('dbname') or 'the default database'} on {given.get('host') or 'localhost'}"


def _due_arrays(request: ClaimRequest, queues: Sequence[str], now: int) -> dict[str, Any]:
    lanes = [(queue, level) for queue in queues for level in _LEVELS]
    return {
        "queues": [queue for queue, _ in lanes],
        "levels": [level for _, level in lanes],
        "floors": [request.floors.get(lane, 0) for lane in lanes],
        "functions": list(request.functions),
        "limit": request.limit,
        "bytes": CLAIM_BYTES,
        "now": now,
    }


def _in_order(claims: list[Claim], request: ClaimRequest) -> list[Claim]:
    places = {queue: place for place, queue in enumerate(request.queues)}
    return sorted(claims, key=lambda c: (places[c.queue], -c.priority, c.run_at, c.id))


def _finish_arrays(finishes: Sequence[Finish], now: int) -> dict[str, Any]:
    return {
        "now": now,
        "ids": [f.id for f in finishes],
        "tokens": [f.token for f in finishes],
        "states": [f.state for f in finishes],
        "results": [f.result for f in finishes],
        "error_kinds": [f.error_kind for f in finishes],
        "error_messages": [f.error_message for f in finishes],
        "error_tracebacks": [f.error_traceback for f in finishes],
        "exhausteds": [f.exhausted for f in finishes],
    }


def _again_arrays(agains: Sequence[Again]) -> dict[str, Any]:
    return {
        "ids": [a.id for a in agains],
        "tokens": [a.token for a in agains],
        "run_ats": [a.run_at for a in agains],
        "attempts": [a.attempt for a in agains],
        "crashes": [a.crashes for a in agains],
        "system_retries": [a.system_retries for a in agains],
        "holds": [a.hold for a in agains],
        "error_kinds": [a.error_kind for a in agains],
        "error_messages": [a.error_message for a in agains],
        "error_tracebacks": [a.error_traceback for a in agains],
    }


def _expired_buckets(cutoff: int, now: int) -> Iterator[tuple[int, bool, Statement]]:
    """Each bucket, oldest day first, whether all of it is past the cutoff, and how to look inside.

    A bucket holds the days that are equal modulo the ring; the newest of them is at most today.
    Only a retention longer than the ring mixes days in a bucket, or a time in which nobody cleaned
    up: such a bucket must be searched. The oldest day's is searched too, never emptied: it is
    tomorrow's as well, and in another process tomorrow may have begun.
    """
    today = now // sql.DAY_MS
    longer_than_ring = now - cutoff > (sql.HISTORY_BUCKETS - 2) * sql.DAY_MS
    for age in range(sql.HISTORY_BUCKETS - 1, -1, -1):
        day = today - age
        whole = (day + 1) * sql.DAY_MS <= cutoff and age < sql.HISTORY_BUCKETS - 1
        look = sql.OLDEST_FINISHED if whole or longer_than_ring else sql.LEFT_BEHIND
        yield day % sql.HISTORY_BUCKETS, whole, look


def is_hung_up(raw: Connection) -> bool:
    """Whether an idle connection is of no more use: a server that speaks unasked says goodbye."""
    if raw.closed:
        return True
    asked = select.poll()
    asked.register(raw.fileno(), select.POLLIN)
    return bool(asked.poll(0))


# Errors ------------------------------------------------------------------------------------------


class _Conflict(Exception):
    """The transaction lost against another one and may simply be repeated."""


@contextlib.contextmanager
def translated() -> Generator[None]:
    """Errors of the driver as errors of duly."""
    try:
        yield
    except CONFLICTS as error:
        raise _Conflict from error
    except psycopg.Error as error:
        raise _translate(error) from error


@contextlib.contextmanager
def translated_if_ours(schema: str) -> Generator[None]:
    """In a user's transaction only errors about the store itself; others stay the driver's."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        if f'"{schema}.' in str(error):
            raise _translate(error) from error
        raise
    except psycopg.Error as error:
        about_the_store = (errors.StoreUnavailable, errors.StoreReadOnly, errors.StoreFull)
        meaning = _translate(error)
        if isinstance(meaning, about_the_store):
            raise meaning from error
        raise


def _translate(error: psycopg.Error) -> Exception:
    text = _first(error)
    match error:
        case psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName():
            return errors.NotMigrated(f"{text}; run `duly migrate`")
        case psycopg.errors.ReadOnlySqlTransaction():
            return errors.StoreReadOnly(f"{text}; is this a standby?")
        case psycopg.errors.DiskFull():
            return errors.StoreFull(f"{text}; free some space, nothing was written")
        case psycopg.errors.QueryCanceled():
            return errors.QueryTooBroad("no index serves this filter quickly; narrow the filter")
        case psycopg.errors.InsufficientPrivilege():
            return errors.StoreError(
                f"{text}; the role needs SELECT, INSERT, UPDATE, DELETE and TRUNCATE on duly's "
                "tables, and CREATE on the database to migrate"
            )
        case _:
            pass
    if _is_lost(error):
        return errors.StoreUnavailable(f"the connection to PostgreSQL was lost: {text}")
    return errors.StoreError(text)


def _is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, or the server going: any outcome is possible."""
    if isinstance(error, psycopg.errors.AdminShutdown | psycopg.errors.CrashShutdown):
        return True
    if isinstance(error, psycopg.errors.CannotConnectNow | psycopg.errors.TooManyConnections):
        return True
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate.startswith("08")
    )


def _first(error: BaseException) -> str:
    """The first line of a message: psycopg appends hints and, on connect, every address tried."""
    return str(error).strip().split("\n")[0]


# Fork --------------------------------------------------------------------------------------------

_stores_to_forget_after_fork: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_inherited: list[object] = []


def _after_fork() -> None:
    for store in _stores_to_forget_after_fork:
        store.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork)
