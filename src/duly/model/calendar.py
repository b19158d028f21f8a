"""Calendars: the dates on which a schedule may fire.

A calendar lists dates, in its own zone, on which ticks are skipped (`skip_dates`) or outside of
which they are skipped (`only_dates`). A tick's date is its date in the calendar's zone, whatever
zone the schedule has.

Dates are listed, or come from rules that are computed for every year. A calendar of dates ends with
the last of them; one whose rules hold for every year never ends.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

from duly.errors import BadInput, InvalidCalendar
from duly.model.yearly import RULES
from duly.zones import Zone, zone

MAX_DATES = 10_000
MAX_NAME = 200
MAX_LABEL = 200
WARN_DAYS = 30
FURTHEST_SHIFT = 31

Day = str | dt.date
Dates = Mapping[Any, str] | Iterable[Any]
"""Days (`"2026-07-03"` or a date), or a mapping of days to labels."""
Direction = Literal["next", "previous", "nearest"]


class CalendarKind(StrEnum):
    """What the dates of a calendar mean."""

    SKIP_DATES = "skip_dates"
    ONLY_DATES = "only_dates"


class CalendarVerdict(NamedTuple):
    """What a calendar says about an instant; `day` is None if its zone cannot be loaded."""

    allowed: bool
    calendar: str
    day: dt.date | None
    listed: bool = False
    label: str = ""
    error: str | None = None

    @property
    def detail(self) -> str:
        """In words: `2026-07-03 is Independence Day (observed) in us-federal-holidays-2026`."""
        if self.day is None:
            return f"{self.calendar}: {self.error}"
        if not self.listed:
            return f"{self.day} is not in {self.calendar}"
        return f"{self.day} is {self.label or 'listed'} in {self.calendar}"


@dataclass(frozen=True, slots=True, init=False)
class Calendar:
    """Named dates in a time zone, on which ticks are skipped (`skip_dates`) or which are the only
    dates with ticks (`only_dates`).

    `dates` are days as `"2026-07-03"` or `datetime.date`, or a mapping of days to labels. `rules`
    are names of RULES, whose days are added for every year.
    """

    name: str
    kind: CalendarKind
    tz: str
    dates: Mapping[dt.date, str] = field(hash=False)
    rules: tuple[str, ...]

    def __init__(
        self,
        name: str,
        kind: str,
        *,
        tz: str = "UTC",
        dates: Dates = (),
        rules: Iterable[str] = (),
    ) -> None:
        _fill(self, name, kind, tz, dates, rules)
        zone(self.tz)

    def allows(self, instant: int) -> bool:
        """Whether a tick at this instant may run; always false if the zone cannot be loaded."""
        return self.verdict(instant).allowed

    def verdict(self, instant: int) -> CalendarVerdict:
        """Whether a tick at this instant may run, with the date and its label."""
        try:
            day = self.day(instant)
        except BadInput as error:
            # The zone was known where the calendar was created. Without it the date is unknown, so
            # the tick cannot be assumed to be allowed.
            return CalendarVerdict(False, self.name, None, error=str(error))
        label = self.label(day)
        listed = label is not None
        allowed = listed == (self.kind is CalendarKind.ONLY_DATES)
        return CalendarVerdict(allowed, self.name, day, listed, label or "")

    def day(self, instant: int) -> dt.date:
        """The date at an instant, in the calendar's zone."""
        second = instant // 1000
        days = (second + zone(self.tz).offset(second)) // DAY
        return dt.date.fromordinal(_EPOCH_DAY + days)

    def allowed_between(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, end) in which ticks may run; none if the zone cannot be loaded."""
        try:
            where = zone(self.tz)
        except BadInput:
            return
        second, until = start // 1000, -(-end // 1000)
        while second < until:
            span = where.span(second)
            last = min(span.end, until)
            for days in range((second + span.offset) // DAY, -(-(last + span.offset) // DAY)):
                label = self.label(dt.date.fromordinal(_EPOCH_DAY + days))
                if (label is not None) == (self.kind is CalendarKind.ONLY_DATES):
                    first = max(second, days * DAY - span.offset)
                    beyond = min(last, (days + 1) * DAY - span.offset)
                    yield max(start, first * 1000), min(end, beyond * 1000)
            second = last

    def label(self, day: dt.date) -> str | None:
        """The label of a listed day, empty if it has none; None if the day is not listed."""
        found = self.dates.get(day)
        if found is not None:
            return found
        days = (RULES[rule].days(day.year).get(day) for rule in self.rules)
        return next((label for label in days if label is not None), None)

    # Its end --------------------------------------------------------------------------------------

    def last_date(self) -> dt.date | None:
        """The last day that the calendar has; None if it never ends, or lists nothing."""
        ends = [RULES[rule].last_date for rule in self.rules]
        if self.dates:
            ends.append(max(self.dates))
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    def covers(self, instant: int) -> bool:
        """Whether the calendar has not ended before this instant's date."""
        last = self.last_date()
        return last is None or self.day(instant) <= last

    def exhausted(self, now: int) -> bool:
        """Whether all of its dates are past, so that attaching it must be a mistake."""
        return not self.covers(now)

    def runs_out(self, now: int, days: int = WARN_DAYS) -> dt.date | None:
        """Its last date, if that has passed or is within `days` days; otherwise None."""
        last = self.last_date()
        try:
            return None if last is None or (last - self.day(now)).days > days else last
        except BadInput:
            # Without its zone it forbids every tick anyway.
            return None

    # As data --------------------------------------------------------------------------------------

    def encode(self) -> dict[str, Any]:
        """The calendar as it is stored and shown: strict JSON, with dates in order and labels."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "tz": self.tz,
            "dates": {day.isoformat(): label for day, label in self.dates.items()},
            "rules": list(self.rules),
        }

    @classmethod
    def decode(cls, value: object) -> Calendar:
        """The reverse of `encode`. The zone is not looked up: this machine may not have it.

        Raises InvalidCalendar.
        """
        if not isinstance(value, dict):
            raise InvalidCalendar("calendar", f"must be an object, not {type(value).__name__}")
        given = cast("dict[str, Any]", value)
        names = {"name", "kind", "tz", "dates", "rules"}
        if wrong := sorted(map(str, given.keys() ^ names)):
            which = "unknown field" if wrong[0] in given else "missing field"
            raise InvalidCalendar(wrong[0], which)
        calendar = object.__new__(cls)
        _fill(calendar, **given)
        return calendar


def _fill(
    calendar: Calendar, name: object, kind: object, tz: object, dates: object, rules: object
) -> None:
    """Check the given fields and set them."""
    fields = {
        "name": _name(name),
        "kind": _kind(kind),
        "tz": _tz(tz),
        "dates": MappingProxyType(read_dates(dates)),
        "rules": _rules(rules),
    }
    for key, value in fields.items():
        object.__setattr__(calendar, key, value)


def _name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidCalendar("name", f"must be 1 to {MAX_NAME} printable characters: {name!r}")
    return name


def _kind(kind: object) -> CalendarKind:
    try:
        return CalendarKind(cast(str, kind))
    except ValueError:
        raise InvalidCalendar(
            "kind",
            f"{kind!r} is not a kind",
            "skip_dates skips the dates, only_dates skips all others",
        ) from None


def _tz(tz: object) -> str:
    if not isinstance(tz, str):
        raise InvalidCalendar("tz", f"must be text, not {tz!r}", 'write "Europe/Istanbul"')
    return tz.strip()


def _rules(rules: object) -> tuple[str, ...]:
    if isinstance(rules, str) or not isinstance(rules, Iterable):
        raise InvalidCalendar("rules", f"must be a list of names, not {rules!r}")
    names = tuple(cast("Iterable[object]", rules))
    for name in names:
        if not isinstance(name, str) or name not in RULES:
            raise InvalidCalendar(
                "rules", f"{name!r} is not a rule", f"the rules are {', '.join(RULES)}"
            )
    return tuple(dict.fromkeys(cast("tuple[str, ...]", names)))


# Dates --------------------------------------------------------------------------------------------

_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def read_dates(dates: object, field: str = "dates") -> dict[dt.date, str]:
    """Dates as users give them, sorted, with their labels."""
    if isinstance(dates, str) or not isinstance(dates, Iterable):
        raise InvalidCalendar(field, f"must be a list of dates, not {dates!r}")
    labels = cast("Mapping[object, object]", dates) if isinstance(dates, Mapping) else None
    listed: dict[dt.date, str] = {}
    for index, given in enumerate(cast("Iterable[object]", dates)):
        if index == MAX_DATES:
            raise InvalidCalendar(field, f"more than {MAX_DATES:,}")
        place = f"{field}[{index}]"
        label = "" if labels is None else _label(place, labels[given])
        listed.setdefault(read_date(given, place), label)
    return dict(sorted(listed.items()))


def read_date(given: object, field: str) -> dt.date:
    """One date as users give it."""
    if isinstance(given, dt.datetime):
        raise InvalidCalendar(field, f"{given} has a time of day", "give its date()")
    if isinstance(given, dt.date):
        return given
    if not isinstance(given, str) or not _ISO.fullmatch(given):
        raise InvalidCalendar(field, f"{given!r} is not a date", 'write "2026-07-03"')
    try:
        return dt.date.fromisoformat(given)
    except ValueError as error:
        raise InvalidCalendar(field, f"{given!r}: {error}") from None


def _label(field: str, label: object) -> str:
    if not isinstance(label, str) or len(label) > MAX_LABEL or not (label + " ").isprintable():
        raise InvalidCalendar(
            field,
            f"a label must be at most {MAX_LABEL} printable characters: {label!r}",
        )
    return label


# Moving a tick ------------------------------------------------------------------------------------

DAY = 86_400
LONGEST_GAP = 3 * 3600
"""A longer gap in local time is a lost calendar day, on which nothing runs."""
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()


def shift(instant: int, tz: str, calendar: Calendar, direction: Direction = "next") -> int | None:
    """Move a tick from a date that the calendar forbids to the nearest one that it allows.

    The tick keeps its local time, in the zone `tz` of its schedule. "nearest" takes the later of
    two dates that are equally near. None if none is allowed within 31 days.
    """
    if direction not in _SIGNS:
        raise InvalidCalendar(
            "shift", f"{direction!r} is not a direction", f"use one of {', '.join(_SIGNS)}"
        )
    verdict = calendar.verdict(instant)
    if verdict.allowed or verdict.day is None:
        return instant if verdict.allowed else None
    clock = zone(tz)
    second, rest = divmod(instant, 1000)
    local = second + clock.offset(second)
    for distance in range(1, FURTHEST_SHIFT + 1):
        for sign in _SIGNS[direction]:
            moved = second_of(local + sign * distance * DAY, clock)
            if moved is not None and calendar.allows(moved * 1000 + rest):
                return moved * 1000 + rest
    return None


_SIGNS: Mapping[str, tuple[int, ...]] = {"next": (1,), "previous": (-1,), "nearest": (1, -1)}


def second_of(local: int, clock: Zone) -> int | None:
    """The instant at which clocks show a local time: the first of two, or the first after a gap.

    None on a lost day.
    """
    if times := clock.resolve(local):
        return times[0]
    second = local - DAY
    while True:
        span = clock.span(second)
        if span.start + span.before <= local < span.start + span.offset:
            return span.start if span.offset - span.before <= LONGEST_GAP else None
        second = span.end


# Built-in calendars -------------------------------------------------------------------------------


def _seed(name: str, kind: str, tz: str, rule: str, year: int | None = None) -> Calendar:
    days = (
        {} if year is None else {str(day): label for day, label in RULES[rule].days(year).items()}
    )
    rules = [rule] if year is None else []
    # Decoded, since a missing zone on this machine must not prevent a start.
    return Calendar.decode({"name": name, "kind": kind, "tz": tz, "dates": days, "rules": rules})


def _seeds() -> Mapping[str, Calendar]:
    us, tr, weekends = "us-federal-holidays", "tr-public-holidays", "weekends"
    seeds = [
        _seed("us-federal-holidays-2026", "skip_dates", "America/New_York", us, 2026),
        _seed("tr-public-holidays-2026", "skip_dates", "Europe/Istanbul", tr, 2026),
        _seed("weekends-only", "only_dates", "UTC", weekends, 2026),
        _seed(us, "skip_dates", "America/New_York", us),
        _seed(tr, "skip_dates", "Europe/Istanbul", tr),
        _seed(weekends, "only_dates", "UTC", weekends),
    ]
    return MappingProxyType({seed.name: seed for seed in seeds})


SEEDS: Mapping[str, Calendar] = _seeds()
"""Built in and read-only: three with the dates of 2026, and variants that hold for every year."""
