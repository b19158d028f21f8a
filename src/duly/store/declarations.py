"""Stores the schedules and calendars that code declares, and applies a set of them.

A set is applied in one transaction, entirely or not at all. Processes that apply sets of the same
app take turns, so each sees what the previous one did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly import fault
from duly.errors import CalendarExists
from duly.model.calendar import SEEDS, Calendar
from duly.model.schedule import ScheduleRecord
from duly.model.stored_values import read as read_stored
from duly.store.schedules.audit import audit
from duly.store.schedules.calendars import (
    INSERT_CALENDAR,
    REPLACE_CALENDAR,
    CalendarRecord,
    calendar_named,
    difference,
    read_calendar,
    remove_calendar,
    shift_again,
)
from duly.store.schedules.data import DELETE_SCHEDULE, INSERT_SCHEDULE, REPLACE_SCHEDULE, settled
from duly.store.schedules.rows import of_schedules, schedule_of
from duly.store.statements import both

if TYPE_CHECKING:
    from duly.store.session import Session

# A process that applies a set locks the row of its app until the transaction ends.
LOCK_DECLARATIONS = both(
    """INSERT INTO @declarations AS d (app, seen) VALUES (:app, '')
        ON CONFLICT (app) DO UPDATE SET seen = d.seen RETURNING seen, left_out"""
)
DECLARATIONS = both("SELECT seen, left_out FROM @declarations WHERE app = :app")
NOTE_DECLARATIONS = both(
    "UPDATE @declarations SET seen = :seen, left_out = :left_out WHERE app = :app"
)
LEFT_OUT = both("SELECT app, left_out FROM @declarations WHERE left_out IS NOT NULL ORDER BY app")
DECLARED_CALENDARS = both("SELECT name FROM @calendars WHERE app = :app AND app <> ''")
ATTACHED_TO = both("SELECT count(*) FROM @schedules WHERE calendar = :id")
_DECLARED = "WHERE app = :app ORDER BY s.id"
DECLARED = of_schedules("", _DECLARED)
LOCK_DECLARED = of_schedules("", f"{_DECLARED} FOR UPDATE", sqlite_rest=_DECLARED)


MAX_REMEMBERED_SETS = 1_000
"""How many sets of an app are remembered, to tell old sets from new ones."""


class LeftOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of a set that could not be applied; the rest was."""

    schedules: dict[str, str] = {}
    """Schedules, with the unknown calendar that each of them needs."""
    calendars: dict[str, str] = {}
    """Calendars, with the reason why each of them was left alone."""

    def __bool__(self) -> bool:
        return bool(self.schedules or self.calendars)


class AttachableCalendar(NamedTuple):
    """A calendar as schedules store it, and its dates."""

    id: str
    calendar: Calendar


class StoredDeclarations(NamedTuple):
    """The stored declarations of an app."""

    sets: Sequence[str]
    """The sets that were applied, the newest last."""
    left_out: LeftOut
    """The parts of the newest set that could not be applied."""
    schedules: Sequence[ScheduleRecord]
    calendars: Mapping[str, AttachableCalendar]
    """The requested calendars and those that the app declares, by name, as far as they exist."""
    records: Mapping[str, CalendarRecord]
    """Their rows, even if they cannot be read; built-in calendars have none."""
    attached: Mapping[str, int]
    """How many schedules use each of the app's orphaned calendars, by name."""


class ScheduleWrite(NamedTuple):
    """One schedule to write.

    `create` and `remove` are actions of their kind; any other action replaces it.
    """

    action: str
    record: ScheduleRecord
    detail: Mapping[str, Any] | None = None


class CalendarWrite(NamedTuple):
    """One calendar to write; the actions are those of schedules."""

    action: str
    record: CalendarRecord


class AppliedSet(NamedTuple):
    """The calendars and schedules to write, and the set that is then in force."""

    schedules: Sequence[ScheduleWrite]
    calendars: Sequence[CalendarWrite] = ()
    set: str | None = None
    left_out: LeftOut = LeftOut()


CompareSet = Callable[[StoredDeclarations], AppliedSet | None]
"""Decides what to write, given what is stored; None for nothing. May be called more than once."""


def read(session: Session, app: str, calendars: Iterable[str] = ()) -> StoredDeclarations:
    """Read the schedules and calendars that an app declares, and the given calendars by name."""
    rows = session.run(DECLARATIONS, {"app": app})
    seen, left_out = rows[0] if rows else ("", None)
    records = _calendars(session, app, calendars)
    schedules = session.run(DECLARED, {"app": app})
    return _stored(session, seen, left_out, schedules, calendars, records)


def left_out(session: Session) -> dict[str, LeftOut]:
    """The parts of each app's newest set that could not be applied."""
    return {app: _read_left_out(text) for app, text in session.run(LEFT_OUT)}


def apply(
    session: Session,
    app: str,
    calendars: Iterable[str],
    settle: CompareSet,
    by: str | None,
    now: int,
) -> None:
    """Change the schedules and calendars that an app declares, in one transaction.

    Another process that does this for the same app at the same time waits, and then sees the
    changes.
    """
    [(seen, left_out)] = session.run(LOCK_DECLARATIONS, {"app": app})
    # Lock calendars before schedules, in the same order as an edit of a calendar.
    records = _calendars(session, app, calendars, lock=True)
    schedules = session.run(LOCK_DECLARED, {"app": app})
    stored = _stored(session, seen, left_out, schedules, calendars, records)
    fault.point("declared.read")
    applied = settle(stored)
    if applied is None:
        return
    _write_calendars(session, applied, stored, by, now)
    fault.point("declared.written")
    if applied.set is not None:
        sets = [known for known in stored.sets if known != applied.set] + [applied.set]
        seen = " ".join(sets[-MAX_REMEMBERED_SETS:])
        text = msgspec.json.encode(applied.left_out).decode() if applied.left_out else None
        session.run(NOTE_DECLARATIONS, {"app": app, "seen": seen, "left_out": text})


def _write_calendars(
    session: Session, applied: AppliedSet, stored: StoredDeclarations, by: str | None, now: int
) -> None:
    """Write calendars before the schedules that use them, and remove them after those."""
    written = [write for write in applied.calendars if write.action != "remove"]
    for write in written:
        _write_calendar(session, write, stored.records.get(write.record.name), by, now)
    for schedule in applied.schedules:
        _write(session, schedule, by, now)
    for write in applied.calendars:
        if write.action == "remove":
            remove_calendar(session, write.record.id, by, now)
        elif _has_changed(write.record, stored.records.get(write.record.name)):
            shift_again(session, write.record.id)


def _has_changed(after: CalendarRecord, before: CalendarRecord | None) -> bool:
    return before is not None and before.definition != after.definition


def _write_calendar(
    session: Session,
    write: CalendarWrite,
    before: CalendarRecord | None,
    by: str | None,
    now: int,
) -> None:
    record = write.record
    detail: dict[str, Any] = {"name": record.name}
    if before is None:
        if not session.run(INSERT_CALENDAR, msgspec.structs.asdict(record)):
            raise CalendarExists(record.name)
    else:
        record = msgspec.structs.replace(record, version=before.version + 1, updated_at=now)
        session.run(REPLACE_CALENDAR, msgspec.structs.asdict(record))
        detail |= difference(before, record)
    audit(session, f"calendar.{write.action}", f"calendar:{record.id}", by, detail, now)


def _calendars(
    session: Session, app: str, names: Iterable[str], *, lock: bool = False
) -> dict[str, CalendarRecord]:
    """The given calendars and those that the app declares, in an order in which to lock them."""
    own = {name for (name,) in session.run(DECLARED_CALENDARS, {"app": app})}
    wanted = sorted((own | set(names)) - SEEDS.keys())
    found = {name: calendar_named(session, "", name, lock=lock) for name in wanted}
    return {name: record for name, record in found.items() if record is not None}


def _stored(
    session: Session,
    seen: str,
    left_out: str | None,
    schedules: Iterable[Any],
    names: Iterable[str],
    records: Mapping[str, CalendarRecord],
) -> StoredDeclarations:
    readable = {name: AttachableCalendar(name, SEEDS[name]) for name in names if name in SEEDS}
    for name, record in records.items():
        calendar = read_calendar(record.definition)
        if calendar is not None:
            readable[name] = AttachableCalendar(record.id, calendar)
    orphans = {name: each.id for name, each in records.items() if each.orphaned_at is not None}
    return StoredDeclarations(
        tuple(seen.split()),
        _read_left_out(left_out),
        [schedule_of(row) for row in schedules],
        readable,
        records,
        {name: session.run(ATTACHED_TO, {"id": found})[0][0] for name, found in orphans.items()},
    )


def _read_left_out(text: str | None) -> LeftOut:
    return LeftOut() if text is None else read_stored(text, LeftOut, LeftOut())


def _write(session: Session, write: ScheduleWrite, by: str | None, now: int) -> None:
    record = write.record
    if write.action == "create":
        session.run(INSERT_SCHEDULE, msgspec.structs.asdict(settled(session, record)))
    elif write.action == "remove":
        session.run(DELETE_SCHEDULE, {"id": record.id})
    else:
        after = msgspec.structs.replace(
            settled(session, record), version=record.version + 1, updated_at=now
        )
        session.run(REPLACE_SCHEDULE, msgspec.structs.asdict(after))
    detail = {"key": record.key, **(write.detail or {})}
    audit(session, f"schedule.{write.action}", f"schedule:{record.id}", by, detail, now)
