"""Recurrence rules (RRULE of RFC 5545), and the local times that they select.

Like a cron expression, a rule works with *local seconds*, the seconds since 1970 that a local clock
shows, read as if they were UTC. The days of a year and the seconds of a day are bit masks, so a
rule is as fast a century after its start as on its first day.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import lru_cache
from typing import NamedTuple

import msgspec

from duly.errors import InvalidOption

MAX_LENGTH = 4_000
"""The longest rule."""
MAX_INTERVAL = 100_000
MAX_COUNT = 1_000_000
MAX_LISTED = 400
"""The most entries of a list: enough for every day of a year."""
HORIZON = 101
"""The years in which the next or previous match must be."""

DAY = 86_400
UNITS = {"HOURLY": 3_600, "MINUTELY": 60, "SECONDLY": 1}
"""The frequencies within a day, in seconds."""
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", *UNITS)
WEEKDAYS = {name: number for number, name in enumerate("MO TU WE TH FR SA SU".split())}

_EPOCH = date(1970, 1, 1).toordinal()
_CACHED_YEARS = 256


class NthDay(NamedTuple):
    """A weekday (Monday is 0); the nth of its month or year, from the end if negative; 0: every."""

    weekday: int
    nth: int = 0


class Parts(msgspec.Struct, frozen=True):
    """A parsed rule."""

    freq: str
    interval: int = 1
    count: int | None = None
    until: str | None = None
    """As written: `20261231`, `20261231T090000` or `20261231T090000Z`."""
    by_second: tuple[int, ...] = ()
    by_minute: tuple[int, ...] = ()
    by_hour: tuple[int, ...] = ()
    by_day: tuple[NthDay, ...] = ()
    by_month_day: tuple[int, ...] = ()
    by_year_day: tuple[int, ...] = ()
    by_week_no: tuple[int, ...] = ()
    by_month: tuple[int, ...] = ()
    by_set_pos: tuple[int, ...] = ()
    week_start: int = 0

    @property
    def is_within_day(self) -> bool:
        """Whether it is hourly, minutely or secondly."""
        return self.freq in UNITS


# Parsing ------------------------------------------------------------------------------------------

_NUMBERS: Mapping[str, tuple[str, int, int]] = {
    "BYSECOND": ("by_second", 0, 59),
    "BYMINUTE": ("by_minute", 0, 59),
    "BYHOUR": ("by_hour", 0, 23),
    "BYMONTHDAY": ("by_month_day", -31, 31),
    "BYYEARDAY": ("by_year_day", -366, 366),
    "BYWEEKNO": ("by_week_no", -53, 53),
    "BYMONTH": ("by_month", 1, 12),
    "BYSETPOS": ("by_set_pos", -366, 366),
}
_OTHERS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYDAY", "WKST")
_BY_DAY = re.compile(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)")
_UNTIL = re.compile(r"[0-9]{8}(?:T[0-9]{6}Z?)?")


def refused(reason: str, hint: str = "") -> InvalidOption:
    """The error for a rule that is not valid."""
    return InvalidOption("rule", reason, hint)


@lru_cache(maxsize=4_096)
def parse(text: str) -> Parts:
    """Parse the value of an RRULE; InvalidOption, which names the part, if it is invalid."""
    if len(text) > MAX_LENGTH:
        raise refused(f"{len(text):,} characters, the limit is {MAX_LENGTH:,}")
    given: dict[str, str] = {}
    for part in filter(None, text.strip().upper().split(";")):
        key, equals, value = part.partition("=")
        if not equals or key in given:
            raise refused(f"{part[:40]!r} is not valid", "write FREQ=WEEKLY;BYDAY=MO,FR")
        if key not in _NUMBERS and key not in _OTHERS:
            known = ", ".join((*_OTHERS, *_NUMBERS))
            raise refused(f"{key[:40]} is not supported", f"the parts are {known}")
        given[key] = value
    parts = Parts(
        _freq(given.get("FREQ")),
        _number("INTERVAL", given.get("INTERVAL", "1"), 1, MAX_INTERVAL),
        _number("COUNT", given["COUNT"], 1, MAX_COUNT) if "COUNT" in given else None,
        _until(given.get("UNTIL")),
        by_day=tuple(_nth_day(text) for text in _listed(given, "BYDAY")),
        week_start=_weekday(given.get("WKST", "MO")),
        **{
            name: tuple(sorted(_number(key, text, low, high) for text in _listed(given, key)))
            for key, (name, low, high) in _NUMBERS.items()
        },
    )
    _check(parts)
    return parts


def _check(parts: Parts) -> None:
    """The combinations that RFC 5545 excludes."""
    freq = parts.freq
    if parts.count is not None and parts.until is not None:
        raise refused("COUNT and UNTIL cannot be combined")
    if any(day.nth for day in parts.by_day) and (
        freq not in ("MONTHLY", "YEARLY") or parts.by_week_no
    ):
        where = "FREQ=MONTHLY or FREQ=YEARLY" + (" without BYWEEKNO" if parts.by_week_no else "")
        raise refused(f"BYDAY with numbers needs {where}")
    if parts.by_month_day and freq == "WEEKLY":
        raise refused("BYMONTHDAY cannot be combined with FREQ=WEEKLY")
    if parts.by_year_day and freq in ("DAILY", "WEEKLY", "MONTHLY"):
        raise refused(f"BYYEARDAY cannot be combined with FREQ={freq}")
    if parts.by_week_no and freq != "YEARLY":
        raise refused("BYWEEKNO needs FREQ=YEARLY")
    if parts.by_set_pos and not (parts.by_day or any(_lists(parts))):
        raise refused("BYSETPOS needs another BY… part, of which it selects some")


def _lists(parts: Parts) -> Iterator[tuple[int, ...]]:
    return (getattr(parts, name) for key, (name, *_) in _NUMBERS.items() if key != "BYSETPOS")


def _freq(text: str | None) -> str:
    if text not in FREQUENCIES:
        hint = f"use one of {', '.join(FREQUENCIES)}"
        raise refused("FREQ is missing" if text is None else f"FREQ={text[:40]} is unknown", hint)
    return text


def _listed(given: Mapping[str, str], key: str) -> list[str]:
    """The entries of a list, without duplicates."""
    if key not in given:
        return []
    if given[key].count(",") >= MAX_LISTED:
        raise refused(f"{key} has more than {MAX_LISTED} entries")
    return list(dict.fromkeys(given[key].split(",")))


def _number(key: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,7}", text, re.ASCII) or not low <= int(text) <= high:
        raise refused(f"{key}={text[:40]}: must be {low} to {high:,}")
    if low < 0 and int(text) == 0:
        raise refused(f"{key}=0: counting starts at 1, or at -1 from the end")
    return int(text)


def _until(text: str | None) -> str | None:
    if text is None or text.startswith("9999"):  # Some programs mean "forever" by that.
        return None
    if not _UNTIL.fullmatch(text):
        raise refused(f"UNTIL={text[:40]} is not valid", "write 20261231 or 20261231T090000Z")
    return text


def _weekday(text: str) -> int:
    if text not in WEEKDAYS:
        raise refused(f"WKST={text[:40]} is not valid", f"use one of {', '.join(WEEKDAYS)}")
    return WEEKDAYS[text]


def _nth_day(text: str) -> NthDay:
    match = _BY_DAY.fullmatch(text)
    if match is None or (match[1] and not 1 <= abs(int(match[1])) <= 53):
        raise refused(f"BYDAY={text[:40]} is not valid", "write MO, or 2MO, or -1MO")
    return NthDay(WEEKDAYS[match[2]], int(match[1] or 0))


# Matching -----------------------------------------------------------------------------------------


class Recurrence:
    """A rule with its start, in local seconds. It is immutable, apart from caches.

    COUNT and UNTIL are left to the caller, since they depend on the time zone.
    """

    def __init__(self, parts: Parts, start: int) -> None:
        self.parts = parts
        self.start = start
        self.follows_clock = parts.is_within_day
        """Whether it fires whenever the clock shows a matching time, as in `trigger.py`."""
        self._day, self._second = divmod(start, DAY)
        self._first = date.fromordinal(self._day + _EPOCH)
        self._filters = _with_defaults(parts, self._first)
        self._unit = UNITS.get(parts.freq, DAY)
        self._within = self._times_of_unit()
        self._limit = _times(parts.by_hour, parts.by_minute, parts.by_second)
        self._by_phase: dict[int, int] = {}
        self._by_year: dict[int, int] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self._selects = bool(parts.by_set_pos) and parts.freq in ("YEARLY", "MONTHLY", "WEEKLY")

    @property
    def times_of_day(self) -> list[int]:
        """The seconds of the day at which it fires, unless it fires by intervals within a day."""
        return _bits(self._within) if self._unit == DAY else []

    def first_from(self, local: int) -> int | None:
        """The first matching local second from this one on; None if a century has none."""
        day, second = divmod(max(local, self.start), DAY)
        for year in self._years(_year(day)):
            first = _new_year(year)
            left = self._days(year)
            if first < day:
                left &= -1 << (day - first)
            while left:
                found = first + _low(left)
                left &= left - 1
                times = self._times(found)
                if found == day:
                    times &= -1 << second
                if times:
                    return found * DAY + _low(times)
        return None

    def last_until(self, local: int) -> int | None:
        """The last matching local second up to this one; None if a century has none."""
        if local < self.start:
            return None
        day, second = divmod(local, DAY)
        latest = _year(day)
        for year in range(latest, max(latest - HORIZON, self._first.year - 1), -1):
            first = _new_year(year)
            left = self._days(year)
            if year == latest:
                left &= (2 << (day - first)) - 1
            while left:
                found = first + _high(left)
                left ^= 1 << (found - first)
                times = self._times(found)
                if found == day:
                    times &= (2 << second) - 1
                if times:
                    match = found * DAY + _high(times)
                    return match if match >= self.start else None
        return None

    def matches(self, local: int) -> bool:
        """Whether a clock that shows this local second shows a matching time."""
        return self.first_from(local) == local

    def count(self, start: int, end: int) -> int:
        """How many local seconds in [start, end) match."""
        start = max(start, self.start)
        if end <= start:
            return 0
        day, second = divmod(start, DAY)
        last, until = divmod(end, DAY)
        total = 0
        for year in range(_year(day), _year(last) + 1):
            first = _new_year(year)
            days = self._days(year)
            if first < day:
                days &= -1 << (day - first)
            if first + 366 > last:
                days &= (1 << max(last - first, 0)) - 1
            total += self._count_days(first, days)
        if self._has_day(day):
            total -= (self._times(day) & (1 << second) - 1).bit_count() if day < last else 0
        if until and self._has_day(last):
            times = self._times(last) & (1 << until) - 1
            total += (times & -1 << second if day == last else times).bit_count()
        return total

    def of_day(self, day: int) -> int:
        """The matching seconds of a day, as bits; days are numbered from 1970-01-01."""
        if day < self._day or not self._has_day(day):
            return 0
        times = self._times(day)
        return times & -1 << self._second if day == self._day else times

    def shortest(self) -> int:
        """The shortest time between two matches, in seconds; at most 60."""
        if self.parts.freq == "SECONDLY":
            return self._shortest_of_seconds()
        times = self._within
        if self._unit == DAY or self.parts.interval == 1:
            times |= self._within << self._unit
        return _shortest(times)

    def _shortest_of_seconds(self) -> int:
        step = self.parts.interval
        if step >= 60:
            return 60
        pairs = (
            self._times_by_phase(phase) | self._times_by_phase((phase - DAY) % step) << DAY
            for phase in range(step)
        )
        return min(map(_shortest, pairs))

    # Times of a day ------------------------------------------------------------------------------

    def _times_of_unit(self) -> int:
        """The seconds within a day, hour or minute at which it fires; positions are applied."""
        parts, second = self.parts, self._second
        if parts.freq == "SECONDLY":
            times = 1
        else:
            hours = (parts.by_hour or (second // 3600,)) if self._unit == DAY else (0,)
            minutes = parts.by_minute or (second // 60 % 60,)
            if self._unit == 60:
                minutes = (0,)
            seconds = parts.by_second or (second % 60,)
            times = sum(1 << h * 3600 + m * 60 + s for h in hours for m in minutes for s in seconds)
        if parts.by_set_pos and (parts.is_within_day or parts.freq == "DAILY"):
            listed = _bits(times)
            times = sum(1 << second for second in _at_positions(listed, parts.by_set_pos))
        return times

    def _times(self, day: int) -> int:
        """The matching seconds of a matching day, as bits."""
        if self._selects:
            return self._selected(_year(day)).get(day, 0)
        if self._unit == DAY:
            return self._within
        # The distance from midnight to the first interval of the day.
        since = day * DAY - self._start_of_unit()
        phase = -since % (self.parts.interval * self._unit) // self._unit
        return self._times_by_phase(phase)

    def _times_by_phase(self, phase: int) -> int:
        units = DAY // self._unit
        if phase >= units:
            return 0
        times = self._by_phase.get(phase)
        if times is None:
            if len(self._by_phase) >= _CACHED_YEARS:
                self._by_phase.clear()
            times = self._by_phase[phase] = self._times_of_phase(phase)
        return times

    def _times_of_phase(self, phase: int) -> int:
        step = self.parts.interval * self._unit
        first = phase * self._unit
        return stepped(first, step, DAY) * self._within & self._limit

    def _start_of_unit(self) -> int:
        return self.start - self.start % self._unit

    # Days of a year ------------------------------------------------------------------------------

    def _years(self, year: int) -> Iterable[int]:
        """The years of a search, from this one on."""
        if self.parts.freq != "YEARLY":
            return range(year, year + HORIZON)
        step = self.parts.interval
        year += (self._first.year - year) % step
        return range(year, year + HORIZON, step)

    def _has_day(self, day: int) -> bool:
        year = _year(day)
        return bool(self._days(year) >> (day - _new_year(year)) & 1)

    def _days(self, year: int) -> int:
        """The matching days of a year: bit 0 is January 1st."""
        days = self._by_year.get(year)
        if days is None:
            if len(self._by_year) >= _CACHED_YEARS:
                self._by_year.clear()
                self._positions.clear()
            days = self._matching_days(year)
            if self._selects:
                first = _new_year(year)
                days = sum(1 << (day - first) for day in self._selected(year))
            self._by_year[year] = days
        return days

    def _count_days(self, first: int, days: int) -> int:
        if self._unit == DAY and not self._selects:
            return days.bit_count() * self._within.bit_count()
        return sum(self._times(first + day).bit_count() for day in _bits(days))

    def _matching_days(self, year: int) -> int:
        """The days that pass all filters and are in an interval of the rule."""
        calendar = _Year(year, self.parts.week_start)
        filters = self._filters
        days = self._in_intervals(calendar)
        if days and filters.by_month:
            days &= calendar.of_months(filters.by_month)
        if days and filters.by_month_day:
            days &= calendar.of_month_days(filters.by_month_day)
        if days and filters.by_year_day:
            days &= calendar.of_year_days(filters.by_year_day)
        if days and filters.by_week_no:
            days &= calendar.of_weeks(filters.by_week_no)
        if days and filters.by_day:
            monthly = filters.freq == "MONTHLY" or bool(filters.by_month)
            days &= calendar.of_weekdays(filters.by_day, monthly=monthly)
        return days

    def _in_intervals(self, calendar: _Year) -> int:
        freq, step = self.parts.freq, self.parts.interval
        if freq == "YEARLY":
            return 0 if (calendar.year - self._first.year) % step else calendar.all
        if freq == "MONTHLY":
            since = calendar.year * 12 - self._first.year * 12 - self._first.month + 1
            months = range(1, 13)
            return calendar.of_months(m for m in months if (since + m - 1) % step == 0)
        if freq == "WEEKLY":
            week = self._day - (self._first.weekday() - self.parts.week_start) % 7
            start = week + (calendar.first - week - 6 + step * 7 - 1) // (step * 7) * step * 7
            days = stepped(start - calendar.first + 7, step * 7, 366 + 7) * 0x7F >> 7
            return days & calendar.all
        if freq == "DAILY":
            return stepped((self._day - calendar.first) % step, step, 366) & calendar.all
        if step * self._unit <= DAY:
            return calendar.all
        step, begin = step * self._unit, calendar.first * DAY
        first = (self._start_of_unit() - begin) % step
        return sum({1 << second // DAY for second in range(first, 366 * DAY, step)}) & calendar.all

    # Positions in periods of days ----------------------------------------------------------------

    def _selected(self, year: int) -> dict[int, int]:
        """The days of a year that BYSETPOS selects, each with its times."""
        found = self._positions.get(year)
        if found is None:
            found = self._positions[year] = self._select(year)
        return found

    def _select(self, year: int) -> dict[int, int]:
        times = _bits(self._within)
        first = _new_year(year)
        found: dict[int, int] = {}
        for days in self._periods(year):
            count = len(days) * len(times)
            for index in _indexes(count, self.parts.by_set_pos):
                day, time = days[index // len(times)], times[index % len(times)]
                if first <= day < _new_year(year + 1):
                    found[day] = found.get(day, 0) | 1 << time
        return dict(sorted(found.items()))

    def _periods(self, year: int) -> Iterator[list[int]]:
        """The matching days of every week, month or year that touches a year."""
        first = _new_year(year)
        days = [first + day for day in _bits(self._matching_days(year))]
        if self.parts.freq == "YEARLY":
            yield days
        elif self.parts.freq == "MONTHLY":
            months: dict[int, list[int]] = {}
            for day in days:
                months.setdefault(date.fromordinal(day + _EPOCH).month, []).append(day)
            yield from months.values()
        else:
            before, after = first - 6, _new_year(year + 1)
            early = (_new_year(year - 1) + day for day in _bits(self._matching_days(year - 1)))
            late = (after + day for day in _bits(self._matching_days(year + 1)))
            days = [day for day in early if day >= before] + days
            days += [day for day in late if day < after + 6]
            weeks: dict[int, list[int]] = {}
            for day in days:
                weeks.setdefault((day + 3 - self.parts.week_start) // 7, []).append(day)
            yield from weeks.values()


def _with_defaults(parts: Parts, first: date) -> Parts:
    """The parts, with the days of the start where the rule names none."""
    if parts.is_within_day or parts.freq == "DAILY":
        return parts
    if parts.by_day or parts.by_month_day or parts.by_year_day:
        return parts
    if parts.freq == "WEEKLY" or parts.by_week_no:
        return msgspec.structs.replace(parts, by_day=(NthDay(first.weekday()),))
    if parts.freq == "YEARLY" and not parts.by_month:
        parts = msgspec.structs.replace(parts, by_month=(first.month,))
    return msgspec.structs.replace(parts, by_month_day=(first.day,))


class _Year:
    """A year whose days are bits: bit 0 is January 1st."""

    def __init__(self, year: int, week_start: int) -> None:
        self.year = year
        self.first = _new_year(year)
        self.length = _new_year(year + 1) - self.first
        self.all = (1 << self.length) - 1
        self.weekday = (self.first + 3) % 7
        self.week_start = week_start

    def month(self, month: int) -> tuple[int, int]:
        """The first day of a month, as a bit's number, and its length."""
        begin = date(self.year, month, 1).toordinal() - _EPOCH - self.first
        end = self.length
        if month < 12:
            end = date(self.year, month + 1, 1).toordinal() - _EPOCH - self.first
        return begin, end - begin

    def of_months(self, months: Iterable[int]) -> int:
        days = 0
        for month in months:
            begin, length = self.month(month)
            days |= (1 << length) - 1 << begin
        return days

    def of_month_days(self, numbers: Iterable[int]) -> int:
        days = 0
        for month in range(1, 13):
            begin, length = self.month(month)
            for index in _indexes(length, numbers):
                days |= 1 << begin + index
        return days

    def of_year_days(self, numbers: Iterable[int]) -> int:
        return sum({1 << index for index in _indexes(self.length, numbers)})

    def of_weeks(self, numbers: Iterable[int]) -> int:
        """Week 1 is the first with at least four days in the year; weeks may begin in another."""
        days = 0
        for year in (self.year - 1, self.year, self.year + 1):
            first, following = self._week_one(year), self._week_one(year + 1)
            for index in _indexes((following - first) // 7, numbers):
                begin = first + 7 * index - self.first
                days |= 0x7F << begin if begin >= 0 else 0x7F >> min(-begin, 7)
        return days & self.all

    def _week_one(self, year: int) -> int:
        first = _new_year(year)
        ahead = ((first + 3) - self.week_start) % 7
        return first - ahead if ahead <= 3 else first + 7 - ahead

    def of_weekdays(self, wanted: Iterable[NthDay], *, monthly: bool) -> int:
        days = 0
        for weekday, nth in wanted:
            if not nth:
                days |= stepped((weekday - self.weekday) % 7, 7, self.length)
                continue
            spans = [self.month(n) for n in range(1, 13)] if monthly else [(0, self.length)]
            for begin, length in spans:
                first = begin + (weekday - self.weekday - begin) % 7
                found = range(first, begin + length, 7)
                for index in _indexes(len(found), (nth,)):
                    days |= 1 << found[index]
        return days


# Bits ---------------------------------------------------------------------------------------------


def _indexes(length: int, positions: Iterable[int]) -> Iterator[int]:
    """The indexes of positions that count from 1, or from -1 backwards, as far as they exist."""
    for position in positions:
        if 1 <= abs(position) <= length:
            yield position - 1 if position > 0 else length + position


def _at_positions(values: list[int], positions: Iterable[int]) -> set[int]:
    return {values[index] for index in _indexes(len(values), positions)}


@lru_cache(maxsize=1_024)
def stepped(first: int, step: int, end: int) -> int:
    """The bits first, first + step, … below `end`."""
    if first >= end:
        return 0
    count = (end - 1 - first) // step + 1
    if count == 1:
        return 1 << first
    return ((1 << step * count) - 1) // ((1 << step) - 1) << first


def _times(hours: Iterable[int], minutes: Iterable[int], seconds: Iterable[int]) -> int:
    """The seconds of a day that these lists allow; an empty one allows all."""
    second = sum(1 << s for s in seconds) or (1 << 60) - 1
    minute = sum(1 << m * 60 for m in minutes) or stepped(0, 60, 3600)
    hour = sum(1 << h * 3600 for h in hours) or stepped(0, 3600, DAY)
    return hour * (minute * second)


def _shortest(times: int) -> int:
    return next((gap for gap in range(1, 60) if times & times >> gap), 60)


def _bits(mask: int) -> list[int]:
    found: list[int] = []
    while mask:
        found.append(_low(mask))
        mask &= mask - 1
    return found


def _low(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _high(mask: int) -> int:
    return mask.bit_length() - 1


def _year(day: int) -> int:
    return date.fromordinal(day + _EPOCH).year


def _new_year(year: int) -> int:
    return date(year, 1, 1).toordinal() - _EPOCH
