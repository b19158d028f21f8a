"""Conditions: whether a tick may dispatch, given the results of earlier jobs.

A condition is an object: JSON Pointers into a context, each with one operator. All of them must
hold.

    {"/prior_run_result/status": {"eq": "completed"}, "/last_24h_stats/failed": {"lt": 3}}

Rules that are easy to get wrong:

- A missing path is not null. It fails every operator except `neq`, including `eq: null`. Before the
  first finished job everything below `/prior_run_result` is missing, unless `first_run` decides.
- The status that duly reports is `completed`, and equals `succeeded` too. The `status` of a result
  is plain text.
- `gt` and `lt` compare numbers, and compare ISO-8601 dates and times (`2026-07-03`,
  `2026-07-03T09:00:00+03:00`) as instants: without an offset they are in UTC, and a date is its
  midnight. All other values have no order, so both operators are false.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from duly.errors import InvalidCondition
from duly.model import strict_json
from duly.model.job import State
from duly.model.schedule_options import FirstRun
from duly.model.stored_values import read
from duly.nearest import did_you_mean

MAX_KEYS = 100
MAX_BYTES = 16_384


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()
"""The value of a pointer whose path is missing."""


class Check(NamedTuple):
    """The result of one operator of a condition; `found` is False if the path is missing."""

    pointer: str
    operator: str
    expected: Any
    found: bool
    actual: Any
    passes: bool

    @property
    def detail(self) -> str:
        """In short: `/last_24h_stats/failed is 5, expected < 3`."""
        verb = f"is {strict_json.shown(self.actual)}" if self.found else "is missing"
        where = self.pointer or "the context"
        if self._by_first_run:
            return f"{where} {verb}: {self.why}"
        verdict = "as expected:" if self.passes else "expected"
        return (
            f"{where} {verb}, {verdict} {IN_WORDS[self.operator]}{strict_json.shown(self.expected)}"
        )

    @property
    def why(self) -> str:
        """What was compared with what, and why it is true or false: `5 is not less than 3`."""
        if self._by_first_run:
            return f"there is no previous run, and first_run is {'pass' if self.passes else 'fail'}"
        if not self.found:
            verdict = "true" if self.passes else "false"
            unknown = unknown_value(parse_pointer(self.pointer))
            said = "there is no such value" if unknown is None else "; ".join(unknown)
            return f"{said}; {self.operator} is {verdict} for a missing value"
        return REASONS[self.operator](self.actual, self.expected)

    @property
    def _by_first_run(self) -> bool:
        """Whether the operator itself has another result."""
        actual = self.actual if self.found else MISSING
        return self.passes != OPERATORS[self.operator](actual, self.expected)


class Explanation(msgspec.Struct, frozen=True):
    """Why a condition was met or not: all its checks, in order."""

    checks: tuple[Check, ...]

    @property
    def passes(self) -> bool:
        """Whether every check passes."""
        return all(check.passes for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passes)

    @property
    def detail(self) -> str:
        """The checks that failed, in words; empty if the condition is met."""
        return "; ".join(check.detail for check in self.failed)


class Rule(NamedTuple):
    """One key of a condition."""

    pointer: str
    path: tuple[str, ...]
    operator: str
    expected: Any

    def check(self, context: object, first_run: FirstRun = "check") -> Check:
        actual = resolve(context, self.path)
        passes = OPERATORS[self.operator](actual, self.expected)
        if first_run != "check" and self._lacks_previous_run(context):
            passes = first_run == "pass"
        found = actual is not MISSING
        shown = actual if found else None
        return Check(self.pointer, self.operator, self.expected, found, shown, passes)

    def _lacks_previous_run(self, context: object) -> bool:
        """Whether it is about the previous run, and there is none."""
        return self.path[:1] == (PREVIOUS_RUN,) and resolve(context, (PREVIOUS_RUN,)) is None


class Condition(msgspec.Struct, frozen=True):
    """A parsed condition: a predicate over the context of a tick. Created by `parse`."""

    rules: tuple[Rule, ...] = ()

    def passes(self, context: object) -> bool:
        """Whether every check passes."""
        return all(rule.check(context).passes for rule in self.rules)

    def explain(self, context: object, first_run: FirstRun = "check") -> Explanation:
        """The result of every check; `first_run` decides about a previous run that is missing."""
        return Explanation(tuple(rule.check(context, first_run) for rule in self.rules))

    def encode(self) -> dict[str, dict[str, Any]]:
        """The condition in the form in which it is written and stored."""
        return {rule.pointer: {rule.operator: rule.expected} for rule in self.rules}


# Parsing ------------------------------------------------------------------------------------------


def parse(value: object) -> Condition:
    """Parse a condition; None and `{}` always pass.

    Raises InvalidCondition, which names the pointer.
    """
    if value is None:
        return Condition()
    if not isinstance(value, dict):
        raise InvalidCondition(
            None, f"must be an object, not {type(value).__name__}", f"write {EXAMPLE}"
        )
    keys = cast("dict[object, object]", value)
    if len(keys) > MAX_KEYS:
        raise InvalidCondition(None, f"{len(keys):,} keys, the limit is {MAX_KEYS}")
    rules = tuple(_rule(pointer, operators) for pointer, operators in keys.items())
    size = len(strict_json.encoded(keys))
    if size > MAX_BYTES:
        raise InvalidCondition(None, f"{size:,} bytes as JSON, the limit is {MAX_BYTES:,}")
    # A copy, since the caller may change the original later.
    return Condition(tuple(rule._replace(expected=_copy(rule.expected)) for rule in rules))


def parse_new(value: object) -> Condition:
    """Parse a condition that a user gives: its pointers must lead to values that can exist.

    Stored conditions are not refused for that, since earlier versions accepted them.
    """
    condition = parse(value)
    refuse_unknown_values(condition)
    return condition


def refuse_unknown_values(condition: Condition) -> None:
    """Refuse pointers to values that no context has."""
    for rule in condition.rules:
        if unknown := unknown_value(rule.path):
            raise InvalidCondition(rule.pointer, *unknown)


class Unknown(NamedTuple):
    """Why no context has such a value, and what to write."""

    reason: str
    hint: str


def unknown_value(path: tuple[str, ...]) -> Unknown | None:
    """Why a path leads to nothing in every context; None if it may lead to something."""
    if path and path[0] not in VALUES:
        hint = did_you_mean(path[0], VALUES) or f"the values are {', '.join(VALUES)}"
        return Unknown(f"there is no value {path[0]!r}", hint)
    count = "/".join(path[1:])
    if path[:1] == (COUNTS,) and len(path) > 1 and count not in Stats._fields:
        hint = did_you_mean(count, Stats._fields) or f"it has {', '.join(Stats._fields)}"
        return Unknown(f"{COUNTS} has no {count!r}", hint)
    return None


EXAMPLE = '{"/last_24h_stats/failed": {"lt": 3}}'


def _copy(value: object) -> Any:
    return msgspec.json.decode(strict_json.encoded(value))


def _rule(pointer: object, operators: object) -> Rule:
    path = parse_pointer(pointer)
    pointer = cast(str, pointer)
    if not isinstance(operators, dict):
        raise InvalidCondition(
            pointer,
            f"must be an object with one operator, not {type(operators).__name__}",
            f'write {{"eq": {_quoted(operators)}}}',
        )
    given = list(cast("dict[object, object]", operators).items())
    for operator, _ in given:
        if operator not in OPERATORS:
            raise InvalidCondition(
                pointer, f"unknown operator {operator!r}", f"the operators are {WORDS}"
            )
    if len(given) != 1:
        raise InvalidCondition(
            pointer,
            f"{len(given) or 'no'} operators; give exactly one",
            f"the operators are {WORDS}",
        )
    operator, expected = given[0]
    if fault := strict_json.fault(expected):
        raise InvalidCondition(pointer, f"{operator}{fault.path}: {fault.reason}")
    return Rule(pointer, path, cast(str, operator), expected)


def _quoted(value: object) -> str:
    return "…" if strict_json.fault(value) else strict_json.shown(value, 40)


# Pointers -----------------------------------------------------------------------------------------

_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")
_BAD_ESCAPE = re.compile(r"~(?![01])")


def parse_pointer(pointer: object) -> tuple[str, ...]:
    """The steps of a JSON Pointer (RFC 6901); an empty one has none and means the whole value."""
    if not isinstance(pointer, str):
        raise InvalidCondition(None, f"a pointer must be text, not {type(pointer).__name__}")
    if fault := strict_json.fault(pointer):
        raise InvalidCondition(pointer, fault.reason)
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise InvalidCondition(
            pointer, "a pointer must start with a slash", f'write "/{pointer.replace(".", "/")}"'
        )
    if _BAD_ESCAPE.search(pointer):
        raise InvalidCondition(pointer, "a lone ~", "write ~0 for ~ and ~1 for /")
    steps = pointer[1:].split("/")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def resolve(value: Any, path: tuple[str, ...]) -> Any:
    """The value at the path, or MISSING."""
    for step in path:
        if isinstance(value, dict):
            value = cast(dict[str, Any], value).get(step, MISSING)
        elif isinstance(value, list):
            value = _item(cast(list[object], value), step)
        else:
            return MISSING
    return value


def _item(items: list[Any], step: str) -> Any:
    if not _INDEX.fullmatch(step) or int(step) >= len(items):
        return MISSING
    return items[int(step)]


# Operators ----------------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Equality in JSON: 1 equals 1.0, but neither equals true, at any depth.

    Every call but the first compares a part of `other`, so the depth is limited by the condition.
    """
    if isinstance(one, RunStatus):
        return other in one.names
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in right)
    if isinstance(one, list) and isinstance(other, list):
        first, second = cast(list[object], one), cast(list[object], other)
        return len(first) == len(second) and all(map(same, first, second))
    return bool(one == other)


def _eq(actual: Any, expected: Any) -> bool:
    return actual is not MISSING and same(actual, expected)


def _neq(actual: Any, expected: Any) -> bool:
    return not _eq(actual, expected)


def _gt(actual: Any, expected: Any) -> bool:
    return _in_order(expected, actual)


def _lt(actual: Any, expected: Any) -> bool:
    return _in_order(actual, expected)


def _contains(actual: Any, expected: Any) -> bool:
    if isinstance(actual, str):
        names = actual.names if isinstance(actual, RunStatus) else (actual,)
        return isinstance(expected, str) and any(expected in name for name in names)
    return isinstance(actual, list) and any(
        same(item, expected) for item in cast(list[object], actual)
    )


OPERATORS: Mapping[object, Callable[[Any, Any], bool]] = {
    "eq": _eq,
    "neq": _neq,
    "gt": _gt,
    "lt": _lt,
    "contains": _contains,
}
WORDS = ", ".join(map(str, OPERATORS))
IN_WORDS = {"eq": "", "neq": "not ", "gt": "> ", "lt": "< ", "contains": "to contain "}


def _in_order(lower: Any, higher: Any) -> bool:
    return _have_order(lower, higher) and _rank(lower) < _rank(higher)


def _have_order(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return instant(one) is not None and instant(other) is not None
    return _is_number(one) and _is_number(other)


def _rank(value: Any) -> Any:
    return instant(value) if isinstance(value, str) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ]([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:[.,](\d+))?)?"
    r"(?:[Zz]|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?)?",
    re.ASCII,
)


def instant(text: str) -> tuple[int, str] | None:
    """The instant of an ISO-8601 text, as a comparable value; None if it is not one.

    Not a datetime: those are limited to microseconds, and to years from 1 in UTC.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, ahead, ahead_minutes = match.groups()
    try:
        days = dt.date(int(year), int(month), int(day)).toordinal()
    except ValueError:
        return None
    seconds = days * 86_400 + _seconds(hour, minute) + int(second or 0)
    offset = _seconds(ahead, ahead_minutes)
    return seconds - (-offset if sign == "-" else offset), (fraction or "").rstrip("0")


def _seconds(hours: str | None, minutes: str | None) -> int:
    return int(hours or 0) * 3600 + int(minutes or 0) * 60


# Reasons ------------------------------------------------------------------------------------------


def _why_same(actual: Any, expected: Any) -> str:
    is_same = same(actual, expected)
    said = f"{_shown(actual)} {'equals' if is_same else 'does not equal'} {_shown(expected)}"
    if is_same and isinstance(actual, RunStatus) and actual != expected:
        return f"{said}: both are names of the same status"
    if not is_same and (kind := _kind(actual)) != _kind(expected):
        return f"{said}: {kind} never equals {_kind(expected)}"
    return said


def _why_ordered(operator: str, words: str, actual: Any, expected: Any) -> str:
    if not _have_order(actual, expected):
        said = f"{_shown(actual)} and {_shown(expected)} have no order"
        return f"{said}: {operator} compares two numbers, or two ISO 8601 dates or times"
    verb = "is" if OPERATORS[operator](actual, expected) else "is not"
    return f"{_shown(actual)} {verb} {words} {_shown(expected)}"


def _why_contains(actual: Any, expected: Any) -> str:
    if not isinstance(actual, str | list):
        return f"{_shown(actual)} is {_kind(actual)}; contains needs text or an array"
    if isinstance(actual, str) and not isinstance(expected, str):
        return f"{_shown(actual)} is text, and {_shown(expected)} is {_kind(expected)}"
    verb = "contains" if _contains(actual, expected) else "does not contain"
    return f"{_shown(actual)} {verb} {_shown(expected)}"


REASONS: Mapping[str, Callable[[Any, Any], str]] = {
    "eq": _why_same,
    "neq": _why_same,
    "gt": partial(_why_ordered, "gt", "greater than"),
    "lt": partial(_why_ordered, "lt", "less than"),
    "contains": _why_contains,
}
"""Why an operator is true or false for a value that exists."""


def _shown(value: Any) -> str:
    return strict_json.shown(value, 80)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return strict_json.encoded(value)
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "an array" if isinstance(value, list) else "an object"


# The context --------------------------------------------------------------------------------------

PREVIOUS_RUN, COUNTS, SIGNAL = VALUES = ("prior_run_result", "last_24h_stats", "signal_rpc_result")
"""The values of a context."""


class Stats(NamedTuple):
    """How many jobs of the target were created in the last 24 hours, by outcome."""

    succeeded: int = 0
    failed: int = 0
    total: int = 0


class RunStatus(StrEnum):
    """How a job ended, as duly reports it: unlike text in a result, it may have a second name."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def names(self) -> tuple[str, ...]:
        """The words that it is equal to."""
        return ("completed", "succeeded") if self is RunStatus.COMPLETED else (self.value,)


STATUS: Mapping[State, RunStatus] = {
    State.SUCCEEDED: RunStatus.COMPLETED,
    State.FAILED: RunStatus.FAILED,
    State.CANCELED: RunStatus.CANCELED,
}


def prior_run_result(state: str, result: str | None) -> dict[str, Any]:
    """The latest finished job of a target as conditions see it, from its state and result.

    It has the result's own keys, or the result as `value`, and `status` unless the result has one.
    A job that failed or was canceled has no result and no `value`. A result that cannot be read
    counts as null.
    """
    status = STATUS[State(state)]
    if result is None and state != State.SUCCEEDED:
        return {"status": status}
    value: Any = None if result is None else read(result, object, None)
    seen: dict[str, Any] = (
        cast(dict[str, Any], value) if isinstance(value, dict) else {"value": value}
    )
    return {"status": status} | seen


def context(prior: Mapping[str, Any] | None, stats: Stats, signal: object = None) -> dict[str, Any]:
    """The context of a condition; `prior` is from `prior_run_result`, None if no job has ended."""
    seen = (None if prior is None else dict(prior), stats._asdict(), signal)
    return dict(zip(VALUES, seen, strict=True))


def with_status(given: object) -> object:
    """A context that a user has written, with a status of its previous run as duly reports it."""
    prior = resolve(given, (PREVIOUS_RUN,))
    status = resolve(prior, ("status",))
    known = {name: each for each in RunStatus for name in each.names}
    if not isinstance(status, str) or status not in known:
        return given
    return cast(dict[str, Any], given) | {PREVIOUS_RUN: prior | {"status": known[status]}}
