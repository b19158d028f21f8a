"""The form for editing a schedule: its values, and which of them changed."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from duly.app import operations
from duly.clock import from_ms
from duly.model.schedule_options import OPTIONS, Kind, Option
from duly.schedules import Foreseen
from duly.server.answers import Refused, given, readable
from duly.server.api import schedules as api
from duly.server.api.schedule_shapes import (
    ForeseenShape,
    ScheduleChangesBody,
    ScheduleOptionsBody,
    ScheduleShape,
)
from duly.server.dashboard.forms import Form, body_of
from duly.server.dashboard.pages import Viewer

TRIGGERS = ("cron", "every", "at", "trigger")
LOCAL = "%Y-%m-%dT%H:%M:%S"
COMPARED = 12
"""How many ticks the preview compares, before and after the change."""


class Field(NamedTuple):
    """A field of the form: an option, or a part of one."""

    name: str
    option: Option


def fields_of(option: Option) -> list[Field]:
    """The form fields of an option."""
    if option.kind is not Kind.RECORD:
        return [Field(option.name, option)]
    return [Field(f"{option.name}_{part.name}", part) for part in option.parts]


GROUPS = {
    group: [field for option in OPTIONS if option.group == group for field in fields_of(option)]
    for group in ("When", "Unless", "With", "How")
}


def values_of(shape: ScheduleShape, zone: ZoneInfo) -> dict[str, str]:
    """The form fields, filled with the schedule's current values."""
    kinds = (name for name in TRIGGERS if getattr(shape, name) is not None)
    values = {
        "kind": next(kinds, "at"),
        "cron": shape.cron or "",
        "tz": shape.tz,
        "every": shape.every or "",
        "at": local(shape.at_ms, zone),
        "trigger": _json(shape.trigger),
        "args": _json(shape.args) or "{}",
    }
    for option in OPTIONS:
        of = shape if option.kind is not Kind.RECORD else getattr(shape, option.name)
        for name, part in fields_of(option):
            values[name] = "" if of is None else _text(part, of, zone)
    return values


def _text(option: Option, of: Any, zone: ZoneInfo) -> str:
    """The text in the field of an option, or of a part of one."""
    value = getattr(of, option.name)
    if value is None:
        return ""
    match option.kind:
        case Kind.INSTANT:
            return local(getattr(of, f"{option.name}_ms"), zone)
        case Kind.LENGTH | Kind.NUMBER:
            return f"{value:.15g}"
        case Kind.OBJECT | Kind.LIST:
            return _json(value)
        case _:
            return str(value)


def local(ms: int | None, zone: ZoneInfo) -> str:
    """An instant as the value of a datetime-local field."""
    return "" if ms is None else from_ms(ms).astimezone(zone).strftime(LOCAL)


def instant(form: Form, name: str, zone: ZoneInfo) -> datetime | None:
    """The reverse of `local`; an ambiguous time is the earlier one, unless an offset is given."""
    text = form.text(name)
    if not text:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        message = f"{name}: give a date and a time, not {text!r}"
        raise Refused(422, "invalid", message, field=name) from None
    return given if given.tzinfo is not None else given.replace(tzinfo=zone)


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(readable(value), indent=2, ensure_ascii=False)


# Changes -----------------------------------------------------------------------------------------


def _read(option: Option, name: str, form: Form, zone: ZoneInfo) -> Any:
    """The value of a field; None if it was left empty."""
    match option.kind:
        case Kind.INSTANT:
            return instant(form, name, zone)
        case Kind.LENGTH | Kind.NUMBER:
            return form.number(name)
        case Kind.WHOLE:
            return form.whole(name)
        case Kind.OBJECT:
            return form.object(name)
        case Kind.LIST:
            return form.json(name)
        case Kind.RECORD:
            parts = {part.name: _read(part, field, form, zone) for field, part in fields_of(option)}
            return parts if any(value is not None for value in parts.values()) else None
        case _:
            return form.given(name)


def changes_of(shape: ScheduleShape, form: Form, zone: ZoneInfo) -> ScheduleChangesBody:
    """Only the fields in which the form differs from the schedule."""
    before = values_of(shape, zone)
    after = {name: form.text(name) for name in before}
    changed = {name for name in before if before[name] != after[name]}
    fields = {
        option.name: _read(option, option.name, form, zone)
        for option in OPTIONS
        if any(field.name in changed for field in fields_of(option))
    }
    if "args" in changed:
        fields["args"] = form.object("args") or {}
    kind = after["kind"] if after["kind"] in TRIGGERS else before["kind"]
    if "kind" in changed or kind in changed:
        fields[kind] = _read_trigger(kind, form, zone)
    if "tz" in changed and kind not in ("at", "trigger"):
        fields["tz"] = form.given("tz")
    return body_of(ScheduleChangesBody, version=form.whole("version") or 0, **fields)


def _read_trigger(kind: str, form: Form, zone: ZoneInfo) -> Any:
    match kind:
        case "at":
            return instant(form, "at", zone)
        case "trigger":
            return form.object("trigger")
        case _:
            return form.given(kind)


def changed_by(body: ScheduleChangesBody) -> list[str]:
    """The names of the fields that it changes."""
    options = given(body)
    asked = {name for name in options if name in ScheduleOptionsBody.__struct_fields__}
    return sorted(asked | ({"args"} if body.args is not None else set()))


# Preview -----------------------------------------------------------------------------------------


class ComparedTick(NamedTuple):
    """An upcoming tick with its decision before and after the change; None: no such tick."""

    at: int
    before: str | None
    after: str | None

    @property
    def change(self) -> str:
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "same" if self.before == self.after else "changed"


def compare(viewer: Viewer, schedule_id: str, body: ScheduleChangesBody) -> list[ComparedTick]:
    """The next ticks before and after a change that is not saved yet."""
    app, who = viewer.app, viewer.who
    schedule, call, options = api.change_of(app, who, schedule_id, body)
    now = api.preview(app, who, schedule_id, COMPARED, tz=viewer.tz) if schedule.enabled else []
    then: list[Foreseen] = []
    if options.get("enabled", schedule.enabled):
        then = operations.foresee_update(app, schedule.record, call, options, COMPARED, viewer.tz)
    before = {tick.tick_at_ms: _said(tick) for tick in now}
    after = {tick.tick_ms: _said(tick) for tick in then}
    # Past the end of a truncated list, it is unknown which ticks would have followed.
    ends = [max(ticks) for ticks in (before, after) if len(ticks) == COMPARED]
    instants = sorted(before.keys() | after.keys())
    shown = [at for at in instants if not ends or at <= min(ends)]
    return [ComparedTick(at, before.get(at), after.get(at)) for at in shown]


def _said(tick: Foreseen | ForeseenShape) -> str:
    return f"skip: {str(tick.reason).replace('_', ' ')}" if tick.reason else "dispatch"
