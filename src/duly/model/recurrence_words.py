"""Describes a recurrence rule in words: "Every 2 weeks on Monday at 09:00"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from duly.model.cron_words import MAX_TIMES, MONTHS, ORDINALS, days_of_week, listed, numbers
from duly.model.recurrence import NthDay, Parts

_UNITS = {
    "YEARLY": "year",
    "MONTHLY": "month",
    "WEEKLY": "week",
    "DAILY": "day",
    "HOURLY": "hour",
    "MINUTELY": "minute",
    "SECONDLY": "second",
}
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def in_words(parts: Parts, start: datetime) -> str:
    """When a rule with this local start ticks."""
    unit = _UNITS[parts.freq]
    step = f"Every {unit}" if parts.interval == 1 else f"Every {parts.interval:,} {unit}s"
    said = [" ".join([step, *_days(parts, start)])]
    said[0] += "".join(f" {times}" for times in _times(parts, start))
    if parts.by_set_pos:
        said.append(f"only the {_ordinals(parts.by_set_pos)} of these in each {unit}")
    if parts.interval > 1:
        said.append(f"from {start:%Y-%m-%d}")
    if parts.count is not None:
        said.append("once" if parts.count == 1 else f"{parts.count:,} times")
    if parts.until is not None:
        said.append(f"until {_until(parts.until)}")
    return ", ".join(said)


def _until(text: str) -> str:
    day = f"{text[:4]}-{text[4:6]}-{text[6:8]}"
    return day + (f" {text[9:11]}:{text[11:13]}:{text[13:]}" if "T" in text else "")


# Days --------------------------------------------------------------------------------------------


def _days(parts: Parts, start: datetime) -> Iterator[str]:
    month_days, months = parts.by_month_day, parts.by_month
    by_day = parts.by_day
    if not (by_day or month_days or parts.by_year_day or parts.is_within_day):
        if parts.freq == "WEEKLY" or parts.by_week_no:
            by_day = (NthDay(start.weekday()),)
        elif parts.freq in ("MONTHLY", "YEARLY"):
            month_days = (start.day,)
            if parts.freq == "YEARLY" and not months:
                months = (start.month,)
    if parts.by_week_no:
        yield f"in week{'s' * (len(parts.by_week_no) > 1)} {_counted(parts.by_week_no)}"
    if parts.by_year_day:
        yield f"on {_nth_days(parts.by_year_day)} of the year"
    if month_days:
        yield f"on {_nth_days(month_days)} of the month"
    if by_day:
        preposition = "if it is" if month_days or parts.by_year_day else "on"
        yield f"{preposition} {_weekdays(parts, by_day)}"
    if months:
        yield f"in {listed([MONTHS[month - 1] for month in months])}"


def _weekdays(parts: Parts, days: Iterable[NthDay]) -> str:
    plain = sorted({(day.weekday + 1) % 7 for day in days if not day.nth})
    said = [days_of_week(plain)] if plain else []
    numbered = sorted({day for day in days if day.nth}, key=lambda day: (day.nth < 0, day))
    if numbered:
        names = [f"the {_ordinal(day.nth)} {_DAYS[day.weekday]}" for day in numbered]
        where = "month" if parts.freq == "MONTHLY" or parts.by_month else "year"
        said.append(f"{listed(names)} of the {where}")
    return listed(said)


def _nth_days(values: tuple[int, ...]) -> str:
    forward = [value for value in values if value > 0]
    said = [f"day{'s' * (len(forward) > 1)} {numbers(forward)}"] if forward else []
    said += [f"the {_ordinal(value)} day" for value in sorted(values, reverse=True) if value < 0]
    return listed(said)


def _counted(values: tuple[int, ...]) -> str:
    forward = [value for value in values if value > 0]
    said = [numbers(forward)] if forward else []
    said += [f"the {_ordinal(value)}" for value in sorted(values, reverse=True) if value < 0]
    return listed(said)


def _ordinals(values: tuple[int, ...]) -> str:
    forward = [value for value in values if value > 0]
    backward = sorted((value for value in values if value < 0), reverse=True)
    return listed([_ordinal(value) for value in forward + backward])


def _ordinal(number: int) -> str:
    if number == -1:
        return "last"
    name = ORDINALS[abs(number) - 1] if abs(number) <= len(ORDINALS) else f"{abs(number)}th"
    if abs(number) > 20 and abs(number) % 10 in (1, 2, 3):
        name = f"{abs(number)}{('st', 'nd', 'rd')[abs(number) % 10 - 1]}"
        if abs(number) % 100 in (11, 12, 13):
            name = f"{abs(number)}th"
    return name if number > 0 else f"{name} to last"


# Times -------------------------------------------------------------------------------------------


def _times(parts: Parts, start: datetime) -> Iterator[str]:
    seconds = list(parts.by_second) or [start.second]
    minutes = list(parts.by_minute) or [start.minute]
    hours = list(parts.by_hour) or [start.hour]
    if not parts.is_within_day:
        if len(hours) * len(minutes) * len(seconds) <= MAX_TIMES:
            times = [_clock(h, m, s) for h in hours for m in minutes for s in seconds]
            yield f"at {listed(times)}"
            return
        yield f"at {_values('hour', hours)}, {_values('minute', minutes)}"
        yield from _seconds(seconds)
        return
    if parts.freq == "HOURLY" or parts.by_minute:
        yield f"at {_values('minute', minutes)} past the hour"
    if parts.freq != "SECONDLY" or parts.by_second:
        yield from _seconds(seconds)
    if parts.by_hour:
        yield f"in {_values('hour', hours)}"


def _seconds(seconds: list[int]) -> Iterator[str]:
    if seconds != [0]:
        yield f"at {_values('second', seconds)}"


def _values(unit: str, values: list[int]) -> str:
    return f"{unit}{'s' * (len(values) > 1)} {numbers(values)}"


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")
