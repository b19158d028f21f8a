"""`tx.session`: a SQLAlchemy ORM session on the connection of a duly transaction.

SQLAlchemy gets the driver's connection, but cannot end its transaction. The session runs in a
savepoint: commit releases it, rollback returns to it, and either starts another one.
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
    """Open a session inside the transaction that is open on the connection."""
    try:
        from sqlalchemy.orm import Session
    except ImportError as missing:
        raise MissingExtra("sqlalchemy", "tx.session", package="SQLAlchemy") from missing
    engine = _engines.get(store)
    if engine is None:
        # Two threads may create one each; the second is kept, and the first works as well.
        engine = _engines[store] = _engine(store)
    _borrowing.connection = BorrowedConnection(raw)
    try:
        connection = engine.connect()
    finally:
        del _borrowing.connection
    connection.begin()
    return Session(connection, join_transaction_mode="create_savepoint")


def close_session(session: Session) -> None:
    """Close the session; the transaction decides whether its changes are kept."""
    connection: Any = session.bind
    # The transaction may have failed, or the connection may be gone.
    with suppress(Exception):
        session.close()
    with suppress(Exception):
        connection.close()


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
