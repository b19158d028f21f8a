"""Parks schedules that cannot be decided, and revives them once they can be."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from duly.model.due import due_at
from duly.model.schedule import ScheduleRecord
from duly.store.schedules.audit import audit
from duly.store.schedules.calendars import calendars_of
from duly.store.schedules.rows import (
    of_schedules,
    overridden,
    override_text,
    schedule_of,
    stood_at,
    understand,
)
from duly.store.statements import both, each

if TYPE_CHECKING:
    from duly.store.session import Session

# If it was changed in the meantime, the change may have fixed it.
PARK = both(
    """UPDATE @schedules SET parked_tick = coalesce(next_tick_at, parked_tick),
            next_tick_at = NULL, due_at = NULL, error = :error, parked_at = :now
        WHERE id = :id AND (due_at <= :now OR parked_at IS NOT NULL)"""
)
_PARKED = "parked_at IS NOT NULL AND enabled AND error LIKE 'UnknownFunction:%'"
# SQLite would otherwise look at every schedule, in the order of its functions or ids.
_AMONG_PARKED = "INDEXED BY duly_schedules_parked"
_MISSING = f"WHERE {_PARKED} LIMIT 1000"
MISSING_FUNCTIONS = each(
    sqlite=f"SELECT DISTINCT function FROM @schedules {_AMONG_PARKED} {_MISSING}",
    postgres=f"SELECT DISTINCT function FROM @schedules {_MISSING}",
)
LOCK_PARKED = of_schedules(
    "",
    f"""WHERE {_PARKED} AND function = ANY(:functions::text[]) ORDER BY s.id LIMIT 100
        FOR UPDATE SKIP LOCKED""",
    sqlite_rest=f"""{_AMONG_PARKED} WHERE {_PARKED}
        AND function IN (SELECT value FROM json_each(:functions)) ORDER BY s.id LIMIT 100""",
)
REVIVE = both(
    """UPDATE @schedules SET next_tick_at = :next_tick_at, due_at = :due_at,
        override = :override, error = NULL, parked_at = NULL, parked_tick = NULL WHERE id = :id"""
)


log = logging.getLogger(__name__)

REVIVED_AT_ONCE = 100
"""The LIMIT of LOCK_PARKED."""


def park(session: Session, schedule_id: str, error: str, now: int) -> None:
    """Park a schedule that cannot be processed, with the error."""
    log.error("schedule %s is parked: %s", schedule_id, error, extra={"schedule": schedule_id})
    session.run(PARK, {"id": schedule_id, "error": error, "now": now})


def missing_functions(session: Session) -> list[str]:
    """The functions whose absence has parked schedules."""
    return [row[0] for row in session.run(MISSING_FUNCTIONS)]


def revive(session: Session, functions: Iterable[str], now: int) -> int:
    """Resume up to 100 schedules that were parked for lack of these functions. Return how many."""
    names = session.array(functions)
    found = [schedule_of(row) for row in session.run(LOCK_PARKED, {"functions": names})]
    for record in found:
        revive_one(session, record, now)
    return len(found)


def revive_one(session: Session, record: ScheduleRecord, now: int, *, anew: bool = False) -> None:
    """Let a schedule resume at the tick at which it stopped, or with that tick computed again.

    Its policies decide how many of the ticks since then are caught up.
    """
    parked: dict[str, str] = {}
    plan = understand(record, parked)
    if plan is None:
        park(session, record.id, parked[record.id], now)
        return
    calendars = calendars_of(session, [plan])
    tick_at = stood_at(plan, calendars) if anew else record.parked_tick
    plan = overridden(plan, record.parked_tick, tick_at)
    due = None if tick_at is None else due_at(plan, tick_at, calendars)
    times = {"next_tick_at": tick_at, "due_at": due, "override": override_text(plan)}
    session.run(REVIVE, times | {"id": record.id})
    log.info("schedule %s is no longer parked", record.id, extra={"schedule": record.id})
    audit(session, "schedule.revive", f"schedule:{record.id}", None, {"was": record.error}, now)
