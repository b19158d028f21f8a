"""What a ticker does in the store: lock a page of due schedules, decide, write everything down.

All of it is one transaction a page. A schedule that cannot be decided, whatever the reason, is
parked with its error and blocks nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly import fault
from duly.errors import BadInput, CalendarExists, CalendarNotFound, StoreError
from duly.ids import FIRST_ID, new_id
from duly.model.calendar import SEEDS, Calendar
from duly.model.condition import Stats, prior_run_result
from duly.model.decide import (
    Decided,
    Dispatch,
    Facts,
    InFlight,
    Prior,
    Signal,
    Standing,
    Verdict,
    due_at,
    first_tick,
    judge,
    ledger_rows,
    needs_prior,
    needs_signal,
    standing_of,
    tick_row,
)
from duly.model.job import NewJob
from duly.model.schedule import (
    DAY_MS,
    Outcome,
    Overlap,
    Plan,
    Reason,
    ScheduleRecord,
    TickKind,
    TickRecord,
    plan_of,
    read_policies,
)
from duly.store import schedule_statements as sql
from duly.store.statements import PAUSE_QUEUE, READ_META, RESUME_QUEUE
from duly.store.steps import Row
from duly.zones import zone

if TYPE_CHECKING:
    from duly.store.session import Session

log = logging.getLogger(__name__)

Range = tuple[int, int]
"""Two instants, both of them inside."""
PASS_TICKS = 1_000
"""So many ticks, and those of one more schedule, are written in one transaction at most."""
Slot = tuple[str, str, int]
"""A tick by its schedule, kind and time."""


class Order(NamedTuple):
    """A job to be made for a tick."""

    plan: Plan
    tick: Decided
    dispatch: Dispatch
    serial: bool
    kind: TickKind = TickKind.SLOT
    parent_id: str | None = None


MakeJobs = Callable[[Order, int], Sequence[NewJob]]
"""The job of a tick, first, and those that wait for its end; `now` is given."""


class Ticked(NamedTuple):
    """What a page came to."""

    looked_at: int
    dispatched: int
    skipped: int
    missed: int
    parked: int
    more: bool
    """Whether more schedules are due than a page holds."""


def added(ticked: Sequence[Ticked], *, more: bool) -> Ticked:
    """Several as if they had been one page."""
    return Ticked(
        looked_at=sum(each.looked_at for each in ticked),
        dispatched=sum(each.dispatched for each in ticked),
        skipped=sum(each.skipped for each in ticked),
        missed=sum(each.missed for each in ticked),
        parked=sum(each.parked for each in ticked),
        more=more,
    )


# The tick ----------------------------------------------------------------------------------------


def tick(
    session: Session,
    now: int,
    page: int,
    signals: Mapping[str, Signal],
    make_jobs: MakeJobs,
    *,
    zone_data: str,
    only: str | None = None,
) -> Ticked:
    """Decide one page of due schedules, or a single one, and write down what was decided."""
    where = {"now": now, "zone_data": zone_data}
    if only is None:
        rows = session.run(sql.LOCK_DUE, where | {"limit": page + 1})
    else:
        rows = session.run(sql.LOCK_ONE_DUE, where | {"id": only})
    records = [schedule_of(row) for row in rows[:page]]
    if not records:
        return Ticked(0, 0, 0, 0, 0, more=False)
    parked: dict[str, str] = {}
    plans = [plan for record in records if (plan := _understand(record, parked))]
    # Somebody else has taken those that were asked for: without an answer nothing is decided.
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
    _write(session, verdicts, jobs, now)
    for schedule_id, error in parked.items():
        park(session, schedule_id, error, now)
    fault.point("ticker.written")
    return _count(verdicts, looked_at, len(parked), more=more)


def _not_too_many(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The first of them, as far as one transaction reaches; those that catch up have many ticks."""
    ticks = 0
    for place, verdict in enumerate(verdicts):
        ticks += len(verdict.ticks)
        if ticks >= PASS_TICKS:
            return list(verdicts[: place + 1])
    return list(verdicts)


def park(session: Session, schedule_id: str, error: str, now: int) -> None:
    """Let a schedule rest that cannot be decided, and say why."""
    log.error("schedule %s is parked: %s", schedule_id, error, extra={"schedule": schedule_id})
    session.run(sql.PARK, {"id": schedule_id, "error": error, "now": now})


def schedule_of(row: Row) -> ScheduleRecord:
    """A row of the table as a value."""
    fields = list(row)
    fields[8], fields[14] = bool(fields[8]), bool(fields[14])
    return ScheduleRecord(*fields)


def tick_of(row: Row) -> TickRecord:
    """A row of the ledger as a value."""
    fields = list(row)
    fields[-1] = bool(fields[-1])
    return TickRecord(*fields)


def _understand(record: ScheduleRecord, parked: dict[str, str]) -> Plan | None:
    try:
        return plan_of(record)
    except Exception as error:  # whatever is wrong with it, others must go on
        parked[record.id] = reason_of(error)
        return None


def _judge(plan: Plan, facts: Facts, now: int, parked: dict[str, str]) -> Verdict | None:
    try:
        return judge(plan, facts, now)
    except Exception as error:  # whatever is wrong with it, others must go on
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
                order = Order(plan, tick, dispatch, serial)
                made[plan.id, TickKind.SLOT, tick.tick_at] = make_jobs(order, now)
        except StoreError:
            # Nothing that the schedule could help: all of it is tried again.
            raise
        except Exception as error:  # whatever is wrong with it, others must go on
            parked[plan.id] = reason_of(error)
    return made


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def _write(
    session: Session,
    verdicts: Sequence[Verdict],
    jobs: Mapping[Slot, Sequence[NewJob]],
    now: int,
) -> None:
    rows: list[TickRecord] = []
    for verdict in verdicts:
        mine = {
            tick.tick_at: jobs[verdict.plan.id, TickKind.SLOT, tick.tick_at][0].id
            for tick, _ in verdict.dispatches
        }
        rows += ledger_rows(verdict, mine, now)
        if verdict.cancels_others:
            cancel_others(session, verdict.plan, now)
    stored = insert_ticks(session, rows)
    fault.point("ticker.noted")
    existing = insert_jobs_of(session, {slot: jobs[slot] for slot in jobs if slot in stored})
    for verdict in verdicts:
        if verdict.cancels_others:
            _cancel_all_but_last(session, verdict, jobs, now)
    fault.point("ticker.enqueued")
    moved = [
        _advance_of(verdict, stored, jobs, existing) for verdict in verdicts if not verdict.remove
    ]
    write_advances(session, moved)
    for verdict in verdicts:
        if verdict.remove:
            session.run(sql.DELETE_SCHEDULE, {"id": verdict.plan.id})
            audit_gone(session, [verdict.plan.id], None, now)
    for verdict in verdicts:
        refused = [row.tick_at for row in rows if _was_refused(row, verdict, stored)]
        for tick_at in (*verdict.taken, *refused):
            audit_slot(session, verdict.plan.id, tick_at, None, now)


def _was_refused(row: TickRecord, verdict: Verdict, stored: set[Slot]) -> bool:
    slot = (row.schedule_id, row.kind, row.tick_at)
    is_slot = row.schedule_id == verdict.plan.id and row.kind == TickKind.SLOT
    return is_slot and slot not in stored


def insert_ticks(session: Session, rows: Sequence[TickRecord]) -> set[Slot]:
    """Write ledger rows; those that were not there before."""
    if not rows:
        return set()
    values = [msgspec.structs.astuple(row) for row in rows]
    if session.dialect == "sqlite":
        given: dict[str, Any] = {"rows": msgspec.json.encode(values).decode()}
    else:
        columns = zip(*values, strict=True)
        given = {
            name: list(column)
            for name, column in zip(TickRecord.__struct_fields__, columns, strict=True)
        }
    return {(row[0], row[1], row[2]) for row in session.run(sql.INSERT_TICKS, given)}


def insert_jobs_of(session: Session, jobs: Mapping[Slot, Sequence[NewJob]]) -> Mapping[str, str]:
    """Store the jobs of ticks; one whose key somebody holds points to the holder instead.

    Who that is, by the id that the job would have had.
    """
    if not jobs:
        return {}
    existing = session.insert_jobs([job for made in jobs.values() for job in made])
    for (schedule_id, kind, tick_at), made in jobs.items():
        if made[0].id in existing:
            where = {"schedule_id": schedule_id, "kind": kind, "tick_at": tick_at}
            session.run(sql.POINT_TICK, where | {"job_id": existing[made[0].id]})
    return existing


def _cancel_all_but_last(
    session: Session, verdict: Verdict, jobs: Mapping[Slot, Sequence[NewJob]], now: int
) -> None:
    """Of ticks that are caught up together, each one cancels those before it."""
    made = [jobs[verdict.plan.id, TickKind.SLOT, tick.tick_at] for tick, _ in verdict.dispatches]
    overtaken = [each[0].id for each in made[:-1]]
    if overtaken:
        session.cancel_live(overtaken, f"schedule:{verdict.plan.id}", now)


def cancel_others(session: Session, plan: Plan, now: int) -> None:
    """Cancel whatever of this schedule is unfinished."""
    others = [row[0] for row in session.run(sql.JOBS_OF, {"id": plan.id})]
    if others:
        session.cancel_live(others, f"schedule:{plan.id}", now)


class Advance(NamedTuple):
    """Where a schedule stands after its ticks."""

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
    """Write down where schedules stand after their ticks."""
    if not rows:
        return
    if session.dialect == "sqlite":
        for row in rows:
            session.run(sql.ADVANCE, row._asdict())
    else:
        columns = zip(*rows, strict=True)
        given = {n: list(column) for n, column in zip(Advance._fields, columns, strict=True)}
        session.run(sql.ADVANCE, given)


def _advance_of(
    verdict: Verdict,
    stored: set[Slot],
    jobs: Mapping[Slot, Sequence[NewJob]],
    existing: Mapping[str, str],
) -> Advance:
    plan, standing = verdict.plan, verdict.standing
    slots = [(plan.id, TickKind.SLOT, tick.tick_at) for tick, _ in verdict.dispatches]
    dispatched = [slot for slot in slots if slot in stored]
    # Somebody had taken them: as if they had not been tried.
    refused = len(slots) - len(dispatched)
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
        _job_of(jobs[dispatched[-1]], existing) if dispatched else None,
        override is not None and override.tick_at == verdict.next_tick_at,
    )


def _job_of(made: Sequence[NewJob], existing: Mapping[str, str]) -> str:
    """The job of a tick, which may be one that was there before."""
    return existing.get(made[0].id, made[0].id)


def _count(verdicts: Sequence[Verdict], looked_at: int, parked: int, *, more: bool) -> Ticked:
    dispatched = sum(len(verdict.dispatches) for verdict in verdicts)
    skipped = sum(len(verdict.ticks) for verdict in verdicts) - dispatched
    missed = sum(verdict.missed.count for verdict in verdicts if verdict.missed)
    return Ticked(looked_at, dispatched, skipped, missed, parked, more)


# Facts -------------------------------------------------------------------------------------------


def gather(
    session: Session,
    plans: Sequence[Plan],
    now: int,
    signals: Mapping[str, Signal] | None = None,
    ancestors: frozenset[str] = frozenset(),
    slots: Range | None = None,
) -> Facts:
    """What the ticks of these schedules are decided by: a few statements, however many they are."""
    killed = session.run(sql.KILL_SWITCH)
    return Facts(
        killed=(killed[0][0] or "") if killed else None,
        statuses=session.statuses(),
        in_flight=_in_flight(session, plans),
        calendars=calendars_of(session, plans),
        priors=_priors(session, plans, now),
        signals=signals or {},
        dispatched=_dispatched(session, plans, now),
        costs=_costs(session, plans, now),
        slots=_slots(session, plans, slots),
        ancestors=ancestors,
    )


def _in_flight(session: Session, plans: Iterable[Plan]) -> dict[str, InFlight]:
    ids = [p.id for p in plans if p.policies.overlap in (Overlap.SKIP, Overlap.BUFFER_ONE)]
    if not ids:
        return {}
    rows = session.run(sql.IN_FLIGHT, {"ids": session.array(ids)})
    return {row[0]: InFlight(row[1], row[2]) for row in rows if row[1] or row[2]}


def calendars_of(session: Session, plans: Iterable[Plan]) -> dict[str, Calendar]:
    """The attached calendars that can be read, by what a schedule calls them."""
    return _calendars(session, {plan.record.calendar for plan in plans if plan.record.calendar})


def calendars_in_use(session: Session) -> Mapping[str, Calendar]:
    """All that are attached to a schedule and can be read, by what schedules call them."""
    return _calendars(session, {row[0] for row in session.run(sql.IN_USE)})


def _calendars(session: Session, wanted: Collection[str]) -> dict[str, Calendar]:
    found = {name: SEEDS[name] for name in wanted if name in SEEDS}
    own = [name for name in wanted if name not in SEEDS]
    if own:
        for calendar_id, text in session.run(sql.ATTACHED, {"ids": session.array(own)}):
            calendar = read_calendar(text)
            if calendar is not None:
                found[calendar_id] = calendar
    for calendar in found.values():
        _check_zone(calendar)
    return found


def _check_zone(calendar: Calendar) -> None:
    """Say so if this machine does not have the zone (any more): its ticks are skipped."""
    try:
        zone(calendar.tz)
    except BadInput as error:
        log.error("calendar %r forbids every tick: %s", calendar.name, error)


def read_calendar(text: str) -> Calendar | None:
    try:
        return _decode_calendar(text)
    except Exception as error:  # a calendar that cannot be read skips its ticks
        log.error("a calendar cannot be read: %s", error)
        return None


@lru_cache(maxsize=256)
def _decode_calendar(text: str) -> Calendar:
    return Calendar.decode(msgspec.json.decode(text))


def _priors(session: Session, plans: Iterable[Plan], now: int) -> dict[str, Prior]:
    functions = {plan.record.function for plan in plans if needs_prior(plan)}
    return {function: prior_of(session, function, now) for function in sorted(functions)}


def prior_of(session: Session, function: str, now: int) -> Prior:
    """The latest finished job of a function, and what became of those of the last 24 hours.

    Jobs that are stored under another name of the function are its jobs too.
    """
    since = now - DAY_MS
    day = {"since": since, "since_id": first_id_at(since)}
    latest: list[Row] = []
    succeeded = failed = total = 0
    others = session.run(sql.NAMES_OF, {"function": function})
    for name in (function, *(row[0] for row in others)):
        latest += session.run(sql.LATEST_FINISHED, {"function": name})
        [counts] = session.run(sql.LAST_DAY, day | {"function": name})
        succeeded, failed, total = succeeded + counts[0], failed + counts[1], total + sum(counts)
    stats = Stats(*(min(count, sql.COUNTED) for count in (succeeded, failed, total)))
    if not latest:
        return Prior(None, stats)
    state, result, _ = max(latest, key=lambda row: str(row[2]))
    return Prior(prior_run_result(state, result), stats)


def first_id_at(instant: int) -> str:
    """The smallest id that a job created at this instant can have."""
    text = f"{max(0, instant):012x}"
    return f"{text[:8]}-{text[8:12]}-0000-0000-000000000000"


def _windows(plans: Iterable[Plan], now: int, *, cost: bool) -> list[tuple[str, int]]:
    """Since when each schedule with a budget counts, for whichever tick is looked at."""
    return [
        (plan.id, min(now, plan.record.next_tick_at or now) - budget.window_ms)
        for plan in plans
        if (budget := plan.policies.budget) is not None and (budget.cost is not None) == cost
    ]


def _dispatched(session: Session, plans: Iterable[Plan], now: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for schedule_id, tick_at in _in_windows(
        session, sql.DISPATCHED, _windows(plans, now, cost=False)
    ):
        found.setdefault(schedule_id, []).append(tick_at)
    return found


def _costs(session: Session, plans: Iterable[Plan], now: int) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    rows = _in_windows(session, sql.COSTS, _windows(plans, now, cost=True))
    for schedule_id, tick_at, amount in rows:
        found.setdefault(schedule_id, []).append((tick_at, amount))
    return found


def _in_windows(session: Session, statement: Any, windows: Sequence[tuple[str, int]]) -> list[Row]:
    if not windows:
        return []
    if session.dialect == "sqlite":
        return session.run(statement, {"rows": msgspec.json.encode(windows).decode()})
    ids, since = zip(*windows, strict=True)
    return session.run(statement, {"ids": list(ids), "since": list(since)})


def _slots(
    session: Session, plans: Iterable[Plan], wanted: Range | None
) -> dict[str, frozenset[int]]:
    """Slots of a range; else those that were taken before their time.

    A backfill has taken them, or the trigger itself before a clock was set back.
    """
    found: dict[str, frozenset[int]] = {}
    for plan in plans:
        record = plan.record
        since, until = wanted or (
            record.next_tick_at,
            _later(record.filled_until, record.last_tick_at),
        )
        if since is not None and until is not None and since <= until:
            rows = session.run(sql.TAKEN_SLOTS, {"id": plan.id, "since": since, "until": until})
            found[plan.id] = frozenset(row[0] for row in rows)
    return found


# Audit -------------------------------------------------------------------------------------------


class AuditEntry(NamedTuple):
    """Who did what to what, and when."""

    id: str
    at: int
    actor: str | None
    action: str
    target: str
    detail: str | None


def audit_of(session: Session, target: str, limit: int) -> list[AuditEntry]:
    rows = session.run(sql.AUDIT_OF, {"target": target, "limit": limit})
    return [AuditEntry(*row) for row in rows]


def audit(
    session: Session,
    action: str,
    target: str,
    actor: str | None,
    detail: Mapping[str, Any] | None,
    now: int,
) -> None:
    """Write down who did what to what."""
    text = None if detail is None else msgspec.json.encode(detail).decode()
    row = {"id": new_id(now), "at": now, "actor": actor, "action": action, "target": target}
    session.run(sql.AUDIT, row | {"detail": text})


def audit_gone(session: Session, schedule_ids: Iterable[str], by: str | None, now: int) -> None:
    """Schedules went with their function."""
    for schedule_id in schedule_ids:
        detail = {"because": "its function was deleted"}
        audit(session, "schedule.remove", f"schedule:{schedule_id}", by, detail, now)


def audit_slot(
    session: Session, schedule_id: str, tick_at: int, actor: str | None, now: int
) -> None:
    """A second dispatch of a slot was asked for and refused."""
    audit(session, Reason.SLOT_EXISTS, f"schedule:{schedule_id}", actor, {"tick_at": tick_at}, now)


# Runs that no trigger asked for ------------------------------------------------------------------


class Run(NamedTuple):
    """Ticks of one schedule that somebody asks for: now, or for a time that has passed."""

    kind: TickKind
    ticks: Sequence[Decided]
    standing: Standing
    filled_until: int | None = None
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
) -> list[TickRecord] | None:
    """Run ticks beside those of the trigger; what became of each. None: there is no such schedule.

    A slot that is taken is answered as such and audited; its own row stays as it is.
    """
    rows = session.run(sql.LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return None
    plan = plan_of(schedule_of(rows[0]))
    facts = gather(session, [plan], now, ancestors=ancestors, slots=slots)
    instant = now
    if slots is None:
        # Two may be run in the same millisecond, and each has a row of its own.
        [(free,)] = session.run(sql.FREE_INSTANT, {"id": plan.id, "now": now})
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
    asked = [_row_of(plan.id, chosen.kind, tick, made, now) for tick in chosen.ticks]
    left = {row.tick_at for row in asked if is_backfill and row.reason in NOT_FILLED}
    stored = insert_ticks(session, [row for row in asked if row.tick_at not in left])
    if stored and verdict.cancels_others and not is_backfill:
        cancel_others(session, plan, now)
    written = {slot: jobs for slot, jobs in made.items() if slot in stored}
    existing = insert_jobs_of(session, written)
    session.run(sql.NOTE_RUN, _noted(plan, chosen, written, existing))
    answers = [_answer(row, stored, left, existing) for row in asked]
    taken = [row.tick_at for row in answers if row.reason == Reason.SLOT_EXISTS]
    _audit_run(session, plan, chosen, len(stored), taken, by, now)
    return answers


def _audit_run(
    session: Session,
    plan: Plan,
    chosen: Run,
    new: int,
    taken: Sequence[int],
    by: str | None,
    now: int,
) -> None:
    """Who has asked for a run, or for ticks to be filled in; and each slot that was taken."""
    target = f"schedule:{plan.id}"
    ticks = [tick.tick_at for tick in chosen.ticks]
    if chosen.kind == TickKind.MANUAL:
        audit(session, "schedule.run", target, by, {"tick_at": ticks[0], **chosen.detail}, now)
    elif ticks:
        detail = {"first": ticks[0], "last": ticks[-1], "ticks": len(ticks), "new": new}
        audit(session, "schedule.backfill", target, by, detail, now)
    if taken:
        detail = {"tick_at": taken[0], "last": taken[-1], "count": len(taken)}
        audit(session, Reason.SLOT_EXISTS, target, by, detail, now)


def _row_of(
    schedule_id: str,
    kind: TickKind,
    tick: Decided,
    made: Mapping[Slot, Sequence[NewJob]],
    now: int,
) -> TickRecord:
    jobs = made.get((schedule_id, str(kind), tick.tick_at))
    return tick_row(schedule_id, kind, tick, jobs[0].id if jobs else None, now)


def _noted(
    plan: Plan,
    chosen: Run,
    written: Mapping[Slot, Sequence[NewJob]],
    existing: Mapping[str, str],
) -> dict[str, Any]:
    dispatched = list(written.values())
    # A slot that was taken after all is no dispatch.
    standing = chosen.standing if dispatched else standing_of(plan)
    return {
        "id": plan.id,
        "rotation_index": standing.rotation_index,
        "remaining": standing.remaining,
        "last_dispatch_at": standing.last_dispatch_at,
        "last_job_id": _job_of(dispatched[-1], existing) if dispatched else plan.record.last_job_id,
        "filled_until": _later(plan.record.filled_until, chosen.filled_until),
        "over": standing.is_over,
    }


def _later(one: int | None, other: int | None) -> int | None:
    known = [instant for instant in (one, other) if instant is not None]
    return max(known, default=None)


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


# Schedules as data -------------------------------------------------------------------------------

Edit = Callable[[ScheduleRecord], ScheduleRecord | None]
"""A schedule as it shall be, or None if it shall stay as it is."""


def add(session: Session, record: ScheduleRecord, by: str | None, now: int) -> bool:
    """Store a new schedule; False if its owner has one of that key."""
    record = settled(session, record)
    if not session.run(sql.INSERT_SCHEDULE, msgspec.structs.asdict(record)):
        return False
    audit(session, "schedule.create", f"schedule:{record.id}", by, {"key": record.key}, now)
    return True


def edit(
    session: Session,
    schedule_id: str,
    change: Edit,
    action: str,
    by: str | None,
    detail: Mapping[str, Any] | None,
    now: int,
) -> ScheduleRecord | None:
    """Change a schedule while nobody else looks at it; as it is then. None: there is none."""
    rows = session.run(sql.LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return None
    before = schedule_of(rows[0])
    after = change(before)
    if after is None:
        return before
    if after.calendar != before.calendar:
        after = settled(session, after)
    after = msgspec.structs.replace(after, version=before.version + 1, updated_at=now)
    session.run(sql.REPLACE_SCHEDULE, msgspec.structs.asdict(after))
    audit(session, f"schedule.{action}", f"schedule:{schedule_id}", by, detail, now)
    return after


def settled(session: Session, record: ScheduleRecord) -> ScheduleRecord:
    """The schedule, due when its calendar says so, which stays as it is until this is committed.

    Else a calendar that is edited or removed at the same time would not know of the schedule.
    """
    if record.calendar is None or record.calendar in SEEDS:
        return record
    if not session.run(sql.HOLD_CALENDAR, {"id": record.calendar}):
        raise CalendarNotFound(record.calendar)
    plan = plan_of(record)
    if plan.policies.shift is None or record.next_tick_at is None:
        return record
    moved = due_at(plan, record.next_tick_at, calendars_of(session, [plan]))
    return msgspec.structs.replace(record, due_at=moved)


def remove(session: Session, schedule_id: str, by: str | None, now: int) -> bool:
    """Remove a schedule; its jobs and its ledger stay."""
    rows = session.run(sql.LOCK_SCHEDULE, {"id": schedule_id})
    if not rows:
        return False
    session.run(sql.DELETE_SCHEDULE, {"id": schedule_id})
    key = schedule_of(rows[0]).key
    audit(session, "schedule.remove", f"schedule:{schedule_id}", by, {"key": key}, now)
    return True


class ScheduleFilter(NamedTuple):
    """Which schedules a list is about; None means any."""

    app: str | None = None
    owner: str | None = None
    function: str | None = None
    enabled: bool | None = None
    calendar: str | None = None
    parked: bool | None = None
    after_id: str | None = None
    limit: int = 100


class TickFilter(NamedTuple):
    """Which ticks of a schedule a list is about; None means any. Times are [after, before)."""

    before: int | None = None
    after: int | None = None
    outcome: str | None = None
    reason: str | None = None
    limit: int = 100


def _given(filter: ScheduleFilter | TickFilter) -> dict[str, object]:
    return {name: value for name, value in filter._asdict().items() if value is not None}


def find(session: Session, filter: ScheduleFilter) -> list[ScheduleRecord]:
    given = _given(filter)
    statement = sql.list_schedules(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [schedule_of(row) for row in session.run_text(text, given)]


def ticks(session: Session, schedule_id: str, filter: TickFilter) -> list[TickRecord]:
    given = _given(filter)
    statement = sql.list_ticks(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [tick_of(row) for row in session.run_text(text, given | {"id": schedule_id})]


def get(session: Session, schedule_id: str) -> ScheduleRecord | None:
    rows = session.run(sql.GET_SCHEDULE, {"id": schedule_id})
    return schedule_of(rows[0]) if rows else None


def find_one(session: Session, app: str, owner: str, key: str) -> ScheduleRecord | None:
    rows = session.run(sql.FIND_SCHEDULE, {"app": app, "owner": owner, "key": key})
    return schedule_of(rows[0]) if rows else None


# Calendars ---------------------------------------------------------------------------------------


class CalendarRecord(msgspec.Struct, frozen=True):
    """One calendar as it stands in the store. The order of the fields is that of the columns."""

    id: str
    owner: str
    name: str
    definition: str
    version: int
    created_at: int
    updated_at: int


def add_calendar(session: Session, record: CalendarRecord, by: str | None, now: int) -> bool:
    if not session.run(sql.INSERT_CALENDAR, msgspec.structs.asdict(record)):
        return False
    audit(session, "calendar.create", f"calendar:{record.id}", by, {"name": record.name}, now)
    return True


def edit_calendar(
    session: Session,
    calendar_id: str,
    change: Callable[[CalendarRecord], CalendarRecord | None],
    by: str | None,
    now: int,
) -> CalendarRecord | None:
    """Change a calendar; when its schedules are looked at may change with it."""
    rows = session.run(sql.LOCK_CALENDAR, {"id": calendar_id})
    if not rows:
        return None
    before = CalendarRecord(*rows[0])
    after = change(before)
    if after is None:
        return before
    if after.name != before.name:
        _reserve_name(session, after, now)
    after = msgspec.structs.replace(after, version=before.version + 1, updated_at=now)
    session.run(sql.REPLACE_CALENDAR, msgspec.structs.asdict(after))
    fault.point("calendar.replaced")
    shift_again(session, calendar_id)
    detail = _difference(before, after)
    audit(session, "calendar.update", f"calendar:{calendar_id}", by, detail, now)
    return after


def _reserve_name(session: Session, record: CalendarRecord, now: int) -> None:
    """Take a name that nobody has, as a new calendar would: two who want it cannot both get it."""
    taken = msgspec.structs.replace(record, id=new_id(now))
    if not session.run(sql.INSERT_CALENDAR, msgspec.structs.asdict(taken)):
        raise CalendarExists(record.name)
    session.run(sql.DELETE_CALENDAR, {"id": taken.id})


AUDITED_DATES = 100


def _difference(before: CalendarRecord, after: CalendarRecord) -> dict[str, Any]:
    """What an edit has changed; of many dates the first ones."""
    old, new = (read_calendar(record.definition) for record in (before, after))
    detail: dict[str, Any] = {"version": after.version}
    if old is None or new is None:
        return detail
    for field in ("name", "kind", "tz", "rules"):
        if getattr(old, field) != getattr(new, field):
            detail[field] = [getattr(old, field), getattr(new, field)]
    added, removed = new.dates.keys() - old.dates.keys(), old.dates.keys() - new.dates.keys()
    for which, dates in (("added", added), ("removed", removed)):
        if dates:
            detail[which] = [str(day) for day in sorted(dates)[:AUDITED_DATES]]
            detail[f"{which}_count"] = len(dates)
    return detail


def shift_again(session: Session, calendar_id: str, *, detached: bool = False) -> None:
    """Ticks that a calendar moves to another day are moved anew, or back."""
    after = FIRST_ID
    while rows := session.run(sql.LOCK_ATTACHED, {"calendar": calendar_id, "after": after}):
        page = [schedule_of(row) for row in rows]
        # One that cannot be understood is parked by the ticker, and is no reason not to go on.
        plans = [plan for record in page if (plan := _understand(record, {}))]
        calendars = {} if detached else calendars_of(session, plans)
        for plan in plans:
            tick_at = plan.record.next_tick_at
            if plan.policies.shift is not None and tick_at is not None:
                moved = due_at(plan, tick_at, calendars)
                session.run(sql.MOVE_DUE, {"id": plan.id, "due_at": moved})
        after = page[-1].id


def remove_calendar(session: Session, calendar_id: str, by: str | None, now: int) -> bool:
    """Remove a calendar; the schedules that it was attached to go on without it."""
    rows = session.run(sql.LOCK_CALENDAR, {"id": calendar_id})
    if not rows:
        return False
    shift_again(session, calendar_id, detached=True)
    detached = len(session.run(sql.DETACH_ALL, {"id": calendar_id, "now": now}))
    fault.point("calendar.detached")
    session.run(sql.DELETE_CALENDAR, {"id": calendar_id})
    detail = {"name": CalendarRecord(*rows[0]).name, "detached": detached}
    audit(session, "calendar.remove", f"calendar:{calendar_id}", by, detail, now)
    return True


def find_calendars(
    session: Session, owner: str | None, after: str | None, limit: int
) -> list[CalendarRecord]:
    """A page of calendars, oldest first."""
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [CalendarRecord(*row) for row in session.run(sql.CALENDARS, given)]


def get_calendar(session: Session, calendar_id: str) -> CalendarRecord | None:
    rows = session.run(sql.GET_CALENDAR, {"id": calendar_id})
    return CalendarRecord(*rows[0]) if rows else None


def calendar_named(session: Session, owner: str, name: str) -> CalendarRecord | None:
    rows = session.run(sql.CALENDAR_NAMED, {"owner": owner, "name": name})
    return CalendarRecord(*rows[0]) if rows else None


# The kill switch ---------------------------------------------------------------------------------


def pause_everything(session: Session, by: str | None, note: str | None, now: int) -> None:
    session.run(PAUSE_QUEUE, {"name": sql.EVERYTHING, "by": by, "note": note, "now": now})
    audit(session, "pause", "everything", by, {"note": note}, now)


def resume_everything(session: Session, by: str | None, now: int) -> bool:
    if not session.run(sql.KILL_SWITCH):
        return False
    session.run(RESUME_QUEUE, {"name": sql.EVERYTHING})
    audit(session, "resume", "everything", by, None, now)
    return True


# Parked for want of a function ------------------------------------------------------------------


REVIVED_AT_ONCE = 100
"""As many as LOCK_PARKED gives."""


def missing_functions(session: Session) -> list[str]:
    """The functions that nobody knew when schedules called for them."""
    return [row[0] for row in session.run(sql.MISSING_FUNCTIONS)]


def revive(session: Session, functions: Iterable[str], now: int) -> int:
    """Let some schedules of functions that are known again tick, from where they were; how many."""
    names = session.array(functions)
    found = [schedule_of(row) for row in session.run(sql.LOCK_PARKED, {"functions": names})]
    for record in found:
        _revive(session, record, now)
    return len(found)


def _revive(session: Session, record: ScheduleRecord, now: int, *, anew: bool = False) -> None:
    """Let a schedule go on with the tick that it stood at, or with that tick computed anew.

    How much of what has come meanwhile is caught up, its policies say.
    """
    parked: dict[str, str] = {}
    plan = _understand(msgspec.structs.replace(record, override=None), parked)
    if plan is None:
        park(session, record.id, parked[record.id], now)
        return
    tick_at = _stood_at(plan) if anew else record.parked_tick
    due = None if tick_at is None else due_at(plan, tick_at, calendars_of(session, [plan]))
    session.run(sql.REVIVE, {"next_tick_at": tick_at, "due_at": due, "id": record.id})
    log.info("schedule %s is parked no longer", record.id, extra={"schedule": record.id})
    audit(session, "schedule.revive", f"schedule:{record.id}", None, {"was": record.error}, now)


# Zone data ---------------------------------------------------------------------------------------

ZONE_DATA, ZONE_DATA_DONE = "zone_data", "zone_data_done"
"""The version that a ticker must have, and the one that all ticks were computed with."""


def has_zone_data(session: Session, version: str) -> bool:
    """Whether ticks were computed with this version, or a later one is required."""
    meta: dict[str, str] = dict(session.run(READ_META))
    return meta.get(ZONE_DATA, "") > version or meta.get(ZONE_DATA_DONE, "") == version


def take_zone_data(session: Session, version: str) -> bool:
    """From now on only those who have this version, or a later one, decide about zoned schedules.

    Whether stored ticks have to be computed anew with it.
    """
    session.run(sql.RAISE_META, {"key": ZONE_DATA, "value": version})
    required, done = (_meta(session, key) for key in (ZONE_DATA, ZONE_DATA_DONE))
    return required == version and done < version


def _meta(session: Session, key: str) -> str:
    rows = session.run(sql.HOLD_META, {"key": key})
    value: str = rows[0][0] if rows else ""
    return value


def compute_zoned(session: Session, version: str, after: str, now: int) -> str | None:
    """Compute the next tick of some zoned schedules anew; the last of them, None at the end."""
    if _meta(session, ZONE_DATA) != version:
        return None  # somebody with a later version does it
    page = [schedule_of(row) for row in session.run(sql.LOCK_ZONED, {"after": after})]
    plans = [plan for record in page if (plan := _understand(record, {}))]
    calendars = calendars_of(session, plans)
    for plan in plans:
        if plan.record.parked_at is not None:
            _revive(session, plan.record, now, anew=True)
        else:
            _compute_anew(session, plan, calendars, version, now)
    if page:
        return page[-1].id
    session.run(sql.RAISE_META, {"key": ZONE_DATA_DONE, "value": version})
    return None


def _compute_anew(
    session: Session, plan: Plan, calendars: Mapping[str, Calendar], version: str, now: int
) -> None:
    record, override = plan.record, plan.override
    tick_at = _stood_at(plan)
    if tick_at == record.next_tick_at:
        return
    if override is not None and override.tick_at == record.next_tick_at and tick_at is not None:
        plan = msgspec.structs.replace(
            plan, override=msgspec.structs.replace(override, tick_at=tick_at)
        )
    due = None if tick_at is None else due_at(plan, tick_at, calendars)
    stored = None if plan.override is None else msgspec.json.encode(plan.override).decode()
    times = {"next_tick_at": tick_at, "due_at": due, "override": stored}
    session.run(sql.MOVE_TICK, times | {"id": plan.id})
    detail = {"version": version, "from": record.next_tick_at, "to": tick_at}
    audit(session, "schedule.zone_data", f"schedule:{plan.id}", None, detail, now)


def _stood_at(plan: Plan) -> int | None:
    """The first tick that nobody has decided yet."""
    record = plan.record
    since = _later(record.last_tick_at, record.awake_at)
    return first_tick(plan, record.created_at if since is None else since)


# Retention ---------------------------------------------------------------------------------------

BATCH = 1_000


class Old(NamedTuple):
    """Ticks of one schedule and kind that are to go: all before an instant."""

    schedule_id: str
    kind: str
    before: int


def old_ticks(session: Session, after: str, cutoff: int) -> tuple[str, list[Old], dict[str, int]]:
    """What may go of the schedules that come after one.

    The last schedule looked at ("" at the end), its ticks, and since when its costs count.
    """
    rows = session.run(sql.IN_LEDGER, {"after": after})
    found: list[Old] = []
    costs: dict[str, int] = {}
    for schedule_id, policies in rows:
        until = cutoff if policies is None else cutoff - _beyond(policies)
        ticks = (_old_of(session, schedule_id, kind, policies is None, until) for kind in TickKind)
        found += [old for old in ticks if old is not None]
        if session.run(sql.HAS_OLD_COSTS, {"id": schedule_id, "before": until}):
            costs[schedule_id] = until
    return (rows[-1][0] if rows else ""), found, costs


def _beyond(policies: str) -> int:
    """How much longer than usual a schedule needs its ledger: its budget looks back."""
    try:
        budget = read_policies(policies).budget
    except Exception:  # what cannot be read decides nothing
        return 0
    return 0 if budget is None else budget.window_ms


def _old_of(session: Session, schedule_id: str, kind: str, gone: bool, until: int) -> Old | None:
    where = {"id": schedule_id, "kind": kind}
    if not gone:
        newest = session.run(sql.HUNDREDTH, where)
        if not newest:
            return None
        until = min(until, newest[0][0])
    if not session.run(sql.HAS_OLD, where | {"before": until}):
        return None
    return Old(schedule_id, kind, until)


def forget_ticks(session: Session, old: Old) -> int:
    """Remove some of these ticks, oldest first, and keep one row for every day; how many."""
    where = {"id": old.schedule_id, "kind": old.kind, "before": old.before}
    batch = session.run(sql.END_OF_BATCH, where | {"most": BATCH})
    if batch:
        where |= {"before": batch[0][0]}
    session.run(sql.ROLL_UP_TICKS, where)
    return len(session.run(sql.FORGET_TICKS, where))


def forget_costs(session: Session, costs: Mapping[str, int]) -> None:
    for schedule_id, before in costs.items():
        session.run(sql.FORGET_COSTS, {"id": schedule_id, "before": before})


class Day(NamedTuple):
    """What is left of the ticks and jobs of a schedule and a day (UTC) when they are gone."""

    day: int
    dispatched: int
    skipped: int
    missed: int
    succeeded: int
    failed: int
    canceled: int


def days_of(session: Session, schedule_id: str) -> list[Day]:
    return [Day(*row) for row in session.run(sql.DAYS_OF, {"id": schedule_id})]
