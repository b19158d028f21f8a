"""Forecasts: dispatches per hour, and the busiest minutes.

Triggers and calendars are considered; conditions are not, since their results are not known yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from duly.model.calendar import Calendar
from duly.model.decide import Decided, Dispatch, Facts, Purpose, walk
from duly.model.due import ticks_to_come
from duly.model.schedule import Plan

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
BUSIEST = 10
MAX_TICKS = 1_000_000
"""Checking more ticks would take too long; the forecast says that it is incomplete."""


class Minute(NamedTuple):
    """A minute (UTC, in milliseconds) and the number of its jobs."""

    at: int
    dispatches: int


class Forecast(msgspec.Struct, frozen=True):
    """The dispatches in [start, end)."""

    start: int
    end: int
    hours: tuple[int, ...]
    """The number of dispatches in each hour, from `start`."""
    busiest: tuple[Minute, ...]
    """The minutes with the most dispatches, most first."""
    schedules: int
    complete: bool
    """False if there were too many ticks to check; later ones are then not counted."""

    @property
    def total(self) -> int:
        """The total number of dispatches."""
        return sum(self.hours)


def forecast(
    plans: Iterable[Plan],
    calendars: Mapping[str, Calendar],
    start: int,
    hours: int,
    now: int,
    most_ticks: int = MAX_TICKS,
) -> Forecast:
    """The dispatches of these schedules in each hour from `start` on."""
    start -= start % MINUTE_MS
    end = start + hours * HOUR_MS
    minutes: Counter[int] = Counter()
    ticks = seen = 0
    complete = True
    for plan in plans:
        if not complete:
            break
        seen += 1
        for tick in outlook(plan, calendars, start, end, now):
            ticks += 1
            if ticks > most_ticks:
                complete = False
                break
            if isinstance(tick.decision, Dispatch) and start <= tick.due_at < end:
                minutes[tick.due_at - tick.due_at % MINUTE_MS] += 1
    by_hour = [0] * hours
    for minute, count in minutes.items():
        by_hour[(minute - start) // HOUR_MS] += count
    ranked = sorted(minutes.items(), key=lambda item: (-item[1], item[0]))[:BUSIEST]
    busiest = tuple(Minute(at, count) for at, count in ranked)
    return Forecast(start, end, tuple(by_hour), busiest, seen, complete)


def outlook(
    plan: Plan, calendars: Mapping[str, Calendar], start: int, end: int, now: int
) -> Iterator[Decided]:
    """The decisions about a schedule's ticks, as far as they are known; including those before the
    start, which use up its remaining dispatches."""
    ticks = ticks_to_come(plan, now, calendars, start, end)
    return walk(plan, Facts(calendars=calendars), ticks, now, Purpose.FORECAST)
