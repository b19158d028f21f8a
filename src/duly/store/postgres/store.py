"""The store in its own PostgreSQL schema.

Statements take one round trip where possible. READ COMMITTED, SKIP LOCKED, batches in id order, no
session state. The server's clock is authoritative: its offset is measured at connect and with each
heartbeat.
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import psycopg
import psycopg.conninfo
from psycopg.pq import TransactionStatus

from duly import errors, fault
from duly.clock import SystemClock, os_sleep
from duly.model.job import (
    Claim,
    Finish,
    KeyedJob,
    Lost,
    NewJob,
    Settlement,
)
from duly.store import migrate, workers
from duly.store import statements as sql
from duly.store.base import (
    POOL,
    Address,
    Blame,
    ClaimRequest,
    DatabaseInfo,
    RowsLocked,
    WorkerInfo,
    blame,
)
from duly.store.commit import GroupCommit, Ticket
from duly.store.jobs import holds, rescue
from duly.store.jobs.enqueue import insert_jobs
from duly.store.jobs.finish import CURRENT_XID, LOCK_WAIT, SHORT_LOCK_WAIT
from duly.store.jobs.retention import LEFT_BEHIND, OLDEST_FINISHED
from duly.store.migrate import (
    CREATE_META,
    CREATE_MIGRATIONS,
    CREATE_SCHEMA,
    LOCK_MIGRATIONS,
    READ_META,
    READ_MIGRATIONS,
    WRITE_META,
    WRITE_MIGRATION,
)
from duly.store.postgres.bell import Bell
from duly.store.postgres.connection import Connection
from duly.store.postgres.errors import (
    Conflict,
    blame_one,
    first_line,
    in_doubt,
    is_refused,
    translated,
    translated_if_ours,
)
from duly.store.postgres.fork import INHERITED, STORES
from duly.store.postgres.lane import PostgresMutationLane
from duly.store.postgres.pool import Pool, PoolExhausted
from duly.store.postgres.session import SMALL_BATCH, PostgresSession
from duly.store.postgres.tx import PostgresTx
from duly.store.statements import (
    Statement,
    both,
    each,
)
from duly.store.steps import NOTIFY, Row
from duly.store.table import Store
from duly.store.workers import BEAT

SERVER_TIME = both("SELECT extract(epoch FROM clock_timestamp())::float8")
# How long the oldest transaction that this role can see has been open, in milliseconds.
SERVER_STATE = each(
    sqlite="SELECT 0",
    postgres="""SELECT (extract(epoch FROM max(clock_timestamp() - xact_start) FILTER (
                WHERE datname = current_database() AND pid <> pg_backend_pid())) * 1000)::int8,
            count(*), current_setting('max_connections')::int8,
            current_setting('superuser_reserved_connections')::int8
                + coalesce(current_setting('reserved_connections', true)::int8, 0),
            (SELECT min(setting::int8) FROM pg_settings WHERE setting <> '0' AND name IN
                ('idle_in_transaction_session_timeout', 'transaction_timeout'))
        FROM pg_stat_activity WHERE backend_type = 'client backend'""",
)
# The settings of statements outside any transaction.
DEFAULTS = both(
    "SELECT current_setting('synchronous_commit'), current_setting('default_transaction_isolation')"
)
# The setting of the database, the role or the URL; duly may have changed it for the session.
DEFAULT_ISOLATION = both(
    "SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'"
)
LISTEN = both("LISTEN duly")
# A list is planned for its actual values: most filters match either few rows or most.
SHORT_QUERY = both(
    """SELECT set_config('statement_timeout', '10s', true),
        set_config('plan_cache_mode', 'force_custom_plan', true)"""
)


log = logging.getLogger(__name__)

T = TypeVar("T")
SERVER_TIME_SECONDS = 10.0
"""After this many seconds, a caller that takes a connection also reads the server's clock."""

MINIMUM = 140000
MAX_TRIES = 20

_SCHEME = re.compile(r"^(postgres|postgresql)(\+\w+)?://")


class PostgresStore(Store):
    """See `duly.store.table.Store`, which lists the verbs."""

    mutation_lanes = 8
    mutations_share = False
    mutation_group = 50
    mutation_group_seconds = 0.050
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
        pool: int = POOL,
        clock: SystemClock | None = None,
    ) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
            raise errors.InvalidOption("schema", "use lower-case letters, digits and _")
        self._url = _SCHEME.sub("postgresql://", url)
        _check_url(self._url)
        self.is_pooled = pooler
        self._clock = clock
        self._ask_time_at = 0.0
        self.words = sql.words_for("postgres", schema)
        self.sql = _Encoded(sql.texts("postgres", schema))
        self.after_reset = b""
        self._begin = sql.BEGIN + b"; " + self.sql[CURRENT_XID]
        # Whether a single statement would run with settings of the database that are not ours.
        self._must_begin = False
        self._lock = threading.Lock()
        self.pool = pool
        self._pool = Pool(lambda: self.connect(), pool)
        self._enqueues: GroupCommit[_Insert] = GroupCommit(self._insert_together)
        self._bell: Bell | None = None
        self._opened = False
        self._store_id = ""
        STORES.add(self)

    # Connections

    def connect(self) -> Connection:
        """A new connection. This also reads the server's clock."""
        try:
            raw = psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None if self.is_pooled else 5,
                connect_timeout=10,
                # A peer that vanished is detected quickly.
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=30_000,
            )
        except psycopg.ProgrammingError:
            # The driver's message quotes the part that it cannot parse, which may be the password.
            raise errors.InvalidURL(
                "the PostgreSQL URL cannot be read; write special characters as %40, %20 and so on"
            ) from None
        except psycopg.Error as error:
            kind = errors.StoreRefused if is_refused(error) else errors.StoreUnavailable
            raise kind(f"cannot connect to PostgreSQL: {first_line(error)}") from error
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
            [(commits, isolation)] = session.run(DEFAULTS)
            # The default may have been changed for other data; duly's promises need these settings.
            if commits == "off":
                self._insist_on_durable_commits(raw)
            if isolation in sql.SNAPSHOT_LEVELS:
                self._insist_on_read_committed(raw)

    def _insist_on_durable_commits(self, raw: Connection) -> None:
        if self.is_pooled:
            self.after_reset = b"; SET LOCAL synchronous_commit = on"
            self._begin = sql.BEGIN + self.after_reset + b"; " + self.sql[CURRENT_XID]
            self._must_begin = True
        else:
            self.after_reset = b"; SET synchronous_commit = on"
            raw.execute("SET synchronous_commit = on")

    def _insist_on_read_committed(self, raw: Connection) -> None:
        """For single statements; transactions set it when they begin."""
        if self.is_pooled:
            self._must_begin = True
        else:
            raw.execute("SET default_transaction_isolation = 'read committed'")

    def _ask_time(self, session: PostgresSession) -> None:
        if self._clock is None:
            return
        asked_at = self._clock.monotonic()
        server = session.run(SERVER_TIME)[0][0]
        answered_at = self._clock.monotonic()
        self._clock.follow_server(server, asked_at, answered_at)
        self._ask_time_at = answered_at + SERVER_TIME_SECONDS

    @contextlib.contextmanager
    def _borrow(self) -> Generator[PostgresSession]:
        with self._lend() as session, translated():
            # A process without a worker sends no heartbeats, which would read the clock.
            if self._clock is not None and self._clock.monotonic() >= self._ask_time_at:
                self._ask_time(session)
            yield session

    @contextlib.contextmanager
    def _lend(self) -> Generator[PostgresSession]:
        with self._pool.lend() as raw:
            try:
                yield PostgresSession(raw, self)
            except errors.StoreReadOnly:
                # After a failover other addresses may lead to the server that can write, not this
                # one.
                raw.close()
                self._pool.close_idle()
                raise

    def begin(self, raw: Connection) -> str:
        """Open a transaction. Return its id, which later proves that it is still the same one."""
        cursor = raw.execute(self._begin)
        while cursor.nextset():
            pass
        return str(cursor.fetchall()[0][0])

    def read(self, ask: Callable[[PostgresSession], T]) -> T:
        """Read committed data, without a transaction."""
        return _repeated(lambda: self._read_once(ask))

    def _read_once(self, ask: Callable[[PostgresSession], T]) -> T:
        """Run `ask`; once more on a new connection if the old one turns out to be dead."""
        try:
            with self._borrow() as session:
                return ask(session)
        except PoolExhausted:
            raise
        except errors.StoreUnavailable:
            self.drop_idle()
            with self._borrow() as session:
                return ask(session)

    def read_in_time(self, ask: Callable[[PostgresSession], T]) -> T:
        def bounded(session: PostgresSession) -> T:
            session.run(SHORT_QUERY)
            return ask(session)

        return self.write(bounded)

    def write(self, work: Callable[[PostgresSession], T]) -> T:
        """Run `work` in a transaction; repeated when it lost against another one."""
        return _repeated(lambda: self._write_once(work))

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

    def write_one(self, work: Callable[[PostgresSession], T]) -> T:
        """Run a single statement, which is its own transaction; repeated like any other."""
        return _repeated(lambda: self._single_once(work))

    def _single_once(self, work: Callable[[PostgresSession], T]) -> T:
        if self._must_begin:
            return self._write_once(work)
        with self._borrow() as session:
            return work(session)

    def drop_idle(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close_idle()

    def forget_after_fork(self) -> None:
        """In a forked child: the sockets belong to the parent."""
        INHERITED.append((self._pool, self._bell))
        self._lock = threading.Lock()
        self._pool = Pool(lambda: self.connect(), self.pool)
        self._enqueues = GroupCommit(self._insert_together)
        self._bell = None

    # Schema

    def migrate(self, now: int) -> Sequence[str]:
        return self.write(lambda session: self._apply(session, now))

    def _apply(self, session: PostgresSession, now: int) -> list[str]:
        if session.raw.info.server_version < MINIMUM:
            raise errors.StoreTooOld("duly needs PostgreSQL 14 or newer")
        session.run(LOCK_MIGRATIONS)
        session.run(CREATE_SCHEMA)
        session.run(CREATE_META)
        session.run(CREATE_MIGRATIONS)
        steps = migrate.missing("postgres", dict(session.run(READ_MIGRATIONS)))
        meta: dict[str, str] = dict(session.run(READ_META))
        for step in steps:
            session.raw.execute(migrate.in_schema(step.text, self.words).encode())
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
        steps = migrate.missing("postgres", self._applied())
        return [(step.name, migrate.in_schema(step.text, self.words)) for step in steps]

    def migration_script(self, now: int) -> str:
        return migrate.script("postgres", self.words, self._applied(), now)

    def _applied(self) -> dict[int, str]:
        with contextlib.suppress(errors.NotMigrated):
            return dict(self.read(lambda s: s.run(READ_MIGRATIONS)))
        return {}

    def open(self, now: int) -> None:
        if self._opened:
            return
        try:
            meta: dict[str, str] = dict(self.read(lambda s: s.run(READ_META)))
        except errors.NotMigrated:
            meta = {}
        migrate.check("postgres", meta)
        self._store_id = meta.get("store_id", "")
        self._opened = True

    def address(self) -> Address:
        where = _place(self._url)
        schema, hint = self.words["schema"], self.wrong_database_hint
        return Address("postgres", schema, self._store_id, where, hint)

    def database(self) -> DatabaseInfo:
        return self.read(lambda session: _engine(session, self.pool, self.is_pooled))

    def close(self) -> None:
        with self._lock:
            bell, self._bell = self._bell, None
        if bell:
            bell.stop()
        self._pool.close()
        self._opened = False

    # Enqueue

    def enqueue(self, jobs: Sequence[NewJob], *, ring: bool = False) -> Mapping[str, str]:
        existing: Mapping[str, str] = {}
        rung = False
        if any(isinstance(job, KeyedJob) for job in jobs):
            existing = self._insert_keyed(jobs)
        else:
            rung = self._enqueues.write(_Insert(jobs, ring))
        fault.point("enqueue.committed")
        if ring and not rung:
            self._ring_safely()
        return existing

    def _insert_keyed(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """Insert outside the shared commit, so that waiting for a key delays no other caller."""
        try:
            return self.write(lambda s: insert_jobs(s, jobs))
        except PoolExhausted:
            raise
        except errors.StoreUnavailable:
            self.drop_idle()
            with in_doubt():
                return self.write(lambda s: s.insert_keyed_once(jobs))

    def _insert_together(self, tickets: list[Ticket[_Insert]]) -> None:
        # One round trip for both, unless a notification is about to be sent anyway.
        rings, bell = any(ticket.work.ring for ticket in tickets), self._bell
        rung = rings and bell is not None and bell.is_quiet()
        try:
            self._insert([job for ticket in tickets for job in ticket.work.jobs], rung)
        except errors.StoreUnavailable:
            raise
        except Exception:
            if len(tickets) == 1:
                raise
            for ticket in tickets:
                try:
                    self._insert(ticket.work.jobs)
                except Exception as error:
                    ticket.error = error
        else:
            for ticket in tickets:
                ticket.value = rung

    def _insert(self, jobs: Sequence[NewJob], ring: bool = False) -> None:
        try:
            self.write_one(lambda s: insert_jobs(s, jobs, ring))
        except PoolExhausted:
            raise
        except errors.StoreUnavailable:
            # The answer was lost, or the connection was dead before the statement.
            self.drop_idle()
            with in_doubt():
                self.write(lambda s: s.insert_jobs_once(jobs, ring))

    @contextlib.contextmanager
    def transaction(self) -> Generator[PostgresTx]:
        with self._lend() as session, translated_if_ours(self.words["schema"]):
            xid = self.begin(session.raw)
            try:
                yield PostgresTx(session.raw, self)
                if session.raw.info.transaction_status == TransactionStatus.IDLE or (
                    session.run(CURRENT_XID)[0][0] != xid
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
            settled = self._settle(settlements, now)
        if request is None:
            return settled, ()
        return settled, self._claim(request, now)

    def _settle(self, settlements: Sequence[Settlement], now: int) -> set[str]:
        cancels = any(isinstance(s, Finish) and s.cancels for s in settlements)
        kinds = {type(s) for s in settlements}
        one_statement = len(settlements) <= SMALL_BATCH and len(kinds) == 1 and not cancels
        write = self.write_one if one_statement else self.write
        try:
            settled = write(lambda s: _settle_shortly(s, settlements, now))
        except _Locked:
            settled, locked = self.write(lambda s: s.settle_unlocked(settlements, now))
            if locked:
                raise RowsLocked(settled, locked) from None
        fault.point("finish.committed")
        return settled

    def _claim(self, request: ClaimRequest, now: int) -> Sequence[Claim]:
        if not request.freed:
            return self._claim_due(request, now)
        claims, tells = self.write(lambda s: s.hand_over(request, now))
        if tells:
            self._ring_safely()
        left = request.limit - len(claims)
        if left <= 0 or not request.queues:
            return claims
        try:
            return [*claims, *self._claim_due(msgspec.structs.replace(request, limit=left), now)]
        except errors.StoreError:
            # The claimed jobs must start.
            if not claims:
                raise
            return claims

    def _claim_due(self, request: ClaimRequest, now: int) -> Sequence[Claim]:
        if not request.limited:
            return self.write_one(lambda s: s.claim(request, now))
        while True:
            # One transaction per look: keys are locked in a fixed order, and not for long.
            claims, refused = self.write(lambda s: s.claim_limited(request, now))
            if claims or not refused:
                return claims

    def mutation_lane(self) -> PostgresMutationLane:
        return PostgresMutationLane(self)

    def blame(self, error: BaseException) -> Blame:
        return blame(error, blame_one)

    # Workers: a worker is alive as long as its counter grows.

    def register(self, worker: WorkerInfo, now: int) -> None:
        self.write(lambda s: workers.register(s, worker, now))
        holds.release_for(self, worker.functions)

    def deregister(self, worker_id: str, now: int) -> None:
        self.write(lambda s: rescue.deregister(s, worker_id, now))

    def abandon(self, worker_id: str) -> None:
        """Nothing has to be released: without heartbeats the worker is dead. For tests."""

    def beat(self, worker_ids: Iterable[str]) -> set[str]:
        def beat(session: PostgresSession) -> list[Row]:
            self._ask_time(session)
            return session.run(BEAT, {"ids": list(worker_ids)})

        try:
            rows = self._single_once(beat)
        except Conflict as error:
            raise errors.StoreUnavailable("the row of a worker is locked") from error
        return {row[0] for row in rows}

    def is_dead(self, worker_id: str) -> bool | None:
        return None

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost], Settlement],
        now: int,
    ) -> int | None:
        """The rescuer must keep sending heartbeats, so it does not wait for a locked row.

        Another transaction may keep one for long, such as one that sends an event to a workflow:
        the other jobs are rescued meanwhile.
        """

        def shortly(verb: Callable[..., int | None]) -> int | None:
            def work(session: PostgresSession) -> int | None:
                session.run(SHORT_LOCK_WAIT)
                return verb(session, worker_id, beat, judge, now)

            return self._write_once(work)

        try:
            try:
                rescued = shortly(rescue.rescue)
            except Conflict:
                rescued = shortly(rescue.rescue_unlocked)
                if rescued == 0:
                    raise
        except Conflict as error:
            raise errors.StoreUnavailable(
                f"worker {worker_id} or one of its jobs is locked by another transaction"
            ) from error
        fault.point("rescue.committed")
        return rescued

    # Upkeep

    def retain(self, cutoff: int, exhausted_after: int, now: int) -> int:
        for bucket, whole, look in _expired_buckets(cutoff, now):
            limits = {"bucket": bucket, "cutoff": cutoff}
            if self.read(lambda s: s.run(look, limits)):  # noqa: B023
                try:
                    self._write_once(
                        lambda s: s.retain_bucket(bucket, cutoff, exhausted_after, whole)  # noqa: B023
                    )
                except Conflict:
                    log.info("bucket %s of the history is being read; it is emptied later", bucket)
        self.write(lambda s: s.drop_kept(exhausted_after))
        return 0

    # Waking

    def _ring_safely(self) -> None:
        """The jobs are stored even if workers are not notified: they check every second."""
        try:
            self.ring()
        except Exception as error:
            log.warning("workers could not be notified of a new job: %s", error)

    def ring(self) -> None:
        bell = self._bell  # another thread may close the store meanwhile
        if bell is None:
            with self._lock:
                bell = self._bell = self._bell or Bell(self._notify)
        bell.ring()

    def _notify(self) -> None:
        with self._borrow() as session:
            session.run(NOTIFY)

    def watch(self, bell: threading.Event, stop: threading.Event) -> None:
        if self.is_pooled:
            stop.wait()
            return
        while not stop.is_set():
            try:
                self._listen(bell, stop)
            except (errors.StoreError, Conflict, psycopg.Error) as error:
                log.warning("not listening for wake-ups, polling instead: %s", first_line(error))
                stop.wait(1)

    def _listen(self, bell: threading.Event, stop: threading.Event) -> None:
        with contextlib.closing(self.connect()) as raw:
            raw.execute(self.sql[LISTEN])
            bell.set()
            while not stop.is_set():
                for _ in raw.notifies(timeout=0.5, stop_after=1):
                    bell.set()


class _Encoded(dict[Statement, bytes]):
    """The texts of statements as psycopg takes them without conversion."""

    def __init__(self, texts: sql.Texts) -> None:
        super().__init__()
        self._texts = texts

    def __missing__(self, statement: Statement) -> bytes:
        text = self[statement] = self._texts[statement].encode()
        return text


class _Insert(NamedTuple):
    """The jobs of one caller, and whether to notify workers."""

    jobs: Sequence[NewJob]
    ring: bool


class _Locked(Exception):
    """Not a Conflict: repeating it would mean waiting."""


def _repeated(work: Callable[[], T]) -> T:
    """Run `work` until it does not lose against another transaction."""
    for attempt in range(MAX_TRIES):
        try:
            return work()
        except Conflict:
            os_sleep(random.random() * 0.01 * 2 ** min(attempt, 6))
    raise errors.StoreUnavailable("the database kept reporting conflicts; try again")


def _settle_shortly(
    session: PostgresSession, settlements: Sequence[Settlement], now: int
) -> set[str]:
    try:
        return session.settle(settlements, now, LOCK_WAIT)
    except psycopg.errors.LockNotAvailable as error:
        raise _Locked from error


def _engine(session: PostgresSession, pool: int, is_pooled: bool) -> DatabaseInfo:
    version = session.raw.info.parameter_status("server_version") or "?"
    ((longest, used, most, reserved, timeout),) = session.run(SERVER_STATE)
    ((isolation,),) = session.run(DEFAULT_ISOLATION)
    return DatabaseInfo(
        "PostgreSQL",
        version,
        longest_transaction_ms=longest,
        isolation=isolation,
        pool=pool,
        connections=used,
        max_connections=most,
        reserved_connections=reserved,
        is_pooled=is_pooled,
        transaction_timeout_ms=timeout,
    )


def _check_url(url: str) -> None:
    """Refuse a URL that libpq cannot read. Its message is not shown: it may quote the password."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        parameter = re.match(r'invalid URI query parameter: "[^"]*"', str(error))
        reason = parameter[0] if parameter else "write %xx for special characters in it"
        raise errors.InvalidURL(f"the PostgreSQL URL cannot be read: {reason}") from None
    ports = str(given.get("port") or "").split(",")
    if not all(port == "" or port.isdecimal() for port in ports):
        raise errors.InvalidURL(
            f"the port in the PostgreSQL URL is not a number: {given['port']!r}"
        )


def _place(url: str) -> str:
    """The database, as error messages name it."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    return f"{given.get('dbname') or 'the default database'} on {given.get('host') or 'localhost'}"


def _expired_buckets(cutoff: int, now: int) -> Iterator[tuple[int, bool, Statement]]:
    """Each bucket, oldest day first, whether all of it is past the cutoff, and how to check it.

    A bucket holds the days that are equal modulo the number of buckets; the newest of them is at
    most today. A bucket mixes days only if retention is longer than that, or if no janitor ran for
    a while: such a bucket must be searched. The oldest day's bucket is searched too, never emptied:
    it is also tomorrow's, and for another process tomorrow may have started.
    """
    today = now // sql.DAY_MS
    longer_than_ring = now - cutoff > (sql.HISTORY_BUCKETS - 2) * sql.DAY_MS
    for age in range(sql.HISTORY_BUCKETS - 1, -1, -1):
        day = today - age
        whole = (day + 1) * sql.DAY_MS <= cutoff and age < sql.HISTORY_BUCKETS - 1
        look = OLDEST_FINISHED if whole or longer_than_ring else LEFT_BEHIND
        yield day % sql.HISTORY_BUCKETS, whole, look
