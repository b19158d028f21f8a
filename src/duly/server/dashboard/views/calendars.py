"""Calendars: the dates on which schedules may tick, as a year of checkboxes."""

from __future__ import annotations

import calendar as months
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from duly.app import operations
from duly.calendars.changes import changed, compare
from duly.calendars.holidays import MAX_YEARS, holidays
from duly.calendars.verbs import IMPORTED_YEARS
from duly.calendars.views import TickChange
from duly.clock import from_ms
from duly.errors import DulyError
from duly.model.calendar import Calendar, CalendarKind
from duly.model.ical import dates_of
from duly.model.schedule import ScheduleFilter, ScheduleRecord
from duly.model.yearly import RULES
from duly.server.answers import Refused
from duly.server.api import calendars as api
from duly.server.auth import Operator
from duly.server.dashboard.exports import Format, export, pages
from duly.server.dashboard.forms import Form, body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect, render

router = APIRouter(route_class=PageRoute)

PAGE = 50
FILE_PAGE = 200
MAX_SCHEDULES = 100
"""The most attached schedules for which the preview shows changed ticks."""
MAX_TICKS, FEWEST_TICKS, FURTHEST = 4_000, 20, 366
"""The total number of ticks checked: the fewer the schedules, the further ahead."""
FIRST_YEAR, LAST_YEAR = 1970, 2200
Days = dict[dt.date, str]


# List --------------------------------------------------------------------------------------------


@router.get("/calendars")
def calendars(viewer: Viewing, after: str | None = None) -> Response:
    page = api.find(viewer.app, viewer.who, after=after, limit=PAGE)
    return _list(viewer, page=page, after=after)


def _list(viewer: Viewer, status: int = 200, **values: Any) -> Response:
    given = {"error": None, "opened": "", "values": EMPTY_FORM, "after": None}
    page = values.get("page") or api.find(viewer.app, viewer.who, limit=PAGE)
    return render(
        viewer,
        "calendars.html",
        status,
        **given | {"page": page, "kinds": list(CalendarKind)} | values,
    )


EMPTY_FORM = dict.fromkeys(("name", "kind", "tz", "country", "subdivision", "years", "ical"), "")


@router.get("/calendars.{format}")
def calendars_file(viewer: Viewing, format: Format) -> Response:
    """The same list as a file."""
    rows, complete = pages(
        lambda cursor: api.find(viewer.app, viewer.who, after=cursor, limit=FILE_PAGE)
    )
    return export(rows, "calendars", format, complete=complete)


@router.post("/calendars")
def create(request: Request, viewer: Viewing, who: Operator, form: Sent) -> Response:
    """Create a calendar: empty, from an iCalendar file, or from a country's holidays."""
    how = form.text("how")
    tz = form.text("tz") or "UTC"
    try:
        dates = FETCH[how](viewer, tz, form) if how in FETCH else {}
        body = body_of(
            api.NewCalendarBody,
            name=form.text("name"),
            kind=form.text("kind") or CalendarKind.SKIP_DATES,
            tz=tz,
            dates={day.isoformat(): label for day, label in dates.items()},
        )
        made = api.create(viewer.app, who, once(viewer), body)
    except (DulyError, Refused) as error:
        values = {name: form.text(name) for name in EMPTY_FORM}
        return _list(viewer, 422, error=str(error), opened=how, values=values)
    return redirect(request, f"/calendars/{made.id}", "Calendar created")


# Detail ------------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """The calendar as it would be if its form were saved."""

    name: str
    kind: str
    tz: str
    rules: list[str]
    days: Days


class Pending(msgspec.Struct, frozen=True):
    """Selected days that are not saved yet."""

    add: dict[dt.date, str] = {}
    remove: list[dt.date] = []


class Cell(NamedTuple):
    """A day of the year on the page."""

    day: dt.date
    label: str
    checked: bool
    by_rule: bool
    """Whether a rule lists the day, so that it cannot be removed here."""
    change: str


class Month(NamedTuple):
    name: str
    weeks: list[list[Cell | None]]


Year = Annotated[int | None, Query(ge=FIRST_YEAR, le=LAST_YEAR)]


@router.get("/calendars/{calendar_id}")
def calendar(viewer: Viewing, calendar_id: str, year: Year = None) -> Response:
    shape = api.get(viewer.app, viewer.who, calendar_id)
    shown = year or from_ms(viewer.now).astimezone(viewer.zone).year
    return _page(viewer, shape, _as_it_is(shape), shown)


@router.post("/calendars/{calendar_id}/edit")
def edit(
    request: Request, viewer: Viewing, who: Operator, calendar_id: str, form: Sent
) -> Response:
    """Save the calendar, or preview it: in another year, or with imported dates."""
    shape = api.get(viewer.app, who, calendar_id)
    draft, year, version = _as_it_is(shape), from_ms(viewer.now).year, shape.version
    do = viewer.asked_to(form)
    try:
        year = _within(form.whole("year") or year)
        version = form.whole("version") or version
        draft = _written(shape, form, year)
        if do.startswith("year:"):
            year = _within(int(do.removeprefix("year:")))
        elif do in FETCH:
            found = FETCH[do](viewer, draft.tz, form)
            draft = _with(draft, found, replaced=form.given("replace") is not None)
            year = _within(min(found).year) if found else year
        elif do == "save":
            api.update(viewer.app, who, calendar_id, _changes(shape, draft, version))
            return redirect(request, f"/calendars/{shape.id}?year={year}", "Calendar saved")
        foreseen = _foresee(viewer, shape, draft)
    except (DulyError, Refused, ValueError) as error:
        status = 422 if do == "save" else 200
        return _page(viewer, shape, draft, year, status, version=version, error=str(error))
    return _page(viewer, shape, draft, year, version=version, foreseen=foreseen)


@router.post("/calendars/{calendar_id}/clone")
def clone(
    request: Request, viewer: Viewing, who: Operator, calendar_id: str, form: Sent
) -> Response:
    body = body_of(api.CloneBody, name=form.text("name"))
    made = api.clone(viewer.app, who, once(viewer), calendar_id, body)
    return redirect(request, f"/calendars/{made.id}", "Calendar cloned")


@router.post("/calendars/{calendar_id}/remove")
def remove(
    request: Request, viewer: Viewing, who: Operator, calendar_id: str, form: Sent
) -> Response:
    api.remove(viewer.app, who, calendar_id)
    text = "Calendar removed; its schedules continue without it"
    return redirect(request, "/calendars", text)


def _page(
    viewer: Viewer,
    shape: api.CalendarShape,
    draft: Draft,
    year: int,
    status: int = 200,
    **more: Any,
) -> Response:
    before = _days(shape.dates)
    added, removed = _difference(before, draft.days)
    attached = [] if shape.read_only else _attached(viewer, shape)
    given = {"error": None, "foreseen": None, "version": shape.version}
    return render(
        viewer,
        "calendar.html",
        status,
        calendar=shape,
        draft=draft,
        year=year,
        months=_months(draft, before, year),
        pending={
            "add": {day.isoformat(): label for day, label in added.items()},
            "remove": [day.isoformat() for day in removed],
        },
        added=len(added),
        removed=len(removed),
        editable=viewer.may("operate") and not shape.read_only,
        kinds=list(CalendarKind),
        rules=[(name, rule.last_date) for name, rule in RULES.items()],
        attached=attached[:MAX_SCHEDULES],
        more_attached=len(attached) > MAX_SCHEDULES,
        **given | more,
    )


def _within(year: int) -> int:
    return min(LAST_YEAR, max(FIRST_YEAR, year))


# The year ----------------------------------------------------------------------------------------


def _months(draft: Draft, before: Mapping[dt.date, str], year: int) -> list[Month]:
    ruled: Days = {}
    for rule in draft.rules:
        if rule in RULES:
            ruled |= RULES[rule].days(year)

    def cell(day: dt.date) -> Cell | None:
        if day.year != year or day.month != month:
            return None
        listed, was = day in draft.days, day in before
        change = "" if listed == was else "added" if listed else "removed"
        label = draft.days.get(day) or ruled.get(day) or before.get(day, "")
        return Cell(day, label, listed or day in ruled, day in ruled and not listed, change)

    found: list[Month] = []
    for month in range(1, 13):
        weeks = months.Calendar().monthdatescalendar(year, month)
        found.append(Month(months.month_name[month], [[cell(day) for day in w] for w in weeks]))
    return found


# Form values -------------------------------------------------------------------------------------


def _as_it_is(shape: api.CalendarShape) -> Draft:
    return Draft(shape.name, shape.kind, shape.tz, list(shape.rules), _days(shape.dates))


def _days(dates: Mapping[str, str]) -> Days:
    return {dt.date.fromisoformat(day): label for day, label in dates.items()}


def _written(shape: api.CalendarShape, form: Form, year: int) -> Draft:
    """The form has one year's days as checkboxes, and the unsaved changes in other years."""
    days = _pending(_days(shape.dates), form)
    marked = {dt.date.fromisoformat(day) for day in form.all("day")}
    label = form.text("label")
    kept = {day: name for day, name in days.items() if day.year != year or day in marked}
    new = {day: label for day in sorted(marked) if day.year == year and day not in kept}
    return Draft(
        form.text("name") or shape.name,
        form.text("kind") or shape.kind,
        form.text("tz") or shape.tz,
        form.all("rule"),
        dict(sorted((kept | new).items())),
    )


def _pending(days: Days, form: Form) -> Days:
    """The days, with unsaved changes in years that are not on the page."""
    try:
        changes = msgspec.convert(form.object("pending") or {}, Pending)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid", f"pending: {error}", field="pending") from None
    gone = set(changes.remove)
    return {day: label for day, label in days.items() if day not in gone} | changes.add


def _difference(before: Days, after: Days) -> tuple[Days, list[dt.date]]:
    added = {day: label for day, label in after.items() if before.get(day) != label}
    return added, [day for day in before if day not in after]


def _changes(shape: api.CalendarShape, draft: Draft, version: int) -> api.CalendarChangesBody:
    added, removed = _difference(_days(shape.dates), draft.days)
    return body_of(
        api.CalendarChangesBody,
        version=version,
        name=draft.name,
        kind=draft.kind,
        tz=draft.tz,
        rules=draft.rules,
        add={day.isoformat(): label for day, label in added.items()},
        remove=[day.isoformat() for day in removed],
    )


# Imported dates ----------------------------------------------------------------------------------


def _of_ical(viewer: Viewer, tz: str, form: Form) -> Days:
    text = form.given("ical") or form.given("file")
    if text is None:
        raise Refused(422, "invalid", "paste the text of an iCalendar file, or choose a file")
    first = from_ms(viewer.now).year
    window = dt.date(first, 1, 1), dt.date(first + IMPORTED_YEARS, 12, 31)
    found = dict(dates_of(text, *window, tz))
    if not found:
        years = f"{first} to {first + IMPORTED_YEARS}"
        raise Refused(422, "invalid", f"no event falls in the years {years}")
    return found


def _of_holidays(viewer: Viewer, tz: str, form: Form) -> Days:
    return dict(holidays(form.text("country"), _years(form), form.given("subdivision")))


def _years(form: Form) -> list[int]:
    """2026, or 2026-2028."""
    first, _, last = form.text("years").replace(" ", "").partition("-")
    try:
        # At most one more than allowed, so that too many are refused without being listed.
        found = list(range(int(first), int(last or first) + 1)[: MAX_YEARS + 1])
    except ValueError:
        found = []
    if not found:
        raise Refused(422, "invalid", "years: give one year, or a range such as 2026-2028")
    return found


FETCH: dict[str, Callable[[Viewer, str, Form], Days]] = {
    "ical": _of_ical,
    "holidays": _of_holidays,
}


def _with(draft: Draft, found: Days, *, replaced: bool) -> Draft:
    days = found if replaced else draft.days | found
    return draft._replace(days=dict(sorted(days.items())))


# Preview -----------------------------------------------------------------------------------------


class Foreseen(NamedTuple):
    """The ticks that would be decided differently."""

    ticks: list[TickChange]
    looked_at: int
    """How many ticks were checked for each schedule."""
    schedules: int
    more: bool
    """Whether more schedules use the calendar than were checked."""


def _attached(viewer: Viewer, shape: api.CalendarShape) -> list[ScheduleRecord]:
    wanted = ScheduleFilter(owner=viewer.who.owner, calendar=shape.id, limit=MAX_SCHEDULES + 1)
    return list(operations.find_schedules(viewer.app, wanted))


def _foresee(viewer: Viewer, shape: api.CalendarShape, draft: Draft) -> Foreseen:
    before = Calendar.decode(
        {name: getattr(shape, name) for name in ("name", "kind", "tz", "dates", "rules")}
    )
    # Look the zone up only if it changed: this machine may no longer have the old one.
    fields: dict[str, Any] = {"kind": draft.kind, "rules": draft.rules, "dates": draft.days}
    fields |= {} if draft.tz == before.tz else {"tz": draft.tz}
    after = changed(before, fields)
    attached = _attached(viewer, shape)
    looked = attached[:MAX_SCHEDULES]
    n = min(FURTHEST, max(FEWEST_TICKS, MAX_TICKS // max(1, len(looked))))
    found = [
        change for schedule in looked for change in compare(schedule, before, after, n, viewer.now)
    ]
    return Foreseen(found, n, len(looked), len(attached) > MAX_SCHEDULES)
