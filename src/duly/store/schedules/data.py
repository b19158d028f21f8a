"""Creates, changes, removes and finds schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duly.errors import CalendarNotFound
from duly.ids import is_id
from duly.model.calendar import SEEDS
from duly.model.due import due_at
from duly.model.schedule import (
    Reason,
    ScheduleFilter,
    ScheduleRecord,
    TickFilter,
    TickKind,
    TickRecord,
    plan_of,
)
from duly.store.schedules.audit import audit, refused_slots
from duly.store.schedules.calendars import HOLD_CALENDAR, calendars_of
from duly.store.schedules.rows import FIELDS, TICK_READ, of_schedules, schedule_of, tick_of
from duly.store.statements import Statement, both, each

if TYPE_CHECKING:
    from duly.store.engine import Engine
    from duly.store.session import Session


def _cost(schedule: str) -> str:
    """What an attempt has cost so far; empty if its job belongs to no schedule.

    A body that was canceled or timed out keeps adding costs until it has ended.
    """
    found = " UNION ALL ".join(
        f"SELECT {schedule}, scheduled_at, id FROM {table} WHERE id = :id AND trigger = 'schedule'"
        for table in ("@jobs", "@history")
    )
    return f"""INSERT INTO @costs (schedule_id, tick_at, job_id, token, amount)
        SELECT f.*, :token, :amount FROM ({found}) f WHERE true
        ON CONFLICT (schedule_id, tick_at, job_id, token) DO UPDATE SET amount = excluded.amount"""


SET_COST = each(sqlite=_cost("actor"), postgres=_cost("actor::uuid"))
_VALUES = ", ".join(f":{name}" for name in FIELDS)
INSERT_SCHEDULE = both(
    f"INSERT INTO @schedules ({', '.join(FIELDS)}) VALUES ({_VALUES})"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
REPLACE_SCHEDULE = both(
    f"""UPDATE @schedules SET {", ".join(f"{name} = :{name}" for name in FIELDS[1:])}
        WHERE id = :id RETURNING 1"""
)
DELETE_SCHEDULE = both("DELETE FROM @schedules WHERE id = :id RETURNING 1")
GET_SCHEDULE = of_schedules("", "WHERE s.id = :id")
LOCK_SCHEDULE = of_schedules("", "WHERE s.id = :id FOR UPDATE", sqlite_rest="WHERE s.id = :id")
FIND_SCHEDULE = of_schedules("", "WHERE app = :app AND owner = :owner AND key = :key")
IS_SCHEDULED = each(
    sqlite="""SELECT 1 FROM @schedules
        WHERE function IN (SELECT value FROM json_each(:functions)) LIMIT 1""",
    postgres="SELECT 1 FROM @schedules WHERE function = ANY(:functions::text[]) LIMIT 1",
)
# From one function to the next, however many schedules each has.
SCHEDULED_FUNCTIONS = both(
    """WITH RECURSIVE found (function) AS (
            SELECT min(function) FROM @schedules
            UNION ALL
            SELECT (SELECT min(function) FROM @schedules WHERE function > found.function)
            FROM found WHERE found.function IS NOT NULL)
        SELECT function FROM found WHERE function IS NOT NULL"""
)
_SCHEDULE_TERMS = {
    "app": "app = :app",
    "owner": "owner = :owner",
    "function": "function = :function",
    "enabled": "enabled = :enabled",
    "calendar": "calendar = :calendar",
    "after_id": "s.id > :after_id",
    "due_before": "due_at < :due_before",
}
_STATUS_TERMS = {
    "enabled": "due_at IS NOT NULL",
    "disabled": "NOT enabled AND orphaned_at IS NULL",
    "parked": "parked_at IS NOT NULL AND enabled AND orphaned_at IS NULL",
    "orphaned": "orphaned_at IS NOT NULL",
    "ended": "enabled AND next_tick_at IS NULL AND parked_at IS NULL AND orphaned_at IS NULL",
    "late": "expect_at IS NOT NULL AND late IS NOT NULL",
}
_SEARCHED = each(
    sqlite="(instr(lower(key), :search) > 0 OR instr(lower(function), :search) > 0)",
    postgres="(strpos(lower(key), :search) > 0 OR strpos(lower(function), :search) > 0)",
)


def list_schedules(given: dict[str, object]) -> Statement:
    """The statement that lists schedules, with only the requested conditions.

    Oldest first; schedules that are due before a given time in the order of their due times.
    """
    terms = [term for name, term in _SCHEDULE_TERMS.items() if name in given]
    if "parked" in given:
        terms.append("parked_at IS NOT NULL" if given["parked"] else "parked_at IS NULL")
    if "status" in given:
        terms.append(_STATUS_TERMS[str(given["status"])])
    order = "s.id"
    if "due_before" in given:
        order = "due_at, s.id"
        if "after_due" in given:
            terms.remove(_SCHEDULE_TERMS["after_id"])
            terms.append("(due_at, s.id) > (:after_due, :after_id)")
    searched = "search" in given

    def rest(term: str) -> str:
        all_terms = [*terms, term] if searched else terms
        where = "WHERE " + " AND ".join(all_terms) if all_terms else ""
        return f"{where} ORDER BY {order} LIMIT :limit"

    return of_schedules("", rest(_SEARCHED.postgres), sqlite_rest=rest(_SEARCHED.sqlite))


def list_ticks(given: dict[str, object]) -> Statement:
    """The statement that lists the ticks of a schedule, newest first.

    It reads the newest of each kind, which are adjacent in the ledger, and returns the newest of
    these.
    """
    terms = {
        "before": "AND tick_at < :before",
        "after": "AND tick_at >= :after",
        "outcome": "AND outcome = :outcome",
        "reason": "AND reason = :reason",
    }
    where = " ".join(term for name, term in terms.items() if name in given)

    def newest(columns: str) -> str:
        kinds = " UNION ALL ".join(
            f"""SELECT * FROM (SELECT {columns} FROM @ticks
                WHERE schedule_id = :id AND kind = '{kind}' {where}
                ORDER BY tick_at DESC LIMIT :limit) {kind}"""
            for kind in TickKind
        )
        return f"{kinds} ORDER BY tick_at DESC, kind LIMIT :limit"

    return each(sqlite=newest(TICK_READ.sqlite), postgres=newest(TICK_READ.postgres))


Edit = Callable[[ScheduleRecord], ScheduleRecord | None]
"""The new version of a schedule, or None to leave it as it is."""


def add(session: Session, record: ScheduleRecord, by: str | None, now: int) -> bool:
    """Store a new schedule. Return False if the app and owner have one with that key."""
    record = settled(session, record)
    if not session.run(INSERT_SCHEDULE, msgspec.structs.asdict(record)):
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
    """Change a schedule while it is locked, with an audit entry. Return its new version.

    Returns None if there is no such schedule. If `change` returns None, nothing changes.
    """
    if not is_id(schedule_id):
        return None
    rows = session.run(LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return None
    before = schedule_of(rows[0])
    after = change(before)
    if after is None:
        return before
    if after.calendar != before.calendar:
        after = settled(session, after)
    after = msgspec.structs.replace(after, version=before.version + 1, updated_at=now)
    session.run(REPLACE_SCHEDULE, msgspec.structs.asdict(after))
    audit(session, f"schedule.{action}", f"schedule:{schedule_id}", by, detail, now)
    return after


def settled(session: Session, record: ScheduleRecord) -> ScheduleRecord:
    """The schedule with its due time after calendars, which stays valid until this is committed.

    Otherwise a calendar that is edited or removed at the same time would miss the schedule.
    """
    if record.calendar is None or record.calendar in SEEDS:
        return record
    if not session.run(HOLD_CALENDAR, {"id": record.calendar}):
        raise CalendarNotFound(record.calendar)
    plan = plan_of(record)
    if plan.policies.shift is None or record.next_tick_at is None:
        return record
    moved = due_at(plan, record.next_tick_at, calendars_of(session, [plan]))
    return msgspec.structs.replace(record, due_at=moved)


def remove(session: Session, schedule_id: str, by: str | None, now: int) -> bool:
    """Remove a schedule. Its unfinished jobs and its ledger stay."""
    if not is_id(schedule_id):
        return False
    rows = session.run(LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return False
    session.run(DELETE_SCHEDULE, {"id": schedule_id})
    key = schedule_of(rows[0]).key
    audit(session, "schedule.remove", f"schedule:{schedule_id}", by, {"key": key}, now)
    return True


def _is_within(instant: int, filter: TickFilter) -> bool:
    after = filter.after is None or instant >= filter.after
    return after and (filter.before is None or instant < filter.before)


def _set_fields(filter: ScheduleFilter | TickFilter) -> dict[str, object]:
    return {name: value for name, value in filter._asdict().items() if value is not None}


def find_schedules(store: Engine, filter: ScheduleFilter) -> list[ScheduleRecord]:
    """Schedules that match, oldest first."""
    read = store.read if filter.search is None else store.read_in_time
    return read(lambda session: _find(session, filter))


def _find(session: Session, filter: ScheduleFilter) -> list[ScheduleRecord]:
    given = _set_fields(filter)
    statement = list_schedules(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [schedule_of(row) for row in session.run_text(text, given)]


def ticks(session: Session, schedule_id: str, filter: TickFilter) -> list[TickRecord]:
    """Rows of the ledger, newest first."""
    if not is_id(schedule_id):
        return []
    if filter.reason == Reason.SLOT_EXISTS:
        # The slot has its own row in the ledger; refused dispatches are in the audit log.
        refused = refused_slots(session, schedule_id) if filter.outcome in (None, "skipped") else []
        return [tick for tick in refused if _is_within(tick.tick_at, filter)][: filter.limit]
    given = _set_fields(filter)
    statement = list_ticks(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [tick_of(row) for row in session.run_text(text, given | {"id": schedule_id})]


def get(session: Session, schedule_id: str) -> ScheduleRecord | None:
    if not is_id(schedule_id):
        return None
    rows = session.run(GET_SCHEDULE, {"id": schedule_id})
    return schedule_of(rows[0]) if rows else None


def find_one(session: Session, app: str, owner: str, key: str) -> ScheduleRecord | None:
    rows = session.run(FIND_SCHEDULE, {"app": app, "owner": owner, "key": key})
    return schedule_of(rows[0]) if rows else None


def is_scheduled(session: Session, functions: Sequence[str]) -> bool:
    """Whether a schedule calls one of these functions."""
    return bool(session.run(IS_SCHEDULED, {"functions": session.array(functions)}))


def scheduled_functions(session: Session) -> set[str]:
    """The functions that at least one schedule targets."""
    return {row[0] for row in session.run(SCHEDULED_FUNCTIONS)}


def set_cost(session: Session, job_id: str, token: int, amount: float) -> None:
    """Store what an attempt of a schedule's job has cost so far. Does nothing for other jobs."""
    session.run(SET_COST, {"id": job_id, "token": token, "amount": amount})
