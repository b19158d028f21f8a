"""New databases with duly's schema, and functions that fill them."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.app import CREATE_ROWS, Measured, make_app
from duly.model.job import DEFAULT_PRIORITY, DEFAULT_QUEUE
from duly.store import statements as sql
from tests.postgres import fresh_database, temporary_postgres

POSTGRES_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_connections": "500",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}

# Ids of loaded rows: older than every id that is created later, like those of waiting jobs.
_ID = "00000000-0000-7000-8000-"

_LIVE = """INSERT INTO @jobs (id, function, kind, queue, priority, created_at, scheduled_at, run_at,
        args, hold)
    SELECT {id}, {function}, 'action', {queue}, {priority}, {now}, {run_at}, {run_at}, '{{"n":1}}',
        {hold}
    FROM {numbers}"""

_DONE = """INSERT INTO @history (id, function, kind, queue, priority, created_at, scheduled_at,
        run_at, started_at, completed_at, args, state, token, attempt, crashes, system_retries
        {bucket_column})
    SELECT {id}, 'async_noop', 'action', '{queue}', {priority}, {now}, {now}, {now}, {now}, {now},
        '{{"n":1}}', 'succeeded', 1, 1, 0, 0 {bucket}
    FROM {numbers}"""

# Both parts read a partial index, however many other jobs there are.
_UNFINISHED = f"""SELECT EXISTS (SELECT 1 FROM @jobs WHERE worker_id IS NOT NULL)
    OR EXISTS (SELECT 1 FROM @jobs WHERE queue = '{DEFAULT_QUEUE}'
        AND priority = {DEFAULT_PRIORITY} AND state = 'pending' AND hold IS NULL
        AND run_at <= {{now}})"""


class Database(ABC):
    """One migrated database, with the table that mutations write to."""

    store: str
    dialect: sql.Dialect
    url: str

    def __init__(self) -> None:
        self.words = sql.words_for(self.dialect)
        self.texts = sql.texts(self.dialect)

    @abstractmethod
    def connect(self) -> Any:
        """The driver's connection, configured like duly's own."""

    @abstractmethod
    def tidy(self) -> None:
        """The maintenance that a long-lived database has had: vacuum, statistics, a checkpoint."""

    @abstractmethod
    def load_jobs(self, count: int, **columns: str) -> None:
        """Insert this many pending jobs with one statement."""

    @abstractmethod
    def load_finished(self, count: int, at: int) -> None:
        """Insert this many jobs that finished at this time."""

    @abstractmethod
    def load_schedules(self, text: str, count: int) -> None:
        """Insert this many schedules with one statement, which says which parameters it needs."""

    def copy_run(self, job_id: str, count: int) -> None:
        """Insert this many copies of a live run of a workflow, with what it has recorded."""
        numbers, id_ = self._numbers(count)
        for table, key in (("@jobs", "id"), ("@steps", "job_id")):
            others = ", ".join(name for name in self._columns(table) if name != key)
            self.run(
                f"INSERT INTO {table} ({key}, {others}) SELECT {id_}, {others}"
                f" FROM {table}, {numbers} WHERE {key} = '{job_id}'"
            )

    @abstractmethod
    def _numbers(self, count: int) -> tuple[str, str]:
        """A table of the numbers from 1, and the id with the number `i`."""

    @abstractmethod
    def _columns(self, table: str) -> list[str]:
        """Those that can be written."""

    def make_due(self, count: int, tick_at: int) -> None:
        """Give the first schedules an undecided tick at that time."""
        last = f"{_ID}{count:012x}"
        self.run(
            f"UPDATE @schedules SET next_tick_at = {tick_at}, due_at = {tick_at},"
            " last_tick_at = NULL"
            f" WHERE id <= '{last}'"
        )

    def restrict(self, count: int, calendar: str, condition: str) -> None:
        """Give every second one of the first schedules a calendar and a condition."""
        last = f"{_ID}{count:012x}"
        self.run(
            f"UPDATE @schedules SET calendar = '{calendar}', condition = '{condition}'"
            f" WHERE id <= '{last}' AND CAST(substr(key, 10) AS integer) % 2 = 0"
        )

    def prepare(self) -> None:
        with self.app() as measured:
            measured.app.migrate()
        self.run(CREATE_ROWS)

    @contextmanager
    def app(self) -> Iterator[Measured]:
        """The app over this database, in this process, without a worker."""
        measured = make_app(self.url)
        try:
            yield measured
        finally:
            measured.app.close()

    def run(self, text: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            cursor = connection.execute(sql.render(text, "sqlite", self.words))
            return list(cursor.fetchall()) if cursor.description else []

    def wait_until_finished(self, patience: float = 60) -> None:
        """Return when no due job of the default queue is waiting or running."""
        until = time.monotonic() + patience
        text = sql.render(_UNFINISHED.format(now=now_ms()), "sqlite", self.words)
        with closing(self.connect()) as connection:
            while connection.execute(text).fetchone()[0]:
                if time.monotonic() > until:
                    raise TimeoutError(f"jobs are left unfinished after {patience:g} s")
                time.sleep(0.001)

    def _live(self, numbers: str, id_: str, columns: dict[str, str]) -> str:
        given = {
            "function": "'async_noop'",
            "queue": f"'{DEFAULT_QUEUE}'",
            "priority": str(DEFAULT_PRIORITY),
            "now": str(now_ms()),
            "run_at": str(now_ms()),
            "hold": "NULL",
        }
        return _LIVE.format(**(given | columns), id=id_, numbers=numbers)


class SqliteDatabase(Database):
    store = "SQLite"
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.url = f"sqlite:///{path}"

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def tidy(self) -> None:
        """No ANALYZE: neither SQLite nor duly runs it automatically."""
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")

    def _numbers(self, count: int) -> tuple[str, str]:
        return _sqlite_numbers(count), _sqlite_id()

    def _columns(self, table: str) -> list[str]:
        return [row[1] for row in self.run(f"PRAGMA table_info({table})")]

    def load_jobs(self, count: int, **columns: str) -> None:
        self.run(self._live(_sqlite_numbers(count), _sqlite_id(), columns))

    def load_schedules(self, text: str, count: int) -> None:
        numbers = _sqlite_numbers(count)
        self.run(text.format(id=_sqlite_id(), now=now_ms(), numbers=numbers, yes="1", no="0"))

    def load_finished(self, count: int, at: int) -> None:
        self.run(
            _DONE.format(
                id=_sqlite_id(),
                queue=DEFAULT_QUEUE,
                priority=DEFAULT_PRIORITY,
                now=at,
                numbers=_sqlite_numbers(count),
                bucket_column="",
                bucket="",
            )
        )


class PostgresDatabase(Database):
    store = "PostgreSQL"
    dialect = "postgres"

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True)

    def tidy(self) -> None:
        self.run("VACUUM ANALYZE")
        self.run("CHECKPOINT")

    def _numbers(self, count: int) -> tuple[str, str]:
        return _postgres_numbers(count), _postgres_id()

    def _columns(self, table: str) -> list[str]:
        text = "SELECT attname FROM pg_attribute WHERE attnum > 0 AND attgenerated = ''"
        rows = self.run(f"{text} AND NOT attisdropped AND attrelid = '{table}'::regclass")
        return [row[0] for row in rows]

    def load_jobs(self, count: int, **columns: str) -> None:
        self.run(self._live(_postgres_numbers(count), _postgres_id(), columns))

    def load_schedules(self, text: str, count: int) -> None:
        numbers = _postgres_numbers(count)
        given = {"yes": "true", "no": "false"}
        self.run(text.format(id=_postgres_id(), now=now_ms(), numbers=numbers, **given))

    def load_finished(self, count: int, at: int) -> None:
        self.run(
            _DONE.format(
                id=_postgres_id(),
                queue=DEFAULT_QUEUE,
                priority=DEFAULT_PRIORITY,
                now=at,
                numbers=_postgres_numbers(count),
                bucket_column=", bucket",
                bucket=f", {at // sql.DAY_MS % sql.HISTORY_BUCKETS}",
            )
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _sqlite_numbers(count: int) -> str:
    return (
        "(WITH RECURSIVE numbers (i) AS"
        f" (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {count}) SELECT i FROM numbers)"
    )


def _sqlite_id() -> str:
    return f"printf('{_ID}%012x', i)"


def _postgres_numbers(count: int) -> str:
    return f"generate_series(1, {count}) AS i"


def _postgres_id() -> str:
    return f"('{_ID}' || lpad(to_hex(i), 12, '0'))::uuid"


# Where databases come from -----------------------------------------------------------------------

Fresh = Callable[[], AbstractContextManager[Database]]


@contextmanager
def sqlite_files() -> Iterator[Fresh]:
    """Gives new files in the temporary folder, which should be on a disk."""

    @contextmanager
    def fresh() -> Iterator[Database]:
        with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
            database = SqliteDatabase(Path(folder, "bench.db"))
            database.prepare()
            yield database

    yield fresh


@contextmanager
def postgres_server() -> Iterator[Fresh]:
    """Gives new databases of one temporary server, which is as durable as a real one."""
    with temporary_postgres(POSTGRES_SETTINGS) as server:

        @contextmanager
        def fresh() -> Iterator[Database]:
            with fresh_database(server) as url:
                database = PostgresDatabase(url)
                database.prepare()
                yield database

        yield fresh


STORES: dict[str, Callable[[], AbstractContextManager[Fresh]]] = {
    "sqlite": sqlite_files,
    "postgres": postgres_server,
}
