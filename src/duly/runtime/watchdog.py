"""Stops running attempts that have passed their time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from duly.clock import Clock
from duly.model.job import Kind
from duly.runtime.execute import Attempt, StepLimit

IDLE_SECONDS = 3600.0
INSIST_EVERY = 0.1
# A canceled async body cleans up, and canceling it again would interrupt that.
REMIND_ACTIONS_EVERY = 5.0


Watched = Attempt | StepLimit


class Watchdog:
    """Tells attempts that their time is over, repeatedly, until the body has ended."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._guard = threading.Lock()
        # In order of arrival, so that a simulation replays exactly; each with the time before which
        # it need not be told again.
        self._watched: dict[Watched, float] = {}
        self._next_pass = 0.0

    def watch(self, attempt: Watched, seconds: float) -> None:
        """Measured with the monotonic clock, so that jumps of the wall clock cause no timeouts."""
        attempt.deadline = self._clock.monotonic() + seconds
        with self._guard:
            self._watched[attempt] = 0.0
        if attempt.deadline < self._next_pass:
            self._wake()

    def release(self, attempt: Watched) -> None:
        if attempt in self._watched:
            with self._guard:
                self._watched.pop(attempt, None)

    def one_pass(self) -> float:
        now = self._clock.monotonic()
        # Attempts added during this pass must be able to wake the next one.
        self._next_pass = now + IDLE_SECONDS
        with self._guard:
            watched = list(self._watched.items())
        delay = self._time_out_overdue(watched, now)
        self._next_pass = now + delay
        return delay

    def _time_out_overdue(self, watched: Sequence[tuple[Watched, float]], now: float) -> float:
        # A body that ends meanwhile clears its deadline.
        times = [(a, max(d, again)) for a, again in watched if (d := a.deadline) is not None]
        overdue = [attempt for attempt, at in times if at <= now]
        for attempt in overdue:
            attempt.time_out()
        delays = [self._reminder_delay(attempt, now) for attempt in overdue]
        delays += [at - now for _, at in times if at > now]
        return min(delays, default=IDLE_SECONDS)

    def _reminder_delay(self, attempt: Watched, now: float) -> float:
        if attempt.claim.kind == Kind.MUTATION:
            return INSIST_EVERY
        with self._guard:
            if attempt in self._watched:
                self._watched[attempt] = now + REMIND_ACTIONS_EVERY
        return REMIND_ACTIONS_EVERY
