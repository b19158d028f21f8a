"""Moves a store to another database while other processes use it, without losing anything.

    target is closed  →  source drains  →  source is closed  →  rows are copied
    →  both are compared  →  source is closed permanently  →  target is opened

Every step is recorded in the stores themselves, in its own transaction: an interrupted copy resumes
where it stopped. The two stores are never open at the same time, and until the source is closed
permanently it can be opened again as it was. docs/decisions/0016-copy.md says why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from duly import fault
from duly.clock import Clock
from duly.errors import (
    CopyDiffers,
    CopyRefused,
    NotMigrated,
    StoreError,
    StoreMissing,
    StoreMoved,
    StoreUnavailable,
)
from duly.ids import new_id
from duly.runtime.heartbeat import rescue
from duly.store.copy_end import BusyCounts, CopyEnd, CopyPage, TableChecksum, compared
from duly.store.copy_mark import COPIED, Mark, Position, Stage
from duly.store.copy_statements import KEYS, Types
from duly.store.steps import Row
from duly.store.table import Store

log = logging.getLogger(__name__)

WAIT_SECONDS = 30.0
LOOK_SECONDS = 0.1
FIRST_ROWS, MAX_ROWS = 10, 1000
PAGE_BYTES = 4 << 20
"""About how much is copied at a time: rows differ a lot in size."""


class CopyProgress(msgspec.Struct, frozen=True):
    """How far a copy is: the number of rows done, out of a total, and the table."""

    step: str
    """`copy` or `verify`; or `wait` while something is running, with the number of jobs."""
    table: str
    done: int
    total: int


class CopyReport(msgspec.Struct, frozen=True):
    """The result of a copy."""

    tables: dict[str, int]
    """The number of rows in each table."""
    source: str
    target: str
    resumed: bool = False
    already_done: bool = False


class CopyPlan(msgspec.Struct, frozen=True):
    """What a copy would do."""

    tables: dict[str, int]
    source: str
    target: str
    running: int
    """How many jobs are running now, and would be waited for."""
    resumes: bool
    refused: str | None
    """Why the copy would be refused."""


Tell = Callable[[CopyProgress], None]


def _ignore_progress(progress: CopyProgress) -> None: ...


# What may be asked of two stores -----------------------------------------------------------------


def copy_store(
    source: Store,
    target: Store,
    clock: Clock,
    *,
    wait: float = WAIT_SECONDS,
    tell: Tell = _ignore_progress,
) -> CopyReport:
    """Move all of duly's data from one store to another, which must be empty.

    Waits up to `wait` seconds for running jobs; then CopyRefused is raised, and the source
    continues. Once the source is closed it stays closed if anything is raised: another call resumes
    where this one stopped, or `give_up_copy` reopens the source.
    """
    _prepare(source, target, clock)
    return _Copy(source, target, clock, tell).run(wait)


def plan_copy(source: Store, target: Store, clock: Clock) -> CopyPlan:
    """What `copy_store` would do now. Changes nothing."""
    _open(source, clock)
    end, mark = source.copy_end(), source.copy_end().mark()
    return CopyPlan(
        tables=end.counts(),
        source=source.address().where,
        target=target.address().where,
        running=end.busy().jobs,
        resumes=mark is not None and mark.stage is not Stage.MOVED,
        refused=_why_refused(end, target) or _why_moved(mark, target),
    )


def give_up_copy(source: Store, target: Store, clock: Clock) -> bool:
    """Reopen the source as it was, and empty the target. Return False if there was no copy."""
    _open(source, clock)
    end = source.copy_end()
    reopened = end.reopen()
    try:
        target.copy_end().discard(_id(end))
    except (NotMigrated, StoreMissing):
        pass
    except StoreUnavailable as error:
        log.warning("the target could not be emptied, and remains closed: %s", error)
    return reopened


def _open(store: Store, clock: Clock) -> None:
    """Open a store for a copy. It may be closed to other callers."""
    with suppress(StoreMoved):
        store.open(clock.now())


def _prepare(source: Store, target: Store, clock: Clock) -> None:
    _open(source, clock)
    _require_its_target(source.copy_end().mark(), target)
    target.migrate(clock.now())
    if _id(source.copy_end()) == _id(target.copy_end()):
        raise CopyRefused("source and target are the same store")


def _require_its_target(mark: Mark | None, target: Store) -> None:
    """A store that is closed for a copy can only be copied to the target of that copy."""
    if mark is None:
        return
    try:
        _id(target.copy_end())
    except (NotMigrated, StoreMissing):
        if mark.stage is Stage.MOVED:
            raise StoreMoved(mark.says("this store")) from None
        raise CopyRefused(mark.says("the source")) from None


def _why_refused(source: CopyEnd, target: Store) -> str | None:
    end = target.copy_end()
    try:
        mark = end.mark()
        if _id(end) == _id(source):
            return "source and target are the same store"
        if mark is None and any(end.counts().values()):
            return "the target already contains data"
        if mark is not None and mark.other != _id(source):
            return "the target is part of another copy"
    except (NotMigrated, StoreMissing):
        return None
    return None


def _why_moved(mark: Mark | None, target: Store) -> str | None:
    """A store that has moved cannot be copied to another target."""
    if mark is None or mark.stage is not Stage.MOVED:
        return None
    with suppress(NotMigrated, StoreMissing):
        if _id(target.copy_end()) == mark.other:
            return None
    return "the source was already moved to another store"


def _id(end: CopyEnd) -> str:
    return end.meta()["store_id"]


# One copy ----------------------------------------------------------------------------------------


class _Copy:
    """One call of copy_store."""

    def __init__(self, source: Store, target: Store, clock: Clock, tell: Tell) -> None:
        self._source = source
        self._from, self._to = source.copy_end(), target.copy_end()
        self._from_id, self._to_id = _id(self._from), _id(self._to)
        self._from_where, self._to_where = source.address().where, target.address().where
        self._clock = clock
        self._tell = tell
        self._done = 0
        self._total = 0

    def run(self, wait: float) -> CopyReport:
        mark = self._from.mark()
        if mark is not None and mark.stage == Stage.MOVED:
            return self._after_hand_over(mark)
        copy_id = self._id_of(mark)
        filling = self._to.receive(Mark(copy_id, Stage.FILLING, self._from_id, self._from_where))
        fault.point("copy.marked")
        self._close(copy_id, wait)
        fault.point("copy.closed")
        resumed = any(position.rows for position in filling.tables.values())
        tables = self._fill(filling)
        fault.point("copy.filled")
        self._verify(tables)
        fault.point("copy.verified")
        self._from.hand_over(copy_id)
        fault.point("copy.handed_over")
        self._open_target(copy_id)
        return self._report(tables, resumed=resumed)

    def _id_of(self, mark: Mark | None) -> str:
        """The id of the copy in progress, if it leads to the same target; otherwise a new one."""
        if mark is None:
            return new_id(self._clock.now())
        if mark.stage == Stage.FILLING or mark.other != self._to_id:
            raise CopyRefused(mark.says("the source"))
        return mark.copy_id

    def _after_hand_over(self, mark: Mark) -> CopyReport:
        """An earlier call closed the source permanently; the target may still have to be opened."""
        already_done = self._to.meta().get(COPIED) == mark.copy_id
        if not already_done:
            filling = self._to.mark()
            if filling is None or filling.copy_id != mark.copy_id:
                raise StoreMoved(mark.says("this store"))
            self._open_target(mark.copy_id)
        return self._report(self._from.counts(), resumed=True, already_done=already_done)

    def _open_target(self, copy_id: str) -> None:
        self._to.open_copy(copy_id, self._from.meta(), self._clock.now())
        fault.point("copy.opened")
        log.info("%s was moved to %s", self._from_where, self._to_where)

    def _report(
        self, tables: dict[str, int], *, resumed: bool, already_done: bool = False
    ) -> CopyReport:
        return CopyReport(tables, self._from_where, self._to_where, resumed, already_done)

    # Closing the source

    def _close(self, copy_id: str, wait: float) -> None:
        wanted = Mark(copy_id, Stage.DRAINING, self._to_id, self._to_where)
        if self._from.drain(wanted, self._clock.now()).stage == Stage.CLOSED:
            return
        fault.point("copy.drained")
        try:
            self._wait_until_closed(copy_id, wait)
        except BaseException:
            # Nothing was copied yet, so the source can simply continue.
            self._from.reopen()
            with suppress(StoreUnavailable):
                self._to.discard(self._from_id)
            raise

    def _wait_until_closed(self, copy_id: str, wait: float) -> None:
        give_up_at = self._clock.monotonic() + wait
        while busy := self._try_to_close(copy_id):
            self._tell(CopyProgress("wait", "", busy.jobs, busy.jobs))
            if self._clock.monotonic() >= give_up_at:
                raise CopyRefused(_still_running(busy, wait))
            self._rescue_the_dead()
            self._clock.wait(threading.Event(), LOOK_SECONDS)

    def _try_to_close(self, copy_id: str) -> BusyCounts:
        try:
            return self._from.close_if_idle(copy_id, self._clock.now())
        except StoreUnavailable as error:
            # Another transaction has been open for a long time.
            log.warning("the source cannot be closed yet: %s", error)
            return BusyCounts(0, 1)

    def _rescue_the_dead(self) -> None:
        """No worker that could do this may be running."""
        for worker_id in self._source.beats():
            if self._source.is_dead(worker_id):
                rescue(self._source, self._clock, worker_id, None)

    # Filling the target

    def _fill(self, filling: Mark) -> dict[str, int]:
        tables = self._from.counts()
        self._begin("copy", tables, sum(position.rows for position in filling.tables.values()))
        for table in KEYS:
            for page in self._pages(table, filling.tables.get(table, Position())):
                self._to.add(filling.copy_id, page)
                fault.point("copy.paged")
                self._advance("copy", table, len(page.rows))
        return tables

    def _pages(self, table: str, position: Position) -> Iterator[CopyPage]:
        types = _shared(table, self._from.types(table), self._to.types(table))
        columns = tuple(types)
        limit = FIRST_ROWS
        while not position.whole:
            limit = _fitting(self._from.sizes(table, types, position.after, limit), limit)
            rows = self._from.rows(table, types, position.after, limit)
            begins, position = position, _moved(table, columns, position, rows, limit)
            yield CopyPage(table, columns, rows, begins, position)
            limit = _next_limit(rows, limit)

    def _verify(self, tables: dict[str, int]) -> None:
        self._begin("verify", tables, 0)
        differ: list[str] = []
        for table in KEYS:
            sums = [self._sum(end, table) for end in (self._from, self._to)]
            if sums[0] != sums[1]:
                differ.append(table)
        if differ:
            raise CopyDiffers(differ)

    def _sum(self, end: CopyEnd, table: str) -> TableChecksum:
        types = compared(table, end.types(table))
        columns = tuple(types)
        total, position, limit = TableChecksum(), Position(), FIRST_ROWS
        while not position.whole:
            limit = _fitting(end.sizes(table, types, position.after, limit), limit)
            rows = end.rows(table, types, position.after, limit)
            total = total.add(rows)
            position = _moved(table, columns, position, rows, limit)
            limit = _next_limit(rows, limit)
            if end is self._to:
                self._advance("verify", table, len(rows))
        return total

    def _begin(self, step: str, tables: dict[str, int], done: int) -> None:
        self._done, self._total = done, sum(tables.values())
        self._advance(step, "", 0)

    def _advance(self, step: str, table: str, rows: int) -> None:
        self._done += rows
        self._tell(CopyProgress(step, table, self._done, self._total))


# Pages -------------------------------------------------------------------------------------------


def _shared(table: str, source: Types, target: Types) -> dict[str, str]:
    """The columns to copy, as the source has them."""
    if compared(table, source).keys() != compared(table, target).keys():
        raise StoreError(f"the stores have different columns in {table}; migrate both of them")
    return {column: kind for column, kind in source.items() if column in target}


def _moved(
    table: str, columns: tuple[str, ...], position: Position, rows: list[Row], limit: int
) -> Position:
    """Where the next page starts, after these rows."""
    whole = len(rows) < limit
    if not rows:
        return Position(position.rows, position.after, whole)
    after = tuple(rows[-1][columns.index(column)] for column in KEYS[table])
    return Position(position.rows + len(rows), after, whole)


def _fitting(sizes: list[int], limit: int) -> int:
    """As many of the next rows as fit into a page, but at least one: they may be far longer."""
    left = PAGE_BYTES
    for place, size in enumerate(sizes):
        left -= size
        if left < 0:
            return max(1, place)
    return limit


def _next_limit(rows: list[Row], limit: int) -> int:
    size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
    return max(1, min(limit * PAGE_BYTES // max(size, 1), limit * 4, MAX_ROWS))


def _still_running(busy: BusyCounts, wait: float) -> str:
    what = f"{busy.jobs} jobs are still running" if busy.jobs else "a write is still in progress"
    what = "1 job is still running" if busy.jobs == 1 else what
    return (
        f"{what} after {wait:g} s, so the source continues as before; wait longer (--wait), or "
        "stop the workers first"
    )
