"""A transaction that user code works in."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from typing import Any

from duly import errors
from duly.store.base import Rows
from duly.store.placeholders import to_sqlite
from duly.store.sqlite.session import SqliteSession
from duly.store.tx import OpenTx

ENDED_IN_BODY = "the body ended the transaction (INSERT OR ROLLBACK does that too)"


class SqliteTx(OpenTx):
    """A transaction that user code works in."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._session = SqliteSession(connection)
        self._savepoints = 0

    @property
    def connection(self) -> sqlite3.Connection:
        return self._session.raw

    @property
    def _open(self) -> SqliteSession:
        """After INSERT OR ROLLBACK each statement would commit by itself, so refuse it."""
        if not self._session.raw.in_transaction:
            raise errors.TransactionEnded(ENDED_IN_BODY)
        return self._session

    def execute(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        cursor = self._open.raw.cursor()
        cursor.row_factory = None
        cursor.execute(to_sqlite(text), parameters)
        return Rows(cursor.fetchall(), cursor.rowcount)

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
