"""Finds schedules by key and owner, and edits them in the store."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from duly.core import Core
from duly.errors import InvalidOption, ScheduleNotFound
from duly.functions.checks import check_stored_text, check_text
from duly.functions.function import Call
from duly.ids import is_id
from duly.model.schedule import ScheduleFilter, ScheduleRecord
from duly.nearest import MAX_KNOWN
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.schedules.checks import check_by
from duly.schedules.declared_schedules import DeclaredSchedule
from duly.schedules.tick_jobs import call_of_schedule
from duly.schedules.views import Schedule, Tick

Key = str | Schedule | DeclaredSchedule
"""A schedule: its key or id, a `Schedule` that was read, or its declaration in code."""

# Defined outside the class, where `list` is a verb and not the type.
Ticks = list[Tick]


def name_of(key: Key) -> str:
    if isinstance(key, DeclaredSchedule):
        return key.key
    if isinstance(key, Schedule):
        return key.id
    check_stored_text("key", key, "the key or the id of a schedule")
    return key


class VerbsBase:
    """What the schedule verbs have in common: an app and, optionally, an owner."""

    def __init__(self, core: Core, owner: str | None = None) -> None:
        self._core = core
        self._owner = owner

    def _owner_for(self, owner: str | None) -> str:
        if owner is not None:
            check_text("owner", owner)
            if self._owner is not None and owner != self._owner:
                raise InvalidOption("owner", f"must be {self._owner!r}, as in of()")
        return owner or self._owner or ""

    def _record(self, key: Key) -> ScheduleRecord:
        """Find by id, or by key: this owner's, this app's declared one, or one without an owner."""
        name = name_of(key)
        store = self._core.ready()
        if isinstance(key, DeclaredSchedule):
            record = store.find_schedule(self._core.name, "", name)
        elif is_id(name):
            record = store.schedule(name)
        else:
            record = self._by_key(name)
        if record is None or (self._owner is not None and record.owner != self._owner):
            raise ScheduleNotFound(name, () if is_id(name) else self._known_keys())
        return record

    def _known_keys(self) -> list[str]:
        """The keys that `_by_key` finds, for suggestions."""
        of_owner = ScheduleFilter(owner=self._owner or "", limit=MAX_KNOWN)
        apps = ("", self._core.name)
        found = self._core.ready().schedules(of_owner)
        return [record.key for record in found if record.app in apps]

    def _by_key(self, key: str) -> ScheduleRecord | None:
        store = self._core.ready()
        if self._owner is not None:
            return store.find_schedule("", self._owner, key)
        declared = store.find_schedule(self._core.name, "", key)
        return declared or store.find_schedule("", "", key)

    def _edit(
        self,
        schedule_id: str,
        change: Callable[[ScheduleRecord], ScheduleRecord | None],
        action: str,
        by: str | None,
        detail: Mapping[str, Any] | None,
    ) -> Schedule:
        refuse_inside_mutation(f"schedules.{action}")
        check_by(by)
        now = self._core.now()
        record = self._core.ready().edit_schedule(schedule_id, change, action, by, detail, now)
        if record is None:
            raise ScheduleNotFound(schedule_id)
        self._core.wake_ticker()
        return Schedule(self._core, record)

    def _call_of(self, record: ScheduleRecord) -> Call[Any]:
        return call_of_schedule(self._core, record)
