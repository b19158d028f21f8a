"""Calendars in the store, and how an edit moves the ticks of attached schedules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from duly import fault
from duly.errors import BadInput, CalendarExists
from duly.ids import FIRST_ID, is_id, new_id
from duly.model.calendar import SEEDS, Calendar
from duly.model.due import due_at
from duly.model.schedule import Plan
from duly.store.schedules.audit import audit
from duly.store.schedules.rows import of_schedules, schedule_of, understand
from duly.store.statements import Statement, both, each
from duly.zones import zone

if TYPE_CHECKING:
    from duly.store.session import Session

ATTACHED = each(
    sqlite="""SELECT id, definition FROM @calendars
        WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres="SELECT id::text, definition FROM @calendars WHERE id = ANY(:ids::uuid[])",
)
_COLUMNS = "owner, name, definition, version, created_at, updated_at, app, declared, orphaned_at"
_CALENDAR = each(sqlite=f"id, {_COLUMNS}", postgres=f"id::text, {_COLUMNS}")


def _of_calendars(rest: str, *, sqlite_rest: str | None = None) -> Statement:
    return each(
        sqlite=f"SELECT {_CALENDAR.sqlite} FROM @calendars c {sqlite_rest or rest}",
        postgres=f"SELECT {_CALENDAR.postgres} FROM @calendars c {rest}",
    )


INSERT_CALENDAR = both(
    f"""INSERT INTO @calendars (id, {_COLUMNS})
        VALUES (:id, :owner, :name, :definition, :version, :created_at, :updated_at, :app,
            :declared, :orphaned_at)
        ON CONFLICT DO NOTHING RETURNING 1"""
)
REPLACE_CALENDAR = both(
    """UPDATE @calendars SET owner = :owner, name = :name, definition = :definition,
            version = :version, created_at = :created_at, updated_at = :updated_at, app = :app,
            declared = :declared, orphaned_at = :orphaned_at
        WHERE id = :id"""
)
DELETE_CALENDAR = both("DELETE FROM @calendars WHERE id = :id")
GET_CALENDAR = _of_calendars("WHERE c.id = :id")
LOCK_CALENDAR = _of_calendars("WHERE c.id = :id FOR UPDATE", sqlite_rest="WHERE c.id = :id")
CALENDAR_NAMED = _of_calendars("WHERE owner = :owner AND name = :name")
LOCK_CALENDAR_NAMED = _of_calendars(
    "WHERE owner = :owner AND name = :name FOR UPDATE",
    sqlite_rest="WHERE owner = :owner AND name = :name",
)
# A calendar that a schedule is about to use: it cannot be changed or removed until the commit.
HOLD_CALENDAR = each(
    sqlite="SELECT 1 FROM @calendars WHERE id = :id",
    postgres="SELECT 1 FROM @calendars WHERE id = :id FOR SHARE",
)
CALENDARS = each(
    sqlite=f"""SELECT {_CALENDAR.sqlite} FROM @calendars c
        WHERE (:owner IS NULL OR owner = :owner) AND id > :after ORDER BY c.id LIMIT :limit""",
    postgres=f"""SELECT {_CALENDAR.postgres} FROM @calendars c
        WHERE (:owner::text IS NULL OR owner = :owner) AND c.id > :after::uuid
        ORDER BY c.id LIMIT :limit""",
)
IN_USE = both("SELECT DISTINCT calendar FROM @schedules WHERE calendar IS NOT NULL")
_ATTACHED_TO = "WHERE calendar = :calendar AND s.id > :after ORDER BY s.id LIMIT 100"
LOCK_ATTACHED = of_schedules(
    "", _ATTACHED_TO.replace(":after", ":after::uuid") + " FOR UPDATE", sqlite_rest=_ATTACHED_TO
)
DETACH_ALL = both(
    """UPDATE @schedules SET calendar = NULL, version = version + 1, updated_at = :now
        WHERE calendar = :id RETURNING 1"""
)
MOVE_DUE = both("UPDATE @schedules SET due_at = :due_at WHERE id = :id AND due_at IS NOT NULL")


log = logging.getLogger(__name__)

AUDITED_DATES = 100


class CalendarRecord(msgspec.Struct, frozen=True):
    """One stored calendar. Its fields are in the order of the columns."""

    id: str
    owner: str
    name: str
    definition: str
    version: int
    created_at: int
    updated_at: int
    app: str = ""
    """The app whose code declares it, or declared it; empty if none."""
    declared: str | None = None
    """The declaration as it was last applied."""
    orphaned_at: int | None = None
    """Since when code no longer declares it."""


def add_calendar(session: Session, record: CalendarRecord, by: str | None, now: int) -> bool:
    """Store a new calendar. Return False if its owner has one with that name."""
    if not session.run(INSERT_CALENDAR, msgspec.structs.asdict(record)):
        return False
    audit(session, "calendar.create", f"calendar:{record.id}", by, {"name": record.name}, now)
    return True


def edit_calendar(
    session: Session,
    calendar_id: str,
    change: Callable[[CalendarRecord], CalendarRecord | None],
    by: str | None,
    now: int,
) -> CalendarRecord | None:
    """Change a calendar. Ticks that it moves to other days are moved again."""
    if not is_id(calendar_id):
        return None
    rows = session.run(LOCK_CALENDAR, {"id": calendar_id})
    if not rows:
        return None
    before = CalendarRecord(*rows[0])
    after = change(before)
    if after is None:
        return before
    if after.name != before.name:
        _reserve_name(session, after, now)
    after = msgspec.structs.replace(after, version=before.version + 1, updated_at=now)
    session.run(REPLACE_CALENDAR, msgspec.structs.asdict(after))
    fault.point("calendar.replaced")
    shift_again(session, calendar_id)
    detail = difference(before, after)
    audit(session, "calendar.update", f"calendar:{calendar_id}", by, detail, now)
    return after


def _reserve_name(session: Session, record: CalendarRecord, now: int) -> None:
    """Reserve a free name, as a new calendar would, so that two requests cannot both get it."""
    taken = msgspec.structs.replace(record, id=new_id(now))
    if not session.run(INSERT_CALENDAR, msgspec.structs.asdict(taken)):
        raise CalendarExists(record.name)
    session.run(DELETE_CALENDAR, {"id": taken.id})


def difference(before: CalendarRecord, after: CalendarRecord) -> dict[str, Any]:
    """The changes of an edit; if there are many dates, the first ones."""
    old, new = (read_calendar(record.definition) for record in (before, after))
    detail: dict[str, Any] = {"version": after.version}
    if old is None or new is None:
        return detail
    for field in ("name", "kind", "tz", "rules"):
        if getattr(old, field) != getattr(new, field):
            detail[field] = [getattr(old, field), getattr(new, field)]
    added, removed = new.dates.keys() - old.dates.keys(), old.dates.keys() - new.dates.keys()
    for which, dates in (("added", added), ("removed", removed)):
        if dates:
            detail[which] = [str(day) for day in sorted(dates)[:AUDITED_DATES]]
            detail[f"{which}_count"] = len(dates)
    return detail


def shift_again(session: Session, calendar_id: str, *, detached: bool = False) -> None:
    """Recompute the ticks that a calendar moves to another day; some move back."""
    after = FIRST_ID
    while rows := session.run(LOCK_ATTACHED, {"calendar": calendar_id, "after": after}):
        page = [schedule_of(row) for row in rows]
        # One that cannot be parsed is parked by the ticker, and must not stop the others.
        plans = [plan for record in page if (plan := understand(record, {}))]
        calendars = {} if detached else calendars_of(session, plans)
        for plan in plans:
            tick_at = plan.record.next_tick_at
            if plan.policies.shift is not None and tick_at is not None:
                moved = due_at(plan, tick_at, calendars)
                session.run(MOVE_DUE, {"id": plan.id, "due_at": moved})
        after = page[-1].id


def remove_calendar(session: Session, calendar_id: str, by: str | None, now: int) -> bool:
    """Remove a calendar. The schedules that it was attached to continue without it."""
    if not is_id(calendar_id):
        return False
    rows = session.run(LOCK_CALENDAR, {"id": calendar_id})
    if not rows:
        return False
    shift_again(session, calendar_id, detached=True)
    detached = len(session.run(DETACH_ALL, {"id": calendar_id, "now": now}))
    fault.point("calendar.detached")
    session.run(DELETE_CALENDAR, {"id": calendar_id})
    detail = {"name": CalendarRecord(*rows[0]).name, "detached": detached}
    audit(session, "calendar.remove", f"calendar:{calendar_id}", by, detail, now)
    return True


def find_calendars(
    session: Session, owner: str | None, after: str | None = None, limit: int = 100
) -> list[CalendarRecord]:
    """A page of calendars, oldest first; of every owner if `owner` is None."""
    if after is not None and not is_id(after):
        return []
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [CalendarRecord(*row) for row in session.run(CALENDARS, given)]


def get_calendar(session: Session, calendar_id: str) -> CalendarRecord | None:
    if not is_id(calendar_id):
        return None
    rows = session.run(GET_CALENDAR, {"id": calendar_id})
    return CalendarRecord(*rows[0]) if rows else None


def calendar_named(
    session: Session, owner: str, name: str, *, lock: bool = False
) -> CalendarRecord | None:
    statement = LOCK_CALENDAR_NAMED if lock else CALENDAR_NAMED
    rows = session.run(statement, {"owner": owner, "name": name})
    return CalendarRecord(*rows[0]) if rows else None


def calendars_of(session: Session, plans: Iterable[Plan]) -> dict[str, Calendar]:
    """The calendars attached to these schedules, under the names that the schedules use."""
    return _calendars(session, {plan.record.calendar for plan in plans if plan.record.calendar})


def calendars_in_use(session: Session) -> Mapping[str, Calendar]:
    """All calendars that are attached to a schedule, under the names that the schedules use."""
    return _calendars(session, {row[0] for row in session.run(IN_USE)})


def _calendars(session: Session, wanted: Collection[str]) -> dict[str, Calendar]:
    found = {name: SEEDS[name] for name in wanted if name in SEEDS}
    # A single value that is not an id would make PostgreSQL refuse the whole statement.
    own = [name for name in wanted if name not in SEEDS and is_id(name)]
    if own:
        for calendar_id, text in session.run(ATTACHED, {"ids": session.array(own)}):
            calendar = read_calendar(text)
            if calendar is not None:
                found[calendar_id] = calendar
    for calendar in found.values():
        _check_zone(calendar)
    return found


def _check_zone(calendar: Calendar) -> None:
    """Log if this machine does not have the zone (any more): its ticks are skipped."""
    try:
        zone(calendar.tz)
    except BadInput as error:
        log.error("calendar %r forbids every tick: %s", calendar.name, error)


def read_calendar(text: str) -> Calendar | None:
    try:
        return _decode_calendar(text)
    except Exception as error:  # if a calendar cannot be read, its ticks are skipped
        log.error("a calendar cannot be read: %s", error)
        return None


@lru_cache(maxsize=256)
def _decode_calendar(text: str) -> Calendar:
    return Calendar.decode(msgspec.json.decode(text))
