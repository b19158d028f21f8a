"""The values that say what applying the declarations of an app changes."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

Kind = Literal["create", "change", "rename", "revive", "orphan", "remove", "blocked", "unchanged"]

SIGNS: Mapping[str, str] = {
    "create": "+",
    "change": "~",
    "rename": ">",
    "revive": "+",
    "orphan": "-",
    "remove": "-",
    "blocked": "!",
    "unchanged": "=",
}


class PlanEntry(msgspec.Struct, frozen=True):
    """What applying does to one declared schedule."""

    kind: Kind
    """create, change, rename, revive, orphan, remove, blocked or unchanged."""
    key: str
    schedule_id: str | None = None
    """None if it is not stored yet."""
    fields: dict[str, tuple[Any, Any]] = {}
    """What changes: before and after."""
    renamed_from: str | None = None

    def __str__(self) -> str:
        head = f"{SIGNS[self.kind]} {self.key}: {self.kind}"
        if self.renamed_from is not None:
            head += f" from {self.renamed_from}"
        if self.kind == "blocked":
            head += ", its function was deleted"
        changes = (f"    {n}: {a!r} -> {b!r}" for n, (a, b) in self.fields.items())
        return "\n".join([head, *changes])


class SchedulePlan(msgspec.Struct, frozen=True):
    """The changes that applying the declared schedules makes, or has made."""

    entries: tuple[PlanEntry, ...]
    applied_before: bool = False
    """Whether this set was applied before; if so, starting the app does not apply it again."""

    @property
    def changes(self) -> tuple[PlanEntry, ...]:
        """The entries that change something."""
        return tuple(e for e in self.entries if e.kind not in ("unchanged", "blocked"))

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __iter__(self) -> Iterator[PlanEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        shown = [str(entry) for entry in self.entries if entry.kind != "unchanged"]
        unchanged = len(self.entries) - len(shown)
        return "\n".join([*shown, f"{unchanged} unchanged"])
