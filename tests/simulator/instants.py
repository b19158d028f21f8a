"""Finds the ticks of a trigger by trying every minute, without the code under test.

The rule for clocks that are set forward or back is that of docs/dst.md: an expression whose minute
or hour starts with `*` follows the clock; any other fires once for each local time that matches,
the first time if it comes twice, and at the end of the gap if it is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

MINUTE = timedelta(minutes=1)
DAY_MS = 86_400_000
Field = Callable[[int], bool]


class Timetable(NamedTuple):
    """A trigger in the words of this module: one of the three is given."""

    every: tuple[int, int] | None = None
    """The interval and its anchor."""
    at: int | None = None
    cron: tuple[str, str] | None = None
    """The expression and its zone."""

    @classmethod
    def read(cls, stored: str) -> Timetable:
        trigger: dict[str, Any] = msgspec.json.decode(stored)
        if trigger["kind"] == "interval":
            return cls(every=(trigger["milliseconds"], trigger["anchor"]))
        if trigger["kind"] == "at":
            return cls(at=trigger["instant"])
        return cls(cron=(trigger["expression"], trigger["tz"]))

    def between(self, start: int, end: int) -> Sequence[int]:
        """The instants in [start, end)."""
        if self.every is not None:
            interval, anchor = self.every
            first = anchor + max(0, -((anchor - start) // interval)) * interval
            return range(first, max(first, end), interval)
        if self.at is not None:
            return [self.at] if start <= self.at < end else []
        assert self.cron is not None
        days = range(start // DAY_MS, end // DAY_MS + 1)
        found = [tick for day in days for tick in cron_ticks(*self.cron, day)]
        return [tick for tick in found if start <= tick < end]

    def next_after(self, instant: int) -> int | None:
        if self.at is not None:
            return self.at if self.at > instant else None
        if self.every is not None:
            return self.between(instant + 1, max(instant + 1, self.every[1]) + self.every[0])[0]
        for days in (2, 40):
            if found := self.between(instant + 1, instant + days * DAY_MS):
                return found[0]
        return None


@lru_cache(maxsize=4_096)
def cron_ticks(expression: str, tz: str, day: int) -> tuple[int, ...]:
    """All ticks of one day, counted in UTC."""
    minute, hour, *rest = expression.split()
    assert rest == ["*", "*", "*"], "no other days are simulated"
    matches = (_field(minute), _field(hour))
    zone = ZoneInfo(tz)
    start = datetime.fromtimestamp(day * 86_400, UTC)
    if minute.startswith("*") or hour.startswith("*"):
        moments = (start + n * MINUTE for n in range(1_440))
        ticks = {m for m in moments if _shows(m.astimezone(zone), matches)}
    else:
        local = start.date()
        dates = (local - timedelta(days=1), local, local + timedelta(days=1))
        ticks = {tick for each in dates for tick in _fixed(each, matches, zone)}
        ticks = {tick for tick in ticks if start <= tick < start + timedelta(days=1)}
    return tuple(sorted(round(tick.timestamp() * 1000) for tick in ticks))


def _fixed(day: date, matches: tuple[Field, Field], zone: ZoneInfo) -> list[datetime]:
    """Once for every time of a local date that matches."""
    midnight = datetime.combine(day, time())
    shown = [midnight + n * MINUTE for n in range(1_440)]
    return [_instant(local, zone) for local in shown if _shows(local, matches)]


def _shows(local: datetime, matches: tuple[Field, Field]) -> bool:
    return matches[0](local.minute) and matches[1](local.hour)


def _instant(local: datetime, zone: ZoneInfo) -> datetime:
    """When clocks first show it; if they never do, when they have been set forward over it."""
    instant = local.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    # As if clocks had not been set forward, it is this long after the gap's end.
    while (instant - MINUTE).astimezone(zone).replace(tzinfo=None) > local:
        instant -= MINUTE
    return instant


def _field(text: str) -> Field:
    """`*`, `*/n`, and lists of numbers and ranges."""
    if text == "*":
        return lambda _: True
    if text.startswith("*/"):
        step = int(text[2:])
        return lambda value: value % step == 0
    wanted: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        wanted |= set(range(int(first), int(last or first) + 1))
    return wanted.__contains__
