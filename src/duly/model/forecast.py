"""How much is to come: dispatches by the hour, and the busiest minutes.

Triggers and calendars are asked, conditions are not: what they will say nobody knows yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from duly.model.calendar import Calendar
from duly.model.due import FURTHEST_MS, due_at, first_tick, shifted, ticks_due
from duly.model.schedule import Plan
from duly.model.trigger import Every, Trigger

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
BUSIEST = 10
MOST_TICKS = 1_000_000
"""Looking further would take too long; the answer says so."""


class Minute(NamedTuple):
    """A minute (UTC, in milliseconds) and how many jobs it brings."""

    at: int
    dispatches: int


class Forecast(msgspec.Struct, frozen=True):
    """What is to come from one instant to before another."""

    start: int
    end: int
    hours: tuple[int, ...]
    """Dispatches in each hour, the first of which begins at `start`."""
    busiest: tuple[Minute, ...]
    """The minutes with most dispatches, most first."""
    schedules: int
    complete: bool
    """False if there was too much to look at: what came after that is not counted."""

    @property
    def total(self) -> int:
        return sum(self.hours)


def forecast(
    plans: Iterable[Plan],
    calendars: Mapping[str, Calendar],
    start: int,
    hours: int,
    now: int,
    most_ticks: int = MOST_TICKS,
) -> Forecast:
    """The dispatches of these schedules in the hours from `start` on."""
    start -= start % MINUTE_MS
    end = start + hours * HOUR_MS
    minutes: Counter[int] = Counter()
    ticks = seen = 0
    complete = True
    for plan in plans:
        if not complete:
            break
        seen += 1
        for dispatch in dispatches(plan, calendars, start, end, now):
            ticks += 1
            if ticks > most_ticks:
                complete = False
                break
            if dispatch is not None and start <= dispatch[1] < end:
                minutes[dispatch[1] - dispatch[1] % MINUTE_MS] += 1
    by_hour = [0] * hours
    for minute, count in minutes.items():
        by_hour[(minute - start) // HOUR_MS] += count
    ranked = sorted(minutes.items(), key=lambda item: (-item[1], item[0]))[:BUSIEST]
    busiest = tuple(Minute(at, count) for at, count in ranked)
    return Forecast(start, end, tuple(by_hour), busiest, seen, complete)


def dispatches(
    plan: Plan, calendars: Mapping[str, Calendar], start: int, end: int, now: int
) -> Iterator[tuple[int, int] | None]:
    """The ticks of a schedule and when their jobs become due, as far as that is known; also before
    the start, where they use up what remains. None for a tick that brings no job."""
    record = plan.record
    left = record.remaining
    calendar = None if record.calendar is None else calendars.get(record.calendar)
    for tick in _to_come(plan, calendars, start, end, now):
        if left == 0:
            return
        if _is_skipped(plan, tick) or (
            record.calendar is not None
            and (calendar is None or not calendar.allows(shifted(plan, tick, calendars)))
        ):
            yield None
            continue
        left = None if left is None else left - 1
        yield tick, due_at(plan, tick, calendars)


def _is_skipped(plan: Plan, tick: int) -> bool:
    """Whether an operator has said so."""
    override = plan.override
    return override is not None and override.tick_at == tick and override.to is None


def _to_come(
    plan: Plan, calendars: Mapping[str, Calendar], start: int, end: int, now: int
) -> Iterator[int]:
    """The ticks that nobody has decided yet, but for those that will be missed."""
    due = ticks_due(plan, now, calendars)
    yield from due.ticks
    if due.next_tick_at is None:
        return
    # An operator may have moved this one anywhere.
    yield due.next_tick_at
    since = due.next_tick_at
    if plan.record.remaining is None:
        # What is over by then, however it was moved, changes nothing.
        furthest = FURTHEST_MS if plan.policies.shift is not None else 0
        since = max(since, start - 1 - plan.policies.jitter - furthest)
    following = first_tick(plan, since)
    if following is not None:
        until = end if plan.record.end_at is None else min(end, plan.record.end_at + 1)
        yield from _ticks(plan.trigger, following, until)


def _ticks(trigger: Trigger, first: int, end: int) -> Iterator[int]:
    if isinstance(trigger, Every):
        yield from range(first, end, trigger.milliseconds)
    else:
        yield from trigger.between(first, end)
