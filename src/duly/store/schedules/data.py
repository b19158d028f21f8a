"""Schedules as data: stored, changed, removed and found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly.errors import CalendarNotFound
from duly.ids import is_id
from duly.model.calendar import SEEDS
from duly.model.decide import due_at
from duly.model.schedule import Reason, ScheduleRecord, TickRecord, plan_of
from duly.store import schedule_statements as sql
from duly.store.schedules.audit import audit, refused_slots
from duly.store.schedules.calendars import calendars_of
from duly.store.schedules.rows import schedule_of, tick_of

if TYPE_CHECKING:
    from duly.store.engine import Engine
    from duly.store.session import Session

Edit = Callable[[ScheduleRecord], ScheduleRecord | None]
"""A schedule as it shall be, or None if it shall stay as it is."""


def add(session: Session, record: ScheduleRecord, by: str | None, now: int) -> bool:
    """Store a new schedule; False if there is one of that app, owner and key."""
    record = settled(session, record)
    if not session.run(sql.INSERT_SCHEDULE, msgspec.structs.asdict(record)):
        return False
    audit(session, "schedule.create", f"schedule:{record.id}", by, {"key": record.key}, now)
    return True


def edit(
    session: Session,
    schedule_id: str,
    change: Edit,
    action: str,
    by: str | None,
    detail: Mapping[str, Any] | None,
    now: int,
) -> ScheduleRecord | None:
    """Change a schedule while it is locked, and write down who did; as it is then.

    None if there is no such schedule. A change that answers None changes nothing.
    """
    if not is_id(schedule_id):
        return None
    rows = session.run(sql.LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return None
    before = schedule_of(rows[0])
    after = change(before)
    if after is None:
        return before
    if after.calendar != before.calendar:
        after = settled(session, after)
    after = msgspec.structs.replace(after, version=before.version + 1, updated_at=now)
    session.run(sql.REPLACE_SCHEDULE, msgspec.structs.asdict(after))
    audit(session, f"schedule.{action}", f"schedule:{schedule_id}", by, detail, now)
    return after


def settled(session: Session, record: ScheduleRecord) -> ScheduleRecord:
    """The schedule, due when its calendar says so, which stays as it is until this is committed.

    Else a calendar that is edited or removed at the same time would not know of the schedule.
    """
    if record.calendar is None or record.calendar in SEEDS:
        return record
    if not session.run(sql.HOLD_CALENDAR, {"id": record.calendar}):
        raise CalendarNotFound(record.calendar)
    plan = plan_of(record)
    if plan.policies.shift is None or record.next_tick_at is None:
        return record
    moved = due_at(plan, record.next_tick_at, calendars_of(session, [plan]))
    return msgspec.structs.replace(record, due_at=moved)


def remove(session: Session, schedule_id: str, by: str | None, now: int) -> bool:
    """Remove a schedule. Its unfinished jobs, and its ledger, stay."""
    if not is_id(schedule_id):
        return False
    rows = session.run(sql.LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return False
    session.run(sql.DELETE_SCHEDULE, {"id": schedule_id})
    key = schedule_of(rows[0]).key
    audit(session, "schedule.remove", f"schedule:{schedule_id}", by, {"key": key}, now)
    return True


class ScheduleFilter(NamedTuple):
    """Which schedules a list is about; None means any."""

    app: str | None = None
    owner: str | None = None
    function: str | None = None
    enabled: bool | None = None
    calendar: str | None = None
    parked: bool | None = None
    status: str | None = None
    """As `Schedule.status` says it; or late: its promise is broken."""
    search: str | None = None
    """A part of the key or of the function's name, in small letters."""
    due_before: int | None = None
    """Only those, in the order in which they are due; `after_due` goes with `after_id`."""
    after_due: int | None = None
    after_id: str | None = None
    limit: int = 100


class TickFilter(NamedTuple):
    """Which ticks of a schedule a list is about; None means any. Times are [after, before)."""

    before: int | None = None
    after: int | None = None
    outcome: str | None = None
    reason: str | None = None
    limit: int = 100


def _is_within(instant: int, filter: TickFilter) -> bool:
    after = filter.after is None or instant >= filter.after
    return after and (filter.before is None or instant < filter.before)


def _given(filter: ScheduleFilter | TickFilter) -> dict[str, object]:
    return {name: value for name, value in filter._asdict().items() if value is not None}


def find_schedules(store: Engine, filter: ScheduleFilter) -> list[ScheduleRecord]:
    """Oldest first."""
    read = store.read if filter.search is None else store.read_in_time
    return read(lambda session: _find(session, filter))


def _find(session: Session, filter: ScheduleFilter) -> list[ScheduleRecord]:
    given = _given(filter)
    statement = sql.list_schedules(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [schedule_of(row) for row in session.run_text(text, given)]


def ticks(session: Session, schedule_id: str, filter: TickFilter) -> list[TickRecord]:
    """Rows of the ledger, newest first."""
    if not is_id(schedule_id):
        return []
    if filter.reason == Reason.SLOT_EXISTS:
        # The slot has its own row in the ledger; what was refused is in the audit trail.
        refused = refused_slots(session, schedule_id) if filter.outcome in (None, "skipped") else []
        return [tick for tick in refused if _is_within(tick.tick_at, filter)][: filter.limit]
    given = _given(filter)
    statement = sql.list_ticks(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [tick_of(row) for row in session.run_text(text, given | {"id": schedule_id})]


def get(session: Session, schedule_id: str) -> ScheduleRecord | None:
    if not is_id(schedule_id):
        return None
    rows = session.run(sql.GET_SCHEDULE, {"id": schedule_id})
    return schedule_of(rows[0]) if rows else None


def find_one(session: Session, app: str, owner: str, key: str) -> ScheduleRecord | None:
    rows = session.run(sql.FIND_SCHEDULE, {"app": app, "owner": owner, "key": key})
    return schedule_of(rows[0]) if rows else None


def due_schedules(
    session: Session, now: int, limit: int, *, zone_data: str, signals_for: str | None = None
) -> list[ScheduleRecord]:
    """The schedules that are due, oldest first.

    Zoned ones only for those whose zone data is of the version that `take_zone_data` has seen, or
    later. With `signals_for`, those of other apps that ask for a signal are left to them.
    """
    where = {"now": now, "limit": limit, "zone_data": zone_data, "signals_for": signals_for}
    return [schedule_of(row) for row in session.run(sql.PEEK_DUE, where)]


def next_due(session: Session, *, zone_data: str, signals_for: str | None = None) -> int | None:
    """When the next schedule is due that somebody with this zone data may tick."""
    rows = session.run(sql.NEXT_DUE, {"zone_data": zone_data, "signals_for": signals_for})
    return rows[0][0] if rows else None


def is_scheduled(session: Session, functions: Sequence[str]) -> bool:
    """Whether a schedule calls one of these functions."""
    return bool(session.run(sql.IS_SCHEDULED, {"functions": session.array(functions)}))


def scheduled_functions(session: Session) -> set[str]:
    """The functions that at least one schedule targets."""
    return {row[0] for row in session.run(sql.SCHEDULED_FUNCTIONS)}


def set_cost(session: Session, job_id: str, token: int, amount: float) -> None:
    """What an attempt of a schedule's job has cost so far; for other jobs nothing happens."""
    session.run(sql.SET_COST, {"id": job_id, "token": token, "amount": amount})
