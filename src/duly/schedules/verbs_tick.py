"""The verbs of `app.schedules` for single ticks: run, backfill, skip, move."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from duly.clock import from_ms
from duly.errors import InvalidOption, ScheduleNotFound
from duly.functions.checks import check_flag, check_id
from duly.functions.times import Instant
from duly.model.calendar import Calendar
from duly.model.decide import Decided, Facts, Purpose, tick_row, walk, with_inputs
from duly.model.due import due_at, first_tick, within
from duly.model.measure import TICKS
from duly.model.schedule import Override, Plan, Reason, ScheduleRecord, TickKind
from duly.runtime.reports import current_job
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.schedules.checks import check_by, check_ledger, check_size, read
from duly.schedules.define import instant, to_json
from duly.schedules.rows import next_of
from duly.schedules.tick_jobs import jobs_of_tick
from duly.schedules.verbs_base import Key, Ticks, VerbsBase, name_of
from duly.schedules.views import Schedule, Tick
from duly.store.schedules.runs import Choose, RunRequest

MAX_ANCESTORS = 100


class TickVerbs(VerbsBase):
    """Run, backfill, skip and move single ticks of a schedule."""

    def run(
        self,
        key: Key,
        *,
        inputs: Mapping[str, Any] | None = None,
        by: str | None = None,
        id: str | None = None,
    ) -> Tick:
        """Run the schedule now, in addition to its ticks, optionally with other inputs.

        Calendar and condition are ignored; the kill switch, the function's status, the budget,
        cycles and overlap are checked. The outcome is recorded in the ledger. `id`: the id of the
        run; a run with the same id is not repeated.
        """
        refuse_inside_mutation("schedules.run")
        check_by(by)
        check_id(id)
        record = self._record(key)
        read(record)
        now = self._core.now()
        args = None if inputs is None else self._fit(record, inputs)
        names = None if inputs is None else sorted(inputs)
        request = RunRequest(by, *self._lineage(), id, names)

        def choose(plan: Plan, facts: Facts, instant: int) -> Iterator[Decided]:
            decided = walk(plan, facts, [instant], now, Purpose.RUN)
            return decided if args is None else (with_inputs(t, args, plan) for t in decided)

        make_jobs = partial(jobs_of_tick, self._core)
        ticks = self._core.ready().run_schedule(record.id, choose, make_jobs, now, request)
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
        without_ledger: bool = False,
        by: str | None = None,
    ) -> Ticks:
        """Run the ticks of [start, end) that have no row in the ledger yet, oldest first.

        They run one after the other unless overlap is allowed. The calendar is applied; budget,
        overlap and condition, which are about the present, are not. At most 10,000 ticks. A range
        from which retention has removed rows is refused, unless `without_ledger` accepts that its
        ticks may run a second time.
        """
        refuse_inside_mutation("schedules.backfill")
        check_by(by)
        check_flag("dry_run", dry_run)
        check_flag("without_ledger", without_ledger)
        record = self._record(key)
        read(record)
        now = self._core.now()
        first, last = instant("start", start, now), instant("end", end, now)
        if first >= last:
            raise InvalidOption("end", "must be later than the start")
        if last > now:
            raise InvalidOption("end", "is in the future", "ticks until then run by themselves")

        def choose(plan: Plan, facts: Facts, _: int) -> Iterator[Decided]:
            since, until = within(plan, first, last)
            check_size(plan.trigger.count_between(since, until))
            if not without_ledger:
                check_ledger(plan, facts, since, until)
            ticks = plan.trigger.between(since, until)
            return walk(plan, facts, ticks, now, Purpose.BACKFILL)

        if dry_run:
            return self._would_fill(record, (first, last), choose, now)
        request, make_jobs = RunRequest(by, *self._lineage()), partial(jobs_of_tick, self._core)
        ticks = self._core.ready().run_schedule(
            record.id, choose, make_jobs, now, request, slots=(first, last)
        )
        if ticks is None:
            raise ScheduleNotFound(name_of(key))
        taken = sum(tick.reason == Reason.SLOT_EXISTS for tick in ticks)
        if taken:
            self._core.counts.add(TICKS, "skipped", str(Reason.SLOT_EXISTS), value=taken)
        self._core.wake()
        return [Tick(self._core, tick) for tick in ticks]

    def skip_next(self, key: Key, *, by: str | None = None) -> Schedule:
        """Skip the next tick; the ledger will record that an operator skipped it."""

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
            raise InvalidOption("to", "is in the past", "run the schedule now instead")

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

    # Inside

    def _fit(self, record: ScheduleRecord, inputs: Mapping[str, Any]) -> str:
        call = self._call_of(record)
        given: object = inputs
        if not isinstance(given, Mapping) or not all(type(name) is str for name in inputs):
            raise InvalidOption("inputs", "must name the arguments")
        return call.function.signature.encode((), dict(inputs))

    def _calendars(self, plan: Plan) -> Mapping[str, Calendar]:
        if plan.record.calendar is None:
            return {}
        return self._core.ready().calendars_of([plan])

    def _lineage(self) -> tuple[str | None, frozenset[str]]:
        """The job that makes the request, if any, and the schedules that it descends from."""
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

    def _would_fill(
        self,
        record: ScheduleRecord,
        slots: tuple[int, int],
        choose: Choose,
        now: int,
    ) -> Ticks:
        plan = read(record)
        would = choose(plan, self._core.ready().facts([plan], now, slots=slots), now)
        rows = [tick_row(plan, TickKind.SLOT, tick, None, now) for tick in would]
        return [Tick(self._core, row) for row in rows]
