"""Which ticks of a schedule are due, and what becomes of each?

The ticker and the preview call the same functions, so that what was foreseen is what happens. All
of it is decided from values: a Plan, the Facts that were gathered for a whole page, and a Standing,
which is what the ticks of one schedule change from one to the next.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from duly.model.calendar import FURTHEST_SHIFT, Calendar, shift
from duly.model.condition import Stats, context
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

GRACE_MS = 60_000
"""A tick that is looked at no later than this is on time, also where nothing is caught up."""
FOREVER = 2**63 - 1
FURTHEST_MS = (FURTHEST_SHIFT + 1) * DAY_MS
"""Further is no tick moved to another day."""


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


# When ---------------------------------------------------------------------------------------------


def due_at(plan: Plan, tick_at: int, calendars: Mapping[str, Calendar]) -> int:
    """When a tick is looked at: an operator, a shift to another day or jitter may move it."""
    if plan.override is not None and plan.override.tick_at == tick_at and plan.override.to:
        return plan.override.to
    return shifted(plan, tick_at, calendars) + jitter_of(plan, tick_at)


def shifted(plan: Plan, tick_at: int, calendars: Mapping[str, Calendar]) -> int:
    """The tick on the nearest day that its calendar allows, if it is to be moved there."""
    direction, name = plan.policies.shift, plan.record.calendar
    if direction is None or name is None or name not in calendars:
        return tick_at
    moved = shift(tick_at, plan.zone, calendars[name], direction)
    return tick_at if moved is None else moved


def jitter_of(plan: Plan, tick_at: int) -> int:
    """A delay that looks random and is always the same for one tick."""
    most = plan.policies.jitter
    if not most:
        return 0
    digest = hashlib.blake2b(f"{plan.id} {tick_at}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (most + 1)


def first_tick(plan: Plan, after: int) -> int | None:
    """The first tick later than an instant that lies between start and end."""
    start, end = plan.record.start_at, plan.record.end_at
    if start is not None and start > after:
        after = start - 1
    tick = plan.trigger.next_after(after)
    return None if tick is None or (end is not None and tick > end) else tick


def first_coming(plan: Plan, after: int, calendars: Mapping[str, Calendar]) -> int | None:
    """The first tick later than an instant that is also looked at later than that.

    One that a calendar moves to an earlier day may be past although its time is still to come.
    """
    tick = first_tick(plan, after)
    while tick is not None and due_at(plan, tick, calendars) <= after:
        tick = first_tick(plan, tick)
    return tick


def re_aimed(
    plan: Plan, now: int, taken: Collection[int], calendars: Mapping[str, Calendar]
) -> int | None:
    """The tick at which a schedule should stand that was moved on by a clock ahead of this one.

    The first that is still to come and has no row in the ledger (`taken`), unless it stands at an
    earlier one.
    """
    tick = first_coming(replace(plan, override=None), now, calendars)
    while tick is not None and tick in taken:
        tick = first_tick(plan, tick)
    stands_at = plan.record.next_tick_at
    if tick is None or (stands_at is not None and stands_at <= tick):
        return stands_at
    return tick


class Missed(msgspec.Struct, frozen=True):
    """Ticks that nobody will dispatch any more."""

    first: int
    last: int
    count: int


class Due(NamedTuple):
    """The ticks to decide now, oldest first; those that are too many; and what comes next."""

    ticks: tuple[int, ...]
    missed: Missed | None
    next_tick_at: int | None


def ticks_due(plan: Plan, now: int, calendars: Mapping[str, Calendar]) -> Due:
    """The ticks that are due; only the newest ones of too many (`catch_up`)."""
    first = plan.record.next_tick_at
    if first is None or due_at(plan, first, calendars) > now:
        return Due((), None, first)
    last, following = _reached(plan, first, now, calendars)
    kept = _kept(plan, first, last, now, calendars)
    return Due(tuple(kept), _missed(plan, first, last, kept), following)


def _reached(
    plan: Plan, first: int, now: int, calendars: Mapping[str, Calendar]
) -> tuple[int, int | None]:
    """The last tick that has come, and the one after it, which has not.

    Ticks are looked at in order: one that jitter makes late keeps back those behind it.
    """
    last, following = first, first_tick(plan, first)
    if following is None or due_at(plan, following, calendars) > now:
        return last, following
    # What lies further back than a tick can be moved has come, however much it is.
    certain = plan.trigger.prev_before(_certainly_due(plan, now) + 1)
    if certain is not None and certain > last:
        last, following = certain, first_tick(plan, certain)
    while following is not None and due_at(plan, following, calendars) <= now:
        last, following = following, first_tick(plan, following)
    return last, following


def furthest(plan: Plan) -> int:
    """How far its policies may move a tick."""
    policies = plan.policies
    return policies.jitter + (FURTHEST_MS if policies.shift is not None else 0)


def _certainly_due(plan: Plan, now: int) -> int:
    end = plan.record.end_at
    latest = now - furthest(plan)
    return latest if end is None else min(latest, end)


def _kept(
    plan: Plan, first: int, last: int, now: int, calendars: Mapping[str, Calendar]
) -> list[int]:
    """The newest ticks, as many as still count, oldest first."""
    policies = plan.policies
    kept = _on_time(plan, first, last, now, calendars)
    since = None if policies.catch_up_window is None else now - policies.catch_up_window
    tick = _before(plan, kept[-1], first) if kept else last
    while tick is not None and len(kept) < policies.catch_up:
        if since is not None and due_at(plan, tick, calendars) < since:
            break
        kept.append(tick)
        tick = _before(plan, tick, first)
    return kept[::-1]


def _on_time(
    plan: Plan, first: int, last: int, now: int, calendars: Mapping[str, Calendar]
) -> list[int]:
    """The ticks that nobody could have decided much earlier, newest first: these are not caught up.

    Where ticks are moved, whatever stands behind one that has just become due is on time with it.
    """
    policies = plan.policies
    late = now - GRACE_MS
    if not policies.jitter and policies.shift is None:
        window = policies.catch_up_window
        if window is not None:
            late = max(late, now - window)
        return [last] if due_at(plan, last, calendars) >= late else []
    earliest = _certainly_due(plan, late)
    seen: list[int] = []
    count = 0
    tick: int | None = last
    # The last one may have been moved by hand, however far.
    while tick is not None and (tick >= earliest or tick == last) and len(seen) < MAX_CATCH_UP:
        seen.append(tick)
        if due_at(plan, tick, calendars) >= late:
            count = len(seen)
        tick = _before(plan, tick, first)
    return seen[:count]


def _before(plan: Plan, tick: int, first: int) -> int | None:
    """The tick before one, if it is not before the first of all."""
    if tick <= first:
        return None
    before = plan.trigger.prev_before(tick)
    # The first one stands as it is stored, even if its zone has other rules by now.
    return first if before is None else max(before, first)


def _missed(plan: Plan, first: int, last: int, kept: Sequence[int]) -> Missed | None:
    newest = _before(plan, kept[0], first) if kept else last
    if newest is None:
        return None
    return Missed(first, newest, max(1, plan.trigger.count_between(first, newest + 1)))


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
