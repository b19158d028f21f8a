"""Checks that a value is strict JSON and not nested too deeply.

Conditions and rotations are stored as JSON. Values that JSON cannot represent are refused when they
are written, with their path, instead of being changed silently.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import msgspec

DEEPEST = 64
MAX_PARTS = 1_000_000
LONGEST_NUMBER = 1000
"""Digits: Python's own limit for reading a number is 4,300; some databases have lower ones."""


class Fault(NamedTuple):
    """Where a value is not strict JSON (`.items[2].price`), and why."""

    path: str
    reason: str


def fault(value: object) -> Fault | None:
    """The first part of the value that is not strict JSON, or None."""
    stack: list[tuple[str, object, int]] = [("", value, 0)]
    parts = 0
    while stack:
        parts += 1
        if parts > MAX_PARTS:
            return Fault("", f"more than {MAX_PARTS:,} values")
        path, part, depth = stack.pop()
        if depth > DEEPEST:
            return Fault("", f"nested more than {DEEPEST} levels deep")
        if reason := _wrong(part):
            return Fault(path, reason)
        stack += ((path + step, child, depth + 1) for step, child in _children(part))
    return None


def _wrong(part: object) -> str | None:
    kind = type(part)
    if kind is str:
        return _wrong_text(cast(str, part))
    if kind is float and not math.isfinite(cast(float, part)):
        return f"{part} is not a JSON number"
    if kind is int and abs(cast(int, part)) >= 10**LONGEST_NUMBER:
        return f"a number of more than {LONGEST_NUMBER:,} digits"
    if kind is dict:
        for key in cast(dict[object, Any], part):
            if type(key) is not str:
                return f"the key {key!r} is not text"
            if reason := _wrong_text(key):
                return reason
    elif kind not in _JSON:
        return f"{kind.__name__} is not JSON"
    return None


_JSON = frozenset({str, int, float, bool, type(None), list, dict})


def _wrong_text(text: str) -> str | None:
    if "\0" in text:
        return "text with a NUL character"
    # Half a surrogate pair is not a character, and no database accepts it.
    return None if _encodable(text) else "text with a lone surrogate"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _children(part: object) -> Iterable[tuple[str, object]]:
    if type(part) is dict:
        yield from ((f".{key}", child) for key, child in cast(dict[str, object], part).items())
    elif type(part) is list:
        yield from ((f"[{n}]", child) for n, child in enumerate(cast(list[object], part)))


def encoded(value: object) -> str:
    """A strict JSON value as text."""
    return msgspec.json.encode(value).decode()


def shown(value: object, limit: int = 200) -> str:
    """A JSON value for display: on one line, and shortened."""
    text = encoded(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
