"""Expectations of schedules, and when they were missed.

An `Expect` is checked when it could have been missed, whether or not anything ticks. Ticks that a
calendar forbids or an operator skipped do not count; all others do, including those that are not
decided yet. A tick has succeeded if its job has, or any later job of the schedule. A tick is due
when it can be decided: ticks are decided in order, so one that jitter or a shift delays also delays
those after it.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import msgspec

from duly.errors import InvalidOption
from duly.model.calendar import Calendar
from duly.model.due import due_at, first_coming, first_tick, furthest, shifted
from duly.model.schedule import Outcome, Plan, Reason, TickKind, TickRecord
from duly.model.schedule_options import LONGEST_MS, is_number
from duly.model.stored_values import read
from duly.model.trigger import Cron

EXCUSED = frozenset({Reason.CALENDAR, Reason.OPERATOR})
REFRESH_MS = 6 * 3_600_000
"""Successes are read at least this often: later they may have left the history."""
MAX_UNDECIDED = 10_000
MAX_SKEW_MS = 60_000
"""How far the clock of a process that stores a job may be behind that of the checking process."""
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


class Expect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a schedule promises; if it breaks the promise, its `alert` is sent. Give one of:

    `by="07:00"`: by that time of day, in its zone, its last tick before it has succeeded. A tick at
    exactly that time counts for the next day.
    `within=900`: each tick has succeeded at most this many seconds after it was due.
    `every=86400`: the last success is never older than this many seconds.
    """

    by: str | None = None
    within: float | None = None
    every: float | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.by, self.within, self.every) if value is not None]
        if len(given) != 1:
            raise InvalidOption("expect", "give exactly one of by, within, every")
        if self.by is not None and not _TIME.fullmatch(str(self.by)):
            raise InvalidOption(
                "expect", f'by must be a time of day such as "07:00", not {self.by!r}'
            )
        for name in ("within", "every"):
            value = getattr(self, name)
            if value is not None and not is_number(value, 1, LONGEST_MS / 1000):
                raise InvalidOption(
                    "expect", f"{name} must be 1 s to a year, in seconds, not {value!r}"
                )


@lru_cache(maxsize=4_096)
def read_expect(text: str) -> Expect:
    return msgspec.json.decode(text, type=Expect)


def read_late(text: str | None) -> Late | None:
    """How an expectation was missed, as stored. Text that cannot be read still counts as missed."""
    return None if text is None else read(text, Late, Late(0, "cannot be read", alerted=True))


class Late(msgspec.Struct, frozen=True, rename={"alerted": "told"}):
    """A missed expectation, as it is stored."""

    at: int
    problem: str
    alerted: bool = True
    """Whether its alert was enqueued."""


class Success(NamedTuple):
    """A succeeded job of the schedule: its nominal time, and when it succeeded."""

    scheduled_at: int
    completed_at: int


class ExpectFacts(NamedTuple):
    """The data from which an expectation is checked."""

    rows: Sequence[TickRecord]
    """The ledger, back to `ledger_since`."""
    successes: Sequence[Success]
    calendars: Mapping[str, Calendar]
    unfinished: int | None = None
    """When the oldest unfinished job was created (`every`)."""


class Finding(NamedTuple):
    """The result of a check, and when to check again."""

    problem: str | None
    check_at: int | None
    tick: int | None = None
    """The next tick that must succeed (`within`), or the creation time of the oldest job that may
    still succeed (`every`)."""
    last_success_at: int | None = None
    is_new: bool = True
    """Whether an alert must be sent for the problem."""


class Due(NamedTuple):
    """A tick, when it was due, and whether it counts."""

    tick_at: int
    due_at: int
    counts: bool = True


class Expectation(NamedTuple):
    """The expectation of one schedule."""

    plan: Plan
    expect: Expect

    # When

    def first_check(self, now: int, calendars: Mapping[str, Calendar]) -> Finding:
        """When to check first, from now on."""
        if self.expect.by is not None:
            return Finding(None, self._daily.next_after(now))
        if self.expect.within is not None:
            tick = self.plan.record.next_tick_at
            if tick is not None and due_at(self.plan, tick, calendars) < now:
                tick = first_coming(self.plan, now, calendars)
            return self._check_of(tick, calendars)
        assert self.expect.every is not None
        begin = max(now, self.plan.record.start_at or 0)
        return Finding(None, self._look_again(now, begin + round(self.expect.every * 1000)))

    def since(self) -> int:
        """The start of the period that is judged, for which the history must be known."""
        record = self.plan.record
        assert record.expect_at is not None
        if self.expect.by is not None:
            return self._daily.prev_before(record.expect_at) or 0
        if self.expect.within is not None:
            return record.expect_tick or record.expect_at
        return self._unknown_since - MAX_SKEW_MS

    def ledger_since(self) -> int:
        """The start of the period for which the ledger must be known."""
        if self.expect.by is None:
            return self.since()
        # A tick can be due long after its nominal time, up to the next one if an operator moved it.
        first = self.since() - furthest(self.plan)
        return self.plan.trigger.prev_before(first) or first

    # Whether

    def look(self, known: ExpectFacts, now: int, late: Late | None) -> Finding:
        """Whether the expectation is met now."""
        if self.expect.every is not None:
            return self._look_every(known, now, late)
        judge = self._look_by if self.expect.by is not None else self._look_within
        due = self._due(known, now)
        finding = judge(known, due, now)
        if finding.problem is None:
            return finding
        return judge(known, self._held_back(due, known.calendars), now)

    def _look_by(self, known: ExpectFacts, due: Sequence[Due], now: int) -> Finding:
        check_at = self._daily.prev_before(now + 1)
        following = self._daily.next_after(now)
        since = self.since()
        if self._is_over and not any(row.decided_at > since for row in known.rows):
            following = None
        if check_at is None:
            return Finding(None, following)
        before = [each for each in due if each.counts and since <= each.due_at < check_at]
        kept = not before or Record(known.successes).had(before[-1].tick_at, check_at)
        problem = None if kept else f"its last tick did not succeed by {self.expect.by}"
        return Finding(problem, following)

    def _look_within(self, known: ExpectFacts, due: Sequence[Due], now: int) -> Finding:
        assert self.expect.within is not None
        within = round(self.expect.within * 1000)
        first = self.plan.record.expect_tick or 0
        due = [each for each in due if each.tick_at >= first]
        record = Record(known.successes)
        passed = [d for d in due if d.due_at + within <= now]
        broken = [d for d in passed if d.counts and not record.had(d.tick_at, d.due_at + within)]
        # Ticks that do not count are waited for as well: those after them are not known yet.
        waiting = next((d for d in due if d.due_at + within > now), None)
        if waiting is None:
            after = max((d.tick_at for d in due), default=now)
            found = self._check_of(self._coming(max(after, now - within)), known.calendars)
        else:
            found = Finding(None, waiting.due_at + within, waiting.tick_at)
        problem = None
        if len(broken) == 1:
            problem = f"a tick did not succeed within {self.expect.within:g} s"
        elif broken:
            problem = f"{len(broken)} ticks did not succeed within {self.expect.within:g} s"
        return found._replace(problem=problem)

    def _look_every(self, known: ExpectFacts, now: int, late: Late | None) -> Finding:
        assert self.expect.every is not None
        seen = [success.completed_at for success in known.successes]
        last = max([*seen, self.plan.record.last_success_at or 0]) or None
        told_at = late.at if late is not None and (last is None or last <= late.at) else None
        deadline = self._deadline(last, told_at)
        if self._is_over:
            return Finding(None, None, last_success_at=last)
        problem, is_new = None, now >= deadline
        if is_new:
            problem = f"no job has succeeded for {self.expect.every:g} s"
            deadline = now + round(self.expect.every * 1000)
        elif told_at is not None and late is not None:
            problem = late.problem
        check_at = self._look_again(now, deadline)
        # A job that was created before the last success may still succeed after it.
        unknown = [self._unknown_since if last is None else last]
        if known.unfinished is not None:
            unknown.append(known.unfinished)
        return Finding(problem, check_at, min(unknown), last, is_new)

    # Which ticks

    def _due(self, known: ExpectFacts, now: int) -> list[Due]:
        """The ticks of the ledger and the undecided ones, in order, up to the first that is still
        ahead; each is due no earlier than those before it."""
        found: list[Due] = []
        latest = 0
        for each in sorted([*self._decided(known, now), *self._undecided(known, now)]):
            latest = max(latest, each.due_at)
            found.append(each._replace(due_at=latest))
        return found

    def _held_back(self, due: Sequence[Due], calendars: Mapping[str, Calendar]) -> list[Due]:
        """The same, also delayed by ticks that came before all of these."""
        if not due:
            return []
        earliest = max(due[0].due_at - furthest(self.plan), self._begin)
        latest, tick = 0, self.plan.trigger.prev_before(due[0].tick_at)
        for _ in range(MAX_UNDECIDED):
            if tick is None or tick < earliest:
                break
            latest = max(latest, due_at(self.plan, tick, calendars))
            tick = self.plan.trigger.prev_before(tick)
        return [each._replace(due_at=max(latest, each.due_at)) for each in due]

    def _decided(self, known: ExpectFacts, now: int) -> Iterator[Due]:
        before = now + 1 if self.expect.by is None else self._daily.prev_before(now + 1) or 0
        for row in known.rows:
            if row.kind == TickKind.MISSED:
                yield from self._missed(row, known.calendars, before)
            elif row.kind == TickKind.SLOT:
                yield Due(row.tick_at, row.due_at, not self._is_excused(row, known.calendars))

    def _undecided(self, known: ExpectFacts, now: int) -> Iterator[Due]:
        record = self.plan.record
        tick = record.parked_tick if record.next_tick_at is None else record.next_tick_at
        since = self.ledger_since()
        if tick is not None and tick < since:
            tick = first_tick(self.plan, since - 1)
        for _ in range(MAX_UNDECIDED):
            if tick is None:
                return
            due = due_at(self.plan, tick, known.calendars)
            counts = self._is_allowed(tick, known.calendars) and not self._is_skipped(tick)
            yield Due(tick, due, counts)
            if due > now:
                return
            tick = first_tick(self.plan, tick)

    def _missed(
        self, row: TickRecord, calendars: Mapping[str, Calendar], before: int
    ) -> Iterator[Due]:
        """The newest missed tick that is allowed, and due before then, represents them all."""
        latest = before + furthest(self.plan)
        newest = row.tick_at
        tick = newest if newest < latest else self.plan.trigger.prev_before(latest)
        for _ in range(min(row.count or 1, MAX_UNDECIDED)):
            if tick is None or (row.first_at is not None and tick < row.first_at):
                return
            due = due_at(self.plan, tick, calendars)
            if due < before and self._is_allowed(tick, calendars):
                yield Due(tick, due)
                return
            tick = self.plan.trigger.prev_before(tick)

    def _is_excused(self, row: TickRecord, calendars: Mapping[str, Calendar]) -> bool:
        if row.outcome != Outcome.SKIPPED:
            return False
        # The reason is that of the first guard; the calendar may have objected too.
        return row.reason in EXCUSED or not self._is_allowed(row.tick_at, calendars)

    def _is_skipped(self, tick: int) -> bool:
        override = self.plan.override
        return override is not None and override.tick_at == tick and override.to is None

    def _is_allowed(self, tick: int, calendars: Mapping[str, Calendar]) -> bool:
        name = self.plan.record.calendar
        if name is None:
            return True
        calendar = calendars.get(name)
        return calendar is not None and calendar.allows(shifted(self.plan, tick, calendars))

    def _coming(self, after: int) -> int | None:
        """The first upcoming tick after an instant."""
        if self._is_over:
            return None
        upcoming = self.plan.record.next_tick_at
        # A parked schedule will resume some day.
        is_later = upcoming is not None and upcoming > after
        return upcoming if is_later else first_tick(self.plan, after)

    def _check_of(self, tick: int | None, calendars: Mapping[str, Calendar]) -> Finding:
        assert self.expect.within is not None
        if tick is None:
            return Finding(None, None)
        check_at = due_at(self.plan, tick, calendars) + round(self.expect.within * 1000)
        return Finding(None, check_at, tick)

    # Times

    @property
    def _is_over(self) -> bool:
        return self.plan.record.next_tick_at is None and self.plan.record.parked_at is None

    @property
    def _begin(self) -> int:
        record = self.plan.record
        return max(record.awake_at or 0, record.start_at or 0)

    @property
    def _unknown_since(self) -> int:
        """No job that existed before then can have succeeded since the last check (`every`)."""
        assert self.expect.every is not None
        known = self.plan.record.expect_tick
        # At first it is not known what runs; counting an earlier success does no harm.
        return self._begin - round(self.expect.every * 1000) if known is None else known

    def _deadline(self, last_success: int | None, told_at: int | None) -> int:
        assert self.expect.every is not None
        since = max(self._begin, last_success or 0, told_at or 0)
        return since + round(self.expect.every * 1000)

    def _look_again(self, now: int, deadline: int) -> int:
        return max(now + 1, min(deadline, now + REFRESH_MS))

    @property
    def _daily(self) -> Cron:
        assert self.expect.by is not None
        hour, minute = self.expect.by.split(":")
        return Cron(f"{int(minute)} {int(hour)} * * *", self.plan.zone)


class Record:
    """Successes, ordered so that many ticks can be looked up."""

    def __init__(self, successes: Sequence[Success]) -> None:
        ordered = sorted(successes)
        self._ticks = [success.scheduled_at for success in ordered]
        # The earliest end of this job and all later ones.
        ends = [success.completed_at for success in reversed(ordered)]
        self._ends = list(accumulate(ends, min))[::-1]

    def had(self, tick_at: int, until: int) -> bool:
        """Whether a job of this tick, or of a later one, had succeeded by then."""
        place = bisect_left(self._ticks, tick_at)
        return place < len(self._ends) and self._ends[place] <= until
