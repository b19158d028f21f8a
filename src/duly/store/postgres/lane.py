"""The lane that runs mutation bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import TransactionStatus

from duly import errors
from duly.model.job import Claim
from duly.model.progress import LogEntry
from duly.store import statements as sql
from duly.store.base import driver_error
from duly.store.postgres.connection import is_hung_up
from duly.store.postgres.errors import CONFLICTS, is_lost
from duly.store.postgres.session import PostgresSession
from duly.store.postgres.tx import PostgresTx

if TYPE_CHECKING:
    from duly.store.postgres.store import PostgresStore


class PostgresMutationLane:
    """Runs mutation bodies, each in a transaction of its own unless the group is shared."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._shared = False
        self._xid = ""
        self._connect()

    def _connect(self) -> None:
        self.raw = self._store.connect()
        self.tx = PostgresTx(self.raw, self._store)
        self._session = PostgresSession(self.raw, self._store)

    def begin(self, shared: bool = False) -> None:
        if is_hung_up(self.raw):
            self.raw.close()
            self._connect()
        self._shared = shared
        self._xid = self._store.begin(self.raw)

    def enter(self) -> None:
        if self._shared:
            self.raw.execute("SAVEPOINT duly_member")

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        status = self.raw.info.transaction_status
        if status == TransactionStatus.IDLE:
            raise errors.TransactionEnded("the body ended the transaction")
        if status == TransactionStatus.INERROR:
            raise errors.TransactionEnded(
                "a statement failed and the body went on; use tx.savepoint() around it"
            )
        fence = {"id": claim.id, "token": claim.token, "xid": self._xid}
        moved = self._session.run(sql.FINISH_MUTATION, fence | {"result": result, "now": now})
        if not moved and self._session.run(sql.CURRENT_XID)[0][0] != self._xid:
            raise errors.TransactionEnded("the body ended the transaction and began another")
        return bool(moved)

    def log(self, lines: Sequence[LogEntry]) -> None:
        # If the body has broken its transaction, `finish` says so.
        if self.raw.info.transaction_status == TransactionStatus.INTRANS:
            self._session.report([], lines)

    def leave(self) -> None:
        if self._shared:
            # Whatever the member SET LOCAL must not reach the next one.
            reset = b"RELEASE duly_member; RESET ALL; RESET ROLE"
            self.raw.execute(reset + self._store.after_reset)

    def undo(self) -> bool:
        alive = not self.raw.closed and (self.raw.info.transaction_status != TransactionStatus.IDLE)
        if not self._shared or not alive:
            return False
        self.raw.execute("ROLLBACK TO duly_member; RELEASE duly_member")
        return True

    def commit(self) -> None:
        self.raw.execute("COMMIT")

    def rollback(self) -> None:
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
