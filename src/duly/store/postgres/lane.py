"""The lane that runs mutation bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import Escaping, TransactionStatus

from duly import errors
from duly.model.job import Claim
from duly.model.progress import LogEntry
from duly.store import statements as sql
from duly.store.base import driver_error
from duly.store.postgres.connection import PlainCursor, is_hung_up
from duly.store.postgres.errors import CONFLICTS, is_lost
from duly.store.postgres.session import PostgresSession
from duly.store.postgres.tx import PostgresTx

if TYPE_CHECKING:
    from duly.store.postgres.store import PostgresStore


_FINISH = "duly_finish"
_SAVEPOINT = b"SAVEPOINT duly_member"
# Whatever the member SET LOCAL must not reach the next one.
_LEAVE = b"RELEASE duly_member; RESET ALL; RESET ROLE"
# What FINISH_MUTATION is given, and the type of each.
_VALUES = {"id": "uuid", "token": "int4", "xid": "text", "result": "text", "now": "int8"}


class PostgresMutationLane:
    """Runs mutation bodies, each in a transaction of its own unless the group is shared.

    A member of a group is finished, left, and the next one entered, with one request: to ask four
    times would take as long as a transaction of its own.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._shared = False
        self._has_left = False
        self._has_entered = False
        self._xid = ""
        self._connect()

    def _connect(self) -> None:
        self._is_prepared = False
        self.raw = self._store.connect()
        self.tx = PostgresTx(self.raw, self._store)
        self._session = PostgresSession(self.raw, self._store)

    def begin(self, shared: bool = False) -> None:
        if is_hung_up(self.raw):
            self.raw.close()
            self._connect()
        self._shared = shared
        self._has_entered = False
        if shared and not self._is_prepared and not self._store.is_pooled:
            self._prepare()
        self._xid = self._store.begin(self.raw)

    def _prepare(self) -> None:
        """Tell the server how a member is finished, unless it knows."""
        text = self._store.sql[sql.FINISH_MUTATION].replace(b"%%", b"%")
        for place, value in enumerate(_VALUES, 1):
            text = text.replace(f"%({value})s".encode(), f"${place}".encode())
        kinds = ", ".join(_VALUES.values())
        if not self._session.run(sql.IS_PREPARED, {"name": _FINISH}):
            self.raw.execute(f"PREPARE {_FINISH} ({kinds}) AS ".encode() + text, prepare=False)
        self._is_prepared = True

    def enter(self) -> None:
        self._has_left = False
        if self._shared and not self._has_entered:
            self.raw.execute(_SAVEPOINT)
        self._has_entered = False

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        status = self.raw.info.transaction_status
        if status == TransactionStatus.IDLE:
            raise errors.TransactionEnded("the body ended the transaction")
        if status == TransactionStatus.INERROR:
            raise errors.TransactionEnded(
                "a statement failed and the body went on; use tx.savepoint() around it"
            )
        values: dict[str, str | int | None] = {
            "id": claim.id, "token": claim.token, "xid": self._xid, "result": result, "now": now
        }  # fmt: skip
        if self._shared and self._is_prepared:
            moved = self._finish_and_go_on(values)
        else:
            moved = bool(self._session.run(sql.FINISH_MUTATION, values))
        if not moved and self._session.run(sql.CURRENT_XID)[0][0] != self._xid:
            raise errors.TransactionEnded("the body ended the transaction and began another")
        return moved

    def _finish_and_go_on(self, values: Mapping[str, str | int | None]) -> bool:
        given = b", ".join(self._literal(values[name]) for name in _VALUES)
        finish = f"EXECUTE {_FINISH} (".encode() + given + b")"
        with PlainCursor(self.raw) as cursor:
            leave = _LEAVE + self._store.after_reset
            cursor.execute(b"; ".join([finish, leave, _SAVEPOINT]), prepare=False)
            self._has_left = self._has_entered = True
            return bool(cursor.fetchall())

    def _literal(self, value: str | int | None) -> bytes:
        if isinstance(value, str):
            return Escaping(self.raw.pgconn).escape_literal(value.encode(self.raw.info.encoding))
        return b"NULL" if value is None else str(value).encode()

    def log(self, lines: Sequence[LogEntry]) -> None:
        # If the body has broken its transaction, `finish` says so.
        if self.raw.info.transaction_status == TransactionStatus.INTRANS:
            self._session.report([], lines)

    def leave(self) -> None:
        if self._shared and not self._has_left:
            self.raw.execute(_LEAVE + self._store.after_reset)

    def undo(self) -> bool:
        alive = not self.raw.closed and (self.raw.info.transaction_status != TransactionStatus.IDLE)
        # What was left cannot be undone by itself any more.
        if not self._shared or not alive or self._has_left:
            return False
        self.raw.execute("ROLLBACK TO duly_member; RELEASE duly_member")
        return True

    def commit(self) -> None:
        self.raw.execute("COMMIT")

    def rollback(self) -> None:
        if self._shared:
            # A body may have made the server forget what it was told.
            self._is_prepared = False
        if not self.raw.closed:
            self.raw.rollback()

    def interrupt(self) -> None:
        self.raw.cancel_safe(timeout=2)

    def renew(self) -> None:
        self.raw.close()

    def is_conflict(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), CONFLICTS)

    def is_system(self, error: BaseException) -> bool:
        return isinstance(error, errors.StoreUnavailable) or is_lost(driver_error(error))

    def is_refusal(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), psycopg.Error)

    def close(self) -> None:
        self.raw.close()
