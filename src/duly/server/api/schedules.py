"""Schedules: create, update and run them, and all other operator actions."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from duly.app import Duly, operations
from duly.endpoints import EndpointTarget
from duly.endpoints.target import NAME as POST
from duly.errors import EndpointNotFound, UnknownFunction
from duly.functions.function import Call, Function
from duly.model.access import Principal
from duly.model.function import is_reserved
from duly.model.redact import unmask, unmask_entries
from duly.model.schedule import Outcome, Reason
from duly.schedules import Health, Schedule, Schedules, Tick
from duly.server.answers import Instant, Shape, iso, time_of
from duly.server.api.common import (
    EMPTY_NOTE,
    Cursor,
    Limit,
    NoteBody,
    Page,
    check_id,
    is_foreign,
    owner_of,
    page,
)
from duly.server.api.jobs import (
    callable_by_http,
    called_with,
    callee,
    hidden_jobs,
    refuse_masks,
    without_jobs,
)
from duly.server.api.operation import Operations, Operator, Reader, require_all_owners
from duly.server.api.operations import AuditShape, audited
from duly.server.api.repeatable import Repeatable
from duly.server.api.schedule_shapes import (
    ExplanationShape,
    ForeseenShape,
    HealthShape,
    NewScheduleBody,
    PlanShape,
    ScheduleChangesBody,
    ScheduleReasonShape,
    ScheduleShape,
    ScheduleShapes,
    ScheduleWhyShape,
    TickShape,
    explanation_shape,
    foreseen_shape,
    options_of,
    plan_shape,
    tick_shape,
)

api = Operations("schedules", "/schedules")

MAX_PREVIEW = 200
KINDS_OF_TICKS = 3
"""The most ticks of a schedule that can have the same instant."""


class DryRunBody(Shape):
    dry_run: bool = False


class RunScheduleBody(Shape):
    inputs: Annotated[dict[str, Any] | None, Meta(description="Replaces the arguments.")] = None


class MoveBody(Shape):
    to: Instant


class CalendarBody(Shape):
    calendar: Annotated[str, Meta(description="The calendar's name or id.")]


class RotationBody(Shape):
    rotation: list[dict[str, Any]]


class BackfillBody(Shape):
    start: Instant
    end: Annotated[Instant, Meta(description="The exclusive end of the range.")]
    dry_run: Annotated[bool, Meta(description="Only report the decisions.")] = False


class BackfillAnswer(Shape):
    dispatched: int
    skipped: int
    dry_run: bool
    ticks: list[TickShape]


class ConditionBody(Shape):
    condition: dict[str, Any]


# List --------------------------------------------------------------------------------------------


# Bodies that may be left out.
NOT_DRY_RUN = DryRunBody()
DEFAULT_RUN = RunScheduleBody(inputs=None)


@api.get("")
def find(
    app: Duly,
    who: Reader,
    owner: str | None = None,
    function: str | None = None,
    enabled: bool | None = None,
    parked: bool | None = None,
    calendar: Annotated[str | None, Meta(description="The calendar's name or id.")] = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[ScheduleShape]:
    """List schedules, oldest first."""
    found = app.schedules.list(
        owner=owner_of(who, owner),
        function=function,
        enabled=enabled,
        parked=parked,
        calendar=calendar,
        after=after,
        limit=limit + 1,
    )
    return page(ScheduleShapes(app).all(found), limit, lambda each: each.id)


@api.post("", status=201, again=ScheduleShape)
def create(app: Duly, who: Operator, once: Repeatable, body: NewScheduleBody) -> ScheduleShape:
    """Create a schedule: 201, or 200 with the one that an earlier request with the key created."""
    owner = owner_of(who, body.owner)

    def make(schedule_id: str | None) -> Schedule:
        call, options = _asked_for(app, who, body, owner)
        schedules = operations.schedules(app, owner)
        return schedules.create(body.key, call, by=who.name, id=schedule_id, **options)

    return ScheduleShapes(app)(once.make(who, body, make, app.schedules.get))


@api.post("/check")
def check(app: Duly, who: Reader, body: NewScheduleBody) -> ScheduleShape:
    """Validate a request to create a schedule and return the result; nothing is created."""
    owner = owner_of(who, body.owner)
    call, options = _asked_for(app, who, body, owner)
    return ScheduleShapes(app)(operations.draft(app, body.key, call, options, owner, who.name))


@api.get("/plan")
def plan(app: Duly, who: Reader) -> PlanShape:
    """Preview what applying the schedules and calendars declared in this server's code changes."""
    require_all_owners(who)
    return plan_shape(app.schedules.plan())


@api.post("/apply")
def apply(app: Duly, who: Operator, body: DryRunBody = NOT_DRY_RUN) -> PlanShape:
    """Apply the schedules and calendars declared in this server's code to the store."""
    require_all_owners(who)
    return plan_shape(app.schedules.apply(by=who.name, dry_run=body.dry_run))


@api.post("/prune")
def prune(app: Duly, who: Operator, body: DryRunBody = NOT_DRY_RUN) -> PlanShape:
    """Remove schedules, and unused calendars, that are no longer declared in code."""
    require_all_owners(who)
    return plan_shape(app.schedules.prune(by=who.name, dry_run=body.dry_run))


@api.get("/health")
def health_of_all(
    app: Duly,
    who: Reader,
    owner: str | None = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[HealthShape]:
    """Get the health of all schedules: ok, missed, paused or never ran, and why."""
    found = app.schedules.list(owner=owner_of(who, owner), after=after, limit=limit + 1)
    states = operations.healths(app, [each.record for each in found])
    return page([_health(each) for each in states], limit, lambda each: each.id)


@api.get("/named")
def named(app: Duly, who: Reader, key: str, owner: str | None = None) -> ScheduleShape:
    """Get a schedule by key, with the given owner or none."""
    found = owner_of(who, owner)
    schedules = app.schedules if found is None else app.schedules.of(found)
    return ScheduleShapes(app)(schedules.get(key))


# Detail ------------------------------------------------------------------------------------------


@api.get("/{schedule_id}")
def get(app: Duly, who: Reader, schedule_id: str) -> ScheduleShape:
    return ScheduleShapes(app)(_visible(app, who, schedule_id))


@api.patch("/{schedule_id}")
def update(app: Duly, who: Operator, schedule_id: str, body: ScheduleChangesBody) -> ScheduleShape:
    """Update only the given fields of a schedule; null removes an option."""
    schedule, call, options = change_of(app, who, schedule_id, body)
    schedules = _schedules(app, who)
    changed = schedules.update(schedule.id, call, by=who.name, version=body.version, **options)
    return ScheduleShapes(app)(changed)


@api.delete("/{schedule_id}", status=204)
def remove(app: Duly, who: Operator, schedule_id: str) -> None:
    """Remove a schedule; its unfinished jobs and its ledger are kept."""
    _schedules(app, who).remove(_visible(app, who, schedule_id), by=who.name)


@api.post("/{schedule_id}/enable")
def enable(
    app: Duly, who: Operator, schedule_id: str, body: NoteBody = EMPTY_NOTE
) -> ScheduleShape:
    """Enable a schedule from now on; ticks that it missed are not caught up."""
    found = _visible(app, who, schedule_id)
    return ScheduleShapes(app)(_schedules(app, who).enable(found, note=body.note, by=who.name))


@api.post("/{schedule_id}/disable")
def disable(
    app: Duly, who: Operator, schedule_id: str, body: NoteBody = EMPTY_NOTE
) -> ScheduleShape:
    """Disable a schedule immediately; its existing jobs continue."""
    found = _visible(app, who, schedule_id)
    return ScheduleShapes(app)(_schedules(app, who).disable(found, note=body.note, by=who.name))


@api.post("/{schedule_id}/run")
def run(
    app: Duly,
    who: Operator,
    once: Repeatable,
    schedule_id: str,
    body: RunScheduleBody = DEFAULT_RUN,
) -> TickShape:
    """Run a schedule now, in addition to its ticks.

    The response is a tick with its job, or the reason why it did not run. A repeat under the same
    key does not run it again and returns the same tick.
    """
    found = _visible(app, who, schedule_id)
    inputs = body.inputs
    if inputs is not None:
        _check_open(app, who, found)
        inputs = _inputs(app, found, inputs)

    def run_it(run_id: str | None) -> Tick:
        return _schedules(app, who).run(found, inputs=inputs, by=who.name, id=run_id)

    return tick_shape(once.do(who, body, run_it))


@api.post("/{schedule_id}/skip-next")
def skip_next(app: Duly, who: Operator, schedule_id: str) -> ScheduleShape:
    """Skip the next tick; the ledger records that an operator did."""
    found = _visible(app, who, schedule_id)
    return ScheduleShapes(app)(_schedules(app, who).skip_next(found, by=who.name))


@api.post("/{schedule_id}/move-next")
def move_next(app: Duly, who: Operator, schedule_id: str, body: MoveBody) -> ScheduleShape:
    """Move only the next tick to another time, before the tick after it."""
    found = _visible(app, who, schedule_id)
    return ScheduleShapes(app)(_schedules(app, who).move_next(found, body.to, by=who.name))


@api.post("/{schedule_id}/attach")
def attach(app: Duly, who: Operator, schedule_id: str, body: CalendarBody) -> ScheduleShape:
    """Attach a calendar, which decides on which dates the schedule runs."""
    found = _visible(app, who, schedule_id)
    return ScheduleShapes(app)(_schedules(app, who).attach(found, body.calendar, by=who.name))


@api.post("/{schedule_id}/detach")
def detach(app: Duly, who: Operator, schedule_id: str) -> ScheduleShape:
    """Detach the calendar, so that the schedule runs on every date again."""
    found = _visible(app, who, schedule_id)
    return ScheduleShapes(app)(_schedules(app, who).detach(found, by=who.name))


@api.put("/{schedule_id}/rotation")
def set_rotation(app: Duly, who: Operator, schedule_id: str, body: RotationBody) -> ScheduleShape:
    """Set a rotation: successive dispatches use these inputs in turn, starting with the first."""
    found = _visible(app, who, schedule_id)
    _check_open(app, who, found)
    function = operations.call_of_schedule(app, found.record).function
    entries = _entries(function, body.rotation, found.record.rotation)
    return ScheduleShapes(app)(_schedules(app, who).set_rotation(found, entries, by=who.name))


@api.delete("/{schedule_id}/rotation")
def clear_rotation(app: Duly, who: Operator, schedule_id: str) -> ScheduleShape:
    """Remove the rotation, so that every dispatch uses the schedule's own arguments again."""
    found = _visible(app, who, schedule_id)
    return ScheduleShapes(app)(_schedules(app, who).clear_rotation(found, by=who.name))


@api.post("/{schedule_id}/backfill")
def backfill(app: Duly, who: Operator, schedule_id: str, body: BackfillBody) -> BackfillAnswer:
    """Run the ticks of a past range that are not in the ledger yet; at most 10,000."""
    found = _visible(app, who, schedule_id)
    ticks = _schedules(app, who).backfill(
        found, body.start, body.end, dry_run=body.dry_run, by=who.name
    )
    dispatched = sum(tick.outcome == Outcome.DISPATCHED for tick in ticks)
    return BackfillAnswer(
        dispatched=dispatched,
        skipped=len(ticks) - dispatched,
        dry_run=body.dry_run,
        ticks=[tick_shape(tick) for tick in ticks],
    )


# Reading one -------------------------------------------------------------------------------------


@api.get("/{schedule_id}/ticks")
def ticks(
    app: Duly,
    who: Reader,
    schedule_id: str,
    after: Annotated[Instant | None, Meta(description="At this time or later.")] = None,
    before: Annotated[
        Instant | None, Meta(description="Before this time; the `next` value of the previous page.")
    ] = None,
    outcome: Outcome | None = None,
    reason: Reason | None = None,
    limit: Limit = 100,
) -> Page[TickShape]:
    """List a schedule's past ticks, newest first; ticks of one instant stay on one page."""
    found = _schedules(app, who).ticks(
        _visible(app, who, schedule_id),
        after=after,
        before=before,
        outcome=outcome,
        reason=reason,
        limit=limit + KINDS_OF_TICKS,
    )
    shown = _whole_instants(found, limit)
    following = iso(shown[-1].at) if len(found) > len(shown) else None
    return Page(items=[tick_shape(tick) for tick in shown], next=following)


@api.get("/{schedule_id}/preview")
def preview(
    app: Duly,
    who: Reader,
    schedule_id: str,
    n: Annotated[int, Meta(ge=1, le=MAX_PREVIEW)] = 10,
    after: Instant | None = None,
    tz: Annotated[str | None, Meta(description="The time zone in which to show times.")] = None,
    simulate: Annotated[bool, Meta(description="Assume that every dispatch succeeds.")] = False,
) -> list[ForeseenShape]:
    """Preview the decisions about the upcoming ticks in the current state."""
    found = _schedules(app, who).preview(
        _visible(app, who, schedule_id), n, after=after, tz=tz, simulate=simulate
    )
    return [foreseen_shape(tick) for tick in found]


@api.get("/{schedule_id}/health")
def health(app: Duly, who: Reader, schedule_id: str) -> HealthShape:
    """Get a schedule's health: ok, missed, paused or never ran, and why."""
    [found] = _schedules(app, who).health(_visible(app, who, schedule_id))
    return _health(found)


@api.get("/{schedule_id}/why")
def why(app: Duly, who: Reader, schedule_id: str) -> ScheduleWhyShape:
    """Explain why a schedule has not run: who paused it, its last tick, and when it is next due."""
    said = _schedules(app, who).why(_visible(app, who, schedule_id))
    hidden = hidden_jobs(app, who, [job for reason in said.reasons for job in reason.jobs])
    reasons = [
        ScheduleReasonShape(
            cause=reason.cause,
            text=without_jobs(hidden, reason.text),
            reason=None if reason.reason is None else Reason(reason.reason),
            jobs=[job for job in reason.jobs if job not in hidden],
            until=time_of(reason.until),
            until_ms=reason.until,
        )
        for reason in said.reasons
    ]
    text = without_jobs(hidden, said.text)
    return ScheduleWhyShape(schedule_id=said.schedule_id, key=said.key, text=text, reasons=reasons)


@api.get("/{schedule_id}/explain")
def explain(app: Duly, who: Reader, schedule_id: str) -> ExplanationShape:
    """Evaluate a schedule's condition now: the result of each operator, with the value it found."""
    found = _schedules(app, who).explain(_visible(app, who, schedule_id))
    return explanation_shape(found)


@api.post("/{schedule_id}/explain")
def explain_another(
    app: Duly, who: Reader, schedule_id: str, body: ConditionBody
) -> ExplanationShape:
    """Evaluate another condition for a schedule now; nothing is saved."""
    found = _schedules(app, who).explain(_visible(app, who, schedule_id), body.condition)
    return explanation_shape(found)


@api.get("/{schedule_id}/audit")
def audit(
    app: Duly,
    who: Operator,
    schedule_id: str,
    before: Cursor = None,
    limit: Limit = 100,
) -> Page[AuditShape]:
    """List a schedule's audit entries, newest first."""
    found = _visible(app, who, schedule_id)
    return audited(app, f"schedule:{found.id}", before, limit)


# Helpers -----------------------------------------------------------------------------------------


def _health(found: Health) -> HealthShape:
    return HealthShape(
        id=found.id, key=found.key, state=found.state, why=found.why, lag_ms=found.lag_ms
    )


def _schedules(app: Duly, who: Principal) -> Schedules:
    return app.schedules if who.owner is None else app.schedules.of(who.owner)


def _visible(app: Duly, who: Principal, schedule_id: str) -> Schedule:
    """The schedule with that id, if it exists and the principal may see it."""
    return _schedules(app, who).get(check_id(schedule_id, "schedule"))


def _asked_for(
    app: Duly, who: Principal, body: NewScheduleBody, owner: str | None
) -> tuple[Call[Any], dict[str, Any]]:
    """The call of a new schedule, and its other options."""
    function = callee(app, who, body.function, body.endpoint, owner)
    function = function.using(**body.options.given())
    options = options_of(app, body)
    if (rotation := options.get("rotation")) is not None:
        options["rotation"] = _entries(function, rotation, None)
    return called_with(function, body.args), options


def change_of(
    app: Duly, who: Principal, schedule_id: str, body: ScheduleChangesBody
) -> tuple[Schedule, Call[Any] | None, dict[str, Any]]:
    """A schedule, its new call (None: unchanged), and its other options."""
    schedule = _visible(app, who, schedule_id)
    call = _call(app, who, schedule, body)
    options = options_of(app, body)
    if (rotation := options.get("rotation")) is not None:
        if body.function is None and body.endpoint is None:
            _check_open(app, who, schedule)
        function = (call or operations.call_of_schedule(app, schedule.record)).function
        same = function.name == schedule.function
        stored = schedule.record.rotation if same else None
        options["rotation"] = _entries(function, rotation, stored)
    return schedule, call, options


def _check_open(app: Duly, who: Principal, schedule: Schedule) -> None:
    """Refuse arguments that only code may set: for internal functions or others' endpoints."""
    function = schedule.function
    if function == POST:
        _endpoint_of(app, who, schedule)
    elif is_reserved(function) or app.functions.info(function).internal:
        raise UnknownFunction(function, ())


def _endpoint_of(app: Duly, who: Principal, schedule: Schedule) -> EndpointTarget:
    """The endpoint of a schedule, if the principal may use it."""
    target = operations.endpoint_of(app, schedule)
    if is_foreign(who, target.owner):
        raise EndpointNotFound(target.endpoint)
    return target


def _call(
    app: Duly, who: Principal, schedule: Schedule, body: ScheduleChangesBody
) -> Call[Any] | None:
    """The new call, if it changes."""
    another = body.function is not None or body.endpoint is not None
    if not another and body.args is None and body.options is None:
        return None
    before = operations.call_of_schedule(app, schedule.record)
    if another:
        function = callee(app, who, body.function, body.endpoint, schedule.owner)
    elif body.options is None:
        _check_open(app, who, schedule)
        function = before.function
    elif schedule.function == POST:
        function = _endpoint_of(app, who, schedule)
    else:
        function = callable_by_http(app, schedule.function)
    if body.options is not None:
        function = function.using(**body.options.given())
    if not another and body.args is None:
        return Call(function, before.args)
    stored = before.args if function.name == before.function.name else "{}"
    return called_with(function, unmask(body.args or {}, function.signature.redacted, stored))


def _inputs(app: Duly, schedule: Schedule, given: dict[str, Any]) -> dict[str, Any]:
    """The inputs that replace its arguments; a mask stands for the current value."""
    own = operations.call_of_schedule(app, schedule.record)
    inputs = unmask(given, own.function.signature.redacted, own.args)
    refuse_masks(own.function, inputs)
    return inputs


def _entries(
    function: Function[..., Any], given: list[dict[str, Any]], stored: str | None
) -> list[dict[str, Any]]:
    """A rotation, in which a mask stands for the entry's previous value."""
    entries = unmask_entries(given, function.signature.redacted, stored or "[]")
    for entry in entries:
        refuse_masks(function, entry)
    return entries


def _whole_instants(ticks: list[Tick], limit: int) -> list[Tick]:
    """The first `limit` ticks, plus those at the same instant as the last of them."""
    end = min(limit, len(ticks))
    while 0 < end < len(ticks) and ticks[end].at == ticks[end - 1].at:
        end += 1
    return ticks[:end]
