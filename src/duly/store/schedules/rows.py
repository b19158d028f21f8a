"""Converts between table rows and values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from duly.model.calendar import Calendar
from duly.model.due import first_coming, first_tick
from duly.model.schedule import Plan, ScheduleRecord, TickRecord, plan_of
from duly.store.statements import Statement, each
from duly.store.steps import Row, named

FIELDS = ScheduleRecord.__struct_fields__
READ = each(
    sqlite=", ".join(f"s.{name}" for name in FIELDS),
    postgres=", ".join(
        f"s.{name}::text" if name in ("id", "last_job_id") else f"s.{name}" for name in FIELDS
    ),
)
TICK_FIELDS = TickRecord.__struct_fields__
TICK_COLUMNS = ", ".join(TICK_FIELDS)
TICK_READ = each(
    sqlite=TICK_COLUMNS,
    postgres=", ".join(
        f"{name}::text" if name in ("schedule_id", "job_id") else name for name in TICK_FIELDS
    ),
)


def of_schedules(columns: str, rest: str, *, sqlite_rest: str | None = None) -> Statement:
    return each(
        sqlite=f"SELECT {columns or READ.sqlite} FROM @schedules s {sqlite_rest or rest}",
        postgres=f"SELECT {columns or READ.postgres} FROM @schedules s {rest}",
    )


def schedule_of(row: Row) -> ScheduleRecord:
    """A schedule from a row of the table."""
    fields = named(ScheduleRecord, row)
    for flag in ("enabled", "zoned"):
        fields[flag] = bool(fields[flag])
    return ScheduleRecord(**fields)


def tick_of(row: Row) -> TickRecord:
    """A tick from a row of the ledger."""
    fields = named(TickRecord, row)
    fields["dst_adjusted"] = bool(fields["dst_adjusted"])
    return TickRecord(**fields)


def understand(record: ScheduleRecord, parked: dict[str, str]) -> Plan | None:
    try:
        return plan_of(record)
    except Exception as error:  # a broken schedule must not stop the others
        parked[record.id] = reason_of(error)
        return None


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def stood_at(plan: Plan, calendars: Mapping[str, Calendar]) -> int | None:
    """The first tick that is not decided yet."""
    record = plan.record
    plain = replace(plan, override=None)
    since = record.created_at if record.awake_at is None else record.awake_at
    tick_at = first_coming(plain, since, calendars)
    last = record.last_tick_at
    if last is None or tick_at is None or last < tick_at:
        return tick_at
    return first_tick(plan, last)


def overridden(plan: Plan, stood: int | None, tick_at: int | None) -> Plan:
    """The plan with an operator's override moved to `tick_at`, if it was about the tick `stood`.

    An override of any other tick is dropped.
    """
    override = plan.override
    if override is None or tick_at is None or override.tick_at != stood:
        return replace(plan, override=None)
    return replace(plan, override=replace(override, tick_at=tick_at))


def override_text(plan: Plan) -> str | None:
    """An operator's override of the next tick, as it is stored."""
    return None if plan.override is None else msgspec.json.encode(plan.override).decode()


def later(one: int | None, other: int | None) -> int | None:
    known = [instant for instant in (one, other) if instant is not None]
    return max(known, default=None)
