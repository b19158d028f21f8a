"""Reads iCalendar files and lists the dates of their events.

Events become the dates that they touch, in the zone of the calendar that imports them. Repeating
events are expanded within a given window. Anything that cannot be expanded exactly is refused with
its line number, instead of being imported incorrectly.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from duly.errors import InvalidCalendar, InvalidOption, UnknownZone
from duly.model.calendar import MAX_DATES, MAX_LABEL, second_of
from duly.model.recurrence import HORIZON, Parts, Recurrence, parse
from duly.zones import zone

MAX_TEXT = 4 << 20
MAX_STEPS = 200_000
"""Repetitions and days to process in one file, including those before the window."""
MAX_DAYS = 3_660
"""Events must not be longer than ten years."""

ONE_DAY = dt.timedelta(days=1)
MONTH = 30 * 86_400
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 (local times are compared and moved here)
EARLIEST, LATEST = dt.date(1583, 1, 1), dt.date(9900, 12, 31)
"""Outside of these years, time zone arithmetic may leave the range of Python's dates."""


def dates_of(
    text: str, first: dt.date, last: dt.date, tz: str = "UTC"
) -> list[tuple[dt.date, str]]:
    """The dates from `first` to `last` that events touch, in order, with the events' names.

    A date without a time is that date everywhere; a time is converted to the zone `tz`. Raises
    InvalidCalendar, whose message names the line.
    """
    if len(text) > MAX_TEXT:
        raise InvalidCalendar("ical", f"{len(text):,} characters, the limit is {MAX_TEXT:,}")
    events = list(_events(text))
    window = _Window(max(first, EARLIEST), min(last, LATEST), tz)
    moved = {(event.uid, _key(event.moves)) for event in events if event.moves}
    names: dict[dt.date, list[str]] = {}
    for event in events:
        if event.canceled:
            continue
        for day in _touched(event, window, moved):
            window.step(event.line)
            if day not in names and len(names) == MAX_DATES:
                raise InvalidCalendar("ical", f"more than {MAX_DATES:,} dates", "narrow the window")
            labels = names.setdefault(day, [])
            if event.label and event.label not in labels:
                labels.append(event.label)
    return [(day, _cut(", ".join(labels))) for day, labels in sorted(names.items())]


def _cut(label: str) -> str:
    return label if len(label) <= MAX_LABEL else label[: MAX_LABEL - 1] + "…"


# Lines --------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A property, and the number of its first line."""

    number: int
    name: str
    params: Mapping[str, str]
    value: str

    def refuse(self, reason: str, hint: str = "") -> InvalidCalendar:
        return InvalidCalendar("ical", f"line {self.number}: {self.name}: {reason}", hint)


def _unfolded(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines: a line that starts with a blank continues the previous one."""
    start, parts = 0, list[str]()
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), 1):
        if line[:1] in (" ", "\t") and parts:
            parts.append(line[1:])
            continue
        if parts:
            yield start, "".join(parts)
        start, parts = number, [line] if line.strip() else []
    if parts:
        yield start, "".join(parts)


_NAME = re.compile(r"[A-Za-z0-9-]+")
_PARAM = re.compile(r';([A-Za-z0-9-]+)=((?:"[^"]*"|[^";:])*)')


def _line(number: int, text: str) -> Line:
    name = _NAME.match(text)
    if name is None:
        raise InvalidCalendar("ical", f"line {number}: not a property: {text[:40]!r}")
    at, params = name.end(), dict[str, str]()
    while match := _PARAM.match(text, at):
        params[match[1].upper()] = match[2].strip('"')
        at = match.end()
    if text[at : at + 1] != ":":
        raise InvalidCalendar("ical", f"line {number}: no value: {text[:40]!r}")
    return Line(number, name[0].upper(), params, text[at + 1 :])


# Events -------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A date, or a local time; if `tz` is None, it is in the reader's zone."""

    moment: dt.datetime
    is_date: bool
    tz: str | None = None


class Event(msgspec.Struct):
    line: Line
    start: Moment | None = None
    end: Moment | None = None
    length: dt.timedelta | None = None
    uid: str = ""
    label: str = ""
    rule: Line | None = None
    extra: list[Moment] = []
    without: list[Moment] = []
    moves: Moment | None = None
    canceled: bool = False


def _events(text: str) -> Iterator[Event]:
    inside: list[str] = []
    event: Event | None = None
    line: Line | None = None
    for line in (_line(number, logical) for number, logical in _unfolded(text)):
        if line.name == "BEGIN":
            inside.append(line.value.strip().upper())
            if inside[0] != "VCALENDAR":
                raise line.refuse("a file must start with BEGIN:VCALENDAR")
            if inside[-1] == "VEVENT":
                event = Event(line)
        elif line.name == "END":
            if not inside or inside.pop() != line.value.strip().upper():
                raise line.refuse(f"{line.value.strip()[:40]!r} has no BEGIN")
            if event is not None and inside == ["VCALENDAR"]:
                yield _complete(event)
                event = None
        elif event is not None and inside == ["VCALENDAR", "VEVENT"] and line.name in _READERS:
            _READERS[line.name](event, line)
    if inside or line is None:
        missing = f"END:{inside[-1]}" if inside else "BEGIN:VCALENDAR"
        raise InvalidCalendar("ical", f"{missing[:60]} is missing", "is the file complete?")


def _complete(event: Event) -> Event:
    if event.start is None:
        raise event.line.refuse("the event has no DTSTART")
    return event


def _read_start(event: Event, line: Line) -> None:
    event.start = _moment(line)


def _read_end(event: Event, line: Line) -> None:
    event.end = _moment(line)


def _read_length(event: Event, line: Line) -> None:
    event.length = _duration(line)


def _read_uid(event: Event, line: Line) -> None:
    event.uid = line.value


def _read_label(event: Event, line: Line) -> None:
    plain = re.sub(r"\\(.)", lambda match: " " if match[1] in "nN" else match[1], line.value)
    event.label = _cut(" ".join("".join(c if c.isprintable() else " " for c in plain).split()))


def _read_rule(event: Event, line: Line) -> None:
    if event.rule is not None:
        raise line.refuse("an event can have only one")
    event.rule = line


def _read_extra(event: Event, line: Line) -> None:
    event.extra += _moments(line)


def _read_without(event: Event, line: Line) -> None:
    event.without += _moments(line)


def _read_moves(event: Event, line: Line) -> None:
    if "RANGE" in line.params:
        raise line.refuse("RANGE is not supported")
    event.moves = _moment(line)


def _read_status(event: Event, line: Line) -> None:
    event.canceled = line.value.strip().upper() == "CANCELLED"


def _refuse(event: Event, line: Line) -> None:
    raise line.refuse("is not supported")


_READERS: Mapping[str, Callable[[Event, Line], None]] = {
    "DTSTART": _read_start,
    "DTEND": _read_end,
    "DURATION": _read_length,
    "UID": _read_uid,
    "SUMMARY": _read_label,
    "RRULE": _read_rule,
    "RDATE": _read_extra,
    "EXDATE": _read_without,
    "EXRULE": _refuse,
    "RECURRENCE-ID": _read_moves,
    "STATUS": _read_status,
}


# Values -------------------------------------------------------------------------------------------

_MOMENT = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:T([0-9]{2})([0-9]{2})([0-9]{2})(Z?))?")
_DURATION = re.compile(
    r"\+?P(?:([0-9]{1,4})W)?(?:([0-9]{1,4})D)?"
    r"(?:T(?:([0-9]{1,5})H)?(?:([0-9]{1,6})M)?(?:([0-9]{1,8})S)?)?"
)


def _moments(line: Line) -> list[Moment]:
    return [_moment(line, value) for value in line.value.split(",")]


def _moment(line: Line, value: str | None = None) -> Moment:
    text = (line.value if value is None else value).strip()
    if line.params.get("VALUE", "DATE-TIME").upper() == "PERIOD":
        raise line.refuse("periods are not supported")
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise line.refuse(f"{text[:40]!r} is not a date", "write 20260703 or 20260703T090000Z")
    is_date = match[4] is None
    try:
        # As a date, a leap second is the same as the second before it.
        clock = (0, 0, 0) if is_date else (int(match[4]), int(match[5]), min(int(match[6]), 59))
        moment = dt.datetime(int(match[1]), int(match[2]), int(match[3]), *clock)  # noqa: DTZ001
    except ValueError as error:
        raise line.refuse(f"{text!r}: {error}") from None
    if not EARLIEST <= moment.date() <= LATEST:
        raise line.refuse(f"{text!r} is not in the years {EARLIEST.year} to {LATEST.year}")
    return Moment(moment, is_date, None if is_date else _zone_of(line, match[7]))


def _zone_of(line: Line, mark: str | None) -> str | None:
    if mark:
        return "UTC"
    name = line.params.get("TZID")
    if name is None:
        return None
    try:
        # Some programs write a slash and their own name before the zone.
        return zone(name.lstrip("/")).name
    except UnknownZone as error:
        raise line.refuse(f"TZID: {error}") from None


def _duration(line: Line) -> dt.timedelta:
    text = line.value.strip()
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise line.refuse(f"{text[:40]!r} is not a duration", "write P1D or PT2H")
    weeks, days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return dt.timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)


# The days of an event ----------------------------------------------------------------------------

Key = tuple[bool, dt.datetime]
"""Distinguishes two starts of an event, however they are written."""


class _Window(msgspec.Struct):
    first: dt.date
    last: dt.date
    tz: str
    steps: int = 0

    def step(self, line: Line, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise line.refuse(
                f"more than {MAX_STEPS:,} days and repetitions",
                "narrow the window, or split the file",
            )


def _key(moment: Moment) -> Key:
    return moment.is_date, _in_zone(moment, "UTC")


def _in_zone(moment: Moment, tz: str) -> dt.datetime:
    """The local time there; a date, or a time that is local everywhere, does not change."""
    if moment.tz is None or moment.tz == tz:
        return moment.moment
    written = zone(moment.tz)
    shown = (moment.moment - _EPOCH) // dt.timedelta(seconds=1)
    second = second_of(shown, written)
    if second is None:  # On a day that the zone has lost.
        second = shown - written.offset(shown)
    return _EPOCH + dt.timedelta(seconds=second + zone(tz).offset(second))


def _touched(event: Event, window: _Window, moved: set[tuple[str, Key]]) -> Iterator[dt.date]:
    length = _length(event)
    without = {_key(moment) for moment in event.without}
    days = {moment.moment.date() for moment in event.without if moment.is_date}
    for start in _starts(event, window):
        key = _key(start)
        if key in without or start.moment.date() in days:
            continue
        if event.moves is None and (event.uid, key) in moved:
            continue
        yield from _days(start, length, window)


def _days(start: Moment, length: dt.timedelta, window: _Window) -> Iterator[dt.date]:
    begin = _in_zone(start, window.tz)
    # The end is exclusive: an event that ends at midnight does not touch the next day.
    end = begin + max(length - dt.timedelta(microseconds=1), dt.timedelta(0))
    low = max(begin.date(), window.first).toordinal()
    high = min(end.date(), window.last).toordinal()
    return map(dt.date.fromordinal, range(low, high + 1))


def _length(event: Event) -> dt.timedelta:
    start, line = _start(event), event.line
    if event.end is not None:
        if event.end.is_date != start.is_date:
            raise line.refuse("the event starts with a date and ends with a time, or the reverse")
        length = _between(start, event.end)
    else:
        length = event.length or dt.timedelta(0)
    if length < dt.timedelta(0):
        raise line.refuse("the event ends before it starts")
    if length.days > MAX_DAYS:
        raise line.refuse(f"the event lasts more than {MAX_DAYS:,} days")
    return max(length, ONE_DAY) if start.is_date else length


def _start(event: Event) -> Moment:
    assert event.start is not None  # Otherwise _complete has refused it.
    return event.start


def _between(start: Moment, end: Moment) -> dt.timedelta:
    if start.tz == end.tz or start.tz is None or end.tz is None:
        return end.moment - start.moment
    return _in_zone(end, "UTC") - _in_zone(start, "UTC")


def _starts(event: Event, window: _Window) -> Iterator[Moment]:
    """The starts of an event and of its repetitions; a few beyond the window do no harm."""
    if event.rule is None:
        yield _start(event)
    else:
        yield from _repeated(_start(event), _length(event), event.rule, window)
    yield from event.extra


# Repetition ---------------------------------------------------------------------------------------


def _parts(line: Line) -> Parts:
    try:
        return parse(line.value)
    except InvalidOption as error:
        raise line.refuse(error.reason, error.hint) from error


def _repeated(start: Moment, length: dt.timedelta, line: Line, window: _Window) -> Iterator[Moment]:
    """All repetitions that can touch the window, in the order of their local times."""
    parts = _parts(line)
    until = None if parts.until is None else _moment(line, parts.until)
    rule = Recurrence(parts, _second(start.moment))
    # An offset can move it by a day.
    earliest = dt.datetime.combine(window.first, dt.time()) - length - 2 * ONE_DAY
    local = max(rule.start, _second(earliest))
    found = 0 if parts.count is None else rule.count(rule.start, local)
    end = _second(dt.datetime.combine(window.last, dt.time()) + 3 * ONE_DAY)
    while (second := rule.first_from(local)) is not None and second < end:
        # Seldom repetitions cost more: years are searched for the next one.
        window.step(line, 1 + (second - local) // MONTH)
        moment = start._replace(moment=_EPOCH + dt.timedelta(seconds=second))
        if start.is_date:
            moment = start._replace(moment=dt.datetime.combine(moment.moment, dt.time()))
        if parts.count is not None and found >= parts.count:
            return
        if until and _is_after(moment, until):
            return
        found += 1
        yield moment
        local = second + 1
    if second is None:
        window.step(line, HORIZON * 12)


def _second(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // dt.timedelta(seconds=1)


def _is_after(moment: Moment, until: Moment) -> bool:
    if moment.is_date or until.is_date:
        return moment.moment.date() > until.moment.date()
    if moment.tz is None or until.tz is None:
        return moment.moment > until.moment
    return _in_zone(moment, "UTC") > _in_zone(until, "UTC")
