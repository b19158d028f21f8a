"""Claims due rows, once each, and skips rows that cannot be read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from duly import fault
from duly.errors import BadInput
from duly.index import statements as sql
from duly.index.database import Database, Row, Transaction
from duly.index.rows import (
    LIMIT,
    IndexRow,
    next_fire_after,
    require_instant,
    require_limit,
    require_text,
)
from duly.runtime.threads import Threads

log = logging.getLogger(__name__)

T = TypeVar("T")

# The page size after a page with bad rows, as the limit may be small and the bad rows many.
_PAGE = 500
_BEGINNING = {"at": -(2**63), "user_id": "", "key": ""}
_MAX_WARNINGS = 10_000


class DatabaseIndex:
    """The verbs of a schedule index; SQLite and PostgreSQL differ only in their transactions."""

    def __init__(self, database: Database, skip_schema_init: bool) -> None:
        self.database = database
        self._bad = BadRows()
        self._threads = Threads()
        if not skip_schema_init:
            database.create(sql.INDEX_TABLE)

    async def upsert(self, row: IndexRow) -> None:
        """Write a row, replacing any row with the same user and key."""
        await self._call(lambda: self.upsert_now(row))

    async def claim_due(self, now: int, limit: int = LIMIT) -> list[IndexRow]:
        """Take due rows, longest overdue first, and advance them, atomically.

        If the call is canceled, it has usually claimed nothing.
        """
        unwanted = threading.Event()
        try:
            return await self._call(lambda: self.claim_now(now, limit, unwanted))
        finally:
            unwanted.set()

    async def remove(self, user_id: str, key: str) -> None:
        """Remove the row, if it exists."""
        await self._call(lambda: self.remove_now(user_id, key))

    def on(self, connection: Any) -> RowsInTransaction:
        """`upsert` and `remove`, without `await`, in the transaction of your connection."""
        return RowsInTransaction(self.database.borrow(connection))

    def close(self) -> None:
        """Close the connections that the index has opened; later calls open new ones."""
        self._threads.close()
        self.database.close()

    # Without an event loop

    def upsert_now(self, row: IndexRow) -> None:
        with self.database.transaction() as tx:
            RowsInTransaction(tx).upsert(row)
        self._bad.forget(row.user_id, row.key)

    def remove_now(self, user_id: str, key: str) -> None:
        with self.database.transaction() as tx:
            RowsInTransaction(tx).remove(user_id, key)
        self._bad.forget(user_id, key)

    def claim_now(
        self, now: int, limit: int = LIMIT, unwanted: threading.Event | None = None
    ) -> list[IndexRow]:
        require_instant("now", now)
        require_limit(limit)
        with self.database.transaction() as tx:
            claimed = claim(tx, now, limit, self._bad)
            fault.point("index.advanced")
            if unwanted is not None and unwanted.is_set():
                raise ClaimUnwanted
        return claimed

    async def _call(self, work: Callable[[], T]) -> T:
        if self.database.is_tied_to_thread:
            return work()
        return await self._threads.call(work)


class ClaimUnwanted(Exception):
    """The caller no longer waits for the claim, so it is rolled back."""


class RowsInTransaction:
    """The verbs of an index that can be part of a transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx

    def upsert(self, row: IndexRow) -> None:
        """Write a row, replacing any row with the same user and key."""
        self._tx.run(sql.UPSERT, as_parameters(row))

    def remove(self, user_id: str, key: str) -> None:
        """Remove the row, if it exists."""
        require_text("user_id", user_id)
        require_text("key", key)
        self._tx.run(sql.REMOVE, {"user_id": user_id, "key": key})


def as_parameters(row: IndexRow) -> dict[str, Any]:
    return {
        "user_id": row.user_id,
        "key": row.key,
        "cron": row.cron,
        "timezone": row.timezone,
        "next_fire_at": row.next_fire_at,
    }


def claim(tx: Transaction, now: int, limit: int, bad: BadRows) -> list[IndexRow]:
    """Advance up to `limit` valid due rows, skipping any number of bad ones."""
    claimed: list[tuple[IndexRow, int]] = []
    after, page = _BEGINNING, limit
    while len(claimed) < limit:
        found = tx.run(sql.DUE, {"now": now, "limit": page, **after})
        good = [pair for values in found if (pair := _advanced(values, now, bad))]
        claimed += good[: limit - len(claimed)]
        if len(found) < page:
            break
        user_id, key, *_, at = found[-1]
        after, page = {"at": at, "user_id": user_id, "key": key}, max(limit, _PAGE)
    if claimed:
        tx.advance([_move(row, fires_at) for row, fires_at in claimed])
    return [row for row, _ in claimed]


def _advanced(values: Row, now: int, bad: BadRows) -> tuple[IndexRow, int] | None:
    """The row and its next time; None if it has none."""
    try:
        row = IndexRow(*values)
        return row, next_fire_after(row, now)
    except BadInput as error:
        bad.warn(values, error)
        return None


def _move(row: IndexRow, fires_at: int) -> dict[str, Any]:
    return {"user_id": row.user_id, "key": row.key, "next_fire_at": fires_at}


class BadRows:
    """Warns once about each bad row, until the row changes."""

    def __init__(self) -> None:
        self._warned: dict[tuple[Any, Any], tuple[Any, Any]] = {}

    def warn(self, values: Row, error: BadInput) -> None:
        user_id, key, cron, timezone, _ = values
        if self._warned.get((user_id, key)) == (cron, timezone):
            return
        if len(self._warned) >= _MAX_WARNINGS:
            return
        self._warned[user_id, key] = (cron, timezone)
        log.warning(
            "schedule %r of %r does not fire until it is corrected: %s", key, user_id, error
        )

    def forget(self, user_id: str, key: str) -> None:
        self._warned.pop((user_id, key), None)
