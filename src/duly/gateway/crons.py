"""Gateway crons as values: when they run next, and how a finished run changes them.

Nothing here touches a database, a clock or the network. Instants are integer milliseconds.
"""

# Values from the network, or from callers without a type checker, may contradict the types.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from duly.clock import from_ms, to_ms
from duly.errors import BadInput, InvalidOption, InvalidTime
from duly.functions.checks import check_text
from duly.functions.times import within_five_years
from duly.model.nesting import MAX_DEPTH, depth_of
from duly.model.trigger import At, Cron, Every, GatewayTrigger, is_same_time

MAX_LISTED = 200
MAX_CRONS = 1_000
MAX_PAYLOAD = 16 << 10
MAX_ERROR = 1_000
MAX_TOLD = 4 * MAX_PAYLOAD
"""The largest cron that is accepted from a gateway, in bytes of JSON."""
BACKOFF_MS = (30_000, 60_000, 300_000, 900_000, 3_600_000)
"""The least pause after a cron's first, second, … consecutive error; the last is for any more."""


class Status(StrEnum):
    """How the last run of a cron ended."""

    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    """The gateway ended during the run."""


class Mode(StrEnum):
    """Which cron `cron_run` runs: any, or only one that is due."""

    FORCE = "force"
    DUE = "due"


class NotRun(StrEnum):
    """Why a cron was not run."""

    NOT_DUE = "not-due"
    ALREADY_RUNNING = "already-running"


ScheduleData: TypeAlias = Mapping[str, Any]
"""{"kind": "at", "at": …}, {"kind": "every", "every_ms": …} or {"kind": "cron", "cron": …}."""


class CronRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cron as its gateway stores it. The fields are in the order of the columns."""

    id: str
    name: str
    handler: str
    schedule: str
    enabled: bool = True
    payload: str = "{}"
    next_at: int | None = None
    running_at: int | None = None
    last_run_at: int | None = None
    last_status: str | None = None
    last_error: str | None = None
    last_duration_ms: int | None = None
    errors: int = 0
    revision: int = 0
    """How often its schedule was changed or it was enabled or disabled."""
    created_at: int = 0
    updated_at: int = 0

    @property
    def trigger(self) -> GatewayTrigger:
        return read_schedule(msgspec.json.decode(self.schedule))


class GatewayCron(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway's cron at the time it was read."""

    id: str
    name: str
    handler: str
    schedule: dict[str, Any]
    enabled: bool
    payload: dict[str, Any]
    next_at: datetime | None = None
    running_at: datetime | None = None
    last_run_at: datetime | None = None
    last_status: str | None = None
    """ok, error or interrupted."""
    last_error: str | None = None
    last_duration_ms: int | None = None
    consecutive_errors: int = 0
    created_at: datetime
    updated_at: datetime

    @property
    def trigger(self) -> GatewayTrigger:
        """Its schedule as a `Cron`, `Every` or `At`."""
        return read_schedule(self.schedule)

    @property
    def tz(self) -> str:
        """The time zone of its schedule; UTC if the schedule cannot be read."""
        try:
            return self.trigger.tz
        except BadInput:
            return "UTC"

    @property
    def unreadable(self) -> str | None:
        """Why its schedule cannot be read here: a newer gateway may have other kinds."""
        try:
            read_schedule(self.schedule)
        except BadInput as error:
            return f"its schedule cannot be read: {error}"[:MAX_ERROR]
        return None


class NewCron(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request for a new cron; unknown fields are refused."""

    handler: str
    schedule: dict[str, Any]
    name: str | None = None
    """Default: the name of its handler."""
    payload: dict[str, Any] = {}
    enabled: bool = True
    id: str | None = None
    """A UUID chosen by the caller, so that a repeated request creates only one cron."""


class CronChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The changes to a cron; unknown fields are refused."""

    handler: str | UnsetType = UNSET
    schedule: dict[str, Any] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class RunAnswer(msgspec.Struct, frozen=True):
    """Whether `cron_run` started a run, or why not."""

    ran: bool
    reason: str | None = None
    """not-due or already-running."""


class RemoveAnswer(msgspec.Struct, frozen=True):
    """Whether there was a cron to remove."""

    removed: bool


class CronPage(msgspec.Struct, frozen=True):
    """A page of crons, oldest first; `after` is the cursor of the next page, if there is one."""

    crons: tuple[GatewayCron, ...]
    after: str | None = None


def as_seen(record: CronRecord) -> GatewayCron:
    """The public form of a cron."""
    return GatewayCron(
        id=record.id,
        name=record.name,
        handler=record.handler,
        schedule=msgspec.json.decode(record.schedule),
        enabled=record.enabled,
        payload=msgspec.json.decode(record.payload),
        next_at=_time(record.next_at),
        running_at=_time(record.running_at),
        last_run_at=_time(record.last_run_at),
        last_status=record.last_status,
        last_error=record.last_error,
        last_duration_ms=record.last_duration_ms,
        consecutive_errors=record.errors,
        created_at=from_ms(record.created_at),
        updated_at=from_ms(record.updated_at),
    )


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


# Crons reported by a gateway ---------------------------------------------------------------------

_LATEST = datetime(9000, 1, 1, tzinfo=UTC)
_LARGEST = 2**53 - 1


def sensible(cron: GatewayCron) -> GatewayCron | None:
    """A cron from a gateway, without impossible values; None if its id, name or handler is one.

    A schedule that cannot be read here is kept: other clients may be able to read it.
    """
    try:
        for field in ("id", "name", "handler"):
            check_text(field, getattr(cron, field))
    except InvalidOption:
        return None
    if len(msgspec.json.encode(cron)) > MAX_TOLD:
        return None
    return replace(
        cron,
        next_at=_believed(cron.next_at),
        running_at=_believed(cron.running_at),
        last_run_at=_believed(cron.last_run_at),
        last_status=_shown(cron.last_status),
        last_error=_shown(cron.last_error),
        last_duration_ms=_count(cron.last_duration_ms),
        consecutive_errors=_count(cron.consecutive_errors) or 0,
        created_at=_believed(cron.created_at) or from_ms(0),
        updated_at=_believed(cron.updated_at) or from_ms(0),
    )


def _believed(when: datetime | None) -> datetime | None:
    """An instant in UTC; None if no time zone could display it."""
    if when is None:
        return None
    try:
        instant = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except OverflowError:
        return None
    return instant if from_ms(0) <= instant < _LATEST else None


def _count(value: int | None) -> int | None:
    return value if value is not None and 0 <= value <= _LARGEST else None


def _shown(text: str | None) -> str | None:
    return None if text is None else printable(text)


def printable(text: str, most: int = MAX_ERROR) -> str:
    """The start of foreign text, made safe for any store, log and terminal."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for each in text[:most]
    )


# Schedules as data -------------------------------------------------------------------------------

_FIELDS = {
    "at": ("at",),
    "every": ("every_ms", "anchor_ms", "tz"),
    "cron": ("cron", "tz", "spread"),
}


def read_schedule(data: ScheduleData | GatewayTrigger) -> GatewayTrigger:
    """A schedule from data; unknown fields are refused by name."""
    if isinstance(data, Cron | Every | At):
        return data
    if not isinstance(data, Mapping):
        raise InvalidOption("schedule", f"give an object, not {data!r}", _EXAMPLE)
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise InvalidOption("schedule.kind", f"write at, every or cron, not {kind!r}", _EXAMPLE)
    first, *others = _FIELDS[kind]
    for name in data:
        if name not in ("kind", first, *others):
            known = ", ".join((first, *others))
            raise InvalidOption(f"schedule.{name}", f"a schedule of kind {kind} takes only {known}")
    if first not in data:
        raise InvalidOption(f"schedule.{first}", f"a schedule of kind {kind} needs it", _EXAMPLE)
    if kind == "at":
        return At(_instant(data["at"]))
    tz = "UTC" if data.get("tz") is None else data["tz"]
    if kind == "every":
        return Every(data["every_ms"], data.get("anchor_ms"), tz)
    return Cron(data["cron"], tz, data.get("spread", ""))


_EXAMPLE = (
    'for example {"kind": "every", "every_ms": 300000}, {"kind": "cron", "cron": "0 9 * * 1-5", '
    '"tz": "Europe/Istanbul"} or {"kind": "at", "at": "2026-07-01T09:00:00Z"}'
)


def write_schedule(trigger: GatewayTrigger) -> dict[str, Any]:
    """A schedule as data, the reverse of `read_schedule`."""
    if isinstance(trigger, At):
        return {"kind": "at", "at": from_ms(trigger.instant).isoformat().replace("+00:00", "Z")}
    if isinstance(trigger, Every):
        anchor = {} if trigger.anchor is None else {"anchor_ms": trigger.anchor}
        tz = {} if trigger.tz == "UTC" else {"tz": trigger.tz}
        return {"kind": "every", "every_ms": trigger.milliseconds, **anchor, **tz}
    spread = {"spread": trigger.spread} if trigger.spread else {}
    return {"kind": "cron", "cron": trigger.expression, "tz": trigger.tz, **spread}


def _instant(at: object) -> int:
    """An instant from milliseconds or ISO 8601, which is UTC without an offset."""
    if type(at) is int:
        return at
    if not isinstance(at, str | datetime):
        raise InvalidTime(f"give a date and time, not {at!r}", "schedule.at")
    try:
        when = at if isinstance(at, datetime) else datetime.fromisoformat(at)
        # Near the first and last instants, the offset can lead beyond the range of datetime.
        return to_ms(when.replace(tzinfo=UTC) if when.utcoffset() is None else when)
    except (ValueError, OverflowError):
        reason = f"{str(at)[:50]!r} is not a date and time"
        raise InvalidTime(reason, "schedule.at", "write 2026-07-01T09:00:00Z") from None


# Time --------------------------------------------------------------------------------------------


def next_after(trigger: GatewayTrigger, instant: int) -> int | None:
    """The first time after an instant; None if there is none."""
    return trigger.next_after(instant)


def backoff_ms(errors: int) -> int:
    """The least pause of a cron after this number of consecutive errors."""
    return BACKOFF_MS[min(errors, len(BACKOFF_MS)) - 1] if errors else 0


def _scheduled(record: CronRecord, now: int) -> CronRecord:
    """The cron with the time of its next run, counted from now."""
    if not record.enabled:
        return replace(record, next_at=None)
    trigger = record.trigger
    if isinstance(trigger, At) and trigger.instant < now:
        reason = f"{from_ms(trigger.instant).isoformat()} is in the past"
        raise InvalidTime(reason, "schedule.at", "give a later time")
    # An `at` of exactly now still runs.
    found = next_after(trigger, now - 1 if isinstance(trigger, At) else now)
    return replace(record, next_at=found)


# Verbs -------------------------------------------------------------------------------------------


def new_cron(cron_id: str, given: NewCron, now: int) -> CronRecord:
    """The record of a new cron."""
    record = CronRecord(
        id=cron_id,
        name=_name("name", given.handler if given.name is None else given.name),
        handler=_name("handler", given.handler),
        schedule=_stored(read_schedule(given.schedule), cron_id, now),
        enabled=_flag(given.enabled),
        payload=_payload(given.payload),
        created_at=now,
        updated_at=now,
    )
    return _scheduled(record, now)


def changed(record: CronRecord, changes: CronChanges, now: int) -> CronRecord:
    """The cron with these changes.

    A new schedule, and enabling or disabling, takes effect from now; other changes leave the next
    run as it is. A schedule without a time zone keeps its current one.
    """
    edited: dict[str, Any] = {"updated_at": now}
    if changes.name is not UNSET:
        edited["name"] = _name("name", changes.name)
    if changes.handler is not UNSET:
        edited["handler"] = _name("handler", changes.handler)
    if changes.payload is not UNSET:
        edited["payload"] = _payload(changes.payload)
    if changes.enabled is not UNSET:
        edited["enabled"] = _flag(changes.enabled)
    if changes.schedule is not UNSET:
        edited["schedule"] = _rescheduled(record, changes.schedule, now)
    after = replace(record, **edited)
    if after.enabled == record.enabled and _is_same_time(record, after):
        return after
    return _scheduled(replace(after, revision=record.revision + 1), now)


def _is_same_time(before: CronRecord, after: CronRecord) -> bool:
    if before.schedule == after.schedule:
        return True
    return is_same_time(before.trigger, after.trigger)


def _rescheduled(record: CronRecord, given: ScheduleData, now: int) -> str:
    """The new schedule to store, with the current anchor, seed and zone."""
    present = record.trigger
    if given.get("kind") in ("cron", "every"):
        given = {"tz": present.tz, **given}
    trigger = read_schedule(given)
    if isinstance(present, Every) and replace(present, anchor=None, tz=trigger.tz) == trigger:
        trigger = replace(present, tz=trigger.tz)
    elif isinstance(present, Cron) and replace(present, spread="") == trigger:
        trigger = present
    return record.schedule if trigger == present else _stored(trigger, record.id, now)


def _stored(trigger: GatewayTrigger, cron_id: str, now: int) -> str:
    if isinstance(trigger, Every):
        trigger = trigger.anchored(now + trigger.milliseconds)
    elif isinstance(trigger, Cron):
        # The values for an H depend on the cron's id.
        trigger = trigger.spread_by(cron_id) if "h" in trigger.expression.lower() else trigger
    else:
        within_five_years(trigger.instant, now)
    return msgspec.json.encode(write_schedule(trigger)).decode()


def may_run(record: CronRecord, mode: Mode, now: int) -> NotRun | None:
    """Why a cron may not run now; None if it may."""
    if record.running_at is not None:
        return NotRun.ALREADY_RUNNING
    due = record.next_at is not None and record.next_at <= now
    return NotRun.NOT_DUE if mode == Mode.DUE and not due else None


def started(record: CronRecord, now: int) -> CronRecord:
    """The cron while it runs; times that come due in the meantime are not caught up."""
    coming = next_after(record.trigger, now) if record.enabled else None
    return replace(record, running_at=now, next_at=coming)


def finished(record: CronRecord, run: CronRecord, error: str | None, now: int) -> CronRecord:
    """The cron after a run; `run` is the cron when the run started."""
    failures = 0 if error is None else record.errors + 1
    began = run.running_at or now
    after = replace(
        record,
        last_run_at=began,
        last_status=str(Status.OK if error is None else Status.ERROR),
        last_error=None if error is None else error[:MAX_ERROR],
        last_duration_ms=max(0, now - began),
        errors=failures,
    )
    return _going_on(after, run.revision, now, rest_ms=backoff_ms(failures))


def interrupted(record: CronRecord, now: int) -> CronRecord:
    """The cron after its gateway ended during a run: the run is over and is not repeated."""
    began = record.running_at
    after = replace(
        record,
        running_at=None,
        last_run_at=began,
        last_status=str(Status.INTERRUPTED),
        last_error="the gateway ended during the run",
        last_duration_ms=None,
    )
    return _going_on(after, record.revision, now)


def _going_on(record: CronRecord, revision: int, now: int, rest_ms: int = 0) -> CronRecord:
    trigger = record.trigger
    if isinstance(trigger, At):
        # If it was given a new time during the run, that one still applies.
        over = record.revision == revision
        return replace(record, enabled=False, next_at=None) if over else record
    natural = next_after(trigger, now) if record.enabled else None
    return replace(record, next_at=None if natural is None else max(natural, now + rest_ms))


# Checks ------------------------------------------------------------------------------------------


def _name(field: str, value: object) -> str:
    check_text(field, value)
    return cast("str", value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption("enabled", f"give true or false, not {value!r}")
    return value


def _payload(payload: object) -> str:
    if not isinstance(payload, dict):
        raise InvalidOption("payload", f"give an object, not {payload!r}")
    try:
        text = msgspec.json.encode(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOption("payload", f"is not JSON: {error}") from None
    if depth_of(text) > MAX_DEPTH:
        raise InvalidOption("payload", f"is nested more than {MAX_DEPTH} levels deep")
    if len(text) > MAX_PAYLOAD:
        raise InvalidOption(
            "payload", f"is {len(text):,} bytes as JSON, but the limit is {MAX_PAYLOAD:,}"
        )
    return text.decode()


def check_limit(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
        raise InvalidOption("limit", f"must be 1 to {MAX_LISTED}, not {limit!r}")
    return limit


def check_mode(mode: object) -> Mode:
    if not isinstance(mode, str) or mode not in tuple(Mode):
        raise InvalidOption("mode", f"write force or due, not {mode!r}")
    return Mode(mode)
