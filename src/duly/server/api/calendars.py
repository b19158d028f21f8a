"""Calendars: the dates on which schedules may tick."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from duly.app import Duly, operations
from duly.calendars import Calendars, StoredCalendar, TickChange
from duly.calendars.changes import changed
from duly.clock import to_ms
from duly.model.access import Principal
from duly.model.calendar import SEEDS, WARN_DAYS, CalendarKind
from duly.server.answers import Ms, Shape, Time
from duly.server.api.common import App, Limit, Once, Page, owner_of, page
from duly.server.auth import Operator, Reader, ScopedRoute

router = APIRouter(prefix="/calendars", tags=["calendars"], route_class=ScopedRoute)

MAX_COMPARED = 200

Dates = Annotated[
    dict[str, str] | list[str],
    Field(description='Days such as "2026-07-03": a list, or an object with their names.'),
]
Name = Annotated[str, Field(min_length=1, max_length=200)]


# Shapes ------------------------------------------------------------------------------------------


class CalendarShape(Shape):
    id: str = Field(description="What schedules call it; of a read-only one its name.")
    name: str
    owner: str | None
    read_only: bool = Field(description="Whether it comes with duly.")
    kind: CalendarKind
    tz: str
    dates: dict[str, str]
    rules: list[str]
    last_date: str | None = Field(description="None if it has no end.")
    version: int
    created_at: Time | None
    created_at_ms: Ms | None
    updated_at: Time | None
    updated_at_ms: Ms | None


class NewCalendarBody(Shape):
    name: Name
    kind: CalendarKind
    tz: str = "UTC"
    dates: Dates = Field(default_factory=list[str])
    rules: list[str] = Field(default_factory=list)
    owner: str | None = None


class ContentBody(Shape):
    """What of a calendar is to be different; what is left out stays."""

    add: Dates = Field(default_factory=list[str])
    remove: list[str] = Field(default_factory=list)
    dates: Dates = Field(default_factory=list[str], description="All of them.")
    rules: list[str] = Field(default_factory=list)
    kind: CalendarKind = CalendarKind.SKIP_DATES
    tz: str = "UTC"

    def given(self) -> dict[str, Any]:
        """What was given."""
        known = self.model_fields_set & set(ContentBody.model_fields)
        return {name: getattr(self, name) for name in known}


class CalendarChangesBody(ContentBody):
    version: int = Field(description="As it was read: 409 if it has changed since.")
    name: Name | None = None

    def given(self) -> dict[str, Any]:
        return super().given() | ({} if self.name is None else {"name": self.name})


class CloneBody(ContentBody):
    name: Name
    owner: str | None = Field(None, description="Whose the copy is; else whose the original is.")


class CompareBody(ContentBody):
    n: int = Field(10, ge=1, le=MAX_COMPARED, description="How many ticks of each schedule.")


class ImportBody(Shape):
    name: Name
    ical: str = Field(description="The text of an iCalendar file.")
    kind: CalendarKind | None = None
    tz: str | None = None
    first: str | None = Field(None, description="From this day on; else from this year on.")
    last: str | None = Field(None, description="To this day; else for five years.")
    owner: str | None = None


class HolidaysBody(Shape):
    name: Name
    country: str = Field(min_length=2, max_length=10, description='Such as "TR".')
    years: int | list[int]
    subdivision: str | None = None
    kind: CalendarKind | None = None
    tz: str | None = None
    owner: str | None = None


class TickChangeShape(Shape):
    """A coming tick that would be treated in another way."""

    schedule_id: str
    key: str
    owner: str | None
    tick_at: Time
    tick_at_ms: Ms
    before: str | None = Field(description="dispatch or skip; None if it is over by then.")
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


# All of them -------------------------------------------------------------------------------------


@router.get("")
def find(
    app: App,
    who: Reader,
    owner: str | None = None,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    limit: Limit = 100,
) -> Page[CalendarShape]:
    """Those that come with duly, which everybody may read, then the others, oldest first."""
    calendars = _of(app, owner_of(who, owner))
    found = [*_seeds_after(app, after)]
    if len(found) <= limit:
        # The verb gives no seeds after a seed.
        since = list(SEEDS)[-1] if after is None or after in SEEDS else after
        found += calendars.list(after=since, limit=limit + 1)
    return page([_shape(each) for each in found], limit, lambda each: each.id)


@router.post("", status_code=201, responses={200: {"model": CalendarShape}})
def create(app: App, who: Operator, once: Once, body: NewCalendarBody) -> CalendarShape:
    """Make a calendar: 201 with it, 200 with the one that an earlier request made."""
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


@router.post("/import")
def import_ical(app: App, who: Operator, body: ImportBody) -> CalendarShape:
    """Take the dates of an iCalendar file: make the calendar, or replace its dates."""
    given = body.model_dump(exclude={"owner", "name", "ical"})
    calendars = _of(app, owner_of(who, body.owner))
    return _shape(calendars.import_ical(body.name, body.ical, by=who.name, **given))


@router.post("/holidays")
def holidays(app: App, who: Operator, body: HolidaysBody) -> CalendarShape:
    """Take the public holidays of a country: make the calendar, or replace its dates."""
    given = body.model_dump(exclude={"owner"})
    return _shape(_of(app, owner_of(who, body.owner)).holidays(by=who.name, **given))


@router.get("/ending")
def ending(
    app: App,
    who: Reader,
    days: Annotated[int, Query(ge=0, le=3_660)] = WARN_DAYS,
    owner: str | None = None,
) -> list[EndingShape]:
    """Calendars in use whose last date has passed, or comes within so many days."""
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


# One of them -------------------------------------------------------------------------------------


@router.get("/{calendar}")
def get(app: App, who: Reader, calendar: str) -> CalendarShape:
    """By its name, or its id."""
    return _shape(_of(app, who.owner).get(calendar))


@router.patch("/{calendar}")
def update(app: App, who: Operator, calendar: str, body: CalendarChangesBody) -> CalendarShape:
    """Change what is given, for all schedules that it is attached to, at once."""
    calendars = _of(app, who.owner)
    return _shape(calendars.update(calendar, version=body.version, by=who.name, **body.given()))


@router.delete("/{calendar}", status_code=204)
def remove(app: App, who: Operator, calendar: str) -> None:
    """Remove it; the schedules that it was attached to go on without it."""
    _of(app, who.owner).remove(calendar, by=who.name)


@router.post("/{calendar}/clone", status_code=201, responses={200: {"model": CalendarShape}})
def clone(app: App, who: Operator, once: Once, calendar: str, body: CloneBody) -> CalendarShape:
    """Make a calendar of another name out of one, changed where something is given."""

    def make(calendar_id: str | None) -> StoredCalendar:
        source = _of(app, who.owner).get(calendar)
        owner = owner_of(who, body.owner) or source.owner
        copy = changed(source.calendar, {**body.given(), "name": body.name})
        return operations.calendars(app, owner).create(copy, by=who.name, id=calendar_id)

    return _shape(once.make(who, body, make, app.calendars.get))


@router.get("/{calendar}/changes")
def changes(
    app: App,
    who: Reader,
    calendar: str,
    add: Annotated[list[str] | None, Query(description="Days.")] = None,
    remove: Annotated[list[str] | None, Query(description="Days.")] = None,
    dates: Annotated[list[str] | None, Query(description="All of its days.")] = None,
    rules: Annotated[list[str] | None, Query()] = None,
    kind: CalendarKind | None = None,
    tz: str | None = None,
    n: Annotated[int, Query(ge=1, le=MAX_COMPARED)] = 10,
) -> list[TickChangeShape]:
    """Which of the next ticks of each attached schedule such a change would change."""
    asked = {"add": add, "remove": remove, "dates": dates, "rules": rules, "kind": kind, "tz": tz}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    return _compared(app, who, calendar, n, given)


@router.post("/{calendar}/changes")
def compare(app: App, who: Reader, calendar: str, body: CompareBody) -> list[TickChangeShape]:
    """The same, for more dates than fit into an address; nothing is changed."""
    return _compared(app, who, calendar, body.n, body.given())


# What they are made of ---------------------------------------------------------------------------


def _of(app: Duly, owner: str | None) -> Calendars:
    return app.calendars if owner is None else app.calendars.of(owner)


def _seeds_after(app: Duly, after: str | None) -> Iterator[StoredCalendar]:
    names = list(SEEDS)
    if after is not None:
        names = names[names.index(after) + 1 :] if after in SEEDS else []
    yield from (app.calendars.get(name) for name in names)


def _compared(
    app: Duly, who: Principal, calendar: str, n: int, given: dict[str, Any]
) -> list[TickChangeShape]:
    return [_tick_change(each) for each in _of(app, who.owner).changes(calendar, n, **given)]


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
