"""Schedules: their policies, and the possible outcomes of a tick.

A schedule is stored as a `ScheduleRecord`; a `Plan` is its parsed form: trigger, condition,
rotation and policies decoded. Tickers and previews make all decisions from a Plan.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from duly.errors import BadInput, InvalidOption
from duly.model.condition import Condition
from duly.model.condition import parse as parse_condition
from duly.model.rotation import Rotation
from duly.model.rotation import parse as parse_rotation
from duly.model.schedule_options import (
    BY_NAME,
    DEFAULT_CATCH_UP,
    LONGEST_MS,
    FirstRun,
    Overlap,
    Shift,
    is_number,
)
from duly.model.trigger import AnyOf, At, Cron, Every, Rule, Trigger, anchored, within_minutes
from duly.model.trigger import decode as decode_trigger
from duly.model.trigger import encode as encode_trigger

MAX_BUDGET_RUNS = 10_000
MAX_COST = 1e15
FLOOR_MS = 300_000
"""The shortest interval of a schedule that is not declared in code."""
CODE_FLOOR_MS = 1_000
MINUTE_MS = 60_000


ONE_BY_ONE = (Overlap.BUFFER_ONE, Overlap.BUFFER_ALL, Overlap.CANCEL_OTHER)
"""With these policies, the jobs of a schedule wait for each other."""


class Outcome(StrEnum):
    """The outcome of a tick."""

    DISPATCHED = "dispatched"
    SKIPPED = "skipped"
    MISSED = "missed"


class TickKind(StrEnum):
    """The origin of a tick: its trigger or an operator; or the row represents missed ticks."""

    SLOT = "slot"
    MANUAL = "manual"
    MISSED = "missed"


class Reason(StrEnum):
    """Why a tick was skipped. The database allows no other values."""

    CALENDAR = "calendar"
    CONDITION_FAILED = "condition_failed"
    BUDGET_EXCEEDED = "budget_exceeded"
    OVERLAP_IN_FLIGHT = "overlap_in_flight"
    CYCLE_DETECTED = "cycle_detected"
    SLOT_EXISTS = "schedule_slot_exists"
    TARGET_PAUSED = "target_paused"
    TARGET_DEPRECATED = "target_deprecated"
    KILL_SWITCH = "kill_switch"
    OPERATOR = "operator"


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The maximum number of runs, or cost reported by `ctx.cost`, in any `per` seconds.

    For a tick at `t`, dispatches in (t - per, t] count; the times are nominal.
    """

    runs: int | None = None
    cost: float | None = None
    per: float

    def __post_init__(self) -> None:
        if (self.runs is None) == (self.cost is None):
            raise InvalidOption("budget", "give either runs or cost")
        if self.runs is not None and (
            type(self.runs) is not int or not 1 <= self.runs <= MAX_BUDGET_RUNS
        ):
            raise InvalidOption(
                "budget", f"runs must be 1 to {MAX_BUDGET_RUNS:,}, not {self.runs!r}"
            )
        if self.cost is not None and not (is_number(self.cost, 0, MAX_COST) and self.cost > 0):
            raise InvalidOption("budget", f"cost must be a positive number, not {self.cost!r}")
        if not is_number(self.per, 0.001, LONGEST_MS / 1000):
            raise InvalidOption(
                "budget", f"per must be 0.001 s to a year, in seconds, not {self.per!r}"
            )

    @property
    def window_ms(self) -> int:
        """The length of the window in milliseconds."""
        return round(self.per * 1000)


def check_cost(amount: object) -> float:
    """Refuse values that are not a valid cost."""
    if not is_number(amount, 0, MAX_COST):
        raise InvalidOption("cost", f"must be a number from 0 to {MAX_COST:g}, not {amount!r}")
    return float(amount)  # type: ignore[arg-type]


class Policies(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How ticks are treated, apart from their times. Durations are in milliseconds."""

    overlap: Overlap = Overlap.SKIP
    catch_up: int = DEFAULT_CATCH_UP
    catch_up_window: int | None = None
    jitter: int = 0
    shift: Shift | None = None
    first_run: FirstRun = "check"
    budget: Budget | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (value := getattr(self, name)) is not None:
                BY_NAME[name].check(value)


POLICIES = frozenset(Policies.__struct_fields__)


class Override(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator's decision about one tick: to skip it, or to move it to `to`."""

    tick_at: int
    by: str | None = None
    to: int | None = None


class ScheduleRecord(msgspec.Struct, frozen=True):
    """One row of the schedules table. The fields are in the order of the columns."""

    id: str
    app: str
    owner: str
    key: str
    function: str
    args: str
    options: str
    trigger: str
    zoned: bool
    calendar: str | None
    condition: str | None
    rotation: str | None
    rotation_index: int
    policies: str
    enabled: bool
    note: str | None
    changed_by: str | None
    start_at: int | None
    end_at: int | None
    remaining: int | None
    next_tick_at: int | None
    due_at: int | None
    override: str | None
    awake_at: int | None
    filled_until: int | None
    last_tick_at: int | None
    last_dispatch_at: int | None
    last_job_id: str | None
    error: str | None
    parked_at: int | None
    parked_tick: int | None
    orphaned_at: int | None
    declared: str | None
    expect: str | None
    alert: str | None
    expect_at: int | None
    expect_tick: int | None
    last_success_at: int | None
    late: str | None
    version: int
    created_at: int
    updated_at: int


class TickRecord(msgspec.Struct, frozen=True):
    """One row of the ledger. The fields are in the order of the columns."""

    schedule_id: str
    kind: str
    tick_at: int
    outcome: str
    reason: str | None = None
    detail: str | None = None
    job_id: str | None = None
    rotation_index: int | None = None
    due_at: int = 0
    decided_at: int = 0
    first_at: int | None = None
    count: int | None = None
    dst_adjusted: bool = False


class ScheduleFilter(NamedTuple):
    """Filters for a list of schedules; None means any."""

    app: str | None = None
    owner: str | None = None
    function: str | None = None
    enabled: bool | None = None
    calendar: str | None = None
    parked: bool | None = None
    status: str | None = None
    """A value of `Schedule.status`; or "late": its expectation was missed."""
    search: str | None = None
    """A part of the key or of the function's name, in lower case."""
    due_before: int | None = None
    """Only schedules that are due before this, in due order; `after_due` goes with `after_id`."""
    after_due: int | None = None
    after_id: str | None = None
    limit: int = 100


class TickFilter(NamedTuple):
    """Filters for a list of a schedule's ticks; None means any. Times are [after, before)."""

    before: int | None = None
    after: int | None = None
    outcome: str | None = None
    reason: str | None = None
    limit: int = 100


class Malformed(msgspec.Struct, frozen=True):
    """A stored condition that cannot be parsed: its ticks are skipped, the schedule continues."""

    error: str


class Plan(msgspec.Struct, frozen=True):
    """A parsed schedule."""

    record: ScheduleRecord
    trigger: Trigger
    policies: Policies
    condition: Condition | Malformed | None
    rotation: Rotation | None
    override: Override | None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def zone(self) -> str:
        """The zone of its cron expression or rule; intervals and instants have none, so UTC."""
        return "UTC" if isinstance(self.trigger, Every | At) else self.trigger.tz


def plan_of(record: ScheduleRecord) -> Plan:
    """Parse a stored schedule; raises if it is invalid."""
    return Plan(
        record,
        read_trigger(record.trigger),
        read_policies(record.policies),
        None if record.condition is None else read_condition(record.condition),
        None if record.rotation is None else read_rotation(record.rotation),
        None if record.override is None else msgspec.json.decode(record.override, type=Override),
    )


# A page has many schedules with equal values, and the same values occur repeatedly.


@lru_cache(maxsize=20_000)
def read_trigger(text: str) -> Trigger:
    return decode_trigger(msgspec.json.decode(text))


@lru_cache(maxsize=4_096)
def read_policies(text: str) -> Policies:
    return msgspec.json.decode(text, type=Policies)


@lru_cache(maxsize=4_096)
def read_condition(text: str) -> Condition | Malformed:
    try:
        return parse_condition(msgspec.json.decode(text))
    except (BadInput, msgspec.DecodeError) as error:
        return Malformed(str(error))


@lru_cache(maxsize=4_096)
def read_rotation(text: str) -> Rotation | None:
    return parse_rotation(msgspec.json.decode(text))


def write_trigger(trigger: Trigger) -> str:
    return msgspec.json.encode(encode_trigger(trigger)).decode()


def is_zoned(trigger: Trigger) -> bool:
    """Whether its instants depend on time zone data."""
    if isinstance(trigger, AnyOf):
        return any(map(is_zoned, trigger.triggers))
    return isinstance(trigger, Cron | Rule) and trigger.tz != "UTC"


FASTER = "declare it in code with app.schedule(…), or allow it with Duly(min_interval=…)"


def check_interval(trigger: Trigger, floor_ms: int, now: int) -> None:
    """Refuse an interval that is shorter than this kind of schedule allows.

    A cron expression or a rule may tick every minute in any case, but more often only if an
    interval may. So may several triggers together.
    """
    least = min(floor_ms, MINUTE_MS)
    if isinstance(trigger, AnyOf):
        for each in trigger.triggers:
            check_interval(each, floor_ms, now)
        if floor_ms > CODE_FLOOR_MS:
            _check_together(trigger, floor_ms, now)
    if isinstance(trigger, Every) and trigger.milliseconds < floor_ms:
        shortest, given = floor_ms / 1000, trigger.milliseconds / 1000
        raise InvalidOption(
            "every", f"the shortest interval is {shortest:g} s, not {given:g} s", FASTER
        )
    if isinstance(trigger, Rule) and within_minutes(trigger) < least:
        raise InvalidOption(
            "rule",
            f"{trigger.rule!r} ticks more than once a minute",
            FASTER,
        )
    if isinstance(trigger, Cron) and within_minutes(trigger) < least:
        raise InvalidOption(
            "cron",
            f"{trigger.expression!r} ticks more than once a minute",
            FASTER,
        )


CHECKED_TICKS = 100
"""How many upcoming ticks of several triggers are checked."""


def _check_together(trigger: AnyOf, floor_ms: int, now: int) -> None:
    least = min(floor_ms, MINUTE_MS)
    ticks = anchored(trigger, now, None).upcoming(CHECKED_TICKS, now)
    if len(ticks) == CHECKED_TICKS and ticks[-1] - ticks[0] < (CHECKED_TICKS - 1) * least:
        raise InvalidOption(
            "trigger",
            "together, the triggers tick more than once a minute",
            FASTER,
        )
