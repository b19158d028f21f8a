"""Runs without a trigger: manual runs and backfills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly.ids import is_id
from duly.model.decide import Decided, Facts, Verdict, standing_of, tick_row
from duly.model.job import NewJob
from duly.model.schedule import Outcome, Plan, Reason, TickFilter, TickKind, TickRecord, plan_of
from duly.model.schedule_options import Overlap
from duly.store.schedules.audit import audit, detail_of
from duly.store.schedules.data import LOCK_SCHEDULE, ticks
from duly.store.schedules.facts import Range, gather
from duly.store.schedules.ledger import (
    MakeJobs,
    Slot,
    TickJobOrder,
    cancel_others,
    insert_jobs_of,
    insert_ticks,
    job_of,
)
from duly.store.schedules.rows import later, schedule_of
from duly.store.statements import both

if TYPE_CHECKING:
    from duly.store.session import Session

# The state that a run outside the trigger leaves behind. After the last run there is no next tick.
NOTE_RUN = both(
    """UPDATE @schedules SET rotation_index = :rotation_index, remaining = :remaining,
            last_dispatch_at = :last_dispatch_at, last_job_id = :last_job_id,
            filled_until = :filled_until,
            next_tick_at = CASE WHEN :over THEN NULL ELSE next_tick_at END,
            due_at = CASE WHEN :over THEN NULL ELSE due_at END
        WHERE id = :id"""
)
# The instant for the ledger row of a run: this one, or the first free one after it.
FREE_INSTANT = both(
    """SELECT min(t.tick_at) + 1 FROM @ticks t
        WHERE t.schedule_id = :id AND t.kind = 'manual' AND t.tick_at >= :now
        AND EXISTS (SELECT 1 FROM @ticks taken WHERE taken.schedule_id = :id
            AND taken.kind = 'manual' AND taken.tick_at = :now)
        AND NOT EXISTS (SELECT 1 FROM @ticks behind WHERE behind.schedule_id = :id
            AND behind.kind = 'manual' AND behind.tick_at = t.tick_at + 1)"""
)


class RunRequest(NamedTuple):
    """Who requests ticks outside the trigger, and how."""

    by: str | None = None
    parent_id: str | None = None
    """The job that requests them, if it is a job."""
    ancestors: frozenset[str] = frozenset()
    """The schedules that the job descends from."""
    run_id: str | None = None
    """A run with this id is made only once."""
    inputs: Sequence[str] | None = None
    """The names of the inputs that are given for a run."""


Choose = Callable[[Plan, Facts, int], Iterable[Decided]]
"""Decides what to run, while the schedule is locked. A run now is recorded at the given instant."""
NOT_BACKFILLED = frozenset({Reason.SLOT_EXISTS, Reason.CYCLE_DETECTED, Reason.KILL_SWITCH}) | {
    Reason.TARGET_PAUSED,
    Reason.TARGET_DEPRECATED,
}
"""Skip reasons for which a backfill leaves a slot free, so that a later one can fill it."""


def run(
    session: Session,
    schedule_id: str,
    choose: Choose,
    make_jobs: MakeJobs,
    now: int,
    request: RunRequest,
    slots: Range | None = None,
) -> list[TickRecord] | None:
    """Run ticks outside the trigger, while the schedule is locked. Return the outcome of each.

    Returns None if there is no such schedule. `slots` is the range of a backfill; without it, this
    is one run now. A slot that already has a row gets the reason `schedule_slot_exists`, and an
    audit entry. For a run that was already made, this returns its outcome, or nothing if the ledger
    no longer has it.
    """
    rows = session.run(LOCK_SCHEDULE, {"id": schedule_id}) if is_id(schedule_id) else ()
    if not rows:
        return None
    if request.run_id is not None and (done := detail_of(session, request.run_id)) is not None:
        return _ran(session, schedule_id, done["tick_at"])
    plan = plan_of(schedule_of(rows[0]))
    facts = gather(session, [plan], now, ancestors=request.ancestors, slots=slots)
    kind = TickKind.SLOT if slots else TickKind.MANUAL
    instant = now if slots else _free_instant(session, plan, now)
    verdict = Verdict(plan, tuple(choose(plan, facts, instant)))
    # Backfilled ticks must not overlap.
    serial = plan.policies.overlap != Overlap.ALLOW if slots else verdict.is_serial
    jobs: dict[Slot, Sequence[NewJob]] = {}
    for tick, dispatch in verdict.dispatches:
        order = TickJobOrder(plan, tick, dispatch, serial, kind, request.parent_id)
        jobs[plan.id, kind, tick.tick_at] = make_jobs(order, now)
    answers = _write(session, verdict, kind, jobs, now)
    _audit_run(session, answers, request, now)
    return answers


def _ran(session: Session, schedule_id: str, tick_at: int) -> list[TickRecord]:
    """The run at an instant; empty if the ledger no longer has it."""
    found = ticks(session, schedule_id, TickFilter(after=tick_at, before=tick_at + 1))
    return [tick for tick in found if tick.kind == TickKind.MANUAL]


def _free_instant(session: Session, plan: Plan, now: int) -> int:
    """Two runs may happen in the same millisecond, and each needs its own row."""
    [(free,)] = session.run(FREE_INSTANT, {"id": plan.id, "now": now})
    return now if free is None else int(free)


def _write(
    session: Session,
    verdict: Verdict,
    kind: TickKind,
    jobs: Mapping[Slot, Sequence[NewJob]],
    now: int,
) -> list[TickRecord]:
    """Store the decisions, except for slots that stay as they are. Return the outcome of each."""
    plan, rows = verdict.plan, list[TickRecord]()
    for tick in verdict.ticks:
        made = jobs.get((plan.id, kind, tick.tick_at))
        rows.append(tick_row(plan, kind, tick, made[0].id if made else None, now))
    is_run = kind == TickKind.MANUAL
    stored = insert_ticks(session, [r for r in rows if is_run or r.reason not in NOT_BACKFILLED])
    # Backfilled ticks must not cancel a current run.
    if stored and is_run and verdict.cancels_others:
        cancel_others(session, plan, now)
    written = {slot: made for slot, made in jobs.items() if slot in stored}
    existing = insert_jobs_of(session, written)
    last_job = job_of([*written.values()][-1], existing) if written else None
    session.run(NOTE_RUN, _noted(verdict, last_job, fills=not is_run))
    return [_answer(row, stored, existing) for row in rows]


def _noted(verdict: Verdict, last_job: str | None, *, fills: bool) -> dict[str, Any]:
    record = verdict.plan.record
    # A slot that turned out to be taken is not a dispatch.
    standing = standing_of(verdict.plan, verdict.ticks if last_job else ())
    filled_until = verdict.ticks[-1].tick_at if fills and verdict.ticks else None
    return {
        "id": record.id,
        **standing._asdict(),
        "last_job_id": last_job or record.last_job_id,
        "filled_until": later(record.filled_until, filled_until),
        "over": standing.is_over,
    }


def _answer(row: TickRecord, stored: set[Slot], existing: Mapping[str, str]) -> TickRecord:
    if (row.schedule_id, row.kind, row.tick_at) in stored:
        job_id = None if row.job_id is None else existing.get(row.job_id, row.job_id)
        return msgspec.structs.replace(row, job_id=job_id)
    if row.reason in NOT_BACKFILLED:
        return row
    return msgspec.structs.replace(
        row, outcome=Outcome.SKIPPED, reason=Reason.SLOT_EXISTS, job_id=None, detail=None
    )


def _audit_run(
    session: Session, answers: Sequence[TickRecord], request: RunRequest, now: int
) -> None:
    """Record who requested a run or a backfill, and each slot that was already taken."""
    if not answers:
        return
    first, last = answers[0], answers[-1]
    target = f"schedule:{first.schedule_id}"
    detail: dict[str, Any]
    if first.kind == TickKind.MANUAL:
        inputs = {} if request.inputs is None else {"inputs": request.inputs}
        detail = {"tick_at": first.tick_at, **inputs}
        audit(session, "schedule.run", target, request.by, detail, now, entry_id=request.run_id)
    else:
        new = sum(row.reason not in NOT_BACKFILLED for row in answers)
        detail = {"first": first.tick_at, "last": last.tick_at, "ticks": len(answers), "new": new}
        audit(session, "schedule.backfill", target, request.by, detail, now)
    taken = [row.tick_at for row in answers if row.reason == Reason.SLOT_EXISTS]
    if taken:
        detail = {"tick_at": taken[0], "last": taken[-1], "count": len(taken)}
        audit(session, Reason.SLOT_EXISTS, target, request.by, detail, now)
