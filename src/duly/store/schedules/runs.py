"""Runs that no trigger asked for: by hand, and of ticks that are filled in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    Order,
    Slot,
    cancel_others,
    insert_jobs_of,
    insert_ticks,
    job_of,
)
from duly.store.schedules.rows import later, schedule_of
from duly.store.statements import both

if TYPE_CHECKING:
    from duly.store.session import Session

# What a run beside the trigger leaves behind; if it was the last one, nothing is to come.
NOTE_RUN = both(
    """UPDATE @schedules SET rotation_index = :rotation_index, remaining = :remaining,
            last_dispatch_at = :last_dispatch_at, last_job_id = :last_job_id,
            filled_until = :filled_until,
            next_tick_at = CASE WHEN :over THEN NULL ELSE next_tick_at END,
            due_at = CASE WHEN :over THEN NULL ELSE due_at END
        WHERE id = :id"""
)
# Where a row of a run can stand: at this instant, or at the first one after it that is free.
FREE_INSTANT = both(
    """SELECT min(t.tick_at) + 1 FROM @ticks t
        WHERE t.schedule_id = :id AND t.kind = 'manual' AND t.tick_at >= :now
        AND EXISTS (SELECT 1 FROM @ticks taken WHERE taken.schedule_id = :id
            AND taken.kind = 'manual' AND taken.tick_at = :now)
        AND NOT EXISTS (SELECT 1 FROM @ticks behind WHERE behind.schedule_id = :id
            AND behind.kind = 'manual' AND behind.tick_at = t.tick_at + 1)"""
)


class Run(NamedTuple):
    """Ticks of one schedule that somebody asks for: now, or for a time that has passed."""

    kind: TickKind
    ticks: Sequence[Decided]
    detail: Mapping[str, Any] = {}
    """What the audit says of it."""


Choose = Callable[[Plan, Facts, int], Run]
"""What is to be run, decided while the schedule is locked; a run now stands at the instant given.
"""
NOT_FILLED = frozenset({Reason.SLOT_EXISTS, Reason.CYCLE_DETECTED, Reason.KILL_SWITCH}) | {
    Reason.TARGET_PAUSED,
    Reason.TARGET_DEPRECATED,
}
"""Why a backfill leaves a slot as it is, so that another one can fill it."""


def run(
    session: Session,
    schedule_id: str,
    choose: Choose,
    make_jobs: MakeJobs,
    now: int,
    *,
    by: str | None = None,
    parent_id: str | None = None,
    ancestors: frozenset[str] = frozenset(),
    slots: Range | None = None,
    run_id: str | None = None,
) -> list[TickRecord] | None:
    """Run ticks that no trigger asks for, while the schedule is locked: what became of each.

    None if there is no such schedule. A slot that has a row is answered with the reason
    `schedule_slot_exists`, and audited; `slots` is where those are looked for first. Under a
    `run_id` a run is made once: asked for again, it is what became of it, or nothing if the
    ledger keeps that no longer.
    """
    if not is_id(schedule_id):
        return None
    rows = session.run(LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return None
    if run_id is not None and (done := detail_of(session, run_id)) is not None:
        return _ran(session, schedule_id, done["tick_at"])
    plan = plan_of(schedule_of(rows[0]))
    facts = gather(session, [plan], now, ancestors=ancestors, slots=slots)
    instant = now
    if slots is None:
        # Two may be run in the same millisecond, and each has a row of its own.
        [(free,)] = session.run(FREE_INSTANT, {"id": plan.id, "now": now})
        instant = now if free is None else free
    chosen = choose(plan, facts, instant)
    verdict = Verdict(plan, tuple(chosen.ticks))
    # Ticks that are filled in must not overlap, and are no reason to cancel what runs now.
    is_backfill = chosen.kind == TickKind.SLOT
    serial = plan.policies.overlap != Overlap.ALLOW if is_backfill else verdict.is_serial
    made = {
        (plan.id, str(chosen.kind), tick.tick_at): make_jobs(
            Order(plan, tick, dispatch, serial, chosen.kind, parent_id), now
        )
        for tick, dispatch in verdict.dispatches
    }
    asked = [_row_of(plan, chosen.kind, tick, made, now) for tick in chosen.ticks]
    left = {row.tick_at for row in asked if is_backfill and row.reason in NOT_FILLED}
    stored = insert_ticks(session, [row for row in asked if row.tick_at not in left])
    if stored and verdict.cancels_others and not is_backfill:
        cancel_others(session, plan, now)
    written = {slot: jobs for slot, jobs in made.items() if slot in stored}
    existing = insert_jobs_of(session, written)
    session.run(NOTE_RUN, _noted(plan, chosen, written, existing))
    answers = [_answer(row, stored, left, existing) for row in asked]
    taken = [row.tick_at for row in answers if row.reason == Reason.SLOT_EXISTS]
    _audit_run(session, plan, chosen, len(stored), taken, by, now, run_id)
    return answers


def _ran(session: Session, schedule_id: str, tick_at: int) -> list[TickRecord]:
    """The run of an instant; nothing if the ledger keeps it no longer."""
    found = ticks(session, schedule_id, TickFilter(after=tick_at, before=tick_at + 1))
    return [tick for tick in found if tick.kind == TickKind.MANUAL]


def _audit_run(
    session: Session,
    plan: Plan,
    chosen: Run,
    new: int,
    taken: Sequence[int],
    by: str | None,
    now: int,
    run_id: str | None,
) -> None:
    """Who has asked for a run, or for ticks to be filled in; and each slot that was taken."""
    target = f"schedule:{plan.id}"
    instants = [tick.tick_at for tick in chosen.ticks]
    if chosen.kind == TickKind.MANUAL:
        detail = {"tick_at": instants[0], **chosen.detail}
        audit(session, "schedule.run", target, by, detail, now, entry_id=run_id)
    elif instants:
        detail = {"first": instants[0], "last": instants[-1], "ticks": len(instants), "new": new}
        audit(session, "schedule.backfill", target, by, detail, now)
    if taken:
        detail = {"tick_at": taken[0], "last": taken[-1], "count": len(taken)}
        audit(session, Reason.SLOT_EXISTS, target, by, detail, now)


def _row_of(
    plan: Plan,
    kind: TickKind,
    tick: Decided,
    made: Mapping[Slot, Sequence[NewJob]],
    now: int,
) -> TickRecord:
    jobs = made.get((plan.id, str(kind), tick.tick_at))
    return tick_row(plan, kind, tick, jobs[0].id if jobs else None, now)


def _noted(
    plan: Plan,
    chosen: Run,
    written: Mapping[Slot, Sequence[NewJob]],
    existing: Mapping[str, str],
) -> dict[str, Any]:
    dispatched = list(written.values())
    # A slot that was taken after all is no dispatch.
    standing = chosen.ticks[-1].standing if dispatched else standing_of(plan)
    filled = chosen.ticks[-1].tick_at if chosen.kind == TickKind.SLOT and chosen.ticks else None
    return {
        "id": plan.id,
        "rotation_index": standing.rotation_index,
        "remaining": standing.remaining,
        "last_dispatch_at": standing.last_dispatch_at,
        "last_job_id": job_of(dispatched[-1], existing) if dispatched else plan.record.last_job_id,
        "filled_until": later(plan.record.filled_until, filled),
        "over": standing.is_over,
    }


def _answer(
    row: TickRecord, stored: set[Slot], left: Collection[int], existing: Mapping[str, str]
) -> TickRecord:
    if (row.schedule_id, row.kind, row.tick_at) in stored:
        job_id = None if row.job_id is None else existing.get(row.job_id, row.job_id)
        return msgspec.structs.replace(row, job_id=job_id)
    if row.tick_at in left:
        return row
    return msgspec.structs.replace(
        row, outcome=Outcome.SKIPPED, reason=Reason.SLOT_EXISTS, job_id=None, detail=None
    )
