"""The verbs of `app.calendars`: calendars as data, shared by any number of schedules."""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import msgspec

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
from duly.functions import check_text
from duly.holidays import holidays
from duly.ids import is_id, new_id
from duly.inside import refuse_inside_mutation
from duly.model.calendar import (
    SEEDS,
    WARN_DAYS,
    Calendar,
    CalendarKind,
    Dates,
    Day,
    read_date,
    read_dates,
)
from duly.model.decide import Decided, Dispatch, Facts
from duly.model.ical import MAX_TEXT, dates_of
from duly.model.schedule import Plan, ScheduleRecord, plan_of
from duly.schedules.ahead import foresee
from duly.schedules.define import to_json
from duly.schedules.views import Schedule, time_of
from duly.store.schedules import CalendarRecord, ScheduleFilter, read_calendar
from duly.zones import zone

log = logging.getLogger(__name__)

MAX_LISTED = 1_000
MAX_COMPARED = 1_000
IMPORTED_YEARS = 5
"""An import without an end reaches so many years beyond the present one."""


# What users write and hold ------------------------------------------------------------------------


class CalendarContent(TypedDict, total=False):
    """What of a calendar is to be different."""

    add: Dates
    remove: Iterable[Day]
    dates: Dates
    """All of its dates, instead of those it has."""
    rules: Iterable[str]
    kind: str
    tz: str


class CalendarChanges(CalendarContent, total=False):
    name: str


class StoredCalendar(msgspec.Struct, frozen=True):
    """One calendar as it was when it was read."""

    id: str
    """What schedules call it; of a read-only one its name."""
    owner: str | None
    calendar: Calendar
    read_only: bool
    """Whether it comes with duly."""
    version: int
    created: dt.datetime | None = None
    updated: dt.datetime | None = None

    @property
    def name(self) -> str:
        return self.calendar.name

    @property
    def kind(self) -> CalendarKind:
        return self.calendar.kind

    @property
    def tz(self) -> str:
        return self.calendar.tz

    @property
    def dates(self) -> Mapping[dt.date, str]:
        return self.calendar.dates

    @property
    def rules(self) -> tuple[str, ...]:
        return self.calendar.rules


class TickChange(msgspec.Struct, frozen=True):
    """One coming tick that another calendar would treat in another way."""

    schedule_id: str
    key: str
    owner: str | None
    at: dt.datetime
    """The nominal time."""
    before: str | None
    """dispatch or skip; None if the schedule would be over by then."""
    after: str | None
    due_before: dt.datetime | None
    due_after: dt.datetime | None
    why: str = ""
    """What the calendar says of the date where it is skipped."""


class EndingCalendar(msgspec.Struct, frozen=True):
    """A calendar that has ended or soon will, and the schedules that it decides about."""

    calendar: StoredCalendar
    last_date: dt.date
    schedules: tuple[Schedule, ...]


# The verbs ----------------------------------------------------------------------------------------


class Calendars:
    """The calendars of an app, and those that come with duly, which nobody can change.

    A calendar is named by its name, which is unique for its owner, or by its id. `of(owner)` gives
    the same verbs for one owner, who sees and changes nothing of others.
    """

    def __init__(self, core: Core, owner: str | None = None) -> None:
        self._core = core
        self._owner = owner

    def of(self, owner: str) -> Calendars:
        """The calendars of one owner."""
        check_text("owner", owner)
        return Calendars(self._core, owner)

    # Reading

    def get(self, calendar: str | StoredCalendar) -> StoredCalendar:
        """The calendar as it is now; CalendarNotFound if there is none."""
        name = _name_of(calendar)
        if name in SEEDS:
            return _seed(name)
        return _stored(self._record(name))

    def list(self, *, after: str | None = None, limit: int = 100) -> list[StoredCalendar]:
        """Those that come with duly, then the others, oldest first.

        `after` is the id of the last one of the page before; the first `limit` after it are given.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
            raise InvalidOption("limit", f"must be 1 to {MAX_LISTED:,}, not {limit!r}")
        # Whoever goes on after a seed has seen all of them.
        seeds = [_seed(name) for name in SEEDS] if after is None else []
        after = None if after in SEEDS else after
        found = self._core.ready().calendars(self._owner, after, limit)
        return seeds + [_stored(record) for record in found if read_calendar(record.definition)]

    # Making and changing

    def create(
        self,
        calendar: str | Calendar,
        kind: str | None = None,
        *,
        tz: str = "UTC",
        dates: Dates = (),
        rules: Iterable[str] = (),
        by: str | None = None,
    ) -> StoredCalendar:
        """Make a calendar: `create("plant closed", "skip_dates", dates=[…])`, or of a Calendar."""
        refuse_inside_mutation("calendars.create")
        if not isinstance(calendar, Calendar):
            calendar = Calendar(calendar, cast(str, kind), tz=tz, dates=dates, rules=rules)
        elif kind is not None or (tz, dates, rules) != ("UTC", (), ()):
            raise InvalidOption("calendar", "give a Calendar, or what it is made of, not both")
        _check_name(calendar.name)
        now = self._core.now()
        definition = to_json(calendar.encode())
        record = CalendarRecord(new_id(now), self._for(), calendar.name, definition, 1, now, now)
        if not self._core.ready().add_calendar(record, by, now):
            raise CalendarExists(calendar.name)
        return _stored(record)

    def clone(
        self,
        source: str | StoredCalendar,
        name: str,
        *,
        by: str | None = None,
        **changes: Unpack[CalendarContent],
    ) -> StoredCalendar:
        """Make a calendar of another name out of one, changed where something is given."""
        known = cast("Mapping[str, Any]", changes)
        return self.create(_changed(self.get(source).calendar, {**known, "name": name}), by=by)

    def update(
        self,
        calendar: str | StoredCalendar,
        /,
        *,
        version: int | None = None,
        by: str | None = None,
        **changes: Unpack[CalendarChanges],
    ) -> StoredCalendar:
        """Change what is given, for all schedules that it is attached to, at once.

        `version`: refuse with StaleVersion if the calendar has changed since it was read.
        """
        refuse_inside_mutation("calendars.update")
        known = cast("Mapping[str, Any]", changes)

        def change(record: CalendarRecord) -> CalendarRecord | None:
            if version is not None and record.version != version:
                raise StaleVersion(record.name, version, record.version)
            before = _understood(record)
            after = _changed(before, known)
            if after == before:
                return None
            if after.name != before.name:
                _check_name(after.name)
            definition = to_json(after.encode())
            return msgspec.structs.replace(record, name=after.name, definition=definition)

        found = self._changeable(calendar)
        record = self._core.ready().edit_calendar(found.id, change, by, self._core.now())
        if record is None:
            raise CalendarNotFound(found.name)
        self._core.wake_ticker()
        return _stored(record)

    def remove(self, calendar: str | StoredCalendar, *, by: str | None = None) -> None:
        """Remove it; the schedules that it was attached to go on without it."""
        refuse_inside_mutation("calendars.remove")
        found = self._changeable(calendar)
        self._core.ready().remove_calendar(found.id, by, self._core.now())
        self._core.wake_ticker()

    # From elsewhere

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
        """Take the dates that the events of an iCalendar file touch: its text, or a `Path`.

        Makes the calendar, or replaces the dates of the one of that name. Repeating events are
        followed from `first` to `last`: by default this year and the next five.
        """
        refuse_inside_mutation("calendars.import_ical")
        text = _ical_text(source)

        def dates(tz: str) -> dict[dt.date, str]:
            since, until = self._window(tz, first, last)
            found = dict(dates_of(text, since, until, tz))
            if not found:
                raise InvalidCalendar("ical", f"no event touches a date from {since} to {until}")
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
        """Take the public holidays of a country, or of a part of it, from the `holidays` package.

        Makes the calendar, whose zone must be given, or replaces the dates of the one of that name.
        """
        refuse_inside_mutation("calendars.holidays")
        found = dict(holidays(country, years, subdivision))
        return self._put(name, kind, tz, lambda _: found, by)

    # Looking ahead

    def changes(
        self, calendar: str | StoredCalendar, /, n: int = 10, **changes: Unpack[CalendarChanges]
    ) -> Sequence[TickChange]:
        """Which of the next `n` ticks of each attached schedule `update(…)` would change.

        Only calendars are asked, neither conditions nor what else may stop a tick; nothing is
        stored.
        """
        if type(n) is not int or not 1 <= n <= MAX_COMPARED:
            raise InvalidOption("n", f"must be 1 to {MAX_COMPARED:,}, not {n!r}")
        record = self._changeable(calendar)
        before = _understood(record)
        after = _changed(before, cast("Mapping[str, Any]", changes))
        now = self._core.now()
        return [
            change
            for schedule in self._attached(record.id)
            for change in _compare(schedule, before, after, n, now)
        ]

    def ending(self, days: int = WARN_DAYS) -> Sequence[EndingCalendar]:
        """Calendars in use whose last date has passed, or comes within so many days."""
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
            raise CalendarNotFound(name)
        return record

    def _find(self, name: str) -> CalendarRecord | None:
        store = self._core.ready()
        found = store.calendar(name) if is_id(name) else store.calendar_named(self._for(), name)
        hidden = found is not None and self._owner is not None and found.owner != self._owner
        return None if hidden else found

    def _for(self) -> str:
        return self._owner or ""

    def _changeable(self, calendar: str | StoredCalendar) -> CalendarRecord:
        name = _name_of(calendar)
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
        """Make a calendar of these dates, or give them to the one that there is."""
        if _name_of(name) in SEEDS:
            raise ReadOnlyCalendar(name)
        found = self._find(name)
        if found is None:
            zone_name = tz or default_tz
            if zone_name is None:
                hint = f'tz="Europe/Istanbul" makes them dates of Istanbul: {name!r} is new'
                raise InvalidCalendar("tz", "give the zone whose dates these are", hint)
            chosen = kind or CalendarKind.SKIP_DATES
            return self.create(name, chosen, tz=zone_name, dates=dates(zone_name), by=by)
        changes: CalendarChanges = {"dates": dates(tz or _understood(found).tz)}
        if kind is not None:
            changes["kind"] = kind
        if tz is not None:
            changes["tz"] = tz
        # The dates were worked out for its zone as it was read.
        return self.update(found.id, version=found.version, by=by, **changes)

    def _window(self, tz: str, first: Day | None, last: Day | None) -> tuple[dt.date, dt.date]:
        year = from_ms(self._core.now()).astimezone(zone(tz).info).year
        since = dt.date(year, 1, 1) if first is None else read_date(first, "first")
        until = dt.date(year + IMPORTED_YEARS, 12, 31)
        until = until if last is None else read_date(last, "last")
        if until < since:
            raise InvalidCalendar("last", f"{until} lies before the first date, {since}")
        return since, until

    def _all(self) -> Iterator[StoredCalendar]:
        yield from map(_seed, SEEDS)
        after: str | None = None
        while page := self._core.ready().calendars(self._owner, after, MAX_LISTED):
            yield from (_stored(record) for record in page if read_calendar(record.definition))
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


# Calendars ----------------------------------------------------------------------------------------


def _name_of(calendar: str | StoredCalendar) -> str:
    if isinstance(calendar, StoredCalendar):
        return calendar.id
    if not isinstance(calendar, str):
        raise InvalidOption("calendar", f"give the name of a calendar, not {calendar!r}")
    return calendar


def _seed(name: str) -> StoredCalendar:
    return StoredCalendar(name, None, SEEDS[name], read_only=True, version=0)


def _stored(record: CalendarRecord) -> StoredCalendar:
    return StoredCalendar(
        record.id,
        record.owner or None,
        _understood(record),
        read_only=False,
        version=record.version,
        created=from_ms(record.created_at),
        updated=from_ms(record.updated_at),
    )


def _understood(record: CalendarRecord) -> Calendar:
    calendar = read_calendar(record.definition)
    if calendar is None:
        raise InvalidCalendar("calendar", f"what is stored of {record.name!r} cannot be read")
    return calendar


def _check_name(name: str) -> None:
    if name in SEEDS:
        raise CalendarExists(name)
    if is_id(name):
        raise InvalidCalendar("name", f"{name!r} looks like an id", "choose another name")


def _changed(calendar: Calendar, changes: Mapping[str, Any]) -> Calendar:
    """The calendar with these changes; a zone that is not given is not looked up."""
    unknown = changes.keys() - {*CalendarContent.__annotations__, "name"}
    if unknown:
        raise InvalidOption(min(unknown), "a calendar has nothing of that name")
    fields = {name: changes.get(name, getattr(calendar, name)) for name in _FIELDS}
    after = Calendar.decode(fields | {"dates": _dates(calendar, changes)})
    if "tz" in changes:
        zone(after.tz)
    return after


_FIELDS = ("name", "kind", "tz", "rules")


def _dates(calendar: Calendar, changes: Mapping[str, Any]) -> dict[dt.date, str]:
    if "dates" in changes:
        if changes.keys() & {"add", "remove"}:
            raise InvalidOption("dates", "are all of its dates; give them, or add and remove")
        return read_dates(changes["dates"])
    dates = dict(calendar.dates)
    for day in read_dates(changes.get("remove", ()), "remove"):
        if day not in dates:
            hint = "days that come from a rule cannot be removed" if calendar.rules else ""
            raise InvalidCalendar("remove", f"{day} is not among its dates", hint)
        del dates[day]
    for day, label in read_dates(changes.get("add", ()), "add").items():
        dates[day] = label or dates.get(day, "")
    return dates


def _ical_text(source: str | os.PathLike[str]) -> str:
    # Text is never taken for the name of a file: it may come from a user of the user's.
    if isinstance(source, str):
        return source
    with Path(source).open("rb") as file:
        content = file.read(4 * MAX_TEXT + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidCalendar("ical", f"{source} is not in UTF-8: {error}") from None


# What would change --------------------------------------------------------------------------------


def _compare(
    schedule: ScheduleRecord, before: Calendar, after: Calendar, n: int, now: int
) -> Iterator[TickChange]:
    if schedule.next_tick_at is None:
        return
    plan = plan_of(schedule)
    old, new = (_foreseen(plan, calendar, n, now) for calendar in (before, after))
    for tick_at in sorted(old.keys() | new.keys()):
        one, other = old.get(tick_at), new.get(tick_at)
        said, says = _decision(one), _decision(other)
        due, will_be_due = one and one.due_at, other and other.due_at
        if (said, due) != (says, will_be_due):
            yield TickChange(
                schedule.id,
                schedule.key,
                schedule.owner or None,
                from_ms(tick_at),
                said,
                says,
                time_of(due),
                time_of(will_be_due),
                _why(other) or _why(one),
            )


def _foreseen(plan: Plan, calendar: Calendar, n: int, now: int) -> dict[int, Decided]:
    """The next ticks, as if nothing but the calendar could stop them."""
    assert plan.record.calendar is not None
    assert plan.record.next_tick_at is not None
    policies = msgspec.structs.replace(plan.policies, budget=None)
    free = msgspec.structs.replace(plan, condition=None, policies=policies)
    facts = Facts(calendars={plan.record.calendar: calendar})
    ticks = foresee(free, facts, plan.record.next_tick_at - 1, n, now)
    return {tick.tick_at: tick for tick in ticks}


def _decision(tick: Decided | None) -> str | None:
    if tick is None:
        return None
    return "dispatch" if isinstance(tick.decision, Dispatch) else "skip"


def _why(tick: Decided | None) -> str:
    if tick is None or isinstance(tick.decision, Dispatch):
        return ""
    return str(tick.decision.detail.get("why", ""))


# Async code ---------------------------------------------------------------------------------------


class AsyncCalendars:
    """`app.aio.calendars`: the verbs of `app.calendars`, awaited."""

    def __init__(self, core: Core, calendars: Calendars) -> None:
        self._core = core
        self._calendars = calendars

    def of(self, owner: str) -> AsyncCalendars:
        """The calendars of one owner."""
        return AsyncCalendars(self._core, self._calendars.of(owner))

    async def get(self, calendar: str | StoredCalendar) -> StoredCalendar:
        """The calendar as it is now; CalendarNotFound if there is none."""
        return await self._core.threads.read(partial(self._calendars.get, calendar))

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[StoredCalendar]:
        """Those that come with duly, then the others, oldest first."""
        return await self._core.threads.read(
            partial(self._calendars.list, after=after, limit=limit)
        )

    async def create(
        self,
        calendar: str | Calendar,
        kind: str | None = None,
        *,
        tz: str = "UTC",
        dates: Dates = (),
        rules: Iterable[str] = (),
        by: str | None = None,
    ) -> StoredCalendar:
        """Make a calendar."""
        return await self._core.threads.call(
            partial(self._calendars.create, calendar, kind, tz=tz, dates=dates, rules=rules, by=by)
        )

    async def clone(
        self,
        source: str | StoredCalendar,
        name: str,
        *,
        by: str | None = None,
        **changes: Unpack[CalendarContent],
    ) -> StoredCalendar:
        """Make a calendar of another name out of one, changed where something is given."""
        return await self._core.threads.call(
            lambda: self._calendars.clone(source, name, by=by, **changes)
        )

    async def update(
        self,
        calendar: str | StoredCalendar,
        /,
        *,
        version: int | None = None,
        by: str | None = None,
        **changes: Unpack[CalendarChanges],
    ) -> StoredCalendar:
        """Change what is given, for all schedules that it is attached to, at once."""
        return await self._core.threads.call(
            lambda: self._calendars.update(calendar, version=version, by=by, **changes)
        )

    async def remove(self, calendar: str | StoredCalendar, *, by: str | None = None) -> None:
        """Remove it; the schedules that it was attached to go on without it."""
        await self._core.threads.call(partial(self._calendars.remove, calendar, by=by))

    async def import_ical(
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
        """Take the dates that the events of an iCalendar file touch: its text, or a `Path`."""
        return await self._core.threads.call(
            lambda: self._calendars.import_ical(
                name, source, kind=kind, tz=tz, first=first, last=last, by=by
            )
        )

    async def holidays(
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
        """Take the public holidays of a country, or of a part of it."""
        return await self._core.threads.call(
            lambda: self._calendars.holidays(
                name, country, years, subdivision=subdivision, kind=kind, tz=tz, by=by
            )
        )

    async def changes(
        self, calendar: str | StoredCalendar, /, n: int = 10, **changes: Unpack[CalendarChanges]
    ) -> Sequence[TickChange]:
        """Which of the next `n` ticks of each attached schedule `update(…)` would change."""
        return await self._core.threads.read(
            lambda: self._calendars.changes(calendar, n, **changes)
        )

    async def ending(self, days: int = WARN_DAYS) -> Sequence[EndingCalendar]:
        """Calendars in use whose last date has passed, or comes within so many days."""
        return await self._core.threads.read(partial(self._calendars.ending, days))
