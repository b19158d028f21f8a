"""Calendars: the dates on which schedules may tick."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import asdict

from duly.app import Duly, operations
from duly.calendars import Calendars, StoredCalendar, TickChange
from duly.calendars.changes import changed
from duly.clock import to_ms
from duly.model.access import Principal
from duly.model.calendar import SEEDS, WARN_DAYS, CalendarKind
from duly.server.answers import Ms, Shape, Time, given
from duly.server.api.common import Cursor, Limit, Page, owner_of, page
from duly.server.api.operation import Operations, Operator, Reader
from duly.server.api.repeatable import Repeatable

api = Operations("calendars", "/calendars")

MAX_COMPARED = 200

Dates = Annotated[
    dict[str, str] | list[str],
    Meta(description='Days such as "2026-07-03": a list, or an object from day to name.'),
]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


# Shapes ------------------------------------------------------------------------------------------


class CalendarShape(Shape):
    id: Annotated[str, Meta(description="The id; for a built-in calendar its name.")]
    name: str
    owner: str | None
    read_only: Annotated[bool, Meta(description="Whether the calendar is built in.")]
    declared: Annotated[bool, Meta(description="Whether the calendar is declared in code.")]
    orphaned: Annotated[bool, Meta(description="Whether code has stopped declaring it.")]
    kind: CalendarKind
    tz: str
    dates: dict[str, str]
    rules: list[str]
    last_date: Annotated[str | None, Meta(description="null if the calendar has no end.")]
    version: int
    created_at: Time | None
    created_at_ms: Ms | None
    updated_at: Time | None
    updated_at_ms: Ms | None


class NewCalendarBody(Shape):
    name: Name
    kind: CalendarKind
    tz: str = "UTC"
    dates: Dates = field(default_factory=list[str])
    rules: list[str] = field(default_factory=list[str])
    owner: str | None = None


class ContentBody(Shape):
    """The changes to a calendar; fields that are left out stay as they are."""

    add: Dates | UnsetType = UNSET
    remove: list[str] | UnsetType = UNSET
    dates: Annotated[Dates, Meta(description="The complete list of dates.")] | UnsetType = UNSET
    rules: list[str] | UnsetType = UNSET
    kind: CalendarKind | UnsetType = UNSET
    tz: str | UnsetType = UNSET

    def content(self) -> dict[str, Any]:
        """The fields that were set."""
        return {name: each for name, each in given(self).items() if name in CONTENT}


CONTENT = frozenset(ContentBody.__struct_fields__)


class CalendarChangesBody(ContentBody, kw_only=True):
    version: Annotated[
        int, Meta(description="The version that you read; 409 if it has changed since.")
    ]
    name: Name | None = None

    def content(self) -> dict[str, Any]:
        return super().content() | ({} if self.name is None else {"name": self.name})


class CloneBody(ContentBody, kw_only=True):
    name: Name
    owner: Annotated[
        str | None, Meta(description="The owner of the copy. Default: the owner of the original.")
    ] = None


class CompareBody(ContentBody):
    n: Annotated[
        int, Meta(ge=1, le=MAX_COMPARED, description="How many ticks to compare for each schedule.")
    ] = 10


class ImportBody(Shape):
    name: Name
    ical: Annotated[str, Meta(description="The content of an iCalendar file.")]
    kind: CalendarKind | None = None
    tz: str | None = None
    first: Annotated[str | None, Meta(description="The first day. Default: 1 January.")] = None
    last: Annotated[str | None, Meta(description="The last day. Default: in five years.")] = None
    owner: str | None = None


class HolidaysBody(Shape):
    name: Name
    country: Annotated[str, Meta(min_length=2, max_length=10, description='For example "TR".')]
    years: int | list[int]
    subdivision: str | None = None
    kind: CalendarKind | None = None
    tz: str | None = None
    owner: str | None = None


class TickChangeShape(Shape):
    """An upcoming tick that would be decided differently."""

    schedule_id: str
    key: str
    owner: str | None
    tick_at: Time
    tick_at_ms: Ms
    before: Annotated[
        str | None, Meta(description="dispatch or skip; null if it has ended by then.")
    ]
    after: str | None
    due_before: Time | None
    due_after: Time | None
    why: str


class AttachedShape(Shape):
    id: str
    key: str
    owner: str | None


class EndingShape(Shape):
    calendar: CalendarShape
    last_date: str
    schedules: list[AttachedShape]


# List --------------------------------------------------------------------------------------------


@api.get("")
def find(
    app: Duly,
    who: Reader,
    owner: str | None = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[CalendarShape]:
    """List calendars: the built-in ones, visible to all owners, then the others, oldest first."""
    calendars = _of(app, owner_of(who, owner))
    found = [*_seeds_after(app, after)]
    if len(found) <= limit:
        # The verb does not return built-in calendars after one of them.
        since = list(SEEDS)[-1] if after is None or after in SEEDS else after
        found += calendars.list(after=since, limit=limit + 1)
    return page([_shape(each) for each in found], limit, lambda each: each.id)


@api.post("", status=201, again=CalendarShape)
def create(app: Duly, who: Operator, once: Repeatable, body: NewCalendarBody) -> CalendarShape:
    """Create a calendar: 201, or 200 with the one that an earlier request with the key created."""
    owner = owner_of(who, body.owner)

    def make(calendar_id: str | None) -> StoredCalendar:
        return operations.calendars(app, owner).create(
            body.name,
            body.kind,
            tz=body.tz,
            dates=body.dates,
            rules=body.rules,
            by=who.name,
            id=calendar_id,
        )

    return _shape(once.make(who, body, make, app.calendars.get))


@api.post("/import")
def import_ical(app: Duly, who: Operator, body: ImportBody) -> CalendarShape:
    """Import the dates of an iCalendar file: create the calendar, or replace its dates."""
    options = asdict(body)
    calendars = _of(app, owner_of(who, options.pop("owner")))
    name, ical = options.pop("name"), options.pop("ical")
    return _shape(calendars.import_ical(name, ical, by=who.name, **options))


@api.post("/holidays")
def holidays(app: Duly, who: Operator, body: HolidaysBody) -> CalendarShape:
    """Import the public holidays of a country: create the calendar, or replace its dates."""
    options = asdict(body)
    calendars = _of(app, owner_of(who, options.pop("owner")))
    return _shape(calendars.holidays(by=who.name, **options))


@api.get("/ending")
def ending(
    app: Duly,
    who: Reader,
    days: Annotated[int, Meta(ge=0, le=3_660)] = WARN_DAYS,
    owner: str | None = None,
) -> list[EndingShape]:
    """List calendars in use whose last date has passed or is within the given number of days."""
    return [
        EndingShape(
            calendar=_shape(each.calendar),
            last_date=each.last_date.isoformat(),
            schedules=[
                AttachedShape(id=found.id, key=found.key, owner=found.owner)
                for found in each.schedules
            ],
        )
        for each in _of(app, owner_of(who, owner)).ending(days)
    ]


# Detail ------------------------------------------------------------------------------------------


@api.get("/{calendar}")
def get(app: Duly, who: Reader, calendar: str) -> CalendarShape:
    """Get a calendar by name or id."""
    return _shape(_of(app, who.owner).get(calendar))


@api.patch("/{calendar}")
def update(app: Duly, who: Operator, calendar: str, body: CalendarChangesBody) -> CalendarShape:
    """Update a calendar; the change applies immediately to all schedules that use it."""
    calendars = _of(app, who.owner)
    return _shape(calendars.update(calendar, version=body.version, by=who.name, **body.content()))


@api.delete("/{calendar}", status=204)
def remove(app: Duly, who: Operator, calendar: str) -> None:
    """Remove a calendar; schedules that used it continue without it."""
    _of(app, who.owner).remove(calendar, by=who.name)


@api.post("/{calendar}/clone", status=201, again=CalendarShape)
def clone(
    app: Duly, who: Operator, once: Repeatable, calendar: str, body: CloneBody
) -> CalendarShape:
    """Copy a calendar under another name, with the given changes."""

    def make(calendar_id: str | None) -> StoredCalendar:
        source = _of(app, who.owner).get(calendar)
        owner = owner_of(who, body.owner) or source.owner
        copy = changed(source.calendar, {**body.content(), "name": body.name})
        return operations.calendars(app, owner).create(copy, by=who.name, id=calendar_id)

    return _shape(once.make(who, body, make, app.calendars.get))


@api.get("/{calendar}/changes")
def changes(
    app: Duly,
    who: Reader,
    calendar: str,
    add: Annotated[list[str] | None, Meta(description="Days.")] = None,
    remove: Annotated[list[str] | None, Meta(description="Days.")] = None,
    dates: Annotated[list[str] | None, Meta(description="The complete list of days.")] = None,
    rules: list[str] | None = None,
    kind: CalendarKind | None = None,
    tz: str | None = None,
    n: Annotated[int, Meta(ge=1, le=MAX_COMPARED)] = 10,
) -> list[TickChangeShape]:
    """Preview a change: the upcoming ticks of each attached schedule that would change."""
    asked = {"add": add, "remove": remove, "dates": dates, "rules": rules, "kind": kind, "tz": tz}
    content = {name: value for name, value in asked.items() if value is not None}
    return _compared(app, who, calendar, n, content)


@api.post("/{calendar}/changes")
def compare(app: Duly, who: Reader, calendar: str, body: CompareBody) -> list[TickChangeShape]:
    """Preview a change with more dates than fit into a URL; nothing is saved."""
    return _compared(app, who, calendar, body.n, body.content())


# Helpers -----------------------------------------------------------------------------------------


def _of(app: Duly, owner: str | None) -> Calendars:
    return app.calendars if owner is None else app.calendars.of(owner)


def _seeds_after(app: Duly, after: str | None) -> Iterator[StoredCalendar]:
    names = list(SEEDS)
    if after is not None:
        names = names[names.index(after) + 1 :] if after in SEEDS else []
    yield from (app.calendars.get(name) for name in names)


def _compared(
    app: Duly, who: Principal, calendar: str, n: int, content: dict[str, Any]
) -> list[TickChangeShape]:
    return [_tick_change(each) for each in _of(app, who.owner).changes(calendar, n, **content)]


def _tick_change(change: TickChange) -> TickChangeShape:
    return TickChangeShape(
        schedule_id=change.schedule_id,
        key=change.key,
        owner=change.owner,
        tick_at=change.at,
        tick_at_ms=to_ms(change.at),
        before=change.before,
        after=change.after,
        due_before=change.due_before,
        due_after=change.due_after,
        why=change.why,
    )


def _shape(stored: StoredCalendar) -> CalendarShape:
    last = stored.calendar.last_date()
    return CalendarShape(
        id=stored.id,
        name=stored.name,
        owner=stored.owner,
        read_only=stored.read_only,
        declared=stored.declared,
        orphaned=stored.orphaned,
        kind=stored.kind,
        tz=stored.tz,
        dates={day.isoformat(): label for day, label in stored.dates.items()},
        rules=list(stored.rules),
        last_date=None if last is None else last.isoformat(),
        version=stored.version,
        created_at=stored.created,
        created_at_ms=_ms(stored.created),
        updated_at=stored.updated,
        updated_at_ms=_ms(stored.updated),
    )


def _ms(instant: dt.datetime | None) -> int | None:
    return None if instant is None else to_ms(instant)
