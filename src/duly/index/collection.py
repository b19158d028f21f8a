"""Stores the schedules of users and keeps the index consistent with them.

A record is {cron, timezone, enabled, …} under a user and a key. Changes that affect when it fires
are written to the index in the record's transaction.
"""

# Without a type checker, callers may pass values that contradict the types.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec

from duly.calls.twins import awaited
from duly.clock import Clock, SystemClock
from duly.errors import (
    BadInput,
    InvalidOption,
    ScheduleExists,
    ScheduleNotFound,
    StoreUnavailable,
)
from duly.index import statements as sql
from duly.index.blocking import SyncScheduleIndex
from duly.index.claims import DatabaseIndex, RowsInTransaction
from duly.index.database import Database, Row, Transaction
from duly.index.postgres import open_postgres
from duly.index.rows import IndexRow, ScheduleIndex, next_fire_after, require_text
from duly.index.sqlite import open_sqlite
from duly.model import strict_json
from duly.runtime.threads import Threads

log = logging.getLogger(__name__)

T = TypeVar("T")
State = dict[str, Any]

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """One schedule of one user: `state` has `cron`, `timezone`, `enabled` and any other fields."""

    user_id: str
    key: str
    state: State

    @property
    def cron(self) -> str:
        cron: str = self.state["cron"]
        return cron

    @property
    def timezone(self) -> str | None:
        timezone: str | None = self.state["timezone"]
        return timezone

    @property
    def enabled(self) -> bool:
        enabled: bool = self.state["enabled"]
        return enabled

    def index_row(self, after: int) -> IndexRow | None:
        """Its index row, due at the first time after an instant; None if it has none."""
        if not self.enabled:
            return None
        row = IndexRow(self.user_id, self.key, self.cron, self.timezone, 0)
        try:
            fires_at = next_fire_after(row, after)
        except BadInput as error:
            log.warning("schedule %r of %r is not indexed: %s", self.key, self.user_id, error)
            return None
        return IndexRow(self.user_id, self.key, self.cron, self.timezone, fires_at)


class Mirror(Protocol):
    """The part of an index to which changes of records are written."""

    def upsert(self, row: IndexRow) -> None: ...

    def remove(self, user_id: str, key: str) -> None: ...


class Records:
    """The verbs of a collection in one transaction, without `await`."""

    def __init__(
        self,
        tx: Transaction,
        mirror: Mirror | None,
        require_key: Callable[[object], str],
        now: Callable[[], int],
        index_is_here: bool,
    ) -> None:
        self._tx = tx
        self._mirror = mirror
        self._require_key = require_key
        self._now = now
        self._index_is_here = index_is_here

    def create(self, user_id: str, key: str, state: Mapping[str, Any]) -> ScheduleRecord:
        """Store a schedule: `cron`, and optionally `timezone`, `enabled` and any other JSON."""
        record = ScheduleRecord(**self._place(user_id, key), state=_checked(state))
        if not self._tx.run(sql.INSERT_RECORD, _stored(record)):
            raise ScheduleExists(key)
        self._reflect(record)
        return record

    def get(self, user_id: str, key: str) -> ScheduleRecord | None:
        """The schedule, if there is one."""
        return self._read(sql.GET_RECORD, user_id, key)

    def list(self, user_id: str) -> list[ScheduleRecord]:
        """The schedules of a user, by key."""
        require_text("user_id", user_id)
        found = self._tx.run(sql.RECORDS_OF_USER, {"user_id": user_id})
        return [_record(*values) for values in found if self._is_ours(values[1])]

    def update(self, user_id: str, key: str, changes: Mapping[str, Any]) -> ScheduleRecord:
        """Change parts of a schedule's state."""
        changes = _mapping(changes)
        before = self._read(sql.LOCK_RECORD, user_id, key)
        if before is None:
            raise ScheduleNotFound(key)
        after = ScheduleRecord(user_id, key, _checked({**before.state, **changes}))
        self._tx.run(sql.UPDATE_RECORD, _stored(after))
        # A due row must not lose its time because of an unrelated change.
        if _when(before) != _when(after):
            self._reflect(after)
        return after

    def delete(self, user_id: str, key: str) -> bool:
        """Delete the schedule; returns whether there was one."""
        deleted = self._tx.run(sql.DELETE_RECORD, self._place(user_id, key))
        if deleted and self._mirror is not None:
            self._mirror.remove(user_id, key)
        return bool(deleted)

    def rebuild(self) -> int:
        """Rebuild the index from the records; returns the number of schedules in it.

        Due rows stay due. Rows without a record are removed if the index is a duly index.
        """
        if self._mirror is None:
            raise InvalidOption("index", "this collection has no index to rebuild")
        self._tx.run(sql.LOCK_RECORDS)
        indexed = sum(self._rebuild(record, row) for record, row in self._everything())
        if self._index_is_here:
            for user_id, key in self._tx.run(sql.ROWS_WITHOUT_RECORD):
                if self._is_ours(key):
                    self._mirror.remove(user_id, key)
        return indexed

    def _rebuild(self, record: ScheduleRecord, row: Row) -> bool:
        cron, timezone, next_fire_at = row
        now = self._now()
        is_due = next_fire_at is not None and next_fire_at <= now
        if record.enabled and is_due and (cron, timezone) == (record.cron, record.timezone):
            return True
        return self._reflect(record)

    def _everything(self) -> Generator[tuple[ScheduleRecord, Row]]:
        """Every record of the collection with its row in the index."""
        page: list[Row] = [("", "")]
        while page:
            user_id, key = page[-1][:2]
            start = {"user_id": user_id, "key": key, "limit": _PAGE}
            statement = sql.RECORDS_WITH_ROWS if self._index_is_here else sql.RECORDS
            page = self._tx.run(statement, start)
            for values in page:
                if self._is_ours(values[1]):
                    yield _record(*values[:3]), values[3:]

    def _reflect(self, record: ScheduleRecord) -> bool:
        """Mirror the record; returns whether the index now has a row for it."""
        if self._mirror is None:
            return False
        row = record.index_row(self._now())
        if row is None:
            self._mirror.remove(record.user_id, record.key)
            return False
        self._mirror.upsert(row)
        return True

    def _read(self, statement: sql.Statement, user_id: str, key: str) -> ScheduleRecord | None:
        found = self._tx.run(statement, self._place(user_id, key))
        return _record(user_id, key, found[0][0]) if found else None

    def _place(self, user_id: str, key: str) -> dict[str, str]:
        require_text("user_id", user_id)
        return {"user_id": user_id, "key": self._require_key(key)}

    def _is_ours(self, key: str) -> bool:
        try:
            self._require_key(key)
        except InvalidOption:
            return False
        return True


class ScheduleCollection:
    """Schedules of users, stored in the table `schedule_records` and mirrored into an index.

    Its keys match the pattern: in "schedules/*" the star is any name without a slash. With one of
    duly's indexes, the records are in the index's database. Without an index, or with a third-party
    one, `database` is where they are: an SQLite path or connection, or a PostgreSQL DSN, pool or
    connection.
    """

    def __init__(
        self,
        *,
        pattern: str = "schedules/*",
        index: ScheduleIndex | None = None,
        database: Any = None,
        skip_schema_init: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._fits = _pattern(pattern)
        self._pattern = pattern
        self._index = index
        self._database = _database(index, database, create=not skip_schema_init)
        self._clock = clock or SystemClock()
        self._threads = Threads()
        self._blocking = None if index is None else SyncScheduleIndex(index)
        self._answers = _Answers()
        if not skip_schema_init:
            self._database.create(sql.RECORD_TABLE)

    create: Final = awaited(Records.create)
    get: Final = awaited(Records.get)
    list: Final = awaited(Records.list)
    update: Final = awaited(Records.update)
    delete: Final = awaited(Records.delete)
    rebuild: Final = awaited(Records.rebuild)

    @contextmanager
    def transaction(self) -> Generator[Records]:
        """The verbs without `await`, all in one transaction."""
        with self._database.transaction() as tx:
            yield self._records(tx, self._blocking)

    def on(self, connection: Any) -> Records:
        """The verbs without `await`, in the transaction of your connection."""
        return self._records(self._database.borrow(connection), self._blocking)

    def close(self) -> None:
        """Close the connections that the collection has opened; its index stays open.

        On an event loop, transactions that wait there for a third-party index are rolled back.
        """
        with self._answers.given_up_here():
            self._threads.close()
        if self._blocking is not None:
            self._blocking.close()
        if not isinstance(self._index, DatabaseIndex):
            self._database.close()

    async def _do(self, work: Callable[[Records], T], reads: bool) -> T:
        loop = asyncio.get_running_loop()
        mirror = None if self._index is None else _OnLoop(self._index, loop, self._answers)

        def in_transaction() -> T:
            with self._database.transaction() as tx:
                return work(self._records(tx, mirror))

        if self._database.is_tied_to_thread:
            return in_transaction()
        return await self._threads.call(in_transaction)

    def _records(self, tx: Transaction, elsewhere: Mirror | None) -> Records:
        ours = isinstance(self._index, DatabaseIndex)
        mirror = RowsInTransaction(tx) if ours else elsewhere
        return Records(tx, mirror, self._require_key, self._clock.now, ours)

    def _require_key(self, key: object) -> str:
        require_text("key", key)
        if not self._fits(str(key)):
            raise InvalidOption("key", f"{key!r} does not match the pattern {self._pattern!r}")
        return str(key)


class _OnLoop:
    """A third-party index, used from a thread while its event loop runs."""

    def __init__(
        self, index: ScheduleIndex, loop: asyncio.AbstractEventLoop, answers: _Answers
    ) -> None:
        self._index = index
        self._loop = loop
        self._answers = answers

    def upsert(self, row: IndexRow) -> None:
        self._answers.wait_for(self._index.upsert(row), self._loop)

    def remove(self, user_id: str, key: str) -> None:
        self._answers.wait_for(self._index.remove(user_id, key), self._loop)


class _Answers:
    """Work on event loops for which threads wait."""

    def __init__(self) -> None:
        self._expected: dict[Future[None], asyncio.AbstractEventLoop] = {}
        self._given_up: asyncio.AbstractEventLoop | None = None

    def wait_for(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        answer = asyncio.run_coroutine_threadsafe(work, loop)
        # Register first, then check; `given_up_here` does the same, so one always sees the other.
        self._expected[answer] = loop
        if self._given_up is loop:
            answer.cancel()
        try:
            answer.result()
        except CancelledError:
            raise StoreUnavailable("the wait for the index was canceled") from None
        finally:
            del self._expected[answer]

    @contextmanager
    def given_up_here(self) -> Generator[None]:
        """Cancel waits for the current event loop, which the block keeps from running anything."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            yield
            return
        self._given_up = loop
        for answer, expected_of in list(self._expected.items()):
            if expected_of is loop:
                answer.cancel()
        try:
            yield
        finally:
            self._given_up = None


# Values ------------------------------------------------------------------------------------------


def _mapping(state: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        raise InvalidOption(
            "state", f"give a mapping, not {state!r}", 'write {"cron": "0 9 * * *"}'
        )
    return state


def _checked(state: Mapping[str, Any]) -> State:
    complete: State = {"timezone": None, "enabled": True, **_mapping(state)}
    if "cron" not in complete:
        raise InvalidOption("cron", "is required for a schedule")
    require_text("cron", complete["cron"])
    if complete["timezone"] is not None:
        require_text("timezone", complete["timezone"])
    if not isinstance(complete["enabled"], bool):
        raise InvalidOption("enabled", f"give True or False, not {complete['enabled']!r}")
    if wrong := strict_json.fault(complete):
        raise InvalidOption(f"state{wrong.path}", wrong.reason)
    return complete


def _when(record: ScheduleRecord) -> tuple[str, str | None, bool]:
    return record.cron, record.timezone, record.enabled


def _stored(record: ScheduleRecord) -> dict[str, str]:
    state = strict_json.encoded(record.state)
    return {"user_id": record.user_id, "key": record.key, "state": state}


def _record(user_id: str, key: str, state: str) -> ScheduleRecord:
    return ScheduleRecord(user_id, key, msgspec.json.decode(state))


def _pattern(pattern: str) -> Callable[[str], object]:
    require_text("pattern", pattern)
    before, star, after = pattern.partition("*")
    if not star or "*" in after:
        raise InvalidOption("pattern", f"{pattern!r} needs exactly one star, as in schedules/*")
    return re.compile(f"{re.escape(before)}[^/]+{re.escape(after)}").fullmatch


def _database(index: ScheduleIndex | None, given: Any, *, create: bool) -> Database:
    if isinstance(index, DatabaseIndex):
        if given is not None:
            raise InvalidOption("database", "leave it out: the records are in the index's database")
        return index.database
    if given is None:
        raise InvalidOption("database", "is required, unless the index is a duly index")
    database = open_sqlite(given, create=create) if _is_sqlite(given) else open_postgres(given)
    if database.is_tied_to_thread and index is not None:
        raise InvalidOption(
            "database", "give the path of the file: this index cannot be part of a transaction"
        )
    return database


def _is_sqlite(given: object) -> bool:
    if isinstance(given, str):
        return "://" not in given and "=" not in given
    return isinstance(given, sqlite3.Connection | os.PathLike)
