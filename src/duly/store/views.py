"""What the dashboard shows at one glance: figures that are counted up to a limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from duly.store import view_statements as sql
from duly.store.schedules.facts import first_id_at
from duly.store.schedules.retention import Day

if TYPE_CHECKING:
    from duly.store.session import Session

HOUR_MS = 3_600_000


class Tally(NamedTuple):
    """How many there are of what operators look for, each counted up to 10,000."""

    due_soon: int
    """Schedules that are due within the hour."""
    overdue: int
    """Schedules that should have been ticked long ago."""
    late: int
    """Schedules that have broken a promise."""
    disabled: int
    """Schedules that somebody has paused."""
    running: int
    failed: int
    """Jobs that were stored in the last day and have failed."""


class Run(NamedTuple):
    """One finished job of a schedule."""

    job_id: str
    state: str
    started_at: int | None
    completed_at: int


class Ended(NamedTuple):
    """How many jobs have ended in one state within one step of time."""

    at: int
    state: str
    jobs: int


def tally(session: Session, now: int, overdue: int, day: int, owner: str | None) -> Tally:
    """How many there are of what operators look for; of all owners if it is None.

    `overdue`: schedules that were due before it count as such; `day`: since when failed jobs
    are counted.
    """
    where: dict[str, Any] = {"now": now, "soon": now + HOUR_MS, "overdue": overdue}
    since: dict[str, Any] = {"since_id": first_id_at(day)}
    if owner is None:
        counts = session.run(sql.TALLY, where)[0]
        failed = session.run(sql.FAILED_SINCE, since)
    else:
        counts = session.run(sql.TALLY_OF_OWNER, where | {"owner": owner})[0]
        failed = session.run(sql.FAILED_SINCE_OF_OWNER, since | {"owner": owner})
    due, overdue, late, disabled, running = counts
    return Tally(due, overdue, late, disabled, running, failed[0][0])


def recent_runs(
    session: Session, schedule_ids: Sequence[str], limit: int
) -> Mapping[str, list[Run]]:
    """The newest finished jobs of each of these schedules, newest first."""
    found: dict[str, list[Run]] = defaultdict(list)
    where = {"ids": session.array(schedule_ids), "limit": limit}
    for schedule_id, *run in session.run(sql.RECENT_RUNS, where):
        found[schedule_id].append(Run(*run))
    return found


def function_runs(
    session: Session, functions: Sequence[str], limit: int
) -> Mapping[str, list[Run]]:
    """The newest jobs of each of these functions that succeeded or failed, newest first."""
    found: dict[str, list[Run]] = defaultdict(list)
    where = {"names": session.array(functions), "limit": limit}
    for function, *run in session.run(sql.FUNCTION_RUNS, where):
        found[function].append(Run(*run))
    # Of both outcomes there may be so many: beyond the limit those of one are not all known.
    return {function: runs[:limit] for function, runs in found.items()}


def throughput(session: Session, since: int, step: int, owner: str | None) -> list[Ended]:
    """How many jobs have ended in which step of time, and how: of the newest 10,000 that were
    stored since then."""
    where: dict[str, Any] = {"since_id": first_id_at(since), "step": step}
    if owner is None:
        rows = session.run(sql.THROUGHPUT, where)
    else:
        rows = session.run(sql.THROUGHPUT_OF_OWNER, where | {"owner": owner})
    return [Ended(slot * step, state, count) for slot, state, count in rows]


def ledger_days(session: Session, schedule_id: str) -> list[Day]:
    """The same of the ticks and jobs that are still there: of the newest 10,000 of a kind."""
    days: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(Day._fields[1:], 0))
    for statement in (sql.LEDGER_DAYS, sql.HISTORY_DAYS):
        for day, what, count in session.run(statement, {"id": schedule_id}):
            days[day][what] = int(count)
    return [Day(day, **counts) for day, counts in sorted(days.items())]
