"""The health report: whether the database can be reached, and whether work is done in time.

The report never takes long, whatever the load: lags are looked up, and counts stop at a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from duly.core import Core
from duly.errors import DulyError, StoreError
from duly.model.measure import CAP, Depth, ScheduleCounts
from duly.store.base import Lane
from duly.store.table import Store

LATE_MS = 60_000
"""A lag above this means more than being busy."""


class QueueHealth(msgspec.Struct, frozen=True):
    """How far a queue is behind, and how many jobs wait in it."""

    name: str
    paused: bool
    lag_ms: int
    """How late the oldest job is that could start if the queue were not paused."""
    due: int
    """Counted up to 10,000, like the others."""
    later: int
    running: int
    held: int
    capped: bool
    """Whether a count reached its limit, so that there may be more."""


class HealthReport(msgspec.Struct, frozen=True):
    """The health of duly, in plain values."""

    database: bool
    """Whether the database answers."""
    schema: bool
    """Whether its tables are up to date with this code."""
    evaluator_lag_ms: int = 0
    """How late the most overdue schedule is."""
    worker_lag_ms: int = 0
    """How late the oldest job that could start is."""
    workers: int = 0
    """How many workers are alive, as far as this process can tell."""
    ticking: bool = True
    """Whether due schedules are processed: none is more than a minute late."""
    paused: bool = False
    """Whether the kill switch is engaged."""
    queues: tuple[QueueHealth, ...] = ()
    schedules: ScheduleCounts | None = None
    warnings: tuple[str, ...] = ()
    """Problems, in words."""

    @property
    def ready(self) -> bool:
        """Whether schedules and calls can be relied on."""
        return self.database and self.schema and self.ticking


def look(core: Core, *, depths: bool = True) -> HealthReport:
    """The health of duly; without queue depths, it takes only a few lookups."""
    try:
        store = core.ready()
        if store.pending_migrations():
            return HealthReport(True, False, warnings=("migrations are pending: run duly migrate",))
        return _report(store, core.clock.now(), depths)
    except StoreError as error:
        return HealthReport(
            False, False, ticking=False, warnings=(f"the database cannot be used: {error}",)
        )
    except DulyError as error:
        return HealthReport(True, False, warnings=(str(error),))


def _report(store: Store, now: int, depths: bool) -> HealthReport:
    due_at = store.oldest_due()
    lag = 0 if due_at is None else max(0, now - due_at)
    paused = store.kill_switch() is not None
    closed = {pause.name for pause in store.paused_queues()}
    if depths:
        queues = tuple(_queue(each, closed, now) for each in store.depths(now))
    else:
        queues = tuple(_lags(store.lanes(), closed, now))
    late = max((queue.lag_ms for queue in queues if not queue.paused and not paused), default=0)
    report = HealthReport(
        database=True,
        schema=True,
        evaluator_lag_ms=lag,
        worker_lag_ms=late,
        workers=sum(not store.is_dead(worker.id) for worker in store.workers()),
        ticking=lag <= LATE_MS,
        paused=paused,
        queues=queues,
        schedules=store.schedule_counts() if depths else None,
    )
    return msgspec.structs.replace(report, warnings=tuple(_warnings(report)))


def _queue(depth: Depth, closed: set[str], now: int) -> QueueHealth:
    return QueueHealth(
        name=depth.queue,
        paused=depth.queue in closed,
        lag_ms=0 if depth.due_since is None else now - depth.due_since,
        due=depth.due,
        later=depth.later,
        running=depth.running,
        held=depth.held,
        capped=depth.capped,
    )


def _lags(lanes: Iterable[Lane], closed: set[str], now: int) -> Iterator[QueueHealth]:
    first: dict[str, int] = {}
    for lane in lanes:
        first[lane.queue] = min(lane.run_at, first.get(lane.queue, lane.run_at))
    for name, run_at in sorted(first.items()):
        late = max(0, now - run_at)
        yield QueueHealth(name, name in closed, late, 0, 0, 0, 0, False)


def _warnings(report: HealthReport) -> Iterator[str]:
    if report.paused:
        yield "everything is paused"
    if not report.ticking:
        seconds = report.evaluator_lag_ms // 1000
        yield f"schedules have been overdue for {seconds} s; is a ticker running?"
    if report.worker_lag_ms > LATE_MS:
        yield f"jobs have been due for {report.worker_lag_ms // 1000} s; {_why_they_wait(report)}"
    for queue in report.queues:
        if queue.paused and queue.due:
            yield f"queue {queue.name!r} is paused with jobs waiting in it"
        if queue.due >= CAP:
            yield f"queue {queue.name!r} has {CAP:,} or more due jobs"
    if report.schedules is not None and report.schedules.parked:
        yield f"{report.schedules.parked:,} schedules are parked: they could not be processed"


def _why_they_wait(report: HealthReport) -> str:
    return "no worker is running" if report.workers == 0 else "the workers cannot keep up"
