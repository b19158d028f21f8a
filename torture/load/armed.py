"""A process in which something goes wrong once, at a fault point, and which then continues.

    python -m torture.load.armed MODE POINT NTH enqueuer SEED BACKLOG
    python -m torture.load.armed MODE POINT NTH duly ARGUMENTS…

`error`: the store fails there. `lost`: the write takes effect, but its answer is lost.
`pause`: the whole process is stopped until it is sent SIGCONT.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg

from duly import fault
from duly.cli import main as duly
from duly.errors import StoreUnavailable
from duly.store.sqlite import Connection
from torture.load import enqueuer
from torture.load.app import trace
from torture.load.terms import SAID

IDLE = psycopg.pq.TransactionStatus.IDLE


def fired(mode: str, point: str) -> None:
    trace.append("fired", mode, point, os.getpid())


def kill(point: str) -> None:
    trace.append("keys", "dies", "0", "-", os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def error(point: str) -> None:
    raise StoreUnavailable(SAID)


def pause(point: str) -> None:
    # To the others it looks dead, and on PostgreSQL they will declare it dead.
    trace.append("keys", "dies", "0", "-", os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)


class Loser:
    """The next commit of this thread takes effect, but its answer is lost."""

    def __init__(self) -> None:
        self._doomed = threading.local()

    def __call__(self, point: str) -> None:
        self._doomed.yes = True

    def patch(self) -> None:
        Connection.execute = self._after(  # type: ignore[method-assign]
            sqlite3.Connection.execute, self._break_sqlite
        )
        psycopg.Cursor.execute = self._after(  # type: ignore[method-assign]
            psycopg.Cursor.execute, self._break_postgres
        )

    def _after(self, execute: Callable[..., Any], lose: Callable[..., None]) -> Any:
        def executed(handle: Any, text: Any, *more: Any, **options: Any) -> Any:
            answer = execute(handle, text, *more, **options)
            if getattr(self._doomed, "yes", False):
                lose(handle, text)
            return answer

        return executed

    def _break_sqlite(self, raw: sqlite3.Connection, text: str) -> None:
        if text.startswith("COMMIT"):
            self._doomed.yes = False
            lost = sqlite3.OperationalError("disk I/O error")
            cast(Any, lost).sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise lost

    def _break_postgres(self, cursor: psycopg.Cursor[Any], text: object) -> None:
        raw = cursor.connection
        if raw.info.transaction_status == IDLE:
            self._doomed.yes = False
            raw.close()
            raise psycopg.OperationalError(SAID)


def handler(mode: str, point: str, nth: int) -> Callable[[str], None]:
    loser = Loser()
    if mode == "lost":
        loser.patch()
    acts: dict[str, Callable[[str], None]] = {"kill": kill, "error": error, "pause": pause}
    act = acts.get(mode, loser)
    passes = iter(range(nth - 1, -1, -1))

    def at(name: str) -> None:
        if name == point and next(passes, None) == 0:
            fired(mode, point)
            act(point)

    return at


def main(mode: str, point: str, nth: str, what: str, *arguments: str) -> None:
    with fault.inject(handler(mode, point, int(nth))):
        if what == "enqueuer":
            enqueuer.main(int(arguments[0]), int(arguments[1]), None)
        else:
            run_duly(arguments)


def run_duly(arguments: Sequence[str]) -> None:
    sys.argv = ["duly", *arguments]
    duly()


if __name__ == "__main__":
    main(*sys.argv[1:])
