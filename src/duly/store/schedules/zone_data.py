"""Newer time zone data: which tickers may decide zoned schedules, and their ticks recomputed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from duly.ids import FIRST_ID
from duly.model.calendar import Calendar
from duly.model.due import due_at
from duly.model.schedule import Plan
from duly.store.migrate import READ_META
from duly.store.schedules.audit import audit
from duly.store.schedules.calendars import calendars_of
from duly.store.schedules.parked import revive_one
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
    from duly.store.engine import Engine
    from duly.store.session import Session

# Only ever to a later version.
RAISE_META = each(
    sqlite="""INSERT INTO @meta AS m (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE m.value < excluded.value""",
    postgres="""INSERT INTO @meta AS m (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        WHERE m.value COLLATE "C" < excluded.value""",
)
HOLD_META = each(
    sqlite="SELECT value FROM @meta WHERE key = :key",
    postgres="SELECT value FROM @meta WHERE key = :key FOR SHARE",
)
_ZONED = "zoned AND (next_tick_at IS NOT NULL OR enabled AND error LIKE 'UnknownZone:%')"
LOCK_ZONED = of_schedules(
    "",
    f"WHERE {_ZONED} AND s.id > :after::uuid ORDER BY s.id LIMIT 100 FOR UPDATE",
    sqlite_rest=f"WHERE {_ZONED} AND s.id > :after ORDER BY s.id LIMIT 100",
)
MOVE_TICK = both(
    """UPDATE @schedules SET next_tick_at = :next_tick_at, due_at = :due_at, override = :override
        WHERE id = :id"""
)


ZONE_DATA, ZONE_DATA_DONE = "zone_data", "zone_data_done"
"""The version that a ticker must have, and the version with which all ticks were computed."""


def has_zone_data(session: Session, version: str) -> bool:
    """Whether all ticks were computed with this version, or a later one is required."""
    meta: dict[str, str] = dict(session.run(READ_META))
    return meta.get(ZONE_DATA, "") > version or meta.get(ZONE_DATA_DONE, "") == version


def required_zone_data(session: Session) -> str:
    """The zone data version that a ticker must have; "" if any will do."""
    meta: dict[str, str] = dict(session.run(READ_META))
    return meta.get(ZONE_DATA, "")


def take_zone_data(store: Engine, version: str) -> bool:
    """Require this zone data version, unless a later one is required.

    Return whether stored ticks must be computed again.
    """
    if store.read(lambda session: has_zone_data(session, version)):
        return False
    return store.write(lambda session: _require(session, version))


def _require(session: Session, version: str) -> bool:
    session.run(RAISE_META, {"key": ZONE_DATA, "value": version})
    required, done = (_meta(session, key) for key in (ZONE_DATA, ZONE_DATA_DONE))
    return required == version and done < version


def _meta(session: Session, key: str) -> str:
    rows = session.run(HOLD_META, {"key": key})
    value: str = rows[0][0] if rows else ""
    return value


def compute_zoned(session: Session, version: str, after: str, now: int) -> str | None:
    """Recompute the next ticks of up to 100 zoned schedules after `after`. Return the last of them.

    Returns None if there are no more, or if a later version has been required since.
    """
    if _meta(session, ZONE_DATA) != version:
        return None  # a process with a later version does it
    page = [schedule_of(row) for row in session.run(LOCK_ZONED, {"after": after or FIRST_ID})]
    plans = [plan for record in page if (plan := understand(record, {}))]
    calendars = calendars_of(session, plans)
    for plan in plans:
        if plan.record.parked_at is not None:
            revive_one(session, plan.record, now, anew=True)
        else:
            _compute_anew(session, plan, calendars, version, now)
    if page:
        return page[-1].id
    session.run(RAISE_META, {"key": ZONE_DATA_DONE, "value": version})
    return None


def _compute_anew(
    session: Session, plan: Plan, calendars: Mapping[str, Calendar], version: str, now: int
) -> None:
    record = plan.record
    tick_at = stood_at(plan, calendars)
    if tick_at == record.next_tick_at:
        return
    plan = overridden(plan, record.next_tick_at, tick_at)
    due = None if tick_at is None else due_at(plan, tick_at, calendars)
    times = {"next_tick_at": tick_at, "due_at": due, "override": override_text(plan)}
    session.run(MOVE_TICK, times | {"id": plan.id})
    detail = {"version": version, "from": record.next_tick_at, "to": tick_at}
    audit(session, "schedule.zone_data", f"schedule:{plan.id}", None, detail, now)
