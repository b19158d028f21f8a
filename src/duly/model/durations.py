"""Durations as text: `5m`, `1h30m`."""

from __future__ import annotations

import re

UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])")


def read_length(text: str) -> int | None:
    """Parse a duration with units, such as "5m" or "1h30m", to milliseconds; None if invalid."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * UNITS_MS[unit] for number, unit in parts))


def write_length(milliseconds: int) -> str:
    """A duration in the form that `read_length` accepts, with days as the largest unit: "1h30m"."""
    written = ""
    for unit in ("d", "h", "m", "s", "ms"):
        number, milliseconds = divmod(milliseconds, UNITS_MS[unit])
        written += f"{number}{unit}" if number else ""
    return written or "0s"


def length_in_words(milliseconds: int) -> str:
    """A duration in its largest unit: "3 hours"."""
    seconds = max(0, milliseconds) // 1000
    for size, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return _count(seconds // size, unit)
    return _count(seconds, "second")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
