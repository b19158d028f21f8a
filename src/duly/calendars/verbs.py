"""`app.calendars`: create, change and attach calendars, each shared by any number of schedules."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

import msgspec

from duly.calendars.changes import changed, compare
from duly.calendars.holidays import holidays
from duly.calendars.views import (
    CalendarChanges,
    CalendarContent,
    CalendarKey,
    EndingCalendar,
    StoredCalendar,
    TickChange,
    as_stored,
    name_of,
    seed,
    understood,
)
from duly.clock import from_ms
from duly.core import Core
from duly.errors import (
    CalendarExists,
    CalendarNotFound,
    InvalidCalendar,
    InvalidOption,
    ReadOnlyCalendar,
    StaleVersion,
)
from duly.functions.checks import check_text, id_for
from duly.ids import is_id
from duly.model.calendar import SEEDS, WARN_DAYS, Calendar, CalendarKind, Dates, Day, read_date
from duly.model.ical import MAX_TEXT, dates_of
from duly.model.schedule import ScheduleFilter, ScheduleRecord
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.schedules.checks import check_after, check_by, check_calendar_name
from duly.schedules.declared_calendars import calendar_from
from duly.schedules.define import known_calendars, to_json
from duly.schedules.views import Schedule
from duly.store.schedules.calendars import CalendarRecord, read_calendar
from duly.zones import zone

MAX_LISTED = 1_000
MAX_COMPARED = 1_000
IMPORTED_YEARS = 5
"""How many years beyond this one an import without an end covers."""


class Calendars:
    """Create, change and attach the calendars of an app, and read the built-in ones.

    A calendar is identified by its name, which is unique for its owner, or by its id. `of(owner)`
    returns the same methods, limited to one owner's calendars. Built-in calendars cannot be
    changed.
    """

    def __init__(self, core: Core, owner: str | None = None) -> None:
        self._core = core
        self._owner = owner

    def of(self, owner: str) -> Calendars:
        """Return the calendars of one owner."""
        check_text("owner", owner)
        return Calendars(self._core, owner)

    # Reading

    def get(self, calendar: CalendarKey) -> StoredCalendar:
        """Return the calendar as it is now; CalendarNotFound if there is none."""
        name = name_of(calendar)
        if name in SEEDS:
            return seed(name)
        return as_stored(self._record(name))

    def list(self, *, after: str | None = None, limit: int = 100) -> list[StoredCalendar]:
        """Return the built-in calendars, then the others, oldest first.

        `after` is the last id on the previous page; at most `limit` calendars after it are
        returned.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
            raise InvalidOption("limit", f"must be 1 to {MAX_LISTED:,}, not {limit!r}")
        # A page that ends with a built-in calendar has shown all of them.
        seeds = [seed(name) for name in SEEDS] if after is None else []
        after = None if after in tuple(SEEDS) else after
        check_after(after, "calendar")
        found = self._core.ready().calendars(self._owner, after, limit)
        return seeds + [as_stored(record) for record in found if read_calendar(record.definition)]

    # Creating and changing

    def create(
        self,
        calendar: str | Calendar,
        kind: str | None = None,
        *,
        tz: str = "UTC",
        dates: Dates = (),
        rules: Iterable[str] = (),
        by: str | None = None,
        id: str | None = None,
    ) -> StoredCalendar:
        """Create a calendar: `create("plant closed", "skip_dates", dates=[…])`, or from a Calendar.

        `id`: the id of the new calendar.
        """
        refuse_inside_mutation("calendars.create")
        check_by(by)
        calendar = calendar_from(calendar, kind, tz, dates, rules)
        check_calendar_name(calendar.name)
        now = self._core.now()
        definition, made_id = to_json(calendar.encode()), id_for(id, now)
        record = CalendarRecord(made_id, self._for(), calendar.name, definition, 1, now, now)
        if not self._core.ready().add_calendar(record, by, now):
            raise CalendarExists(calendar.name)
        # The ticker may have left out declared schedules that need it.
        self._core.wake_ticker()
        return as_stored(record)

    def clone(
        self,
        source: CalendarKey,
        name: str,
        *,
        by: str | None = None,
        **changes: Unpack[CalendarContent],
    ) -> StoredCalendar:
        """Copy a calendar under another name, with the given changes."""
        known = cast("Mapping[str, Any]", changes)
        return self.create(changed(self.get(source).calendar, {**known, "name": name}), by=by)

    def update(
        self,
        calendar: CalendarKey,
        /,
        *,
        version: int | None = None,
        by: str | None = None,
        **changes: Unpack[CalendarChanges],
    ) -> StoredCalendar:
        """Change the given fields, immediately and for all schedules that use the calendar.

        `version`: raise StaleVersion if the calendar has changed since it was read.
        """
        refuse_inside_mutation("calendars.update")
        check_by(by)
        known = cast("Mapping[str, Any]", changes)

        def change(record: CalendarRecord) -> CalendarRecord | None:
            if version is not None and record.version != version:
                raise StaleVersion(record.name, version, record.version)
            before = understood(record)
            after = changed(before, known)
            if after == before:
                return None
            if after.name != before.name:
                _check_rename(record, after.name)
            definition = to_json(after.encode())
            return msgspec.structs.replace(record, name=after.name, definition=definition)

        found = self._changeable(calendar)
        record = self._core.ready().edit_calendar(found.id, change, by, self._core.now())
        if record is None:
            raise CalendarNotFound(found.name)
        self._core.wake_ticker()
        return as_stored(record)

    def remove(self, calendar: CalendarKey, *, by: str | None = None) -> None:
        """Remove a calendar; the schedules that use it continue without it."""
        refuse_inside_mutation("calendars.remove")
        check_by(by)
        found = self._changeable(calendar)
        self._core.ready().remove_calendar(found.id, by, self._core.now())
        self._core.wake_ticker()

    # Imports

    def import_ical(
        self,
        name: str,
        source: str | os.PathLike[str],
        *,
        kind: str | None = None,
        tz: str | None = None,
        first: Day | None = None,
        last: Day | None = None,
        by: str | None = None,
    ) -> StoredCalendar:
        """Import the dates of events in an iCalendar file, given as text or as a `Path`.

        Creates the calendar, or replaces the dates of the one with that name. Repeating events are
        expanded from `first` to `last`; default: this year and the next five.
        """
        refuse_inside_mutation("calendars.import_ical")
        text = _ical_text(source)

        def dates(tz: str) -> dict[dt.date, str]:
            since, until = self._window(tz, first, last)
            found = dict(dates_of(text, since, until, tz))
            if not found:
                raise InvalidCalendar("ical", f"there is no event from {since} to {until}")
            return found

        return self._put(name, kind, tz, dates, by, default_tz="UTC")

    def holidays(
        self,
        name: str,
        country: str,
        years: int | Iterable[int],
        *,
        subdivision: str | None = None,
        kind: str | None = None,
        tz: str | None = None,
        by: str | None = None,
    ) -> StoredCalendar:
        """Import the public holidays of a country, or of a part of it, from the `holidays` package.

        Creates the calendar, whose zone must be given, or replaces the dates of the one with that
        name.
        """
        refuse_inside_mutation("calendars.holidays")
        found = dict(holidays(country, years, subdivision))
        return self._put(name, kind, tz, lambda _: found, by)

    # Previews

    def changes(
        self, calendar: CalendarKey, /, n: int = 10, **changes: Unpack[CalendarChanges]
    ) -> Sequence[TickChange]:
        """Return which of the next `n` ticks of each attached schedule `update(…)` would change.

        Only calendars are considered, not conditions or anything else that may stop a tick; nothing
        is stored.
        """
        if type(n) is not int or not 1 <= n <= MAX_COMPARED:
            raise InvalidOption("n", f"must be 1 to {MAX_COMPARED:,}, not {n!r}")
        record = self._changeable(calendar)
        before = understood(record)
        after = changed(before, cast("Mapping[str, Any]", changes))
        now = self._core.now()
        return [
            change
            for schedule in self._attached(record.id)
            for change in compare(schedule, before, after, n, now)
        ]

    def ending(self, days: int = WARN_DAYS) -> Sequence[EndingCalendar]:
        """Return calendars in use whose last date has passed, or comes within `days` days."""
        if type(days) is not int or days < 0:
            raise InvalidOption("days", f"must be a whole number from 0, not {days!r}")
        now = self._core.now()
        found: list[EndingCalendar] = []
        for stored in self._all():
            last = stored.calendar.runs_out(now, days)
            if last is None:
                continue
            attached = tuple(Schedule(self._core, each) for each in self._attached(stored.id))
            if attached:
                found.append(EndingCalendar(stored, last, attached))
        return sorted(found, key=lambda ending: ending.last_date)

    # Inside

    def _record(self, name: str) -> CalendarRecord:
        record = self._find(name)
        if record is None:
            raise CalendarNotFound(name, known_calendars(self._core, self._for()))
        return record

    def _find(self, name: str) -> CalendarRecord | None:
        store = self._core.ready()
        found = store.calendar(name) if is_id(name) else store.calendar_named(self._for(), name)
        hidden = found is not None and self._owner is not None and found.owner != self._owner
        return None if hidden else found

    def _for(self) -> str:
        return self._owner or ""

    def _changeable(self, calendar: CalendarKey) -> CalendarRecord:
        name = name_of(calendar)
        if name in SEEDS:
            raise ReadOnlyCalendar(name)
        return self._record(name)

    def _put(
        self,
        name: str,
        kind: str | None,
        tz: str | None,
        dates: Callable[[str], Dates],
        by: str | None,
        *,
        default_tz: str | None = None,
    ) -> StoredCalendar:
        """Create a calendar with these dates, or replace the dates of an existing one."""
        if name_of(name) in SEEDS:
            raise ReadOnlyCalendar(name)
        found = self._find(name)
        if found is None:
            zone_name = default_tz if tz is None else tz
            if zone_name is None:
                hint = f'{name!r} is new; for example tz="Europe/Istanbul"'
                raise InvalidCalendar("tz", "give the time zone of the dates", hint)
            chosen = CalendarKind.SKIP_DATES if kind is None else kind
            return self.create(name, chosen, tz=zone_name, dates=dates(zone_name), by=by)
        changes: CalendarChanges = {"dates": dates(understood(found).tz if tz is None else tz)}
        if kind is not None:
            changes["kind"] = kind
        if tz is not None:
            changes["tz"] = tz
        # The dates were computed for its zone as it was read.
        return self.update(found.id, version=found.version, by=by, **changes)

    def _window(self, tz: str, first: Day | None, last: Day | None) -> tuple[dt.date, dt.date]:
        year = from_ms(self._core.now()).astimezone(zone(tz).info).year
        since = dt.date(year, 1, 1) if first is None else read_date(first, "first")
        until = dt.date(year + IMPORTED_YEARS, 12, 31)
        until = until if last is None else read_date(last, "last")
        if until < since:
            raise InvalidCalendar("last", f"{until} is before the first date, {since}")
        return since, until

    def _all(self) -> Iterator[StoredCalendar]:
        yield from map(seed, SEEDS)
        after: str | None = None
        while page := self._core.ready().calendars(self._owner, after, MAX_LISTED):
            yield from (as_stored(record) for record in page if read_calendar(record.definition))
            after = page[-1].id

    def _attached(self, calendar_id: str) -> Iterator[ScheduleRecord]:
        after: str | None = None
        while True:
            wanted = ScheduleFilter(owner=self._owner, calendar=calendar_id, after_id=after)
            page = self._core.ready().schedules(wanted)
            if not page:
                return
            yield from page
            after = page[-1].id


def _check_rename(record: CalendarRecord, name: str) -> None:
    check_calendar_name(name)
    if record.app:
        reason = f"{record.name!r} is declared in code under this name"
        raise InvalidOption("name", reason, "rename it in the code, or clone it")


def _ical_text(source: str | os.PathLike[str]) -> str:
    # Text is never interpreted as a file name: it may come from an end user.
    if isinstance(source, str):
        return source
    if not isinstance(source, os.PathLike):
        raise InvalidCalendar("ical", f"must be text or a Path, not {source!r}")
    with Path(source).open("rb") as file:
        content = file.read(4 * MAX_TEXT + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidCalendar("ical", f"{source} is not UTF-8: {error}") from None
