"""Mutants without a guard of the tick; the simulator must notice each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import msgspec

from duly.app.program import AppProgram
from duly.model import decide, due, local_times
from duly.model.cron import Expression
from duly.model.decide import Decided, Dispatch, Facts, Purpose, Standing, Verdict
from duly.model.due import Due, Missed
from duly.model.job import NewJob
from duly.model.schedule import ONE_BY_ONE, Plan, ScheduleRecord, TickRecord, plan_of
from duly.model.trigger import Cron, Every
from duly.schedules import rows, verbs, verbs_tick
from duly.store.limits import QUEUE_RULES
from duly.store.schedules import facts, ledger, runs
from duly.store.schedules import tick as ticking
from duly.store.schedules.data import DELETE_SCHEDULE
from duly.store.schedules.due import LOCK_DUE, PEEK_DUE
from duly.store.schedules.ledger import TickJobOrder
from duly.store.schedules.runs import NOTE_RUN
from duly.store.schedules.tick import ADVANCE, TickPass
from duly.store.sqlite import SqliteSession, SqliteStore
from tests.simulator import mutants
from tests.simulator.mutants import Mutant, both, patched, rewritten, without
from tests.simulator.timetables import simulate_schedules

TICK_MUTANTS: list[Mutant] = []

mutant = partial(mutants.mutant, play=simulate_schedules, into=TICK_MUTANTS)

SLOT_KEY = "PRIMARY KEY (schedule_id, kind, tick_at),\n    CHECK ((outcome = 'skipped')"
LEDGER_END = "CHECK (outcome <> 'dispatched' OR job_id IS NOT NULL)\n) WITHOUT ROWID;"


def no_slot_key() -> AbstractContextManager[None]:
    """A ledger in which a tick can have two rows."""
    return mutants.reworded(
        (SLOT_KEY, "CHECK ((outcome = 'skipped')"),
        (LEDGER_END, LEDGER_END.replace(" WITHOUT ROWID", "")),
    )


def patched_where_written(name: str, value: Any) -> AbstractContextManager[None]:
    """For ticks of the trigger and for those that are requested."""
    return both(patched(ticking, name, value), patched(runs, name, value))


# One row and one job for a slot -------------------------------------------------------------------

mutant(
    "a ledger in which a slot can be there twice",
    probe="""INSERT INTO duly_ticks
            (schedule_id, kind, tick_at, outcome, job_id, due_at, decided_at)
        VALUES ('s', 'slot', 1, 'dispatched', 'one', 1, 1),
               ('s', 'slot', 1, 'dispatched', 'two', 1, 1)""",
)(no_slot_key)

mutant(
    "a dispatched tick without a job",
    probe="""INSERT INTO duly_ticks (schedule_id, kind, tick_at, outcome, due_at, decided_at)
        VALUES ('s', 'slot', 1, 'dispatched', 1, 1)""",
)(lambda: without(",\n    CHECK (outcome <> 'dispatched' OR job_id IS NOT NULL)"))

mutant(
    "a schedule that is disabled and due",
    probe="""INSERT INTO duly_schedules (id, app, owner, key, function, args, options, trigger,
            zoned, policies, enabled, next_tick_at, due_at, created_at, updated_at)
        VALUES ('s', '', '', 's', 'poke', '{}', '{}', '{}', 0, '{}', 0, 1, 1, 0, 0)""",
)(lambda: without(",\n    CHECK (enabled OR due_at IS NULL)"))


@mutant("slots that were taken before their time are not looked up", seed=24)
def taken_unseen() -> AbstractContextManager[None]:
    return patched(facts, "_slots", lambda *_: {})


@mutant("the job of a slot that somebody has taken is stored all the same", seed=3)
def job_anyway() -> AbstractContextManager[None]:
    real = ledger.insert_ticks

    def insert_ticks(session: Any, asked: Sequence[TickRecord]) -> Any:
        real(session, asked)
        return {(row.schedule_id, row.kind, row.tick_at) for row in asked}

    return both(taken_unseen(), patched_where_written("insert_ticks", insert_ticks))


@mutant("a slot is dispatched twice, in a ledger that lets it", seed=3)
def slot_twice() -> AbstractContextManager[None]:
    return both(taken_unseen(), no_slot_key())


@mutant("a backfill ignores the slots that are there", seed=29)
def backfill_again() -> AbstractContextManager[None]:
    return unguarded("_taken", Purpose.BACKFILL)


@mutant("a job that says when it was stored, not which tick it is of", seed=1)
def wrong_instant() -> AbstractContextManager[None]:
    return job_changed(lambda job, now: {"scheduled_at": now})


@mutant("a job that does not say that a schedule made it", seed=1)
def anonymous() -> AbstractContextManager[None]:
    return job_changed(lambda job, now: {"trigger": "call"})


@mutant("a job that names nobody", seed=1)
def nameless() -> AbstractContextManager[None]:
    return job_changed(lambda job, now: {"actor": None})


def job_changed(change: Callable[[NewJob, int], dict[str, Any]]) -> AbstractContextManager[None]:
    real = AppProgram.jobs_of_tick

    def jobs_of_tick(self: AppProgram, order: TickJobOrder, now: int) -> Sequence[NewJob]:
        first, *hooks = real(self, order, now)
        return [msgspec.structs.replace(first, **change(first, now)), *hooks]

    return patched(AppProgram, "jobs_of_tick", jobs_of_tick)


# All of it or nothing -----------------------------------------------------------------------------


def apart(name: str) -> AbstractContextManager[None]:
    """One part of a tick is its own transaction."""
    real = getattr(ticking, name)
    real_tick = SqliteStore.tick

    def tick(self: SqliteStore, *args: Any, **options: Any) -> TickPass:
        later: list[Any] = []
        with mock.patch.object(ticking, name, lambda session, rows: later.append(rows)):
            ticked = real_tick(self, *args, **options)
        for rows_ in later:
            self.write(lambda session: real(session, rows_))  # noqa: B023
        return ticked

    return patched(SqliteStore, "tick", tick)


@mutant("the advance is a transaction of its own", seed=1)
def advance_apart() -> AbstractContextManager[None]:
    return apart("write_advances")


@mutant("jobs are stored apart from their rows", seed=1)
def jobs_apart() -> AbstractContextManager[None]:
    return apart("insert_jobs_of")


@contextmanager
def answering(session: SqliteSession, statement: Any, answer: Sequence[Any]) -> Iterator[None]:
    """A session that says what it said before."""
    real = session.run
    session.run = lambda asked, given={}: (  # type: ignore[method-assign,assignment]
        list(answer) if asked is statement else real(asked, given)
    )
    try:
        yield
    finally:
        del session.run


@mutant("a tick believes what it has seen before the lock", seed=30)
def believes_the_peek() -> AbstractContextManager[None]:
    def tick(
        self: SqliteStore, now: int, page: int, *args: Any, only: Any = None, **judge: Any
    ) -> TickPass:
        where = {"now": now, "limit": page + 1, **judge}
        seen = self.read(lambda s: s.run(PEEK_DUE, where))

        def work(session: SqliteSession) -> TickPass:
            with answering(session, LOCK_DUE, seen):
                return ticking.tick(session, now, page, *args, only=only, **judge)

        return self.write(work)

    return patched(SqliteStore, "tick", tick)


@mutant("a tick does not see that its schedule was disabled, in a schema that lets it", seed=30)
def disable_unseen() -> AbstractContextManager[None]:
    return both(believes_the_peek(), without(",\n    CHECK (enabled OR due_at IS NULL)"))


def before_the_lock(name: str) -> AbstractContextManager[None]:
    """One of the facts is looked up before the lock."""
    real_tick, real = SqliteStore.tick, getattr(facts, name)

    def tick(self: SqliteStore, now: int, page: int, *args: Any, **options: Any) -> TickPass:
        due = self.due_schedules(now, page + 1, zone_data=options["zone_data"])
        plans = [plan_of(record) for record in due]
        seen = self.read(lambda s: real(s, plans))
        with mock.patch.object(facts, name, return_value=seen):
            return real_tick(self, now, page, *args, **options)

    return patched(SqliteStore, "tick", tick)


@mutant("overlapping is judged before the lock", seed=30)
def overlap_before_the_lock() -> AbstractContextManager[None]:
    return before_the_lock("_in_flight")


# When ---------------------------------------------------------------------------------------------


def judged(change: Callable[[Verdict, int], Verdict]) -> AbstractContextManager[None]:
    """Another verdict."""
    real = decide.judge

    def judge(plan: Plan, facts: Facts, now: int) -> Verdict:
        return change(real(plan, facts, now), now)

    return patched(ticking, "judge", judge)


@mutant("the next tick counts from now, not from the tick", seed=1)
def from_now() -> AbstractContextManager[None]:
    def change(verdict: Verdict, now: int) -> Verdict:
        plan = verdict.plan
        if not isinstance(plan.trigger, Every) or verdict.next_tick_at is None:
            return verdict
        upcoming = now + plan.trigger.milliseconds
        return verdict._replace(next_tick_at=upcoming, due_at=upcoming)

    return judged(change)


@mutant("the tick after the next one is stored as the next", seed=1)
def one_left_out() -> AbstractContextManager[None]:
    def change(verdict: Verdict, now: int) -> Verdict:
        upcoming = verdict.next_tick_at
        after = None if upcoming is None else due.first_tick(verdict.plan, upcoming)
        if after is None:
            return verdict
        return verdict._replace(next_tick_at=after, due_at=after)

    return judged(change)


@mutant("the last tick stays the next one", seed=1)
def no_advance() -> AbstractContextManager[None]:
    return rewritten(ADVANCE, ("next_tick_at = :next_tick_at", "next_tick_at = next_tick_at"))


@mutant("a schedule has no next tick after one that was skipped", seed=1)
def chain_broken() -> AbstractContextManager[None]:
    def change(verdict: Verdict, now: int) -> Verdict:
        if verdict.dispatches:
            return verdict
        return verdict._replace(next_tick_at=None, due_at=None)

    return judged(change)


@mutant("ticks come before their time", seed=12)
def early() -> AbstractContextManager[None]:
    soon = ("due_at <= :now", "due_at <= :now + 5000")
    real = due.ticks_due

    def ticks_due(plan: Plan, now: int, calendars: Mapping[str, Any]) -> Due:
        return real(plan, now + 5000, calendars)

    return both(
        rewritten(PEEK_DUE, soon),
        rewritten(LOCK_DUE, soon),
        patched(decide, "ticks_due", ticks_due),
    )


def waking(since: Callable[[ScheduleRecord, int], int]) -> AbstractContextManager[None]:
    """What is enabled or retimed counts from another time."""
    real = rows.with_next_tick_under

    def woken(record: ScheduleRecord, now: int, *args: Any, **options: Any) -> ScheduleRecord:
        fresh = real(record, since(record, now), *args, **options)
        return msgspec.structs.replace(fresh, awake_at=now)

    return patched(rows, "with_next_tick_under", woken)


@mutant("what is enabled catches up what it missed", seed=1)
def enable_catches_up() -> AbstractContextManager[None]:
    return waking(lambda record, now: min(now, record.last_tick_at or record.awake_at or now))


@mutant("what is enabled ticks at the instant that has come", seed=1)
def enable_at_once() -> AbstractContextManager[None]:
    return waking(lambda record, now: now - 60_000)


@mutant("what is disabled keeps its next tick", seed=1)
def disabled_in_name() -> AbstractContextManager[None]:
    def asleep(record: ScheduleRecord) -> ScheduleRecord:
        return msgspec.structs.replace(record, note="asleep")

    return both(
        patched(rows, "without_next_tick", asleep), patched(verbs, "without_next_tick", asleep)
    )


@mutant("another trigger does not change when the next tick comes", seed=1)
def retimed_in_name() -> AbstractContextManager[None]:
    return patched(rows, "_counts_anew", lambda before, *_: not before.enabled)


@mutant("an edit of anything counts anew", seed=10)
def always_anew() -> AbstractContextManager[None]:
    return patched(rows, "_counts_anew", lambda *_: True)


@mutant("a schedule goes on after its end", seed=0)
def endless() -> AbstractContextManager[None]:
    def first_tick(plan: Plan, after: int) -> int | None:
        record = msgspec.structs.replace(plan.record, end_at=None)
        return REAL_FIRST(msgspec.structs.replace(plan, record=record), after)

    return patched(due, "first_tick", first_tick)


REAL_FIRST = due.first_tick


@mutant("a schedule begins before its start", seed=47)
def too_soon() -> AbstractContextManager[None]:
    def first_tick(plan: Plan, after: int) -> int | None:
        record = msgspec.structs.replace(plan.record, start_at=None)
        return REAL_FIRST(msgspec.structs.replace(plan, record=record), after)

    return patched(due, "first_tick", first_tick)


@mutant("a fixed time that comes twice fires twice", seed=14)
def dst_twice() -> AbstractContextManager[None]:
    return following_the_clock(True)


@mutant("an interval of the clock stands still while it is set back", seed=24)
def dst_once() -> AbstractContextManager[None]:
    return following_the_clock(False)


def following_the_clock(always: bool) -> AbstractContextManager[None]:
    real = Cron._parsed

    def parsed(self: Cron) -> Expression:
        expression = copy.copy(real(self))
        expression.follows_clock = always
        return expression

    return patched(Cron, "_parsed", parsed)


@mutant("a time that clocks skip does not fire", seed=14)
def dst_skipped() -> AbstractContextManager[None]:
    return patched(local_times, "_LONGEST_GAP", 0)


# Catching up --------------------------------------------------------------------------------------


def missing(change: Callable[[Missed], Missed | None]) -> AbstractContextManager[None]:
    """Another row for those that were missed."""
    real = due._missed

    def missed(*args: Any) -> Missed | None:
        found = real(*args)
        return None if found is None else change(found)

    return patched(due, "_missed", missed)


@mutant("one more is missed than there were", seed=2)
def missed_too_many() -> AbstractContextManager[None]:
    return missing(lambda missed: msgspec.structs.replace(missed, count=missed.count + 1))


@mutant("those that are missed begin at the wrong one", seed=2)
def missed_from_the_last() -> AbstractContextManager[None]:
    return missing(lambda missed: msgspec.structs.replace(missed, first=missed.last))


@mutant("nobody is told what was missed", seed=2)
def missed_in_silence() -> AbstractContextManager[None]:
    return missing(lambda missed: None)


@mutant("slots of an earlier trigger count as filled in", seed=15)
def filled_by_others() -> AbstractContextManager[None]:
    always = lambda *_: True  # noqa: E731
    return both(patched(Cron, "matches", always), patched(Every, "matches", always))


@mutant("everything is caught up", seed=2)
def all_caught_up() -> AbstractContextManager[None]:
    def kept(plan: Plan, first: int, last: int, *_: Any) -> list[int]:
        return list(plan.trigger.between(first, last + 1))[-500:]

    return patched(due, "_kept", kept)


@mutant("the oldest are caught up, not the newest", seed=2)
def oldest_kept() -> AbstractContextManager[None]:
    real = due._kept

    def kept(plan: Plan, first: int, last: int, *args: Any) -> list[int]:
        count = len(real(plan, first, last, *args))
        found: list[int] = []
        for tick in plan.trigger.between(first, last + 1):
            if len(found) >= count:
                break
            found.append(tick)
        return found

    return patched(due, "_kept", kept)


@mutant("a tick that is a bit late is missed where nothing is caught up", seed=1)
def no_grace() -> AbstractContextManager[None]:
    return patched(due, "GRACE_MS", -1)


# Guards -------------------------------------------------------------------------------------------


def unguarded(name: str, *purposes: Purpose) -> AbstractContextManager[None]:
    """One guard less, for some purposes."""
    guard, fewer = getattr(decide, name), dict(decide.GUARDS)
    for purpose in purposes:
        assert guard in fewer[purpose]
        fewer[purpose] = tuple(g for g in fewer[purpose] if g is not guard)
    return patched(decide, "GUARDS", fewer)


@mutant("ticks ignore the kill switch", seed=12)
def ticks_unkilled() -> AbstractContextManager[None]:
    return unguarded("_kill_switch", Purpose.TICK)


@mutant("runs by hand ignore the kill switch", seed=13)
def runs_unkilled() -> AbstractContextManager[None]:
    return unguarded("_kill_switch", Purpose.RUN)


@mutant("backfills ignore the kill switch", seed=12)
def backfills_unkilled() -> AbstractContextManager[None]:
    return unguarded("_kill_switch", Purpose.BACKFILL)


@mutant("jobs start in spite of the kill switch", seed=4)
def claims_unkilled() -> AbstractContextManager[None]:
    others = "FROM (SELECT * FROM duly_queues WHERE name <> '*')"
    return rewritten(QUEUE_RULES, ("FROM duly_queues", others))


@mutant("ticks ignore that their function is paused", seed=1)
def target_ignored() -> AbstractContextManager[None]:
    return unguarded("_target", Purpose.TICK, Purpose.RUN, Purpose.BACKFILL)


@mutant("ticks ignore that an operator skips one", seed=2)
def operator_ignored() -> AbstractContextManager[None]:
    return unguarded("_operator", Purpose.TICK)


@mutant("ticks ignore the budget", seed=4)
def budget_ignored() -> AbstractContextManager[None]:
    return patched(decide, "_within_budget", lambda *_: None)


@mutant("ticks ignore what runs", seed=1)
def overlap_ignored() -> AbstractContextManager[None]:
    return unguarded("_overlap", Purpose.TICK)


@mutant("a budget does not count what the same pass has dispatched", seed=28)
def budget_of_before() -> AbstractContextManager[None]:
    real: Callable[..., float] = decide._spent

    def spent(tick: decide.Tick, *args: Any) -> float:
        return real(tick._replace(dispatched=()), *args)

    return patched(decide, "_spent", spent)


@mutant("two ticks of one pass may wait where one may", seed=14)
def buffers_more() -> AbstractContextManager[None]:
    real = decide._overlap

    def overlap(tick: decide.Tick) -> Any:
        return real(tick._replace(beside=None))

    guards = tuple(overlap if g is real else g for g in decide.GUARDS[Purpose.TICK])
    return patched(decide, "GUARDS", {**decide.GUARDS, Purpose.TICK: guards})


# What a dispatch changes --------------------------------------------------------------------------


@mutant("a tick that is skipped takes a turn of the rotation", seed=1)
def rotation_on_skip() -> AbstractContextManager[None]:
    def change(verdict: Verdict, now: int) -> Verdict:
        if not verdict.ticks:
            return verdict
        *before, last = verdict.ticks
        skipped = len(verdict.ticks) - len(verdict.dispatches)
        index = last.standing.rotation_index + skipped
        turned = last._replace(standing=last.standing._replace(rotation_index=index))
        return verdict._replace(ticks=(*before, turned))

    return judged(change)


@mutant("a run with inputs of its own takes a turn of the rotation", seed=15)
def rotation_on_inputs() -> AbstractContextManager[None]:
    def with_inputs(tick: Decided, args: str, plan: Plan) -> Decided:
        given = isinstance(tick.decision, Dispatch)
        return tick._replace(decision=Dispatch(args)) if given else tick

    return patched(verbs_tick, "with_inputs", with_inputs)


@mutant("a tick that is too old for its window is caught up", seed=13)
def window_ignored() -> AbstractContextManager[None]:
    real = due._kept

    def kept(plan: Plan, *args: Any) -> list[int]:
        policies = msgspec.structs.replace(plan.policies, catch_up_window=None)
        return real(msgspec.structs.replace(plan, policies=policies), *args)

    return patched(due, "_kept", kept)


@mutant("a dispatch does not take its turn of the rotation", seed=1)
def rotation_stuck() -> AbstractContextManager[None]:
    return rewritten(
        ADVANCE, ("rotation_index = :rotation_index", "rotation_index = rotation_index")
    )


@mutant("a new rotation goes on where the old one was", seed=33)
def rotation_not_reset() -> AbstractContextManager[None]:
    real = rows.changed

    def changed(core_: Any, record: ScheduleRecord, *args: Any) -> ScheduleRecord:
        after = real(core_, record, *args)
        return msgspec.structs.replace(after, rotation_index=record.rotation_index)

    return patched(verbs, "changed", changed)


@mutant("a dispatch does not count for what remains", seed=1)
def remaining_uncounted() -> AbstractContextManager[None]:
    return rewritten(ADVANCE, ("remaining = :remaining", "remaining = remaining"))


@mutant("a run by hand does not count for what remains", seed=3)
def manual_uncounted() -> AbstractContextManager[None]:
    return rewritten(NOTE_RUN, ("remaining = :remaining", "remaining = remaining"))


@mutant("a schedule goes on when nothing remains", seed=1)
def never_over() -> AbstractContextManager[None]:
    return patched(Standing, "is_over", property(lambda self: False))


@mutant("an override stays after its tick", seed=1)
def override_kept() -> AbstractContextManager[None]:
    whole = "CASE WHEN :keep_override THEN override END"
    return rewritten(ADVANCE, (whole, "iif(:keep_override, override, override)"))


@mutant("an override outlives a new beginning", seed=13)
def override_outlives() -> AbstractContextManager[None]:
    real = rows.with_next_tick_under

    def woken(record: ScheduleRecord, *args: Any, **options: Any) -> ScheduleRecord:
        fresh = real(record, *args, **options)
        return msgspec.structs.replace(fresh, override=record.override)

    return patched(rows, "with_next_tick_under", woken)


@mutant("jobs of ticks that wait for each other do not", seed=5)
def not_serial() -> AbstractContextManager[None]:
    return job_changed(lambda job, now: {"limit_key": None} if hasattr(job, "limit_key") else {})


@mutant("ticks that are caught up together may run beside each other", seed=5)
def catch_up_beside() -> AbstractContextManager[None]:
    def is_serial(self: Verdict) -> bool:
        return self.plan.policies.overlap in ONE_BY_ONE

    return patched(Verdict, "is_serial", property(is_serial))


@mutant("a tick that cancels the others does not", seed=2)
def cancels_nobody() -> AbstractContextManager[None]:
    return patched_where_written("cancel_others", lambda *_: None)


@mutant("of ticks that are caught up together, none cancels those before it", seed=2)
def cancels_none_of_its_own() -> AbstractContextManager[None]:
    return patched(ticking, "_cancel_all_but_last", lambda *_: None)


@mutant("a schedule that was removed still ticks")
def removed_in_name() -> AbstractContextManager[None]:
    return rewritten(DELETE_SCHEDULE, ("WHERE id = :id", "WHERE id = :id AND due_at IS NULL"))
