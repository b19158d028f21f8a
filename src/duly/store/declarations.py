"""Stores the schedules that code declares, and applies a set of them.

A set is one transaction: all of it, or nothing. Those who apply sets of one app do it in turn, so
whoever comes second sees what the first has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly import fault
from duly.model.calendar import SEEDS, Calendar
from duly.model.schedule import ScheduleRecord
from duly.store.schedules.audit import audit
from duly.store.schedules.calendars import HOLD_CALENDAR, calendar_named, read_calendar
from duly.store.schedules.data import DELETE_SCHEDULE, INSERT_SCHEDULE, REPLACE_SCHEDULE, settled
from duly.store.schedules.rows import of_schedules, schedule_of
from duly.store.statements import both

if TYPE_CHECKING:
    from duly.store.session import Session

# Whoever applies a set holds the row of its app until the transaction ends.
LOCK_DECLARATIONS = both(
    """INSERT INTO @declarations AS d (app, seen) VALUES (:app, '')
        ON CONFLICT (app) DO UPDATE SET seen = d.seen RETURNING seen"""
)
DECLARATIONS = both("SELECT seen FROM @declarations WHERE app = :app")
NOTE_DECLARATIONS = both("UPDATE @declarations SET seen = :seen WHERE app = :app")
_DECLARED = "WHERE app = :app ORDER BY s.id"
DECLARED = of_schedules("", _DECLARED)
LOCK_DECLARED = of_schedules("", f"{_DECLARED} FOR UPDATE", sqlite_rest=_DECLARED)


MAX_REMEMBERED_SETS = 1_000
"""So many sets of an app are told from new ones."""


class AttachableCalendar(NamedTuple):
    """A calendar as schedules store it, and what it says."""

    id: str
    calendar: Calendar


class StoredDeclarations(NamedTuple):
    """What there is of the schedules that an app has declared."""

    sets: Sequence[str]
    """Those that were applied, the newest last."""
    schedules: Sequence[ScheduleRecord]
    calendars: Mapping[str, AttachableCalendar]
    """Those that were asked for, by name, if there are such."""


class ScheduleWrite(NamedTuple):
    """One schedule as it shall be; `create` and `remove` are actions, all others replace it."""

    action: str
    record: ScheduleRecord
    detail: Mapping[str, Any] | None = None


class AppliedSet(NamedTuple):
    """What is to be written, and the set that is in force then."""

    writes: Sequence[ScheduleWrite]
    set: str | None = None


CompareSet = Callable[[StoredDeclarations], AppliedSet | None]
"""What shall become of what there is; None if nothing shall. May be asked more than once."""


def read(session: Session, app: str, calendars: Iterable[str] = ()) -> StoredDeclarations:
    """What there is of the schedules that an app declares, and of these calendars by name."""
    rows = session.run(DECLARATIONS, {"app": app})
    seen = rows[0][0] if rows else ""
    found = {name: _attachable(session, name) for name in sorted(calendars)}
    schedules = session.run(DECLARED, {"app": app})
    return _stored(seen, schedules, found)


def apply(
    session: Session,
    app: str,
    calendars: Iterable[str],
    settle: CompareSet,
    by: str | None,
    now: int,
) -> None:
    """Change the schedules that an app declares, all in one transaction.

    Whoever does that for the same app at the same time waits, and then sees what was done.
    """
    [(seen,)] = session.run(LOCK_DECLARATIONS, {"app": app})
    # Calendars before schedules, as whoever changes a calendar does.
    found = {name: _attachable(session, name, hold=True) for name in sorted(calendars)}
    stored = _stored(seen, session.run(LOCK_DECLARED, {"app": app}), found)
    fault.point("declared.read")
    applied = settle(stored)
    if applied is None:
        return
    for write in applied.writes:
        _write(session, write, by, now)
    fault.point("declared.written")
    if applied.set is not None:
        sets = [known for known in stored.sets if known != applied.set] + [applied.set]
        seen = " ".join(sets[-MAX_REMEMBERED_SETS:])
        session.run(NOTE_DECLARATIONS, {"app": app, "seen": seen})


def _stored(
    seen: str, schedules: Iterable[Any], calendars: Mapping[str, AttachableCalendar | None]
) -> StoredDeclarations:
    return StoredDeclarations(
        tuple(seen.split()),
        [schedule_of(row) for row in schedules],
        {name: found for name, found in calendars.items() if found is not None},
    )


def _attachable(session: Session, name: str, *, hold: bool = False) -> AttachableCalendar | None:
    if name in SEEDS:
        return AttachableCalendar(name, SEEDS[name])
    record = calendar_named(session, "", name)
    if record is not None and hold:
        session.run(HOLD_CALENDAR, {"id": record.id})
        # It may have been changed, or removed, before it was held.
        record = calendar_named(session, "", name)
    calendar = None if record is None else read_calendar(record.definition)
    return None if record is None or calendar is None else AttachableCalendar(record.id, calendar)


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
