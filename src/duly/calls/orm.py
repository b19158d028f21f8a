"""`tx.session`: a SQLAlchemy ORM session on the connection of a duly transaction.

For async code it is an AsyncSession, whose statements run in the transaction's thread.

SQLAlchemy gets the driver's connection, but cannot end its transaction. The session runs in a
savepoint: commit releases it, rollback returns to it, and either starts another one.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from duly.errors import MissingExtra
from duly.store.table import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

_DRIVERS = {"sqlite": "sqlite+pysqlite://", "postgres": "postgresql+psycopg://"}

_engines: weakref.WeakKeyDictionary[Store, Engine] = weakref.WeakKeyDictionary()
_async_engines: weakref.WeakKeyDictionary[Store, Engine] = weakref.WeakKeyDictionary()
_borrowing = threading.local()


def open_session(store: Store, raw: Any) -> Session:
    """Open a session inside the transaction that is open on the connection."""
    try:
        from sqlalchemy.orm import Session
    except ImportError as missing:
        raise MissingExtra("sqlalchemy", "tx.session", package="SQLAlchemy") from missing
    engine = _engines.get(store)
    if engine is None:
        # Two threads may create one each; the second is kept, and the first works as well.
        engine = _engines[store] = _engine(store)
    connection = _connect(engine, BorrowedConnection(raw))
    return Session(connection, join_transaction_mode="create_savepoint")


def open_async_session(
    store: Store,
    raw: Any,
    in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
    is_here: Callable[[], bool],
) -> AsyncSession:
    """The same for async code. It connects when it is first used.

    `in_thread` runs work in the transaction's thread, and `is_here` says whether it is this one.
    """
    try:
        from sqlalchemy.ext.asyncio import AsyncSession
    except ImportError as missing:
        raise MissingExtra("sqlalchemy", "tx.session", package="SQLAlchemy") from missing

    def connect(session: Session) -> None:
        engine = _async_engines.get(store)
        if engine is None:
            engine = _async_engines[store] = _engine(store)
            engine.dialect.is_async = True
            # Each result is fetched in one go.
            engine.dialect.supports_server_side_cursors = False
        # Here, so that it is closed even if the task that waits for it is canceled.
        session.bind = _connect(engine, LentConnection(raw, in_thread, is_here))

    def connect_in_thread(session: Session) -> None:
        if is_here():
            connect(session)
        else:
            _await(in_thread(partial(connect, session)))

    return AsyncSession(
        sync_session_class=_late_session(),
        connect=connect_in_thread,
        join_transaction_mode="create_savepoint",
        # Reading an attribute cannot wait for the database.
        expire_on_commit=False,
    )


@lru_cache
def _late_session() -> type[Session]:
    from sqlalchemy.orm import Session

    class LateSession(Session):
        """Connects when it is first used."""

        def __init__(self, *, connect: Callable[[Session], None], **options: Any) -> None:
            super().__init__(**options)
            self._connect = connect

        def get_bind(self, *args: Any, **kwargs: Any) -> Engine | Connection:
            if self.bind is None:
                self._connect(self)
            assert self.bind is not None
            return self.bind

    return LateSession


def close_session(session: Session) -> None:
    """Close the session; the transaction decides whether its changes are kept."""
    connection: Any = session.bind
    # The transaction may have failed, or the connection may be gone.
    with suppress(Exception):
        session.close()
    with suppress(Exception):
        connection.close()


def _connect(engine: Engine, borrowed: BorrowedConnection) -> Connection:
    _borrowing.connection = borrowed
    try:
        connection = engine.connect()
    finally:
        del _borrowing.connection
    connection.begin()
    return connection


def _engine(store: Store) -> Engine:
    """An engine that reads the database's version once, and opens no connections itself."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    dialect = store.address().dialect
    options: dict[str, Any] = {} if dialect == "sqlite" else {"use_native_hstore": False}
    return create_engine(
        _DRIVERS[dialect],
        creator=lambda: _borrowing.connection,
        poolclass=NullPool,
        pool_reset_on_return=None,
        **options,
    )


class BorrowedConnection:
    """A driver's connection whose transaction is managed elsewhere."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def commit(self) -> None:
        """Does nothing: the transaction is not SQLAlchemy's to commit."""

    def rollback(self) -> None:
        """Does nothing: the transaction is not SQLAlchemy's to roll back."""

    def close(self) -> None:
        """Does nothing: the connection is still in use."""

    def add_notice_handler(self, callback: object) -> None:
        """Does nothing: SQLAlchemy would add another handler each time."""


# Async code --------------------------------------------------------------------------------------


def _await(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Wait for it inside a call that SQLAlchemy has made from async code."""
    from sqlalchemy.util import await_only

    return await_only(coroutine)


class LentConnection(BorrowedConnection):
    """A driver's connection that belongs to a thread; async code gets cursors that wait for it."""

    def __init__(
        self,
        raw: Any,
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        is_here: Callable[[], bool],
    ) -> None:
        super().__init__(raw)
        self._in_thread = in_thread
        self._is_here = is_here

    def cursor(self) -> Any:
        return self._raw.cursor() if self._is_here() else AsyncCursor(self._raw, self._in_thread)


class AsyncCursor:
    """Runs a statement in the connection's thread, and fetches all of its rows there."""

    arraysize = 1

    def __init__(
        self, raw: Any, in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
    ) -> None:
        self._connection = raw
        self._in_thread = in_thread
        self._rows: deque[Any] = deque()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: Any = None

    def execute(self, *statement: Any) -> None:
        _await(self._in_thread(partial(self._run, "execute", statement)))

    def executemany(self, *statement: Any) -> None:
        _await(self._in_thread(partial(self._run, "executemany", statement)))

    def _run(self, verb: str, statement: tuple[Any, ...]) -> None:
        cursor = self._connection.cursor()
        try:
            getattr(cursor, verb)(*statement)
            self.description = cursor.description
            self.rowcount = cursor.rowcount
            self.lastrowid = getattr(cursor, "lastrowid", None)
            self._rows = deque(cursor.fetchall() if cursor.description else ())
        finally:
            cursor.close()

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Any]:
        count = min(self.arraysize if size is None else size, len(self._rows))
        return [self._rows.popleft() for _ in range(count)]

    def fetchall(self) -> list[Any]:
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def close(self) -> None:
        self._rows.clear()

    async def _async_soft_close(self) -> None:
        """Does nothing: SQLAlchemy asks for it, but the driver's cursor is closed already."""
