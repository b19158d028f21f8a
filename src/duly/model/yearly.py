"""The days of a year that a rule names.

These are the rules behind the calendars that need no new dates every year. The holidays follow
today's law: years long ago had others.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

import msgspec

MONDAY, THURSDAY, SATURDAY, SUNDAY = 0, 3, 5, 6
ONE_DAY = dt.timedelta(days=1)

Named = Iterator[tuple[dt.date, str]]


class Rule(msgspec.Struct, frozen=True):
    """Days that are computed for a year; after `last_date`, if set, they are not known."""

    name: str
    compute: Callable[[int], Named]
    last_date: dt.date | None = None

    def days(self, year: int) -> Mapping[dt.date, str]:
        """The days of a year, in order, with their labels."""
        return _days(self, year)


@lru_cache(maxsize=256)
def _days(rule: Rule, year: int) -> Mapping[dt.date, str]:
    named: dict[dt.date, str] = {}
    for day, label in sorted(rule.compute(year)):
        # Two holidays can be on one day.
        named[day] = f"{named[day]}, {label}" if day in named else label
    return MappingProxyType(named)


# The United States --------------------------------------------------------------------------------


def us_federal(year: int) -> Named:
    """The eleven federal holidays, on the days on which they are observed."""
    for candidate in (year, year + 1):
        for day, label in _us_federal(candidate):
            # New Year's Day on a Saturday is observed in the year before.
            if day.year == year:
                yield day, label


def _us_federal(year: int) -> Named:
    if year > dt.MAXYEAR:
        return
    yield _observed(dt.date(year, 1, 1), "New Year's Day")
    yield _nth(3, MONDAY, year, 1), "Martin Luther King Jr. Day"
    yield _nth(3, MONDAY, year, 2), "Washington's Birthday"
    yield _last(MONDAY, year, 5), "Memorial Day"
    yield _observed(dt.date(year, 6, 19), "Juneteenth National Independence Day")
    yield _observed(dt.date(year, 7, 4), "Independence Day")
    yield _nth(1, MONDAY, year, 9), "Labor Day"
    yield _nth(2, MONDAY, year, 10), "Columbus Day"
    yield _observed(dt.date(year, 11, 11), "Veterans Day")
    yield _nth(4, THURSDAY, year, 11), "Thanksgiving Day"
    yield _observed(dt.date(year, 12, 25), "Christmas Day")


def _observed(day: dt.date, label: str) -> tuple[dt.date, str]:
    if day.weekday() == SATURDAY:
        return day - ONE_DAY if day > dt.date.min else day, f"{label} (observed)"
    if day.weekday() == SUNDAY:
        return day + ONE_DAY, f"{label} (observed)"
    return day, label


def _nth(n: int, weekday: int, year: int, month: int) -> dt.date:
    first = dt.date(year, month, 1)
    return first + dt.timedelta(days=(weekday - first.weekday()) % 7 + 7 * (n - 1))


def _last(weekday: int, year: int, month: int) -> dt.date:
    """The last such weekday of a month other than December."""
    end = dt.date(year, month + 1, 1) - ONE_DAY
    return end - dt.timedelta(days=(end.weekday() - weekday) % 7)


# Turkey -------------------------------------------------------------------------------------------

# The first days of Ramazan and Kurban Bayramı, as published by the Diyanet. The months start by its
# own calculation of the new moon, which no arithmetic calendar follows.
BAYRAM = {
    2017: ((6, 25), (9, 1)),
    2018: ((6, 15), (8, 21)),
    2019: ((6, 4), (8, 11)),
    2020: ((5, 24), (7, 31)),
    2021: ((5, 13), (7, 20)),
    2022: ((5, 2), (7, 9)),
    2023: ((4, 21), (6, 28)),
    2024: ((4, 10), (6, 16)),
    2025: ((3, 30), (6, 6)),
    2026: ((3, 20), (5, 27)),
    2027: ((3, 9), (5, 16)),
    2028: ((2, 26), (5, 5)),
    2029: ((2, 14), (4, 24)),
    2030: ((2, 4), (4, 13)),
    2031: ((1, 24), (4, 2)),
    2032: ((1, 14), (3, 22)),
}


def tr_public(year: int) -> Named:
    """National and religious holidays, full days; the half days before them are working days."""
    yield dt.date(year, 1, 1), "New Year's Day"
    yield dt.date(year, 4, 23), "National Sovereignty and Children's Day"
    yield dt.date(year, 5, 1), "Labor and Solidarity Day"
    yield dt.date(year, 5, 19), "Commemoration of Atatürk, Youth and Sports Day"
    yield dt.date(year, 7, 15), "Democracy and National Unity Day"
    yield dt.date(year, 8, 30), "Victory Day"
    yield dt.date(year, 10, 29), "Republic Day"
    if year in BAYRAM:
        ramazan, kurban = BAYRAM[year]
        yield from _from(dt.date(year, *ramazan), 3, "Ramazan Bayramı")
        yield from _from(dt.date(year, *kurban), 4, "Kurban Bayramı")


def _from(first: dt.date, days: int, label: str) -> Named:
    return ((first + dt.timedelta(days=n), label) for n in range(days))


# Weekends -----------------------------------------------------------------------------------------


def weekends(year: int) -> Named:
    """Every Saturday and Sunday."""
    first, last = dt.date(year, 1, 1).toordinal(), dt.date(year, 12, 31).toordinal()
    for ordinal in range(first, last + 1):
        day = dt.date.fromordinal(ordinal)
        if day.weekday() >= SATURDAY:
            yield day, "Saturday" if day.weekday() == SATURDAY else "Sunday"


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule("us-federal-holidays", us_federal),
            Rule("tr-public-holidays", tr_public, dt.date(max(BAYRAM), 12, 31)),
            Rule("weekends", weekends),
        )
    }
)
