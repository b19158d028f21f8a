"""The values that say what applying the declarations of an app changes."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

Kind = Literal[
    "create", "change", "rename", "revive", "adopt", "orphan", "remove", "blocked", "unchanged"
]

SIGNS: Mapping[str, str] = {
    "create": "+",
    "change": "~",
    "rename": ">",
    "revive": "+",
    "adopt": "+",
    "orphan": "-",
    "remove": "-",
    "blocked": "!",
    "unchanged": "=",
}


class PlanEntry(msgspec.Struct, frozen=True):
    """What applying does to one declared schedule, or to one declared calendar."""

    kind: Kind
    """create, change, rename, revive, adopt, orphan, remove, blocked or unchanged."""
    key: str
    """The key of the schedule, or the name of the calendar."""
    schedule_id: str | None = None
    """None for a calendar, and if the schedule is not stored yet."""
    fields: dict[str, tuple[Any, Any]] = {}
    """What changes: before and after. Of a calendar's dates, only those that change."""
    renamed_from: str | None = None
    reason: str | None = None
    """Why it is blocked: the declaration is not applied."""
    is_calendar: bool = False

    @property
    def name(self) -> str:
        """What it is about, in words: the key, after `calendar` if it is a calendar."""
        return f"calendar {self.key}" if self.is_calendar else self.key

    def __str__(self) -> str:
        head = f"{SIGNS[self.kind]} {self.name}: {self.kind}"
        if self.renamed_from is not None:
            head += f" from {self.renamed_from}"
        if self.reason is not None:
            head += f", {self.reason}"
        changes = (f"    {n}: {a!r} -> {b!r}" for n, (a, b) in self.fields.items())
        return "\n".join([head, *changes])


class SchedulePlan(msgspec.Struct, frozen=True):
    """The changes that applying the declared schedules and calendars makes, or has made."""

    entries: tuple[PlanEntry, ...]
    applied_before: bool = False
    """Whether this set was applied before; if so, starting the app does not apply it again."""

    @property
    def changes(self) -> tuple[PlanEntry, ...]:
        """The entries that change something."""
        return tuple(e for e in self.entries if e.kind not in ("unchanged", "blocked"))

    @property
    def blocked(self) -> tuple[PlanEntry, ...]:
        """The entries that are left out; each has a reason."""
        return tuple(e for e in self.entries if e.kind == "blocked")

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
