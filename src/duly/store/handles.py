"""Runs duly's statements on a user's connection, inside the user's transaction.

Drivers and frameworks are recognized by the class names of a handle, so none of them is imported,
or needed by users who do not have it. Settings of a handle do not affect what duly reads, and duly
does not change them. Errors from the database are raised as the handle itself raises them.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from duly.errors import InvalidOption, NotInTransaction, WrongDatabase
from duly.store import statements as sql
from duly.store import steps
from duly.store.base import Address
from duly.store.placeholders import Style
from duly.store.sqlite import SQL, SqliteSession
from duly.store.statements import Dialect, Statement
from duly.store.steps import Ask, Row, Steps, drive

log = logging.getLogger(__name__)

T = TypeVar("T")
Wake = Callable[[], None]

# What libpq reports about a connection; psycopg and psycopg2 pass it on.
IDLE, IN_TRANSACTION = 0, 2


class UserHandle(ABC):
    """A handle that the user passes in."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @abstractmethod
    def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        """Run the verb inside the handle's transaction; begin one if the handle would."""

    @abstractmethod
    def is_open(self) -> bool:
        """Whether a transaction is in progress."""

    def calls_after_commit(self) -> bool:
        """Whether the handle can call back after it has committed."""
        return False

    def after_commit(self, wake: Wake) -> None:
        """Only for handles that support it, see above."""
        raise NotImplementedError


def _quietly(wake: Wake) -> None:
    """Committed jobs are found in any case; a failing wake-up must not raise to the caller."""
    try:
        wake()
    except Exception as error:
        log.debug("could not wake the workers: %s", error)


class AsyncUserHandle(ABC):
    """The same for a handle that is awaited."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @abstractmethod
    async def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T: ...

    @abstractmethod
    def is_open(self) -> bool: ...

    def calls_after_commit(self) -> bool:
        return False

    def after_commit(self, wake: Wake) -> None:
        """Only for handles that support it, see above."""
        raise NotImplementedError


# Which store -------------------------------------------------------------------------------------

_known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def _checked(connection: Any, address: Address, verb: Steps[T]) -> Steps[T]:
    """The verb, run only once the connection is known to lead to the app's own store."""
    if not _leads_to(connection, address):
        found = yield from steps.store_id()
        if found != address.store_id:
            name = yield from steps.database_name()
            has = "no duly tables" if found is None else "the tables of another duly store"
            elsewhere = f"the handle's database, {name}, has {has}"
            raise WrongDatabase(elsewhere, address.where, address.hint)
        # A sqlite3 connection cannot be remembered, and checking it is fast.
        with suppress(TypeError):
            _known[connection] = address.store_id
    return (yield from verb)


def _leads_to(connection: Any, address: Address) -> bool:
    try:
        return _known.get(connection) == address.store_id
    except TypeError:
        return False


def _demand(dialect: Dialect, handle: object, address: Address) -> None:
    if address.dialect != dialect:
        words = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
        kind = f"{type(handle).__module__.partition('.')[0]}.{type(handle).__qualname__}"
        raise WrongDatabase(
            f"{kind} is a handle for {words[dialect]}",
            f"{address.where} ({words[address.dialect]})",
            address.hint,
        )


def _worded(ask: Ask, address: Address, style: Style) -> tuple[str, Any]:
    """The text and parameters of a statement as a driver takes them."""
    text, order = sql.render_for(ask.statement, address.dialect, address.schema, style)
    given = ask.parameters
    if isinstance(given, list):
        rows: list[Row] = given
        return text, rows
    named = {name: str(v) if isinstance(v, str) else v for name, v in dict(given).items()}
    return text, named if order is None else tuple(named[name] for name in order)


# sqlite3 -----------------------------------------------------------------------------------------


class PlainSqlite(SqliteSession):
    """duly's statements on a connection that has the user's settings."""

    def _rows(self, text: str, parameters: Any) -> list[Row]:
        cursor = sqlite3.Cursor(self.raw)
        try:
            return cursor.execute(text, parameters).fetchall()
        finally:
            cursor.close()

    def many(self, statement: Statement, rows: Any) -> int:
        return sqlite3.Cursor(self.raw).executemany(SQL[statement], rows).rowcount


@contextmanager
def factories_aside(raw: Any) -> Generator[None]:
    """Within the block, rows are tuples and text is str, whatever the user has set."""
    factories = raw.row_factory, raw.text_factory
    raw.row_factory, raw.text_factory = None, str
    try:
        yield
    finally:
        raw.row_factory, raw.text_factory = factories


def _begins_by_itself(raw: Any) -> bool:
    # Since Python 3.12 `autocommit` decides, unless it is set to the legacy mode.
    autocommit = getattr(raw, "autocommit", -1)
    if autocommit == -1:
        return raw.isolation_level is not None
    return not autocommit


def _sqlite_begin(raw: Any, handle: object, instead: str) -> str | None:
    """The BEGIN that Python would issue before the next write, if one is needed."""
    if raw.in_transaction:
        return None
    if not _begins_by_itself(raw):
        raise NotInTransaction(handle, instead)
    return f"BEGIN {raw.isolation_level or ''}"


class SqliteHandle(UserHandle):
    instead = "execute BEGIN first, or connect with an isolation_level"

    def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        raw = self.handle
        _demand("sqlite", raw, address)
        begin = _sqlite_begin(raw, raw, self.instead)
        session = PlainSqlite(raw)
        with factories_aside(raw):
            if begin and writes:
                sqlite3.Cursor(raw).execute(begin)
            return drive(_checked(raw, address, verb), session.answer)

    def is_open(self) -> bool:
        try:
            return bool(self.handle.in_transaction)
        except sqlite3.ProgrammingError:
            return False


class AiosqliteHandle(AsyncUserHandle):
    """Runs in the thread that aiosqlite keeps for the connection."""

    async def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        handle = self.handle
        try:
            execute, raw = handle._execute, handle._conn
        except AttributeError as error:
            raise InvalidOption("app.on", "this version of aiosqlite is not supported") from error
        inner = SqliteHandle(raw)
        answer: T = await execute(lambda: inner.take(address, verb, writes=writes))
        return answer

    def is_open(self) -> bool:
        try:
            return bool(self.handle.in_transaction)
        except ValueError:  # closed
            return False


# psycopg, psycopg2 -------------------------------------------------------------------------------

_PG_ADVICE = "turn autocommit off, or open a transaction first"


def _refuse_psycopg_autocommit(raw: Any) -> None:
    idle = raw.info.transaction_status == IDLE
    # In a pipeline the BEGIN of a transaction() block may not have been sent yet.
    if idle and raw.autocommit and not getattr(raw, "_num_transactions", 0):
        raise NotInTransaction(raw, "use `with connection.transaction():`")


class PsycopgHandle(UserHandle):
    def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        raw = self.handle
        _demand("postgres", raw, address)
        _refuse_psycopg_autocommit(raw)
        from duly.store.postgres import PlainCursor

        def answer(ask: Ask) -> list[Row]:
            text, parameters = _worded(ask, address, "pyformat")
            with PlainCursor(raw) as cursor:
                cursor.execute(text.encode(), parameters)
                return cursor.fetchall() if cursor.rownumber is not None else []

        return drive(_checked(raw, address, verb), answer)

    def is_open(self) -> bool:
        return bool(self.handle.info.transaction_status == IN_TRANSACTION)


class AsyncPsycopgHandle(AsyncUserHandle):
    async def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        raw = self.handle
        _demand("postgres", raw, address)
        _refuse_psycopg_autocommit(raw)
        from duly.store.postgres import PlainAsyncCursor

        async def answer(ask: Ask) -> list[Row]:
            text, parameters = _worded(ask, address, "pyformat")
            async with PlainAsyncCursor(raw) as cursor:
                await cursor.execute(text.encode(), parameters)
                return await cursor.fetchall() if cursor.rownumber is not None else []

        return await steps.drive_async(_checked(raw, address, verb), answer)

    def is_open(self) -> bool:
        return bool(self.handle.info.transaction_status == IN_TRANSACTION)


class Psycopg2Handle(UserHandle):
    def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        raw = self.handle
        _demand("postgres", raw, address)
        if raw.get_transaction_status() == IDLE and raw.autocommit:
            raise NotInTransaction(raw, _PG_ADVICE)
        plain_cursor: Any = sys.modules["psycopg2.extensions"].cursor

        def answer(ask: Ask) -> list[Row]:
            text, parameters = _worded(ask, address, "pyformat")
            with raw.cursor(cursor_factory=plain_cursor) as cursor:
                cursor.execute(text, parameters)
                return list(cursor.fetchall()) if cursor.description else []

        return drive(_checked(raw, address, verb), answer)

    def is_open(self) -> bool:
        return bool(self.handle.get_transaction_status() == IN_TRANSACTION)


# asyncpg -----------------------------------------------------------------------------------------


class AsyncpgHandle(AsyncUserHandle):
    async def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        handle = self.handle
        _demand("postgres", handle, address)
        if not handle.is_in_transaction():
            raise NotInTransaction(handle, "use `async with connection.transaction():`")
        plain_record: Any = sys.modules["asyncpg"].Record

        async def answer(ask: Ask) -> list[Row]:
            text, parameters = _worded(ask, address, "numeric_dollar")
            rows = await handle.fetch(text, *parameters, record_class=plain_record)
            return [tuple(row) for row in rows]

        # A pooled connection is a new proxy each time it is acquired.
        raw = getattr(handle, "_con", handle)
        return await steps.drive_async(_checked(raw, address, verb), answer)

    def is_open(self) -> bool:
        return not self.handle.is_closed() and bool(self.handle.is_in_transaction())


# SQLAlchemy --------------------------------------------------------------------------------------

_DIALECTS: dict[str, Dialect] = {"sqlite": "sqlite", "postgresql": "postgres"}


class AlchemyConnection(UserHandle):
    """Goes through SQLAlchemy itself, which knows for every driver when a transaction starts."""

    def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        return self._take_on(self.handle, address, verb, writes)

    def _take_on(self, connection: Any, address: Address, verb: Steps[T], writes: bool) -> T:
        name = connection.dialect.name
        if name not in _DIALECTS:
            raise WrongDatabase(f"the handle is for {name}", address.where)
        _demand(_DIALECTS[name], self.handle, address)

        # Whatever parameter style SQLAlchemy was given, sqlite3 takes names and `?` as duly writes
        # them.
        style: Style = "named" if address.dialect == "sqlite" else connection.dialect.paramstyle

        def answer(ask: Ask) -> list[Row]:
            text, parameters = _worded(ask, address, style)
            result = connection.exec_driver_sql(text, parameters)
            return [tuple(row) for row in result.fetchall()] if result.returns_rows else []

        driver = connection.connection.driver_connection
        checked = _checked(driver, address, verb)
        if address.dialect == "postgres":
            if getattr(connection.connection.dbapi_connection, "autocommit", False):
                raise NotInTransaction(self.handle, _ALCHEMY_ADVICE)
            return drive(checked, answer)
        raw = getattr(driver, "_conn", driver)
        begin = _sqlite_begin(raw, self.handle, _ALCHEMY_ADVICE)
        with factories_aside(raw):
            if begin and writes:
                connection.exec_driver_sql(begin)
            return drive(checked, answer)

    def is_open(self) -> bool:
        return not self.handle.closed and bool(self.handle.in_transaction())


_ALCHEMY_ADVICE = 'use an engine, or execution options, without isolation_level="AUTOCOMMIT"'


class AlchemySession(AlchemyConnection):
    def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        session = self.handle
        if not session.in_transaction() and not getattr(session, "autobegin", True):
            raise NotInTransaction(session, "use `with session.begin():`")
        return self._take_on(session.connection(), address, verb, writes)

    def is_open(self) -> bool:
        return bool(self.handle.in_transaction())

    def calls_after_commit(self) -> bool:
        return True

    def after_commit(self, wake: Wake) -> None:
        _call_after_commit(self.handle, wake)


class AlchemyScopedSession(AlchemySession):
    """The session that is current for the caller, kept for this `app.on`."""

    def __init__(self, handle: Any) -> None:
        super().__init__(handle.registry())


class AsyncAlchemyConnection(AsyncUserHandle):
    async def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        def inside(connection: Any) -> T:
            return AlchemyConnection(connection).take(address, verb, writes=writes)

        answer: T = await self.handle.run_sync(inside)
        return answer

    def is_open(self) -> bool:
        return not self.handle.closed and bool(self.handle.in_transaction())


class AsyncAlchemySession(AsyncUserHandle):
    async def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        def inside(session: Any) -> T:
            return AlchemySession(session).take(address, verb, writes=writes)

        answer: T = await self.handle.run_sync(inside)
        return answer

    def is_open(self) -> bool:
        return bool(self.handle.in_transaction())

    def calls_after_commit(self) -> bool:
        return True

    def after_commit(self, wake: Wake) -> None:
        _call_after_commit(self.handle.sync_session, wake)


class AsyncAlchemyScopedSession(AsyncAlchemySession):
    def __init__(self, handle: Any) -> None:
        super().__init__(handle.registry())


_to_wake: weakref.WeakKeyDictionary[Any, set[Wake]] = weakref.WeakKeyDictionary()


def _call_after_commit(session: Any, wake: Wake) -> None:
    if session not in _to_wake:
        from sqlalchemy import event

        _to_wake[session] = set()
        event.listen(session, "after_commit", _committed)
    _to_wake[session].add(wake)


def _committed(session: Any) -> None:
    # SQLAlchemy also calls this when a savepoint is released.
    if session.in_nested_transaction():
        return
    waiting = _to_wake[session]
    while waiting:
        _quietly(waiting.pop())


# Django ------------------------------------------------------------------------------------------


class DjangoHandle(UserHandle):
    """`connection` or `connections[alias]`: the driver's connection inside it."""

    def take(self, address: Address, verb: Steps[T], *, writes: bool = False) -> T:
        handle = self.handle
        handle.ensure_connection()
        handle.validate_thread_sharing()
        handle.validate_no_broken_transaction()
        inner = borrow(handle.connection)
        assert isinstance(inner, UserHandle)
        try:
            with handle.wrap_database_errors:
                return inner.take(address, verb, writes=writes)
        except NotInTransaction:
            raise NotInTransaction(handle, "use `with transaction.atomic():`") from None

    def is_open(self) -> bool:
        return self.handle.connection is not None and bool(self.handle.in_atomic_block)

    def calls_after_commit(self) -> bool:
        return bool(self.handle.in_atomic_block)

    def after_commit(self, wake: Wake) -> None:
        self.handle.on_commit(lambda: _quietly(wake))


# Recognition -------------------------------------------------------------------------------------

_KINDS: dict[str, Callable[[Any], UserHandle | AsyncUserHandle]] = {
    "sqlite3.Connection": SqliteHandle,
    "aiosqlite.core.Connection": AiosqliteHandle,
    "psycopg.Connection": PsycopgHandle,
    "psycopg.AsyncConnection": AsyncPsycopgHandle,
    "psycopg2.extensions.connection": Psycopg2Handle,
    "asyncpg.connection.Connection": AsyncpgHandle,
    "asyncpg.pool.PoolConnectionProxy": AsyncpgHandle,
    "sqlalchemy.engine.base.Connection": AlchemyConnection,
    "sqlalchemy.orm.session.Session": AlchemySession,
    "sqlalchemy.orm.scoping.scoped_session": AlchemyScopedSession,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": AsyncAlchemyConnection,
    "sqlalchemy.ext.asyncio.session.AsyncSession": AsyncAlchemySession,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": AsyncAlchemyScopedSession,
    "django.utils.connection.ConnectionProxy": DjangoHandle,
    "django.db.backends.base.base.BaseDatabaseWrapper": DjangoHandle,
}

SUPPORTED = (
    "a sqlite3, aiosqlite, psycopg, psycopg2 or asyncpg connection; a SQLAlchemy "
    "Connection, Session, scoped_session, AsyncConnection, AsyncSession or async_scoped_session; "
    "Django's connection or connections[alias]"
)


def borrow(handle: object) -> UserHandle | AsyncUserHandle:
    """The recognized handle. No statement has been run on it yet."""
    for base in type(handle).__mro__:
        kind = _KINDS.get(f"{base.__module__}.{base.__qualname__}")
        if kind is not None:
            return kind(handle)
    raise InvalidOption("app.on", f"takes {SUPPORTED}; not {type(handle).__qualname__}")
