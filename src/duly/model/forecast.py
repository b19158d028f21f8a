"""Forecasts: dispatches per hour and per schedule, and the busiest minutes.

Triggers and calendars are considered; conditions are not, since their results are not known yet.

Ticks are counted, not listed: a trigger gives those of a day as a bit mask, which is reduced to
counts per minute. Only ticks that policies move (`jitter`, `shift`) are computed one by one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from duly.model.calendar import Calendar
from duly.model.decide import Decided, Dispatch, Facts, Purpose, standing_of, walk
from duly.model.due import jitter_of, ticks_due, ticks_to_come, within
from duly.model.schedule import Plan
from duly.model.schedule_options import DAY_MS
from duly.model.trigger import Every, Ticks, Trigger

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
BUSIEST = 10
MAX_DELAYED = 1_000_000
"""Computing the jitter of more ticks would take too long."""


Range = tuple[int, int]
"""Two instants, without the second one."""


class Minute(NamedTuple):
    """A minute (UTC, in milliseconds) and the number of its jobs."""

    at: int
    dispatches: int


class Share(NamedTuple):
    """A schedule and the number of its dispatches."""

    schedule_id: str
    key: str
    dispatches: int


class Forecast(msgspec.Struct, frozen=True):
    """The dispatches in [start, end)."""

    start: int
    end: int
    hours: tuple[int, ...]
    """The number of dispatches in each hour, from `start`."""
    busiest: tuple[Minute, ...]
    """The minutes with the most dispatches, most first."""
    by_schedule: tuple[Share, ...]
    """Every schedule, the one with the most dispatches first."""
    complete: bool
    """False if schedules with jitter have too many ticks; some are then counted without it."""

    @property
    def total(self) -> int:
        """The total number of dispatches."""
        return sum(self.hours)

    @property
    def schedules(self) -> int:
        """The number of schedules."""
        return len(self.by_schedule)


def forecast(
    plans: Iterable[Plan],
    calendars: Mapping[str, Calendar],
    start: int,
    hours: int,
    now: int,
    max_delayed: int = MAX_DELAYED,
) -> Forecast:
    """The dispatches of these schedules in each hour from `start` on."""
    start -= start % MINUTE_MS
    end = start + hours * HOUR_MS
    counts, shares = _PerMinute(), list[Share]()
    complete = True
    for plan in plans:
        if jitter := plan.policies.jitter:
            delayed = _count(plan.trigger, start - jitter, end)
            if delayed <= max_delayed:
                max_delayed -= delayed
            else:
                complete, plan = False, _without_jitter(plan)
        total = sum(map(counts.add, _dispatches(plan, calendars, start, end, now)))
        shares.append(Share(plan.id, plan.record.key, total))
    shares.sort(key=lambda share: -share.dispatches)
    minutes = counts.between(start, end)
    by_hour = tuple(sum(minutes[n : n + 60]) for n in range(0, len(minutes), 60))
    return Forecast(start, end, by_hour, _busiest(minutes, start), tuple(shares), complete)


def outlook(
    plan: Plan, calendars: Mapping[str, Calendar], start: int, end: int, now: int
) -> Iterator[Decided]:
    """The decisions about a schedule's ticks, as far as they are known; including those before the
    start, which use up its remaining dispatches."""
    ticks = ticks_to_come(plan, now, calendars, start, end)
    return walk(plan, Facts(calendars=calendars), ticks, now, Purpose.FORECAST)


def _without_jitter(plan: Plan) -> Plan:
    return replace(plan, policies=replace(plan.policies, jitter=0))


def _busiest(minutes: Sequence[int], start: int) -> tuple[Minute, ...]:
    ranked = ((-count, n) for n, count in enumerate(minutes) if count)
    return tuple(Minute(start + n * MINUTE_MS, -count) for count, n in nsmallest(BUSIEST, ranked))


# Ticks --------------------------------------------------------------------------------------------


def _dispatches(
    plan: Plan, calendars: Mapping[str, Calendar], start: int, end: int, now: int
) -> Iterator[Ticks]:
    """The ticks that are dispatched in [start, end), at the times at which they are due."""
    if plan.policies.shift is not None:  # which needs a trigger with at most one tick a day
        yield from _due_in(outlook(plan, calendars, start, end, now), start, end)
        return
    due = ticks_due(plan, now, calendars)
    first = due.next_tick_at
    # An operator may have skipped or moved the next tick, and those that are due are caught up.
    known = due.ticks if first is None else (*due.ticks, first)
    decided = list(walk(plan, Facts(calendars=calendars), known, now, Purpose.FORECAST))
    yield from _due_in(decided, start, end)
    remaining = standing_of(plan, decided).remaining
    if first is None or remaining == 0:
        return
    jitter = plan.policies.jitter
    since = first + 1 if remaining is not None else max(first + 1, start - jitter)
    spans = _allowed(plan, calendars, *within(plan, since, end))
    if remaining is not None:
        spans = _first(plan.trigger, spans, remaining)
    for begin, until in spans:
        if jitter:
            yield from _delayed(plan, begin, until, start, end)
        else:
            yield from _by_minute(plan.trigger, max(begin, start), min(until, end))


def _due_in(decided: Iterable[Decided], start: int, end: int) -> Iterator[Ticks]:
    for tick in decided:
        if isinstance(tick.decision, Dispatch) and start <= tick.due_at < end:
            yield Ticks(tick.due_at, 1)


def _delayed(plan: Plan, begin: int, until: int, start: int, end: int) -> Iterator[Ticks]:
    for tick in plan.trigger.between(begin, until):
        due_at = tick + jitter_of(plan, tick)
        if start <= due_at < end:
            yield Ticks(due_at, 1)


def _by_minute(trigger: Trigger, start: int, end: int) -> Iterator[Ticks]:
    """The ticks in [start, end), each in its minute."""
    if not isinstance(trigger, Every) or trigger.milliseconds % 100 == 0:
        yield from trigger.ticks_between(start, end)
        return
    # Hardly any of its ticks are whole seconds apart, so there is no pattern. Which second of the
    # minute a tick is in does not matter.
    for minute in range(start - start % MINUTE_MS, end, MINUTE_MS):
        count = trigger.count_between(max(start, minute), min(end, minute + MINUTE_MS))
        if count:
            yield Ticks(minute, (1 << count) - 1)


def _allowed(
    plan: Plan, calendars: Mapping[str, Calendar], start: int, end: int
) -> Iterable[Range]:
    """The parts of [start, end) that the schedule's calendar allows."""
    name = plan.record.calendar
    if name is None:
        return [(start, end)]
    calendar = calendars.get(name)
    return () if calendar is None else calendar.allowed_between(start, end)


def _first(trigger: Trigger, spans: Iterable[Range], ticks: int) -> Iterator[Range]:
    """The parts of these spans with the first so many ticks."""
    for begin, end in spans:
        for since in range(begin, end, DAY_MS):
            day = range(since, min(end, since + DAY_MS))
            found = _count(trigger, since, day.stop)
            if found >= ticks:
                last = bisect_left(day, ticks, key=lambda tick: _count(trigger, day[0], tick + 1))
                yield since, day[last] + 1
                return
            ticks -= found
            yield since, day.stop


def _count(trigger: Trigger, start: int, end: int) -> int:
    return sum(bits.bit_count() for _, bits in trigger.ticks_between(start, end))


# Counts per minute --------------------------------------------------------------------------------

LANE = 32
"""The bits of one count where many are one number, so that they are added at once."""
MAX_LISTED = 100
"""So many ticks are listed; more are packed."""


class _PerMinute:
    """How many ticks there are in each minute."""

    def __init__(self) -> None:
        self._listed: Counter[int] = Counter()
        self._packed: dict[int, int] = {}
        """By the minute of the first count."""

    def add(self, ticks: Ticks) -> int:
        """Add these ticks, and return how many they are."""
        minute, second = divmod(ticks.at // 1000, 60)
        listed, packed = _reduced(ticks.bits << second)
        if packed:
            self._packed[minute] = self._packed.get(minute, 0) + packed
        for after, count in listed:
            self._listed[minute + after] += count
        return ticks.bits.bit_count()

    def between(self, start: int, end: int) -> list[int]:
        """The count of each minute."""
        first = start // MINUTE_MS
        counts = [0] * (end // MINUTE_MS - first)
        for minute, packed in self._packed.items():
            for after, count in enumerate(_unpacked(packed), minute - first):
                if count:
                    counts[after] += count
        for minute, count in self._listed.items():
            counts[minute - first] += count
        return counts


# Most days of a trigger have the same ticks.
@lru_cache(maxsize=512)
def _reduced(bits: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Seconds as counts per minute: pairs of minute and count, or one number if they are many."""
    text = f"{bits:b}"[::-1]
    if bits.bit_count() > MAX_LISTED:
        counts = [text.count("1", n, n + 60) for n in range(0, len(text), 60)]
        return (), int.from_bytes(struct.pack(f"<{len(counts)}I", *counts), "little")
    found: Counter[int] = Counter()
    second = text.find("1")
    while second >= 0:
        found[second // 60] += 1
        second = text.find("1", second + 1)
    return tuple(found.items()), 0


def _unpacked(packed: int) -> tuple[int, ...]:
    size = -(-packed.bit_length() // LANE)
    return struct.unpack(f"<{size}I", packed.to_bytes(size * LANE // 8, "little"))
