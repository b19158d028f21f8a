"""Corrects schedules that were advanced under a clock that was ahead."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from duly.model.due import due_at, re_aimed
from duly.model.expect import Expectation, read_expect
from duly.model.schedule import Plan
from duly.store.expectations import CHECKED
from duly.store.schedules.audit import audit
from duly.store.schedules.calendars import calendars_of
from duly.store.schedules.due import KNOWS_ZONES
from duly.store.schedules.facts import TAKEN_SLOTS
from duly.store.schedules.rows import (
    of_schedules,
    overridden,
    override_text,
    schedule_of,
    understand,
)
from duly.store.schedules.zone_data import MOVE_TICK
from duly.store.statements import each

if TYPE_CHECKING:
    from duly.model.calendar import Calendar
    from duly.store.engine import Engine
    from duly.store.session import Session

# Schedules that were advanced or enabled at a time that is in the future: that clock was ahead, or
# this one is behind.
_AHEAD = """enabled AND parked_at IS NULL AND coalesce(remaining, 1) > 0 AND (awake_at > :now
    OR last_tick_at > :now AND EXISTS (SELECT 1 FROM @ticks t
        WHERE t.schedule_id = s.id AND t.tick_at > :now AND t.decided_at > :now))"""
AHEAD = each(
    sqlite=f"SELECT id FROM @schedules s WHERE {KNOWS_ZONES.sqlite} AND {_AHEAD}",
    postgres=f"SELECT id::text FROM @schedules s WHERE {KNOWS_ZONES.postgres} AND {_AHEAD}",
)
LOCK_AHEAD = of_schedules(
    "",
    f"WHERE s.id = ANY(:ids::uuid[]) AND {_AHEAD} ORDER BY s.id FOR UPDATE",
    sqlite_rest=f"WHERE s.id IN (SELECT value FROM json_each(:ids)) AND {_AHEAD} ORDER BY s.id",
)


log = logging.getLogger(__name__)

RE_AIMED_AT_ONCE = 100


def _find_ahead(session: Session, now: int, zone_data: str) -> list[str]:
    """The schedules that were decided or enabled later than now."""
    return [row[0] for row in session.run(AHEAD, {"now": now, "zone_data": zone_data})]


def re_aim(store: Engine, now: int, zone_data: str) -> int:
    """Correct schedules that were advanced by a clock ahead of this one. Return how many moved.

    They move back to their first future tick without a ledger row. Zoned ones are treated as in
    `tick`.
    """
    ids = store.read(lambda session: _find_ahead(session, now, zone_data))
    moved = 0
    for start in range(0, len(ids), RE_AIMED_AT_ONCE):
        page = ids[start : start + RE_AIMED_AT_ONCE]
        moved += store.write(partial(_re_aim_some, ids=page, now=now))
    return moved


def _re_aim_some(session: Session, ids: Sequence[str], now: int) -> int:
    """Move some of them to their first future tick without a ledger row. Return how many moved.

    The ledger does not change: ticks that were dispatched too early are not dispatched again.
    """
    rows = session.run(LOCK_AHEAD, {"ids": session.array(ids), "now": now})
    plans = [plan for row in rows if (plan := understand(schedule_of(row), {}))]
    calendars = calendars_of(session, plans)
    return sum(_re_aim_one(session, plan, now, calendars) for plan in plans)


def _re_aim_one(session: Session, plan: Plan, now: int, calendars: dict[str, Calendar]) -> bool:
    record = plan.record
    until = max(record.last_tick_at or now, record.filled_until or now)
    rows = session.run(TAKEN_SLOTS, {"id": plan.id, "since": now, "until": until})
    try:
        tick_at = re_aimed(plan, now, {row[0] for row in rows}, calendars)
    except Exception as error:  # a broken schedule must not stop the others
        log.error("the next tick of schedule %s cannot be computed: %s", plan.id, error)
        return False
    if tick_at is None or tick_at == record.next_tick_at:
        return False
    plan = overridden(plan, record.next_tick_at, tick_at)
    if plan.override is not None and plan.override.to is not None:
        # A time that the same clock set would keep it waiting for as long as that clock was ahead.
        plan = replace(plan, override=None)
    times = {"next_tick_at": tick_at, "due_at": due_at(plan, tick_at, calendars)}
    session.run(MOVE_TICK, times | {"override": override_text(plan), "id": plan.id})
    if record.expect is not None:
        _promise_from(session, replace(plan, record=replace(record, **times)), now, calendars)
    detail = {"from": record.next_tick_at, "to": tick_at}
    audit(session, "schedule.re_aim", f"schedule:{plan.id}", None, detail, now)
    return True


def _promise_from(session: Session, plan: Plan, now: int, calendars: dict[str, Calendar]) -> None:
    """Check its expectation from now on, as if it had just been enabled."""
    record = plan.record
    assert record.expect is not None
    first = Expectation(plan, read_expect(record.expect)).first_check(now, calendars)
    values = {"expect_at": first.check_at, "expect_tick": first.tick, "late": record.late}
    session.run(CHECKED, values | {"last_success_at": None, "id": plan.id})
