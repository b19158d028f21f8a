"""Reads stored values leniently: one unreadable value must not hide the others."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec

T = TypeVar("T")
Other = TypeVar("Other")
Word = TypeVar("Word", bound=StrEnum)


def read(text: str | bytes, kind: type[T], otherwise: T) -> T:
    """The JSON value; `otherwise` if it is not of this type."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return otherwise


def attempt(read: Callable[[], T], otherwise: Other) -> T | Other:
    """The result of `read`; `otherwise` if the stored values are invalid."""
    try:
        return read()
    except Exception:  # whatever is wrong with them
        return otherwise


def word(text: str | None, words: type[Word], otherwise: Word) -> Word:
    """The word; `otherwise` if it is none of these."""
    try:
        return otherwise if text is None else words(text)
    except ValueError:
        return otherwise
