"""Previews the decisions about upcoming ticks, as of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from duly.model.condition import RunStatus, Stats
from duly.model.decide import Decided, Facts, Prior, Tick, walk
from duly.model.due import first_coming, ticks_due, ticks_to_come
from duly.model.function import Status
from duly.model.schedule import Plan
from duly.model.schedule_options import DAY_MS


def preview(
    plan: Plan,
    facts: Facts,
    now: int,
    *,
    simulate: bool = False,
    result: Mapping[str, Any] | None = None,
) -> Iterator[Decided]:
    """The upcoming ticks, each decided as the ticker would decide it.

    For a schedule that is not active, they are those if it were enabled now. Ticks that are already
    due are not included, but their effects on later ticks are. A tick whose nominal time has passed
    may still be upcoming, if it is delayed by jitter or was moved.
    """
    if facts.statuses.get(plan.record.function) == Status.DELETED:
        return iter(())
    calendars, upcoming = facts.calendars, plan.record.next_tick_at
    if upcoming is None:
        upcoming = first_coming(plan, now, calendars)
        plan = replace(plan, record=replace(plan.record, next_tick_at=upcoming))
    first = upcoming
    if upcoming is not None and upcoming <= now:
        first = ticks_due(plan, now, calendars).next_tick_at
    if first is None:
        return iter(())

    def assume(tick: Tick) -> Facts:
        return simulated(tick, result) if tick.at > first else tick.facts

    ticks = ticks_to_come(plan, now, calendars)
    walked = walk(plan, facts, ticks, now, assume=assume if simulate else None)
    return (tick for tick in walked if tick.tick_at >= first)


def simulated(tick: Tick, result: Mapping[str, Any] | None) -> Facts:
    """The facts at a tick if every dispatch before it had succeeded."""
    facts, function = tick.facts, tick.plan.record.function
    prior = facts.priors.get(function, Prior())
    recent = sum(1 for dispatched in tick.dispatched if dispatched > tick.at - DAY_MS)
    stats = Stats(prior.stats.succeeded + recent, prior.stats.failed, prior.stats.total + recent)
    seen = prior.result
    if tick.dispatched:
        seen = {"status": RunStatus.COMPLETED} | dict(result or {})
    return replace(facts, priors={**facts.priors, function: Prior(seen, stats)}, in_flight={})
