"""Triggers: `Cron`, `Every` and `At` compute the next instant after any other.

Instants are integer milliseconds since 1970 UTC. On days on which clocks are set forward or back,
the rules are those of Debian's cron; docs/dst.md shows examples.

1. An expression whose minute or hour field starts with `*` follows the clock: it fires at every
   instant at which the clock shows a matching time.
2. Any other is fixed: it fires once for every matching date and time. A repeated time fires the
   first time; a skipped one fires at the end of the gap, unless the gap is longer than three hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import force_setattr, replace

from duly.clock import from_ms, to_ms
from duly.errors import InvalidCron, InvalidOption, InvalidTime
from duly.model import cron
from duly.model.cron import Expression
from duly.model.cron_words import in_words
from duly.model.job import FIVE_YEARS_MS
from duly.zones import Zone, zone

LEAST_INTERVAL_MS = 1_000
MAX_FIRES = 10_000
"""The most instants that `next_fires` returns."""

_LONGEST_GAP = 3 * 3600
_CENTURY = 36_525 * 86_400
# A tick is never further from its local time, read as if it were UTC.
_FAR = 2 * 86_400
_EARLIEST = -60_000_000_000
LATEST = 250_000_000_000
_ALL_HOURS = (1 << 24) - 1
_REFERENCE = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


class _Fires(msgspec.Struct, frozen=True):
    """What all triggers can do, given that they can compute the next instant."""

    def next_after(self, instant: int) -> int | None:
        """The first tick later than this instant; None if there is none."""
        raise NotImplementedError

    def prev_before(self, instant: int) -> int | None:
        """The last tick earlier than this instant; None if there is none."""
        raise NotImplementedError

    def count_between(self, start: int, end: int) -> int:
        """How many ticks are in [start, end), without iterating over them."""
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


class Cron(_Fires, frozen=True):
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
        second = max(instant // 1000 + 1, _EARLIEST)
        found = _first_from(self._parsed(), zone(self.tz), second)
        return None if found is None else found * 1000

    def prev_before(self, instant: int) -> int | None:
        """The last tick earlier than this instant; None if there is none."""
        second = min((instant - 1) // 1000, LATEST)
        found = _last_until(self._parsed(), zone(self.tz), second)
        return None if found is None else found * 1000

    def count_between(self, start: int, end: int) -> int:
        """How many ticks are in [start, end), without iterating over them."""
        seconds = (max(_ceil(start), _EARLIEST), min(_ceil(end), LATEST))
        return _count(self._parsed(), zone(self.tz), *seconds)

    def adjusted(self, instant: int) -> bool:
        """Whether the tick at this instant replaces a time that clocks skip."""
        second = instant // 1000
        start, _, offset, _ = zone(self.tz).span(second)
        # Such a tick comes with the new offset, and most ticks do not.
        if second != start or self._parsed().matches(second + offset):
            return False
        return self.matches(instant)

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
            since = (parsed.first_from(-_FAR * 1_000) or 0) - _FAR
        return _first_from(parsed, zone(self.tz), since) is None


def _first_from(expression: Expression, where: Zone, second: int) -> int | None:
    """The first tick at or after a second."""
    if second > LATEST:
        return None
    start, end, offset, before = where.span(second)
    follows_clock = expression.follows_clock
    earliest = second + offset
    if not follows_clock:
        if earliest < start + before:
            earliest = start + before  # the second pass of a repeated hour
        elif second == start:
            earliest = start + before  # a gap has just ended
    local = expression.first_from(earliest)
    until = min(second + _CENTURY, LATEST)
    stepped = False
    while local is not None and start < until:
        if local < start + offset:
            if offset - before <= _LONGEST_GAP:
                return start
            local = expression.first_from(start + offset)
            continue
        if local - offset < end:
            return local - offset
        # A later span may be entered in its middle: its repeated or skipped times are long past.
        enter = max(end, local - _FAR) if stepped else end
        stepped = True
        start, end, offset, before = where.span(enter)
        if follows_clock and enter == start and (offset < before or local < start + offset):
            local = expression.first_from(start + offset)
    return None


def _last_until(expression: Expression, where: Zone, second: int) -> int | None:
    """The last tick at or before a second."""
    if second < _EARLIEST:
        return None
    start, _, offset, before = where.span(second)
    follows_clock = expression.follows_clock
    latest = second + offset
    until = max(second - _CENTURY, _EARLIEST)
    stepped = False
    while (local := expression.last_until(latest)) is not None and start > until:
        own = start + offset
        if local >= own and (follows_clock or local >= start + before):
            return local - offset
        if not follows_clock and start + before <= local < own and offset - before <= _LONGEST_GAP:
            return start
        leave = min(start - 1, local + _FAR) if stepped else start - 1
        stepped = True
        start, _, offset, before = where.span(leave)
        latest = leave + offset
    return None


def _count(expression: Expression, where: Zone, second: int, until: int) -> int:
    """How many ticks are in [second, until)."""
    total = 0
    while second < until:
        start, end, offset, before = where.span(second)
        end = min(end, until)
        first = second + offset
        if not expression.follows_clock:
            first = max(first, start + before)
            if second == start and _ends_a_gap_with_a_tick(expression, start, offset, before):
                total += 1
        total += expression.count(first, end + offset)
        second = end
    return total


def _ends_a_gap_with_a_tick(expression: Expression, start: int, offset: int, before: int) -> bool:
    """Whether there is a tick only because a time was skipped."""
    if not 0 < offset - before <= _LONGEST_GAP or expression.matches(start + offset):
        return False
    return expression.count(start + before, start + offset) > 0


def within_minutes(trigger: Cron) -> int:
    """The shortest time between two ticks that are less than a minute apart; otherwise a minute."""
    parsed = trigger._parsed()  # pyright: ignore[reportPrivateUsage]
    seconds = [second for second in range(60) if parsed.seconds >> second & 1]
    if len(seconds) > 1 and _has_neighbours(parsed.minutes):
        seconds.append(seconds[0] + 60)
    return min((later - sooner for sooner, later in pairwise(seconds)), default=60) * 1000


def _has_neighbours(minutes: int) -> bool:
    return bool(minutes & (minutes >> 1 | minutes << 59))


def next_fires(expression: str, tz: str | None = "UTC", after_ms: int = 0, n: int = 1) -> list[int]:
    """Return the next n instants, after `after_ms`, at which a cron expression fires in a zone."""
    _require_whole("n", n, 0, MAX_FIRES)
    _require_instant("after_ms", after_ms)
    return Cron(expression, "UTC" if tz is None else tz).upcoming(n, after_ms)


# Every and At ------------------------------------------------------------------------------------


class Every(_Fires, frozen=True):
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


class At(_Fires, frozen=True):
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

    def describe(self) -> str:
        """The trigger in words."""
        return f"Once, at {from_ms(self.instant).isoformat().replace('+00:00', 'Z')}"


Trigger: TypeAlias = Cron | Every | At


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
    return {"kind": _KIND[type(trigger)], **msgspec.structs.asdict(trigger)}


def decode(data: Mapping[str, Any]) -> Trigger:
    """A trigger from data; unknown fields are refused by name."""
    kinds = {kind: made for made, kind in _KIND.items()}
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidOption("kind", f"must be one of {', '.join(kinds)}, not {kind!r}")
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


_KIND: dict[type[Cron] | type[Every] | type[At], str] = {Cron: "cron", Every: "interval", At: "at"}


# Checks and words --------------------------------------------------------------------------------


def _require_text(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidOption(option, f"must be text, not {value!r}")


def _require_whole(option: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidOption(option, f"must be a whole number from {least} to {most}, not {value!r}")
    return value


def _require_instant(option: str, value: object) -> None:
    if type(value) is not int or not _EARLIEST <= value // 1000 <= LATEST:
        raise InvalidTime(f"{option}: must be integer milliseconds since 1970 UTC, not {value!r}")


def _ceil(instant: int) -> int:
    return -(-instant // 1000)


def _length(milliseconds: int) -> str:
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute")):
        if milliseconds % unit == 0:
            number = milliseconds // unit
            return name if number == 1 else f"{number:,} {name}s"
    return "second" if milliseconds == 1000 else f"{milliseconds / 1000:,.10g} seconds"
