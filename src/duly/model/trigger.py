"""Triggers compute the next instant after any other: `Cron`, `Every`, `At`, `Rule` and `AnyOf`.

Instants are integer milliseconds since 1970 UTC. Local times are put on the clock of a zone by the
rules in `local_times.py`: a cron expression whose minute or hour field starts with `*` follows the
clock, and so does an hourly, minutely or secondly rule; any other is fixed.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
from msgspec.structs import force_setattr, replace

from duly.clock import from_ms, to_ms
from duly.errors import InvalidCron, InvalidOption, InvalidTime
from duly.model import cron
from duly.model.cron import Expression
from duly.model.cron_words import in_words
from duly.model.job import FIVE_YEARS_MS
from duly.model.local_times import (
    EARLIEST,
    FAR,
    LATEST,
    LocalTimes,
    by_day,
    count,
    first_from,
    last_until,
)
from duly.model.recurrence import DAY, Parts, Recurrence, stepped
from duly.model.recurrence import parse as parse_rule
from duly.model.recurrence_words import in_words as rule_in_words
from duly.zones import Zone, zone

LEAST_INTERVAL_MS = 1_000
MAX_FIRES = 10_000
"""The most instants that `next_fires` returns."""

MAX_TRIGGERS = 20
"""The most triggers of an `AnyOf`."""
_ALL_HOURS = (1 << 24) - 1
_REFERENCE = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


class Ticks(NamedTuple):
    """Ticks of at most about a day: bit n stands for a tick n seconds after `at` (milliseconds)."""

    at: int
    bits: int


class _Fires:
    """What all triggers can do, given that they can compute the next instant."""

    __slots__ = ()

    def next_after(self, instant: int) -> int | None:
        """The first tick later than this instant; None if there is none."""
        raise NotImplementedError

    def prev_before(self, instant: int) -> int | None:
        """The last tick earlier than this instant; None if there is none."""
        raise NotImplementedError

    def count_between(self, start: int, end: int) -> int:
        """How many ticks are in [start, end), without iterating over them."""
        raise NotImplementedError

    def ticks_between(self, start: int, end: int) -> Iterator[Ticks]:
        """The ticks in [start, end), about a day at a time, without iterating over them."""
        raise NotImplementedError

    def describe(self) -> str:
        """The trigger in words."""
        raise NotImplementedError

    def upcoming(self, n: int, after: int) -> list[int]:
        """The next n ticks after an instant, or all if there are fewer."""
        found: list[int] = []
        while len(found) < n and (tick := self.next_after(after)) is not None:
            found.append(tick)
            after = tick
        return found

    def between(self, start: int, end: int) -> Iterator[int]:
        """The ticks in [start, end), one by one."""
        tick = self.next_after(start - 1)
        while tick is not None and tick < end:
            yield tick
            tick = self.next_after(tick)

    def matches(self, instant: int) -> bool:
        """Whether there is a tick at exactly this instant."""
        return self.next_after(instant - 1) == instant

    def adjusted(self, instant: int) -> bool:
        """Whether the tick at this instant replaces a time that clocks skip."""
        return False


# Cron --------------------------------------------------------------------------------------------


class Cron(_Fires, msgspec.Struct, frozen=True):
    """Tick when the clock of a zone shows a matching time; `spread` is the seed of `H`."""

    expression: str
    tz: str = "UTC"
    spread: str = ""

    def __post_init__(self) -> None:
        _require_text("cron", self.expression)
        _require_text("spread", self.spread)
        force_setattr(self, "tz", zone(self.tz).name)
        parsed = self._parsed()
        hours_left_out = parsed.hours != _ALL_HOURS
        if parsed.follows_clock and hours_left_out and self._never_fires(parsed):
            words = cron.words(self.expression)
            position, hour = words[1 if len(words) == 5 else 2]
            reason = f"the clocks of {self.tz} skip every such time"
            hint = "it would never fire"
            raise InvalidCron(self.expression, "hour", hour, position, reason, hint)

    def next_after(self, instant: int) -> int | None:
        """The first tick later than this instant; None if there is none."""
        second = max(instant // 1000 + 1, EARLIEST)
        found = first_from(self._parsed(), zone(self.tz), second)
        return None if found is None else found * 1000

    def prev_before(self, instant: int) -> int | None:
        """The last tick earlier than this instant; None if there is none."""
        second = min((instant - 1) // 1000, LATEST)
        found = last_until(self._parsed(), zone(self.tz), second)
        return None if found is None else found * 1000

    def count_between(self, start: int, end: int) -> int:
        """How many ticks are in [start, end), without iterating over them."""
        seconds = (max(_ceil(start), EARLIEST), min(_ceil(end), LATEST))
        return count(self._parsed(), zone(self.tz), *seconds)

    def ticks_between(self, start: int, end: int) -> Iterator[Ticks]:
        """The ticks in [start, end), about a day at a time, without iterating over them."""
        seconds = (max(_ceil(start), EARLIEST), min(_ceil(end), LATEST))
        return _in_ms(by_day(self._parsed(), zone(self.tz), *seconds))

    def adjusted(self, instant: int) -> bool:
        """Whether the tick at this instant replaces a time that clocks skip."""
        return _is_adjusted(self, self._parsed(), zone(self.tz), instant)

    def describe(self) -> str:
        """The expression in words, with its zone."""
        return f"{in_words(self._parsed())} ({self.tz})"

    def spread_by(self, seed: str) -> Cron:
        """The same trigger with a seed for `H`, unless it has one."""
        return self if self.spread else replace(self, spread=seed)

    def _parsed(self) -> Expression:
        text = self.expression
        # Without an H, all seeds give the same expression, and share it.
        return cron.parse(text, self.spread if "H" in text or "h" in text else "")

    def _never_fires(self, parsed: Expression) -> bool:
        since = _REFERENCE
        if parsed.years:
            since = (parsed.first_from(-FAR * 1_000) or 0) - FAR
        return first_from(parsed, zone(self.tz), since) is None


def _in_ms(found: Iterable[tuple[int, int]]) -> Iterator[Ticks]:
    return (Ticks(second * 1000, bits) for second, bits in found)


def _is_adjusted(trigger: Cron | Rule, times: LocalTimes, where: Zone, instant: int) -> bool:
    second = instant // 1000
    start, _, offset, _ = where.span(second)
    # Such a tick comes with the new offset, and most ticks do not.
    if second != start or times.matches(second + offset):
        return False
    return trigger.matches(instant)


def within_minutes(trigger: Cron | Rule) -> int:
    """The shortest time between two ticks that are less than a minute apart; otherwise a minute."""
    if isinstance(trigger, Rule):
        return trigger._times().shortest() * 1000  # pyright: ignore[reportPrivateUsage]
    parsed = trigger._parsed()  # pyright: ignore[reportPrivateUsage]
    seconds = [second for second in range(60) if parsed.seconds >> second & 1]
    if len(seconds) > 1 and _has_neighbours(parsed.minutes):
        seconds.append(seconds[0] + 60)
    return min((later - sooner for sooner, later in pairwise(seconds)), default=60) * 1000


def ticks_at_one_time(rule: Rule) -> bool:
    """Whether a rule ticks at most once a day, always at the same time."""
    return len(rule._times().times_of_day) == 1  # pyright: ignore[reportPrivateUsage]


def _has_neighbours(minutes: int) -> bool:
    return bool(minutes & (minutes >> 1 | minutes << 59))


def next_fires(expression: str, tz: str | None = "UTC", after_ms: int = 0, n: int = 1) -> list[int]:
    """Return the next n instants, after `after_ms`, at which a cron expression fires in a zone."""
    _require_whole("n", n, 0, MAX_FIRES)
    _require_instant("after_ms", after_ms)
    return Cron(expression, "UTC" if tz is None else tz).upcoming(n, after_ms)


# Every and At ------------------------------------------------------------------------------------


class Every(_Fires, msgspec.Struct, frozen=True):
    """Tick at anchor + k · interval, for k = 0, 1, …; zones and clock changes have no effect.

    The anchor of a schedule is its first tick; default: one interval after it was created. Until
    it has an anchor, an interval has no ticks. Its zone is stored, but has no effect unless
    a cron expression replaces the interval.
    """

    milliseconds: int
    anchor: int | None = None
    tz: str = "UTC"

    def __post_init__(self) -> None:
        force_setattr(self, "tz", zone(self.tz).name)
        _require_whole("milliseconds", self.milliseconds, LEAST_INTERVAL_MS, FIVE_YEARS_MS)
        if self.anchor is not None:
            _require_instant("anchor", self.anchor)

    def next_after(self, instant: int) -> int:
        """The first tick later than this instant."""
        anchor = self._anchor()
        ticks = (instant - anchor) // self.milliseconds + 1
        return anchor + max(ticks, 0) * self.milliseconds

    def prev_before(self, instant: int) -> int | None:
        """The last tick earlier than this instant; None if there is none."""
        anchor = self._anchor()
        ticks = (instant - 1 - anchor) // self.milliseconds
        return None if ticks < 0 else anchor + ticks * self.milliseconds

    def count_between(self, start: int, end: int) -> int:
        """How many ticks are in [start, end), without iterating over them."""
        anchor = self._anchor()
        past, before = (max(0, -((anchor - t) // self.milliseconds)) for t in (end, start))
        return max(0, past - before)

    def between(self, start: int, end: int) -> Iterator[int]:
        """The ticks in [start, end), one by one."""
        return iter(range(self.next_after(start - 1), end, self.milliseconds))

    def ticks_between(self, start: int, end: int) -> Iterator[Ticks]:
        """The ticks in [start, end), about a day at a time, without iterating over them."""
        # With milliseconds in the interval, only every n-th tick is whole seconds after the first.
        apart = 1000 // gcd(self.milliseconds, 1000)
        step = self.milliseconds * apart // 1000
        first = self.next_after(start - 1)
        for tick in range(first, min(end, first + apart * self.milliseconds), self.milliseconds):
            second, until = 0, _ceil(end - tick)
            while second < until:
                bits = stepped(0, step, min(DAY, until - second))
                yield Ticks(tick + second * 1000, bits)
                second += bits.bit_count() * step

    def anchored(self, at: int) -> Every:
        """The same interval with an anchor, unless it has one."""
        return self if self.anchor is not None else replace(self, anchor=at)

    def describe(self) -> str:
        """The interval in words."""
        return f"Every {_length(self.milliseconds)}"

    def _anchor(self) -> int:
        if self.anchor is None:
            raise InvalidOption("anchor", "the interval has none yet; set one with anchored(at)")
        return self.anchor


class At(_Fires, msgspec.Struct, frozen=True):
    """Tick once, at an instant in milliseconds since 1970 UTC."""

    instant: int

    def __post_init__(self) -> None:
        _require_instant("instant", self.instant)

    @property
    def tz(self) -> str:
        """UTC: an instant is the same in every zone."""
        return "UTC"

    @classmethod
    def of(cls, when: datetime) -> At:
        """Tick once, at an aware datetime."""
        if when.utcoffset() is None:
            raise InvalidTime(f"{when!r} is naive; attach a zone, for example tzinfo=UTC")
        return cls(to_ms(when))

    def next_after(self, instant: int) -> int | None:
        """The instant, if it is later than this one; otherwise None."""
        return self.instant if self.instant > instant else None

    def prev_before(self, instant: int) -> int | None:
        """The instant, if it is earlier than this one; otherwise None."""
        return self.instant if self.instant < instant else None

    def count_between(self, start: int, end: int) -> int:
        """1 if the instant is in [start, end), otherwise 0."""
        return int(start <= self.instant < end)

    def ticks_between(self, start: int, end: int) -> Iterator[Ticks]:
        """The instant, if it is in [start, end)."""
        if start <= self.instant < end:
            yield Ticks(self.instant, 1)

    def describe(self) -> str:
        """The trigger in words."""
        return f"Once, at {from_ms(self.instant).isoformat().replace('+00:00', 'Z')}"


# Rule and AnyOf ----------------------------------------------------------------------------------


class Rule(_Fires, msgspec.Struct, frozen=True):
    """Tick by a recurrence rule (RRULE of RFC 5545), counted from `start` in the zone `tz`.

    `start` is an aware datetime, whose zone is the default of `tz`, or a local time in that zone.
    It is kept as text. The first tick is the start itself only if the rule matches it. Text that
    begins with `DTSTART…` may contain both the start and the rule.
    """

    rule: str
    start: datetime | str = ""
    tz: str = ""

    def __post_init__(self) -> None:
        _require_text("rule", self.rule)
        _require_text("tz", self.tz)
        rule, start, tz = _unwrapped(self.rule, self.start, self.tz)
        local, tz = _local_start(start, tz)
        force_setattr(self, "rule", rule)
        force_setattr(self, "tz", tz)
        force_setattr(self, "start", local.isoformat())
        if self.next_after(self._begin() * 1000) is None:
            raise InvalidOption("rule", "it would never run: no date and time match")

    @property
    def starts(self) -> datetime:
        """The start, in its zone."""
        return datetime.fromisoformat(str(self.start)).replace(tzinfo=zone(self.tz).info)

    def next_after(self, instant: int) -> int | None:
        """The first tick later than this instant; None if there is none."""
        second = max(instant // 1000 + 1, self._begin())
        found = first_from(self._times(), zone(self.tz), second)
        return None if found is None or found > self._last() else found * 1000

    def prev_before(self, instant: int) -> int | None:
        """The last tick earlier than this instant; None if there is none."""
        second = min((instant - 1) // 1000, self._last())
        found = last_until(self._times(), zone(self.tz), second)
        return None if found is None else found * 1000

    def count_between(self, start: int, end: int) -> int:
        """How many ticks are in [start, end), without iterating over them."""
        seconds = max(_ceil(start), self._begin()), min(_ceil(end), self._last() + 1)
        return count(self._times(), zone(self.tz), *seconds)

    def ticks_between(self, start: int, end: int) -> Iterator[Ticks]:
        """The ticks in [start, end), about a day at a time, without iterating over them."""
        seconds = max(_ceil(start), self._begin()), min(_ceil(end), self._last() + 1)
        return _in_ms(by_day(self._times(), zone(self.tz), *seconds))

    def adjusted(self, instant: int) -> bool:
        """Whether the tick at this instant replaces a time that clocks skip."""
        return _is_adjusted(self, self._times(), zone(self.tz), instant)

    def describe(self) -> str:
        """The rule in words, with its zone."""
        words = rule_in_words(self._parts(), datetime.fromisoformat(str(self.start)))
        return f"{words} ({self.tz})"

    def _parts(self) -> Parts:
        return parse_rule(self.rule)

    def _times(self) -> Recurrence:
        return _recurrence(self.rule, str(self.start))

    def _begin(self) -> int:
        """A second before the first tick, in any zone."""
        return self._times().start - FAR

    def _last(self) -> int:
        """The second after which there is no tick."""
        parts = self._parts()
        if parts.count is None and parts.until is None:
            return LATEST
        return _last_second(self._times(), zone(self.tz))


@lru_cache(maxsize=4_096)
def _recurrence(rule: str, start: str) -> Recurrence:
    local = datetime.fromisoformat(start).replace(tzinfo=UTC)
    return Recurrence(parse_rule(rule), int(local.timestamp()))


@lru_cache(maxsize=4_096)
def _last_second(times: Recurrence, where: Zone) -> int:
    if times.parts.until is not None:
        return _until(times.parts.until, where)
    left = times.parts.count or 0
    low = times.start - FAR
    # A power of two, to be halved exactly.
    length = 1 << 17
    # Forward in growing steps, and then halving the one in which the last tick is.
    while low < LATEST and (ticks := count(times, where, low, low + length)) < left:
        left, low, length = left - ticks, low + length, length * 2
    while length > 1 and low < LATEST:
        length //= 2
        if (ticks := count(times, where, low, low + length)) < left:
            left, low = left - ticks, low + length
    return low


def _until(text: str, where: Zone) -> int:
    """The last second of an UNTIL: an instant, a local time, or the whole of a day."""
    try:
        local = datetime.fromisoformat(text.rstrip("Z"))
    except ValueError:
        raise InvalidOption("rule", f"UNTIL={text} is not a date and time") from None
    second = int(local.replace(tzinfo=UTC).timestamp())
    if text.endswith("Z"):
        return second
    if "T" not in text:
        second += DAY - 1
    # Of a repeated time the second one; of a skipped time, the end of the gap.
    return max(where.resolve(second), default=second - where.offset(second - FAR))


_START = re.compile(
    r"DTSTART(?:;TZID=([^:;\s]+))?(?:;VALUE=DATE-TIME)?:([0-9]{8}T[0-9]{6})(Z?)", re.I
)


def _unwrapped(text: str, start: datetime | str, tz: str) -> tuple[str, datetime | str, str]:
    """The rule, start and zone of a text that may have lines with names, as in iCalendar files."""
    rules: list[str] = []
    for word in text.split():
        if found := _START.fullmatch(word):
            if start:
                raise InvalidOption("start", "the rule has a DTSTART", "give only one of them")
            start = f"{found[2]}{found[3].upper()}"
            tz = tz or found[1] or ""
        else:
            rules.append(word[6:] if word[:6].upper() == "RRULE:" else word)
    if len(rules) != 1:
        hint = 'for example "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO"'
        raise InvalidOption("rule", "give one RRULE", hint)
    rule = rules[0].upper().strip(";")
    parse_rule(rule)
    return rule, start, tz


def _local_start(given: datetime | str, tz: str) -> tuple[datetime, str]:
    """The local time of a start, and its zone."""
    start = _moment(given) if isinstance(given, str) else given
    if not isinstance(start, datetime):
        raise InvalidOption("start", f"must be a datetime or text, not {start!r}")
    if not 1970 <= start.year < 2200:
        raise InvalidOption("start", f"must be in the years 1970 to 2199, not {start.year}")
    if start.tzinfo is not None:
        tz = tz or _name_of_zone(start)
        start = start.astimezone(zone(tz).info)
    elif not tz:
        raise InvalidOption("start", "it has no time zone", "add tz=, or give an aware datetime")
    return start.replace(tzinfo=None, microsecond=0, fold=0), zone(tz).name


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        reason = f"{text[:40]!r} is not a date and time" if text else "a rule needs one"
        hint = "give the first possible tick, such as 2026-07-01T09:00"
        raise InvalidOption("start", reason, hint) from None


def _name_of_zone(moment: datetime) -> str:
    key = getattr(moment.tzinfo, "key", None)
    if isinstance(key, str):
        return key
    if moment.utcoffset():
        reason = f"{moment.isoformat()} has an offset, but no time zone"
        raise InvalidOption("start", reason, 'add tz=, for example tz="Europe/Istanbul"')
    return "UTC"


@dataclass(frozen=True, slots=True, init=False)
class AnyOf(_Fires):
    """Tick whenever one of several triggers does; ticks at the same instant are one."""

    triggers: tuple[Cron | Every | At | Rule, ...]

    def __init__(self, *triggers: Cron | Every | At | Rule | AnyOf) -> None:
        flat: list[Cron | Every | At | Rule] = []
        for trigger in triggers:
            if not isinstance(trigger, Cron | Every | At | Rule | AnyOf):
                raise InvalidOption("trigger", f"AnyOf takes triggers, not {trigger!r}")
            flat += trigger.triggers if isinstance(trigger, AnyOf) else (trigger,)
        flat = list(dict.fromkeys(flat))
        if not 1 <= len(flat) <= MAX_TRIGGERS:
            raise InvalidOption("trigger", f"AnyOf takes 1 to {MAX_TRIGGERS} triggers")
        object.__setattr__(self, "triggers", tuple(flat))

    @property
    def tz(self) -> str:
        """The zone of its first cron expression or rule; UTC without any."""
        return next((each.tz for each in self.triggers if isinstance(each, Cron | Rule)), "UTC")

    def next_after(self, instant: int) -> int | None:
        """The first tick later than this instant; None if there is none."""
        found = (each.next_after(instant) for each in self.triggers)
        return min((tick for tick in found if tick is not None), default=None)

    def prev_before(self, instant: int) -> int | None:
        """The last tick earlier than this instant; None if there is none."""
        found = (each.prev_before(instant) for each in self.triggers)
        return max((tick for tick in found if tick is not None), default=None)

    def count_between(self, start: int, end: int) -> int:
        """How many ticks are in [start, end), without iterating over them."""
        return sum(bits.bit_count() for _, bits in self.ticks_between(start, end))

    def ticks_between(self, start: int, end: int) -> Iterator[Ticks]:
        """The ticks in [start, end), about a day at a time, without iterating over them."""
        for since in range(start, end, DAY * 1000):
            until = min(end, since + DAY * 1000)
            # Only ticks with the same milliseconds can coincide.
            merged: dict[int, int] = {}
            first = since // 1000
            for each in self.triggers:
                for at, bits in each.ticks_between(since, until):
                    second, rest = divmod(at, 1000)
                    merged[rest] = merged.get(rest, 0) | bits << FAR + second - first
            for rest, bits in merged.items():
                yield Ticks(first * 1000 + rest, bits >> FAR)

    def adjusted(self, instant: int) -> bool:
        """Whether the tick at this instant only replaces times that clocks skip."""
        ticking = [each for each in self.triggers if each.matches(instant)]
        return bool(ticking) and all(each.adjusted(instant) for each in ticking)

    def describe(self) -> str:
        """The triggers in words."""
        first, *others = (each.describe() for each in self.triggers)
        return "; ".join([first, *(f"{words[0].lower()}{words[1:]}" for words in others)])


Trigger: TypeAlias = Cron | Every | At | Rule | AnyOf
GatewayTrigger: TypeAlias = Cron | Every | At
"""What the crons of a gateway may have."""


def spread(trigger: Trigger, seed: str) -> Trigger:
    """The trigger with a seed for `H` where it has none."""
    if isinstance(trigger, AnyOf):
        return AnyOf(*(spread(each, seed) for each in trigger.triggers))
    return trigger.spread_by(seed) if isinstance(trigger, Cron) else trigger


def anchored(trigger: Trigger, now: int, start: int | None) -> Trigger:
    """The trigger with an anchor for intervals that have none: the start, or one interval later."""
    if isinstance(trigger, AnyOf):
        return AnyOf(*(anchored(each, now, start) for each in trigger.triggers))
    if isinstance(trigger, Every):
        return trigger.anchored(now + trigger.milliseconds if start is None else start)
    return trigger


def in_phase(trigger: AnyOf, before: AnyOf) -> AnyOf:
    """The trigger whose intervals without an anchor keep the one that they had before."""
    anchors = {t.milliseconds: t.anchor for t in before.triggers if isinstance(t, Every)}
    return AnyOf(
        *(
            replace(each, anchor=anchors.get(each.milliseconds))
            if isinstance(each, Every) and each.anchor is None
            else each
            for each in trigger.triggers
        )
    )


def is_same_time(one: Trigger | None, other: Trigger) -> bool:
    """Whether both tick at the same instants as written: an interval in any zone."""
    if isinstance(one, Every) and isinstance(other, Every):
        return replace(one, tz=other.tz) == other
    return one == other


# Helpers -----------------------------------------------------------------------------------------


def hourly(minute: int | None = None, *, tz: str = "UTC") -> Cron:
    """Every hour; without a minute, at a minute derived from the schedule's key."""
    return Cron(f"{_minute(minute)} * * * *", tz)


def daily(hour: int, minute: int | None = None, *, tz: str = "UTC") -> Cron:
    """Every day."""
    return Cron(f"{_minute(minute)} {_hour(hour)} * * *", tz)


def weekly(day: int | str, hour: int, minute: int | None = None, *, tz: str = "UTC") -> Cron:
    """Every week; the day is a name, or a number from 0 (Sunday) to 7 (Sunday too)."""
    return Cron(f"{_minute(minute)} {_hour(hour)} * * {_weekday(day)}", tz)


def monthly(day: int, hour: int, minute: int | None = None, *, tz: str = "UTC") -> Cron:
    """Every month that has this day."""
    return Cron(f"{_minute(minute)} {_hour(hour)} {_require_whole('day', day, 1, 31)} * *", tz)


def every(
    *, seconds: int | None = None, minutes: int | None = None, hours: int | None = None
) -> Every:
    """At an interval; give exactly one of seconds, minutes and hours, as a whole number."""
    units = {"seconds": (seconds, 1_000), "minutes": (minutes, 60_000), "hours": (hours, 3_600_000)}
    given = {name: (value, unit) for name, (value, unit) in units.items() if value is not None}
    if len(given) != 1:
        raise InvalidOption("every", "give exactly one of seconds, minutes, hours")
    [(name, (value, unit))] = given.items()
    return Every(_require_whole(name, value, 1, FIVE_YEARS_MS // unit) * unit)


def _minute(minute: int | None) -> str:
    return "H" if minute is None else str(_require_whole("minute", minute, 0, 59))


def _hour(hour: int) -> int:
    return _require_whole("hour", hour, 0, 23)


_WEEKDAYS = "sunday monday tuesday wednesday thursday friday saturday".split()


def _weekday(day: int | str) -> int:
    if not isinstance(day, str):
        return _require_whole("day", day, 0, 7) % 7
    wanted = day.strip().lower()
    for number, name in enumerate(_WEEKDAYS):
        if wanted in (name, name[:3]):
            return number
    raise InvalidOption("day", f"{day[:20]!r} is not a weekday; write {', '.join(_WEEKDAYS)}")


# As data -----------------------------------------------------------------------------------------


def encode(trigger: Trigger) -> dict[str, Any]:
    """The trigger as JSON data; `decode` reverses it."""
    if isinstance(trigger, AnyOf):
        return {"kind": "any_of", "triggers": [encode(each) for each in trigger.triggers]}
    return {"kind": _KIND[type(trigger)], **msgspec.structs.asdict(trigger)}


def decode(data: Mapping[str, Any]) -> Trigger:
    """A trigger from data; unknown fields are refused by name."""
    kinds = {kind: made for made, kind in _KIND.items()}
    if not isinstance(data, Mapping):
        raise InvalidOption("trigger", f"must be an object, not {data!r}")
    kind = data.get("kind")
    if kind == "any_of":
        return _decode_any(data)
    if not isinstance(kind, str) or kind not in kinds:
        known = ", ".join((*kinds, "any_of"))
        raise InvalidOption("kind", f"must be one of {known}, not {kind!r}")
    made = kinds[kind]
    given = {name: value for name, value in data.items() if name != "kind"}
    for name in given:
        if name not in made.__struct_fields__:
            known = ", ".join(made.__struct_fields__)
            raise InvalidOption(str(name), f"a trigger of kind {kind} only has {known}")
    required = made.__struct_fields__[0]
    if required not in given:
        raise InvalidOption(required, f"a trigger of kind {kind} needs it")
    return made(**given)


def _decode_any(data: Mapping[str, Any]) -> AnyOf:
    triggers: object = data.get("triggers")
    if set(data) != {"kind", "triggers"} or not isinstance(triggers, list | tuple):
        reason = "a trigger of kind any_of has triggers, a list of objects, and nothing else"
        raise InvalidOption("triggers", reason)
    listed = cast("Sequence[Any]", triggers)
    if len(listed) > MAX_TRIGGERS:
        raise InvalidOption("triggers", f"at most {MAX_TRIGGERS}, not {len(listed):,}")
    for each in listed:
        if isinstance(each, Mapping) and cast("Mapping[str, Any]", each).get("kind") == "any_of":
            raise InvalidOption(
                "triggers", "any_of cannot contain any_of", "list all triggers in one"
            )
    return AnyOf(*map(decode, listed))


_KIND: dict[type[Cron] | type[Every] | type[At] | type[Rule], str] = {
    Cron: "cron",
    Every: "interval",
    At: "at",
    Rule: "rule",
}


# Checks and words --------------------------------------------------------------------------------


def _require_text(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidOption(option, f"must be text, not {value!r}")


def _require_whole(option: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidOption(option, f"must be a whole number from {least} to {most}, not {value!r}")
    return value


def _require_instant(option: str, value: object) -> None:
    if type(value) is not int or not EARLIEST <= value // 1000 <= LATEST:
        raise InvalidTime(f"{option}: must be integer milliseconds since 1970 UTC, not {value!r}")


def _ceil(instant: int) -> int:
    return -(-instant // 1000)


def _length(milliseconds: int) -> str:
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
        if milliseconds % unit == 0:
            number = milliseconds // unit
            return name if number == 1 else f"{number:,} {name}s"
    return "second" if milliseconds == 1000 else f"{milliseconds / 1000:,.10g} seconds"
