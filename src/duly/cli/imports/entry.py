"""The results of reading another system: schedules, and entries that cannot be imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

Fields = Mapping[str, Any]
NOTHING: Fields = MappingProxyType({})


class Entry(NamedTuple):
    """A schedule of another system, in the words of duly."""

    where: str
    """Where it stands there, for people."""
    text: str
    """As it is written there."""
    key: str
    """What it is called, always the same, without a prefix."""
    times: Fields
    """`cron` and `tz`, or `every_ms`, or `at`: as the API takes them."""
    calls: str
    """What it calls there; `--map` looks at it."""
    args: tuple[Any, ...] = ()
    kwargs: Fields = NOTHING
    offered: Fields = NOTHING
    """Arguments for a function that takes them."""
    options: Fields = NOTHING
    """What its jobs have that others have not."""
    made_with: Fields = NOTHING
    """What a new one has besides; one that is there already keeps its own."""
    lost: tuple[str, ...] = ()
    """What duly does not take over, in words."""


class Cannot(NamedTuple):
    """What cannot be taken over, and why."""

    where: str
    text: str
    reason: str


Found = Entry | Cannot


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has fields by name."""
    return isinstance(value, Mapping)


class Numbered:
    """Gives names; one that is given again has a number after it."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        number = self._given[name] = self._given.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"
