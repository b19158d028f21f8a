"""The verbs of `app.schedules`."""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Unpack

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.errors import (
    InvalidCondition,
    InvalidOption,
    ScheduleExists,
    ScheduleNotFound,
    StaleVersion,
)
from duly.functions import (
    Call,
    Function,
    Instant,
    at,
    check_text,
)
from duly.ids import is_id
from duly.inside import refuse_inside_mutation
from duly.model.calendar import Calendar
from duly.model.condition import Explanation
from duly.model.condition import parse as parse_condition
from duly.model.decide import (
    Decided,
    Decision,
    Dispatch,
    Facts,
    Skip,
    context_of,
    decide,
    due_at,
    encode_detail,
    first_tick,
    standing_of,
    tick_row,
)
from duly.model.forecast import Forecast, forecast
from duly.model.schedule import (
    CODE_FLOOR_MS,
    Malformed,
    Outcome,
    Override,
    Plan,
    Reason,
    ScheduleRecord,
    TickKind,
    TickRecord,
)
from duly.model.trigger import Cron
from duly.runtime.reports import current_job
from duly.runtime.signals import ask_for_signals
from duly.schedules.ahead import (
    decided_until,
    fill,
    foresee,
    within,
    zone_info,
    zone_of,
)
from duly.schedules.checks import (
    check_by,
    check_key,
    check_limit,
    check_size,
    check_word,
    in_time,
    read,
)
from duly.schedules.declared import Declarations, DeclaredSchedule, SchedulePlan
from duly.schedules.define import (
    ScheduleOptions,
    bound,
    check_note,
    define,
    find_calendar,
    from_json,
    instant,
    to_json,
)
from duly.schedules.health import Health, health_of, understood
from duly.schedules.rows import (
    as_given,
    asleep,
    awake,
    changed,
    check_times,
    check_version,
    new_record,
    next_of,
    with_zone,
)
from duly.schedules.views import Foreseen, Schedule, Tick
from duly.store.base import Store
from duly.store.schedules import Choose, Run, ScheduleFilter, TickFilter

MAX_PREVIEW = 10_000
MAX_ANCESTORS = 100
UPDATES = 10
MAX_FORECAST_DAYS = 92
PAGE = 1_000


Key = str | Schedule | DeclaredSchedule
"""A schedule: by its key or id, as it was read, or as code declares it."""


# Inside the class, `list` is a verb.
Foresight = list[Foreseen]
Ticks = list[Tick]
Healths = list[Health]


class Schedules:
    """The schedules of an app: made, changed, previewed and run as data.

    A schedule is named by its key, which is unique for its owner, or by its id. `of(owner)` gives
    the same verbs for one owner, who sees and changes nothing of others.
    """

    def __init__(self, core: Core, owner: str | None = None) -> None:
        self._core = core
        self._owner = owner

    def of(self, owner: str) -> Schedules:
        """The schedules of one owner."""
        check_text("owner", owner)
        return Schedules(self._core, owner)

    # Making and changing

    def create(
        self,
        key: str,
        call: Call[Any] | Function[..., Any],
        *,
        owner: str | None = None,
        by: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Make a schedule that calls a function, with the arguments that `bind` gave it."""
        refuse_inside_mutation("schedules.create")
        check_key(key)
        check_by(by)
        chosen = self._owner_for(owner)
        admitted = self._core.admit(call if isinstance(call, Call) else bound(call))
        floor = self._core.interval_floor_ms
        definition = define(self._core, admitted, options, owner=chosen, floor_ms=floor)
        record = new_record(
            self._core,
            definition,
            key,
            self._core.now(),
            owner=chosen,
            enabled=options.get("enabled", True),
            fire_at_once=options.get("fire_at_once", False),
            note=options.get("note"),
            by=by,
        )
        check_times(record)
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
        """Change what is given, and nothing else; None takes an option away.

        A changed trigger, zone, start or end counts from now. `version`: refuse with StaleVersion
        if the schedule has changed since it was read.
        """
        refuse_inside_mutation("schedules.update")
        check_by(by)
        # Without a version, whoever was faster is no reason not to go on from what is there then.
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
                "fire_at_once", "is about a schedule that is made", "run it now, or give start_at"
            )
        before = self._record(key)
        if version is not None:
            check_version(before, version)
        merged = as_given(before, options.keys()) | dict(options)
        retimed = bool({"cron", "every", "at", "trigger"} & options.keys())
        if retimed and "trigger" not in options:
            trigger = merged.pop("trigger", None)
            if "cron" in options and isinstance(trigger, Cron):
                merged.setdefault("tz", trigger.tz)
        elif "tz" in options and not retimed:
            merged = with_zone(merged, options["tz"])
        chosen = self._call_of(before) if call is None else call
        admitted = self._core.admit(chosen if isinstance(chosen, Call) else bound(chosen))
        # What stands already was allowed when it was written.
        floor = self._core.interval_floor_ms if retimed and not before.app else CODE_FLOOR_MS
        definition = define(
            self._core,
            admitted,
            merged,
            owner=before.owner,
            floor_ms=floor,
            attached=before.calendar,
            told=before.alert,
        )

        def change(record: ScheduleRecord) -> ScheduleRecord | None:
            check_version(record, before.version)
            return changed(self._core, record, definition, options, by)

        what = sorted([*options, *([] if call is None else ["call"])])
        return self._edit(before.id, change, "update", by, {"changed": what})

    def enable(self, key: Key, *, note: str | None = None, by: str | None = None) -> Schedule:
        """Let it tick again, from now: nothing that was due meanwhile is caught up."""
        refuse_inside_mutation("schedules.enable")
        check_note(note)

        def change(record: ScheduleRecord) -> ScheduleRecord | None:
            if record.enabled and record.parked_at is None and record.orphaned_at is None:
                return None
            read(record)
            fresh = msgspec.structs.replace(record, note=note, changed_by=by, orphaned_at=None)
            return awake(self._core, fresh, self._core.clock.now())

        return self._edit(self._record(key).id, change, "enable", by, {"note": note})

    def disable(self, key: Key, *, note: str | None = None, by: str | None = None) -> Schedule:
        """Stop it at once; what is due now does not fire. Jobs that exist go on."""
        refuse_inside_mutation("schedules.disable")
        check_note(note)

        def change(record: ScheduleRecord) -> ScheduleRecord | None:
            return msgspec.structs.replace(asleep(record), note=note, changed_by=by)

        return self._edit(self._record(key).id, change, "disable", by, {"note": note})

    def remove(self, key: Key, *, by: str | None = None) -> None:
        """Remove it; its unfinished jobs and its ledger stay."""
        refuse_inside_mutation("schedules.remove")
        check_by(by)
        record = self._record(key)
        self._core.ready().remove_schedule(record.id, by, self._core.now())

    # Reading

    def get(self, key: Key) -> Schedule:
        """The schedule as it is now; ScheduleNotFound if there is none."""
        return Schedule(self._core, self._record(key))

    def list(
        self,
        *,
        function: Function[..., Any] | str | None = None,
        enabled: bool | None = None,
        parked: bool | None = None,
        calendar: str | None = None,
        owner: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Schedule]:
        """Schedules, oldest first; `after` is the id of the last one of the page before."""
        name = function.name if isinstance(function, Function) else function
        chosen = self._owner if owner is None else self._owner_for(owner)
        check_limit(limit)
        if after is not None and not is_id(after):
            raise InvalidOption("after", f"must be the id of a schedule, not {after!r}")
        if calendar is not None:
            calendar, _ = find_calendar(self._core, calendar, chosen or "")
        wanted = ScheduleFilter(
            owner=chosen,
            function=name,
            enabled=enabled,
            parked=parked,
            calendar=calendar,
            after_id=after,
            limit=limit,
        )
        return [Schedule(self._core, r) for r in self._core.ready().schedules(wanted)]

    def ticks(
        self,
        key: Key,
        *,
        after: Instant | None = None,
        before: Instant | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        limit: int = 100,
    ) -> Ticks:
        """What became of its ticks, newest first, of those in [after, before)."""
        now = self._core.clock.now()
        check_word("outcome", outcome, Outcome)
        check_word("reason", reason, Reason)
        check_limit(limit)
        wanted = TickFilter(
            after=None if after is None else instant("after", after, now),
            before=None if before is None else instant("before", before, now),
            outcome=outcome,
            reason=reason,
            limit=limit,
        )
        found = self._core.ready().ticks(self._record(key).id, wanted)
        return [Tick(self._core, record) for record in found]

    def preview(
        self,
        key: Key,
        n: int = 10,
        *,
        after: Instant | None = None,
        tz: str | None = None,
        simulate: bool = False,
        result: Mapping[str, Any] | None = None,
    ) -> Foresight:
        """What the next `n` ticks would come to, as things stand now; nothing is changed.

        A schedule that is disabled or parked shows what would come if it were enabled now. `after`:
        only those later than that. `tz`: the zone of whoever looks. With `simulate` each dispatch
        counts as one that has succeeded with `result` when the following ticks are judged. It looks
        ahead for a few seconds at most, and shows what it has found by then; an `after` that it has
        not reached is refused.
        """
        if type(n) is not int or not 1 <= n <= MAX_PREVIEW:
            raise InvalidOption("n", f"must be 1 to {MAX_PREVIEW:,}, not {n!r}")
        plan = read(self._record(key))
        now = self._core.now()
        late = None if after is None else instant("after", after, now)
        viewer = zone_info(zone_of(plan) if tz is None else tz)
        signals = ask_for_signals(self._core, [plan.record])
        facts = self._core.ready().facts([plan], now, signals)
        since, standing = decided_until(plan, facts, now)
        walk = foresee(
            plan,
            facts,
            since,
            sys.maxsize,
            now,
            simulate=simulate,
            result=result,
            standing=standing,
        )
        return [self._foreseen(plan, tick, viewer) for tick in in_time(walk, n, late)]

    def forecast(self, *, days: int = 7, start: Instant | None = None) -> Forecast:
        """Dispatches per hour for the next days, and the busiest minutes.

        Triggers and calendars are asked; conditions, budgets and overlapping are not.
        """
        if type(days) is not int or not 1 <= days <= MAX_FORECAST_DAYS:
            raise InvalidOption("days", f"must be 1 to {MAX_FORECAST_DAYS}, not {days!r}")
        now = self._core.now()
        since = now if start is None else at(start, now)
        plans = [plan for page in self._pages(enabled=True) for plan in understood(page)]
        with_calendar = [plan for plan in plans if plan.record.calendar is not None]
        calendars = self._core.ready().calendars_of(with_calendar)
        return forecast(plans, calendars, since, 24 * days, now)

    def explain(self, key: Key, condition: Mapping[str, Any] | None = None) -> Explanation:
        """What its condition comes to now, or what another one would: each operator by itself."""
        plan = read(self._record(key))
        if condition is not None:
            plan = msgspec.structs.replace(plan, condition=parse_condition(condition))
        if plan.condition is None:
            return Explanation(())
        if isinstance(plan.condition, Malformed):
            raise InvalidCondition(None, plan.condition.error)
        signals = ask_for_signals(self._core, [plan.record])
        facts = self._core.ready().facts([plan], self._core.now(), signals)
        return plan.condition.explain(context_of(plan, facts))

    def health(self, key: Key | None = None) -> Healths:
        """How schedules do: ok, missed, paused or never ran; and since when, and why.

        Missed are those that are overdue, whose last tick was missed, that are parked, or that
        have broken what they promise.
        """
        store = self._core.ready()
        now = self._core.now()
        pages = self._pages() if key is None else [[self._record(key)]]
        paused = store.statuses()
        killed = store.kill_switch() is not None
        return [
            health_of(record, paused.get(record.function), killed, _newest(store, record), now)
            for page in pages
            for record in page
        ]

    # Running

    def run(
        self,
        key: Key,
        *,
        inputs: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> Tick:
        """Run it now, beside its ticks, with other inputs if they are given.

        Calendar and condition are not asked; the kill switch, the function's status, the budget,
        cycles and overlapping are. What became of it stands in the ledger.
        """
        refuse_inside_mutation("schedules.run")
        check_by(by)
        record = self._record(key)
        read(record)
        now = self._core.now()
        args = None if inputs is None else self._fit(record, inputs)
        parent, ancestors = self._lineage()

        def choose(plan: Plan, facts: Facts, instant: int) -> Run:
            standing = standing_of(plan)
            decision = decide(plan, instant, facts, standing, TickKind.MANUAL)
            if isinstance(decision, Dispatch):
                rotates = args is None
                standing = standing.after_dispatch(instant, now, rotates=rotates)
                decision = decision if args is None else Dispatch(args)
            detail = {} if inputs is None else {"inputs": sorted(inputs)}
            ticks = [Decided(instant, instant, decision)]
            return Run(TickKind.MANUAL, ticks, standing, None, detail)

        ticks = self._core.ready().run_schedule(
            record.id,
            choose,
            self._core.jobs_of_tick,
            now,
            by=by,
            parent_id=parent,
            ancestors=ancestors,
        )
        if not ticks:
            raise ScheduleNotFound(name_of(key))
        self._core.wake()
        return Tick(self._core, ticks[0])

    def backfill(
        self,
        key: Key,
        start: Instant,
        end: Instant,
        *,
        dry_run: bool = False,
        by: str | None = None,
    ) -> Ticks:
        """Run the ticks of [start, end) that have no row in the ledger yet, oldest first.

        They run one after the other unless overlapping is allowed. The calendar is asked; what is
        about the present is not: budget, overlapping, condition. At most 10,000 ticks.
        """
        refuse_inside_mutation("schedules.backfill")
        check_by(by)
        record = self._record(key)
        read(record)
        now = self._core.now()
        first, last = instant("start", start, now), instant("end", end, now)
        if first >= last:
            raise InvalidOption("end", "must be later than the start")
        if last > now:
            raise InvalidOption("end", "lies in the future", "those ticks will come by themselves")

        def choose(plan: Plan, facts: Facts, _: int) -> Run:
            since, until = within(plan, first, last)
            check_size(plan.trigger.count_between(since, until))
            return fill(plan, facts, since, until, now)

        if dry_run:
            return self._would_fill(record, (first, last), choose, now)
        parent, ancestors = self._lineage()
        ticks = self._core.ready().run_schedule(
            record.id,
            choose,
            self._core.jobs_of_tick,
            now,
            by=by,
            parent_id=parent,
            ancestors=ancestors,
            slots=(first, last),
        )
        if ticks is None:
            raise ScheduleNotFound(name_of(key))
        self._core.wake()
        return [Tick(self._core, tick) for tick in ticks]

    def skip_next(self, key: Key, *, by: str | None = None) -> Schedule:
        """Skip the next tick; the ledger will say that an operator did."""

        def change(record: ScheduleRecord) -> ScheduleRecord:
            tick_at = next_of(record)
            override = Override(tick_at, by)
            plan = read(msgspec.structs.replace(record, override=to_json(override)))
            moved = due_at(plan, tick_at, self._calendars(plan))
            return msgspec.structs.replace(record, override=to_json(override), due_at=moved)

        return self._edit(self._record(key).id, change, "skip_next", by, None)

    def move_next(self, key: Key, to: Instant, *, by: str | None = None) -> Schedule:
        """Move the next tick, and only that one, to another time before the following tick."""
        check_by(by)
        now = self._core.now()
        moved = instant("to", to, now)
        if moved < now:
            raise InvalidOption("to", "lies in the past", "run the schedule now instead")

        def change(record: ScheduleRecord) -> ScheduleRecord:
            tick_at = next_of(record)
            following = first_tick(read(record), tick_at)
            if following is not None and moved >= following:
                raise InvalidOption(
                    "to",
                    f"must be before the following tick, {from_ms(following)}",
                    "skip this one, or change the trigger",
                )
            override = Override(tick_at, by, moved)
            return msgspec.structs.replace(record, override=to_json(override), due_at=moved)

        return self._edit(self._record(key).id, change, "move_next", by, {"to": moved})

    # Calendar, condition, rotation

    def attach(self, key: Key, calendar: str, *, by: str | None = None) -> Schedule:
        """Let a calendar decide on which dates it ticks."""
        return self.update(key, calendar=calendar, by=by)

    def detach(self, key: Key, *, by: str | None = None) -> Schedule:
        """Let it tick on every date again."""
        return self.update(key, calendar=None, shift=None, by=by)

    def set_rotation(
        self, key: Key, rotation: Sequence[Mapping[str, Any]], *, by: str | None = None
    ) -> Schedule:
        """Let successive dispatches take these inputs in turn, from the first."""
        return self.update(key, rotation=rotation, by=by)

    def clear_rotation(self, key: Key, *, by: str | None = None) -> Schedule:
        """Let every dispatch take the bound arguments again."""
        return self.update(key, rotation=None, by=by)

    # What code declares

    def plan(self) -> SchedulePlan:
        """What `apply` would change now; nothing is changed."""
        return self._declarations().plan()

    def apply(self, *, by: str | None = None, dry_run: bool = False) -> SchedulePlan:
        """Make the store say what this code declares, also if that was replaced since.

        All of it or, if a function or a calendar is unknown, nothing; what that has changed.
        """
        declared = self._declarations()
        return declared.plan() if dry_run else declared.apply(by)

    def prune(self, *, by: str | None = None, dry_run: bool = False) -> SchedulePlan:
        """Remove those that code declares no longer; with `dry_run`, only say which they are."""
        return self._declarations().prune(by, dry_run=dry_run)

    # Inside

    def _declarations(self) -> Declarations:
        if self._owner is not None:
            raise InvalidOption("owner", "what code declares belongs to the app", "ask the app")
        return Declarations(self._core)

    def _pages(self, enabled: bool | None = None) -> Iterator[Sequence[ScheduleRecord]]:
        """All schedules, a page at a time."""
        after: str | None = None
        while True:
            wanted = ScheduleFilter(owner=self._owner, enabled=enabled, after_id=after, limit=PAGE)
            page = self._core.ready().schedules(wanted)
            if page:
                yield page
            if len(page) < PAGE:
                return
            after = page[-1].id

    def _owner_for(self, owner: str | None) -> str:
        if owner is not None:
            check_text("owner", owner)
            if self._owner is not None and owner != self._owner:
                raise InvalidOption("owner", "these are the schedules of another owner")
        return owner or self._owner or ""

    def _record(self, key: Key) -> ScheduleRecord:
        """By id, or by key: of this owner, or declared by this app, or without an owner."""
        name = name_of(key)
        store = self._core.ready()
        if isinstance(key, DeclaredSchedule):
            record = store.find_schedule(self._core.name, "", name)
        elif is_id(name):
            record = store.schedule(name)
        else:
            record = self._by_key(name)
        if record is None or (self._owner is not None and record.owner != self._owner):
            raise ScheduleNotFound(name)
        return record

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
        return self._core.call_of_schedule(record)

    def _fit(self, record: ScheduleRecord, inputs: Mapping[str, Any]) -> str:
        call = self._call_of(record)
        given: object = inputs
        if not isinstance(given, Mapping) or not all(type(name) is str for name in inputs):
            raise InvalidOption("inputs", "give arguments by their names")
        return call.function.signature.encode((), dict(inputs))

    def _calendars(self, plan: Plan) -> Mapping[str, Calendar]:
        if plan.record.calendar is None:
            return {}
        return self._core.ready().facts([plan], self._core.clock.now()).calendars

    def _lineage(self) -> tuple[str | None, frozenset[str]]:
        """The job that asks, if a job does, and the schedules that it descends from."""
        parent = job_id = current_job()
        schedules: set[str] = set()
        store = self._core.ready()
        for _ in range(MAX_ANCESTORS):
            record = None if job_id is None else store.get(job_id)
            if record is None:
                break
            if record.trigger == "schedule" and record.actor is not None:
                schedules.add(record.actor)
            job_id = record.parent_id
        return parent, frozenset(schedules)

    def _foreseen(self, plan: Plan, tick: Decided, viewer: tzinfo) -> Foreseen:
        utc = from_ms(tick.tick_at)
        return Foreseen(
            tick_ms=tick.tick_at,
            utc=utc,
            local=utc.astimezone(zone_info(zone_of(plan))),
            viewer=utc.astimezone(viewer),
            due=from_ms(tick.due_at),
            dst_adjusted=tick.dst_adjusted,
            **self._decided(plan, tick.decision),
        )

    def _decided(self, plan: Plan, decision: Decision) -> dict[str, Any]:
        if isinstance(decision, Skip):
            # As the ledger will have it.
            detail = from_json(encode_detail(decision.detail))
            return {"decision": "skip", "reason": str(decision.reason), "detail": detail}
        return {
            "decision": "dispatch",
            "inputs": self._core.shown_arguments(plan.record.function, decision.args),
            "rotation_index": decision.rotation_index,
        }

    def _would_fill(
        self,
        record: ScheduleRecord,
        slots: tuple[int, int],
        choose: Choose,
        now: int,
    ) -> Ticks:
        plan = read(record)
        would = choose(plan, self._core.ready().facts([plan], now, slots=slots), now)
        rows = [tick_row(plan.id, TickKind.SLOT, tick, None, now) for tick in would.ticks]
        return [Tick(self._core, row) for row in rows]


def _newest(store: Store, record: ScheduleRecord) -> TickRecord | None:
    rows = store.ticks(record.id, TickFilter(limit=1))
    return rows[0] if rows else None


def name_of(key: Key) -> str:
    if isinstance(key, DeclaredSchedule):
        return key.key
    if isinstance(key, Schedule):
        return key.id
    if not isinstance(key, str):
        raise InvalidOption("key", f"give the key or the id of a schedule, not {key!r}")
    return key
