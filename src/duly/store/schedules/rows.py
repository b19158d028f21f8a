"""Rows of the tables as values, and what a schedule's own row says of it."""

from __future__ import annotations

from duly.model.decide import first_tick
from duly.model.schedule import Plan, ScheduleRecord, TickRecord, plan_of
from duly.store.steps import Row


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


def understand(record: ScheduleRecord, parked: dict[str, str]) -> Plan | None:
    try:
        return plan_of(record)
    except Exception as error:  # whatever is wrong with it, others must go on
        parked[record.id] = reason_of(error)
        return None


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def stood_at(plan: Plan) -> int | None:
    """The first tick that nobody has decided yet."""
    record = plan.record
    since = later(record.last_tick_at, record.awake_at)
    return first_tick(plan, record.created_at if since is None else since)


def later(one: int | None, other: int | None) -> int | None:
    known = [instant for instant in (one, other) if instant is not None]
    return max(known, default=None)
