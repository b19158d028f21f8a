"""`app.calendar(…)`: a calendar that is declared in code, checked without the database."""

from __future__ import annotations

from collections.abc import Iterable

from duly.core import Core
from duly.errors import CalendarExists, InvalidOption
from duly.model.calendar import Calendar, CalendarKind, Dates
from duly.schedules.checks import check_calendar_name


class DeclaredCalendar:
    """A calendar that is declared in code. Pass it wherever a calendar's name is accepted."""

    def __init__(self, calendar: Calendar, source: str) -> None:
        self.calendar = calendar
        """Its kind, zone, dates and rules."""
        self.source = source
        """Where it is declared: file and line."""

    def __repr__(self) -> str:
        return f"<declared calendar {self.name!r}>"

    @property
    def name(self) -> str:
        """The name of the calendar."""
        return self.calendar.name


def calendar_from(
    calendar: str | Calendar, kind: str | None, tz: str, dates: Dates, rules: Iterable[str]
) -> Calendar:
    """The calendar that a user describes by a value or by its fields."""
    if not isinstance(calendar, Calendar):
        kind = CalendarKind.SKIP_DATES if kind is None else kind
        return Calendar(calendar, kind, tz=tz, dates=dates, rules=rules)
    if kind is not None or (tz, dates, rules) != ("UTC", (), ()):
        raise InvalidOption("calendar", "give either a Calendar or its fields, not both")
    return calendar


def declare_calendar(core: Core, calendar: Calendar, source: str) -> DeclaredCalendar:
    """Add a declaration; repeating the same one, as when a module is imported again, is allowed."""
    check_calendar_name(calendar.name)
    declared = DeclaredCalendar(calendar, source)
    known: DeclaredCalendar | None = core.declared_calendars.get(calendar.name)
    if known is not None and (known.source, known.calendar) != (source, calendar):
        raise CalendarExists(calendar.name, (known.source, source))
    core.declared_calendars[calendar.name] = declared
    return declared
