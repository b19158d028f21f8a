"""Decides what happens to each tick of a schedule.

`walk` makes all decisions, for every purpose: the ticker, previews, backfills, forecasts and `why`
use it, so a preview matches what happens. It decides from values only: a Plan, and the Facts that
were gathered for a whole page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from duly.model.calendar import Calendar
from duly.model.condition import (
    COUNTS,
    PREVIOUS_RUN,
    SIGNAL,
    Condition,
    Explanation,
    Stats,
    context,
)
from duly.model.due import FOREVER, Missed, due_at, shifted, ticks_due
from duly.model.function import Status
from duly.model.schedule import (
    ONE_BY_ONE,
    Budget,
    Malformed,
    Outcome,
    Plan,
    Reason,
    TickKind,
    TickRecord,
)
from duly.model.schedule_options import Overlap
from duly.model.text import storable

# Facts --------------------------------------------------------------------------------------------


class InFlight(NamedTuple):
    """A pending and a running job of a schedule, if any."""

    pending: str | None = None
    running: str | None = None


NOTHING_IN_FLIGHT = InFlight()


class Signal(NamedTuple):
    """The answer of the signal hook, or its error."""

    value: Any = None
    error: str | None = None


class Prior(NamedTuple):
    """The latest finished job of a target and its last 24 hours, as conditions see them."""

    result: Mapping[str, Any] | None = None
    stats: Stats = Stats()


class Facts(msgspec.Struct, frozen=True):
    """The data from which a page of ticks is decided; gathered once for the whole page."""

    killed: str | None = None
    """Who engaged the kill switch, if it is engaged."""
    statuses: Mapping[str, Status] = {}
    """The functions that are not active."""
    in_flight: Mapping[str, InFlight] = {}
    calendars: Mapping[str, Calendar] = {}
    priors: Mapping[str, Prior] = {}
    """By function."""
    signals: Mapping[str, Signal] = {}
    dispatched: Mapping[str, Sequence[int]] = {}
    """When a schedule with a budget was dispatched, within its window."""
    costs: Mapping[str, Sequence[tuple[int, float]]] = {}
    slots: Mapping[str, frozenset[int]] = {}
    """Slots that a backfill has taken before their time."""
    forgotten: Mapping[str, int] = {}
    """The instant before which retention has removed ticks; only read for a backfill."""
    ancestors: frozenset[str] = frozenset()
    """The schedules whose jobs are ancestors of the caller."""


class Standing(NamedTuple):
    """The state that the ticks of a schedule leave for the next one."""

    rotation_index: int
    remaining: int | None
    last_dispatch_at: int | None

    @property
    def is_over(self) -> bool:
        return self.remaining == 0

    def after_dispatch(self, now: int) -> Standing:
        # An operator can run a schedule that has ended.
        remaining = None if self.remaining is None else max(0, self.remaining - 1)
        return Standing(self.rotation_index + 1, remaining, now)


def standing_of(plan: Plan, ticks: Sequence[Decided] = ()) -> Standing:
    """The state after these ticks."""
    if ticks:
        return ticks[-1].standing
    record = plan.record
    return Standing(record.rotation_index, record.remaining, record.last_dispatch_at)


class Tick(NamedTuple):
    """One tick, with everything that its decision depends on."""

    plan: Plan
    at: int
    facts: Facts
    standing: Standing
    dispatched: Sequence[int] = ()
    """Earlier ticks that were dispatched and are not included in the facts."""
    beside: int | None = None
    """The last tick that was dispatched in the same pass."""


# Guards -------------------------------------------------------------------------------------------


class Dispatch(NamedTuple):
    """The tick calls its function with these arguments (JSON)."""

    args: str
    rotation_index: int | None = None


class Skip(NamedTuple):
    """The tick is skipped for this reason; the detail has names and values."""

    reason: Reason
    detail: Mapping[str, Any] = {}


Decision = Dispatch | Skip
Guard = Callable[[Tick], Skip | None]


class Purpose(Enum):
    """The purpose of a decision."""

    TICK = auto()
    RUN = auto()
    BACKFILL = auto()
    FORECAST = auto()


def decide(tick: Tick, guards: Sequence[Guard]) -> Decision:
    """Decide one tick: the first guard that objects gives the reason."""
    for guard in guards:
        skip = guard(tick)
        if skip is not None:
            return skip
    rotation = tick.plan.rotation
    if rotation is None:
        return Dispatch(tick.plan.record.args)
    position = tick.standing.rotation_index % len(rotation)
    return Dispatch(rotation.entries[position], position)


def _taken(tick: Tick) -> Skip | None:
    return Skip(Reason.SLOT_EXISTS) if tick.at in taken_slots(tick.plan, tick.facts) else None


def taken_slots(plan: Plan, facts: Facts) -> frozenset[int]:
    return facts.slots.get(plan.id, frozenset())


def _kill_switch(tick: Tick) -> Skip | None:
    killed = tick.facts.killed
    if killed is None:
        return None
    return Skip(Reason.KILL_SWITCH, {"by": killed} if killed else {})


def _target(tick: Tick) -> Skip | None:
    function = tick.plan.record.function
    status = tick.facts.statuses.get(function)
    if status == Status.PAUSED:
        return Skip(Reason.TARGET_PAUSED, {"function": function})
    if status == Status.DEPRECATED:
        return Skip(Reason.TARGET_DEPRECATED, {"function": function})
    return None


def _operator(tick: Tick) -> Skip | None:
    override = tick.plan.override
    if override is None or override.tick_at != tick.at or override.to is not None:
        return None
    return Skip(Reason.OPERATOR, {"by": override.by} if override.by else {})


def _budget(tick: Tick) -> Skip | None:
    return _within_budget(tick, tick.at)


def _budget_of_run(tick: Tick) -> Skip | None:
    """A run comes after everything that was dispatched, including ticks whose nominal time is still
    ahead because an operator or a calendar moved them."""
    return _within_budget(tick, FOREVER)


def _within_budget(tick: Tick, until: int) -> Skip | None:
    budget = tick.plan.policies.budget
    if budget is None:
        return None
    spent = _spent(tick, budget, until)
    most = budget.cost if budget.runs is None else budget.runs
    assert most is not None
    if spent < most:
        return None
    what = "cost" if budget.runs is None else "runs"
    return Skip(Reason.BUDGET_EXCEEDED, {what: most, "spent": spent, "per": budget.per})


def _spent(tick: Tick, budget: Budget, until: int) -> float:
    since, schedule_id = tick.at - budget.window_ms, tick.plan.id
    if budget.runs is None:
        costs = tick.facts.costs.get(schedule_id, ())
        return sum(amount for at, amount in costs if since < at <= until)
    # Two can have the same time: a run, and a slot.
    ticks = (*tick.facts.dispatched.get(schedule_id, ()), *tick.dispatched)
    return sum(1 for at in ticks if since < at <= until)


def _cycle(tick: Tick) -> Skip | None:
    if tick.plan.id not in tick.facts.ancestors:
        return None
    return Skip(Reason.CYCLE_DETECTED, {"schedule": tick.plan.record.key})


def _overlap(tick: Tick) -> Skip | None:
    flight = tick.facts.in_flight.get(tick.plan.id, NOTHING_IN_FLIGHT)
    match tick.plan.policies.overlap:
        case Overlap.SKIP:
            job = flight.running or flight.pending
        case Overlap.BUFFER_ONE if tick.beside is not None:
            return Skip(Reason.OVERLAP_IN_FLIGHT, {"tick_at": tick.beside})
        case Overlap.BUFFER_ONE:
            job = flight.pending
        case _:
            job = None
    return None if job is None else Skip(Reason.OVERLAP_IN_FLIGHT, {"job": job})


def _calendar(tick: Tick) -> Skip | None:
    name, calendars = tick.plan.record.calendar, tick.facts.calendars
    if name is None:
        return None
    calendar = calendars.get(name)
    if calendar is None:
        return Skip(Reason.CALENDAR, {"calendar": name, "error": "the calendar cannot be read"})
    verdict = calendar.verdict(shifted(tick.plan, tick.at, calendars))
    if verdict.allowed:
        return None
    detail: dict[str, Any] = {"calendar": verdict.calendar, "why": verdict.detail}
    if verdict.day is not None:
        detail["date"] = verdict.day.isoformat()
    if verdict.label:
        detail["label"] = verdict.label
    return Skip(Reason.CALENDAR, detail)


def explain(condition: Condition, plan: Plan, facts: Facts) -> Explanation:
    """The result of each check of a schedule's condition."""
    prior = facts.priors.get(plan.record.function, Prior())
    signal = facts.signals.get(plan.id, Signal())
    seen = context(prior.result, prior.stats, signal.value)
    return condition.explain(seen, plan.policies.first_run)


def _condition(tick: Tick) -> Skip | None:
    condition = tick.plan.condition
    if condition is None:
        return None
    if isinstance(condition, Malformed):
        return Skip(Reason.CONDITION_FAILED, {"error": condition.error})
    signal = tick.facts.signals.get(tick.plan.id, Signal())
    if signal.error is not None:
        return Skip(Reason.CONDITION_FAILED, {"error": signal.error})
    explanation = explain(condition, tick.plan, tick.facts)
    if explanation.passes:
        return None
    checks = [check._asdict() for check in explanation.checks]
    return Skip(Reason.CONDITION_FAILED, {"why": explanation.detail, "checks": checks})


GUARDS: Mapping[Purpose, Sequence[Guard]] = {
    Purpose.TICK: (
        _kill_switch,
        _target,
        _operator,
        _budget,
        _cycle,
        _overlap,
        _calendar,
        _condition,
    ),
    # An operator who runs a schedule by hand overrides the calendar and the condition.
    Purpose.RUN: (_kill_switch, _target, _budget_of_run, _cycle, _overlap),
    # The current state does not apply to past ticks.
    Purpose.BACKFILL: (_taken, _kill_switch, _target, _cycle, _calendar),
    # The other guards depend on results that are not known yet.
    Purpose.FORECAST: (_operator, _calendar),
}
"""The guards in their fixed order."""


# Walking ticks ------------------------------------------------------------------------------------


class Decided(NamedTuple):
    """One tick, its decision, and the state after it."""

    tick_at: int
    due_at: int
    decision: Decision
    standing: Standing


def walk(
    plan: Plan,
    facts: Facts,
    ticks: Iterable[int],
    now: int,
    purpose: Purpose = Purpose.TICK,
    *,
    assume: Callable[[Tick], Facts] | None = None,
) -> Iterator[Decided]:
    """Decide ticks of a schedule in order, each with the state that the ones before it leave.

    It ends when no dispatches remain. `assume`: returns the facts to assume at a tick.
    """
    # A requested tick is decided at its own time. Ticks of the trigger may be moved, and are
    # passed over if their slot is already taken.
    asked_for = purpose in (Purpose.RUN, Purpose.BACKFILL)
    taken = frozenset[int]() if asked_for else taken_slots(plan, facts)
    guards, standing = GUARDS[purpose], standing_of(plan)
    dispatched: list[int] = []
    passed_at, beside = now, None
    for tick_at in ticks:
        # An operator can run a schedule that has ended.
        if standing.is_over and purpose is not Purpose.RUN:
            return
        if tick_at in taken:
            continue
        due = tick_at if asked_for else due_at(plan, tick_at, facts.calendars)
        if due > passed_at:
            # Everything that is due at the same time is one pass.
            passed_at, beside = due, None
        tick = Tick(plan, tick_at, facts, standing, dispatched, beside)
        if assume is not None:
            tick = tick._replace(facts=assume(tick))
        decision = decide(tick, guards)
        if isinstance(decision, Dispatch):
            standing, beside = standing.after_dispatch(now), tick_at
            dispatched.append(tick_at)
        yield Decided(tick_at, due, decision, standing)


def with_inputs(tick: Decided, args: str, plan: Plan) -> Decided:
    """A run with its own inputs; it does not advance the rotation."""
    if isinstance(tick.decision, Skip):
        return tick
    standing = tick.standing._replace(rotation_index=plan.record.rotation_index)
    return tick._replace(decision=Dispatch(args), standing=standing)


# Verdicts and ledger rows -------------------------------------------------------------------------


class Verdict(NamedTuple):
    """The decisions of a pass about one schedule."""

    plan: Plan
    ticks: tuple[Decided, ...] = ()
    missed: Missed | None = None
    next_tick_at: int | None = None
    due_at: int | None = None
    taken: tuple[int, ...] = ()
    """Slots that a backfill has dispatched before."""
    remove: bool = False

    @property
    def standing(self) -> Standing:
        return standing_of(self.plan, self.ticks)

    @property
    def dispatches(self) -> list[tuple[Decided, Dispatch]]:
        return [(t, t.decision) for t in self.ticks if isinstance(t.decision, Dispatch)]

    @property
    def cancels_others(self) -> bool:
        return self.plan.policies.overlap == Overlap.CANCEL_OTHER and bool(self.dispatches)

    @property
    def is_serial(self) -> bool:
        """Whether its jobs must run one after the other."""
        overlap = self.plan.policies.overlap
        if overlap in ONE_BY_ONE:
            return True
        return len(self.ticks) > 1 and overlap == Overlap.SKIP and len(self.dispatches) > 1


def judge(plan: Plan, facts: Facts, now: int) -> Verdict:
    """Decide all ticks of a schedule that are due."""
    if facts.statuses.get(plan.record.function) == Status.DELETED:
        return Verdict(plan, remove=True)
    due = ticks_due(plan, now, facts.calendars)
    ticks = tuple(walk(plan, facts, due.ticks, now))
    upcoming = None if standing_of(plan, ticks).is_over else due.next_tick_at
    slots = taken_slots(plan, facts)
    return Verdict(
        plan,
        ticks,
        None if due.missed is None else _really_missed(plan, due.missed, slots),
        upcoming,
        None if upcoming is None else due_at(plan, upcoming, facts.calendars),
        tuple(tick_at for tick_at in due.ticks if tick_at in slots),
    )


def _really_missed(plan: Plan, missed: Missed, slots: frozenset[int]) -> Missed | None:
    """The missed ticks, without those that a backfill has dispatched in the meantime."""
    inside = (tick_at for tick_at in slots if missed.first <= tick_at <= missed.last)
    # If a clock was set back, there may be slots of an earlier trigger too.
    filled = {tick_at for tick_at in inside if plan.trigger.matches(tick_at)}
    count = missed.count - len(filled)
    if not filled or count <= 0:
        return missed if not filled else None
    first, last = missed.first, missed.last
    while first in filled:
        first = plan.trigger.next_after(first) or last
    while last in filled:
        last = plan.trigger.prev_before(last) or first
    return Missed(first, last, count)


def ledger_rows(verdict: Verdict, jobs: Mapping[int, str], now: int) -> Iterator[TickRecord]:
    """The ledger rows of a verdict; `jobs` has the ids of dispatched jobs by tick."""
    if verdict.missed is not None:
        missed = verdict.missed
        yield TickRecord(
            verdict.plan.id,
            TickKind.MISSED,
            missed.last,
            Outcome.MISSED,
            due_at=missed.last,
            decided_at=now,
            first_at=missed.first,
            count=missed.count,
        )
    for tick in verdict.ticks:
        yield tick_row(verdict.plan, TickKind.SLOT, tick, jobs.get(tick.tick_at), now)


def tick_row(plan: Plan, kind: TickKind, tick: Decided, job_id: str | None, now: int) -> TickRecord:
    """The ledger row of one tick."""
    row = TickRecord(
        plan.id,
        kind,
        tick.tick_at,
        Outcome.DISPATCHED,
        due_at=tick.due_at,
        decided_at=now,
        dst_adjusted=kind == TickKind.SLOT and plan.trigger.adjusted(tick.tick_at),
    )
    decision = tick.decision
    if isinstance(decision, Dispatch):
        return replace(row, job_id=job_id, rotation_index=decision.rotation_index)
    detail = encode_detail(decision.detail) if decision.detail else None
    return replace(row, outcome=Outcome.SKIPPED, reason=decision.reason, detail=detail)


MAX_DETAIL = 4_000


def encode_detail(detail: Mapping[str, Any]) -> str:
    """The detail as it is stored.

    If it is too long, or not valid text for a database, only its words are kept.
    """
    with contextlib.suppress(UnicodeEncodeError):
        text = msgspec.json.encode(detail).decode()
        if len(text) <= MAX_DETAIL:
            return text
    why = storable(str(detail.get("why", detail.get("error", ""))), MAX_DETAIL // 2)
    return msgspec.json.encode({"why": why, "truncated": True}).decode()


def needs_prior(plan: Plan) -> bool:
    """Whether the condition depends on earlier jobs of the target."""
    return _mentions(plan, PREVIOUS_RUN, COUNTS)


def needs_signal(plan: Plan) -> bool:
    return _mentions(plan, SIGNAL)


def _mentions(plan: Plan, *parts: str) -> bool:
    condition = plan.condition
    if condition is None or isinstance(condition, Malformed):
        return False
    return any(not rule.path or rule.path[0] in parts for rule in condition.rules)
