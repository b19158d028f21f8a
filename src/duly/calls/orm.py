"""`tx.session`: a SQLAlchemy ORM session on the connection of a duly transaction.

SQLAlchemy is given the driver's connection, but cannot end its transaction. The session lives in a
savepoint: its commit releases that one, its rollback goes back to it, and either opens another.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from duly.errors import MissingExtra
from duly.store.table import Store

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

_DRIVERS = {"sqlite": "sqlite+pysqlite://", "postgres": "postgresql+psycopg://"}

_engines: weakref.WeakKeyDictionary[Store, Engine] = weakref.WeakKeyDictionary()
_borrowing = threading.local()


def open_session(store: Store, raw: Any) -> Session:
    """A session inside the transaction that is open on the connection."""
    try:
        from sqlalchemy.orm import Session
    except ImportError as missing:
        raise MissingExtra("sqlalchemy", "tx.session", package="SQLAlchemy") from missing
    engine = _engines.get(store)
    if engine is None:
        # Two threads may make one each; the second is kept, and the first works as well.
        engine = _engines[store] = _engine(store)
    _borrowing.connection = BorrowedConnection(raw)
    try:
        connection = engine.connect()
    finally:
        del _borrowing.connection
    connection.begin()
    return Session(connection, join_transaction_mode="create_savepoint")


def close_session(session: Session) -> None:
    """Let go of the session; what becomes of its work is for the transaction to decide."""
    connection: Any = session.bind
    # The transaction may be broken, or the connection gone.
    with suppress(Exception):
        session.close()
    with suppress(Exception):
        connection.close()


def _engine(store: Store) -> Engine:
    """It learns the database's version and the like once, and makes no connection of its own."""
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
    """A driver's connection whose transaction belongs to somebody else."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def commit(self) -> None:
        """Not yet."""

    def rollback(self) -> None:
        """Neither."""

    def close(self) -> None:
        """Its owner goes on using it."""

    def add_notice_handler(self, callback: object) -> None:
        """SQLAlchemy would add one more each time."""
