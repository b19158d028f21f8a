"""What is measured in the store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from duly.model.measure import MOST, Count, Depth, ScheduleCounts
from duly.store import measure_statements as sql

if TYPE_CHECKING:
    from duly.store.session import Session

MOST_QUEUES = 100
"""The jobs of so many queues are counted, of those that are most behind; of others only how late
they are is said."""

MOST_FUNCTIONS = 1_000


def depths(session: Session, now: int) -> list[Depth]:
    """How many jobs wait and run, by queue, counted up to a limit."""
    lanes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for queue, priority, run_at, *_ in session.lanes():
        lanes[queue].append((priority, run_at))
    running: dict[str, int] = dict(session.run(sql.RUNNING_BY_QUEUE))
    held: dict[str, int] = dict(session.run(sql.HELD_BY_QUEUE))
    since = {queue: min(run_at for _, run_at in its) for queue, its in lanes.items()}
    counted = sorted(since, key=lambda queue: (since[queue], queue))[:MOST_QUEUES]
    waiting = {queue: _count(session, queue, lanes[queue], now) for queue in counted}
    found: list[Depth] = []
    for queue in sorted({*since, *running, *held}):
        due, later = waiting.get(queue, (0, 0))
        first = since.get(queue)
        late = first if first is not None and first <= now else None
        found.append(Depth(queue, due, later, running.get(queue, 0), held.get(queue, 0), late))
    return found


def _count(
    session: Session, queue: str, lanes: Sequence[tuple[int, int]], now: int
) -> tuple[int, int]:
    due = later = 0
    for priority, _ in lanes:
        where = {"queue": queue, "priority": priority, "now": now}
        ((more_due, more_later),) = session.run(sql.COUNT_LANE, where | {"limit": MOST})
        due, later = min(MOST, due + more_due), min(MOST, later + more_later)
        if due == later == MOST:
            break
    return due, later


def schedule_counts(session: Session) -> ScheduleCounts:
    """How many schedules there are, counted up to a limit."""
    ((active, parked, every),) = session.run(sql.COUNT_SCHEDULES)
    return ScheduleCounts(active, parked, max(0, every - active - parked))


def waiting_functions(session: Session) -> list[str]:
    """The functions that unfinished jobs call which do not run, up to 1,000 of them."""
    return [name for (name,) in session.run(sql.WAITING_FUNCTIONS, {"limit": MOST_FUNCTIONS})]


def oldest_due(session: Session) -> int | None:
    """When the schedule that is due first is, or was, due, whoever may tick it."""
    rows = session.run(sql.OLDEST_DUE)
    return rows[0][0] if rows else None


def add_counts(session: Session, counts: Sequence[Count]) -> None:
    """Add to the counts that all processes share."""
    if not counts:
        return
    rows = [msgspec.structs.astuple(count) for count in counts]
    if session.dialect == "sqlite":
        session.run(sql.ADD_COUNTS, {"rows": msgspec.json.encode(rows).decode()})
        return
    names, labels, values = (list(column) for column in zip(*rows, strict=True))
    session.run(sql.ADD_COUNTS, {"names": names, "labels": labels, "counts": values})


def counts(session: Session) -> list[Count]:
    """What all processes have counted so far."""
    return [Count(*row) for row in session.run(sql.READ_COUNTS)]
