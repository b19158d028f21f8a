"""The schedule and tick values that users read."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from duly.calls.jobs import Job, job_from
from duly.clock import from_ms
from duly.core import Core
from duly.model.calendar import SEEDS
from duly.model.expect import Expect, read_expect, read_late
from duly.model.schedule import (
    Policies,
    ScheduleRecord,
    TickRecord,
    plan_of,
)
from duly.model.stored_values import read
from duly.model.trigger import Trigger
from duly.schedules.define import detail_of, from_json

# Public values -----------------------------------------------------------------------------------


class Schedule:
    """One schedule, as it was when it was read."""

    def __init__(self, core: Core, record: ScheduleRecord) -> None:
        self._core = core
        self._record = record

    def __repr__(self) -> str:
        return f"<schedule {self.key!r} of {self.function}: {self.status}>"

    @property
    def record(self) -> ScheduleRecord:
        """The row itself; for internal use."""
        return self._record

    @property
    def id(self) -> str:
        """The id of the schedule."""
        return self._record.id

    @property
    def key(self) -> str:
        """Its key, unique for its owner."""
        return self._record.key

    @property
    def owner(self) -> str | None:
        """Its owner, if it has one."""
        return self._record.owner or None

    @property
    def declared(self) -> bool:
        """Whether code declares it."""
        return bool(self._record.app)

    @property
    def function(self) -> str:
        """The name of the function that it calls."""
        return self._record.function

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its jobs, without redacted ones."""
        return self._core.redaction.shown_arguments(self.function, self._record.args)

    @property
    def trigger(self) -> Trigger:
        """When it runs: a `Cron`, `Every`, `At`, `Rule` or `AnyOf`."""
        return plan_of(self._record).trigger

    @property
    def policies(self) -> Policies:
        """How its ticks are treated: overlap, catch-up, jitter and others."""
        return plan_of(self._record).policies

    @property
    def tz(self) -> str:
        """The time zone of its cron expression or rule; for an interval it has no effect."""
        return self.trigger.tz

    @property
    def calendar(self) -> str | None:
        """The name of its calendar."""
        name = self._record.calendar
        if name is None or name in SEEDS:
            return name
        found = self._core.ready().calendar(name)
        return None if found is None else found.name

    @property
    def condition(self) -> dict[str, Any] | None:
        """Its condition, if it has one."""
        return None if self._record.condition is None else from_json(self._record.condition)

    @property
    def rotation(self) -> list[dict[str, Any]] | None:
        """The inputs of its rotation, without redacted ones; None if it has none."""
        if self._record.rotation is None:
            return None
        entries = read(self._record.rotation, list[msgspec.Raw], [])
        return [
            self._core.redaction.shown_arguments(self.function, bytes(entry).decode())
            for entry in entries
        ]

    @property
    def rotation_index(self) -> int:
        """How many dispatches have used its rotation."""
        return self._record.rotation_index

    @property
    def enabled(self) -> bool:
        """Whether it is enabled."""
        return self._record.enabled

    @property
    def note(self) -> str | None:
        """The note that was stored with it."""
        return self._record.note

    @property
    def changed_by(self) -> str | None:
        """Who changed it last, if that was given."""
        return self._record.changed_by

    @property
    def status(self) -> str:
        """enabled, disabled, parked (see `error`), orphaned or ended."""
        record = self._record
        if record.orphaned_at is not None:
            return "orphaned"
        if not record.enabled:
            return "disabled"
        if record.parked_at is not None:
            return "parked"
        return "enabled" if record.next_tick_at is not None else "ended"

    @property
    def error(self) -> str | None:
        """Why it is parked."""
        return self._record.error

    @property
    def next_tick(self) -> datetime | None:
        """The nominal time of the next tick."""
        return time_of(self._record.next_tick_at)

    @property
    def due(self) -> datetime | None:
        """When that tick is due: jitter, a shift or an operator may have moved it."""
        return time_of(self._record.due_at)

    @property
    def last_dispatch(self) -> datetime | None:
        """When it was last dispatched."""
        return time_of(self._record.last_dispatch_at)

    @property
    def last_job_id(self) -> str | None:
        """The id of the job of its last dispatch."""
        return self._record.last_job_id

    @property
    def remaining(self) -> int | None:
        """How many dispatches remain; None: no limit."""
        return self._record.remaining

    @property
    def start_at(self) -> datetime | None:
        """It does not tick before this time."""
        return time_of(self._record.start_at)

    @property
    def end_at(self) -> datetime | None:
        """It does not tick after this time."""
        return time_of(self._record.end_at)

    @property
    def expect(self) -> Expect | None:
        """What it promises."""
        return None if self._record.expect is None else read_expect(self._record.expect)

    @property
    def alert(self) -> str | None:
        """The function that is called, or the address that gets a POST, when it is late."""
        return self._record.alert

    @property
    def late(self) -> str | None:
        """How it missed its expectation at the last check; None if it did not."""
        late = read_late(self._record.late)
        return None if late is None else late.problem

    @property
    def version(self) -> int:
        """Increases with every change; pass it to `update` to detect concurrent changes."""
        return self._record.version

    @property
    def created(self) -> datetime:
        """When it was created."""
        return from_ms(self._record.created_at)


def time_of(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


class Tick:
    """One tick, as recorded in the ledger."""

    def __init__(self, core: Core, record: TickRecord) -> None:
        self._core = core
        self.record = record
        self.schedule_id: str = record.schedule_id
        self.kind: str = record.kind
        self.outcome: str = record.outcome
        """dispatched, skipped or missed."""
        self.reason: str | None = record.reason
        self.job_id: str | None = record.job_id
        self.rotation_index: int | None = record.rotation_index
        self.dst_adjusted: bool = record.dst_adjusted
        self.count: int | None = record.count
        """How many ticks a missed row stands for."""

    def __repr__(self) -> str:
        what = f"{self.outcome} {self.reason}" if self.reason else self.outcome
        return f"<tick {self.at.isoformat()}: {what}>"

    @property
    def at(self) -> datetime:
        """The nominal time."""
        return from_ms(self.record.tick_at)

    @property
    def first(self) -> datetime | None:
        """The first of the ticks that a missed row stands for."""
        return time_of(self.record.first_at)

    @property
    def decided(self) -> datetime:
        """When it was decided."""
        return from_ms(self.record.decided_at)

    @property
    def due(self) -> datetime:
        """When it was due: jitter, a shift or an operator may have moved it."""
        return from_ms(self.record.due_at)

    @property
    def lag(self) -> timedelta:
        """How late it was decided."""
        return timedelta(milliseconds=self.record.decided_at - self.record.due_at)

    @property
    def detail(self) -> dict[str, Any]:
        """The reason as names and values."""
        return detail_of(self.record.detail)

    @property
    def job(self) -> Job[Any] | None:
        """The job that it dispatched, if that still exists."""
        found = None if self.job_id is None else self._core.get(self.job_id)
        return None if found is None else job_from(self._core, found, self._core.get)


class Foreseen(msgspec.Struct, frozen=True):
    """One upcoming tick in a preview."""

    tick_ms: int
    utc: datetime
    local: datetime
    """In the schedule's time zone."""
    viewer: datetime
    """In the viewer's time zone."""
    due: datetime
    decision: str
    """dispatch or skip."""
    dst_adjusted: bool
    reason: str | None = None
    detail: dict[str, Any] = {}
    inputs: dict[str, Any] | None = None
    rotation_index: int | None = None
