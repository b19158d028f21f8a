"""The schedule index in an SQLite file: claim and advance are one BEGIN IMMEDIATE."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from duly.errors import CannotBegin, InvalidOption, NotInTransaction, StoreMissing
from duly.index.claims import DatabaseIndex
from duly.index.database import Database, Idle, Row, Transaction
from duly.index.statements import Statement
from duly.store.handles import factories_aside
from duly.store.sqlite import translated
from duly.store.turnstile import WAIT_SECONDS

_NO_TABLE = re.compile(r"no such table: (?:\w+\.)?(\w+)")


class SqliteScheduleIndex(DatabaseIndex):
    """A schedule index in an SQLite database, given the path of its file or a sqlite3 connection.

    A connection must not be in a transaction, and is used in the calling thread. The table is
    created; with `skip_schema_init` it must already exist.
    """

    def __init__(
        self,
        database: str | os.PathLike[str] | sqlite3.Connection,
        *,
        skip_schema_init: bool = False,
    ) -> None:
        super().__init__(open_sqlite(database, create=not skip_schema_init), skip_schema_init)


def open_sqlite(database: object, *, create: bool) -> Database:
    if isinstance(database, sqlite3.Connection):
        return SqliteConnection(database)
    if isinstance(database, str | os.PathLike):
        return SqliteFile(_path(os.fspath(database)), create=create)  # pyright: ignore[reportUnknownArgumentType]
    raise CannotBegin(database, "give the path of an SQLite file, or a sqlite3 connection")


def _path(given: str | bytes) -> Path:
    path = os.fsdecode(given)
    if not path or path == ":memory:" or "://" in path:
        raise InvalidOption("database", f"give the path of a file, not {path!r}")
    return Path(path).absolute()


class SqliteTransaction(Transaction):
    dialect = "sqlite"

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw

    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]:
        with self._own_words() as cursor:
            return cursor.execute(statement.sqlite, parameters).fetchall()

    def run_many(self, statement: Statement, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._own_words() as cursor:
            cursor.executemany(statement.sqlite, rows)

    def run_script(self, script: Statement) -> None:
        # Not executescript(), because it commits first.
        with self._own_words() as cursor:
            for text in script.sqlite.split(";\n"):
                cursor.execute(text)

    @contextmanager
    def _own_words(self) -> Generator[sqlite3.Cursor]:
        with factories_aside(self.raw), contextlib.closing(sqlite3.Cursor(self.raw)) as cursor:
            try:
                yield cursor
            except sqlite3.OperationalError as error:
                named = _NO_TABLE.search(str(error))
                if named and (missing := self.no_table(named[1])):
                    raise missing from error
                raise


class BorrowedSqlite(SqliteTransaction):
    """The transaction of your connection."""

    @contextmanager
    def _own_words(self) -> Generator[sqlite3.Cursor]:
        if not self.raw.in_transaction:
            raise NotInTransaction(self.raw, _ADVICE)
        with super()._own_words() as cursor:
            yield cursor


_ADVICE = "execute BEGIN IMMEDIATE first, then call on()"


class SqliteDatabase(Database):
    def borrow(self, connection: Any) -> Transaction:
        if not isinstance(connection, sqlite3.Connection):
            raise InvalidOption("on", f"give a sqlite3 connection, not {connection!r}")
        if not connection.in_transaction:
            if not _begins_by_itself(connection):
                raise NotInTransaction(connection, _ADVICE)
            # Python would only begin before the first write; begin before the first read instead.
            sqlite3.Cursor(connection).execute("BEGIN IMMEDIATE")
        return BorrowedSqlite(connection)


class SqliteFile(SqliteDatabase):
    """A file, with connections that the index opens."""

    def __init__(self, path: Path, *, create: bool) -> None:
        self._path = path
        self._idle: Idle[sqlite3.Connection] = Idle()
        weakref.finalize(self, self._idle.close)
        _FILES.add(self)
        if create:
            # Files that duly creates are readable only by their owner.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with translated(str(self._path)):
            raw = self._idle.take() or self._connect()
            try:
                with _immediate(raw):
                    yield SqliteTransaction(raw)
            except BaseException:
                raw.close()
                raise
            self._idle.give_back(raw)

    def close(self) -> None:
        self._idle.close()

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():
            raise StoreMissing(f"there is no file {self._path}")
        raw = sqlite3.connect(
            f"{self._path.as_uri()}?mode=rw",
            uri=True,
            timeout=WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            # A claim that is lost in a power failure would be made again.
            raw.execute("PRAGMA synchronous = FULL")
        except BaseException:
            raw.close()
            raise
        return raw


_FILES: weakref.WeakSet[SqliteFile] = weakref.WeakSet()


def _before_fork() -> None:
    """A child must not inherit a connection: see duly/store/fork.py."""
    for file in _FILES:
        file.close()


os.register_at_fork(before=_before_fork)


class SqliteConnection(SqliteDatabase):
    """Your connection."""

    is_tied_to_thread = True

    def __init__(self, raw: sqlite3.Connection) -> None:
        # With autocommit=False (Python 3.12), the connection is always in a transaction and cannot
        # execute BEGIN IMMEDIATE.
        if getattr(raw, "autocommit", None) is False:
            raise CannotBegin(raw, "connect without autocommit=False")
        self._raw = raw
        self._turn = threading.RLock()

    def transaction(self) -> AbstractContextManager[Transaction]:
        return self._transaction()

    @contextmanager
    def _transaction(self) -> Generator[Transaction]:
        with self._turn:
            if self._raw.in_transaction:
                raise CannotBegin(self._raw, "commit first, or use on(connection) to be part of it")
            with _immediate(self._raw):
                yield SqliteTransaction(self._raw)

    def close(self) -> None:
        """Does nothing: it is yours to close."""


@contextmanager
def _immediate(raw: sqlite3.Connection) -> Generator[None]:
    cursor = sqlite3.Cursor(raw)
    cursor.execute("BEGIN IMMEDIATE")
    try:
        yield
        cursor.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            cursor.execute("ROLLBACK")
        raise
    finally:
        cursor.close()


def _begins_by_itself(raw: Any) -> bool:
    # From Python 3.12 on, `autocommit` decides, unless it has the legacy value.
    autocommit = getattr(raw, "autocommit", -1)
    return raw.isolation_level is not None if autocommit == -1 else not autocommit
