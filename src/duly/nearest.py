"""Suggests the nearest known name for one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

MAX_KNOWN = 1_000
"""How many known names are compared at most."""
MAX_LENGTH = 200


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most similar, or None if none is similar enough."""
    if len(name) > MAX_LENGTH:
        return None
    found = difflib.get_close_matches(name, list(islice(known, MAX_KNOWN)), 1, cutoff)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A question that suggests the nearest known name, or None."""
    near = nearest(name, known)
    return None if near is None else f"did you mean {near!r}?"


def or_nearest(name: str, known: Iterable[str]) -> str:
    """The same question as the end of a message, or nothing."""
    question = did_you_mean(name, known)
    return "" if question is None else f"; {question}"
