"""Checks the arguments of schedule verbs before anything is changed."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import takewhile
from typing import Any

from duly.clock import from_ms, os_monotonic
from duly.errors import CalendarExists, InvalidCalendar, InvalidOption
from duly.functions.checks import check_text
from duly.ids import is_id
from duly.model import strict_json
from duly.model.calendar import SEEDS
from duly.model.decide import Decided, Facts
from duly.model.schedule import Plan, ScheduleRecord, plan_of

MAX_BACKFILL = 10_000
MAX_PAGE = 10_000
PREVIEW_SECONDS = 5.0


def read(record: ScheduleRecord) -> Plan:
    """Parse a stored schedule; one that cannot be parsed must be changed first."""
    try:
        return plan_of(record)
    except Exception as error:
        raise InvalidOption(
            "schedule", f"{record.key!r} cannot be read: {error}", "update its trigger or policies"
        ) from error


def check_key(key: object) -> None:
    check_text("key", key)
    if is_id(key):  # type: ignore[arg-type]
        raise InvalidOption("key", "looks like a schedule id", "choose another key")


def check_calendar_name(name: str) -> None:
    if name in SEEDS:
        raise CalendarExists(name)
    if is_id(name):
        raise InvalidCalendar("name", f"{name!r} looks like an id", "choose another name")


def check_by(by: str | None) -> None:
    if by is not None:
        check_text("by", by)


def check_after(after: object, what: str) -> None:
    """Refuse to continue after a value that is not an id."""
    if after is not None and not (isinstance(after, str) and is_id(after)):
        raise InvalidOption(
            "after", f"must be the id of a {what}, not {after!r}", "pass the last id shown"
        )


def check_result(result: Mapping[str, Any] | None) -> None:
    """Refuse values that no job can return, for a condition to check."""
    if result is None:
        return
    if not isinstance(result, Mapping):
        raise InvalidOption("result", f"must be a mapping, not {result!r}")
    if wrong := strict_json.fault(dict(result)):
        raise InvalidOption(f"result{wrong.path}", wrong.reason)


def check_word(option: str, value: str | None, words: type[StrEnum]) -> None:
    if value is not None and value not in tuple(words):
        raise InvalidOption(option, f"must be one of {', '.join(words)}, not {value!r}")


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
        raise InvalidOption("limit", f"must be 1 to {MAX_PAGE:,}, not {limit!r}")


def check_size(ticks: int) -> None:
    if ticks > MAX_BACKFILL:
        raise InvalidOption(
            "backfill", f"{ticks:,} ticks, the limit is {MAX_BACKFILL:,}", "use shorter ranges"
        )


def check_ledger(plan: Plan, facts: Facts, since: int, until: int) -> None:
    """Refuse a range that may include dispatched ticks which the ledger no longer has."""
    forgotten = facts.forgotten.get(plan.id)
    if forgotten is not None and plan.trigger.count_between(since, min(until, forgotten)):
        raise InvalidOption(
            "start",
            f"the ledger before {from_ms(forgotten)} was removed: ticks could run a second time",
            "start there, or pass without_ledger=True",
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
            "is too far ahead: there are too many ticks before it to check them all",
            "choose an earlier instant",
        )
    return found
