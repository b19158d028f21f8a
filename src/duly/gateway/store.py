"""A gateway's own store: a small SQLite file that one process uses at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from duly.errors import StoreTooNew, StoreUnavailable
from duly.gateway import statements as sql
from duly.gateway.crons import CronRecord
from duly.ids import FIRST_ID
from duly.store.sqlite.errors import translated
from duly.store.turnstile import open_private

PATIENCE = 10.0


class CronStore:
    """The crons of a gateway. Every verb is one transaction; threads take turns."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._held = contextlib.ExitStack()
        # The gateway decides when to close it at exit, because its threads may still use it.
        weakref.finalize(self, self._held.close).atexit = False
        self._turn = threading.RLock()

    def __str__(self) -> str:
        return "a gateway's memory" if self._path is None else str(self._path)

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> bool:
        """Open the store and create a missing table; False if the store is already open."""
        with self._turn:
            if self._connection is not None:
                return False
            # Opening marks running crons as interrupted, so no other process may use the file.
            try:
                self._own_it()
                with translated(str(self)):
                    self._connection = self._connect()
                    self._create(self._connection)
            except BaseException:
                self.close()
                raise
            return True

    def close(self) -> None:
        with self._turn:
            self._connection = None
            self._held.close()

    # Verbs

    def add(self, record: CronRecord, most: int) -> bool | None:
        """Store a new cron; False if its name is taken, None if there are too many."""
        with self._transaction() as run:
            if run(sql.COUNT)[0][0] >= most:
                return None
            return bool(run(sql.INSERT, msgspec.structs.asdict(record)))

    def edit(
        self, cron_id: str, change: Callable[[CronRecord], CronRecord | None]
    ) -> CronRecord | None:
        """Change a cron in one transaction and return it; None if there is none.

        If `change` returns None, nothing changes. NameTaken if another cron has the new name.
        """
        with self._transaction() as run:
            before = _one(run(sql.GET, {"id": cron_id}))
            if before is None:
                return None
            after = change(before)
            if after is None:
                return before
            if not run(sql.REPLACE, msgspec.structs.asdict(after)):
                raise NameTaken
            return after

    def rest(self, cron_id: str, running_at: int | None) -> None:
        """Record that the body of the run that started then has really ended."""
        with self._transaction() as run:
            run(sql.REST, {"id": cron_id, "running_at": running_at})

    def remove(self, cron_id: str) -> bool:
        with self._transaction() as run:
            return bool(run(sql.REMOVE, {"id": cron_id}))

    def get(self, cron_id: str) -> CronRecord | None:
        return _one(self._ask(sql.GET, {"id": cron_id}))

    def page(self, disabled: bool, after: str | None, limit: int) -> list[CronRecord]:
        """Crons, oldest first."""
        given = {"disabled": disabled, "after": after or FIRST_ID, "limit": limit}
        return _all(self._ask(sql.PAGE, given))

    def due(self, now: int, limit: int) -> list[CronRecord]:
        return _all(self._ask(sql.DUE, {"now": now, "limit": limit}))

    def next_due(self) -> int | None:
        found: int | None = self._ask(sql.NEXT_DUE, {})[0][0]
        return found

    def running(self) -> list[CronRecord]:
        return _all(self._ask(sql.RUNNING, {}))

    # Inside

    def _own_it(self) -> None:
        if self._path is None:
            return
        file: IO[bytes] | None = None
        try:
            file = os.fdopen(open_private(Path(f"{self._path}.lock")), "r+b")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if file is None:
                raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
            file.close()
            reason = "another process runs a gateway on it; stop that process, or use another file"
            raise StoreUnavailable(f"{self._path}: {reason}") from error
        self._held.callback(file.close)

    def _connect(self) -> sqlite3.Connection:
        target = ":memory:" if self._path is None else os.fspath(self._path)
        if self._path is not None:
            _create_private(self._path)
        connection = sqlite3.connect(
            target, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        self._held.callback(connection.close)
        connection.execute(sql.SET_UP)
        connection.execute(sql.SAFE)
        return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        version = connection.execute(sql.GET_VERSION).fetchone()[0]
        if version > sql.VERSION:
            raise StoreTooNew(sql.VERSION, version)
        connection.execute(sql.CREATE)
        connection.execute(sql.CREATE_DUE)
        connection.execute(sql.SET_VERSION)

    @contextlib.contextmanager
    def _transaction(self) -> Generator[Callable[..., list[Any]]]:
        with self._turn, translated(str(self)):
            connection = self._opened()

            def run(text: str, given: Mapping[str, Any] | None = None) -> list[Any]:
                return connection.execute(text, given or {}).fetchall()

            try:
                # Ctrl-C during the wait is raised after the statement has succeeded.
                connection.execute(sql.BEGIN)
                yield run
                connection.execute(sql.COMMIT)
            except BaseException:
                # After a full disk, SQLite has already rolled back.
                if connection.in_transaction:
                    connection.execute(sql.ROLLBACK)
                raise

    def _ask(self, text: str, given: Mapping[str, Any]) -> list[Any]:
        with self._turn, translated(str(self)):
            return self._opened().execute(text, given).fetchall()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"{self} is closed because the gateway was stopped")
        return self._connection


class NameTaken(Exception):
    """Another cron has that name."""


def _create_private(path: Path) -> None:
    """Create a file that only its owner can read; SQLite would leave that to the umask."""
    # Do not open an existing file: closing it would drop SQLite's locks on it.
    with contextlib.suppress(OSError):  # SQLite says what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _one(rows: list[Any]) -> CronRecord | None:
    return _all(rows)[0] if rows else None


def _all(rows: list[Any]) -> list[CronRecord]:
    return [_record(dict(zip(_NAMES, row, strict=True))) for row in rows]


def _record(fields: dict[str, Any]) -> CronRecord:
    fields["enabled"] = bool(fields["enabled"])
    return CronRecord(**fields)


_NAMES = CronRecord.__struct_fields__
