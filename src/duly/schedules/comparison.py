"""Compares the declared schedules of an app with what its code said when it was last applied."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from duly.core import Core
from duly.model.calendar import Calendar
from duly.model.due import due_at
from duly.model.schedule import POLICIES, ScheduleRecord, plan_of, write_trigger
from duly.model.trigger import Every, is_same_time
from duly.model.trigger import decode as decode_trigger
from duly.schedules.declared_schedules import ScheduleSpec
from duly.schedules.define import Definition, detail_of, to_json
from duly.schedules.rows import (
    KEPT_BY_OPERATOR,
    WAS_DISABLED,
    checked,
    columns_of,
    new_record,
    with_next_tick_under,
    without_next_tick,
)
from duly.schedules.set_plan import Kind
from duly.store.declarations import AttachableCalendar, ScheduleWrite, StoredDeclarations

log = logging.getLogger(__name__)

TIMES = frozenset({"trigger", "start_at", "end_at"})


class DesiredSchedule(NamedTuple):
    """A declaration, ready to be compared with the stored schedule."""

    key: str
    definition: Definition
    spec: ScheduleSpec
    blocked: bool


class PlanStep(NamedTuple):
    """What happens to one schedule; `before` and `after` are its old and new declarations."""

    kind: Kind
    key: str
    write: ScheduleWrite | None = None
    record: ScheduleRecord | None = None
    before: Mapping[str, Any] = MappingProxyType({})
    after: Mapping[str, Any] = MappingProxyType({})
    unknown_calendar: str | None = None
    """The calendar for lack of which it is blocked."""


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


class Comparison:
    """One comparison of declarations with the store; it neither reads nor writes the store."""

    def __init__(
        self,
        core: Core,
        wanted: Sequence[DesiredSchedule],
        stored: StoredDeclarations,
        calendars: Mapping[str, AttachableCalendar],
        by: str | None,
        now: int,
        *,
        again: Collection[str] = (),
    ) -> None:
        """`again`: the schedules whose calendar was missing, to which it is attached again."""
        self._core = core
        self._wanted = {w.key: w for w in wanted}
        self._stored = {record.key: record for record in stored.schedules}
        self._attachable = calendars
        self._calendars: dict[str, Calendar] = {
            found.id: found.calendar for found in calendars.values()
        }
        self._again = again
        self._by = by
        self._now = now
        self._undeclared = [
            record
            for record in stored.schedules
            if record.key not in self._wanted and is_of_code(record)
        ]

    def steps(self, only: Collection[str] | None = None) -> list[PlanStep]:
        """`only`: for these schedules, and no schedule becomes an orphan."""
        if only is not None:
            return [self._step(self._wanted[key]) for key in only if key in self._wanted]
        steps = [self._step(wanted) for wanted in self._wanted.values()]
        # The remaining ones were not renamed either.
        return steps + [self._orphan(record) for record in self._undeclared]

    def _step(self, wanted: DesiredSchedule) -> PlanStep:
        record = self._stored.get(wanted.key)
        if wanted.blocked:
            return PlanStep("blocked", wanted.key, None, record)
        name = wanted.definition.calendar
        before = {} if record is None else self._applied(record, name)
        changed = differing(before, wanted.spec)
        if record is None and (renamed := self._rename(wanted)):
            return renamed
        if name is not None and changed and name not in self._attachable:
            return PlanStep("blocked", wanted.key, None, record, unknown_calendar=name)
        self._warn_of_end(wanted)
        if record is None:
            return self._create(wanted)
        if is_of_code(record) and not changed:
            return PlanStep("unchanged", wanted.key, None, record)
        kind: Kind = "change" if is_of_code(record) else "revive"
        after = self._changed(record, wanted, changed)
        detail = {"changed": sorted(changed)}
        return PlanStep(
            kind, wanted.key, ScheduleWrite(kind, after, detail), record, before, wanted.spec
        )

    def _applied(self, record: ScheduleRecord, calendar: str | None) -> ScheduleSpec:
        """Its declaration as it was last applied, without a calendar that has gone since."""
        spec = spec_of(record)
        is_gone = calendar not in self._attachable or record.key in self._again
        if calendar is not None and record.calendar is None and is_gone:
            return {name: value for name, value in spec.items() if name != "calendar"}
        return spec

    def _warn_of_end(self, wanted: DesiredSchedule) -> None:
        found = self._attachable.get(wanted.definition.calendar or "")
        if found is not None and found.calendar.exhausted(self._now):
            log.warning(
                "calendar %r of schedule %r has no more dates", found.calendar.name, wanted.key
            )

    def _rename(self, wanted: DesiredSchedule) -> PlanStep | None:
        """The same declaration under another key is the same schedule."""
        for record in self._undeclared:
            if spec_of(record) == wanted.spec:
                self._undeclared.remove(record)
                after = msgspec.structs.replace(record, key=wanted.key, changed_by=self._by)
                write = ScheduleWrite("rename", after, {"from": record.key})
                return PlanStep("rename", wanted.key, write, record)
        return None

    def _create(self, wanted: DesiredSchedule) -> PlanStep:
        spec = wanted.spec
        at_once = spec.get("fire_at_once", False)
        record = new_record(
            self._core,
            self._resolved(wanted),
            wanted.key,
            self._now,
            app=self._core.name,
            enabled=False,
            fire_at_once=at_once,
            note=spec.get("note"),
            by=self._by,
            declared=to_json(spec),
        )
        if spec.get("enabled", True):
            record = with_next_tick_under(record, self._now, self._calendars, fire_at_once=at_once)
        return PlanStep("create", wanted.key, ScheduleWrite("create", record))

    def _orphan(self, record: ScheduleRecord) -> PlanStep:
        spec = spec_of(record) | ({} if record.enabled else {WAS_DISABLED: True})
        after = msgspec.structs.replace(
            without_next_tick(record),
            orphaned_at=self._now,
            declared=to_json(spec),
            changed_by=self._by,
        )
        return PlanStep("orphan", record.key, ScheduleWrite("orphan", after), record)

    def _changed(
        self, record: ScheduleRecord, wanted: DesiredSchedule, changed: set[str]
    ) -> ScheduleRecord:
        """The schedule, with the changes made in code and no others."""
        if _is_rezoned(spec_of(record), wanted.spec):
            record = _in_zone(record, wanted.definition.trigger.tz)
            changed = changed - {"trigger"}
        columns = self._columns(record, wanted, changed)
        enabled = record.enabled
        if record.orphaned_at is not None:
            enabled = not was_held(record)
        if "enabled" in changed:
            enabled = wanted.spec.get("enabled", True)
        columns |= {"declared": to_json(wanted.spec), "orphaned_at": None, "changed_by": self._by}
        after = msgspec.structs.replace(record, **columns)
        if not enabled:
            return without_next_tick(after)
        if after.remaining != 0 and (record.next_tick_at is None or changed & TIMES):
            return with_next_tick_under(after, self._now, self._calendars)
        return self._due_again(msgspec.structs.replace(after, enabled=True), changed)

    def _due_again(self, record: ScheduleRecord, changed: set[str]) -> ScheduleRecord:
        """The schedule with the same next tick, due when its policies now say."""
        plan = plan_of(record)
        more: dict[str, Any] = {}
        if record.next_tick_at is not None:
            more["due_at"] = due_at(plan, record.next_tick_at, self._calendars)
        if "expect" in changed:
            more |= {**checked(plan, self._now, self._calendars), "late": None}
        return msgspec.structs.replace(record, **more)

    def _columns(
        self, record: ScheduleRecord, wanted: DesiredSchedule, changed: set[str]
    ) -> dict[str, Any]:
        definition = _with_times(self._resolved(wanted), record, changed)
        fresh = columns_of(definition, record.key, self._now, False)
        columns = {name: value for name, value in fresh.items() if name in changed}
        if changed & {"trigger", "start_at"}:
            # An interval is counted from its start.
            columns |= {name: fresh[name] for name in ("trigger", "zoned", "start_at")}
        if changed & POLICIES:
            spec = {name: getattr(definition.policies, name) for name in changed & POLICIES}
            policies = msgspec.structs.replace(plan_of(record).policies, **spec)
            columns["policies"] = to_json(policies)
        if "rotation" in changed:
            columns["rotation_index"] = 0
        if "note" in changed:
            columns["note"] = wanted.spec.get("note")
        return columns

    def _resolved(self, wanted: DesiredSchedule) -> Definition:
        """The definition, with its calendar in stored form."""
        name = wanted.definition.calendar
        if name is None:
            return wanted.definition
        return msgspec.structs.replace(wanted.definition, calendar=self._attachable[name].id)


def _with_times(definition: Definition, record: ScheduleRecord, changed: set[str]) -> Definition:
    """The definition, with the stored trigger and start where code has not changed them."""
    if "start_at" not in changed:
        return msgspec.structs.replace(definition, start_at=record.start_at)
    if "trigger" in changed:
        return definition
    trigger, declared = plan_of(record).trigger, definition.trigger
    if isinstance(trigger, Every):
        is_the_same = isinstance(declared, Every) and declared.milliseconds == trigger.milliseconds
        trigger = declared if is_the_same else msgspec.structs.replace(trigger, anchor=None)
    return msgspec.structs.replace(definition, trigger=trigger)


def _is_rezoned(before: ScheduleSpec, after: ScheduleSpec) -> bool:
    """Whether code changes the zone of an interval, and nothing else that affects its ticks."""
    if before.get("trigger") in (None, after["trigger"]):
        return False
    return is_same_time(decode_trigger(before["trigger"]), decode_trigger(after["trigger"]))


def _in_zone(record: ScheduleRecord, tz: str) -> ScheduleRecord:
    """The schedule with the same interval in another zone, if it still has an interval."""
    trigger = plan_of(record).trigger
    if not isinstance(trigger, Every):
        return record
    zoned = write_trigger(msgspec.structs.replace(trigger, tz=tz))
    return msgspec.structs.replace(record, trigger=zoned)


def spec_of(record: ScheduleRecord) -> ScheduleSpec:
    """The declaration of a schedule as it was last applied."""
    return {
        name: value
        for name, value in _noted(record).items()
        if name not in (WAS_DISABLED, KEPT_BY_OPERATOR)
    }


def was_held(orphan: ScheduleRecord) -> bool:
    """Whether it was disabled before it became an orphan."""
    return bool(_noted(orphan).get(WAS_DISABLED, False))


def is_of_code(record: ScheduleRecord) -> bool:
    """Whether code declares it: it is not an orphan, and no operator has kept it."""
    return record.orphaned_at is None and KEPT_BY_OPERATOR not in _noted(record)


def _noted(record: ScheduleRecord) -> ScheduleSpec:
    return detail_of(record.declared)
