"""Applies an update to a schedule, and previews it before it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from msgspec.structs import replace

from duly.core import Core
from duly.functions.function import Call, Function
from duly.model.schedule import CODE_FLOOR_MS, ScheduleRecord
from duly.model.trigger import Every, Trigger
from duly.schedules.checks import read
from duly.schedules.define import Definition, ScheduleOptions, bound, define
from duly.schedules.rows import as_given, changed, with_zone
from duly.schedules.tick_jobs import call_of_schedule
from duly.schedules.verbs_read import ahead
from duly.schedules.views import Foreseen


def defined(
    core: Core,
    before: ScheduleRecord,
    call: Call[Any] | Function[..., Any] | None,
    options: ScheduleOptions,
) -> Definition:
    """The definition of a schedule with some options changed."""
    merged = as_given(before, options.keys()) | dict(options)
    retimed = bool({"cron", "every", "at", "trigger"} & options.keys())
    if retimed and "trigger" not in options:
        trigger = cast("Trigger | None", merged.pop("trigger", None))
        if trigger is not None and _takes_zone(options):
            merged.setdefault("tz", trigger.tz)
    elif "tz" in options and not retimed:
        merged = with_zone(merged, options["tz"])
    chosen = call_of_schedule(core, before) if call is None else call
    admitted = core.functions.admit(chosen if isinstance(chosen, Call) else bound(chosen))
    # Existing options were allowed when they were set.
    floor = core.settings.interval_floor_ms if retimed and not before.app else CODE_FLOOR_MS
    definition = define(
        core,
        admitted,
        merged,
        owner=before.owner,
        floor_ms=floor,
        attached=before.calendar,
        kept_alert=before.alert,
        kept_condition=before.condition,
    )
    # The function's current options are not the ones stored for this schedule.
    return replace(definition, options=before.options) if call is None else definition


def _takes_zone(options: ScheduleOptions) -> bool:
    """Whether a new cron expression or interval names no zone, so that the old one is kept."""
    every = options.get("every")
    if isinstance(every, Every):
        return every.tz == "UTC"
    return every is not None or options.get("cron") is not None


def foresee_update(
    core: Core,
    before: ScheduleRecord,
    call: Call[Any] | None,
    options: Mapping[str, Any],
    n: int,
    tz: str,
) -> list[Foreseen]:
    """A preview of the schedule's next ticks after such an update; nothing is changed."""
    definition = defined(core, before, call, cast(ScheduleOptions, options))
    after = changed(core, before, definition, options, None)
    return ahead(core, read(after), n, tz=tz)
