"""Cron expressions, and the local times that they match.

An expression knows dates and times of day, but no time zones: it works with *local seconds*, the
seconds since 1970 that a local clock shows, read as if they were UTC. `trigger.py` maps them to
instants.

Every field is a bit mask. Which days of a month match depends only on the month's length and the
weekday of its first day, so at most 28 masks describe all days of an expression.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from datetime import date
from functools import lru_cache
from typing import NamedTuple, NoReturn

from duly.errors import InvalidCron

MAX_LENGTH = 1_000
"""No valid expression is longer, even with every value written out."""
CACHED = 16_384
"""How many parsed expressions are cached."""

_MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
_DAYS = "SUN MON TUE WED THU FRI SAT".split()


class Field(NamedTuple):
    """One field of an expression, and the values that it accepts."""

    name: str
    least: int
    most: int
    names: dict[str, int] = {}  # noqa: RUF012

    @property
    def last(self) -> int:
        """The last value of `*`: 7 is only an alias for Sunday."""
        return 6 if self.name == DAY_OF_WEEK else self.most

    @property
    def size(self) -> int:
        return self.last - self.least + 1


DAY_OF_MONTH = "day of month"
DAY_OF_WEEK = "day of week"
YEAR = "year"
FIELDS = (
    Field("second", 0, 59),
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field(DAY_OF_MONTH, 1, 31),
    Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    Field(DAY_OF_WEEK, 0, 7, {name: number for number, name in enumerate(_DAYS)}),
    Field(YEAR, 1970, 2099),
)
MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}

_EPOCH = date(1970, 1, 1).toordinal()
_DAY = 86_400
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CENTURY = 1_200
"""The number of months in which the next match must be: no valid expression needs more."""
_ALL_MONTHS = 0x1FFE


class Special(NamedTuple):
    """A day that depends on the month: `L L-3 LW 15W` in its days, `5L 1#2` in days of the week."""

    kind: str
    value: int = 0
    nth: int = 0


class Expression:
    """A parsed expression. It is immutable, apart from a cache of its months."""

    __slots__ = (
        "_always",
        "_by_month",
        "_first_time",
        "_last_time",
        "any_day",
        "follows_clock",
        "hours",
        "minutes",
        "month_days",
        "months",
        "resolved",
        "seconds",
        "specials",
        "week_days",
        "years",
    )

    def __init__(self, parts: list[_Part]) -> None:
        second, minute, hour, month_day, month, week_day, *year = parts
        self.seconds, self.minutes, self.hours = second.mask, minute.mask, hour.mask
        self.months = month.mask
        self.years = year[0].mask if year and year[0].text != "*" else 0
        """The years; 0 for all years, even those that cannot be written."""
        self.month_days, self.week_days = month_day.mask, week_day.mask
        self.specials = (*month_day.specials, *week_day.specials)
        self.follows_clock = minute.text[0] == "*" or hour.text[0] == "*"
        """Whether it fires whenever the clock shows a matching time: the first DST rule."""
        self.resolved = tuple(part.text for part in parts[: 7 if self.years else 6])
        """The six fields, and the year if it is restricted, with values in place of `H`."""
        # A field that is exactly `*` or `?` leaves the choice of days to the other one.
        free_month, free_week = month_day.text in ("*", "?"), week_day.text in ("*", "?")
        self.any_day = free_month and free_week
        """Whether its day fields match every day."""
        self._always = self.any_day and self.months == _ALL_MONTHS and not self.years
        if free_month:
            self.month_days = 0
        if free_week:
            self.week_days = 0
        self._by_month = [-1] * 28
        self._first_time = _low(self.hours) * 3600 + _low(self.minutes) * 60 + _low(self.seconds)
        self._last_time = _high(self.hours) * 3600 + _high(self.minutes) * 60 + _high(self.seconds)

    # Search --------------------------------------------------------------------------------------

    def first_from(self, local: int) -> int | None:
        """The first matching local second from this one on; None if a century has none."""
        day, second = divmod(local, _DAY)
        found = self._day_from(day)
        if found == day:
            time = self._time_from(second)
            if time >= 0:
                return day * _DAY + time
            found = self._day_from(day + 1)
        return None if found is None else found * _DAY + self._first_time

    def last_until(self, local: int) -> int | None:
        """The last matching local second up to this one; None if a century has none."""
        day, second = divmod(local, _DAY)
        found = self._day_until(day)
        if found == day:
            time = self._time_until(second)
            if time >= 0:
                return day * _DAY + time
            found = self._day_until(day - 1)
        return None if found is None else found * _DAY + self._last_time

    def matches(self, local: int) -> bool:
        """Whether a clock that shows this local second shows a matching time."""
        return self.first_from(local) == local

    def count(self, start: int, end: int) -> int:
        """How many local seconds in [start, end) match."""
        if end <= start:
            return 0
        first, second = divmod(start, _DAY)
        last, until = divmod(end, _DAY)
        total = self._days_between(first, last) * self._times_before(_DAY)
        if self._day_from(first) == first:
            total -= self._times_before(second)
        if until and self._day_from(last) == last:
            total += self._times_before(until)
        return total

    def of_day(self, day: int) -> int:
        """The matching seconds of a day, as bits; days are numbered from 1970-01-01."""
        return _seconds(self.hours, self.minutes, self.seconds) if self._has_day(day) else 0

    # Times of a day ------------------------------------------------------------------------------

    def _time_from(self, second: int) -> int:
        hour, rest = divmod(second, 3600)
        if self.hours >> hour & 1:
            minute, rest = divmod(rest, 60)
            if self.minutes >> minute & 1 and (left := self.seconds >> rest):
                return second + _low(left)
            if left := self.minutes >> minute + 1:
                first = (minute + 1 + _low(left)) * 60
                return hour * 3600 + first + _low(self.seconds)
        if left := self.hours >> hour + 1:
            return (hour + 1 + _low(left)) * 3600 + self._first_time % 3600
        return -1

    def _time_until(self, second: int) -> int:
        hour, rest = divmod(second, 3600)
        if self.hours >> hour & 1:
            minute, rest = divmod(rest, 60)
            if self.minutes >> minute & 1 and (left := self.seconds & (2 << rest) - 1):
                return second - rest + _high(left)
            if left := self.minutes & (1 << minute) - 1:
                return hour * 3600 + _high(left) * 60 + _high(self.seconds)
        if left := self.hours & (1 << hour) - 1:
            return _high(left) * 3600 + self._last_time % 3600
        return -1

    def _times_before(self, second: int) -> int:
        """How many matching times of day are before that second of the day."""
        hour, rest = divmod(second, 3600)
        minute, rest = divmod(rest, 60)
        a_minute = self.seconds.bit_count()
        an_hour = self.minutes.bit_count() * a_minute
        total = (self.hours & (1 << hour) - 1).bit_count() * an_hour
        if self.hours >> hour & 1:
            total += (self.minutes & (1 << minute) - 1).bit_count() * a_minute
            if self.minutes >> minute & 1:
                total += (self.seconds & (1 << rest) - 1).bit_count()
        return total

    # Days: numbered from 1970-01-01 ---------------------------------------------------------------

    def _day_from(self, day: int) -> int | None:
        if self._always:
            return day
        if self.years:
            year = _civil(day)[0]
            if not self.years >> year & 1:
                left = self.years >> year
                if not left:
                    return None
                day = _new_year(year + _low(left))
        year, month, number = _civil(day)
        first, length = day - number + 1, _length(year, month)
        if self.months >> month & 1 and (left := self._days(first, length) >> number):
            return day + _low(left)
        for _ in range(_CENTURY):
            first += length
            month += 1
            if month == 13:
                if self.years:
                    return self._day_from(first)
                month, year = 1, year + 1
            length = _length(year, month)
            if self.months >> month & 1 and (days := self._days(first, length)):
                return first + _low(days) - 1
        return None

    def _day_until(self, day: int) -> int | None:
        if self._always:
            return day
        if self.years:
            year = _civil(day)[0]
            if not self.years >> year & 1:
                before = self.years & (1 << year) - 1
                if not before:
                    return None
                day = _new_year(_high(before) + 1) - 1
        year, month, number = _civil(day)
        first = day - number + 1
        if self.months >> month & 1:
            days = self._days(first, _length(year, month)) & (2 << number) - 1
            if days:
                return first + _high(days) - 1
        for _ in range(_CENTURY):
            month -= 1
            if month == 0:
                if self.years:
                    return self._day_until(first - 1)
                month, year = 12, year - 1
            length = _length(year, month)
            first -= length
            if self.months >> month & 1 and (days := self._days(first, length)):
                return first + _high(days) - 1
        return None

    def _days_between(self, start: int, end: int) -> int:
        """How many days in [start, end) match."""
        if self._always:
            return end - start
        year, month, number = _civil(start)
        first, total = start - number + 1, 0
        while first < end:
            length = _length(year, month)
            if self.months >> month & 1 and self._has_year(year):
                days = self._days(first, length)
                if first < start:
                    days &= -1 << number
                if first + length > end:
                    days &= (2 << end - first) - 1
                total += days.bit_count()
            first += length
            month, year = (month + 1, year) if month < 12 else (1, year + 1)
        return total

    def _days(self, first: int, length: int) -> int:
        """The matching days of a month as bits; depends on its first weekday and its length."""
        weekday = (first + 4) % 7
        kind = weekday * 4 + length - 28
        days = self._by_month[kind]
        if days < 0:
            days = self._by_month[kind] = self._match_month(weekday, length)
        return days

    def _match_month(self, weekday: int, length: int) -> int:
        within = (2 << length) - 2
        if self.any_day:
            return within
        week = (self.week_days | self.week_days << 7) >> weekday & 0x7F
        days = self.month_days | week * (1 + (1 << 7) + (1 << 14) + (1 << 21) + (1 << 28)) << 1
        for special in self.specials:
            days |= 1 << _special_day(special, weekday, length)
        return days & within

    def can_fire(self) -> bool:
        """Whether any month of any year has a matching day."""
        if self.years:
            return self._day_from(_new_year(FIELDS[-1].least)) is not None
        return any(
            self._match_month(weekday, length)
            for month in range(1, 13)
            if self.months >> month & 1
            for length in ({28, 29} if month == 2 else {_LENGTHS[month]})
            for weekday in range(7)
        )

    def _has_day(self, day: int) -> bool:
        if self._always:
            return True
        year, month, number = _civil(day)
        if not (self.months >> month & 1 and self._has_year(year)):
            return False
        return bool(self._days(day - number + 1, _length(year, month)) >> number & 1)

    def _has_year(self, year: int) -> bool:
        return not self.years or bool(self.years >> year & 1)


def _special_day(special: Special, weekday: int, length: int) -> int:
    """The day of a month whose first day is that weekday; 0 if the month has none."""
    kind, value, nth = special
    last = (weekday + length - 1) % 7
    if kind == "L":
        return max(length - value, 0)
    if kind == "LW":
        return length - {0: 2, 6: 1}.get(last, 0)
    if kind == "W":
        return _nearest_weekday(value, weekday, length) if value <= length else 0
    if kind == "nL":
        return length - (last - value) % 7
    day = 1 + (value - weekday) % 7 + 7 * (nth - 1)
    return day if day <= length else 0


def _nearest_weekday(day: int, weekday: int, length: int) -> int:
    """The nearest Monday to Friday in the same month."""
    that = (weekday + day - 1) % 7
    if that == 6:
        return day - 1 if day > 1 else day + 2
    if that == 0:
        return day + 1 if day < length else day - 2
    return day


@lru_cache(maxsize=1_024)
def _seconds(hours: int, minutes: int, seconds: int) -> int:
    """The seconds of a day, as bits, from those of its hours, minutes and seconds."""
    hour = sum(1 << 3600 * hour for hour in range(24) if hours >> hour & 1)
    minute = sum(1 << 60 * minute for minute in range(60) if minutes >> minute & 1)
    return hour * (minute * seconds)


def _civil(day: int) -> tuple[int, int, int]:
    found = date.fromordinal(day + _EPOCH)
    return found.year, found.month, found.day


def _new_year(year: int) -> int:
    return date(year, 1, 1).toordinal() - _EPOCH


def _length(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _LENGTHS[month]


def _low(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _high(mask: int) -> int:
    return mask.bit_length() - 1


# Parsing -----------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A parsed field."""

    text: str
    mask: int
    specials: tuple[Special, ...] = ()


@lru_cache(maxsize=CACHED)
def parse(expression: str, spread: str = "") -> Expression:
    """Parse an expression, with the values of `H` from a seed; InvalidCron if it is invalid."""
    return _Reader(expression, spread).read()


def words(text: str) -> list[tuple[int, str]]:
    """The fields of an expression, each with its position."""
    return [(found.start(), found[0]) for found in re.finditer(r"[^ \t\r\n]+", text)]


_HASH = re.compile(r"H(?:\(([^()-]*)-([^()-]*)\))?")
_NEAREST = re.compile(r"([0-9]+)W")
_BEFORE_LAST = re.compile(r"L-([^-]*)")
_LAST = re.compile(r"([0-9]+|[A-Z]{3})L")
_NTH = re.compile(r"([^#]*)#([^#]*)")
_NUMBER = re.compile(r"[0-9]{1,4}")


class _Reader:
    """Parses one expression, and tracks the position of each part."""

    def __init__(self, expression: str, spread: str) -> None:
        self.expression = expression
        self.spread = spread

    def read(self) -> Expression:
        self._check_length()
        text = MACROS.get(self.expression.strip().upper(), self.expression)
        fields = words(text)
        self._check_words(fields)
        if len(fields) == 5:
            fields.insert(0, (0, "0"))
        parts = [
            self._known_field(number, word.upper(), position)
            for number, (position, word) in enumerate(fields)
        ]
        found = Expression(parts)
        if not found.can_fire():
            position, word = fields[3]
            where = "year" if found.years else "month"
            reason = f"no {where} in the expression has such a day"
            self._refuse(FIELDS[3], word, position, reason, "it would never fire")
        return found

    def _check_length(self) -> None:
        if len(self.expression) > MAX_LENGTH:
            start = self.expression[:40] + "…"
            reason = f"{len(self.expression):,} characters are too many"
            hint = f"write at most {MAX_LENGTH:,}"
            raise InvalidCron(start, "expression", start, 0, reason, hint)

    def _check_words(self, words: list[tuple[int, str]]) -> None:
        whole = self.expression.strip()
        if words and words[0][1].startswith("@"):
            self._refuse_macro(whole)
        for number, (position, word) in enumerate(words):
            self._check_ascii(word, position, number + (len(words) == 5))
        if len(words) in (5, 6, 7):
            return
        reason = "it is empty" if not words else f"it has {_count(len(words), 'field')}"
        hint = (
            "write minute, hour, day of month, month, day of week; "
            "six fields start with seconds, and seven also end with years"
        )
        raise InvalidCron(self.expression, "expression", whole, 0, reason, hint)

    def _check_ascii(self, word: str, position: int, number: int) -> None:
        if word.isascii() and word.isprintable():
            return
        for offset, character in enumerate(word):
            if not "!" <= character <= "~":
                field = FIELDS[number] if number < len(FIELDS) else None
                self._refuse(
                    field,
                    character,
                    position + offset,
                    f"{character!r} is not allowed here",
                    "write ASCII letters and digits, and spaces between fields",
                )

    def _refuse_macro(self, text: str) -> NoReturn:
        known = ", ".join(sorted(name.lower() for name in MACROS))
        hint = f"write one of {known}"
        if text.upper() == "@REBOOT":
            hint = "run startup code where the process starts"
        elif text.upper().startswith("@EVERY"):
            hint = "use an interval"
        raise InvalidCron(self.expression, "expression", text, 0, "unknown name", hint)

    def _refuse(
        self, field: Field | None, text: str, position: int, reason: str, hint: str
    ) -> NoReturn:
        name = field.name if field else "expression"
        # In the form in which it was written, not parsed.
        text = self.expression[position : position + len(text)] or text
        raise InvalidCron(self.expression, name, text, position, reason, hint)

    # Fields --------------------------------------------------------------------------------------

    def _known_field(self, number: int, text: str, position: int) -> _Part:
        if "H" not in text:
            # The error names the position in the whole expression.
            with suppress(InvalidCron):
                return _read_field(number, text)
        return self.field(FIELDS[number], text, position)

    def field(self, field: Field, text: str, position: int) -> _Part:
        if text == "?":
            if field.name in (DAY_OF_MONTH, DAY_OF_WEEK):
                return _Part(text, _mask(range(field.least, field.last + 1)))
            self._refuse(field, text, position, "? is only allowed in the day fields", "write *")
        mask, specials, texts = 0, list[Special](), list[str]()
        for item in text.split(","):
            spelled = self._spell_out(field, item, position)
            special = self._special(field, spelled, position)
            if special:
                specials.append(special)
            else:
                mask |= _mask(self._values(field, spelled, position))
            texts.append(spelled)
            position += len(item) + 1
        if field.name == DAY_OF_WEEK:
            mask = (mask | mask >> 7) & 0x7F
        return _Part(",".join(texts), mask, tuple(specials))

    def _spell_out(self, field: Field, item: str, position: int) -> str:
        """The item with a value, or a range of values, in place of `H`."""
        base, slash, step = item.partition("/")
        found = _HASH.fullmatch(base)
        if not found or field.name == YEAR:
            return item
        # Every month has a day 28.
        least, last = field.least, 28 if field.name == DAY_OF_MONTH else field.last
        if found[1] is not None:
            least, last = self._range(field, found[1], found[2], item, position)
        chance = _spread(self.spread, field.name)
        if not slash:
            return str(least + chance % (last - least + 1))
        every = self._step(field, step, position + len(base) + 1)
        start = least + chance % min(every, last - least + 1)
        return f"{start}-{last}/{every}"

    def _values(self, field: Field, item: str, position: int) -> range:
        base, slash, step = item.partition("/")
        every = self._step(field, step, position + len(base) + 1) if slash else 1
        if base == "*":
            return range(field.least, field.last + 1, every)
        first, dash, last = base.partition("-")
        if dash:
            start, end = self._range(field, first, last, base, position)
            return range(start, end + 1, every)
        value = self._value(field, base, position)
        if slash:
            hint = f"write {base}-{field.last}/{step}"
            self._refuse(field, item, position, "a step needs a range or *", hint)
        return range(value, value + 1)

    def _range(
        self, field: Field, first: str, last: str, text: str, position: int
    ) -> tuple[int, int]:
        start = self._value(field, first, position + text.index(first))
        end = self._value(field, last, position + text.index("-") + 1)
        if field.names and last == "SUN" and start > 0:
            end = 7
        if start > end:
            hint = f"write {first}-{field.last},{field.least}-{last}"
            if text.startswith("H"):
                hint = f"write H({last}-{first})"
            self._refuse(field, text, position, "the range is reversed", hint)
        return start, end

    def _value(self, field: Field, text: str, position: int) -> int:
        if text in field.names:
            return field.names[text]
        if not text:
            self._refuse(field, text, position, "a value is missing", _allowed(field))
        if not _NUMBER.fullmatch(text):
            self._refuse(field, text, position, f"{_short(text)} is not a value", _allowed(field))
        if not field.least <= int(text) <= field.most:
            reason = f"{text} is not in {field.least}-{field.most}"
            hint = _allowed(field)
            if field.name == DAY_OF_WEEK and len(text) == 4:
                hint += "; a year needs seven fields, of which seconds are the first"
            self._refuse(field, text, position, reason, hint)
        return int(text)

    def _step(self, field: Field, text: str, position: int) -> int:
        step = int(text) if _NUMBER.fullmatch(text) else 0
        if not 1 <= step <= field.size:
            reason = f"{_short(text)} is not a valid step" if text else "the step is missing"
            instead = ", or use an interval" if step else ""
            self._refuse(field, text, position, reason, f"write 1 to {field.size}{instead}")
        return step

    # Days that depend on the month ---------------------------------------------------------------

    def _special(self, field: Field, item: str, position: int) -> Special | None:
        if field.name == DAY_OF_MONTH:
            return self._special_month_day(field, item, position)
        if field.name == DAY_OF_WEEK:
            return self._special_week_day(field, item, position)
        return None

    def _special_month_day(self, field: Field, item: str, position: int) -> Special | None:
        if item in ("L", "LW"):
            return Special(item)
        if found := _BEFORE_LAST.fullmatch(item):
            days = found[1]
            if not _NUMBER.fullmatch(days) or not 1 <= int(days) <= 30:
                reason = f"{_short(days)} is not in 1-30"
                hint = "L-3 is 3 days before the last one"
                self._refuse(field, days, position + 2, reason, hint)
            return Special("L", int(days))
        if found := _NEAREST.fullmatch(item):
            return Special("W", self._value(field, found[1], position))
        return None

    def _special_week_day(self, field: Field, item: str, position: int) -> Special | None:
        if item == "L":
            self._refuse(field, item, position, "L needs a day", "write 5L for the last Friday")
        if found := _LAST.fullmatch(item):
            return Special("nL", self._value(field, found[1], position) % 7)
        if found := _NTH.fullmatch(item):
            day, nth = found.groups()
            value = self._value(field, day, position) % 7
            if nth not in ("1", "2", "3", "4", "5"):
                place = position + len(day) + 1
                self._refuse(field, nth, place, f"{_short(nth)} is not in 1-5", "write 1#2")
            return Special("#", value, int(nth))
        return None


# Expressions differ, but they share most of their fields.
@lru_cache(maxsize=4_096)
def _read_field(number: int, text: str) -> _Part:
    return _Reader(text, "").field(FIELDS[number], text, 0)


def _mask(values: range) -> int:
    return sum(1 << value for value in values)


def _spread(seed: str, field: str) -> int:
    """A number that is always the same for a seed and field, and differs between fields."""
    text = f"{seed}\0{field}".encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def _allowed(field: Field) -> str:
    names = f" or {'-'.join([*field.names][:: len(field.names) - 1])}" if field.names else ""
    return f"write {field.least}-{field.most}{names}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 20 else text[:19] + "…")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
