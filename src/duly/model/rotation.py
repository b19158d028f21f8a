"""Rotations: the inputs that dispatches use in turn.

The stored index only increases, by one with each dispatch. The entry is the index modulo the
length, so a rotation that was shortened is still in range.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgspec

from duly.errors import InvalidRotation
from duly.model import strict_json

MAX_ENTRIES = 1000
MAX_BYTES = 1 << 20


class Pick(NamedTuple):
    """The entry for a dispatch: its position (`rotation_index_used`) and its inputs."""

    position: int
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True, init=False)
class Rotation:
    """Inputs that successive dispatches use in turn: a list of objects. An empty one is falsy.

    Raises InvalidRotation, which names the entry.
    """

    entries: tuple[str, ...]
    """Each as JSON, so that entries cannot be changed in place."""

    def __init__(self, entries: object) -> None:
        object.__setattr__(self, "entries", _texts(entries))

    def __len__(self) -> int:
        return len(self.entries)

    def pick(self, index: int) -> Pick:
        """The entry for a schedule that has dispatched `index` times since the rotation was set."""
        if not self.entries:
            raise InvalidRotation(None, "the rotation is empty")
        position = index % len(self.entries)
        return Pick(position, msgspec.json.decode(self.entries[position], type=dict[str, Any]))

    def encode(self) -> list[dict[str, Any]]:
        """The rotation in the form in which it is stored and shown."""
        return [self.pick(index).inputs for index in range(len(self))]


def parse(value: object) -> Rotation | None:
    """Parse a list of objects; None if it is empty.

    Raises InvalidRotation, which names the entry.
    """
    return None if value is None else Rotation(value) or None


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRotation(
            None,
            f"must be a list of objects, not {type(value).__name__}",
            'write [{"audience": "tech"}, {"audience": "business"}]',
        )
    entries = cast("list[object]", value)
    if len(entries) > MAX_ENTRIES:
        raise InvalidRotation(None, f"{len(entries):,} entries, the limit is {MAX_ENTRIES:,}")
    texts = tuple(_entry(index, entry) for index, entry in enumerate(entries))
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_BYTES:
        raise InvalidRotation(
            None,
            f"{size:,} bytes as JSON, the limit is {MAX_BYTES:,}",
            "store the data elsewhere and rotate references",
        )
    return texts


def _entry(index: int, entry: object) -> str:
    if not isinstance(entry, dict):
        raise InvalidRotation(
            index,
            f"must be an object, not {type(entry).__name__}",
            "an entry maps argument names to values",
        )
    inputs = cast("dict[str, Any]", entry)
    if fault := strict_json.fault(inputs):
        raise InvalidRotation(index, f"{fault.path or 'the entry'}: {fault.reason}")
    return strict_json.encoded(inputs)
