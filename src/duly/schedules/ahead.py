"""Looking ahead: previews; and back: backfills."""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from duly.model.condition import Stats
from duly.model.decide import (
    Decided,
    Decision,
    Dispatch,
    Facts,
    Prior,
    Skip,
    Standing,
    after_dispatch,
    decide,
    judge,
    standing_of,
)
from duly.model.due import due_at, first_coming, first_tick
from duly.model.function import Status
from duly.model.schedule import Plan, Reason, TickKind
from duly.model.schedule_options import DAY_MS
from duly.model.trigger import Cron
from duly.store.schedules.runs import Run
from duly.zones import zone

# Looking ahead and back --------------------------------------------------------------------------


def foresee(
    plan: Plan,
    facts: Facts,
    since: int,
    n: int,
    now: int,
    *,
    simulate: bool = False,
    result: Mapping[str, Any] | None = None,
    standing: Standing | None = None,
) -> Iterator[Decided]:
    """The next ticks after an instant, each decided as the ticker would decide it.

    `standing`: what those before it will have left behind, if that is not what is stored.
    """
    if facts.statuses.get(plan.record.function) == Status.DELETED:
        return
    standing = standing_of(plan) if standing is None else standing
    base, taken = facts, facts.slots.get(plan.id, frozenset())
    tick_at, passed_at = first_tick(plan, since), 0
    while tick_at is not None and n > 0 and not standing.is_over:
        following = first_tick(plan, tick_at)
        if tick_at not in taken:
            n -= 1
            due = due_at(plan, tick_at, facts.calendars)
            if due > passed_at:
                # Only ticks that a calendar moves to the same instant are decided in one pass.
                passed_at, standing = due, standing._replace(buffered=None)
            decision = decide(plan, tick_at, facts, standing)
            adjusted = isinstance(plan.trigger, Cron) and plan.trigger.adjusted(tick_at)
            yield Decided(tick_at, due, decision, adjusted)
            if isinstance(decision, Dispatch):
                standing = after_dispatch(plan, standing, tick_at, now)
        if simulate and following is not None:
            facts = simulated(plan, base, standing, following, result)
        tick_at = following


def decided_until(plan: Plan, facts: Facts, now: int) -> tuple[int, Standing]:
    """The instant after which all ticks are still to come, and how things will stand then.

    That is now, but for ticks that were moved. One that waits for its jitter, or was moved to
    later, is still to come though its time has passed; one that was moved to an earlier day may be
    decided though its time has not come. What is due already is as good as decided.
    """
    upcoming, standing = plan.record.next_tick_at, standing_of(plan)
    if upcoming is None:
        coming = first_coming(plan, now, facts.calendars)
        return (now if coming is None else coming - 1), standing
    if max(upcoming, due_at(plan, upcoming, facts.calendars)) > now:
        return upcoming - 1, standing
    verdict = judge(plan, facts, now)
    since = now if verdict.next_tick_at is None else verdict.next_tick_at - 1
    return since, verdict.standing._replace(buffered=None)


def simulated(
    plan: Plan,
    facts: Facts,
    standing: Standing,
    tick_at: int,
    result: Mapping[str, Any] | None,
) -> Facts:
    """The facts as they would be at a tick if every dispatch before it had succeeded."""
    function = plan.record.function
    prior = facts.priors.get(function, Prior())
    recent = sum(1 for dispatched in standing.dispatched if dispatched > tick_at - DAY_MS)
    stats = Stats(prior.stats.succeeded + recent, prior.stats.failed, prior.stats.total + recent)
    seen = prior.result
    if standing.dispatched:
        seen = {"status": "completed"} | dict(result or {})
    return msgspec.structs.replace(
        facts, priors={**facts.priors, function: Prior(seen, stats)}, in_flight={}
    )


def fill(plan: Plan, facts: Facts, first: int, last: int, now: int) -> Run:
    """The ticks of [first, last), decided for a backfill."""
    standing = standing_of(plan)
    taken = facts.slots.get(plan.id, frozenset())
    decided: list[Decided] = []
    for tick_at in plan.trigger.between(first, last):
        if standing.is_over:
            break
        decision: Decision = Skip(Reason.SLOT_EXISTS)
        if tick_at not in taken:
            decision = decide(plan, tick_at, facts, standing, backfill=True)
        adjusted = isinstance(plan.trigger, Cron) and plan.trigger.adjusted(tick_at)
        decided.append(Decided(tick_at, tick_at, decision, adjusted))
        if isinstance(decision, Dispatch):
            standing = standing.after_dispatch(tick_at, now)
    until = decided[-1].tick_at if decided else None
    return Run(TickKind.SLOT, decided, standing, until)


def within(plan: Plan, first: int, last: int) -> tuple[int, int]:
    """The part of [first, last) that lies between the schedule's start and end."""
    start, end = plan.record.start_at, plan.record.end_at
    return (
        first if start is None else max(first, start),
        last if end is None else min(last, end + 1),
    )


def zone_info(name: str) -> ZoneInfo:
    """The zone, from the newest data that there is."""
    return zone(name).info
