"""What becomes of the ticks of a schedule?

The ticker and the preview call the same functions, so that what was foreseen is what happens. All
of it is decided from values: a Plan, the Facts that were gathered for a whole page, and a Standing,
which is what the ticks of one schedule change from one to the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from duly.model.calendar import Calendar
from duly.model.condition import Stats, context
from duly.model.due import Missed, due_at, shifted, ticks_due
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
from duly.model.schedule_options import DAY_MS, MAX_CATCH_UP, Overlap
from duly.model.text import storable
from duly.model.trigger import Cron

FOREVER = 2**63 - 1


# What is known ------------------------------------------------------------------------------------


class InFlight(NamedTuple):
    """A pending and a running job of a schedule, if there are any."""

    pending: str | None = None
    running: str | None = None


NOTHING_IN_FLIGHT = InFlight()


class Signal(NamedTuple):
    """What the signal hook has answered, or how it failed."""

    value: Any = None
    error: str | None = None


class Prior(NamedTuple):
    """The latest finished job of a target and its last day, as conditions see them."""

    result: Mapping[str, Any] | None = None
    stats: Stats = Stats()


class Facts(msgspec.Struct, frozen=True):
    """What a page of ticks is decided by; gathered once for all of it."""

    killed: str | None = None
    """Who turned everything off, if it is off."""
    statuses: Mapping[str, Status] = {}
    """The functions that are not active."""
    in_flight: Mapping[str, InFlight] = {}
    calendars: Mapping[str, Calendar] = {}
    priors: Mapping[str, Prior] = {}
    """By function."""
    signals: Mapping[str, Signal] = {}
    dispatched: Mapping[str, Sequence[int]] = {}
    """When a schedule with a budget was dispatched, as far as its window reaches."""
    costs: Mapping[str, Sequence[tuple[int, float]]] = {}
    slots: Mapping[str, frozenset[int]] = {}
    """Slots that a backfill has taken before their time."""
    forgotten: Mapping[str, int] = {}
    """Up to when, not included, retention has removed ticks; only asked for a backfill."""
    ancestors: frozenset[str] = frozenset()
    """The schedules among whose jobs the caller's ancestors are."""


class Standing(NamedTuple):
    """What the ticks of one schedule leave behind for the next one."""

    rotation_index: int = 0
    remaining: int | None = None
    dispatched: tuple[int, ...] = ()
    last_dispatch_at: int | None = None
    buffered: int | None = None
    """The tick of this pass whose job waits, where only one may (`buffer_one`)."""

    @property
    def is_over(self) -> bool:
        return self.remaining == 0

    def after_dispatch(self, tick_at: int, now: int, *, rotates: bool = True) -> Standing:
        return Standing(
            self.rotation_index + (1 if rotates else 0),
            # An operator may run one that has ended.
            None if self.remaining is None else max(0, self.remaining - 1),
            (*self.dispatched, tick_at),
            now,
        )


def standing_of(plan: Plan) -> Standing:
    record = plan.record
    return Standing(
        record.rotation_index, record.remaining, last_dispatch_at=record.last_dispatch_at
    )


# Whether ------------------------------------------------------------------------------------------


class Dispatch(NamedTuple):
    """The tick calls its function with these arguments (JSON)."""

    args: str
    rotation_index: int | None = None


class Skip(NamedTuple):
    """The tick does nothing, for this reason; the detail says it with names and values."""

    reason: Reason
    detail: Mapping[str, Any] = {}


Decision = Dispatch | Skip
Guard = Callable[[Plan, int, Facts, Standing], Skip | None]


def decide(
    plan: Plan,
    tick_at: int,
    facts: Facts,
    standing: Standing,
    kind: TickKind = TickKind.SLOT,
    *,
    backfill: bool = False,
) -> Decision:
    """What becomes of one tick: the first guard that objects decides."""
    for guard in _guards(kind, backfill):
        skip = guard(plan, tick_at, facts, standing)
        if skip is not None:
            return skip
    if plan.rotation is None:
        return Dispatch(plan.record.args)
    position = standing.rotation_index % len(plan.rotation)
    return Dispatch(plan.rotation.entries[position], position)


def _kill_switch(_: Plan, __: int, facts: Facts, ___: Standing) -> Skip | None:
    if facts.killed is None:
        return None
    return Skip(Reason.KILL_SWITCH, {"by": facts.killed} if facts.killed else {})


def _target(plan: Plan, _: int, facts: Facts, __: Standing) -> Skip | None:
    status = facts.statuses.get(plan.record.function)
    if status == Status.PAUSED:
        return Skip(Reason.TARGET_PAUSED, {"function": plan.record.function})
    if status == Status.DEPRECATED:
        return Skip(Reason.TARGET_DEPRECATED, {"function": plan.record.function})
    return None


def _operator(plan: Plan, tick_at: int, _: Facts, __: Standing) -> Skip | None:
    override = plan.override
    if override is None or override.tick_at != tick_at or override.to is not None:
        return None
    return Skip(Reason.OPERATOR, {"by": override.by} if override.by else {})


def _budget(plan: Plan, tick_at: int, facts: Facts, standing: Standing) -> Skip | None:
    return _within_budget(plan, tick_at, tick_at, facts, standing)


def _budget_of_run(plan: Plan, tick_at: int, facts: Facts, standing: Standing) -> Skip | None:
    """A run comes after all that was dispatched, also after ticks whose time is still to come: an
    operator or a calendar may have moved them."""
    return _within_budget(plan, tick_at, FOREVER, facts, standing)


def _within_budget(
    plan: Plan, tick_at: int, until: int, facts: Facts, standing: Standing
) -> Skip | None:
    budget = plan.policies.budget
    if budget is None:
        return None
    spent = _spent(plan, budget, tick_at - budget.window_ms, until, facts, standing)
    most = budget.cost if budget.runs is None else budget.runs
    assert most is not None
    if spent < most:
        return None
    what = "cost" if budget.runs is None else "runs"
    return Skip(Reason.BUDGET_EXCEEDED, {what: most, "spent": spent, "per": budget.per})


def _spent(
    plan: Plan, budget: Budget, since: int, until: int, facts: Facts, standing: Standing
) -> float:
    if budget.runs is None:
        costs = facts.costs.get(plan.id, ())
        return sum(amount for tick, amount in costs if since < tick <= until)
    # Two may have the same time: a run, and the slot beside it.
    ticks = (*facts.dispatched.get(plan.id, ()), *standing.dispatched)
    return sum(1 for tick in ticks if since < tick <= until)


def _cycle(plan: Plan, _: int, facts: Facts, __: Standing) -> Skip | None:
    if plan.id not in facts.ancestors:
        return None
    return Skip(Reason.CYCLE_DETECTED, {"schedule": plan.record.key})


def _overlap(plan: Plan, _: int, facts: Facts, standing: Standing) -> Skip | None:
    if standing.buffered is not None:
        return Skip(Reason.OVERLAP_IN_FLIGHT, {"tick_at": standing.buffered})
    flight = facts.in_flight.get(plan.id, NOTHING_IN_FLIGHT)
    match plan.policies.overlap:
        case Overlap.SKIP:
            job = flight.running or flight.pending
        case Overlap.BUFFER_ONE:
            job = flight.pending
        case _:
            job = None
    return None if job is None else Skip(Reason.OVERLAP_IN_FLIGHT, {"job": job})


def _calendar(plan: Plan, tick_at: int, facts: Facts, _: Standing) -> Skip | None:
    name = plan.record.calendar
    if name is None:
        return None
    calendar = facts.calendars.get(name)
    if calendar is None:
        return Skip(Reason.CALENDAR, {"calendar": name, "error": "the calendar cannot be read"})
    verdict = calendar.verdict(shifted(plan, tick_at, facts.calendars))
    if verdict.allowed:
        return None
    detail: dict[str, Any] = {"calendar": verdict.calendar, "why": verdict.detail}
    if verdict.day is not None:
        detail["date"] = verdict.day.isoformat()
    if verdict.label:
        detail["label"] = verdict.label
    return Skip(Reason.CALENDAR, detail)


def context_of(plan: Plan, facts: Facts) -> dict[str, Any]:
    """What the condition of a schedule is judged by."""
    prior = facts.priors.get(plan.record.function, Prior())
    signal = facts.signals.get(plan.id, Signal())
    return context(prior.result, prior.stats, signal.value)


def _condition(plan: Plan, _: int, facts: Facts, __: Standing) -> Skip | None:
    condition = plan.condition
    if condition is None:
        return None
    if isinstance(condition, Malformed):
        return Skip(Reason.CONDITION_FAILED, {"error": condition.error})
    signal = facts.signals.get(plan.id, Signal())
    if signal.error is not None:
        return Skip(Reason.CONDITION_FAILED, {"error": signal.error})
    explanation = condition.explain(context_of(plan, facts))
    if explanation.passes:
        return None
    checks = [check._asdict() for check in explanation.checks]
    return Skip(Reason.CONDITION_FAILED, {"why": explanation.detail, "checks": checks})


_SLOT = (_kill_switch, _target, _operator, _budget, _cycle, _overlap, _calendar, _condition)
_MANUAL = (_kill_switch, _target, _budget_of_run, _cycle, _overlap)
_BACKFILL = (_kill_switch, _target, _cycle, _calendar)


def _guards(kind: TickKind, backfill: bool) -> tuple[Guard, ...]:
    """The guards in their fixed order. An operator who runs a schedule now has seen the calendar
    and the condition; a backfill is about ticks of the past, and how things stand now says nothing
    about those."""
    if backfill:
        return _BACKFILL
    return _SLOT if kind == TickKind.SLOT else _MANUAL


# What is written down -----------------------------------------------------------------------------


class Decided(NamedTuple):
    """One tick with what became of it."""

    tick_at: int
    due_at: int
    decision: Decision
    dst_adjusted: bool = False


class Verdict(NamedTuple):
    """What a pass has decided about one schedule."""

    plan: Plan
    ticks: tuple[Decided, ...] = ()
    missed: Missed | None = None
    next_tick_at: int | None = None
    due_at: int | None = None
    standing: Standing = Standing()
    taken: tuple[int, ...] = ()
    """Slots that a backfill has dispatched before."""
    remove: bool = False

    @property
    def dispatches(self) -> list[tuple[Decided, Dispatch]]:
        return [(t, t.decision) for t in self.ticks if isinstance(t.decision, Dispatch)]

    @property
    def cancels_others(self) -> bool:
        return self.plan.policies.overlap == Overlap.CANCEL_OTHER and bool(self.dispatches)

    @property
    def is_serial(self) -> bool:
        """Whether its jobs have to run one after the other."""
        overlap = self.plan.policies.overlap
        if overlap in ONE_BY_ONE:
            return True
        return len(self.ticks) > 1 and overlap == Overlap.SKIP and len(self.dispatches) > 1


def after_dispatch(plan: Plan, standing: Standing, tick_at: int, now: int) -> Standing:
    """How things stand when a tick of this pass was dispatched."""
    after = standing.after_dispatch(tick_at, now)
    if plan.policies.overlap == Overlap.BUFFER_ONE:
        return after._replace(buffered=tick_at)
    return after


def judge(plan: Plan, facts: Facts, now: int) -> Verdict:
    """Decide all ticks of a schedule that are due."""
    if facts.statuses.get(plan.record.function) == Status.DELETED:
        return Verdict(plan, remove=True)
    due = ticks_due(plan, now, facts.calendars)
    standing = standing_of(plan)
    slots = facts.slots.get(plan.id, frozenset())
    taken = tuple(tick_at for tick_at in due.ticks if tick_at in slots)
    decided: list[Decided] = []
    for tick_at in due.ticks:
        if tick_at in slots:
            continue
        if standing.is_over:
            break
        decision = decide(plan, tick_at, facts, standing)
        decided.append(_decided(plan, tick_at, decision, facts))
        if isinstance(decision, Dispatch):
            standing = after_dispatch(plan, standing, tick_at, now)
    upcoming = None if standing.is_over else due.next_tick_at
    at = None if upcoming is None else due_at(plan, upcoming, facts.calendars)
    missed = None if due.missed is None else _really_missed(plan, due.missed, slots)
    return Verdict(plan, tuple(decided), missed, upcoming, at, standing, taken)


def _really_missed(plan: Plan, missed: Missed, slots: frozenset[int]) -> Missed | None:
    """Those of them that nobody has run in the meantime by a backfill."""
    inside = (tick_at for tick_at in slots if missed.first <= tick_at <= missed.last)
    # Where a clock was set back, there may be slots of an earlier trigger too.
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


def _decided(plan: Plan, tick_at: int, decision: Decision, facts: Facts) -> Decided:
    adjusted = isinstance(plan.trigger, Cron) and plan.trigger.adjusted(tick_at)
    return Decided(tick_at, due_at(plan, tick_at, facts.calendars), decision, adjusted)


def ledger_rows(verdict: Verdict, jobs: Mapping[int, str], now: int) -> Iterator[TickRecord]:
    """The rows of a verdict; `jobs` are the ids of the dispatched ones by tick."""
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
        yield tick_row(verdict.plan.id, TickKind.SLOT, tick, jobs.get(tick.tick_at), now)


def tick_row(
    schedule_id: str, kind: TickKind, tick: Decided, job_id: str | None, now: int
) -> TickRecord:
    """One tick as the ledger has it."""
    row = TickRecord(
        schedule_id,
        kind,
        tick.tick_at,
        Outcome.DISPATCHED,
        due_at=tick.due_at,
        decided_at=now,
        dst_adjusted=tick.dst_adjusted,
    )
    decision = tick.decision
    if isinstance(decision, Dispatch):
        return replace(row, job_id=job_id, rotation_index=decision.rotation_index)
    detail = encode_detail(decision.detail) if decision.detail else None
    return replace(row, outcome=Outcome.SKIPPED, reason=decision.reason, detail=detail)


MAX_DETAIL = 4_000


def encode_detail(detail: Mapping[str, Any]) -> str:
    """The detail as it is stored.

    What would be too long, or is no text to a database, is left out but for the words.
    """
    with contextlib.suppress(UnicodeEncodeError):
        text = msgspec.json.encode(detail).decode()
        if len(text) <= MAX_DETAIL:
            return text
    why = storable(str(detail.get("why", detail.get("error", ""))), MAX_DETAIL // 2)
    return msgspec.json.encode({"why": why, "truncated": True}).decode()


def needs_prior(plan: Plan) -> bool:
    """Whether the condition looks at earlier jobs of the target."""
    return _mentions(plan, "prior_run_result", "last_24h_stats")


def needs_signal(plan: Plan) -> bool:
    return _mentions(plan, "signal_rpc_result")


def _mentions(plan: Plan, *parts: str) -> bool:
    condition = plan.condition
    if condition is None or isinstance(condition, Malformed):
        return False
    return any(not rule.path or rule.path[0] in parts for rule in condition.rules)
