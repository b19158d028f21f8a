"""One pass of a ticker: lock a page of due schedules, decide, and store the decisions.

Each page is one transaction. A schedule that cannot be decided, for whatever reason, is parked with
its error and does not block others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from duly import fault
from duly.errors import StoreError
from duly.model.decide import (
    Decided,
    Facts,
    Signal,
    Skip,
    Verdict,
    judge,
    ledger_rows,
    needs_signal,
)
from duly.model.job import NewJob
from duly.model.schedule import Plan, Reason, TickKind, TickRecord
from duly.store.jobs.cancel import cancel_live
from duly.store.schedules.audit import audit_gone, audit_slot
from duly.store.schedules.data import DELETE_SCHEDULE
from duly.store.schedules.due import LOCK_DUE, LOCK_ONE_DUE
from duly.store.schedules.facts import gather
from duly.store.schedules.ledger import (
    MakeJobs,
    Slot,
    TickJobOrder,
    cancel_others,
    insert_jobs_of,
    insert_ticks,
    job_of,
)
from duly.store.schedules.parked import park
from duly.store.schedules.rows import reason_of, schedule_of, understand
from duly.store.statements import each

if TYPE_CHECKING:
    from duly.store.session import Session

ADVANCE = each(
    sqlite="""UPDATE @schedules SET next_tick_at = :next_tick_at, due_at = :due_at,
            rotation_index = :rotation_index, remaining = :remaining,
            last_tick_at = max(coalesce(:last_tick_at, last_tick_at),
                coalesce(last_tick_at, :last_tick_at)),
            last_dispatch_at = :last_dispatch_at,
            last_job_id = coalesce(:last_job_id, last_job_id),
            override = CASE WHEN :keep_override THEN override END
        WHERE id = :id""",
    postgres="""UPDATE @schedules s SET next_tick_at = f.next_tick_at, due_at = f.due_at,
            rotation_index = f.rotation_index, remaining = f.remaining,
            last_tick_at = greatest(f.last_tick_at, s.last_tick_at),
            last_dispatch_at = f.last_dispatch_at,
            last_job_id = coalesce(f.last_job_id, s.last_job_id),
            override = CASE WHEN f.keep_override THEN s.override END
        FROM unnest(:id::uuid[], :next_tick_at::int8[], :due_at::int8[], :rotation_index::int4[],
            :remaining::int4[], :last_tick_at::int8[], :last_dispatch_at::int8[],
            :last_job_id::uuid[], :keep_override::bool[])
            AS f (id, next_tick_at, due_at, rotation_index, remaining, last_tick_at,
                last_dispatch_at, last_job_id, keep_override)
        WHERE s.id = f.id AND s.id = ANY(:id::uuid[])""",
)


PASS_TICKS = 1_000
"""The number of ticks after which a transaction takes no further schedule."""


class TickPass(NamedTuple):
    """The result of a page."""

    looked_at: int
    dispatched: int
    skipped: int
    missed: int
    parked: int
    more: bool
    """Whether more schedules are due than a page holds."""
    skips: Mapping[str, int] = {}
    """The skipped ones, by reason."""


def added(ticked: Sequence[TickPass], *, more: bool) -> TickPass:
    """Add up several passes as if they had been one page."""
    return TickPass(
        looked_at=sum(each.looked_at for each in ticked),
        dispatched=sum(each.dispatched for each in ticked),
        skipped=sum(each.skipped for each in ticked),
        missed=sum(each.missed for each in ticked),
        parked=sum(each.parked for each in ticked),
        more=more,
        skips=sum((Counter(each.skips) for each in ticked), Counter[str]()),
    )


def tick(
    session: Session,
    now: int,
    page: int,
    signals: Mapping[str, Signal],
    make_jobs: MakeJobs,
    *,
    zone_data: str,
    signals_for: str | None = None,
    only: str | None = None,
) -> TickPass:
    """Decide one page of due schedules, or only the one with that id, in one transaction.

    Each tick becomes one row of the ledger and, if it is dispatched, its jobs; a slot that already
    has a row gets no job. The schedule moves on to its next tick; one that cannot be decided is
    parked. Schedules that another process has locked are left to it.
    """
    where = {"now": now, "zone_data": zone_data, "signals_for": signals_for}
    if only is None:
        rows = session.run(LOCK_DUE, where | {"limit": page + 1})
    else:
        rows = session.run(LOCK_ONE_DUE, where | {"id": only})
    records = [schedule_of(row) for row in rows[:page]]
    if not records:
        return TickPass(0, 0, 0, 0, 0, more=False)
    parked: dict[str, str] = {}
    plans = [plan for record in records if (plan := understand(record, parked))]
    # Signals were requested for schedules that another process has taken since; without a signal,
    # nothing is decided.
    unasked = {plan.id for plan in plans if needs_signal(plan) and plan.id not in signals}
    plans = [plan for plan in plans if plan.id not in unasked]
    facts = gather(session, plans, now, signals)
    judged = [verdict for plan in plans if (verdict := _judge(plan, facts, now, parked))]
    verdicts = _not_too_many(judged)
    fault.point("ticker.decided")
    jobs = _make_jobs(verdicts, make_jobs, now, parked)
    looked_at = len(records) - len(unasked)
    more = (len(rows) > page and looked_at > 0) or len(verdicts) < len(judged)
    verdicts = [verdict for verdict in verdicts if verdict.plan.id not in parked]
    refused = _write(session, verdicts, jobs, now)
    for schedule_id, error in parked.items():
        park(session, schedule_id, error, now)
    fault.point("ticker.written")
    return _count(verdicts, looked_at, len(parked), refused, more=more)


def _not_too_many(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """As many as fit into one transaction: schedules that catch up have many ticks."""
    ticks = 0
    for place, verdict in enumerate(verdicts):
        ticks += len(verdict.ticks)
        if ticks >= PASS_TICKS:
            return list(verdicts[: place + 1])
    return list(verdicts)


def _judge(plan: Plan, facts: Facts, now: int, parked: dict[str, str]) -> Verdict | None:
    try:
        return judge(plan, facts, now)
    except Exception as error:  # a broken schedule must not stop the others
        parked[plan.id] = reason_of(error)
        return None


def _make_jobs(
    verdicts: Iterable[Verdict], make_jobs: MakeJobs, now: int, parked: dict[str, str]
) -> dict[Slot, Sequence[NewJob]]:
    made: dict[Slot, Sequence[NewJob]] = {}
    for verdict in verdicts:
        plan = verdict.plan
        serial = verdict.is_serial
        try:
            for tick, dispatch in verdict.dispatches:
                order = TickJobOrder(plan, tick, dispatch, serial)
                made[plan.id, TickKind.SLOT, tick.tick_at] = make_jobs(order, now)
        except StoreError:
            # Not the fault of the schedule: all of it is tried again.
            raise
        except Exception as error:  # a broken schedule must not stop the others
            parked[plan.id] = reason_of(error)
    return made


def _write(
    session: Session,
    verdicts: Sequence[Verdict],
    jobs: Mapping[Slot, Sequence[NewJob]],
    now: int,
) -> int:
    """Store the decisions. Return how many slots were already taken."""
    rows: list[TickRecord] = []
    for verdict in verdicts:
        mine = {tick.tick_at: jobs[_slot(verdict, tick)][0].id for tick, _ in verdict.dispatches}
        rows += ledger_rows(verdict, mine, now)
        if verdict.cancels_others:
            cancel_others(session, verdict.plan, now)
    stored = insert_ticks(session, rows)
    fault.point("ticker.noted")
    existing = insert_jobs_of(session, {slot: jobs[slot] for slot in jobs if slot in stored})
    for verdict in verdicts:
        if verdict.cancels_others:
            _cancel_all_but_last(session, verdict, stored, jobs, existing, now)
    fault.point("ticker.enqueued")
    moved = [
        _advance_of(verdict, stored, jobs, existing) for verdict in verdicts if not verdict.remove
    ]
    write_advances(session, moved)
    for verdict in verdicts:
        if verdict.remove:
            session.run(DELETE_SCHEDULE, {"id": verdict.plan.id})
            audit_gone(session, [verdict.plan.record], None, now)
    taken = 0
    for verdict in verdicts:
        refused = [tick.tick_at for tick in verdict.ticks if _slot(verdict, tick) not in stored]
        for tick_at in (*verdict.taken, *refused):
            audit_slot(session, verdict.plan.id, tick_at, None, now)
            taken += 1
    return taken


def _slot(verdict: Verdict, tick: Decided) -> Slot:
    return verdict.plan.id, TickKind.SLOT, tick.tick_at


def _dispatched(verdict: Verdict, stored: set[Slot]) -> list[Slot]:
    """The slots that were dispatched, except those that were already taken."""
    slots = (_slot(verdict, tick) for tick, _ in verdict.dispatches)
    return [slot for slot in slots if slot in stored]


def _cancel_all_but_last(
    session: Session,
    verdict: Verdict,
    stored: set[Slot],
    jobs: Mapping[Slot, Sequence[NewJob]],
    existing: Mapping[str, str],
    now: int,
) -> None:
    """Of ticks that are caught up together, each one cancels those before it.

    If the function is unique, several ticks may have the same job; it stays if the last tick has it
    too. A job that existed before these ticks is not canceled.
    """
    made = [jobs[slot] for slot in _dispatched(verdict, stored)]
    if not made:
        return
    last = job_of(made[-1], existing)
    new = [each[0].id for each in made[:-1] if each[0].id not in existing]
    overtaken = [job_id for job_id in new if job_id != last]
    if overtaken:
        cancel_live(session, overtaken, f"schedule:{verdict.plan.id}", now)


class Advance(NamedTuple):
    """The state of a schedule after its ticks."""

    id: str
    next_tick_at: int | None
    due_at: int | None
    rotation_index: int
    remaining: int | None
    last_tick_at: int | None
    last_dispatch_at: int | None
    last_job_id: str | None
    keep_override: bool


def write_advances(session: Session, rows: Sequence[Advance]) -> None:
    """Store the state of schedules after their ticks."""
    if not rows:
        return
    if session.dialect == "sqlite":
        for row in rows:
            session.run(ADVANCE, row._asdict())
    else:
        columns = zip(*rows, strict=True)
        given = {n: list(column) for n, column in zip(Advance._fields, columns, strict=True)}
        session.run(ADVANCE, given)


def _advance_of(
    verdict: Verdict,
    stored: set[Slot],
    jobs: Mapping[Slot, Sequence[NewJob]],
    existing: Mapping[str, str],
) -> Advance:
    plan, standing = verdict.plan, verdict.standing
    dispatched = _dispatched(verdict, stored)
    # Slots that were already taken count as if they had not been tried.
    refused = len(verdict.dispatches) - len(dispatched)
    decided = [tick.tick_at for tick in verdict.ticks]
    past = [*decided, *verdict.taken, *([verdict.missed.last] if verdict.missed else [])]
    remaining = standing.remaining
    override = plan.override
    return Advance(
        plan.id,
        verdict.next_tick_at,
        verdict.due_at,
        standing.rotation_index - refused,
        None if remaining is None else remaining + refused,
        max(past, default=None),
        standing.last_dispatch_at if dispatched else plan.record.last_dispatch_at,
        job_of(jobs[dispatched[-1]], existing) if dispatched else None,
        override is not None and override.tick_at == verdict.next_tick_at,
    )


def _count(
    verdicts: Sequence[Verdict], looked_at: int, parked: int, refused: int, *, more: bool
) -> TickPass:
    dispatched = sum(len(verdict.dispatches) for verdict in verdicts)
    skipped = sum(len(verdict.ticks) for verdict in verdicts) - dispatched
    missed = sum(verdict.missed.count for verdict in verdicts if verdict.missed)
    decisions = [tick.decision for verdict in verdicts for tick in verdict.ticks]
    skips = Counter(str(each.reason) for each in decisions if isinstance(each, Skip))
    skips += Counter({str(Reason.SLOT_EXISTS): refused})
    return TickPass(looked_at, dispatched, skipped, missed, parked, more, skips)
