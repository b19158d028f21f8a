"""Converts the instants and durations that callers pass."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from datetime import datetime, timedelta

from duly.clock import to_ms
from duly.errors import InvalidTime
from duly.model.job import FIVE_YEARS_MS

Delay = float | timedelta
Instant = datetime | int
MAX_SECONDS = 1e12
"""Seconds; anything longer would not fit into a stored instant."""


def seconds_of(option: str, delay: Delay) -> float:
    """A duration in seconds."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidTime(f"{option}: give seconds or a timedelta, not {delay!r}")
    # Comparing works for NaN, infinities and integers of any size; converting does not.
    if not -MAX_SECONDS <= delay <= MAX_SECONDS:
        number = delay if type(delay) is float else "this number"
        raise InvalidTime(f"{option}: {number} is not a valid duration")
    return float(delay)


def after(delay: Delay, now: int) -> int:
    """The instant that is `delay` later than now."""
    seconds = seconds_of("delay", delay)
    if seconds < 0:
        raise InvalidTime(f"delay: {seconds:g} s is negative; use run_at for a time in the past")
    return within_five_years(now + round(seconds * 1000), now)


def at(when: Instant, now: int) -> int:
    """The instant in milliseconds, as it is stored."""
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise InvalidTime(f"{when!r} is naive; attach a zone, for example tzinfo=UTC")
        return within_five_years(to_ms(when), now)
    if isinstance(when, bool) or not isinstance(when, int):
        raise InvalidTime(f"give an aware datetime or integer milliseconds, not {when!r}")
    return within_five_years(when, now)


def within_five_years(instant: int, now: int) -> int:
    if abs(instant - now) > FIVE_YEARS_MS:
        raise InvalidTime(
            "the time is more than five years away; integers are milliseconds since 1970"
        )
    return instant


def length_ms(option: str, length: Delay) -> int:
    return max(1, round(seconds_of(option, length) * 1000))
