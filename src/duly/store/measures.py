"""Reads and writes measures: queue depths and counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from duly.model.measure import CAP, Count, Depth, ScheduleCounts
from duly.store.statements import both, each

if TYPE_CHECKING:
    from duly.store.session import Session

OLDEST_DUE = both("SELECT due_at FROM @schedules WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1")


def _in_lane(when: str) -> str:
    # In index order, because a plan must not read the table for it.
    return f"""(SELECT count(*) FROM (SELECT 1 FROM @jobs
        WHERE state = 'pending' AND hold IS NULL
            AND queue = :queue AND priority = :priority AND {when}
        ORDER BY run_at, id LIMIT :limit) lane)"""


COUNT_LANE = both(f"SELECT {_in_lane('run_at <= :now')}, {_in_lane('run_at > :now')}")
RUNNING_BY_QUEUE = both(
    f"""SELECT queue, count(*) FROM (SELECT queue FROM @jobs WHERE worker_id IS NOT NULL
        ORDER BY worker_id LIMIT {CAP}) running GROUP BY queue"""
)
HELD_BY_QUEUE = both(
    f"""SELECT queue, count(*) FROM (SELECT queue FROM @jobs WHERE hold IS NOT NULL
        ORDER BY hold, function, id LIMIT {CAP}) held GROUP BY queue"""
)

_NEXT_FUNCTION = "SELECT function FROM @jobs WHERE token % 2 = 0{} ORDER BY function LIMIT 1"
# From each name to the next one along the index, however many jobs have the same name.
WAITING_FUNCTIONS = both(
    f"""WITH RECURSIVE names (function) AS (
            SELECT ({_NEXT_FUNCTION.format("")})
            UNION ALL
            SELECT ({_NEXT_FUNCTION.format(" AND function > names.function")})
            FROM names WHERE names.function IS NOT NULL)
        SELECT function FROM names WHERE function IS NOT NULL LIMIT :limit"""
)


def _schedules(where: str, order: str) -> str:
    return f"""(SELECT count(*) FROM
        (SELECT 1 FROM @schedules {where} ORDER BY {order} LIMIT {CAP}) found)"""


COUNT_SCHEDULES = both(
    f"""SELECT {_schedules("WHERE due_at IS NOT NULL", "due_at, id")},
        {_schedules("WHERE parked_at IS NOT NULL", "parked_at")}, {_schedules("", "id")}"""
)

# Sorted, so that two processes that add to the same counts do not deadlock.
ADD_COUNTS = each(
    sqlite="""INSERT INTO @counters (name, labels, value)
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
            json_extract(value, '$[2]')
        FROM json_each(:rows) WHERE true
        ON CONFLICT (name, labels) DO UPDATE SET value = value + excluded.value""",
    postgres="""INSERT INTO @counters AS c (name, labels, value)
        SELECT * FROM unnest(:names::text[], :labels::text[], :counts::int8[])
            AS f (name, labels, value)
        ORDER BY f.name COLLATE "C", f.labels COLLATE "C"
        ON CONFLICT (name, labels) DO UPDATE SET value = c.value + excluded.value""",
)
READ_COUNTS = both("SELECT name, labels, value FROM @counters ORDER BY name, labels LIMIT 100000")


MAX_QUEUES = 100
"""How many queues have their jobs counted: those that are furthest behind. For the others only the
delay is reported."""

MAX_FUNCTIONS = 1_000


def depths(session: Session, now: int) -> list[Depth]:
    """How many jobs are waiting and running, by queue, counted up to a limit."""
    lanes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for queue, priority, run_at, *_ in session.lanes():
        lanes[queue].append((priority, run_at))
    running: dict[str, int] = dict(session.run(RUNNING_BY_QUEUE))
    held: dict[str, int] = dict(session.run(HELD_BY_QUEUE))
    since = {queue: min(run_at for _, run_at in its) for queue, its in lanes.items()}
    counted = sorted(since, key=lambda queue: (since[queue], queue))[:MAX_QUEUES]
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
        ((more_due, more_later),) = session.run(COUNT_LANE, where | {"limit": CAP})
        due, later = min(CAP, due + more_due), min(CAP, later + more_later)
        if due == later == CAP:
            break
    return due, later


def schedule_counts(session: Session) -> ScheduleCounts:
    """How many schedules there are, counted up to a limit."""
    ((active, parked, every),) = session.run(COUNT_SCHEDULES)
    return ScheduleCounts(active, parked, max(0, every - active - parked))


def waiting_functions(session: Session) -> list[str]:
    """The functions of unfinished jobs that are not running, up to 1,000 of them."""
    return [name for (name,) in session.run(WAITING_FUNCTIONS, {"limit": MAX_FUNCTIONS})]


def oldest_due(session: Session) -> int | None:
    """The earliest due time of any schedule, past or future, whichever ticker may process it."""
    rows = session.run(OLDEST_DUE)
    return rows[0][0] if rows else None


def add_counts(session: Session, counts: Sequence[Count]) -> None:
    """Add to the counts that all processes share."""
    if not counts:
        return
    rows = [msgspec.structs.astuple(count) for count in counts]
    if session.dialect == "sqlite":
        session.run(ADD_COUNTS, {"rows": msgspec.json.encode(rows).decode()})
        return
    names, labels, values = (list(column) for column in zip(*rows, strict=True))
    session.run(ADD_COUNTS, {"names": names, "labels": labels, "counts": values})


def counts(session: Session) -> list[Count]:
    """The counts of all processes so far."""
    return [Count(*row) for row in session.run(READ_COUNTS)]
