"""Looks up the public holidays of a country with the optional `holidays` package."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from itertools import islice

from duly.errors import InvalidCalendar, MissingExtra
from duly.nearest import did_you_mean

MAX_YEARS = 100
"""More would not fit into a calendar."""


def holidays(
    country: str, years: int | Iterable[int], subdivision: str | None = None
) -> list[tuple[dt.date, str]]:
    """Return the public holidays of a country ("TR"), or of a part of it ("DE", subdivision="BY").

    They are sorted by date, with English names where the package has them, and include days on
    which a holiday is observed. Raises InvalidCalendar, or MissingExtra without the package.
    """
    try:
        import holidays as package
    except ImportError:
        raise MissingExtra("holidays", "a calendar of a country's holidays") from None
    wanted = _years(years)
    for field, name in (("country", country), ("subdivision", subdivision)):
        if not isinstance(name, str | None):
            raise InvalidCalendar(field, f"must be text, not {name!r}", 'write "DE"')
    country = country.upper()
    supported = package.list_supported_countries()
    if country not in supported:
        raise _unknown("country", country, supported)
    if subdivision is not None and subdivision not in supported[country]:
        raise _unknown("subdivision", subdivision, supported[country])
    languages = package.list_localized_countries().get(country, [])
    found = package.country_holidays(
        country,
        subdiv=subdivision,
        years=wanted,
        language="en_US" if "en_US" in languages else None,
    )
    return sorted(found.items())


def _years(years: int | Iterable[int]) -> list[int]:
    if not isinstance(years, Iterable):
        years = [years]
    wanted = list(islice(years, MAX_YEARS + 1))
    if not wanted or len(wanted) > MAX_YEARS:
        raise InvalidCalendar("years", f"must be 1 to {MAX_YEARS} years")
    for year in wanted:
        if type(year) is not int or not dt.MINYEAR <= year <= dt.MAXYEAR:
            raise InvalidCalendar("years", f"{year!r} is not a year", "write 2026, or [2026, 2027]")
    return wanted


def _unknown(field: str, name: str, known: Iterable[str]) -> InvalidCalendar:
    known = sorted(known)
    hint = did_you_mean(name, known) or f"use one of {', '.join(known)}"[:200]
    return InvalidCalendar(field, f"{name!r} is not known to the holidays package", hint)
