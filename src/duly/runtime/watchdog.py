"""Which running attempt has passed its time limit?"""

from __future__ import annotations

import threading
from collections.abc import Callable

from duly.clock import Clock
from duly.runtime.execute import Attempt

IDLE = 3600.0
INSIST_EVERY = 0.1


class Watchdog:
    """Tells attempts that their time is over, and goes on telling until the body has ended."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._guard = threading.Lock()
        # In the order in which they came, so that a simulation replays exactly.
        self._watched: dict[Attempt, None] = {}
        self._next_pass = 0.0

    def watch(self, attempt: Attempt, seconds: float) -> None:
        """Measured with the monotonic clock: a wall clock that jumps times nobody out."""
        attempt.deadline = self._clock.monotonic() + seconds
        with self._guard:
            self._watched[attempt] = None
        if attempt.deadline < self._next_pass:
            self._wake()

    def release(self, attempt: Attempt) -> None:
        if attempt in self._watched:
            with self._guard:
                self._watched.pop(attempt, None)

    def one_pass(self) -> float:
        now = self._clock.monotonic()
        # Whoever comes while this pass looks must be able to wake the next one.
        self._next_pass = now + IDLE
        with self._guard:
            watched = list(self._watched)
        delay = self._tell_the_overdue(watched, now)
        self._next_pass = now + delay
        return delay

    def _tell_the_overdue(self, watched: list[Attempt], now: float) -> float:
        # A body that ends meanwhile takes its deadline away.
        deadlines = [(a, d) for a in watched if (d := a.deadline) is not None]
        overdue = [attempt for attempt, deadline in deadlines if deadline <= now]
        for attempt in overdue:
            attempt.time_out()
        if overdue:
            return INSIST_EVERY
        return min((deadline - now for _, deadline in deadlines), default=IDLE)
