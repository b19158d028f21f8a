"""One schedule: its settings, upcoming ticks, ledger and controls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from duly.app import operations
from duly.clock import from_ms
from duly.errors import DulyError
from duly.model.calendar import SEEDS
from duly.model.history import Day
from duly.model.schedule_options import OPTIONS
from duly.server.answers import Refused
from duly.server.api import schedules as api
from duly.server.api.common import NoteBody
from duly.server.api.schedule_shapes import ExplanationShape, ScheduleShape, TickShape
from duly.server.auth import Operator
from duly.server.dashboard import svg
from duly.server.dashboard.forms import Form, body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect, render
from duly.server.dashboard.times import DAY
from duly.server.dashboard.views import edit

router = APIRouter(route_class=PageRoute)

PREVIEW = 12
LEDGER = 100
LOG = 20
MAX_LISTED = 200
"""How many ticks of a backfill are listed."""

EMPTY_DAY = Day(0, 0, 0, 0, 0, 0, 0)

Condition = Annotated[str | None, Query(max_length=20_000)]


@router.get("/schedules/{schedule_id}")
def schedule(viewer: Viewing, schedule_id: str, condition: Condition = None) -> Response:
    return _page(viewer, schedule_id, condition)


def _page(
    viewer: Viewer,
    schedule_id: str,
    condition: str | None = None,
    backfill: api.BackfillAnswer | None = None,
    span: dict[str, str] | None = None,
) -> Response:
    app, who = viewer.app, viewer.who
    shape = api.get(app, who, schedule_id)
    ticks = api.ticks(app, who, schedule_id, limit=LEDGER)
    preview, unforeseen = _preview(viewer, schedule_id)
    return render(
        viewer,
        "schedule.html",
        schedule=shape,
        options=OPTIONS,
        health=api.health(app, who, schedule_id),
        preview=preview,
        zones=list(dict.fromkeys((shape.tz, "UTC", viewer.tz))),
        unforeseen=unforeseen,
        ticks=ticks.items,
        more_ticks=ticks.next is not None,
        states=_states(viewer, ticks.items),
        axis=_axis(viewer, ticks.items),
        **_year(viewer, schedule_id),
        tester=_tester(viewer, shape, condition),
        log=api.audit(app, who, schedule_id, limit=LOG) if viewer.may("operate") else None,
        backfill=backfill,
        listed=[] if backfill is None else backfill.ticks[:MAX_LISTED],
        span=span or _span(viewer),
        spark=svg.sparkline(operations.recent_runs(app, [schedule_id], 30).get(schedule_id, [])),
    )


def _preview(viewer: Viewer, schedule_id: str) -> tuple[list[Any], str | None]:
    """The upcoming ticks, or why they are unknown: a parked schedule cannot be read."""
    try:
        found = api.preview(viewer.app, viewer.who, schedule_id, PREVIEW, tz=viewer.tz)
        return list(found), None
    except DulyError as error:
        return [], str(error)


def _states(viewer: Viewer, ticks: Sequence[TickShape]) -> dict[str, str]:
    """The states of the ticks' jobs, by job id."""
    return operations.job_states(viewer.app, [tick.job_id for tick in ticks])


def _axis(viewer: Viewer, ticks: Sequence[TickShape]) -> dict[str, Any] | None:
    if not ticks:
        return None
    states = _states(viewer, ticks)
    start = min(tick.tick_at_ms for tick in ticks)
    end = max(max(tick.tick_at_ms for tick in ticks), start + 1)
    margin = max(1, (end - start) // 50)
    start, end = start - margin, end + margin

    def event(tick: TickShape) -> svg.Event:
        state = states.get(tick.job_id or "", str(tick.outcome))
        reason = f" ({tick.reason})".replace("_", " ") if tick.reason else ""
        when = viewer.in_zone(tick.tick_at_ms, viewer.tz)
        href = None if tick.job_id is None else viewer.url(f"/jobs/{tick.job_id}")
        return svg.Event(tick.tick_at_ms, state, f"{when}: {state}{reason}", href)

    return {"svg": svg.axis(map(event, ticks), start, end), "start": start, "end": end}


def _year(viewer: Viewer, schedule_id: str) -> dict[str, Any]:
    """One year: the daily counts of past days, and the days that the ledger still has."""
    days: dict[int, Day] = {}
    for day in operations.days(viewer.app, schedule_id):
        known = days.get(day.day)
        counts = (
            day[1:] if known is None else [a + b for a, b in zip(known[1:], day[1:], strict=True)]
        )
        days[day.day] = Day(day.day, *counts)
    sums = [sum(column) for column in zip(*days.values(), strict=True)] or EMPTY_DAY
    return {"heat": svg.heat_map(days, from_ms(viewer.now).date()), "year": Day(*sums)}


def _span(viewer: Viewer) -> dict[str, str]:
    """The past day, as the initial range of a backfill."""
    return {
        "start": edit.local(viewer.now - DAY, viewer.zone),
        "end": edit.local(viewer.now, viewer.zone),
    }


# The condition -----------------------------------------------------------------------------------


class Tester(NamedTuple):
    """A condition and its current result."""

    text: str
    explanation: ExplanationShape | None
    error: str | None


def _tester(viewer: Viewer, shape: ScheduleShape, text: str | None) -> Tester:
    own = "" if shape.condition is None else json.dumps(shape.condition, indent=2)
    try:
        if text is None:
            found = None
            if shape.condition is not None:
                found = api.explain(viewer.app, viewer.who, shape.id)
            return Tester(own, found, None)
        condition = Form([("condition", text)]).object("condition")
        body = api.ConditionBody(condition=condition or {})
        return Tester(text, api.explain_another(viewer.app, viewer.who, shape.id, body), None)
    except (DulyError, Refused) as error:
        return Tester(own if text is None else text, None, str(error))


# Editing -----------------------------------------------------------------------------------------


@router.get("/schedules/{schedule_id}/edit")
def edit_page(viewer: Viewing, who: Operator, schedule_id: str) -> Response:
    shape = api.get(viewer.app, who, schedule_id)
    return _edit_page(viewer, shape, edit.values_of(shape, viewer.zone))


def _edit_page(
    viewer: Viewer, shape: ScheduleShape, values: dict[str, str], status: int = 200, **more: Any
) -> Response:
    calendars = operations.calendars(viewer.app, shape.owner or "").list(limit=100)
    names = sorted({*SEEDS, *(record.name for record in calendars)})
    return render(
        viewer,
        "edit.html",
        status,
        schedule=shape,
        values=values,
        groups=edit.GROUPS,
        known={"calendar": names},
        **{"compared": None, "error": None, "changed": [], "version": shape.version} | more,
    )


@router.post("/schedules/{schedule_id}/edit")
def save(
    request: Request, viewer: Viewing, who: Operator, schedule_id: str, form: Sent
) -> Response:
    """Save the schedule, or preview the changes, which the page requests during typing."""
    shape = api.get(viewer.app, who, schedule_id)
    values = {name: form.text(name) for name in edit.values_of(shape, viewer.zone)}
    version = form.whole("version")
    only_preview = viewer.asked_to(form) != "save"
    try:
        body = edit.changes_of(shape, form, viewer.zone)
        if only_preview:
            compared = edit.compare(viewer, schedule_id, body)
            changed = edit.changed_by(body)
            return _edit_page(
                viewer, shape, values, compared=compared, changed=changed, version=version
            )
        api.update(viewer.app, who, schedule_id, body)
    except (DulyError, Refused) as error:
        status = 200 if only_preview else 422
        return _edit_page(viewer, shape, values, status, error=str(error), version=version)
    return redirect(request, f"/schedules/{schedule_id}", "Schedule saved")


# Actions -----------------------------------------------------------------------------------------


@router.post("/schedules/{schedule_id}/backfill")
def backfill(
    request: Request, viewer: Viewing, who: Operator, schedule_id: str, form: Sent
) -> Response:
    """Run the ticks of a past range, or show which would run."""
    start, end = (edit.instant(form, name, viewer.zone) for name in ("start", "end"))
    if start is None or end is None:
        raise Refused(422, "invalid", "give the start and the end of the range")
    dry = viewer.asked_to(form) != "run"
    body = api.BackfillBody(start=start, end=end, dry_run=dry)
    done = api.backfill(viewer.app, who, schedule_id, body)
    if dry:
        span = {"start": form.text("start"), "end": form.text("end")}
        return _page(viewer, schedule_id, backfill=done, span=span)
    text = f"{done.dispatched} ticks dispatched, {done.skipped} skipped"
    return redirect(request, f"/schedules/{schedule_id}", text)


@router.post("/schedules/{schedule_id}/{verb}")
def act(
    request: Request, viewer: Viewing, who: Operator, schedule_id: str, verb: str, form: Sent
) -> Response:
    """Enable, disable, run, skip or move the next tick, remove."""
    if verb not in VERBS:
        raise Refused(404, "not_found", "there is no such action")
    text = VERBS[verb](viewer, schedule_id, form)
    gone = verb == "remove"
    return redirect(request, "/schedules" if gone else f"/schedules/{schedule_id}", text)


def _enable(viewer: Viewer, schedule_id: str, form: Sent) -> str:
    api.enable(viewer.app, viewer.who, schedule_id, body_of(NoteBody, note=form.given("note")))
    return "Schedule enabled; it starts from now"


def _disable(viewer: Viewer, schedule_id: str, form: Sent) -> str:
    api.disable(viewer.app, viewer.who, schedule_id, body_of(NoteBody, note=form.given("note")))
    return "Schedule disabled; its existing jobs continue"


def _run(viewer: Viewer, schedule_id: str, form: Sent) -> str:
    inputs = form.object("inputs")
    tick = api.run(
        viewer.app, viewer.who, once(viewer), schedule_id, api.RunScheduleBody(inputs=inputs)
    )
    if tick.job_id is None:
        return f"The schedule did not run: {str(tick.reason).replace('_', ' ')}"
    return f"Running now as job {tick.job_id}"


def _skip_next(viewer: Viewer, schedule_id: str, form: Sent) -> str:
    api.skip_next(viewer.app, viewer.who, schedule_id)
    return "The next tick will be skipped"


def _move_next(viewer: Viewer, schedule_id: str, form: Sent) -> str:
    to = edit.instant(form, "to", viewer.zone)
    if to is None:
        raise Refused(422, "invalid", "give the new time of the next tick")
    api.move_next(viewer.app, viewer.who, schedule_id, api.MoveBody(to=to))
    return "The next tick was moved"


def _remove(viewer: Viewer, schedule_id: str, form: Sent) -> str:
    api.remove(viewer.app, viewer.who, schedule_id)
    return "Schedule removed; its jobs and its ledger are kept"


VERBS: dict[str, Callable[[Viewer, str, Sent], str]] = {
    "enable": _enable,
    "disable": _disable,
    "run": _run,
    "skip-next": _skip_next,
    "move-next": _move_next,
    "remove": _remove,
}
