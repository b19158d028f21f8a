"""Explains why a schedule has not run, with the reasons in the order in which to resolve them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from duly.clock import from_ms
from duly.model.decide import Decided, Skip
from duly.model.function import FunctionInfo, Status
from duly.model.job import JobRecord
from duly.model.schedule import Outcome, Reason, ScheduleRecord, TickRecord
from duly.model.why import Pause, by_whom


class ScheduleCause(StrEnum):
    """The kind of a reason."""

    ORPHANED = "orphaned"
    DISABLED = "disabled"
    PARKED = "parked"
    ENDED = "ended"
    EVERYTHING_PAUSED = "everything_paused"
    FUNCTION_PAUSED = "function_paused"
    FUNCTION_DEPRECATED = "function_deprecated"
    FUNCTION_DELETED = "function_deleted"
    OVERDUE = "overdue"
    PROMISE_BROKEN = "promise_broken"
    NEVER_TICKED = "never_ticked"
    LAST_DISPATCHED = "last_dispatched"
    LAST_SKIPPED = "last_skipped"
    LAST_MISSED = "last_missed"
    NEXT_SKIPPED = "next_skipped"
    NEXT_TICK = "next_tick"


class ScheduleReason(msgspec.Struct, frozen=True):
    """One reason, as data and in words."""

    cause: ScheduleCause
    text: str
    reason: str | None = None
    """Why a tick was skipped, or would be."""
    jobs: tuple[str, ...] = ()
    """The jobs concerned, by id."""
    until: int | None = None
    """When the next tick, or the first that would be dispatched, is due, in milliseconds."""


class ScheduleFacts(msgspec.Struct, frozen=True):
    """What is known of a schedule at one moment."""

    record: ScheduleRecord
    function: FunctionInfo | None
    kill_switch: Pause | None
    disabled: Pause | None
    """Who disabled it, and why; None if it is enabled."""
    late: str | None
    """How it missed its expectation."""
    newest: TickRecord | None
    """Its last tick, as recorded in the ledger."""
    detail: Mapping[str, Any]
    """The detail of the last tick."""
    job: JobRecord | None
    """The job of its last tick."""
    coming: Sequence[Decided]
    """The next ticks, as they would be decided now."""
    has_workers: bool
    """Whether a worker is running; most include a ticker. `duly ticker` is not in the store."""


TICKER_PATIENCE_MS = 5_000
"""A ticker polls every second, so a tick that has been due for longer has no ticker."""
STOPPED_CAUSES = frozenset(
    {
        ScheduleCause.ORPHANED,
        ScheduleCause.DISABLED,
        ScheduleCause.PARKED,
        ScheduleCause.ENDED,
        ScheduleCause.EVERYTHING_PAUSED,
        ScheduleCause.FUNCTION_PAUSED,
        ScheduleCause.FUNCTION_DEPRECATED,
        ScheduleCause.FUNCTION_DELETED,
        ScheduleCause.OVERDUE,
    }
)
"""With one of these, nothing runs until an operator acts, or the schedule has ended."""
_REPORTED_BEFORE = frozenset({Reason.KILL_SWITCH, Reason.TARGET_PAUSED, Reason.TARGET_DEPRECATED})


def schedule_reasons(facts: ScheduleFacts, now: int) -> list[ScheduleReason]:
    """All reasons, in the order in which to resolve them; never empty."""
    found = [*_of_itself(facts), *_of_what_is_paused(facts), *_of_lateness(facts, now)]
    found.append(_last(facts))
    resting = facts.record.next_tick_at is None
    overdue = any(reason.cause == ScheduleCause.OVERDUE for reason in found)
    if not resting and not overdue:
        found.append(_next(facts, now))
    return found


def schedule_sentence(key: str, found: Sequence[ScheduleReason]) -> str:
    """The reasons as a sentence."""
    stands = found[0].cause in STOPPED_CAUSES
    head = f"{key} does not run" if stands else f"{key} is waiting for its next tick"
    return f"{head}: {'; '.join(reason.text for reason in found)}."


def _of_itself(facts: ScheduleFacts) -> list[ScheduleReason]:
    record = facts.record
    if record.orphaned_at is not None:
        return [ScheduleReason(ScheduleCause.ORPHANED, "code no longer declares it")]
    if facts.disabled is not None:
        by = by_whom(facts.disabled.by, facts.disabled.note)
        return [ScheduleReason(ScheduleCause.DISABLED, f"it is disabled{by}")]
    if record.parked_at is not None:
        since = moment(record.parked_at)
        text = f"it has been parked since {since}: {record.error}"
        return [ScheduleReason(ScheduleCause.PARKED, text)]
    if record.next_tick_at is None:
        return [ScheduleReason(ScheduleCause.ENDED, _ended(record))]
    return []


def _ended(record: ScheduleRecord) -> str:
    if record.remaining == 0:
        return "it has ended: it has used up its dispatches"
    if record.end_at is not None:
        return f"it has ended: it has no more ticks up to {moment(record.end_at)}"
    return "it has ended: its trigger has no more ticks"


def _of_what_is_paused(facts: ScheduleFacts) -> list[ScheduleReason]:
    found: list[ScheduleReason] = []
    switch, info = facts.kill_switch, facts.function
    if switch is not None:
        text = f"everything is paused{by_whom(switch.by, switch.note)}"
        found.append(ScheduleReason(ScheduleCause.EVERYTHING_PAUSED, text))
    if info is not None and info.status != Status.ACTIVE:
        by = by_whom(info.status_by, info.status_note)
        text = f"its function {info.name} is {info.status.value}{by}"
        found.append(ScheduleReason(ScheduleCause(f"function_{info.status.value}"), text))
    return found


def _of_lateness(facts: ScheduleFacts, now: int) -> list[ScheduleReason]:
    record = facts.record
    found: list[ScheduleReason] = []
    lag = 0 if record.due_at is None else now - record.due_at
    at = moment(record.next_tick_at)
    is_due = record.next_tick_at is not None and record.due_at is not None and lag >= 0
    if is_due and lag >= TICKER_PATIENCE_MS:
        text = f"its tick of {at} has been overdue for {lag // 1000} s; start a ticker"
        found.append(ScheduleReason(ScheduleCause.OVERDUE, text))
    elif is_due and not facts.has_workers:
        text = f"its tick of {at} is due, but no worker is running; start a worker or a ticker"
        found.append(ScheduleReason(ScheduleCause.OVERDUE, text))
    if facts.late is not None:
        text = f"it is late: {facts.late}"
        found.append(ScheduleReason(ScheduleCause.PROMISE_BROKEN, text))
    return found


def _last(facts: ScheduleFacts) -> ScheduleReason:
    tick = facts.newest
    if tick is None:
        return ScheduleReason(ScheduleCause.NEVER_TICKED, "it has not ticked yet")
    at = moment(tick.tick_at)
    if tick.outcome == Outcome.MISSED:
        text = f"its last ticks ({tick.count}, up to {at}) were missed: no ticker ran in time"
        return ScheduleReason(ScheduleCause.LAST_MISSED, text)
    if tick.outcome == Outcome.SKIPPED:
        words = in_words(str(tick.reason), facts.detail)
        ran = facts.record.last_dispatch_at
        before = "never dispatched" if ran is None else f"last dispatched at {moment(ran)}"
        return ScheduleReason(
            ScheduleCause.LAST_SKIPPED,
            f"its last tick, {at}, was skipped: {words}; the schedule was {before}",
            tick.reason,
            _jobs_in(facts.detail),
        )
    jobs = () if tick.job_id is None else (tick.job_id,)
    text = f"its last tick, {at}, was dispatched as job {tick.job_id}, {_fate(facts.job)}"
    return ScheduleReason(ScheduleCause.LAST_DISPATCHED, text, jobs=jobs)


def _fate(job: JobRecord | None) -> str:
    if job is None:
        return "which is no longer kept"
    if job.state.is_terminal:
        return "which was canceled" if job.state == "canceled" else f"which {job.state}"
    return f"which is {job.state}"


def _next(facts: ScheduleFacts, now: int) -> ScheduleReason:
    record = facts.record
    assert record.next_tick_at is not None
    at, due = moment(record.next_tick_at), record.due_at
    when = at if due in (None, record.next_tick_at) else f"{at} (due {moment(due)})"
    first = next((each for each in facts.coming if each.tick_at == record.next_tick_at), None)
    if first is None or not isinstance(first.decision, Skip):
        is_due = due is not None and due <= now
        said = f"its tick of {when} is due; a ticker processes it immediately, if one is running"
        said = said if is_due else f"its next tick is {when}"
        return ScheduleReason(ScheduleCause.NEXT_TICK, said, until=None if is_due else due)
    skip = first.decision
    if skip.reason in _REPORTED_BEFORE:
        text = f"its next tick is {when}, which would be skipped"
        return ScheduleReason(ScheduleCause.NEXT_TICK, text, skip.reason.value, until=due)
    later = next((t for t in facts.coming if not isinstance(t.decision, Skip)), None)
    until = None if later is None else later.due_at
    then = _then(skip, facts.coming, until)
    text = f"its next tick, {when}, would be skipped: {in_words(skip.reason, skip.detail)}; {then}"
    jobs = _jobs_in(skip.detail)
    return ScheduleReason(ScheduleCause.NEXT_SKIPPED, text, skip.reason.value, jobs, until)


def _then(skip: Skip, coming: Sequence[Decided], until: int | None) -> str:
    if until is not None:
        return f"the first that would be dispatched is {moment(until)}"
    if skip.reason == Reason.OVERLAP_IN_FLIGHT:
        return "unless that job ends first"
    more = len(coming) - 1
    return f"and so would {more} more after it" if more else "it is the last"


def _jobs_in(detail: Mapping[str, Any]) -> tuple[str, ...]:
    job = detail.get("job")
    return (job,) if isinstance(job, str) else ()


# Words -------------------------------------------------------------------------------------------


def in_words(reason: str, detail: Mapping[str, Any]) -> str:
    """In words, why a tick was skipped, from a ledger row or a preview."""
    said = detail.get("why") or detail.get("error")
    match reason:
        case Reason.CALENDAR:
            return f"{said}" if said else f"the calendar {detail.get('calendar', '')} forbids it"
        case Reason.CONDITION_FAILED:
            return f"condition not met: {said}" if said else "condition not met"
        case Reason.BUDGET_EXCEEDED:
            return _of_budget(detail)
        case Reason.OVERLAP_IN_FLIGHT:
            job = detail.get("job")
            return f"job {job} is unfinished" if job else "a job of an earlier tick is waiting"
        case Reason.CYCLE_DETECTED:
            return "a job of the same schedule requested it"
        case Reason.SLOT_EXISTS:
            return "it is already in the ledger"
        case Reason.TARGET_PAUSED:
            return f"function {detail.get('function', '')} is paused"
        case Reason.TARGET_DEPRECATED:
            return f"function {detail.get('function', '')} is deprecated"
        case Reason.KILL_SWITCH:
            return f"everything was paused{by_whom(detail.get('by'), None)}"
        case Reason.OPERATOR:
            return f"skipped by {detail.get('by') or 'an operator'}"
        case _:
            return reason


def _of_budget(detail: Mapping[str, Any]) -> str:
    what = "runs" if "runs" in detail else "cost"
    spent = f"{detail.get('spent')} of {detail.get(what)} {what}"
    return f"budget used up: {spent} in {detail.get('per')} s"


def moment(ms: int | None) -> str:
    if ms is None:
        return "never"
    return f"{from_ms(ms):%Y-%m-%dT%H:%M:%SZ}"
