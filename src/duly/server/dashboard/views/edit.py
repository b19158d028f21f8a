"""The form in which a schedule is edited: what it shows, and what of it was changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from duly.app import operations
from duly.clock import from_ms
from duly.schedules import Foreseen
from duly.server.answers import Refused, readable
from duly.server.api import schedules as api
from duly.server.api.schedule_shapes import ForeseenShape, ScheduleChangesBody, ScheduleShape
from duly.server.dashboard.forms import Form, body_of
from duly.server.dashboard.pages import Viewer

LOCAL = "%Y-%m-%dT%H:%M:%S"
COMPARED = 12
"""So many ticks are foreseen, as it is and as it would be."""


def values_of(shape: ScheduleShape, zone: ZoneInfo) -> dict[str, str]:
    """The fields of the form as the schedule is now."""
    kind = "cron" if shape.cron is not None else "every" if shape.every is not None else "at"
    budget, expect = shape.budget, shape.expect
    return {
        "kind": kind,
        "cron": shape.cron or "",
        "tz": shape.tz,
        "every": shape.every or "",
        "at": local(shape.at_ms, zone),
        "calendar": shape.calendar or "",
        "shift": shape.shift or "",
        "condition": _json(shape.condition),
        "args": _json(shape.args) or "{}",
        "rotation": _json(shape.rotation),
        "overlap": str(shape.overlap),
        "catch_up": str(shape.catch_up),
        "catch_up_window": _plain(shape.catch_up_window),
        "jitter": _plain(shape.jitter),
        "budget_runs": "" if budget is None or budget.runs is None else str(budget.runs),
        "budget_cost": "" if budget is None else _plain(budget.cost),
        "budget_per": "" if budget is None else _plain(budget.per),
        "start_at": local(shape.start_at_ms, zone),
        "end_at": local(shape.end_at_ms, zone),
        "remaining": "" if shape.remaining is None else str(shape.remaining),
        "expect_by": "" if expect is None else expect.by or "",
        "expect_within": "" if expect is None else _plain(expect.within),
        "expect_every": "" if expect is None else _plain(expect.every),
        "alert": shape.alert or "",
        "note": shape.note or "",
    }


def local(ms: int | None, zone: ZoneInfo) -> str:
    """An instant as a field for a local time has it."""
    return "" if ms is None else from_ms(ms).astimezone(zone).strftime(LOCAL)


def instant(form: Form, name: str, zone: ZoneInfo) -> datetime | None:
    """The contrary; what the clocks show twice is the first of both, unless an offset is given."""
    text = form.text(name)
    if not text:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        message = f"{name}: give a date and a time, not {text!r}"
        raise Refused(422, "invalid", message, field=name) from None
    return given if given.tzinfo is not None else given.replace(tzinfo=zone)


def _plain(number: float | None) -> str:
    return "" if number is None else f"{number:.15g}"


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(readable(value), indent=2, ensure_ascii=False)


# What was changed --------------------------------------------------------------------------------

Read = Callable[[Form, ZoneInfo], Any]
PLAIN: dict[str, Read] = {
    "tz": lambda form, zone: form.given("tz"),
    "calendar": lambda form, zone: form.given("calendar"),
    "shift": lambda form, zone: form.given("shift"),
    "condition": lambda form, zone: form.object("condition"),
    "args": lambda form, zone: form.object("args") or {},
    "rotation": lambda form, zone: form.json("rotation"),
    "overlap": lambda form, zone: form.given("overlap"),
    "catch_up": lambda form, zone: form.whole("catch_up"),
    "catch_up_window": lambda form, zone: form.number("catch_up_window"),
    "jitter": lambda form, zone: form.number("jitter"),
    "start_at": lambda form, zone: instant(form, "start_at", zone),
    "end_at": lambda form, zone: instant(form, "end_at", zone),
    "remaining": lambda form, zone: form.whole("remaining"),
    "alert": lambda form, zone: form.given("alert"),
    "note": lambda form, zone: form.given("note"),
}
TRIGGERS: dict[str, Read] = {
    "cron": lambda form, zone: form.given("cron"),
    "every": lambda form, zone: form.given("every"),
    "at": lambda form, zone: instant(form, "at", zone),
}


def changes_of(shape: ScheduleShape, form: Form, zone: ZoneInfo) -> ScheduleChangesBody:
    """What the form says otherwise than the schedule, and nothing else."""
    before = values_of(shape, zone)
    after = {name: form.text(name) for name in before}
    changed = {name for name in before if before[name] != after[name]}
    fields = {name: read(form, zone) for name, read in PLAIN.items() if name in changed}
    kind = after["kind"] if after["kind"] in TRIGGERS else before["kind"]
    if "kind" in changed or kind in changed:
        fields[kind] = TRIGGERS[kind](form, zone)
    if kind == "at":
        fields.pop("tz", None)
    if changed & {"budget_runs", "budget_cost", "budget_per"}:
        fields["budget"] = _budget(form)
    if changed & {"expect_by", "expect_within", "expect_every"}:
        fields["expect"] = _expect(form)
    return body_of(ScheduleChangesBody, version=form.whole("version") or 0, **fields)


def _budget(form: Form) -> dict[str, Any] | None:
    runs, cost = form.whole("budget_runs"), form.number("budget_cost")
    per = form.number("budget_per")
    if runs is None and cost is None and per is None:
        return None
    return {"runs": runs, "cost": cost, "per": per}


def _expect(form: Form) -> dict[str, Any] | None:
    by, within = form.given("expect_by"), form.number("expect_within")
    every = form.number("expect_every")
    if by is None and within is None and every is None:
        return None
    return {"by": by, "within": within, "every": every}


# What that would change --------------------------------------------------------------------------


class Compared(NamedTuple):
    """A coming tick: its decision as things are, and as they would be; None: no such tick."""

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


def compare(viewer: Viewer, schedule_id: str, body: ScheduleChangesBody) -> list[Compared]:
    """The next ticks before and after a change that is not made yet."""
    app, who = viewer.app, viewer.who
    schedule, call, options = api.change_of(app, who, schedule_id, body)
    now = api.preview(app, who, schedule_id, COMPARED, tz=viewer.tz) if schedule.enabled else []
    then: list[Foreseen] = []
    if options.get("enabled", schedule.enabled):
        then = operations.foresee_update(app, schedule.record, call, options, COMPARED, viewer.tz)
    before = {tick.tick_at_ms: _said(tick) for tick in now}
    after = {tick.tick_ms: _said(tick) for tick in then}
    # Beyond the end of a list that was cut off nobody knows what it would have shown.
    ends = [max(ticks) for ticks in (before, after) if len(ticks) == COMPARED]
    instants = sorted(before.keys() | after.keys())
    shown = [at for at in instants if not ends or at <= min(ends)]
    return [Compared(at, before.get(at), after.get(at)) for at in shown]


def _said(tick: Foreseen | ForeseenShape) -> str:
    return f"skip: {str(tick.reason).replace('_', ' ')}" if tick.reason else "dispatch"
