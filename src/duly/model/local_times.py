"""Puts local times on the clock of a zone.

On days on which clocks are set forward or back, the rules are those of Debian's cron; docs/dst.md
shows examples.

1. Times that follow the clock tick at every instant at which the clock shows a matching time.
2. Fixed times tick once for every matching date and time. A repeated time ticks the first time; a
   skipped one ticks at the end of the gap, unless the gap is longer than three hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from duly.zones import Zone

EARLIEST = -60_000_000_000
LATEST = 250_000_000_000
"""The seconds between which ticks are searched."""
FAR = 2 * 86_400
"""A tick is never further from its local time, read as if it were UTC."""
_DAY = 86_400
_LONGEST_GAP = 3 * 3600
_CENTURY = 36_525 * 86_400


class LocalTimes(Protocol):
    """Local seconds that match: a cron expression or a recurrence rule."""

    @property
    def follows_clock(self) -> bool:
        """Which of the two rules applies."""
        ...

    def first_from(self, local: int) -> int | None:
        """The first matching local second from this one on."""
        ...

    def last_until(self, local: int) -> int | None:
        """The last matching local second up to this one."""
        ...

    def matches(self, local: int) -> bool:
        """Whether this local second matches."""
        ...

    def count(self, start: int, end: int) -> int:
        """How many local seconds in [start, end) match."""
        ...

    def of_day(self, day: int) -> int:
        """The matching seconds of a day, as bits; days are numbered from 1970-01-01."""
        ...


def first_from(times: LocalTimes, where: Zone, second: int) -> int | None:
    """The first tick at or after a second."""
    if second > LATEST:
        return None
    start, end, offset, before = where.span(second)
    follows_clock = times.follows_clock
    earliest = second + offset
    if not follows_clock:
        if earliest < start + before:
            earliest = start + before  # the second pass of a repeated hour
        elif second == start:
            earliest = start + before  # a gap has just ended
    local = times.first_from(earliest)
    until = min(second + _CENTURY, LATEST)
    stepped = False
    while local is not None and start < until:
        if local < start + offset:
            if offset - before <= _LONGEST_GAP:
                return start
            local = times.first_from(start + offset)
            continue
        if local - offset < end:
            return local - offset
        # A later span may be entered in its middle: its repeated or skipped times are long past.
        enter = max(end, local - FAR) if stepped else end
        stepped = True
        start, end, offset, before = where.span(enter)
        if follows_clock and enter == start and (offset < before or local < start + offset):
            local = times.first_from(start + offset)
    return None


def last_until(times: LocalTimes, where: Zone, second: int) -> int | None:
    """The last tick at or before a second."""
    if second < EARLIEST:
        return None
    start, _, offset, before = where.span(second)
    follows_clock = times.follows_clock
    latest = second + offset
    until = max(second - _CENTURY, EARLIEST)
    stepped = False
    while (local := times.last_until(latest)) is not None and start > until:
        own = start + offset
        if local >= own and (follows_clock or local >= start + before):
            return local - offset
        if not follows_clock and start + before <= local < own and offset - before <= _LONGEST_GAP:
            return start
        leave = min(start - 1, local + FAR) if stepped else start - 1
        stepped = True
        start, _, offset, before = where.span(leave)
        latest = leave + offset
    return None


def count(times: LocalTimes, where: Zone, second: int, until: int) -> int:
    """How many ticks are in [second, until)."""
    total = 0
    while second < until:
        start, end, offset, before = where.span(second)
        end = min(end, until)
        first = second + offset
        if not times.follows_clock:
            first = max(first, start + before)
            if second == start and _ends_a_gap_with_a_tick(times, start, offset, before):
                total += 1
        total += times.count(first, end + offset)
        second = end
    return total


def by_day(times: LocalTimes, where: Zone, second: int, until: int) -> Iterator[tuple[int, int]]:
    """The ticks in [second, until), a local day at a time: a second, and bits counted from it."""
    while second < until:
        start, end, offset, before = where.span(second)
        end = min(end, until)
        first, last = second + offset, end + offset
        if not times.follows_clock:
            first = max(first, start + before)
            if second == start and _ends_a_gap_with_a_tick(times, start, offset, before):
                yield start, 1
        for day in range(first // _DAY, -(-last // _DAY)):
            midnight = day * _DAY
            bits = times.of_day(day)
            if midnight < first:
                bits &= -1 << first - midnight
            if midnight + _DAY > last:
                bits &= (1 << last - midnight) - 1
            if bits:
                yield midnight - offset, bits
        second = end


def _ends_a_gap_with_a_tick(times: LocalTimes, start: int, offset: int, before: int) -> bool:
    """Whether there is a tick only because a time was skipped."""
    if not 0 < offset - before <= _LONGEST_GAP or times.matches(start + offset):
        return False
    return times.count(start + before, start + offset) > 0
