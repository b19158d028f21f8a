"""The mutation lane: runs mutation bodies in a transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq import TransactionStatus

from duly import errors
from duly.model.job import Claim, Finish, State, finished
from duly.model.progress import LogEntry
from duly.store.base import MEMBER, Blame, blame, driver_error
from duly.store.jobs.finish import CURRENT_XID, FINISH_MUTATION
from duly.store.jobs.reports import write_reports
from duly.store.postgres.connection import is_hung_up
from duly.store.postgres.errors import blame_one, first_line
from duly.store.postgres.session import PostgresSession
from duly.store.postgres.tx import PostgresTx, raise_if_ended

if TYPE_CHECKING:
    from duly.store.postgres.store import PostgresStore

log = logging.getLogger(__name__)

_SAVEPOINT = f"SAVEPOINT {MEMBER}".encode()
_UNDO = f"ROLLBACK TO {MEMBER}".encode()
# Anything that the member SET LOCAL must not affect the next one.
_LEAVE = f"RELEASE {MEMBER}; RESET ALL; RESET ROLE".encode()


class PostgresMutationLane:
    """Runs mutation bodies, each in its own transaction unless the group is shared.

    The members of a group are finished together, by one statement before the commit. Until then
    nothing of the group is durable, so none of its members may end the transaction.
    """

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._shared = False
        self._has_entered = False
        self._xid = ""
        self._own: Finish | None = None
        self._ends: list[Finish] = []
        self._now = 0
        self._connect()

    def _connect(self) -> None:
        self.raw = self._store.connect()
        self.tx = PostgresTx(self.raw, self._store)
        self._session = PostgresSession(self.raw, self._store)

    def begin(self, shared: bool = False) -> None:
        if is_hung_up(self.raw):
            self.raw.close()
            self._connect()
        self._shared = self.tx.must_not_end = shared
        self._has_entered = self.tx.was_kept_from_ending = False
        self._ends = []
        self._xid = self._store.begin(self.raw)

    def enter(self) -> None:
        if self._shared and not self._has_entered:
            self.raw.execute(_SAVEPOINT)
        self._has_entered = False
        self._own = None

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        raise_if_ended(self.raw)
        if self.raw.info.transaction_status == TransactionStatus.INERROR:
            raise errors.TransactionEnded(
                "a statement failed and the body continued; wrap it in tx.savepoint()"
            )
        if self._shared:
            return self._finish_later(claim, result, now)
        values = {
            "id": claim.id, "token": claim.token, "xid": self._xid, "result": result, "now": now
        }  # fmt: skip
        moved = bool(self._session.run(FINISH_MUTATION, values))
        if not moved and self._session.run(CURRENT_XID)[0][0] != self._xid:
            raise errors.TransactionEnded("the body ended the transaction and started another")
        return moved

    def _finish_later(self, claim: Claim, result: str | None, now: int) -> bool:
        if self.tx.was_kept_from_ending:
            raise errors.TransactionEnded("the body continued after an operation was refused")
        self._own = finished(claim, State.SUCCEEDED, result=result)
        self._now = now
        return True

    def log(self, lines: Sequence[LogEntry]) -> None:
        # If the body has broken its transaction, `finish` raises.
        if self.raw.info.transaction_status == TransactionStatus.INTRANS:
            write_reports(self._session, [], lines)

    def leave(self) -> None:
        if self._shared:
            # The next member is entered in the same round trip.
            leave = _LEAVE + self._store.after_reset + b"; " + _SAVEPOINT
            self.raw.execute(leave)
            self._has_entered = True
            self._ends += [self._own] if self._own else []

    def undo(self) -> bool:
        alive = not self.raw.closed and (self.raw.info.transaction_status != TransactionStatus.IDLE)
        if not self._shared or not alive:
            return False
        self.raw.execute(_UNDO)
        self._has_entered = True
        self.tx.was_kept_from_ending = False
        return True

    def commit(self) -> None:
        if self._ends:
            moved = self._session.settle(self._ends, self._now)
            if len(moved) < len(self._ends):
                raise errors.TransactionEnded("the job of a member was taken away")
        self.raw.execute("COMMIT")

    def rollback(self) -> None:
        if not self.raw.closed:
            self.raw.rollback()

    def interrupt(self) -> None:
        try:
            self.raw.cancel_safe(timeout=2)
        except psycopg.Error as error:
            # The body's changes are rolled back in any case when it ends.
            log.warning("a statement could not be interrupted: %s", first_line(error))

    def renew(self) -> None:
        self.raw.close()

    def blame(self, error: BaseException) -> Blame:
        # A lost connection decides, whatever the body made of the error that reported it.
        return Blame.DATABASE if self.raw.broken else blame(error, blame_one)

    def is_refusal(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), psycopg.Error)

    def has_refused(self) -> bool:
        status = self.raw.info.transaction_status
        return self.tx.was_kept_from_ending or status == TransactionStatus.INERROR

    def close(self) -> None:
        self.raw.close()
