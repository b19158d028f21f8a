"""What the verbs of schedules refuse before they do anything."""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import takewhile

from duly.checks import check_text
from duly.clock import os_monotonic
from duly.errors import InvalidOption
from duly.ids import is_id
from duly.model.decide import Decided
from duly.model.schedule import Plan, ScheduleRecord, plan_of

MAX_BACKFILL = 10_000
MAX_PAGE = 10_000
PREVIEW_SECONDS = 5.0


def read(record: ScheduleRecord) -> Plan:
    """The schedule, understood; one that cannot be has to be changed first."""
    try:
        return plan_of(record)
    except Exception as error:
        raise InvalidOption(
            "schedule", f"{record.key!r} cannot be read: {error}", "update its trigger or policies"
        ) from error


def check_key(key: object) -> None:
    check_text("key", key)
    if is_id(key):  # type: ignore[arg-type]
        raise InvalidOption("key", "looks like the id of a schedule", "choose a word")


def check_by(by: str | None) -> None:
    if by is not None:
        check_text("by", by)


def check_word(option: str, value: str | None, words: type[StrEnum]) -> None:
    if value is not None and value not in tuple(words):
        raise InvalidOption(option, f"{value!r} is none of {', '.join(words)}")


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise InvalidOption("limit", f"must be 1 to {MAX_PAGE:,}, not {limit!r}")


def check_size(ticks: int) -> None:
    if ticks > MAX_BACKFILL:
        raise InvalidOption(
            "backfill", f"{ticks:,} ticks, the most is {MAX_BACKFILL:,}", "take shorter ranges"
        )


def in_time(walk: Iterator[Decided], n: int, after: int | None) -> list[Decided]:
    """The first n that are later than an instant, or as many of them as there is time for."""
    until = os_monotonic() + PREVIEW_SECONDS
    found: list[Decided] = []
    for tick in takewhile(lambda _: os_monotonic() < until, walk):
        if after is None or tick.tick_at > after:
            found.append(tick)
        if len(found) == n:
            return found
    if after is not None and not found and os_monotonic() >= until:
        raise InvalidOption(
            "after",
            "lies too far ahead: there are too many ticks until then to look at them all",
            "choose an earlier instant",
        )
    return found
