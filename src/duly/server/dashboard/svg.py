"""SVG charts rendered on the server. Every state has a color and a shape.

Positions on the time axis are percentages, so a chart fills the available width while its shapes
keep their proportions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from math import log1p
from typing import NamedTuple

from markupsafe import Markup

from duly.model.history import Day, Run
from duly.model.job import State

# Each fits a circle of radius 5 around 0.
_DISC = '<circle r="4.2"/>'
_RING = '<circle r="3.6" class="hollow"/>'
_CROSS = '<path class="line" d="M-3.4-3.4 3.4 3.4M3.4-3.4-3.4 3.4"/>'
_SHAPES = {
    "succeeded": _DISC,
    "dispatched": _DISC,
    "dispatch": _DISC,
    "enabled": _DISC,
    "active": _DISC,
    "processed": _DISC,
    "ok": _DISC,
    "running": '<circle r="3.8" class="hollow"/><circle r="1.8"/>',
    "processing": '<circle r="3.8" class="hollow"/><circle r="1.8"/>',
    "pending": _RING,
    "not_started": _RING,
    "waiting": '<circle r="3.8" class="hollow"/><path class="line" d="M0-2.2V0H2"/>',
    "retrying": '<circle r="3.8" class="hollow"/><path class="line" d="M0-2.2V0H2"/>',
    "started": '<circle r="3.8" class="hollow"/><circle r="1.8"/>',
    "held": '<path d="M0-4.4 4.6 3.8H-4.6Z"/>',
    "timed_out": _CROSS,
    "never_ran": _RING,
    "failed": _CROSS,
    "skipped": '<path class="hollow" d="M0-4.4 4.4 0 0 4.4-4.4 0Z"/>',
    "skip": '<path class="hollow" d="M0-4.4 4.4 0 0 4.4-4.4 0Z"/>',
    "filtered": '<path class="hollow" d="M0-4.4 4.4 0 0 4.4-4.4 0Z"/>',
    "deprecated": '<path class="hollow" d="M0-3.8 4 3.4H-4Z"/>',
    "deleted": _CROSS,
    "missed": '<path d="M-4.4-3.4H4.4L0 4.4Z"/>',
    "canceled": '<path class="hollow" d="M-3.4-3.4H3.4V3.4H-3.4Z"/>',
    "disabled": '<path d="M-3.6-4H-1V4H-3.6ZM1-4H3.6V4H1Z"/>',
    "paused": '<path d="M-3.6-4H-1V4H-3.6ZM1-4H3.6V4H1Z"/>',
    "parked": '<path d="M0-4.4 4.6 3.8H-4.6Z"/>',
    "orphaned": '<path class="hollow" d="M0-3.8 4 3.4H-4Z"/>',
    "late": '<circle r="3.8" class="hollow"/><path class="line" d="M0-2.2V0H2"/>',
    "ended": '<path d="M-3.6-3.6H3.6V3.6H-3.6Z"/>',
    "warning": '<path d="M0-4.4 4.6 3.8H-4.6Z"/>',
}


def shape(state: str) -> Markup:
    return Markup(_SHAPES.get(state, _RING))  # no user input in it


def mark(state: str) -> Markup:
    """The shape of a state in its colour, shown next to its name."""
    return Markup(
        '<svg class="mark s-{}" width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true">'
        "{}</svg>"
    ).format(state, shape(state))


# Runs of a schedule ------------------------------------------------------------------------------

BAR, GAP, TALL = 4, 1, 20


def sparkline(runs: Sequence[Run], most: int = 30) -> Markup:
    """The last runs, oldest first: the outcome as colour, the duration as height."""
    if not runs:
        return Markup('<span class="none">–</span>')
    shown = list(reversed(runs[:most]))
    longest = max(_took(run) for run in shown) or 1
    bars = Markup(
        "".join(
            _bar((most - len(shown) + place) * (BAR + GAP), run, longest)
            for place, run in enumerate(shown)
        )
    )
    succeeded = sum(run.state == "succeeded" for run in shown)
    return Markup(
        '<svg class="spark" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
        'aria-label="{n} of the last {of} runs succeeded">{bars}</svg>'
    ).format(w=most * (BAR + GAP), h=TALL, n=succeeded, of=len(shown), bars=bars)


def _took(run: Run) -> int:
    return 0 if run.started_at is None else max(0, run.completed_at - run.started_at)


def _bar(x: int, run: Run, longest: int) -> str:
    """Not escaped, which is slow: a list has thousands of bars, built from numbers and a state."""
    height = 4 + round((TALL - 8) * _took(run) / longest)
    top = TALL - height
    state = State(run.state)
    cap = f'<path d="M{x} {max(0, top - 4)}h{BAR}l-{BAR / 2} 3Z"/>' if state == "failed" else ""
    bar = f'<rect x="{x}" y="{top}" width="{BAR}" height="{height}" rx="1"/>'
    return f'<g class="s-{state}">{bar}{cap}</g>'


# The next 24 hours -------------------------------------------------------------------------------


class Lane(NamedTuple):
    """A schedule and its ticks within the span shown."""

    schedule_id: str
    key: str
    function: str
    ticks: list[int]
    total: int
    """How many ticks there are; if more than are listed, they are not drawn one by one."""


def lane(one: Lane, start: int, end: int) -> Markup:
    if one.ticks and one.total > len(one.ticks):
        first = _percent(one.ticks[0], start, end)
        inside = Markup('<rect class="band" x="{}%" y="6" width="{}%" height="8" rx="4"/>').format(
            first, round(100 - first, 2)
        )
    else:
        inside = Markup("").join(
            Markup('<rect class="at" x="{}%" y="3" width="3" height="14" rx="1.5"/>').format(
                _percent(tick, start, end)
            )
            for tick in one.ticks
        )
    return Markup(
        '<svg class="lane" width="100%" height="20" role="img" aria-label="{}: {:,} ticks">{}</svg>'
    ).format(one.key, one.total, inside)


def _percent(at: int, start: int, end: int) -> float:
    return round(100 * (at - start) / (end - start), 2)


# The ledger of a schedule ------------------------------------------------------------------------


class Event(NamedTuple):
    """A mark on the axis: its time, state and title."""

    at: int
    state: str
    title: str
    href: str | None


ROWS = {"succeeded": 14, "running": 14, "pending": 14, "dispatched": 14}
"""Dispatched ticks are drawn above the axis, all others below it."""


def axis(events: Iterable[Event], start: int, end: int) -> Markup:
    """Dispatches above and skips below a time axis."""
    drawn = Markup("").join(_event(each, start, end) for each in events)
    return Markup(
        '<svg class="axis" width="100%" height="56" role="group" aria-label="Ticks over time">'
        '<line class="rule" x1="0" x2="100%" y1="28" y2="28"/>{}</svg>'
    ).format(drawn)


def _event(event: Event, start: int, end: int) -> Markup:
    y = ROWS.get(event.state, 14 if event.state in ("failed", "canceled") else 42)
    inside = Markup(
        '<svg class="s-{}" x="{}%" y="{}" overflow="visible"><title>{}</title>'
        '<rect class="target" x="-7" y="-12" width="14" height="24"/>{}</svg>'
    ).format(event.state, _percent(event.at, start, end), y, event.title, shape(event.state))
    if event.href is None:
        return inside
    return Markup('<a href="{}" aria-label="{}">{}</a>').format(event.href, event.title, inside)


# The past year -----------------------------------------------------------------------------------

CELL = 13
EPOCH = date(1970, 1, 1)
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def heat_map(days: Mapping[int, Day], today: date) -> Markup:
    """The last 53 weeks, one column each: how each day's ticks ended (days in UTC since 1970)."""
    first = today - timedelta(days=today.weekday() + 52 * 7)
    cells: list[Markup] = []
    months: list[Markup] = []
    busiest = max((_total(day) for day in days.values()), default=1) or 1
    for n in range((today - first).days + 1):
        when = first + timedelta(days=n)
        x, y = n // 7 * CELL, when.weekday() * CELL + 14
        cells.append(_cell(when, days.get((when - EPOCH).days), x, y, busiest))
        if when.day == 1:
            name = MONTHS[when.month - 1]
            months.append(Markup('<text x="{}" y="9">{}</text>').format(x, name))
    width, height = 53 * CELL, 7 * CELL + 14
    return Markup(
        '<svg class="heat" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
        'aria-label="Each day of the last year">{months}{cells}</svg>'
    ).format(w=width, h=height, months=Markup("").join(months), cells=Markup("").join(cells))


def _total(day: Day) -> int:
    return max(0, day.dispatched + day.skipped + day.missed)


def state_of(day: Day) -> str:
    """The worst outcome on a day."""
    if day.missed:
        return "missed"
    if day.failed:
        return "failed"
    if day.dispatched or day.succeeded:
        return "succeeded"
    if day.canceled:
        return "canceled"
    return "skipped"


def _cell(when: date, day: Day | None, x: int, y: int, busiest: int) -> Markup:
    if day is None or not (_total(day) or day.succeeded or day.failed or day.canceled):
        return Markup('<rect class="empty" x="{}" y="{}" width="11" height="11" rx="2"/>').format(
            x, y
        )
    state = state_of(day)
    level = 1 + round(3 * log1p(_total(day)) / log1p(busiest))
    title = (
        f"{when:%a} {when.day} {when:%b %Y}: {day.dispatched} dispatched, {day.skipped} skipped, "
        f"{day.missed} missed; {day.succeeded} succeeded, {day.failed} failed"
    )
    drawn = shape(state)
    if state == "succeeded":
        drawn = Markup('<rect x="-5.5" y="-5.5" width="11" height="11" rx="2"/>')
    return Markup(
        '<g class="s-{} level-{}" transform="translate({} {})"><title>{}</title>'
        '<rect class="target" x="-5.5" y="-5.5" width="11" height="11"/>{}</g>'
    ).format(state, min(4, level), x + 5.5, y + 5.5, title, drawn)


# Throughput --------------------------------------------------------------------------------------


def bars(succeeded: Sequence[int], failed: Sequence[int]) -> Markup:
    """How many jobs ended in each time step; shown until the script has drawn the chart."""
    most = max((a + b for a, b in zip(succeeded, failed, strict=True)), default=0) or 1
    width = round(100 / max(1, len(succeeded)), 3)
    drawn: list[Markup] = []
    for n, (good, bad) in enumerate(zip(succeeded, failed, strict=True)):
        x = round(n * width, 3)
        for state, count, below in (("succeeded", good, 0), ("failed", bad, good)):
            if count:
                height = round(96 * count / most, 2)
                y = round(100 - height - 96 * below / most, 2)
                drawn.append(
                    Markup('<rect class="s-{}" x="{}%" y="{}%" width="{}%" height="{}%"/>').format(
                        state, x, y, round(width * 0.8, 3), height
                    )
                )
    return Markup(
        '<svg class="bars" width="100%" height="160" role="img" '
        'aria-label="Jobs that ended, over time">{}</svg>'
    ).format(Markup("").join(drawn))
