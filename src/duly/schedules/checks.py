"""Checks the arguments of schedule verbs before anything is done."""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import takewhile
from typing import Any

from duly.clock import from_ms, os_monotonic
from duly.errors import InvalidOption
from duly.functions.checks import check_text
from duly.ids import is_id
from duly.model import strict_json
from duly.model.decide import Decided, Facts
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


def check_after(after: object, what: str) -> None:
    """Refuse to go on after what is no id."""
    if after is not None and not (isinstance(after, str) and is_id(after)):
        raise InvalidOption(
            "after", f"must be the id of a {what}, not {after!r}", "take that of the last one shown"
        )


def check_result(result: Mapping[str, Any] | None) -> None:
    """Refuse what no job can have returned for a condition to look at."""
    if result is None:
        return
    if not isinstance(result, Mapping):
        raise InvalidOption("result", f"must be a mapping, not {result!r}")
    if wrong := strict_json.fault(dict(result)):
        raise InvalidOption(f"result{wrong.path}", wrong.reason)


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


def check_ledger(plan: Plan, facts: Facts, since: int, until: int) -> None:
    """Refuse a range in which ticks may have been dispatched that the ledger no longer has."""
    forgotten = facts.forgotten.get(plan.id)
    if forgotten is not None and plan.trigger.count_between(since, min(until, forgotten)):
        raise InvalidOption(
            "start",
            f"the ledger before {from_ms(forgotten)} was removed: ticks could run a second time",
            "begin there, or say without_ledger=True",
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
