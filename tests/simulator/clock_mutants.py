"""Mutants without a guard against wrong clocks; the simulator must notice each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial

from duly import clock
from duly.clock import STEP_LASTS_SECONDS, ClockOffset, SystemClock
from duly.model import due
from duly.model.calendar import Calendar
from duly.model.schedule import Plan
from duly.runtime.ticker import Ticker
from duly.store.schedules import clock_ahead
from duly.store.schedules.clock_ahead import AHEAD
from tests.simulator import mutants
from tests.simulator.glitches import simulate_glitches
from tests.simulator.mutants import Mutant, patched, rewritten

CLOCK_MUTANTS: list[Mutant] = []

mutant = partial(mutants.mutant, play=simulate_glitches, into=CLOCK_MUTANTS)


@mutant("every step of a clock is believed")
def believes_all() -> AbstractContextManager[None]:
    return patched(clock, "STEP_SECONDS", float("inf"))


@mutant("a step is believed at second sight")
def believes_soon() -> AbstractContextManager[None]:
    return patched(clock, "STEP_LASTS_SECONDS", 0.0)


@mutant("a step is never believed", seed=3)
def believes_nothing() -> AbstractContextManager[None]:
    return patched(clock, "STEP_LASTS_SECONDS", float("inf"))


@mutant("a step that is withdrawn or followed by another goes on to count", seed=3)
def counts_on() -> AbstractContextManager[None]:
    def after(self: ClockOffset, shown: float, at: float) -> ClockOffset:
        return ClockOffset(shown, shown, at) if at - self.since >= STEP_LASTS_SECONDS else self

    return patched(ClockOffset, "after", after)


@mutant("an answer of the server is followed at once", seed=4)
def follows_server() -> AbstractContextManager[None]:
    def follow(self: SystemClock, seconds: float, asked_at: float, answered_at: float) -> None:
        self._server_offset = seconds - answered_at

    return patched(SystemClock, "follow_server", follow)


@mutant("a clock that is ahead of the truth never goes back", seed=3)
def never_back() -> AbstractContextManager[None]:
    def now(self: SystemClock) -> int:
        self._latest_ms = max(plain(self), getattr(self, "_latest_ms", 0))  # type: ignore[attr-defined]
        return self._latest_ms  # type: ignore[attr-defined,no-any-return]

    plain = SystemClock.now
    return patched(SystemClock, "now", now)


@mutant("schedules stay where a clock that was ahead has moved them", seed=29)
def stays_ahead() -> AbstractContextManager[None]:
    return patched(Ticker, "_re_aim", lambda *_: None)


@mutant("schedules that were woken by a clock that was ahead stay there", seed=309)
def woken_ahead() -> AbstractContextManager[None]:
    return rewritten(AHEAD, ("awake_at > :now", "false"))


@mutant("schedules are aimed at slots that were taken before their time", seed=3)
def aims_at_taken() -> AbstractContextManager[None]:
    def re_aimed(
        plan: Plan, now: int, taken: Collection[int], calendars: Mapping[str, Calendar]
    ) -> int | None:
        return plain(plan, now, (), calendars)

    plain = due.re_aimed
    return patched(clock_ahead, "re_aimed", re_aimed)


@mutant("schedules are aimed at ticks that are later than where they stand", seed=3)
def aims_later() -> AbstractContextManager[None]:
    def re_aimed(
        plan: Plan, now: int, taken: Collection[int], calendars: Mapping[str, Calendar]
    ) -> int | None:
        tick = due.first_tick(plan, max(now, plan.record.next_tick_at or 0))
        return tick or plain(plan, now, taken, calendars)

    plain = due.re_aimed
    return patched(clock_ahead, "re_aimed", re_aimed)
