"""Worlds in which clocks are wrong: for seconds or permanently, by seconds or by years, in one
process, in all of them, or on the server that they ask.

Every answer of every clock is judged. It may be off only by what its clock has shown for 30 seconds
on end, and must be off by that after 60; and nothing may start, expire or tick at a later time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from duly import ManualClock
from duly.clock import SystemClock
from tests.simulator.log import Violation
from tests.simulator.steps import STEPS as JOB_STEPS
from tests.simulator.steps import Step
from tests.simulator.timetables import STEPS_HERE, ScheduleWorld, create, enable
from tests.simulator.world import STEPS, Report, World, simulate

if TYPE_CHECKING:
    from tests.simulator.process import Process

DAY = 86_400.0
YEAR = 365 * DAY
BY = (20, 100, 500, 3_600, DAY, 3 * YEAR)
SMALL = 4
SECONDS = (1, 1, 5, 20, 29, 29, 31, 65, 2_000)
LASTS = 30.0
MUST = 60.0
# Two small steps that are followed at once, and what is left of them.
TOLERANCE = 10.01


class Glitch(NamedTuple):
    """By how many seconds a clock is wrong, until when, and whose; None is the machine's."""

    by: float
    ends_at: float
    process: Process | None


class Time(ManualClock):
    """The true time. While it passes every process looks at its clock, as its loops do."""

    def __init__(self, start: int, world: World) -> None:
        super().__init__(start)
        self._world: Any = world

    def advance(self, seconds: float) -> None:
        world, until = self._world, self.monotonic() + seconds
        world.look()
        while (end := min((g.ends_at for g in world.glitches), default=math.inf)) <= until:
            super().advance(max(0.0, end - self.monotonic()))
            world.look()
            world.end_glitches()
        super().advance(max(0.0, until - self.monotonic()))
        world.look()


class JudgedClock(SystemClock):
    """The clock of one process; whatever it says is compared with what it may believe."""

    def __init__(self, world: World, process: Process) -> None:
        self._world: Any = world
        self._process = process
        self._shows = self._believed = world.wrong_by(process)  # type: ignore[attr-defined]
        self._since = -math.inf
        super().__init__(self._shown, world.clock.monotonic)
        self.look()

    def _shown(self) -> float:
        true: int = self._world.clock.now()
        wrong_by: float = self._world.wrong_by(self._process)
        return true / 1000 + wrong_by

    def look(self) -> None:
        if self._world.has_server:
            at = self.monotonic()
            self.follow_server(self._shown(), at, at)
        self.now()

    def may_be_off(self) -> list[float]:
        at, shows = self.monotonic(), self._world.wrong_by(self._process)
        if abs(shows - self._shows) > SMALL + 1:
            if at - self._since >= LASTS:
                self._believed = self._shows
            self._shows, self._since = shows, at
        lasted = at - self._since
        if lasted < LASTS:
            return [self._believed]
        return [shows] if lasted >= MUST else [self._believed, shows]

    def now(self) -> int:
        if self._process.faults.dead:
            return super().now()
        allowed = self.may_be_off()
        said = super().now()
        true = self._world.clock.now()
        off = (said - true) / 1000
        if not any(abs(off - each) <= TOLERANCE for each in allowed):
            message = f"{self._process.name} is off by {off:+.3f} s, not by {allowed}"
            raise Violation("a step is believed when it has lasted", message)
        self._world.heard(true + round((max(allowed) + TOLERANCE) * 1000))
        return said


class Glitches(World):
    """What both kinds of worlds with wrong clocks have in common."""

    longest = 3 * YEAR
    """By how much a clock may be wrong that is believed."""

    def new_clock(self) -> ManualClock:
        self.glitches: list[Glitch] = []
        self.has_server = self.rng.random() < 0.5
        self._latest = 0
        return Time(super().new_clock().now(), self)

    def clock_of(self, process: Process) -> SystemClock:
        return JudgedClock(self, process)

    def wrong_by(self, process: Process) -> float:
        return sum(g.by for g in self.glitches if g.process in (None, process))

    def heard(self, now: int) -> None:
        """Some process may take this for the present."""
        self._latest = max(self._latest, now)

    def latest_ever(self) -> int:
        """Later than what any process may take for the present, in this step."""
        return self._latest

    def look(self) -> None:
        for process in self.processes:
            if not process.faults.dead:
                process.clock.look()  # type: ignore[attr-defined]
        if not self.clocks_agree():
            self.ledger.clocks_disagree()

    def begin_glitch(self, by: float, seconds: float, process: Process | None) -> None:
        self.look()
        self.glitches.append(Glitch(by, self.clock.monotonic() + seconds, process))
        self.look()

    def end_glitches(self) -> None:
        at = self.clock.monotonic()
        self.glitches = [g for g in self.glitches if g.ends_at > at]
        self.look()

    def check(self) -> None:
        super().check()
        self._latest = 0
        self.look()

    def drain(self) -> None:
        """All clocks are right, and have been for a minute: from here on everything is in time."""
        self.note("all clocks are right")
        self.glitches.clear()
        for _ in range(3):
            self.clock.advance(MUST / 2)
        if not self.clocks_agree():
            raise Violation("the clock is right within a minute", f"{self.clock.now()}")
        self.check()
        super().drain()


def glitch(world: World) -> None:
    """A clock is wrong, and all processes keep working."""
    assert isinstance(world, Glitches)
    rng = world.rng
    seconds = rng.choice(SECONDS)
    process = None if rng.random() < 0.4 else rng.choice(world.processes)
    # A process that starts meanwhile has nothing to compare its clock with, and believes it.
    is_believed = seconds >= LASTS or process is None
    sizes = [SMALL, *(size for size in BY if size <= world.longest or not is_believed)]
    by = rng.choice(sizes) * rng.choice((-1, 1))
    whose = "the machine's clock" if process is None else f"the clock of {process.name}"
    world.note(f"{whose} is off by {by:+g} s for {seconds} s")
    world.begin_glitch(by, seconds, process)
    _work(world, process)
    if seconds > LASTS and rng.random() < 0.5:
        world.clock.advance(LASTS)
        if isinstance(world, ScheduleWorld) and rng.random() < 0.5:
            rng.choice((create, enable))(world)
        _work(world, process)


def _work(world: World, process: Process | None) -> None:
    """The process with the wrong clock does the work that depends on the time."""
    for each in list(world.workers if process is None else [process]):
        each.claim()
        if each.is_working:
            each.act("janitor", each.janitor.one_pass)
        if world.almanac is not None:
            each.tick()


GLITCH = Step("glitch", 6, glitch)


class GlitchWorld(Glitches):
    steps = (*(each for each in JOB_STEPS if each.name != "step_clock"), GLITCH)


class GlitchScheduleWorld(Glitches, ScheduleWorld):
    # Further, and to work out every minute's ticks takes too long.
    longest = 2 * DAY
    steps = (*(each for each in STEPS_HERE if each.name != "step_clock"), GLITCH)


def simulate_glitches(seed: int, count: int = STEPS) -> Report:
    """Play one seed in a world with wrong clocks; every other one has schedules."""
    return simulate(seed, count, GlitchScheduleWorld if seed % 2 else GlitchWorld)
