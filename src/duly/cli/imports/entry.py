"""The results of reading another system: schedules, and entries that cannot be imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeGuard

Fields = Mapping[str, Any]
NO_FIELDS: Fields = MappingProxyType({})


class Entry(NamedTuple):
    """A schedule of another system, in duly's terms."""

    where: str
    """Where it is in the source, for people."""
    text: str
    """Its text in the source."""
    key: str
    """Its key without the prefix, the same in every import."""
    times: Fields
    """`cron` and `tz`, or `every_ms`, or `at`, as in the API."""
    calls: str
    """What it calls in the source; `--map` matches this."""
    args: tuple[Any, ...] = ()
    kwargs: Fields = NO_FIELDS
    offered: Fields = NO_FIELDS
    """Arguments that are passed if the function has such parameters."""
    options: Fields = NO_FIELDS
    """Options of its jobs."""
    made_with: Fields = NO_FIELDS
    """Further fields of a new schedule; an existing one keeps its own."""
    lost: tuple[str, ...] = ()
    """The parts that are not imported, for people."""


class NotImportable(NamedTuple):
    """An entry that cannot be imported, and why."""

    where: str
    text: str
    reason: str
    key: str | None = None


ReadEntry = Entry | NotImportable


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a mapping."""
    return isinstance(value, Mapping)


class UniqueNames:
    """Makes names unique by appending a number to repeated ones."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        number = self._given[name] = self._given.get(name, 0) + 1
        return name if number == 1 else f"{name}-{number}"
