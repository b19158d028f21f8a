"""The calendar values that users read and write, converted from and to rows."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import TypedDict

import msgspec

from duly.clock import from_ms
from duly.errors import InvalidCalendar
from duly.model.calendar import SEEDS, Calendar, CalendarKind, Dates, Day
from duly.schedules.declared_calendars import DeclaredCalendar
from duly.schedules.define import calendar_name
from duly.schedules.views import Schedule
from duly.store.schedules.calendars import CalendarRecord, read_calendar


class CalendarContent(TypedDict, total=False):
    """The fields of a calendar that can be changed."""

    add: Dates
    remove: Iterable[Day]
    dates: Dates
    """All of its dates, replacing the current ones."""
    rules: Iterable[str]
    kind: str
    tz: str


class CalendarChanges(CalendarContent, total=False):
    """The changes of a calendar that `update` accepts."""

    name: str


class StoredCalendar(msgspec.Struct, frozen=True):
    """One calendar, as it was when it was read."""

    id: str
    """The id that schedules refer to; for a built-in calendar, its name."""
    owner: str | None
    calendar: Calendar
    read_only: bool
    """Whether it is built in."""
    version: int
    created: dt.datetime | None = None
    updated: dt.datetime | None = None
    declared: bool = False
    """Whether code declares it."""
    orphaned: bool = False
    """Whether code declared it, and no longer does."""

    @property
    def name(self) -> str:
        """The name of the calendar."""
        return self.calendar.name

    @property
    def kind(self) -> CalendarKind:
        """Whether its dates are skipped or are the only ones allowed."""
        return self.calendar.kind

    @property
    def tz(self) -> str:
        """The time zone of its dates."""
        return self.calendar.tz

    @property
    def dates(self) -> Mapping[dt.date, str]:
        """Its listed dates with their labels."""
        return self.calendar.dates

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that add dates for every year."""
        return self.calendar.rules


class TickChange(msgspec.Struct, frozen=True):
    """One upcoming tick that a changed calendar would treat differently."""

    schedule_id: str
    key: str
    owner: str | None
    at: dt.datetime
    """The nominal time."""
    before: str | None
    """dispatch or skip; None if the schedule would have ended by then."""
    after: str | None
    due_before: dt.datetime | None
    due_after: dt.datetime | None
    why: str = ""
    """The calendar's reason for skipping the date, if it does."""


class EndingCalendar(msgspec.Struct, frozen=True):
    """A calendar that has ended or soon will, and the schedules that use it."""

    calendar: StoredCalendar
    last_date: dt.date
    schedules: tuple[Schedule, ...]


CalendarKey = str | StoredCalendar | DeclaredCalendar
"""A calendar: its name or id, a `StoredCalendar` that was read, or its declaration in code."""


def name_of(calendar: CalendarKey) -> str:
    if isinstance(calendar, StoredCalendar):
        return calendar.id
    return calendar_name(calendar)


def seed(name: str) -> StoredCalendar:
    return StoredCalendar(name, None, SEEDS[name], read_only=True, version=0)


def as_stored(record: CalendarRecord) -> StoredCalendar:
    return StoredCalendar(
        record.id,
        record.owner or None,
        understood(record),
        read_only=False,
        version=record.version,
        created=from_ms(record.created_at),
        updated=from_ms(record.updated_at),
        declared=bool(record.app) and record.orphaned_at is None,
        orphaned=record.orphaned_at is not None,
    )


def understood(record: CalendarRecord) -> Calendar:
    calendar = read_calendar(record.definition)
    if calendar is None:
        raise InvalidCalendar("calendar", f"the stored calendar {record.name!r} cannot be read")
    return calendar
