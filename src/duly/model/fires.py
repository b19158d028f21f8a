"""The next fires of a cron expression or a rule, with notes on daylight saving changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from duly.clock import from_ms
from duly.model.trigger import Cron, Rule
from duly.zones import zone


class Fire(NamedTuple):
    """One instant at which an expression fires."""

    at_ms: int
    local: datetime
    """The instant in its zone."""
    dst_adjusted: bool
    """Whether it replaces a time that does not exist that day."""
    note: str | None
    """A note, if it is near a clock change."""


def fires(trigger: Cron | Rule, n: int, since_ms: int) -> Iterator[Fire]:
    """The next n instants after another."""
    clock = zone(trigger.tz)
    before = clock.offset(since_ms // 1000)
    for tick in trigger.upcoming(n, since_ms):
        adjusted = trigger.adjusted(tick)
        offset = clock.offset(tick // 1000)
        local = from_ms(tick).astimezone(clock.info)
        yield Fire(tick, local, adjusted, _note(adjusted, local, offset - before))
        before = offset


def _note(adjusted: bool, local: datetime, change: int) -> str | None:
    if adjusted:
        return "clocks skip its time that day; it fires right after the change"
    other = local.replace(fold=1 - local.fold)
    if other.utcoffset() != local.utcoffset():
        which = "second" if local.fold else "first"
        return f"clocks show this time twice; this is the {which} time"
    if change:
        way = "forward" if change > 0 else "back"
        return f"clocks are set {way} by {timedelta(seconds=abs(change))} before it"
    return None
