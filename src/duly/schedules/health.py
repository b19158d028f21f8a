"""The health of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import partial

import msgspec

from duly.model.due import GRACE_MS
from duly.model.expect import read_late
from duly.model.function import Status
from duly.model.schedule import Outcome, Plan, ScheduleRecord, TickRecord, plan_of
from duly.model.stored_values import attempt


class HealthState(StrEnum):
    """The health of a schedule."""

    OK = "ok"
    MISSED = "missed"
    PAUSED = "paused"
    NEVER_RAN = "never_ran"


class Health(msgspec.Struct, frozen=True):
    """The health of one schedule, and the reason for it."""

    id: str
    key: str
    state: HealthState
    why: str
    lag_ms: int
    """How long its next tick is overdue."""


def health_of(
    record: ScheduleRecord,
    status: Status | None,
    killed: bool,
    newest: TickRecord | None,
    now: int,
) -> Health:
    """The health of a schedule, from its row, its function's status and its newest tick."""
    lag = 0 if record.due_at is None else max(0, now - record.due_at)
    state, why = _state(record, status, killed, newest, lag)
    return Health(record.id, record.key, state, why, lag)


def _state(
    record: ScheduleRecord,
    status: Status | None,
    killed: bool,
    newest: TickRecord | None,
    lag: int,
) -> tuple[HealthState, str]:
    if record.parked_at is not None:
        return HealthState.MISSED, f"parked: {record.error}"
    if not record.enabled:
        return HealthState.PAUSED, record.note or "disabled"
    if killed:
        return HealthState.PAUSED, "everything is paused"
    if status in (Status.PAUSED, Status.DEPRECATED):
        return HealthState.PAUSED, f"{record.function} is {status}"
    if (late := read_late(record.late)) is not None:
        return HealthState.MISSED, late.problem
    if lag > GRACE_MS:
        return HealthState.MISSED, f"overdue for {lag // 1000} s; is a ticker running?"
    if newest is None:
        return HealthState.NEVER_RAN, "no tick yet"
    if newest.outcome == Outcome.MISSED:
        return HealthState.MISSED, f"{newest.count} ticks were missed"
    return HealthState.OK, "its last tick was " + newest.outcome


def understood(records: Iterable[ScheduleRecord]) -> Iterator[Plan]:
    """The schedules that are active and can be parsed; the others will be parked."""
    for record in records:
        if record.parked_at is not None or record.next_tick_at is None:
            continue
        if (plan := attempt(partial(plan_of, record), None)) is not None:
            yield plan
