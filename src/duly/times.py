"""What may be given as a time or a length of time, and which instant it is."""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import re
from datetime import datetime, timedelta

from duly.clock import to_ms
from duly.errors import InvalidTime
from duly.model.job import FIVE_YEARS_MS

Delay = float | timedelta
Instant = datetime | int
UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])")
LONGEST = 1e12
"""Seconds; whatever is longer would not fit into a stored instant."""


def seconds_of(option: str, delay: Delay) -> float:
    """A length of time in seconds."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidTime(f"{option}: give seconds or a timedelta, not {delay!r}")
    # Comparing works for NaN, infinities and integers of any size; converting does not.
    if not -LONGEST <= delay <= LONGEST:
        number = delay if type(delay) is float else "such a number"
        raise InvalidTime(f"{option}: {number} is no length of time")
    return float(delay)


def after(delay: Delay, now: int) -> int:
    """The instant so much later than now."""
    seconds = seconds_of("delay", delay)
    if seconds < 0:
        raise InvalidTime(f"delay: {seconds:g} s is negative; use run_at for a time in the past")
    return within_five_years(now + round(seconds * 1000), now)


def at(when: Instant, now: int) -> int:
    """The instant as stored."""
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise InvalidTime(f"{when!r} is naive; attach a zone, for example tzinfo=UTC")
        return within_five_years(to_ms(when), now)
    if isinstance(when, bool) or not isinstance(when, int):
        raise InvalidTime(f"give an aware datetime or integer milliseconds, not {when!r}")
    return within_five_years(when, now)


def within_five_years(instant: int, now: int) -> int:
    if abs(instant - now) > FIVE_YEARS_MS:
        raise InvalidTime("the time is more than five years away; is it in milliseconds?")
    return instant


def length_ms(option: str, length: Delay) -> int:
    return max(1, round(seconds_of(option, length) * 1000))


def read_length(text: str) -> int | None:
    """The milliseconds of a length with its units, such as "5m" or "1h30m"; None if it is none."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * UNITS_MS[unit] for number, unit in parts))


def write_length(milliseconds: int) -> str:
    """A length as `read_length` takes it, with days as the largest unit: "1h30m"."""
    written = ""
    for unit in ("d", "h", "m", "s", "ms"):
        number, milliseconds = divmod(milliseconds, UNITS_MS[unit])
        written += f"{number}{unit}" if number else ""
    return written or "0s"
