"""Closes a store, fills it from another one, and opens it again.

The source and the target of a copy each carry a mark, which is changed under its own lock, and
triggers that refuse every write, including those of processes that opened the store earlier or run
older code. The triggers are created when a store is closed and dropped when it is opened; between
copies they cost nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from duly.errors import CopyRefused, StoreMoved
from duly.store import copy_statements as sql
from duly.store.copy_mark import COPIED, MARK, REFUSED, Mark, Position, Stage, mark_of, read_mark
from duly.store.copy_statements import KEYS, NUMBERING, Types
from duly.store.jobs.finish import SHORT_LOCK_WAIT
from duly.store.jobs.listing import FINISHED
from duly.store.migrate import READ_META, WRITE_META
from duly.store.queues import EVERYTHING, PAUSE_QUEUE, RESUME_QUEUE
from duly.store.schedules.audit import audit
from duly.store.schedules.kill_switch import KILL_SWITCH
from duly.store.session import Session
from duly.store.statements import DAY_MS, HISTORY_BUCKETS
from duly.store.steps import Row

T = TypeVar("T")
BY = "duly copy"
OWN_META = frozenset({"version", "min_code", "store_id", "copying", MARK, REFUSED, COPIED})
"""Rows of the meta table that belong to this store alone."""


class Access(Protocol):
    """Runs a function against a store, reading or in a transaction."""

    def __call__(self, work: Callable[[Session], T], /) -> T: ...


class BusyCounts(msgspec.Struct, frozen=True):
    """Work that must finish before a store can be closed."""

    jobs: int
    slots: int
    """Slots held by bodies, including those of canceled jobs that are still running."""

    def __bool__(self) -> bool:
        return bool(self.jobs or self.slots)


class CopyPage(msgspec.Struct, frozen=True):
    """Some rows of a table, and how far the table is copied with them."""

    table: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    begins: Position
    ends: Position


class TableChecksum(msgspec.Struct, frozen=True):
    """A checksum over the rows of a table, which does not depend on their order."""

    rows: int = 0
    digests: int = 0

    def add(self, rows: Sequence[Row]) -> TableChecksum:
        digests = self.digests + sum(map(_digest, rows))
        return TableChecksum(self.rows + len(rows), digests % (1 << 128))


def compared(table: str, types: Types) -> dict[str, str]:
    """The columns to compare: all but those that only number the rows in each database."""
    own = NUMBERING if table == "history" else ()
    return {column: kind for column, kind in types.items() if column not in own}


def _digest(row: Row) -> int:
    # SQLite has no booleans.
    plain = [int(value) if isinstance(value, bool) else value for value in row]
    return int.from_bytes(hashlib.blake2b(msgspec.msgpack.encode(plain), digest_size=16).digest())


class CopyEnd:
    """A store as the source or the target of a copy. Every verb that writes is one transaction."""

    def __init__(self, read: Access, write: Access) -> None:
        self._read = read
        self._write = write

    # Both ends

    def meta(self) -> dict[str, str]:
        return self._read(lambda s: dict(s.run(READ_META)))

    def mark(self) -> Mark | None:
        return mark_of(self.meta())

    def counts(self) -> dict[str, int]:
        return {table: self._read(lambda s: _count(s, table)) for table in KEYS}  # noqa: B023

    def busy(self) -> BusyCounts:
        return self._read(_busy)

    def types(self, table: str) -> dict[str, str]:
        """The columns of a table, in a fixed order, and their types."""
        return self._read(lambda s: _types(s, table))

    def rows(
        self, table: str, types: Types, after: tuple[str | int, ...] | None, limit: int
    ) -> list[Row]:
        """Rows after a key, in key order."""
        return self._in_order(sql.page, table, types, after, limit)

    def sizes(
        self, table: str, types: Types, after: tuple[str | int, ...] | None, limit: int
    ) -> list[int]:
        """The size in bytes of the arguments and results of those rows; empty for other tables."""
        if table not in ("jobs", *FINISHED):
            return []
        return [row[0] for row in self._in_order(sql.sizes, table, types, after, limit)]

    def _in_order(
        self,
        text: Callable[..., str],
        table: str,
        types: Types,
        after: tuple[str | int, ...] | None,
        limit: int,
    ) -> list[Row]:
        given: dict[str, Any] = {"limit": limit}
        if after is not None:
            given |= dict(zip(KEYS[table], after, strict=True))
        beyond = after is not None
        return self._read(lambda s: s.run_text(text(s.dialect, table, types, beyond=beyond), given))

    # The source

    def drain(self, mark: Mark, now: int) -> Mark:
        """Stop starting jobs and processing ticks.

        Return the mark, if this copy has set one already.
        """

        def work(s: Session) -> Mark:
            there = _put(s, mark)
            if there is not None:
                return _same_copy(there, mark)
            paused = not s.run(KILL_SWITCH)
            if paused:
                note = f"while it is copied to {mark.where}"
                s.run(PAUSE_QUEUE, {"name": EVERYTHING, "by": BY, "note": note, "now": now})
            made = msgspec.structs.replace(mark, paused=paused)
            # Otherwise a tick that sees the pause would be skipped, and never made up for.
            _shut(s, made, ["schedules", "ticks"])
            return made

        return self._write(work)

    def close_if_idle(self, copy_id: str, now: int) -> BusyCounts:
        """Refuse every write from now on, unless something is running."""
        if busy := self.busy():
            return busy

        def work(s: Session) -> None:
            mark = _own(s, copy_id, Stage.DRAINING, Stage.CLOSED)
            if mark.stage == Stage.CLOSED:
                return
            if mark.paused:
                _lift_pause(s)
            audit(s, "store.close", "store", BY, {"to": mark.where}, now)
            _shut(s, msgspec.structs.replace(mark, stage=Stage.CLOSED), list(KEYS))
            # All earlier writers have finished by now; a job that they started may be running.
            if busy := _busy(s):
                raise _StillBusy(busy)

        try:
            self._write(work)
        except _StillBusy as still:
            return still.busy
        return BusyCounts(0, 0)

    def reopen(self) -> bool:
        """Reopen the source as if nothing had been copied. Return False if it was never closed."""

        def work(s: Session) -> bool:
            mark = _locked(s)
            if mark is None:
                return False
            if mark.stage == Stage.FILLING:
                raise CopyRefused(f"this is not a source: it is being filled from {mark.where}")
            if mark.stage == Stage.MOVED:
                raise CopyRefused(f"this store was moved to {mark.where}; this cannot be undone")
            if mark.paused and mark.stage == Stage.DRAINING:
                _lift_pause(s)
            _unshut(s)
            return True

        return self._write(work)

    def hand_over(self, copy_id: str) -> None:
        """The point of no return: this store is never opened again."""

        def work(s: Session) -> None:
            mark = _own(s, copy_id, Stage.CLOSED)
            _shut(s, msgspec.structs.replace(mark, stage=Stage.MOVED), list(KEYS))

        self._write(work)

    # The target

    def receive(self, mark: Mark) -> Mark:
        """Refuse every write except those of this copy. Return the current mark.

        Data left by an earlier copy of the same source is removed; any other data is refused.
        """

        def work(s: Session) -> Mark:
            there = _put(s, mark)
            if there is None:
                _shut(s, mark, list(KEYS))
                _demand_empty(s)
                return mark
            if there.stage != Stage.FILLING or there.other != mark.other:
                raise CopyRefused(there.says("the target"))
            if there.copy_id == mark.copy_id:
                return there
            _empty(s)
            _shut(s, mark, list(KEYS))
            return mark

        return self._write(work)

    def add(self, copy_id: str, page: CopyPage) -> None:
        """Insert a page and record how far the table is copied, in one transaction."""

        def work(s: Session) -> None:
            mark = _own(s, copy_id, Stage.FILLING)
            if mark.tables.get(page.table, Position()) != page.begins:
                raise CopyRefused("another copy to the same target is running; stop one of them")
            s.run(sql.LET_PASS)
            _insert(s, page)
            s.run(sql.STOP_PASS)
            tables = {**mark.tables, page.table: page.ends}
            _write_mark(s, msgspec.structs.replace(mark, tables=tables))

        self._write(work)

    def open_copy(self, copy_id: str, meta: Mapping[str, str], now: int) -> None:
        """Open the target to all processes."""

        def work(s: Session) -> None:
            mark = _own(s, copy_id, Stage.FILLING)
            _unshut(s)
            for key, value in meta.items():
                if key not in OWN_META:
                    s.run(WRITE_META, {"key": key, "value": value})
            s.run(WRITE_META, {"key": COPIED, "value": copy_id})
            audit(s, "store.open", "store", BY, {"from": mark.where}, now)

        self._write(work)

    def discard(self, source_id: str) -> bool:
        """Remove the data copied from a source, so that the target is empty and usable."""

        def work(s: Session) -> bool:
            mark = _locked(s)
            if mark is None or mark.stage != Stage.FILLING or mark.other != source_id:
                return False
            _empty(s)
            _unshut(s)
            return True

        return self._write(work)


class _StillBusy(Exception):
    """Rolls back the closing."""

    def __init__(self, busy: BusyCounts) -> None:
        self.busy = busy
        super().__init__()


# Marks -------------------------------------------------------------------------------------------


def _put(s: Session, mark: Mark) -> Mark | None:
    """Set the mark, unless there is one already. Return the current mark, locked."""
    if s.run(sql.PUT_MARK, {"mark": mark.text()}):
        return None
    return _locked(s)


def _locked(s: Session) -> Mark | None:
    rows = s.run(sql.LOCK_MARK)
    return read_mark(rows[0][0]) if rows else None


def _own(s: Session, copy_id: str, *stages: Stage) -> Mark:
    mark = _locked(s)
    if mark is None or mark.copy_id != copy_id or mark.stage not in stages:
        raise CopyRefused("the copy was aborted or taken over by another process")
    return mark


def _same_copy(there: Mark, mark: Mark) -> Mark:
    if there.stage == Stage.MOVED:
        raise StoreMoved(there.says("this store"))
    if there.stage == Stage.FILLING or there.copy_id != mark.copy_id:
        raise CopyRefused(there.says("the source"))
    return there


def _write_mark(s: Session, mark: Mark) -> None:
    s.run(WRITE_META, {"key": MARK, "value": mark.text()})


def _shut(s: Session, mark: Mark, tables: Sequence[str]) -> None:
    """Refuse writes to these tables."""
    _wait_shortly(s)
    s.run(WRITE_META, {"key": REFUSED, "value": mark.message})
    _write_mark(s, mark)
    for text in sql.shut(s.dialect, tables, mark.message):
        s.run_text(text, {})


def _unshut(s: Session) -> None:
    _wait_shortly(s)
    for text in sql.unshut(s.dialect):
        s.run_text(text, {})
    for key in (MARK, REFUSED):
        s.run(sql.DROP_META, {"key": key})


def _wait_shortly(s: Session) -> None:
    """Wait briefly for table locks: a waiting request blocks all later ones.

    The caller tries again.
    """
    if s.dialect == "postgres":
        s.run(SHORT_LOCK_WAIT)


def _lift_pause(s: Session) -> None:
    s.run(RESUME_QUEUE, {"name": EVERYTHING})
    s.run(sql.FORGET_QUEUE, {"name": EVERYTHING})


# Rows --------------------------------------------------------------------------------------------


def _count(s: Session, table: str) -> int:
    count: int = s.run_text(sql.count_all(table), {})[0][0]
    return count


def _busy(s: Session) -> BusyCounts:
    return BusyCounts(s.run(sql.RUNNING)[0][0], s.run(sql.TAKEN_SLOTS)[0][0])


def _types(s: Session, table: str) -> dict[str, str]:
    return dict(sorted(s.run_text(sql.columns_of(s.dialect, table), {})))


def _demand_empty(s: Session) -> None:
    used = [table for table in ("workers", *KEYS) if s.run_text(sql.is_used(table), {})]
    if used:
        raise CopyRefused(
            f"the target already contains data ({', '.join(used)}); use an empty database or schema"
        )


def _empty(s: Session) -> None:
    s.run(sql.LET_PASS)
    for table in KEYS:
        s.run_text(sql.delete_all(table), {})
    s.run(sql.STOP_PASS)


def _insert(s: Session, page: CopyPage) -> None:
    types = _types(s, page.table)
    columns, rows = page.columns, page.rows
    if "bucket" in types and "bucket" not in columns:
        ended = columns.index("completed_at")
        rows = [(*row, row[ended] // DAY_MS % HISTORY_BUCKETS) for row in rows]
        columns = (*columns, "bucket")
    text = sql.insert(s.dialect, page.table, {column: types[column] for column in columns})
    if s.dialect == "sqlite":
        for row in rows:
            s.run_text(text, dict(zip(columns, row, strict=True)))
    elif rows:
        arrays = zip(columns, zip(*rows, strict=True), strict=True)
        s.run_text(text, {column: _array(types[column], values) for column, values in arrays})


def _array(kind: str, values: Sequence[Any]) -> list[Any]:
    if kind == "boolean":
        return [None if value is None else bool(value) for value in values]
    return list(values)
