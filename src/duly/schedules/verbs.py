"""`app.schedules`: the verbs that create and change schedules."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from duly.core import Core
from duly.errors import InvalidOption, ScheduleExists, StaleVersion
from duly.functions.checks import check_flag, check_text
from duly.functions.function import Call, Function
from duly.model.schedule import ScheduleRecord
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.schedules.checks import check_by, check_key, read
from duly.schedules.declarations import Declarations
from duly.schedules.declared_calendars import DeclaredCalendar
from duly.schedules.define import ScheduleOptions, bound, check_note, define
from duly.schedules.rows import (
    adopted,
    changed,
    check_times,
    check_version,
    new_record,
    with_next_tick,
    without_next_tick,
)
from duly.schedules.set_plan import SchedulePlan
from duly.schedules.update import defined
from duly.schedules.verbs_base import Key
from duly.schedules.verbs_read import ReadVerbs
from duly.schedules.verbs_tick import TickVerbs
from duly.schedules.views import Schedule

UPDATES = 10


def drafted(
    core: Core,
    key: str,
    call: Call[Any],
    options: Mapping[str, Any],
    owner: str,
    *,
    by: str | None = None,
    id: str | None = None,
) -> ScheduleRecord:
    """The row that a schedule would have, fully checked; nothing is stored."""
    check_key(key)
    definition = define(
        core,
        core.functions.admit(call),
        options,
        owner=owner,
        floor_ms=core.settings.interval_floor_ms,
    )
    record = new_record(
        core,
        definition,
        key,
        core.now(),
        owner=owner,
        enabled=options.get("enabled", True),
        fire_at_once=options.get("fire_at_once", False),
        note=options.get("note"),
        by=by,
        id=id,
    )
    check_times(record)
    return record


class Schedules(ReadVerbs, TickVerbs):
    """Create, change, preview and run the schedules of an app.

    A schedule is identified by its key, which is unique for its owner, or by its id. `of(owner)`
    returns the same methods, limited to one owner's schedules.
    """

    def of(self, owner: str) -> Schedules:
        """Return the schedules of one owner."""
        check_text("owner", owner)
        return Schedules(self._core, owner)

    # Creating and changing

    def create(
        self,
        key: str,
        call: Call[Any] | Function[..., Any],
        *,
        owner: str | None = None,
        by: str | None = None,
        id: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Create a schedule that calls a function, with arguments bound by `bind`.

        `id`: the id of the new schedule.
        """
        refuse_inside_mutation("schedules.create")
        check_by(by)
        call = call if isinstance(call, Call) else bound(call)
        record = drafted(self._core, key, call, options, self._owner_for(owner), by=by, id=id)
        if not self._core.ready().add_schedule(record, by, record.created_at):
            raise ScheduleExists(key)
        self._core.wake_ticker()
        return Schedule(self._core, record)

    def update(
        self,
        key: Key,
        call: Call[Any] | Function[..., Any] | None = None,
        *,
        by: str | None = None,
        version: int | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Change the given options and no others; None removes an option.

        If the trigger, zone, start or end changes, the next tick is computed from now. `version`:
        raise StaleVersion if the schedule has changed since it was read.
        """
        refuse_inside_mutation("schedules.update")
        check_by(by)
        # Without a version, a concurrent change is not an error: continue from the new state.
        for _ in range(UPDATES if version is None else 0):
            with contextlib.suppress(StaleVersion):
                return self._update(key, call, by, None, options)
        return self._update(key, call, by, version, options)

    def _update(
        self,
        key: Key,
        call: Call[Any] | Function[..., Any] | None,
        by: str | None,
        version: int | None,
        options: ScheduleOptions,
    ) -> Schedule:
        if options.get("fire_at_once"):
            raise InvalidOption(
                "fire_at_once", "only applies to a new schedule", "run it now, or give start_at"
            )
        before = self._record(key)
        if version is not None:
            check_version(before, version)
        definition = defined(self._core, before, call, options)

        def change(record: ScheduleRecord) -> ScheduleRecord | None:
            check_version(record, before.version)
            return changed(self._core, record, definition, options, by)

        what = sorted([*options, *([] if call is None else ["call"])])
        return self._edit(before.id, change, "update", by, {"changed": what})

    def enable(self, key: Key, *, note: str | None = None, by: str | None = None) -> Schedule:
        """Enable the schedule from now on; ticks that were due while it was disabled do not run."""
        refuse_inside_mutation("schedules.enable")
        check_note(note)

        def change(record: ScheduleRecord) -> ScheduleRecord | None:
            if record.enabled and record.parked_at is None and record.orphaned_at is None:
                return None
            read(record)
            fresh = msgspec.structs.replace(record, note=note, changed_by=by)
            return with_next_tick(self._core, adopted(fresh), self._core.clock.now())

        return self._edit(self._record(key).id, change, "enable", by, {"note": note})

    def disable(self, key: Key, *, note: str | None = None, by: str | None = None) -> Schedule:
        """Disable the schedule immediately; a tick that is due now does not run. Jobs continue."""
        refuse_inside_mutation("schedules.disable")
        check_note(note)

        def change(record: ScheduleRecord) -> ScheduleRecord | None:
            return msgspec.structs.replace(without_next_tick(record), note=note, changed_by=by)

        return self._edit(self._record(key).id, change, "disable", by, {"note": note})

    def remove(self, key: Key, *, by: str | None = None) -> None:
        """Remove the schedule; its unfinished jobs and its ledger are kept."""
        refuse_inside_mutation("schedules.remove")
        check_by(by)
        record = self._record(key)
        self._core.ready().remove_schedule(record.id, by, self._core.now())

    # Calendar, condition, rotation

    def attach(
        self, key: Key, calendar: str | DeclaredCalendar, *, by: str | None = None
    ) -> Schedule:
        """Attach a calendar, which decides on which dates the schedule runs."""
        return self.update(key, calendar=calendar, by=by)

    def detach(self, key: Key, *, by: str | None = None) -> Schedule:
        """Detach the calendar, so that the schedule runs on every date."""
        return self.update(key, calendar=None, shift=None, by=by)

    def set_rotation(
        self, key: Key, rotation: Sequence[Mapping[str, Any]], *, by: str | None = None
    ) -> Schedule:
        """Use these inputs in turn for successive dispatches, from the first."""
        return self.update(key, rotation=rotation, by=by)

    def clear_rotation(self, key: Key, *, by: str | None = None) -> Schedule:
        """Use the bound arguments for every dispatch again."""
        return self.update(key, rotation=None, by=by)

    # Declarations

    def plan(self) -> SchedulePlan:
        """Return what `apply` would change now; nothing is changed."""
        return self._declarations().plan()

    def apply(self, *, by: str | None = None, dry_run: bool = False) -> SchedulePlan:
        """Apply what this code declares, even if another set was applied since.

        A schedule whose calendar does not exist is left out, and applied by a ticker once it does;
        if a function is unknown, nothing is applied. Returns the changes.
        """
        check_flag("dry_run", dry_run)
        declared = self._declarations()
        return declared.plan() if dry_run else declared.apply(by)

    def prune(self, *, by: str | None = None, dry_run: bool = False) -> SchedulePlan:
        """Remove schedules that code no longer declares; with `dry_run`, only report them."""
        check_flag("dry_run", dry_run)
        return self._declarations().prune(by, dry_run=dry_run)

    # Inside

    def _declarations(self) -> Declarations:
        if self._owner is not None:
            raise InvalidOption(
                "owner", "declared schedules belong to the app", "use app.schedules"
            )
        return Declarations(self._core)
