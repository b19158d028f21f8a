"""A transaction that user code works in."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from duly import errors
from duly.store.base import NeedsAlone, Rows
from duly.store.placeholders import to_psycopg
from duly.store.postgres.connection import Connection
from duly.store.postgres.session import PostgresSession
from duly.store.tx import OpenTx

if TYPE_CHECKING:
    from duly.store.postgres.store import PostgresStore


# Statements that could end a transaction. END also ends a CASE, but not at the start of a
# statement.
_ENDING = re.compile(
    r"\b(?:commit|rollback|abort|prepare)\b|(?:^\s*|;.*|--.*|/\*.*)\bend\b",
    re.IGNORECASE | re.DOTALL,
)


@lru_cache(1024)
def may_end_transaction(text: str) -> bool:
    return _ENDING.search(text) is not None


def raise_if_ended(raw: Connection) -> None:
    """Raise if the body itself ended the transaction; a broken connection was not its doing."""
    if raw.info.transaction_status == TransactionStatus.IDLE:
        raise errors.TransactionEnded("the body ended the transaction")
    if raw.closed and not raw.broken:
        raise errors.TransactionEnded("the body closed the connection")


class PostgresTx(OpenTx):
    """A transaction that user code works in."""

    def __init__(self, connection: Connection, store: PostgresStore) -> None:
        self._session = PostgresSession(connection, store)
        self._savepoints = 0
        self.must_not_end = False
        """Whether other members of a group depend on this transaction."""
        self.was_kept_from_ending = False

    @property
    def connection(self) -> Connection:
        return self._session.raw

    @property
    def _open(self) -> PostgresSession:
        """After a COMMIT in the body each statement would commit by itself, so refuse it."""
        raise_if_ended(self._session.raw)
        return self._session

    def execute(self, text: str, parameters: Sequence[Any] = ()) -> Rows:
        if self.must_not_end and may_end_transaction(text):
            self.was_kept_from_ending = True
            raise NeedsAlone
        with psycopg.Cursor(self._open.raw) as cursor:
            # Parameters are always passed, so that `%%` means the same with and without them.
            cursor.execute(to_psycopg(text).encode(), tuple(parameters))
            rows = cursor.fetchall() if cursor.rownumber is not None else []
            return Rows(rows, cursor.rowcount)

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
