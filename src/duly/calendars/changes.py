"""Applies changes to a calendar, and lists the ticks that those changes would affect."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from duly.calendars.views import CalendarContent, TickChange
from duly.clock import from_ms
from duly.errors import InvalidCalendar, InvalidOption
from duly.model.calendar import Calendar, read_dates
from duly.model.decide import Decided, Dispatch, Facts, walk
from duly.model.due import ticks_to_come
from duly.model.schedule import Plan, ScheduleRecord, plan_of
from duly.model.schedule_options import Overlap
from duly.schedules.views import time_of
from duly.zones import zone


def changed(calendar: Calendar, changes: Mapping[str, Any]) -> Calendar:
    """The calendar with these changes; a zone that is not given is not looked up."""
    unknown = changes.keys() - {*CalendarContent.__annotations__, "name"}
    if unknown:
        raise InvalidOption(min(unknown), "a calendar has no such field")
    fields = {name: changes.get(name, getattr(calendar, name)) for name in _FIELDS}
    after = Calendar.decode(fields | {"dates": _dates(calendar, changes)})
    if "tz" in changes:
        zone(after.tz)
    return after


_FIELDS = ("name", "kind", "tz", "rules")


def _dates(calendar: Calendar, changes: Mapping[str, Any]) -> dict[dt.date, str]:
    if "dates" in changes:
        if changes.keys() & {"add", "remove"}:
            raise InvalidOption("dates", "replaces all dates; give either dates, or add and remove")
        return read_dates(changes["dates"])
    dates = dict(calendar.dates)
    for day in read_dates(changes.get("remove", ()), "remove"):
        if day not in dates:
            hint = "dates that come from a rule cannot be removed" if calendar.rules else ""
            raise InvalidCalendar("remove", f"{day} is not among its dates", hint)
        del dates[day]
    for day, label in read_dates(changes.get("add", ()), "add").items():
        dates[day] = label or dates.get(day, "")
    return dates


# What would change --------------------------------------------------------------------------------


def compare(
    schedule: ScheduleRecord, before: Calendar, after: Calendar, n: int, now: int
) -> Iterator[TickChange]:
    """The next ticks that the two calendars treat differently."""
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
    """The next ticks, as if only the calendar could stop them."""
    assert plan.record.calendar is not None
    policies = msgspec.structs.replace(plan.policies, budget=None, overlap=Overlap.ALLOW)
    free = msgspec.structs.replace(plan, condition=None, policies=policies)
    facts = Facts(calendars={plan.record.calendar: calendar})
    ticks = ticks_to_come(free, now, facts.calendars)
    return {tick.tick_at: tick for tick in islice(walk(free, facts, ticks, now), n)}


def _decision(tick: Decided | None) -> str | None:
    if tick is None:
        return None
    return "dispatch" if isinstance(tick.decision, Dispatch) else "skip"


def _why(tick: Decided | None) -> str:
    if tick is None or isinstance(tick.decision, Dispatch):
        return ""
    return str(tick.decision.detail.get("why", ""))
