"""Figures for the dashboard, counted up to a limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from duly.model.history import Day, Run
from duly.model.measure import CAP
from duly.store.schedules.facts import first_id_at
from duly.store.statements import DAY_MS, Statement, both, each

if TYPE_CHECKING:
    from duly.store.session import Session

# Schedules ---------------------------------------------------------------------------------------


def _counted(table: str, where: str, order: str) -> str:
    return f"""(SELECT count(*) FROM
        (SELECT 1 FROM {table} WHERE {where} ORDER BY {order} LIMIT {CAP}) found)"""


# A schedule with a missed expectation is checked again, and so has a time for that.
_LATE = f"""(SELECT count(*) FROM (SELECT late FROM @schedules WHERE expect_at IS NOT NULL
    ORDER BY expect_at LIMIT {CAP}) promised WHERE late IS NOT NULL)"""


def _tally(owner: str) -> str:
    due = "due_at IS NOT NULL AND due_at"
    return f"""SELECT
        {_counted("@schedules", f"{due} >= :now AND due_at < :soon{owner}", "due_at, id")},
        {_counted("@schedules", f"{due} < :overdue{owner}", "due_at, id")},
        {_LATE.replace("expect_at IS NOT NULL", f"expect_at IS NOT NULL{owner}")},
        {_counted("@schedules", f"NOT enabled{owner}", "owner, id")},
        {_counted("@jobs", f"worker_id IS NOT NULL{owner}", "worker_id")}"""


TALLY = both(_tally(""))
TALLY_OF_OWNER = both(_tally(" AND owner = :owner"))

# The newest runs of each of some schedules.
_RUN = "state, started_at, completed_at"
RECENT_RUNS = each(
    sqlite=f"""SELECT s.value, h.id, {_RUN} FROM json_each(:ids) s CROSS JOIN @history h
        WHERE h.id IN (SELECT id FROM @history WHERE trigger = 'schedule' AND actor = s.value
            ORDER BY actor, id DESC LIMIT :limit)
        ORDER BY s.key, h.id DESC""",
    postgres=f"""SELECT s.id, h.id::text, {_RUN} FROM unnest(:ids::text[]) AS s (id)
        CROSS JOIN LATERAL (SELECT id, {_RUN} FROM @history
            WHERE trigger = 'schedule' AND actor = s.id ORDER BY @history.id DESC LIMIT :limit) h
        ORDER BY s.id, h.id DESC""",
)

# The newest succeeded and failed runs of each of some functions. As a range, because for equality
# PostgreSQL would follow the ids, through the runs of all others.
_FIRST, _LAST = str(UUID(int=0)), str(UUID(int=2**128 - 1))
FUNCTION_RUNS = each(
    sqlite="""SELECT f.value, h.id, h.state, started_at, completed_at FROM json_each(:names) f
        CROSS JOIN (SELECT 'succeeded' AS state UNION ALL SELECT 'failed') s
        CROSS JOIN @history h
        WHERE h.id IN (SELECT id FROM @history WHERE function = f.value AND state = s.state
            ORDER BY id DESC LIMIT :limit)
        ORDER BY f.key, h.id DESC""",
    postgres=f"""SELECT f.name, h.id::text, h.state, started_at, completed_at
        FROM unnest(:names::text[]) AS f (name)
        CROSS JOIN (VALUES ('succeeded'), ('failed')) AS s (state)
        CROSS JOIN LATERAL (SELECT id, {_RUN} FROM @history
            WHERE (function, state, @history.id) >= (f.name, s.state, '{_FIRST}'::uuid)
                AND (function, state, @history.id) <= (f.name, s.state, '{_LAST}'::uuid)
            ORDER BY function DESC, state DESC, @history.id DESC LIMIT :limit) h
        ORDER BY f.name, h.id DESC""",
)

# What the ledger and the history still hold for a schedule, by day (UTC) of the tick.
_SLOTS = " UNION ALL ".join(
    f"""SELECT * FROM (SELECT tick_at, outcome, count FROM @ticks
        WHERE schedule_id = :id AND kind = '{kind}' ORDER BY tick_at DESC LIMIT {CAP}) {kind}"""
    for kind in ("slot", "manual", "missed")
)
LEDGER_DAYS = both(
    f"""SELECT tick_at / {DAY_MS}, outcome, sum(coalesce(count, 1)) FROM ({_SLOTS}) recent
        GROUP BY 1, 2"""
)
HISTORY_DAYS = both(
    f"""SELECT scheduled_at / {DAY_MS}, state, count(*) FROM (SELECT scheduled_at, state
        FROM @history WHERE trigger = 'schedule' AND actor = :id
        ORDER BY @history.id DESC LIMIT {CAP}) recent
        GROUP BY 1, 2"""
)

# Jobs --------------------------------------------------------------------------------------------


def _throughput(where: str) -> Statement:
    """How many of the newest jobs ended in each state and time step."""
    return both(
        f"""SELECT completed_at / :step, state, count(*) FROM (SELECT completed_at, state
            FROM @history WHERE {where} ORDER BY @history.id DESC LIMIT {CAP}) recent
            GROUP BY 1, 2"""
    )


THROUGHPUT = each(
    sqlite=_throughput("id >= :since_id").sqlite,
    postgres=_throughput("id >= :since_id::uuid").postgres,
)
THROUGHPUT_OF_OWNER = each(
    sqlite=_throughput("owner = :owner AND id >= :since_id").sqlite,
    postgres=_throughput("owner = :owner AND id >= :since_id::uuid").postgres,
)
# By function, because that is the order of the index.
FAILED_SINCE = each(
    sqlite=f"""SELECT count(*) FROM (SELECT 1 FROM @functions f CROSS JOIN @history h
        WHERE h.function = f.name AND h.state = 'failed' AND h.id >= :since_id
        LIMIT {CAP}) found""",
    postgres=f"""SELECT count(*) FROM (SELECT 1 FROM @functions f CROSS JOIN LATERAL
        (SELECT 1 FROM @history WHERE function = f.name AND state = 'failed'
            AND id >= :since_id::uuid LIMIT {CAP}) failed LIMIT {CAP}) found""",
)
_FAILED_OF_OWNER = f"""SELECT count(*) FROM (SELECT state FROM @history
        WHERE owner = :owner AND id >= :since_id@type ORDER BY @history.id DESC LIMIT {CAP}) recent
        WHERE state = 'failed'"""
FAILED_SINCE_OF_OWNER = each(
    sqlite=_FAILED_OF_OWNER.replace("@type", ""),
    postgres=_FAILED_OF_OWNER.replace("@type", "::uuid"),
)


HOUR_MS = 3_600_000


class Tally(NamedTuple):
    """Counts that operators look for, each up to 10,000."""

    due_soon: int
    """Schedules that are due within the hour."""
    overdue: int
    """Schedules that are long overdue."""
    late: int
    """Schedules that have missed their expectation."""
    disabled: int
    """Schedules that are disabled."""
    running: int
    failed: int
    """Jobs stored within the last day that have failed."""


class EndedCount(NamedTuple):
    """How many jobs have ended in one state within one time step."""

    at: int
    state: str
    jobs: int


def tally(session: Session, now: int, overdue: int, day: int, owner: str | None) -> Tally:
    """Counts that operators look for; of every owner if `owner` is None.

    `overdue`: schedules that were due before it count as overdue; `day`: failed jobs are counted
    from then on.
    """
    where: dict[str, Any] = {"now": now, "soon": now + HOUR_MS, "overdue": overdue}
    since: dict[str, Any] = {"since_id": first_id_at(day)}
    if owner is None:
        counts = session.run(TALLY, where)[0]
        failed = session.run(FAILED_SINCE, since)
    else:
        counts = session.run(TALLY_OF_OWNER, where | {"owner": owner})[0]
        failed = session.run(FAILED_SINCE_OF_OWNER, since | {"owner": owner})
    due, overdue, late, disabled, running = counts
    return Tally(due, overdue, late, disabled, running, failed[0][0])


def recent_runs(
    session: Session, schedule_ids: Sequence[str], limit: int
) -> Mapping[str, list[Run]]:
    """The newest finished jobs of each of these schedules, newest first."""
    found: dict[str, list[Run]] = defaultdict(list)
    where = {"ids": session.array(schedule_ids), "limit": limit}
    for schedule_id, *run in session.run(RECENT_RUNS, where):
        found[schedule_id].append(Run(*run))
    return found


def function_runs(
    session: Session, functions: Sequence[str], limit: int
) -> Mapping[str, list[Run]]:
    """The newest jobs of each of these functions that succeeded or failed, newest first."""
    found: dict[str, list[Run]] = defaultdict(list)
    where = {"names": session.array(functions), "limit": limit}
    for function, *run in session.run(FUNCTION_RUNS, where):
        found[function].append(Run(*run))
    # There may be this many with either outcome: beyond the limit those of one are incomplete.
    return {function: runs[:limit] for function, runs in found.items()}


def throughput(session: Session, since: int, step: int, owner: str | None) -> list[EndedCount]:
    """How many of the newest 10,000 jobs stored since then ended in each state and time step."""
    where: dict[str, Any] = {"since_id": first_id_at(since), "step": step}
    if owner is None:
        rows = session.run(THROUGHPUT, where)
    else:
        rows = session.run(THROUGHPUT_OF_OWNER, where | {"owner": owner})
    return [EndedCount(slot * step, state, count) for slot, state, count in rows]


def ledger_days(session: Session, schedule_id: str) -> list[Day]:
    """The same for the ticks and jobs that still exist: the newest 10,000 of each kind."""
    days: dict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(Day._fields[1:], 0))
    for statement in (LEDGER_DAYS, HISTORY_DAYS):
        for day, what, count in session.run(statement, {"id": schedule_id}):
            days[day][what] = int(count)
    return [Day(day, **counts) for day, counts in sorted(days.items())]
