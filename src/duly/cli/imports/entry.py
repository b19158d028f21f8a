"""The results of reading another system: schedules, and entries that cannot be imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

Fields = Mapping[str, Any]
NO_FIELDS: Fields = MappingProxyType({})


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
    kwargs: Fields = NO_FIELDS
    offered: Fields = NO_FIELDS
    """Arguments for a function that takes them."""
    options: Fields = NO_FIELDS
    """What its jobs have that others have not."""
    made_with: Fields = NO_FIELDS
    """What a new one has besides; one that is there already keeps its own."""
    lost: tuple[str, ...] = ()
    """What duly does not take over, in words."""


class NotImportable(NamedTuple):
    """What cannot be taken over, and why."""

    where: str
    text: str
    reason: str


ReadEntry = Entry | NotImportable


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has fields by name."""
    return isinstance(value, Mapping)


class UniqueNames:
    """Gives names; one that is given again has a number after it."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        number = self._given[name] = self._given.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"
