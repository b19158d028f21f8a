"""Gathers the facts by which ticks are decided, for many schedules at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duly.model.condition import Stats, prior_run_result
from duly.model.decide import Facts, InFlight, Prior, Signal, needs_prior
from duly.model.schedule import Plan
from duly.model.schedule_options import DAY_MS, Overlap
from duly.store.functions import statuses
from duly.store.schedules.calendars import calendars_of
from duly.store.schedules.kill_switch import KILL_SWITCH
from duly.store.schedules.rows import later
from duly.store.statements import both, each
from duly.store.steps import Row

if TYPE_CHECKING:
    from duly.store.session import Session


def _one_job(state: str, schedule: str, column: str) -> str:
    return f"""(SELECT {column} FROM @jobs WHERE trigger = 'schedule' AND actor = {schedule}
        AND state = '{state}' ORDER BY actor, state, @jobs.id LIMIT 1)"""


IN_FLIGHT = each(
    sqlite=f"""SELECT value, {_one_job("pending", "value", "id")},
        {_one_job("running", "value", "id")} FROM json_each(:ids)""",
    postgres=f"""SELECT s.id, {_one_job("pending", "s.id", "id::text")},
        {_one_job("running", "s.id", "id::text")} FROM unnest(:ids::text[]) AS s (id)""",
)
# Dispatches within the window of a budget: never more than the budget allows.
DISPATCHED = each(
    sqlite="""SELECT t.schedule_id, t.tick_at FROM json_each(:rows) s
        JOIN @ticks t ON t.schedule_id = json_extract(s.value, '$[0]')
            AND t.tick_at > json_extract(s.value, '$[1]')
        WHERE t.outcome = 'dispatched' AND t.kind IN ('slot', 'manual')""",
    postgres="""SELECT t.schedule_id::text, t.tick_at
        FROM unnest(:ids::uuid[], :since::int8[]) AS s (id, since)
        CROSS JOIN LATERAL (SELECT schedule_id, tick_at FROM @ticks
            WHERE schedule_id = s.id AND kind IN ('slot', 'manual') AND tick_at > s.since
                AND outcome = 'dispatched') t""",
)
COSTS = each(
    sqlite="""SELECT c.schedule_id, c.tick_at, c.amount FROM json_each(:rows) s
        JOIN @costs c ON c.schedule_id = json_extract(s.value, '$[0]')
            AND c.tick_at > json_extract(s.value, '$[1]')""",
    postgres="""SELECT c.schedule_id::text, c.tick_at, c.amount
        FROM unnest(:ids::uuid[], :since::int8[]) AS s (id, since)
        CROSS JOIN LATERAL (SELECT schedule_id, tick_at, amount FROM @costs
            WHERE schedule_id = s.id AND tick_at > s.since) c""",
)
TAKEN_SLOTS = both(
    """SELECT tick_at FROM @ticks WHERE schedule_id = :id AND kind = 'slot'
        AND tick_at BETWEEN :since AND :until"""
)
# Days whose ledger rows are gone: whether a slot was dispatched on them is unknown.
FORGOTTEN = both("SELECT max(day) FROM @days WHERE schedule_id = :id AND dispatched + skipped > 0")
COUNTED = 10_000


def _newest(table: str, function: str) -> str:
    return " UNION ALL ".join(
        f"""SELECT * FROM (SELECT id, state, result FROM {table}
            WHERE function = {function} AND state = '{state}' ORDER BY {table}.id DESC LIMIT 1)
            {state}"""
        for state in ("succeeded", "failed", "canceled")
    )


def _latest(function: str) -> str:
    """The most recently created finished job of a function; retention keeps it forever."""
    return f"""SELECT state, result, newest.id FROM ({_newest("@history", function)}
        UNION ALL {_newest("@kept", function)}) newest ORDER BY id DESC LIMIT 1"""


LATEST_FINISHED = both(_latest(":function"))
# If a function was renamed, its jobs may be stored under each of its names.
NAMES_OF = both(
    """SELECT name FROM @functions WHERE name <> :function AND (alias_of = :function
        OR coalesce(alias_of, name) = (SELECT alias_of FROM @functions WHERE name = :function))"""
)


def _count(table: str, where: str) -> str:
    return f"""(SELECT count(*) FROM (SELECT 1 FROM {table} WHERE function = :function
        AND created_at > :since AND {where} LIMIT {COUNTED}) counted)"""


# An id contains the time at which its job was created, or a slightly later one: it bounds the
# search, and the creation time decides. Waiting jobs are read in index order, because PostgreSQL
# might otherwise look all of them up first; the few running jobs are found by their workers,
# because SQLite might otherwise read all waiting ones.
LAST_DAY = both(
    f"""SELECT {_count("@history", "state = 'succeeded' AND id >= :since_id")},
        {_count("@history", "state = 'failed' AND id >= :since_id")},
        {_count("@history", "state = 'canceled' AND id >= :since_id")},
        {_count("@jobs", "token % 2 = 0 AND id >= :since_id ORDER BY id")},
        {_count("@jobs", "worker_id IS NOT NULL")}"""
)


Range = tuple[int, int]
"""Two instants, both included."""


def gather(
    session: Session,
    plans: Sequence[Plan],
    now: int,
    signals: Mapping[str, Signal] | None = None,
    slots: Range | None = None,
    ancestors: frozenset[str] = frozenset(),
) -> Facts:
    """Gather the facts by which ticks of these schedules would be decided now."""
    killed = session.run(KILL_SWITCH)
    taken = _slots(session, plans, slots)
    return Facts(
        killed=(killed[0][0] or "") if killed else None,
        statuses=statuses(session),
        in_flight=_in_flight(session, plans),
        calendars=calendars_of(session, plans),
        priors=_priors(session, plans, now),
        signals=signals or {},
        dispatched=_dispatched(session, plans, now),
        costs=_costs(session, plans, now),
        slots=taken,
        # After the slots: ticks that retention removes in between are then seen by at least one of
        # the two.
        forgotten={} if slots is None else _forgotten(session, plans),
        ancestors=ancestors,
    )


def _in_flight(session: Session, plans: Iterable[Plan]) -> dict[str, InFlight]:
    ids = [p.id for p in plans if p.policies.overlap in (Overlap.SKIP, Overlap.BUFFER_ONE)]
    if not ids:
        return {}
    rows = session.run(IN_FLIGHT, {"ids": session.array(ids)})
    return {
        schedule_id: InFlight(pending, running)
        for schedule_id, pending, running in rows
        if pending or running
    }


def _priors(session: Session, plans: Iterable[Plan], now: int) -> dict[str, Prior]:
    functions = {plan.record.function for plan in plans if needs_prior(plan)}
    return {function: prior_of(session, function, now) for function in sorted(functions)}


def prior_of(session: Session, function: str, now: int) -> Prior:
    """The latest finished job of a function, and counts of its jobs of the last 24 hours.

    This includes jobs that are stored under another name of the function.
    """
    since = now - DAY_MS
    day = {"since": since, "since_id": first_id_at(since)}
    latest: dict[str, tuple[Any, Any]] = {}
    succeeded = failed = total = 0
    aliases = session.run(NAMES_OF, {"function": function})
    for name in (function, *(name for (name,) in aliases)):
        for state, result, job_id in session.run(LATEST_FINISHED, {"function": name}):
            latest[str(job_id)] = state, result
        [(ok, bad, *others)] = session.run(LAST_DAY, day | {"function": name})
        succeeded, failed, total = succeeded + ok, failed + bad, total + ok + bad + sum(others)
    stats = Stats(*(min(count, COUNTED) for count in (succeeded, failed, total)))
    if not latest:
        return Prior(None, stats)
    return Prior(prior_run_result(*latest[max(latest)]), stats)


def first_id_at(instant: int) -> str:
    """The smallest id that a job created at this instant can have."""
    text = f"{max(0, instant):012x}"
    return f"{text[:8]}-{text[8:12]}-0000-0000-000000000000"


def created_by(job_id: str) -> int:
    """When a job with this id was created, or slightly later."""
    return int(job_id[:8] + job_id[9:13], 16)


def _windows(plans: Iterable[Plan], now: int, *, cost: bool) -> list[tuple[str, int]]:
    """The start of the window of each schedule with a budget, for any tick that may be decided."""
    return [
        (plan.id, min(now, plan.record.next_tick_at or now) - budget.window_ms)
        for plan in plans
        if (budget := plan.policies.budget) is not None and (budget.cost is not None) == cost
    ]


def _dispatched(session: Session, plans: Iterable[Plan], now: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for schedule_id, tick_at in _in_windows(session, DISPATCHED, _windows(plans, now, cost=False)):
        found.setdefault(schedule_id, []).append(tick_at)
    return found


def _costs(session: Session, plans: Iterable[Plan], now: int) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    rows = _in_windows(session, COSTS, _windows(plans, now, cost=True))
    for schedule_id, tick_at, amount in rows:
        found.setdefault(schedule_id, []).append((tick_at, amount))
    return found


def _in_windows(session: Session, statement: Any, windows: Sequence[tuple[str, int]]) -> list[Row]:
    if not windows:
        return []
    if session.dialect == "sqlite":
        return session.run(statement, {"rows": msgspec.json.encode(windows).decode()})
    ids, since = zip(*windows, strict=True)
    return session.run(statement, {"ids": list(ids), "since": list(since)})


def _slots(
    session: Session, plans: Iterable[Plan], wanted: Range | None
) -> dict[str, frozenset[int]]:
    """Taken slots in a range; without one, slots that were taken before their time.

    A backfill took those, or the trigger itself before a clock was set back.
    """
    found: dict[str, frozenset[int]] = {}
    for plan in plans:
        record = plan.record
        since, until = wanted or (
            record.next_tick_at,
            later(record.filled_until, record.last_tick_at),
        )
        if since is not None and until is not None and since <= until:
            rows = session.run(TAKEN_SLOTS, {"id": plan.id, "since": since, "until": until})
            found[plan.id] = frozenset(row[0] for row in rows)
    return found


def _forgotten(session: Session, plans: Iterable[Plan]) -> dict[str, int]:
    found: dict[str, int] = {}
    for plan in plans:
        [(day,)] = session.run(FORGOTTEN, {"id": plan.id})
        if day is not None:
            found[plan.id] = (day + 1) * DAY_MS
    return found
