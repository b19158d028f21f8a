"""Stores the schedules that code declares, and applies a set of them.

A set is applied in one transaction, entirely or not at all. Processes that apply sets of the same
app take turns, so each sees what the previous one did.
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

# A process that applies a set locks the row of its app until the transaction ends.
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
"""How many sets of an app are remembered, to tell old sets from new ones."""


class AttachableCalendar(NamedTuple):
    """A calendar as schedules store it, and its dates."""

    id: str
    calendar: Calendar


class StoredDeclarations(NamedTuple):
    """The stored declarations of an app."""

    sets: Sequence[str]
    """The sets that were applied, the newest last."""
    schedules: Sequence[ScheduleRecord]
    calendars: Mapping[str, AttachableCalendar]
    """The requested calendars, by name, as far as they exist."""


class ScheduleWrite(NamedTuple):
    """One schedule to write.

    `create` and `remove` are actions of their kind; any other action replaces it.
    """

    action: str
    record: ScheduleRecord
    detail: Mapping[str, Any] | None = None


class AppliedSet(NamedTuple):
    """The schedules to write, and the set that is then in force."""

    writes: Sequence[ScheduleWrite]
    set: str | None = None


CompareSet = Callable[[StoredDeclarations], AppliedSet | None]
"""Decides what to write, given what is stored; None for nothing. May be called more than once."""


def read(session: Session, app: str, calendars: Iterable[str] = ()) -> StoredDeclarations:
    """Read the stored schedules that an app declares, and the given calendars by name."""
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
    """Change the schedules that an app declares, in one transaction.

    Another process that does this for the same app at the same time waits, and then sees the
    changes.
    """
    [(seen,)] = session.run(LOCK_DECLARATIONS, {"app": app})
    # Lock calendars before schedules, in the same order as an edit of a calendar.
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
        # It may have been changed, or removed, before it was locked.
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
