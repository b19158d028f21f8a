"""Converts between the values of a cron field and its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from duly.errors import InvalidCron
from duly.model import cron

SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY, YEAR = range(7)
_EVERY = ["0", "*", "*", "*", "*", "*", "*"]
_MASKS = ("seconds", "minutes", "hours", "month_days", "months", "week_days", "years")
_NAME = re.compile(r"[A-Za-z]{3}")


def all_values(field: int) -> frozenset[int]:
    known = cron.FIELDS[field]
    return frozenset(range(known.least, known.last + 1))


def read(text: str, field: int) -> frozenset[int] | None:
    """The values that duly parses from a field; None if the field is not valid."""
    if text == "*":
        return all_values(field)
    words = [text if index == field else every for index, every in enumerate(_EVERY)]
    try:
        parsed = cron.parse(" ".join(words))
    except InvalidCron:
        return None
    mask = getattr(parsed, _MASKS[field])
    return frozenset(value for value in range(mask.bit_length()) if mask >> value & 1)


def write(values: Iterable[int], field: int, text: str = "") -> str:
    """A field with these values; the original text if duly parses the same values from it."""
    wanted = frozenset(values)
    if wanted == all_values(field):
        return "*"
    if text and _is_plain(text) and read(text, field) == wanted:
        return text
    return ",".join(_ranges(sorted(wanted)))


def _is_plain(text: str) -> bool:
    """Whether it has no `L`, `W`, `#` or `H`, which other systems do not know."""
    return all(_NAME.fullmatch(word) for word in re.findall(r"[A-Za-z#?]+", text))


def _ranges(values: list[int]) -> Iterable[str]:
    for _, run in groupby(enumerate(values), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        if len(numbers) > 2:
            yield f"{numbers[0]}-{numbers[-1]}"
        else:
            yield from map(str, numbers)
