"""Reads and checks the options that define schedules."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import datetime as dt
import inspect
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.endpoints.alerts import check_address
from duly.endpoints.target import EndpointTarget
from duly.errors import (
    CalendarEnds,
    CalendarNotFound,
    InvalidArgument,
    InvalidCalendar,
    InvalidOption,
    InvalidRotation,
    InvalidTime,
)
from duly.functions.checks import check_stored_text
from duly.functions.function import Call, Function
from duly.functions.published import option_changes
from duly.functions.times import Delay, Instant, at, seconds_of
from duly.ids import is_id
from duly.model import strict_json
from duly.model.calendar import SEEDS, Calendar
from duly.model.condition import parse as parse_condition
from duly.model.condition import refuse_unknown_values
from duly.model.expect import Expect
from duly.model.rotation import parse as parse_rotation
from duly.model.schedule import (
    CODE_FLOOR_MS,
    ONE_BY_ONE,
    POLICIES,
    Budget,
    Policies,
    check_interval,
)
from duly.model.schedule_options import BY_NAME, DAY_MS, FirstRun, Kind, Shift
from duly.model.stored_values import read
from duly.model.trigger import AnyOf, At, Cron, Every, Rule, Trigger, ticks_at_one_time
from duly.nearest import MAX_KNOWN
from duly.schedules.declared_calendars import DeclaredCalendar
from duly.store.schedules.calendars import read_calendar
from duly.zones import zone

log = logging.getLogger(__name__)

MAX_NOTE = 2_000
ALERT_EXAMPLE = {"schedule_id": "00000000-0000-0000-0000-000000000000", "problem": ""}


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule. Give exactly one of `cron`, `every`, `at` and `trigger`."""

    cron: str
    every: Delay | Every
    at: Instant
    trigger: Trigger
    tz: str | None
    """The zone of `cron`; default: UTC. With `every` it is stored but has no effect."""
    calendar: str | DeclaredCalendar | None
    """A calendar, or its name: its dates are skipped, or are the only dates with ticks."""
    shift: Shift | None
    """Where to move a tick on a date that the calendar forbids, instead of skipping it."""
    condition: Mapping[str, Any] | None
    first_run: FirstRun
    """How checks of the previous run behave before the first run: they find no value ("check"),
    pass ("pass") or fail ("fail")."""
    rotation: Sequence[Mapping[str, Any]] | None
    overlap: str
    catch_up: int
    catch_up_window: Delay | None
    jitter: Delay | None
    budget: Budget | None
    start_at: Instant | None
    end_at: Instant | None
    remaining: int | None
    """The schedule ends after this many dispatches; skipped ticks do not count."""
    expect: Expect | None
    """What the schedule promises; `alert` is sent when that is missed."""
    alert: Function[..., Any] | str | None
    """A function that takes `schedule_id` and `problem`, run as a job when the schedule is late; or
    an address to which the same data is POSTed."""
    fire_at_once: bool
    """Whether an interval ticks as soon as the schedule is created, not one interval later."""
    enabled: bool
    note: str | None


# Definitions -------------------------------------------------------------------------------------


class Definition(msgspec.Struct, frozen=True):
    """A schedule's definition: everything except its current position."""

    function: str
    args: str
    options: str
    trigger: Trigger
    calendar: str | None
    condition: str | None
    rotation: str | None
    policies: Policies
    start_at: int | None
    end_at: int | None
    remaining: int | None
    expect: str | None
    alert: str | None


def define(
    core: Core,
    call: Call[Any] | Function[..., Any],
    given: Mapping[str, Any],
    *,
    owner: str = "",
    floor_ms: int = CODE_FLOOR_MS,
    look_up: bool = True,
    attached: str | None = None,
    kept_alert: str | None = None,
    kept_condition: str | None = None,
) -> Definition:
    """Check a user's options; an invalid option is refused by its name.

    Without `look_up` the store is not queried: user calendars are looked up later. The calendar
    that is already `attached`, the `kept_alert` and the `kept_condition` are kept even if they are
    no longer valid.
    """
    _check_plain(given)
    call = call if isinstance(call, Call) else bound(call)
    now = core.clock.now()
    trigger = _trigger(given, now)
    check_interval(trigger, floor_ms, now)
    _check_at_once(given, trigger)
    rotation = parse_rotation(given.get("rotation"))
    condition = _condition(given.get("condition"), kept_condition)
    calendar = given.get("calendar")
    calendar = None if calendar is None else calendar_name(calendar)
    policies = _policies(given, trigger, now)
    _check_limit(call, policies)
    if look_up and calendar != attached:
        calendar = attach_calendar(core, calendar, owner, now)
    return Definition(
        function=call.function.name,
        args=call.args,
        options=_options(core, call),
        trigger=trigger,
        calendar=calendar,
        condition=condition,
        rotation=None if rotation is None else to_json(_fitting(call, rotation.encode())),
        policies=policies,
        start_at=_instant("start_at", given.get("start_at"), now),
        end_at=_instant("end_at", given.get("end_at"), now),
        remaining=_remaining(given.get("remaining")),
        expect=_expect(given),
        alert=_alert(given.get("alert"), kept_alert),
    )


def _condition(given: object, kept: str | None) -> str | None:
    condition = parse_condition(given)
    stored = to_json(condition.encode()) if condition.rules else None
    if stored != kept:
        refuse_unknown_values(condition)
    return stored


def _check_plain(given: Mapping[str, Any]) -> None:
    """Options that are only stored, and not interpreted."""
    unknown = given.keys() - ScheduleOptions.__annotations__.keys()
    if unknown:
        raise InvalidOption(min(unknown), "a schedule has no such option")
    for name in ("enabled", "fire_at_once"):
        if name in given and type(given[name]) is not bool:
            raise InvalidOption(name, f"must be True or False, not {given[name]!r}")
    check_note(given.get("note"))


def _check_at_once(given: Mapping[str, Any], trigger: Trigger) -> None:
    if not given.get("fire_at_once"):
        return
    if not isinstance(trigger, Every):
        raise InvalidOption(
            "fire_at_once",
            "requires every",
            "otherwise, run the schedule by hand after creating it",
        )
    if trigger.anchor is not None:
        raise InvalidOption("fire_at_once", "the interval has an anchor", "give only one of them")


def check_note(note: object) -> None:
    if note is None:
        return
    if not isinstance(note, str) or len(note) > MAX_NOTE or strict_json.fault(note):
        raise InvalidOption("note", f"must be text of at most {MAX_NOTE:,} characters")


def _check_limit(call: Call[Any], policies: Policies) -> None:
    """Jobs that wait for each other share a limit, and a job can have only one limit."""
    if call.function.options.limit is not None and policies.overlap in ONE_BY_ONE:
        raise InvalidOption(
            "overlap",
            f"{policies.overlap} needs its own limit, and {call.function.name}() already has one",
            "use skip or allow, or remove the function's limit",
        )


def _expect(given: Mapping[str, Any]) -> str | None:
    expect = given.get("expect")
    if expect is None:
        if given.get("alert") is not None:
            raise InvalidOption("alert", "requires expect")
        return None
    if not isinstance(expect, Expect):
        raise InvalidOption("expect", f"must be an Expect(…), not {expect!r}")
    return to_json(expect)


def _alert(function: object, kept_alert: str | None) -> str | None:
    """An address, or the name of a function, which must accept the arguments of an alert."""
    if function is None:
        return None
    if function == kept_alert:
        return kept_alert
    if isinstance(function, str):
        return check_address(function)
    if not isinstance(function, Function):
        raise InvalidOption("alert", f"must be a function of the app, not {function!r}")
    known = cast(Function[..., Any], function)
    known.signature.encode((), ALERT_EXAMPLE)
    return known.name


def bound(function: object) -> Call[Any]:
    if not isinstance(function, Function):
        raise InvalidOption(
            "function", f"must be a function of the app, or its bind(…), not {function!r}"
        )
    return cast(Function[..., Any], function).bind()


def _trigger(given: Mapping[str, Any], now: int) -> Trigger:
    chosen = [name for name in ("cron", "every", "at", "trigger") if given.get(name) is not None]
    if len(chosen) != 1:
        raise InvalidOption("trigger", "give exactly one of cron, every, at, trigger")
    [name] = chosen
    value, tz = given[name], given.get("tz")
    if tz is not None and name in ("at", "trigger"):
        raise InvalidOption("tz", f"goes with cron or every, not with {name}")
    if name == "cron":
        return Cron(value, "UTC" if tz is None else tz)
    if name == "at":
        return At(instant("at", value, now))
    if name == "every":
        every = value if isinstance(value, Every) else Every(_milliseconds("every", value))
        return every if tz is None else msgspec.structs.replace(every, tz=tz)
    if not isinstance(value, Cron | Every | At | Rule | AnyOf):
        raise InvalidOption(name, f"must be a Cron, Every, At, Rule or AnyOf, not {value!r}")
    return value


def _milliseconds(option: str, length: Delay) -> int:
    try:
        milliseconds = seconds_of(option, length) * 1000
    except InvalidTime as error:
        raise InvalidOption(option, error.reason.removeprefix(f"{option}: ")) from error
    if abs(milliseconds - round(milliseconds)) > 1e-6:
        raise InvalidOption(option, f"must be whole milliseconds, not {milliseconds:g}")
    return round(milliseconds)


def _options(core: Core, call: Call[Any]) -> str:
    """The call's options that differ from those of its function."""
    function = call.function
    if isinstance(function, EndpointTarget):
        # The endpoint's own options are read at every tick.
        function = function.as_written()
    return to_json(option_changes(function, core.functions.known(function.name)))


def _fitting(call: Call[Any], entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The entries in the form that the function accepts."""
    fitting: list[Any] = []
    for index, entry in enumerate(entries):
        try:
            fitting.append(msgspec.json.decode(call.function.signature.encode((), entry)))
        except InvalidArgument as error:
            reason = f"does not fit {call.function.name}(): {error.argument}: {error.reason}"
            raise InvalidRotation(index, reason) from error
    return fitting


def _policies(given: Mapping[str, Any], trigger: Trigger, now: int) -> Policies:
    chosen = {name: given[name] for name in POLICIES if given.get(name) is not None}
    for name in chosen:
        if BY_NAME[name].kind is Kind.LENGTH:
            chosen[name] = _milliseconds(name, chosen[name])
    if "budget" in chosen and not isinstance(chosen["budget"], Budget):
        raise InvalidOption("budget", f"must be a Budget(…), not {chosen['budget']!r}")
    if "shift" in chosen:
        _check_shift(given.get("calendar"), trigger, now)
    return Policies(**chosen)


def _check_shift(calendar: object, trigger: Trigger, now: int) -> None:
    if calendar is None:
        raise InvalidOption("shift", "requires a calendar")
    # Ticks are decided in their order, and moved ticks would not be due in that order: the
    # tick of Saturday evening, moved to Monday, would delay that of Monday morning.
    if not _ticks_at_one_time(trigger, now):
        raise InvalidOption(
            "shift",
            "the trigger must tick at most once a day, always at the same time",
            "create a schedule for each time of day",
        )


def _ticks_at_one_time(trigger: Trigger, now: int) -> bool:
    if isinstance(trigger, Every):
        return trigger.milliseconds % DAY_MS == 0
    if isinstance(trigger, At):
        return True
    if isinstance(trigger, Rule):
        return ticks_at_one_time(trigger)
    if isinstance(trigger, AnyOf):
        return len(trigger.triggers) == 1 and _ticks_at_one_time(trigger.triggers[0], now)
    # If any day has two ticks, two of any three ticks are on one day.
    ticks = trigger.upcoming(3, now)
    return len({from_ms(t).astimezone(zone(trigger.tz).info).date() for t in ticks}) == len(ticks)


def _instant(option: str, value: Any, now: int) -> int | None:
    return None if value is None else instant(option, value, now)


def instant(option: str, value: Any, now: int) -> int:
    """An instant as it is stored; errors name the option."""
    try:
        return at(value, now)
    except InvalidTime as error:
        raise InvalidTime(error.reason, option, error.hint) from error


def _remaining(value: object) -> int | None:
    if value is None:
        return None
    BY_NAME["remaining"].check(value)
    return cast(int, value)


def attach_calendar(core: Core, name: object, owner: str, now: int) -> str | None:
    """What a schedule stores for its calendar: the name of a built-in one, or an id.

    Refuses a calendar that has ended; warns of one that ends soon.
    """
    if name is None:
        return None
    stored, calendar = find_calendar(core, name, owner)
    if calendar.exhausted(now):
        raise InvalidCalendar(
            "calendar",
            f"{calendar.name!r} has ended: its last date is {calendar.last_date()}",
            "add dates to it, or attach one with later dates",
        )
    if (last := calendar.runs_out(now)) is not None:
        warn_of_end(calendar.name, last)
    return stored


def calendar_name(name: object) -> str:
    """The name, if it is valid for a calendar."""
    if isinstance(name, DeclaredCalendar):
        return name.name
    check_stored_text("calendar", name, "the name of a calendar")
    return cast(str, name)


def warn_of_end(name: str, last: dt.date) -> None:
    message = f"calendar {name!r} ends soon: its last date is {last}; add dates to it by then"
    log.warning(message)
    warnings.warn(message, CalendarEnds, stacklevel=_level_of_user())


def _level_of_user() -> int:
    """The stack level of the code that called duly, for warnings."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("duly."):
        frame, level = frame.f_back, level + 1
    return level


def find_calendar(core: Core, name: object, owner: str) -> tuple[str, Calendar]:
    """A calendar by its name or id: the form that schedules store, and the calendar itself."""
    name = calendar_name(name)
    if name in SEEDS:
        return name, SEEDS[name]
    store = core.ready()
    record = store.calendar(name) if is_id(name) else store.calendar_named(owner, name)
    if record is None or record.owner != owner:
        raise CalendarNotFound(name, known_calendars(core, owner))
    calendar = read_calendar(record.definition)
    if calendar is None:
        raise CalendarNotFound(name)
    return record.id, calendar


def known_calendars(core: Core, owner: str) -> list[str]:
    """The names of an owner's calendars and of the built-in ones, for suggestions."""
    stored = core.ready().calendars(owner, None, MAX_KNOWN)
    return [*SEEDS, *(each.name for each in stored)]


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def from_json(text: str) -> Any:
    """The stored value; None if it cannot be read."""
    return read(text, object, None)


def detail_of(text: str | None) -> dict[str, Any]:
    """A stored object, such as a tick's detail; empty if there is none or it cannot be read."""
    return {} if text is None else read(text, dict[str, Any], {})
