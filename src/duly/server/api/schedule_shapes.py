"""The JSON shapes of schedules and their ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, defstruct, field
from msgspec.structs import asdict

from duly.app import Duly, operations
from duly.clock import from_ms, to_ms
from duly.endpoints.alerts import is_address
from duly.errors import InvalidOption
from duly.model.calendar import SEEDS
from duly.model.condition import Explanation
from duly.model.durations import read_length, write_length
from duly.model.expect import Expect
from duly.model.job import FIVE_YEARS_MS
from duly.model.schedule import (
    Budget,
    Outcome,
    Reason,
    TickKind,
    read_trigger,
)
from duly.model.schedule_options import OPTIONS, Kind, Option
from duly.model.stored_values import attempt
from duly.model.trigger import LEAST_INTERVAL_MS, At, Cron, Every, Trigger, decode, encode
from duly.model.why_schedule import ScheduleCause
from duly.schedules import Foreseen, Schedule, SchedulePlan, Tick
from duly.schedules.define import from_json
from duly.schedules.health import HealthState
from duly.schedules.rows import policies_of, value_of
from duly.server.answers import Instant, Ms, Shape, Time, given, time_of
from duly.server.api.common import Note
from duly.server.api.jobs import NAME_OR_ID, Arguments, JobOptions, callable_by_http
from duly.server.api.operation import Check

Seconds = Annotated[float, Meta(gt=0, description="Seconds.")]


def _with_units(value: object) -> None:
    """Refuse a bare number, which could mean seconds or milliseconds."""
    if value is not None and (not isinstance(value, str) or read_length(value) is None):
        raise ValueError(
            f'{repr(value)[:20]} is not a duration with a unit; write "every": "5m" or "1h30m", '
            'or "every_ms": 300000 for milliseconds'
        )


Interval = Annotated[
    str,
    Check(_with_units),
    Meta(description="A duration with units: `5m`, `1h30m`. A bare number is refused."),
]
ENDPOINT_HELP = f"The endpoint to POST to instead of calling a function. {NAME_OR_ID}"


# Requests ----------------------------------------------------------------------------------------


class BudgetShape(Shape, kw_only=True):
    """The most runs, or the highest cost, in any `per` seconds."""

    runs: int | None = None
    cost: float | None = None
    per: float


class ExpectShape(Shape):
    """What the schedule promises; exactly one of the three."""

    by: Annotated[str | None, Meta(description='A time of day such as "07:00", in its zone.')] = (
        None
    )
    within: Annotated[float | None, Meta(description="Seconds after each tick.")] = None
    every: Annotated[float | None, Meta(description="Seconds between two successes.")] = None


class TriggerBody(Shape):
    cron: Annotated[str, Meta(max_length=1_000)] | UnsetType | None = UNSET
    tz: (
        Annotated[
            str | None,
            Meta(description="The time zone of `cron`. Default: UTC. No effect with `every`."),
        ]
        | UnsetType
    ) = UNSET
    every: Interval | UnsetType | None = UNSET
    every_ms: (
        Annotated[
            int,
            Meta(ge=LEAST_INTERVAL_MS, le=FIVE_YEARS_MS, description="`every` in milliseconds."),
        ]
        | UnsetType
        | None
    ) = UNSET
    anchor_at: Annotated[Instant | None, Meta(description="One tick of `every`.")] | UnsetType = (
        UNSET
    )
    at: Instant | UnsetType | None = UNSET
    trigger: (
        Annotated[
            dict[str, Any],
            Meta(
                description="A recurrence rule (RFC 5545), or several triggers: "
                '{"kind": "rule", "rule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", '
                '"start": "2026-07-06T09:00:00", "tz": "Europe/Istanbul"} or '
                '{"kind": "any_of", "triggers": [{"kind": "cron", "expression": "0 9 * * *", '
                '"tz": "UTC"}, {"kind": "interval", "milliseconds": 300000}, …]}.'
            ),
        ]
        | UnsetType
        | None
    ) = UNSET


RECORDS: dict[str, Any] = {"budget": BudgetShape, "expect": ExpectShape}
TAKEN: dict[Kind, Any] = {
    Kind.NAME: str,
    Kind.TEXT: Note,
    Kind.WHOLE: int,
    Kind.LENGTH: Seconds,
    Kind.INSTANT: Instant,
    Kind.OBJECT: dict[str, Any],
    Kind.LIST: list[dict[str, Any]],
}
"""The type of an option in a request body."""


def _type(option: Option, types: Mapping[Kind, Any]) -> Any:
    if option.kind is Kind.CHOICE and isinstance(option.choices, tuple):
        return types.get(Kind.CHOICE, Literal[option.choices])
    return RECORDS.get(option.name) or option.choices or types[option.kind]


def _or_none(kind: Any) -> Any:
    return kind if kind is Any else kind | None


def _taken(option: Option) -> tuple[str, Any, Any]:
    """The field for an option in a request body."""
    kind = _type(option, TAKEN)
    if option.kind is Kind.WHOLE:
        kind = Annotated[kind, Meta(ge=option.least)]
    said: Any = Annotated[_or_none(kind), Meta(description=option.help)]
    return option.name, said | UnsetType, UNSET


if TYPE_CHECKING:

    class _OptionsBody(TriggerBody):
        def __getattr__(self, name: str) -> Any: ...

else:
    _OptionsBody = defstruct("_OptionsBody", map(_taken, OPTIONS), bases=(TriggerBody,))


class ScheduleOptionsBody(_OptionsBody):
    """The options of a schedule, with exactly one of `cron`, `every`, `at` and `trigger`."""


class NewScheduleBody(ScheduleOptionsBody, kw_only=True):
    key: Annotated[str, Meta(min_length=1, max_length=200)]
    function: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    endpoint: (
        Annotated[str, Meta(min_length=1, max_length=500, description=ENDPOINT_HELP)] | None
    ) = None
    args: Arguments = field(default_factory=dict[str, Any])
    options: JobOptions = field(default_factory=JobOptions)
    owner: str | None = None
    enabled: bool = True
    fire_at_once: Annotated[
        bool, Meta(description="With `every`: the first tick is due immediately.")
    ] = False


class ScheduleChangesBody(ScheduleOptionsBody, kw_only=True):
    """Only the given fields are changed; null removes an option."""

    version: Annotated[
        int, Meta(description="The version that you read; 409 if it has changed since.")
    ]
    function: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    endpoint: (
        Annotated[str, Meta(min_length=1, max_length=500, description=ENDPOINT_HELP)] | None
    ) = None
    args: Arguments | None = None
    options: JobOptions | None = None
    enabled: bool | UnsetType | None = UNSET


NOT_OPTIONS = frozenset(
    {"key", "function", "endpoint", "args", "options", "owner", "version", "every_ms", "anchor_at"}
)
"""The fields of a body that are not options of `schedules.create`."""


def options_of(app: Duly, body: ScheduleOptionsBody) -> dict[str, Any]:
    """The options of a body for the verbs: those that were set, including to null."""
    said = given(body)
    options = {name: value for name, value in said.items() if name not in NOT_OPTIONS}
    milliseconds, anchor = _interval(said.get("every"), said.get("every_ms")), said.get("anchor_at")
    if milliseconds is not None:
        options["every"] = Every(milliseconds, None if anchor is None else to_ms(anchor))
    elif anchor is not None:
        raise InvalidOption("anchor_at", "requires every or every_ms")
    if (trigger := options.get("trigger")) is not None:
        options["trigger"] = decode(trigger)
    if (budget := options.get("budget")) is not None:
        options["budget"] = Budget(**asdict(budget))
    if (expect := options.get("expect")) is not None:
        options["expect"] = Expect(**asdict(expect))
    if (alert := options.get("alert")) is not None and not is_address(alert):
        options["alert"] = callable_by_http(app, alert)
    return options


def _interval(every: str | None, every_ms: int | None) -> int | None:
    if every is None:
        return every_ms
    if every_ms is not None:
        raise InvalidOption("every_ms", "give every or every_ms, not both")
    milliseconds = read_length(every)
    if milliseconds is None or not LEAST_INTERVAL_MS <= milliseconds <= FIVE_YEARS_MS:
        raise InvalidOption("every", f"must be 1s to five years, not {every[:20]}")
    return milliseconds


# Responses ---------------------------------------------------------------------------------------


class OverrideShape(Shape):
    """An operator's override for the next tick: skip it, or move it `to`."""

    tick_at: Time
    tick_at_ms: Ms
    by: str | None
    to_at: Time | None
    to_at_ms: Ms | None


class CallShape(Shape):
    """The target and trigger of a schedule."""

    id: str
    key: str
    owner: str | None
    declared: Annotated[bool, Meta(description="Whether the schedule is declared in code.")]
    function: str
    args: dict[str, Any]
    options: Annotated[dict[str, Any], Meta(description="Options that differ from the function's.")]
    description: Annotated[str | None, Meta(description="The trigger in words.")]
    cron: str | None
    tz: str
    every: Annotated[str | None, Meta(description="The interval with units: `1h30m`.")]
    every_ms: int | None
    anchor_at: Time | None
    anchor_at_ms: Ms | None
    at: Time | None
    at_ms: Ms | None
    trigger: Annotated[
        dict[str, Any] | None, Meta(description="The trigger of any kind, as stored.")
    ]


SHOWN: dict[Kind, Any] = TAKEN | {
    Kind.TEXT: str,
    Kind.CHOICE: str,
    Kind.LENGTH: float,
    Kind.INSTANT: Time,
    Kind.OBJECT: Any,
}
"""The type of an option in a response."""
STATUS = Literal["enabled", "disabled", "parked", "orphaned", "ended"]
BESIDE: dict[str, dict[str, Any]] = {
    "calendar": {"calendar_id": str | None},
    "rotation": {"rotation_index": int},
    "alert": {"enabled": bool, "status": STATUS},
}
"""The fields that follow an option in a response."""


def _shown(option: Option) -> dict[str, Any]:
    """The fields for an option in a response."""
    kind = _type(option, SHOWN)
    fields = {option.name: _or_none(kind) if option.usual is None else kind}
    if option.kind is Kind.INSTANT:
        fields[f"{option.name}_ms"] = _or_none(Ms)
    return fields | BESIDE.get(option.name, {})


if TYPE_CHECKING:

    class _OptionsShape(CallShape):
        def __getattr__(self, name: str) -> Any: ...

else:
    _OptionsShape = defstruct(
        "_OptionsShape",
        [field for option in OPTIONS for field in _shown(option).items()],
        bases=(CallShape,),
    )


class ScheduleShape(_OptionsShape):
    changed_by: str | None
    error: Annotated[str | None, Meta(description="Why the schedule is parked.")]
    late: Annotated[str | None, Meta(description="Which expectation the schedule has missed.")]
    next_tick_at: Time | None
    next_tick_at_ms: Ms | None
    due_at: Time | None
    due_at_ms: Ms | None
    override: OverrideShape | None
    last_dispatch_at: Time | None
    last_dispatch_at_ms: Ms | None
    last_job_id: str | None
    last_status: Annotated[
        str | None, Meta(description="The state of the last job, while it is stored.")
    ]
    version: int
    created_at: Time
    created_at_ms: Ms
    updated_at: Time
    updated_at_ms: Ms


class TickShape(Shape):
    schedule_id: str
    kind: TickKind
    tick_at: Time
    tick_at_ms: Ms
    outcome: Outcome
    reason: Reason | None
    detail: dict[str, Any]
    job_id: str | None
    rotation_index: int | None
    due_at: Time
    due_at_ms: Ms
    decided_at: Time
    decided_at_ms: Ms
    first_at: Annotated[
        Time | None, Meta(description="The first of the missed ticks that this row stands for.")
    ]
    first_at_ms: Ms | None
    count: Annotated[int | None, Meta(description="How many missed ticks this row stands for.")]
    dst_adjusted: bool


class ForeseenShape(Shape):
    tick_at: Time
    tick_at_ms: Ms
    local: Annotated[str, Meta(description="The tick in the schedule's time zone.")]
    viewer: Annotated[str, Meta(description="The tick in the requested time zone.")]
    due_at: Time
    due_at_ms: Ms
    decision: Literal["dispatch", "skip"]
    reason: Reason | None
    detail: dict[str, Any]
    inputs: dict[str, Any] | None
    rotation_index: int | None
    dst_adjusted: bool


class HealthShape(Shape):
    id: str
    key: str
    state: HealthState
    why: str
    lag_ms: int


class ScheduleReasonShape(Shape):
    cause: ScheduleCause
    text: str
    reason: Annotated[Reason | None, Meta(description="Why a tick was skipped, or would be.")]
    jobs: list[str]
    until: Time | None
    until_ms: Ms | None


class ScheduleWhyShape(Shape):
    schedule_id: str
    key: str
    text: str
    reasons: list[ScheduleReasonShape]


class CheckShape(Shape):
    """One operator, the value it found and whether it passes."""

    pointer: str
    operator: str
    expected: Any
    found: bool
    actual: Any
    passes: bool
    detail: str
    why: Annotated[str, Meta(description="What was compared with what, and why it passes or not.")]


class ExplanationShape(Shape):
    passes: bool
    detail: str
    checks: list[CheckShape]


class FieldChange(Shape):
    before: Any
    after: Any


class PlanEntryShape(Shape):
    kind: Literal[
        "create", "change", "rename", "revive", "adopt", "orphan", "remove", "blocked", "unchanged"
    ]
    key: Annotated[str, Meta(description="The key of the schedule, or the name of the calendar.")]
    is_calendar: bool
    schedule_id: str | None
    renamed_from: str | None
    changed: dict[str, FieldChange]
    reason: Annotated[
        str | None, Meta(description="Why it is blocked: the declaration is not applied.")
    ]


class PlanShape(Shape):
    """The changes to the schedules and calendars that are declared in code."""

    changes: int
    applied_before: bool
    entries: list[PlanEntryShape]


class ScheduleShapes:
    """Converts schedules to shapes, looking up their calendars and last jobs together."""

    def __init__(self, app: Duly) -> None:
        self._app = app
        self._names: dict[str, str | None] = {}

    def __call__(self, schedule: Schedule) -> ScheduleShape:
        [shape] = self.all([schedule])
        return shape

    def all(self, schedules: Sequence[Schedule]) -> list[ScheduleShape]:
        last = [schedule.record.last_job_id for schedule in schedules]
        states = operations.job_states(self._app, last)
        return [self._shape(each, states.get(each.record.last_job_id or "")) for each in schedules]

    def _shape(self, schedule: Schedule, last_status: str | None) -> ScheduleShape:
        record = schedule.record
        return ScheduleShape(
            id=record.id,
            key=record.key,
            owner=schedule.owner,
            declared=schedule.declared,
            function=record.function,
            args=attempt(lambda: schedule.arguments, dict[str, Any]()),
            options=from_json(record.options) or {},
            **_trigger(attempt(lambda: read_trigger(record.trigger), None)),
            **self._options(schedule),
            **_instants(
                next_tick=record.next_tick_at,
                due=record.due_at,
                last_dispatch=record.last_dispatch_at,
                created=record.created_at,
                updated=record.updated_at,
            ),
            changed_by=record.changed_by,
            error=record.error,
            late=schedule.late,
            override=attempt(lambda: _override(record.override), None),
            last_job_id=record.last_job_id,
            last_status=last_status,
            version=record.version,
        )

    def _options(self, schedule: Schedule) -> dict[str, Any]:
        record, fields = schedule.record, dict[str, Any]()
        policies = policies_of(record)
        for option in OPTIONS:
            value = attempt(partial(value_of, option, record, policies), None)
            if option.kind is Kind.INSTANT:
                fields |= {option.name: time_of(value), f"{option.name}_ms": value}
            elif option.kind is Kind.RECORD and value is not None:
                fields[option.name] = RECORDS[option.name](**msgspec.structs.asdict(value))
            else:
                fields[option.name] = value
        return fields | {
            "calendar": self._calendar(schedule),
            "calendar_id": record.calendar,
            "rotation": attempt(lambda: schedule.rotation, None),
            "rotation_index": record.rotation_index,
            "enabled": record.enabled,
            "status": schedule.status,
        }

    def _calendar(self, schedule: Schedule) -> str | None:
        calendar = schedule.record.calendar
        if calendar is None or calendar in SEEDS:
            return calendar
        if calendar not in self._names:
            self._names[calendar] = schedule.calendar
        return self._names[calendar]


def _trigger(trigger: Trigger | None) -> dict[str, Any]:
    fields: dict[str, Any] = dict.fromkeys(("description", "cron", "every", "every_ms", "trigger"))
    fields |= {"tz": "UTC", **_instants(anchor=None, at=None)}
    if trigger is None:
        return fields
    fields |= {"description": trigger.describe(), "tz": trigger.tz, "trigger": encode(trigger)}
    match trigger:
        case Cron():
            return fields | {"cron": trigger.expression}
        case Every():
            return fields | {
                "every": write_length(trigger.milliseconds),
                "every_ms": trigger.milliseconds,
                **_instants(anchor=trigger.anchor),
            }
        case At():
            return fields | {"at": from_ms(trigger.instant), "at_ms": trigger.instant}
        case _:
            return fields


def _instants(**instants: int | None) -> dict[str, Any]:
    """Each instant as `x_at` and `x_at_ms`."""
    fields: dict[str, Any] = {}
    for name, instant in instants.items():
        field = "at" if name == "at" else f"{name}_at"
        fields |= {field: time_of(instant), f"{field}_ms": instant}
    return fields


def _override(text: str | None) -> OverrideShape | None:
    if text is None:
        return None
    said: Mapping[str, Any] = msgspec.json.decode(text)
    return OverrideShape(by=said.get("by"), **_instants(tick=said["tick_at"], to=said.get("to")))


def tick_shape(tick: Tick) -> TickShape:
    record = tick.record
    return TickShape(
        schedule_id=record.schedule_id,
        kind=TickKind(record.kind),
        outcome=Outcome(record.outcome),
        reason=None if record.reason is None else Reason(record.reason),
        detail=tick.detail,
        job_id=record.job_id,
        rotation_index=record.rotation_index,
        count=record.count,
        dst_adjusted=record.dst_adjusted,
        **_instants(
            tick=record.tick_at,
            due=record.due_at,
            decided=record.decided_at,
            first=record.first_at,
        ),
    )


def foreseen_shape(tick: Foreseen) -> ForeseenShape:
    return ForeseenShape(
        local=_local(tick.local),
        viewer=_local(tick.viewer),
        decision=tick.decision,  # type: ignore[arg-type]
        reason=None if tick.reason is None else Reason(tick.reason),
        detail=tick.detail,
        inputs=tick.inputs,
        rotation_index=tick.rotation_index,
        dst_adjusted=tick.dst_adjusted,
        **_instants(tick=tick.tick_ms, due=to_ms(tick.due)),
    )


def _local(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds")


def explanation_shape(explanation: Explanation) -> ExplanationShape:
    return ExplanationShape(
        passes=explanation.passes,
        detail=explanation.detail,
        checks=[
            CheckShape(**check._asdict(), detail=check.detail, why=check.why)
            for check in explanation.checks
        ],
    )


def plan_shape(plan: SchedulePlan) -> PlanShape:
    entries = [
        PlanEntryShape(
            kind=entry.kind,
            key=entry.key,
            is_calendar=entry.is_calendar,
            schedule_id=entry.schedule_id,
            renamed_from=entry.renamed_from,
            changed={
                name: FieldChange(before=before, after=after)
                for name, (before, after) in entry.fields.items()
            },
            reason=entry.reason,
        )
        for entry in plan
    ]
    return PlanShape(changes=len(plan.changes), applied_before=plan.applied_before, entries=entries)
