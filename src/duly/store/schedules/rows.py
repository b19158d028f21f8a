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
    """A row of the table as a value."""
    fields = named(ScheduleRecord, row)
    for flag in ("enabled", "zoned"):
        fields[flag] = bool(fields[flag])
    return ScheduleRecord(**fields)


def tick_of(row: Row) -> TickRecord:
    """A row of the ledger as a value."""
    fields = named(TickRecord, row)
    fields["dst_adjusted"] = bool(fields["dst_adjusted"])
    return TickRecord(**fields)


def understand(record: ScheduleRecord, parked: dict[str, str]) -> Plan | None:
    try:
        return plan_of(record)
    except Exception as error:  # whatever is wrong with it, others must go on
        parked[record.id] = reason_of(error)
        return None


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def stood_at(plan: Plan, calendars: Mapping[str, Calendar]) -> int | None:
    """The first tick that nobody has decided yet."""
    record = plan.record
    plain = replace(plan, override=None)
    since = record.created_at if record.awake_at is None else record.awake_at
    tick_at = first_coming(plain, since, calendars)
    last = record.last_tick_at
    if last is None or tick_at is None or last < tick_at:
        return tick_at
    return first_tick(plan, last)


def overridden(plan: Plan, stood: int | None, tick_at: int | None) -> Plan:
    """The plan, in which what an operator said of the tick that it stood at holds for that tick,
    wherever that is now; and nothing if it was about another one."""
    override = plan.override
    if override is None or tick_at is None or override.tick_at != stood:
        return replace(plan, override=None)
    return replace(plan, override=replace(override, tick_at=tick_at))


def override_text(plan: Plan) -> str | None:
    """What an operator said of the next tick, as it is stored."""
    return None if plan.override is None else msgspec.json.encode(plan.override).decode()


def later(one: int | None, other: int | None) -> int | None:
    known = [instant for instant in (one, other) if instant is not None]
    return max(known, default=None)
