"""Finds the due ticks of a schedule, and when each of them is processed."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from duly.model.calendar import FURTHEST_SHIFT, Calendar, shift
from duly.model.schedule import Plan
from duly.model.schedule_options import DAY_MS, MAX_CATCH_UP

GRACE_MS = 60_000
"""A tick that is processed within this time is on time, even if nothing is caught up."""
FOREVER = 2**63 - 1
FURTHEST_MS = (FURTHEST_SHIFT + 1) * DAY_MS
"""No tick is moved further than this to another day."""


def due_at(plan: Plan, tick_at: int, calendars: Mapping[str, Calendar]) -> int:
    """When a tick is due: an operator, a shift to another day or jitter may move it."""
    if plan.override is not None and plan.override.tick_at == tick_at and plan.override.to:
        return plan.override.to
    return shifted(plan, tick_at, calendars) + jitter_of(plan, tick_at)


def shifted(plan: Plan, tick_at: int, calendars: Mapping[str, Calendar]) -> int:
    """The tick on the nearest day that its calendar allows, if it must be shifted."""
    direction, name = plan.policies.shift, plan.record.calendar
    if direction is None or name is None or name not in calendars:
        return tick_at
    moved = shift(tick_at, plan.zone, calendars[name], direction)
    return tick_at if moved is None else moved


def jitter_of(plan: Plan, tick_at: int) -> int:
    """A delay that looks random and is always the same for one tick."""
    most = plan.policies.jitter
    if not most:
        return 0
    digest = hashlib.blake2b(f"{plan.id} {tick_at}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (most + 1)


def first_tick(plan: Plan, after: int) -> int | None:
    """The first tick after an instant that is between the schedule's start and end."""
    start, end = plan.record.start_at, plan.record.end_at
    if start is not None and start > after:
        after = start - 1
    tick = plan.trigger.next_after(after)
    return None if tick is None or (end is not None and tick > end) else tick


def first_coming(plan: Plan, after: int, calendars: Mapping[str, Calendar]) -> int | None:
    """The first tick after an instant that is also due after it.

    A tick that a calendar moves to an earlier day may be over although its nominal time is ahead.
    """
    tick = first_tick(plan, after)
    while tick is not None and due_at(plan, tick, calendars) <= after:
        tick = first_tick(plan, tick)
    return tick


def re_aimed(
    plan: Plan, now: int, taken: Collection[int], calendars: Mapping[str, Calendar]
) -> int | None:
    """The next tick of a schedule that was advanced by a clock ahead of this one.

    It is the first upcoming tick without a row in the ledger (`taken`), unless the schedule's next
    tick is earlier.
    """
    tick = first_coming(replace(plan, override=None), now, calendars)
    while tick is not None and tick in taken:
        tick = first_tick(plan, tick)
    stands_at = plan.record.next_tick_at
    if tick is None or (stands_at is not None and stands_at <= tick):
        return stands_at
    return tick


class Missed(msgspec.Struct, frozen=True):
    """Ticks that will never be dispatched."""

    first: int
    last: int
    count: int


class Due(NamedTuple):
    """The ticks to decide now, oldest first; the ticks that are too many; and the next tick."""

    ticks: tuple[int, ...]
    missed: Missed | None
    next_tick_at: int | None


def ticks_due(plan: Plan, now: int, calendars: Mapping[str, Calendar]) -> Due:
    """The ticks that are due; if there are too many (`catch_up`), only the newest ones."""
    first = plan.record.next_tick_at
    if first is None or due_at(plan, first, calendars) > now:
        return Due((), None, first)
    last, following = _reached(plan, first, now, calendars)
    kept = _kept(plan, first, last, now, calendars)
    return Due(tuple(kept), _missed(plan, first, last, kept), following)


def ticks_to_come(
    plan: Plan,
    now: int,
    calendars: Mapping[str, Calendar],
    start: int = 0,
    end: int = FOREVER,
) -> Iterator[int]:
    """The undecided ticks, oldest first, without those that will be missed.

    Only those before `end`, and if dispatches are not counted, only those that can be due at
    `start` or later; the next one is always included, since an operator may have moved it anywhere.
    """
    due = ticks_due(plan, now, calendars)
    yield from due.ticks
    if due.next_tick_at is None:
        return
    yield due.next_tick_at
    since = due.next_tick_at
    if plan.record.remaining is None:
        since = max(since, start - 1 - furthest(plan))
    following = first_tick(plan, since)
    if following is not None:
        until = end if plan.record.end_at is None else min(end, plan.record.end_at + 1)
        yield from plan.trigger.between(following, until)


def within(plan: Plan, first: int, last: int) -> tuple[int, int]:
    """The part of [first, last) that is between the schedule's start and end."""
    start, end = plan.record.start_at, plan.record.end_at
    return (
        first if start is None else max(first, start),
        last if end is None else min(last, end + 1),
    )


def _reached(
    plan: Plan, first: int, now: int, calendars: Mapping[str, Calendar]
) -> tuple[int, int | None]:
    """The last tick that is due, and the one after it, which is not.

    Ticks are processed in order: one that is delayed by jitter delays those after it.
    """
    last, following = first, first_tick(plan, first)
    if following is None or due_at(plan, following, calendars) > now:
        return last, following
    # Ticks further back than any tick can be moved are due, however many they are.
    certain = plan.trigger.prev_before(_certainly_due(plan, now) + 1)
    if certain is not None and certain > last:
        last, following = certain, first_tick(plan, certain)
    while following is not None and due_at(plan, following, calendars) <= now:
        last, following = following, first_tick(plan, following)
    return last, following


def furthest(plan: Plan) -> int:
    """How far its policies may move a tick."""
    policies = plan.policies
    return policies.jitter + (FURTHEST_MS if policies.shift is not None else 0)


def _certainly_due(plan: Plan, now: int) -> int:
    end = plan.record.end_at
    latest = now - furthest(plan)
    return latest if end is None else min(latest, end)


def _kept(
    plan: Plan, first: int, last: int, now: int, calendars: Mapping[str, Calendar]
) -> list[int]:
    """The newest ticks that still count, oldest first."""
    policies = plan.policies
    kept = _on_time(plan, first, last, now, calendars)
    since = None if policies.catch_up_window is None else now - policies.catch_up_window
    tick = _before(plan, kept[-1], first) if kept else last
    while tick is not None and len(kept) < policies.catch_up:
        if since is not None and due_at(plan, tick, calendars) < since:
            break
        kept.append(tick)
        tick = _before(plan, tick, first)
    return kept[::-1]


def _on_time(
    plan: Plan, first: int, last: int, now: int, calendars: Mapping[str, Calendar]
) -> list[int]:
    """The ticks that could not have been decided much earlier, newest first: they need no catch-up.

    Where ticks are moved, all ticks after one that has just become due are on time with it.
    """
    policies = plan.policies
    late = now - GRACE_MS
    if not policies.jitter and policies.shift is None:
        window = policies.catch_up_window
        if window is not None:
            late = max(late, now - window)
        return [last] if due_at(plan, last, calendars) >= late else []
    earliest = _certainly_due(plan, late)
    seen: list[int] = []
    count = 0
    tick: int | None = last
    # The last one may have been moved by hand, by any distance.
    while tick is not None and (tick >= earliest or tick == last) and len(seen) < MAX_CATCH_UP:
        seen.append(tick)
        if due_at(plan, tick, calendars) >= late:
            count = len(seen)
        tick = _before(plan, tick, first)
    return seen[:count]


def _before(plan: Plan, tick: int, first: int) -> int | None:
    """The previous tick, but not before the first."""
    if tick <= first:
        return None
    before = plan.trigger.prev_before(tick)
    # The first one is kept as stored, even if its zone has other rules by now.
    return first if before is None else max(before, first)


def _missed(plan: Plan, first: int, last: int, kept: Sequence[int]) -> Missed | None:
    newest = _before(plan, kept[0], first) if kept else last
    if newest is None:
        return None
    return Missed(first, newest, max(1, plan.trigger.count_between(first, newest + 1)))
