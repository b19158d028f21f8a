"""Describes a cron expression in words.

The words come from what an expression matches, not from how it is written: `*/7` in the minutes is
not an interval, since minute 56 is followed by minute 0, and the words say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from duly.model.cron import Expression, Special

MONTHS = (
    "January February March April May June July August September October November December".split()
)
DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split()
ORDINALS = "first second third fourth fifth".split()
MAX_TIMES = 6
"""Up to this many times of day are listed; with more, the minutes and hours are."""
MAX_LISTED = 6
"""A sequence with equal steps that is longer than this is abbreviated."""


def in_words(expression: Expression) -> str:
    """When it fires: "At 09:00, Monday through Friday"."""
    said = [*_times(expression), *_days(expression), *_months(expression), *_years(expression)]
    return ", ".join(said)


# Times of a day ----------------------------------------------------------------------------------


def _times(expression: Expression) -> Iterator[str]:
    seconds, minutes, hours = map(
        _values, (expression.seconds, expression.minutes, expression.hours)
    )
    if len(seconds) == len(minutes) == 1:
        yield _once_an_hour(hours, minutes[0], seconds[0])
    elif len(seconds) == 1 and len(minutes) * len(hours) <= MAX_TIMES:
        times = [_clock(hour, minute, seconds[0]) for hour in hours for minute in minutes]
        yield f"At {listed(times)}"
    elif len(seconds) == 1:
        said = _repeated(minutes, "minute", "past the hour")
        yield said if seconds == [0] else f"At second {seconds[0]}, {said[0].lower()}{said[1:]}"
        yield from _within(hours)
    else:
        yield _repeated(seconds, "second", "of the minute")
        if len(minutes) < 60:
            said = _repeated(minutes, "minute", "past the hour")
            yield f"{said[0].lower()}{said[1:]}"
        yield from _within(hours)


def _once_an_hour(hours: list[int], minute: int, second: int) -> str:
    first = _clock(hours[0], minute, second)
    step = _step(hours, 24)
    if step == 1:
        past = [f"{minute} minute{'s' * (minute != 1)}"] if minute else []
        past += [f"{second} second{'s' * (second != 1)}"] if second else []
        return f"At {' and '.join(past)} past every hour" if past else "Every hour"
    if step and len(hours) > 2:
        return f"Every {step} hours" + ("" if first == "00:00" else f" from {first}")
    if len(hours) > 3 and hours[-1] - hours[0] == len(hours) - 1:
        return f"Every hour from {first} through {_clock(hours[-1], minute, second)}"
    return f"At {listed([_clock(hour, minute, second) for hour in hours])}"


def _repeated(values: list[int], unit: str, where: str) -> str:
    """The matching seconds or minutes; as an interval only if they are one."""
    step = _step(values, 60)
    if step == 1:
        return f"Every {unit}"
    if step and len(values) > 1:
        start = f" from {unit} {values[0]}" if values[0] else ""
        return f"Every {step} {unit}s{start}"
    return f"At {unit}{'s' * (len(values) > 1)} {numbers(values)} {where}"


def _within(hours: list[int]) -> Iterator[str]:
    if len(hours) == 24:
        return
    spans = [f"between {first:02}:00 and {last:02}:59" for first, last in _runs(hours)]
    if len(spans) > 3:
        yield f"in hours {numbers(hours)}"
    else:
        yield listed(spans, "or")


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


def _step(values: list[int], size: int) -> int:
    """The step between values if it is the same all the way around; otherwise 0."""
    step, rest = divmod(size, len(values))
    return step if not rest and values == [*range(values[0], size, step)] else 0


# Days --------------------------------------------------------------------------------------------


def _days(expression: Expression) -> Iterator[str]:
    days, week_days = _values(expression.month_days), _values(expression.week_days)
    specials = expression.specials
    if expression.any_day or len(days) == 31 or len(week_days) == 7:
        return
    if not days and not specials:
        said = days_of_week(week_days)
        is_range = " through " in said and said.count(" ") == 2
        yield said if is_range else f"only on {said}"
        return
    ways = [f"on day{'s' * (len(days) > 1)} {numbers(days)} of the month"] if days else []
    ways += map(_special, dict.fromkeys(specials))
    ways += [f"on {days_of_week(week_days)}"] if week_days else []
    yield ", or ".join(ways)


def days_of_week(days: list[int]) -> str:
    """The week wraps around: a range may cross its end."""
    # The day after a gap comes first; Monday if there is a choice.
    starts = [day for day in (1, 2, 3, 4, 5, 6, 0) if day in days and (day - 1) % 7 not in days]
    said: list[str] = []
    for start in starts:
        length = next(n for n in range(1, 8) if (start + n) % 7 not in days)
        run = [DAYS[(start + n) % 7] for n in range(length)]
        said += [f"{run[0]} through {run[-1]}"] if length > 2 else run
    return listed(said)


def _special(day: Special) -> str:
    match day.kind:
        case "L" if day.value:
            days = f"{day.value} day{'s' * (day.value > 1)}"
            return f"{days} before the last day of the month"
        case "L":
            which = "last day"
        case "LW":
            which = "last weekday"
        case "W":
            which = f"weekday nearest day {day.value}"
        case "nL":
            which = f"last {DAYS[day.value]}"
        case _:
            which = f"{ORDINALS[day.nth - 1]} {DAYS[day.value]}"
    return f"on the {which} of the month"


def _months(expression: Expression) -> Iterator[str]:
    months = _values(expression.months)
    if len(months) == 12:
        return
    said: list[str] = []
    for first, last in _runs(months):
        names = MONTHS[first - 1 : last]
        said += [f"{names[0]} through {names[-1]}"] if len(names) > 2 else names
    yield f"only in {listed(said)}"


def _years(expression: Expression) -> Iterator[str]:
    if years := _values(expression.years):
        yield f"in the year{'s' * (len(years) > 1)} {numbers(years)}"


# Lists -------------------------------------------------------------------------------------------


def _values(mask: int) -> list[int]:
    return [value for value in range(mask.bit_length()) if mask >> value & 1]


def _runs(values: list[int]) -> list[tuple[int, int]]:
    """The first and last value of each run of consecutive values."""
    starts = [value for value in values if value - 1 not in values]
    ends = [value for value in values if value + 1 not in values]
    return list(zip(starts, ends, strict=True))


def numbers(values: list[int]) -> str:
    steps = {after - before for before, after in pairwise(values)}
    if len(steps) == 1 and len(values) > MAX_LISTED and steps != {1}:
        return f"{values[0]}, {values[1]}, {values[2]}, … and {values[-1]}"
    said: list[str] = []
    for first, last in _runs(values):
        alone = [str(value) for value in range(first, last + 1)]
        said += [f"{first} through {last}"] if last - first > 1 else alone
    return listed(said)


def listed(words: Sequence[str], joint: str = "and") -> str:
    *most, last = words
    return f"{', '.join(most)} {joint} {last}" if most else last
