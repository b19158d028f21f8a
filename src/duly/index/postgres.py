"""The schedule index in PostgreSQL: a claim skips rows that another claim has locked."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from duly.errors import (
    CannotBegin,
    InvalidOption,
    MissingExtra,
    NotInTransaction,
    StoreError,
    StoreUnavailable,
)
from duly.index import statements as sql
from duly.index.claims import DatabaseIndex
from duly.index.database import Database, Idle, Row, Transaction
from duly.index.statements import Statement
from duly.store.placeholders import named_to_psycopg

if TYPE_CHECKING:
    import psycopg
    import psycopg_pool

    Connection = psycopg.Connection[Any]

_NO_TABLE = re.compile(r'relation "([\w.]+)" does not exist')
_DRIVER = re.compile(r"^(postgres|postgresql)(\+\w+)?://")
_IDLE = 0


class PostgresScheduleIndex(DatabaseIndex):
    """A schedule index in PostgreSQL, given a DSN, or a psycopg pool or connection.

    A connection must not be in a transaction, and serves one call at a time. The table is created
    in the first schema of the search path; with `skip_schema_init` it must already exist.
    """

    def __init__(
        self,
        database: str | psycopg.Connection[Any] | psycopg_pool.ConnectionPool[Any],
        *,
        skip_schema_init: bool = False,
    ) -> None:
        super().__init__(open_postgres(database), skip_schema_init)


def open_postgres(database: Any) -> Database:
    if isinstance(database, str):
        return PostgresServer(database)
    if isinstance(database, _psycopg().Connection):
        return PostgresConnection(database)
    if _is_pool(database):
        return PostgresPool(database)
    raise CannotBegin(database, "give a DSN, or a psycopg pool or connection that is not async")


def _is_pool(database: object) -> bool:
    names = {kind.__name__ for kind in type(database).__mro__}
    return "ConnectionPool" in names


def _psycopg() -> Any:
    try:
        return import_module("psycopg")
    except ImportError:
        raise MissingExtra("postgres", "a schedule index in PostgreSQL") from None


@lru_cache
def _worded(text: str) -> bytes:
    return named_to_psycopg(text).encode()


class PostgresTransaction(Transaction):
    dialect = "postgres"

    def __init__(self, raw: Connection) -> None:
        self.raw = raw

    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]:
        return self._execute(_worded(statement.postgres), parameters)

    def run_many(self, statement: Statement, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._cursor() as cursor:
            cursor.executemany(_worded(statement.postgres), rows)

    def run_script(self, script: Statement) -> None:
        self._execute(script.postgres.encode(), None)

    def advance(self, moves: Sequence[Mapping[str, Any]]) -> None:
        columns = {name: [move[name] for move in moves] for name in moves[0]}
        self.run(sql.ADVANCE, columns)

    def set_up(self) -> None:
        self._execute(sql.SETTINGS.encode(), None)

    def _execute(self, text: bytes, parameters: Mapping[str, Any] | None) -> list[Row]:
        with self._cursor() as cursor:
            cursor.execute(text, parameters)
            return cursor.fetchall() if cursor.rownumber is not None else []

    @contextmanager
    def _cursor(self) -> Generator[Any]:
        from duly.store.postgres import PlainCursor

        try:
            with PlainCursor(self.raw) as cursor:
                yield cursor
        except _psycopg().errors.UndefinedTable as error:
            named = _NO_TABLE.search(str(error))
            if named and (missing := self.no_table(named[1])):
                raise missing from error
            raise


class BorrowedPostgres(PostgresTransaction):
    """The transaction of your connection."""

    @contextmanager
    def _cursor(self) -> Generator[Any]:
        _require_transaction(self.raw)
        with super()._cursor() as cursor:
            yield cursor


def _require_transaction(raw: Any) -> None:
    if raw.autocommit and raw.info.transaction_status == _IDLE:
        raise NotInTransaction(raw, "use `with connection.transaction():`")


@contextmanager
def _read_committed(raw: Connection) -> Generator[Transaction]:
    """duly's own transaction, on a connection that is not in one."""
    if raw.info.transaction_status != _IDLE:
        raise CannotBegin(raw, "commit first, or use on(connection) to be part of it")
    with raw.transaction():
        tx = PostgresTransaction(raw)
        tx.set_up()
        yield tx


class PostgresDatabase(Database):
    def borrow(self, connection: Any) -> Transaction:
        if not isinstance(connection, _psycopg().Connection):
            raise InvalidOption("on", f"give a psycopg connection, not {connection!r}")
        _require_transaction(connection)
        return BorrowedPostgres(connection)


class PostgresServer(PostgresDatabase):
    """A DSN, with connections that the index opens."""

    def __init__(self, dsn: str) -> None:
        self._dsn = _DRIVER.sub("postgresql://", dsn)
        self._idle: Idle[Connection] = Idle()
        self._psycopg = _psycopg()
        weakref.finalize(self, self._idle.close)

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with _translated(self._psycopg):
            raw = self._living()
            try:
                with _read_committed(raw) as tx:
                    yield tx
            except BaseException:
                raw.close()
                raise
            self._idle.give_back(raw)

    def close(self) -> None:
        self._idle.close()

    def _living(self) -> Connection:
        """A working connection: the server may have closed idle ones."""
        raw = self._idle.take() or self._connect()
        try:
            raw.execute("SELECT 1")
        except self._psycopg.OperationalError:
            raw.close()
            self.close()
            return self._connect()
        return raw

    def _connect(self) -> Connection:
        # Not every connection pooler supports prepared statements.
        raw: Connection = self._psycopg.connect(
            self._dsn, autocommit=True, prepare_threshold=None, application_name="duly index"
        )
        return raw


@contextmanager
def _translated(psycopg: Any) -> Generator[None]:
    try:
        yield
    except psycopg.Error as error:
        text = str(error).strip().split("\n")[0]
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if lost and (error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))):
            raise StoreUnavailable(f"the connection to PostgreSQL was lost: {text}") from error
        raise StoreError(text) from error


class PostgresPool(PostgresDatabase):
    """Your pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with self._pool.connection() as raw, _read_committed(raw) as tx:
            yield tx

    def close(self) -> None:
        """Does nothing: it is yours to close."""


class PostgresConnection(PostgresDatabase):
    """Your connection."""

    def __init__(self, raw: Connection) -> None:
        self._raw = raw
        self._turn = threading.RLock()

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with self._turn, _read_committed(self._raw) as tx:
            yield tx

    def close(self) -> None:
        """Does nothing: it is yours to close."""
