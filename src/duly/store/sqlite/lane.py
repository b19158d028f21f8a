"""The connections that user code may use, and the lane that runs mutation bodies on one."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from duly import errors
from duly.model.job import Claim, State, finished
from duly.model.progress import LogEntry
from duly.store.base import MEMBER, Blame, blame, driver_error
from duly.store.jobs.reports import write_reports
from duly.store.sqlite.connection import BEGIN, COMMIT, ROLLBACK
from duly.store.sqlite.errors import blame_one, translated
from duly.store.sqlite.session import SqliteSession
from duly.store.sqlite.tx import ENDED_IN_BODY, SqliteTx

if TYPE_CHECKING:
    from duly.store.sqlite.store import SqliteStore

# Statements that a body must not run, and settings that would outlive its transaction on this
# connection.
_ENDS = (sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
_OUTLASTS = (
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
)
_SAVEPOINT = f"SAVEPOINT {MEMBER}"
_RELEASE = f"RELEASE {MEMBER}"
_UNDO = f"ROLLBACK TO {MEMBER}"


class BodyConnection:
    """A write connection for user code, which can change data but not end the transaction.

    A connection that a body has altered (a pragma, a temporary table) is not used for other bodies.
    """

    _shared = False

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._turn = store.turnstile
        self._in_body = False
        self._has_turn = False
        self._connect()

    def _connect(self) -> None:
        # SQLite opens a read-only file for reading, and reports that only when a body writes.
        # Checked twice: it may change in between.
        could_write = os.access(self._store.path, os.W_OK)
        self.raw = self._store.connect()
        self.raw.gone = not (could_write and os.access(self._store.path, os.W_OK))
        self.raw.set_authorizer(_weakly(self))
        self.session = SqliteSession(self.raw)
        self.tx = SqliteTx(self.raw)
        self._altered = False

    def authorize(self, action: int, _: str | None, value: str | None, *more: object) -> int:
        if not self._in_body:
            return sqlite3.SQLITE_OK
        if action in _ENDS:
            return sqlite3.SQLITE_DENY
        if action in _OUTLASTS or (action == sqlite3.SQLITE_PRAGMA and value is not None):
            self._altered = True
            return sqlite3.SQLITE_DENY if self._shared else sqlite3.SQLITE_OK
        return sqlite3.SQLITE_OK

    def begin(self) -> None:
        self._store.gate.__enter__()
        try:
            if self.raw.gone:
                self.renew()
            if self.raw.gone:
                raise errors.StoreReadOnly(f"{self._store.where}: check the file's permissions")
            self._turn.enter(self)
        except BaseException:
            self._turn.leave(self)
            self._store.gate.__exit__()
            raise
        self._has_turn = True
        try:
            with translated(self._store.where):
                self.raw.execute(BEGIN)
            self._turn.begun()
        except BaseException:
            # Ctrl-C during the wait is raised after it has succeeded.
            self.rollback()
            raise
        self._in_body = True

    def _end_turn(self) -> None:
        if self._has_turn:
            self._turn.leave(self)
            self._has_turn = False
            self._store.gate.__exit__()

    def commit(self) -> None:
        self._in_body = False
        if not self.raw.in_transaction:
            raise errors.TransactionEnded(ENDED_IN_BODY)
        self.raw.execute(COMMIT)
        self._end_turn()
        self._renew_if_altered()

    def rollback(self) -> None:
        self._in_body = False
        try:
            if self.raw.in_transaction:
                self.raw.execute(ROLLBACK)
        finally:
            self._end_turn()
        self._renew_if_altered()

    def _renew_if_altered(self) -> None:
        if self._altered:
            self.renew()

    @contextlib.contextmanager
    def _ours(self) -> Generator[None]:
        """Allows duly's own statements in between."""
        self._in_body = False
        try:
            yield
        finally:
            self._in_body = True

    def renew(self) -> None:
        self.raw.close()
        self._connect()

    def close(self) -> None:
        self.raw.close()


def _weakly(body: BodyConnection) -> Callable[..., int]:
    """The authorizer. The store holds the connection, which must not hold the store in turn."""
    found = weakref.ref(body)

    def authorize(*action: Any) -> int:
        asked = found()
        return sqlite3.SQLITE_OK if asked is None else asked.authorize(*action)

    return authorize


class SqliteMutationLane(BodyConnection):
    """Runs mutation bodies: a savepoint for each member of a shared transaction."""

    def begin(self, shared: bool = False) -> None:
        self._shared = shared
        super().begin()

    def enter(self) -> None:
        if self._shared:
            with self._ours():
                self.raw.execute(_SAVEPOINT)

    def finish(self, claim: Claim, result: str | None, now: int) -> bool:
        with self._ours():
            if not self.raw.in_transaction:
                raise errors.TransactionEnded(ENDED_IN_BODY)
            if self.has_refused():
                raise errors.TransactionEnded("the body continued after an operation was refused")
            done = finished(claim, State.SUCCEEDED, result=result)
            return bool(self.session.settle([done], now))

    def log(self, lines: Sequence[LogEntry]) -> None:
        # If the body has ended its transaction, `finish` raises.
        if self.raw.in_transaction:
            with self._ours():
                write_reports(self.session, [], lines)

    def leave(self) -> None:
        if self._shared:
            with self._ours():
                self.raw.execute(_RELEASE)

    def undo(self) -> bool:
        with self._ours():
            if not self._shared or not self.raw.in_transaction:
                return False
            self.raw.execute(_UNDO)
            self.raw.execute(_RELEASE)
            self._altered = False
            return True

    def interrupt(self) -> None:
        self.raw.interrupt()

    def blame(self, error: BaseException) -> Blame:
        return blame(error, blame_one)

    def is_refusal(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), sqlite3.Error)

    def has_refused(self) -> bool:
        return self._shared and self._altered
