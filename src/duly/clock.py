"""The only source of "now".

Instants are integer milliseconds since 1970 UTC. `monotonic` measures durations: timeouts, polls
and heartbeats use it, so that a jump of the wall clock does not speed them up or delay them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """The source of time for the rest of duly."""

    def now(self) -> int:
        """Milliseconds since 1970 UTC.

        It decreases only if a clock was set back and has stayed there long enough to be trusted.
        """
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease; the zero is arbitrary."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, for at most `seconds` of this clock."""
        ...


STEP_SECONDS = 5.0
"""A step of more seconds than this, against the monotonic clock, is not trusted at first."""
STEP_LASTS_SECONDS = 30.0
"""How many seconds a step must last to be trusted."""
NO_READING = (float("-inf"), 0.0)


class ClockOffset(NamedTuple):
    """The trusted offset of a clock to the monotonic clock, and the offset it has shown since.

    Both are the same unless the clock has stepped. They are updated every `STEP_LASTS_SECONDS`
    seconds, so slow drift is followed and a step is not.
    """

    offset: float
    shown: float
    since: float

    def after(self, shown: float, at: float) -> ClockOffset:
        """The offset to trust after the clock has shown this offset at a monotonic instant."""
        if abs(shown - self.shown) > STEP_SECONDS:
            return ClockOffset(self.offset, shown, at)
        if at - self.since >= STEP_LASTS_SECONDS:
            return ClockOffset(shown, shown, at)
        return self

    def doubts(self, shown: float) -> bool:
        return abs(shown - self.offset) > STEP_SECONDS


class SystemClock:
    """The machine's clock, or the database server's once that has been read.

    If either steps by more than 5 seconds against the monotonic clock, in either direction, the
    step is trusted only after it has lasted 30 seconds. Until then time continues without it.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._belief: ClockOffset | None = None
        self._server_offset: float | None = None
        # The last answer and its time: one value, so that threads see both or neither.
        self._latest = NO_READING

    def now(self) -> int:
        """Milliseconds since 1970 UTC."""
        monotonic = self._monotonic()
        offset = self._server_offset
        if offset is None:
            truth = self._wall()
            belief = self._look(truth - monotonic, monotonic)
            if belief.doubts(truth - monotonic):
                truth = monotonic + belief.offset
        else:
            truth = monotonic + offset
        latest, asked_at = self._latest
        # If it is a little ahead of the truth, time runs at half speed until the truth catches up.
        ahead = latest + max(0.0, monotonic - asked_at) / 2 - truth
        if 0 < ahead <= 2 * STEP_SECONDS:
            truth += ahead
        self._latest = (truth, monotonic)
        return int(truth * 1000)

    def monotonic(self) -> float:
        """Seconds that never decrease; the zero is arbitrary."""
        return self._monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, for at most `seconds`."""
        return event.wait(seconds)

    def ahead_of_server(self) -> float | None:
        """How many seconds the machine's clock is ahead; None if no server clock was read."""
        offset = self._server_offset
        return None if offset is None else self._wall() - self._monotonic() - offset

    def follow_server(self, server_seconds: float, asked_at: float, answered_at: float) -> None:
        """Follow the server's clock, which was read between two monotonic instants.

        The exact instant is not known: a busy interpreter can delay question and answer by seconds.
        So the known offset is kept as long as it can be right; otherwise time is late rather than
        early. The first answer can only be compared with the machine's own clock, which may be
        wrong by hours, so it is trusted.
        """
        least, most = server_seconds - answered_at, server_seconds - asked_at
        known = self._server_offset
        if known is None or self._belief is None:
            self._latest = NO_READING
            self._belief = ClockOffset(least, least, answered_at)
            self._server_offset = least
            return
        possible = (each for each in (known, self._belief.shown) if least <= each <= most)
        shown = next(possible, least)
        if not self._look(shown, answered_at).doubts(shown):
            self._server_offset = shown

    def _look(self, shown: float, at: float) -> ClockOffset:
        """Record what the clock shows, without a lock: a thread that is overtaken here makes the
        others look again."""
        before = self._belief
        if before is None:
            before = self._belief = ClockOffset(shown, shown, at)
        belief = before.after(shown, at)
        if belief is not before:
            self._belief = belief
            _log_step(before, belief)
        return belief


def _log_step(before: ClockOffset, belief: ClockOffset) -> None:
    # Rarely needed, and importing it would slow down `duly --help`.
    import logging

    log = logging.getLogger(__name__)
    step = belief.shown - before.offset
    if belief.offset != before.offset and abs(step) > STEP_SECONDS:
        log.warning(
            "the clock has been off by %+.1f s for %g s; the new time is now accepted",
            step,
            STEP_LASTS_SECONDS,
        )
    elif belief.doubts(belief.shown):
        log.warning(
            "the clock is off by %+.1f s; this is ignored unless it lasts for %g s",
            step,
            STEP_LASTS_SECONDS,
        )


class ManualClock:
    """A clock that stands still until a test moves it.

    Pass it as `Duly(clock=...)`. `advance` moves time forward; `jump` changes only the wall clock.
    """

    def __init__(self, start: datetime | int = 1_767_225_600_000) -> None:
        self._now = start if isinstance(start, int) else to_ms(start)
        self._monotonic = 0.0
        self._moves = 0
        self._guard = threading.Lock()
        self._seen = threading.local()

    def now(self) -> int:
        """Milliseconds since 1970 UTC, as set by the test."""
        with self._guard:
            self._look()
            return self._now

    def monotonic(self) -> float:
        """Seconds by which the clock has been advanced."""
        with self._guard:
            self._look()
            return self._monotonic

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event, or until the clock has been moved past the timeout.

        Returns immediately if the clock has moved since this thread last looked at it, so that the
        thread reconsiders whatever it concluded from the old time.
        """
        with self._guard:
            until = self._monotonic + (seconds if self._look() == self._moves else 0)
            self._seen.moves = None
        while not event.is_set() and self._monotonic < until:
            event.wait(0.005)
        return event.is_set()

    def _look(self) -> int:
        """The number of moves of the clock when this thread first looked after its last wait."""
        if getattr(self._seen, "moves", None) is None:
            self._seen.moves = self._moves
        moves: int = self._seen.moves
        return moves

    def advance(self, seconds: float) -> None:
        """Move time forward; all deadlines in between have then passed."""
        if seconds < 0:
            raise ValueError("advance() takes a positive number of seconds; use jump() to go back")
        self._move(seconds, seconds)

    def jump(self, seconds: float) -> None:
        """Move only the wall clock, in either direction. The new time is trusted immediately."""
        self._move(seconds, 0)

    def _move(self, wall: float, monotonic: float) -> None:
        with self._guard:
            self._now += round(wall * 1000)
            self._monotonic += monotonic
            self._moves += 1


def to_ms(instant: datetime) -> int:
    """An aware datetime as milliseconds since 1970 UTC."""
    return int((instant - _EPOCH).total_seconds() * 1000 + 0.5)


def from_ms(ms: int) -> datetime:
    """A stored instant as an aware UTC datetime, or the nearest one that exists."""
    return datetime.fromtimestamp(nearest_ms(ms) / 1000, UTC)


def nearest_ms(ms: int) -> int:
    """The instant, limited to the range that datetimes in every zone can represent."""
    return min(max(ms, _FIRST), _LAST)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = to_ms(datetime(1, 1, 2, tzinfo=UTC))
_LAST = to_ms(datetime(9999, 12, 30, tzinfo=UTC))

# For waits on the operating system (locks, sockets, other processes), unaffected by virtual clocks.
os_monotonic = time.monotonic
os_monotonic_ns = time.monotonic_ns
os_sleep = time.sleep
