"""Faults of the statements of one process."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

from duly.store.sqlite import Connection

ERRORS = {
    "io": ("SQLITE_IOERR", "disk I/O error"),
    "full": ("SQLITE_FULL", "database or disk is full"),
}


class SimulatedCrash(BaseException):
    """The process is dead: nothing it does from here on reaches the database."""


class Faults:
    """Says of each statement whether it goes wrong.

    `crash` kills the process before the statement. `io` and `full` fail it, and may undo the
    transaction as SQLite does. `busy` fails a BEGIN. `lost` does a COMMIT and says that it failed.
    """

    KINDS = ("crash", "busy", "lost", "lost", "io", "io undone", "full", "full undone")

    def __init__(self) -> None:
        self.dead = False
        self.fired = 0
        self._kind = ""
        self._skip = self._times = 0

    def arm(self, kind: str, skip: int, times: int) -> None:
        """Let so many statements pass, then fail so many."""
        self._kind, self._skip, self._times = kind, skip, times

    def disarm(self) -> None:
        self._kind = ""

    def before(self, connection: SimConnection, text: str) -> None:
        if self.dead:
            raise SimulatedCrash
        if self._kind:
            self._fail(self._kind, connection, text)

    def _fail(self, kind: str, connection: SimConnection, text: str) -> None:
        word, _, undone = kind.partition(" ")
        if kind == "crash" and self._is_due():
            self.dead = True
            raise SimulatedCrash
        if kind == "busy" and text.startswith("BEGIN") and self._is_due():
            raise _error("SQLITE_BUSY", "database is locked")
        # Nothing makes a rollback fail.
        if word in ERRORS and not text.startswith("ROLLBACK") and self._is_due():
            if undone:
                connection.blow_fuse()
            raise _error(*ERRORS[word])

    def after(self, text: str) -> None:
        if self._kind == "lost" and text.startswith("COMMIT") and self._is_due():
            raise _error("SQLITE_IOERR", "the answer was lost")

    def _is_due(self) -> bool:
        self._skip -= 1
        if self._skip >= 0:
            return False
        self.fired += 1
        self._times -= 1
        if self._times <= 0:
            self.disarm()
        return True


def _error(name: str, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorname = name
    return error


class SimCursor(sqlite3.Cursor):
    owner: SimConnection

    def execute(self, text: str, parameters: Any = ()) -> SimCursor:
        self.owner.faults.before(self.owner, text)
        super().execute(text, parameters)
        self.owner.faults.after(text)
        return self

    def executemany(self, text: str, rows: Any) -> SimCursor:
        self.owner.faults.before(self.owner, text)
        super().executemany(text, rows)
        return self


class SimConnection(Connection):
    faults: Faults

    def cursor(self, *_: Any) -> SimCursor:  # type: ignore[override]
        cursor = super().cursor(SimCursor)
        cursor.owner = self
        return cursor

    def execute(self, text: str, parameters: Any = ()) -> SimCursor:
        return self.cursor().execute(text, parameters)

    def vanish(self) -> bool:
        """What it had begun is undone; whether it was open.

        Closing is not enough while a cursor is still referred to from some traceback.
        """
        try:
            self.set_authorizer(None)
            if self.in_transaction:
                sqlite3.Cursor(self).execute("ROLLBACK")
        except sqlite3.ProgrammingError:
            return False
        return True

    def blow_fuse(self) -> None:
        """Some errors take the transaction along; the authorizer has no say in that."""
        if self.in_transaction:
            with suppress(sqlite3.IntegrityError):
                sqlite3.Cursor(self).execute("INSERT OR ROLLBACK INTO sim_fuse VALUES (1)")
