"""Converts definitions to rows, and rows to changed rows."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from duly.core import Core
from duly.errors import (
    InvalidOption,
    StaleVersion,
)
from duly.functions.checks import id_for
from duly.model.calendar import Calendar
from duly.model.due import due_at, first_coming
from duly.model.expect import Expectation, read_expect
from duly.model.schedule import (
    POLICIES,
    Plan,
    Policies,
    ScheduleRecord,
    is_zoned,
    plan_of,
    read_policies,
    read_trigger,
    write_trigger,
)
from duly.model.schedule_options import JSON, OPTIONS, Kind, Option
from duly.model.stored_values import attempt
from duly.model.trigger import (
    AnyOf,
    Cron,
    Every,
    Rule,
    Trigger,
    anchored,
    in_phase,
    is_same_time,
    spread,
)
from duly.schedules.define import Definition, detail_of, from_json, to_json

WAS_DISABLED = "held"
"""Stored with an orphan's declaration: it was disabled before it became one."""
KEPT_BY_OPERATOR = "kept"
"""Stored with the declaration of a former orphan that was enabled: an operator manages it now."""

# From a definition to a row ----------------------------------------------------------------------


def new_record(
    core: Core,
    definition: Definition,
    key: str,
    now: int,
    *,
    app: str = "",
    owner: str = "",
    enabled: bool = True,
    fire_at_once: bool = False,
    note: str | None = None,
    by: str | None = None,
    declared: str | None = None,
    id: str | None = None,
) -> ScheduleRecord:
    """The row of a new schedule; all its times are computed from one `now`."""
    fields: dict[str, Any] = dict.fromkeys(ScheduleRecord.__struct_fields__)
    fields |= {
        "id": id_for(id, now),
        "app": app,
        "owner": owner,
        "key": key,
        "rotation_index": 0,
        "enabled": enabled,
        "note": note,
        "changed_by": by,
        "declared": declared,
        "version": 1,
        "created_at": now,
        "updated_at": now,
    }
    record = ScheduleRecord(**fields | columns_of(definition, key, now, fire_at_once))
    return with_next_tick(core, record, now, fire_at_once=fire_at_once) if enabled else record


def columns_of(definition: Definition, key: str, now: int, fire_at_once: bool) -> dict[str, Any]:
    trigger = definition.trigger
    start_at = definition.start_at
    if isinstance(trigger, Every) and fire_at_once and start_at is None:
        start_at = now
    # The anchor of an interval is its first tick, so that a clock that is behind cannot compute an
    # earlier one.
    trigger = spread(anchored(trigger, now, start_at), key)
    fields = msgspec.structs.asdict(definition)
    return fields | {
        "trigger": write_trigger(trigger),
        "zoned": is_zoned(trigger),
        "policies": to_json(definition.policies),
        "start_at": start_at,
    }


def with_next_tick(
    core: Core, record: ScheduleRecord, now: int, *, fire_at_once: bool = False
) -> ScheduleRecord:
    """The schedule with its next tick, computed from now."""
    plan = plan_of(record)
    calendars: Mapping[str, Calendar] = {}
    if record.calendar is not None and plan.policies.shift is not None:
        calendars = core.ready().calendars_of([plan])
    return with_next_tick_under(record, now, calendars, fire_at_once=fire_at_once)


def with_next_tick_under(
    record: ScheduleRecord,
    now: int,
    calendars: Mapping[str, Calendar],
    *,
    fire_at_once: bool = False,
) -> ScheduleRecord:
    """The same for callers that have already read the calendars."""
    if not record.enabled or record.parked_at is not None:
        record = msgspec.structs.replace(record, override=None)
    plain = plan_of(msgspec.structs.replace(record, override=None))
    since = now - 1 if fire_at_once else now
    tick_at = None if record.remaining == 0 else first_coming(plain, since, calendars)
    override = record.override if _is_overridden(plan_of(record), tick_at, now) else None
    plan = plan_of(msgspec.structs.replace(record, override=override))
    with_next_tick = msgspec.structs.replace(
        record,
        enabled=True,
        next_tick_at=tick_at,
        due_at=None if tick_at is None else due_at(plan, tick_at, calendars),
        error=None,
        parked_at=None,
        parked_tick=None,
        # An operator's override applies as long as its tick is the next one.
        override=override,
        awake_at=now,
        last_success_at=None,
        late=None,
    )
    return msgspec.structs.replace(
        with_next_tick, **checked(plan_of(with_next_tick), now, calendars)
    )


def _is_overridden(plan: Plan, tick_at: int | None, now: int) -> bool:
    override = plan.override
    if override is None or override.tick_at != tick_at:
        return False
    return override.to is None or override.to > now


def checked(plan: Plan, now: int, calendars: Mapping[str, Calendar]) -> dict[str, int | None]:
    """When its expectation is checked next, and which tick that is about; as columns."""
    columns: dict[str, int | None] = dict.fromkeys(("expect_at", "expect_tick"))
    if plan.record.expect is None or not plan.record.enabled:
        return columns
    first = Expectation(plan, read_expect(plan.record.expect)).first_check(now, calendars)
    return {"expect_at": first.check_at, "expect_tick": first.tick}


def without_next_tick(record: ScheduleRecord) -> ScheduleRecord:
    """The schedule without a next tick."""
    return msgspec.structs.replace(
        record,
        enabled=False,
        next_tick_at=None,
        due_at=None,
        override=None,
        expect_at=None,
        expect_tick=None,
        late=None,
    )


def adopted(record: ScheduleRecord) -> ScheduleRecord:
    """The schedule, no longer an orphan: an orphan that is enabled is kept."""
    if record.orphaned_at is None:
        return record
    spec = detail_of(record.declared)
    noted = {name: value for name, value in spec.items() if name != WAS_DISABLED} | {
        KEPT_BY_OPERATOR: True
    }
    return msgspec.structs.replace(record, orphaned_at=None, declared=to_json(noted))


# Changing ----------------------------------------------------------------------------------------


NOT_GIVEN_AGAIN = ("remaining", "note")
"""Changes that do not name these options leave them as they are."""
TIMING = ("cron", "every", "at", "trigger", "tz", "start_at", "end_at", "remaining")


def changed(
    core: Core,
    record: ScheduleRecord,
    definition: Definition,
    options: Mapping[str, Any],
    by: str | None,
) -> ScheduleRecord:
    """The schedule with a new definition; only changes to its timing are computed from now."""
    now = core.clock.now()
    columns = columns_of(_in_phase(record, definition, options), record.key, now, False)
    if "remaining" not in options:
        columns["remaining"] = record.remaining
    rotation_index = 0 if "rotation" in options else record.rotation_index
    after = msgspec.structs.replace(
        record,
        **columns,
        changed_by=by,
        note=options.get("note", record.note),
        rotation_index=rotation_index,
    )
    check_order(after)
    if not options.get("enabled", record.enabled):
        return without_next_tick(after)
    after = adopted(after)
    if _counts_anew(record, after):
        with_next_tick_under = with_next_tick(core, after, now)
        if options.keys() & set(TIMING):
            check_coming(with_next_tick_under)
        return with_next_tick_under
    plan = plan_of(after)
    calendars: Mapping[str, Calendar] = {}
    if after.calendar is not None:
        calendars = core.ready().calendars_of([plan])
    if after.expect != record.expect:
        after = msgspec.structs.replace(after, **checked(plan, now, calendars), late=None)
    return due_again(after, calendars)


def _in_phase(
    record: ScheduleRecord, definition: Definition, options: Mapping[str, Any]
) -> Definition:
    """The definition; its interval keeps its phase unless its length or its start is new."""
    before, trigger = _trigger_of(record), definition.trigger
    if isinstance(trigger, AnyOf) and isinstance(before, AnyOf):
        return msgspec.structs.replace(definition, trigger=in_phase(trigger, before))
    if not isinstance(trigger, Every):
        return definition
    if definition.start_at != record.start_at:
        if not options.keys() & {"every", "trigger"}:
            trigger = msgspec.structs.replace(trigger, anchor=None)
    elif isinstance(before, Every) and _is_same_interval(before, trigger):
        trigger = msgspec.structs.replace(before, tz=trigger.tz)
    return msgspec.structs.replace(definition, trigger=trigger)


def _is_same_interval(before: Every, after: Every) -> bool:
    return before.milliseconds == after.milliseconds and after.anchor in (None, before.anchor)


def _counts_anew(before: ScheduleRecord, after: ScheduleRecord) -> bool:
    if not before.enabled or before.parked_at is not None:
        return True
    if before.next_tick_at is None and before.remaining != after.remaining:
        return True
    if (before.start_at, before.end_at) != (after.start_at, after.end_at):
        return True
    return not is_same_time(_trigger_of(before), read_trigger(after.trigger))


def due_again(record: ScheduleRecord, calendars: Mapping[str, Calendar]) -> ScheduleRecord:
    """The schedule with the same next tick, due when its policies now say."""
    if record.next_tick_at is None:
        return record
    moved = due_at(plan_of(record), record.next_tick_at, calendars)
    return msgspec.structs.replace(record, due_at=moved)


def as_given(record: ScheduleRecord, without: Collection[str] = ()) -> dict[str, Any]:
    """A stored schedule as options that would recreate it, `without` those that are replaced.

    Options that cannot be read are left out, so that setting them again repairs the schedule.
    """
    policies = policies_of(record)
    if record.calendar is None:
        # The calendar was removed, and its reference is still here.
        policies = msgspec.structs.replace(policies, shift=None)
    stored = {
        option.name: value_of(option, record, policies)
        for option in OPTIONS
        if option.name not in (*NOT_GIVEN_AGAIN, *without)
    }
    return stored if "trigger" in without else stored | {"trigger": _trigger_of(record)}


def value_of(option: Option, record: ScheduleRecord, policies: Policies) -> Any:
    """An option of a stored schedule, in the form that users give; raises if it is invalid."""
    if option.name in POLICIES:
        return option.shown(getattr(policies, option.name))
    stored = getattr(record, option.name)
    if stored is None or option.kind not in JSON:
        return stored
    return read_expect(stored) if option.kind is Kind.RECORD else from_json(stored)


def _trigger_of(record: ScheduleRecord) -> Trigger | None:
    """Its trigger; None if it cannot be read, so that it can be replaced."""
    return attempt(lambda: read_trigger(record.trigger), None)


def policies_of(record: ScheduleRecord) -> Policies:
    """Its policies; the defaults if they cannot be read."""
    return attempt(lambda: read_policies(record.policies), Policies())


def with_zone(merged: dict[str, Any], tz: str | None) -> dict[str, Any]:
    trigger = merged.get("trigger")
    if not isinstance(trigger, Cron | Every | Rule):
        raise InvalidOption("tz", "requires cron, every or a rule; this schedule has none of them")
    zoned = msgspec.structs.replace(trigger, tz="UTC" if tz is None else tz)
    return {name: value for name, value in merged.items() if name != "tz"} | {"trigger": zoned}


def check_version(record: ScheduleRecord, expected: int) -> None:
    if record.version != expected:
        raise StaleVersion(record.key, expected, record.version)


def check_times(record: ScheduleRecord) -> None:
    """Refuse a schedule that would never tick."""
    check_order(record)
    check_coming(record)


def check_order(record: ScheduleRecord) -> None:
    start, end = record.start_at, record.end_at
    if start is not None and end is not None and end < start:
        raise InvalidOption("end_at", "is before start_at", "choose a later time")


def check_coming(record: ScheduleRecord) -> None:
    if record.enabled and record.next_tick_at is None and record.remaining != 0:
        raise InvalidOption(
            "trigger",
            "it would never run: there is no tick between now and its end",
            "choose a later time",
        )


def next_of(record: ScheduleRecord) -> int:
    if record.next_tick_at is None:
        raise InvalidOption("schedule", f"{record.key!r} has no next tick", "is it enabled?")
    return record.next_tick_at
