"""Worlds with schedules: several tickers, and everything that people do to schedules meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, TypeVar

import msgspec

from duly import Budget, ManualClock
from duly.clock import from_ms
from duly.errors import BadInput, WrongStatus
from duly.model.trigger import At, Cron, Every
from duly.schedules import Schedule
from tests.simulator import steps
from tests.simulator.almanac import Account, Almanac
from tests.simulator.faults import SimulatedCrash
from tests.simulator.functions import acting
from tests.simulator.instants import Timetable
from tests.simulator.process import Process
from tests.simulator.steps import Step
from tests.simulator.world import STEPS, Report, World, simulate

MOST_SCHEDULES = 6
SECOND = 1_000
# Clocks are set forward or back then, by an hour or by half of one.
TRANSITIONS = (
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
)
EXPRESSIONS = (
    *("*/15 * * * *", "0 * * * *", "5 */2 * * *", "* * * * *"),
    *("30 1 * * *", "30 2 * * *", "0 2 * * *", "15,45 1-3 * * *", "10,40 0-23 * * *"),
)
INTERVALS = (20, 60, 60, 90, 600, 3600)
CALLS = ("write", "poke", "poke", "walk", "dwell", "dwell", "boom", "picky", "picky", "rare")
OVERLAPS = ("skip", "skip", "allow", "buffer_one", "buffer_all", "cancel_other")


class ScheduleWorld(World):
    """Some schedules, a few tickers, and workers that run what they dispatch."""

    almanac: Almanac
    # What was caught up may have to run one by one.
    drain_rounds = 1_000

    def new_clock(self) -> ManualClock:
        self.zone, transition = self.rng.choice(TRANSITIONS)
        self.page = self.rng.choice((1, 2, 100))
        self.crash = self.rng.choice((0.0, 0.0, 0.01, 0.03))
        before = timedelta(minutes=self.rng.choice((5, 29, 70, 200, 1300)))
        return ManualClock(transition - before)

    def new_almanac(self) -> Almanac:
        return Almanac(self.ledger.db, self.ledger.limits, self.latest_ever)

    def at_point(self, name: str) -> None:
        """A ticker may also die between its statements."""
        if name.startswith("ticker.") and acting and not self.calm:
            process = acting[-1]
            if self.rng.random() < self.crash:
                self.note(f"    ({process.name} dies at {name})")
                process.faults.dead = True
                raise SimulatedCrash
        super().at_point(name)

    def drain(self) -> None:
        """All tickers catch up with the present; then no schedule ticks any more."""
        self.note("the tickers catch up")
        self.calm = True
        app = self.client.app
        app.resume()
        for name, status in sorted(self.almanac.statuses.items()):
            if status == "paused":
                app.functions.resume(name)
        for _ in range(2):
            if not any(process.knows_all for process in self.workers):
                self.new_worker()
            # Each looks for functions that it lacked once in a while, and its clock may be behind.
            behind = (self.latest_now() - self.clock.now()) / 1000
            self.clock.advance(max(2.0, behind))
            for process in list(self.processes):
                _tick_until_idle(process)
            self.check()
        self.almanac.check_end(self.latest_now())
        for schedule_id in sorted(self.almanac.accounts):
            app.schedules.disable(schedule_id)
        self.ledger.paused.discard("*")
        super().drain()

    def run(self, count: int) -> None:
        for _ in range(2):
            create(self)
        super().run(count)


def _tick_until_idle(process: Process) -> None:
    for _ in range(1000):
        delays: list[float] = []

        def tick() -> None:
            delays.append(process.ticker.one_pass())  # noqa: B023

        process.act("ticker", tick)
        if delays and delays[0] > 0:
            return


def simulate_schedules(seed: int, count: int = STEPS) -> Report:
    """Play one seed in a world with schedules."""
    return simulate(seed, count, ScheduleWorld)


# Steps -------------------------------------------------------------------------------------------

_KEPT = {
    *("work", "claim", "settle", "mutations", "action", "watch", "beat", "janitor", "alone"),
    *("cancel", "pause", "resume", "advance", "crash", "restart", "stop"),
}
STEPS_HERE: list[Step] = [
    each._replace(weight=each.weight / 2) for each in steps.STEPS if each.name in _KEPT
]
ScheduleWorld.steps = STEPS_HERE

Do = TypeVar("Do", bound=Callable[..., None])


def step(weight: float) -> Callable[[Do], Do]:
    def add(do: Do) -> Do:
        STEPS_HERE.append(Step(do.__name__, weight, do))
        return do

    return add


def draw_trigger(world: ScheduleWorld, now: int) -> Any:
    rng = world.rng
    kind = rng.random()
    if kind < 0.5:
        return Cron(rng.choice(EXPRESSIONS), rng.choice((world.zone, world.zone, "UTC")))
    if kind < 0.9:
        return Every(rng.choice(INTERVALS) * SECOND)
    return At(now + rng.choice((1, 30, 600, 9_000)) * SECOND)


def draw_policies(rng: Random) -> dict[str, Any]:
    options: dict[str, Any] = {"overlap": rng.choice(OVERLAPS)}
    if rng.random() < 0.7:
        options["catch_up"] = rng.choice((0, 0, 1, 1, 2, 3, 40))
    if rng.random() < 0.15:
        options["catch_up_window"] = rng.choice((30, 100, 4_000))
    if rng.random() < 0.2:
        options["budget"] = Budget(runs=rng.choice((1, 2, 5)), per=rng.choice((100, 3600, 86_400)))
    if rng.random() < 0.2:
        options["remaining"] = rng.choice((1, 2, 5))
    return options


def draw_times(rng: Random, now: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rng.random() < 0.15:
        options["end_at"] = from_ms(now + rng.choice((500, 4_000, 20_000)) * SECOND)
    if rng.random() < 0.1:
        options["start_at"] = from_ms(now + rng.choice((10, 400)) * SECOND)
    return options


def draw_rotation(rng: Random) -> list[dict[str, int]]:
    return [{"number": n} for n in range(10, 10 + rng.choice((1, 2, 3)))]


def client(world: ScheduleWorld) -> Process:
    """Callers know the functions that they ask for."""
    return world.rng.choice([process for process in world.processes if process.knows_all])


def choose(world: ScheduleWorld) -> str | None:
    """Some schedule, now and then one that is gone."""
    lost = world.rng.random() < 0.04
    known = list(world.almanac.gone if lost else world.almanac.accounts)
    return world.rng.choice(known) if known else None


def account(world: ScheduleWorld, schedule_id: str) -> Account:
    return world.almanac.accounts.get(schedule_id) or world.almanac.gone[schedule_id]


def ask(world: ScheduleWorld, process: Process, work: Callable[[], object]) -> None:
    """A caller that asks for something impossible is told so."""

    def run() -> None:
        try:
            work()
        except (BadInput, LookupError) as error:
            world.note(f"    refused: {error}")

    process.act("client", run)


@step(5)
def create(world: ScheduleWorld) -> None:
    if len(world.almanac.accounts) >= MOST_SCHEDULES:
        return
    rng, process = world.rng, client(world)
    key = f"s{world.next_number()}"
    now = process.clock.now()
    function = process.app.function(rng.choice(CALLS))
    trigger = draw_trigger(world, now)
    options = draw_policies(rng) | draw_times(rng, now) | {"trigger": trigger}
    call = function.bind() if function.name != "picky" else function.bind(1)
    if function.name == "picky" and rng.random() < 0.8:
        options["rotation"] = draw_rotation(rng)
    if isinstance(trigger, Every) and "start_at" not in options and rng.random() < 0.3:
        options["fire_at_once"] = True
        world.almanac.at_once.add(key)
    if rng.random() < 0.1:
        options["enabled"] = False
    world.note(f"{process.name} creates {key}: {function.name} {options}")

    def run() -> None:
        made = process.app.schedules.create(key, call, **options)
        told = {"key": key, "function": function.name, "enabled": options.get("enabled", True)}
        told |= {name: options[name] for name in ("remaining",) if name in options}
        world.almanac.acknowledged(made.id, 1, **told)
        check_trigger(world, made, trigger)

    ask(world, process, run)


def check_trigger(world: ScheduleWorld, made: Schedule, trigger: Any) -> None:
    """The stored trigger is the one that was asked for."""
    stored = account(world, made.id).versions[made.record.version]
    found = stored.timetable
    if isinstance(trigger, Every):
        anchor = trigger.anchor
        if anchor is None and made.record.version == 1:
            made_at = stored.awake_at or made.record.created_at
            anchor = stored.start_at or made_at + trigger.milliseconds
        anchor = found.every[1] if found.every and anchor is None else anchor
        asked = Timetable(every=(trigger.milliseconds, anchor or 0))
    elif isinstance(trigger, At):
        asked = Timetable(at=trigger.instant)
    else:
        asked = Timetable(cron=(trigger.expression, trigger.tz))
    world.almanac.expect(found == asked, "acknowledged changes are stored", f"{found} {asked}")


@step(30)
def tick(world: ScheduleWorld) -> None:
    process = world.rng.choice(world.processes)
    world.note(f"{process.name} ticks")
    process.tick()


@step(10)
def wait_for_a_tick(world: ScheduleWorld) -> None:
    """Time passes until something is due, or a bit longer, and a ticker looks."""
    coming = [a.state.due_at for a in world.almanac.accounts.values() if a.state.due_at]
    ahead = (min(coming) - world.clock.now()) / 1000 if coming else 0
    if 0 < ahead < 50_000:
        seconds = ahead + world.rng.choice((0, 0, 0.001, 1, 61))
        world.note(f"{seconds:g} s pass until a tick")
        world.clock.advance(seconds)
    tick(world)
    if world.rng.random() < 0.15:
        run_now(world)


@step(2)
def disable(world: ScheduleWorld) -> None:
    if schedule_id := choose(world):
        process = client(world)
        world.note(f"{process.name} disables {world.almanac.name(schedule_id)}")

        def run() -> None:
            made = process.app.schedules.disable(schedule_id)
            world.almanac.acknowledged(made.id, made.record.version, enabled=0, next_tick_at=None)

        ask(world, process, run)


@step(6)
def enable(world: ScheduleWorld) -> None:
    asleep = [i for i, a in world.almanac.accounts.items() if not a.state.is_awake]
    schedule_id = world.rng.choice(asleep) if asleep else choose(world)
    if schedule_id:
        process = client(world)
        world.note(f"{process.name} enables {world.almanac.name(schedule_id)}")

        def run() -> None:
            made = process.app.schedules.enable(schedule_id)
            world.almanac.acknowledged(made.id, made.record.version, enabled=1)

        ask(world, process, run)


@step(2)
def retime(world: ScheduleWorld, given: str | None = None) -> None:
    if schedule_id := given or choose(world):
        process = client(world)
        now = process.clock.now()
        trigger = draw_trigger(world, now)
        times = draw_times(world.rng, now)
        world.note(f"{process.name} retimes {world.almanac.name(schedule_id)}: {trigger} {times}")

        def run() -> None:
            made = process.app.schedules.update(schedule_id, trigger=trigger, **times)
            world.almanac.acknowledged(made.id, made.record.version)
            check_trigger(world, made, trigger)

        ask(world, process, run)


@step(2.5)
def tune(world: ScheduleWorld) -> None:
    """Change anything but the times."""
    if schedule_id := choose(world):
        process, rng = client(world), world.rng
        options = draw_policies(rng)
        told = {name: options[name] for name in ("remaining",) if name in options}
        if account(world, schedule_id).state.function == "picky" and rng.random() < 0.4:
            options["rotation"] = draw_rotation(rng)
            told["rotation_index"] = 0
            told["rotation"] = msgspec.json.encode(options["rotation"]).decode()
        if rng.random() < 0.2:
            options["enabled"] = told["enabled"] = rng.random() < 0.5
        world.note(f"{process.name} changes {world.almanac.name(schedule_id)}: {options}")

        def run() -> None:
            made = process.app.schedules.update(schedule_id, **options)
            world.almanac.acknowledged(made.id, made.record.version, **told)

        ask(world, process, run)


@step(0.7)
def remove(world: ScheduleWorld) -> None:
    if schedule_id := choose(world):
        process = client(world)
        world.note(f"{process.name} removes {world.almanac.name(schedule_id)}")

        def run() -> None:
            process.app.schedules.remove(schedule_id)
            world.almanac.sync()
            gone = schedule_id in world.almanac.gone
            world.almanac.expect(gone, "acknowledged changes are stored", "it is not removed")

        ask(world, process, run)


@step(2.5)
def run_now(world: ScheduleWorld) -> None:
    if schedule_id := choose(world):
        process = client(world)
        picky = account(world, schedule_id).state.function == "picky"
        inputs = {"number": 99} if picky and world.rng.random() < 0.4 else None
        world.note(f"{process.name} runs {world.almanac.name(schedule_id)} now with {inputs}")

        def run() -> None:
            process.inputs = inputs
            ran = process.app.schedules.run(schedule_id, inputs=inputs)
            if ran.outcome == "dispatched":
                world.almanac.ran(schedule_id, [("manual", ran.record.tick_at, ran.job_id)])

        ask(world, process, run)


@step(2)
def backfill(world: ScheduleWorld) -> None:
    if schedule_id := choose(world):
        process, rng = client(world), world.rng
        end = process.clock.now() - rng.choice((0, 0, 50, 1_000)) * SECOND
        start = end - rng.choice((30, 400, 4_000)) * SECOND
        world.note(f"{process.name} fills in {world.almanac.name(schedule_id)}: {start}-{end}")

        def run() -> None:
            verbs = process.app.schedules
            ticks = verbs.backfill(schedule_id, from_ms(start), from_ms(end))
            told = [t for t in ticks if t.outcome == "dispatched"]
            world.almanac.ran(schedule_id, [("slot", t.record.tick_at, t.job_id) for t in told])

        ask(world, process, run)


@step(2)
def skip_next(world: ScheduleWorld) -> None:
    if schedule_id := choose(world):
        process = client(world)
        world.note(f"{process.name} skips the next of {world.almanac.name(schedule_id)}")

        def run() -> None:
            made = process.app.schedules.skip_next(schedule_id)
            world.almanac.acknowledged(made.id, made.record.version)

        ask(world, process, run)


@step(1.5)
def hurry(world: ScheduleWorld) -> None:
    """A tick is decided before its time; the next one may be from another trigger."""
    if schedule_id := choose(world):
        move_next(world, schedule_id, at_once=True)
        tick(world)
        if world.rng.random() < 0.5 and schedule_id in world.almanac.accounts:
            retime(world, schedule_id)


@step(2)
def move_next(world: ScheduleWorld, given: str | None = None, at_once: bool = False) -> None:
    if schedule_id := given or choose(world):
        process, rng = client(world), world.rng
        state = account(world, schedule_id).state
        now = process.clock.now()
        later = (now + 5_000, (state.next_tick_at or now) + 3_000)
        to = now if at_once else rng.choice((now, *later))
        world.note(f"{process.name} moves the next of {state.key} to {to}")

        def run() -> None:
            made = process.app.schedules.move_next(schedule_id, from_ms(to))
            world.almanac.acknowledged(made.id, made.record.version, due_at=to)

        ask(world, process, run)


def _set_status(world: ScheduleWorld, verb: str) -> None:
    name = world.rng.choice(CALLS)
    process = client(world)
    world.note(f"{process.name} {verb}s {name}()")

    def run() -> None:
        try:
            getattr(process.app.functions, verb)(name)
        except WrongStatus:
            return

    ask(world, process, run)


@step(0.7)
def pause_function(world: ScheduleWorld) -> None:
    _set_status(world, "pause")


@step(6)
def resume_function(world: ScheduleWorld) -> None:
    paused = [name for name, status in world.almanac.statuses.items() if status == "paused"]
    if paused:
        _set_status(world, "resume")


@step(0.8)
def kill_switch(world: ScheduleWorld) -> None:
    process = client(world)
    world.note(f"{process.name} turns everything off")
    ask(world, process, process.app.pause)


@step(6)
def turn_on(world: ScheduleWorld) -> None:
    if world.almanac.killed:
        process = client(world)
        world.note(f"{process.name} turns everything on")
        ask(world, process, process.app.resume)


@step(1)
def outage(world: ScheduleWorld) -> None:
    hours = world.rng.choice((1, 1, 3, 3, 20, 70))
    world.note(f"{hours} h pass")
    world.clock.advance(hours * 3600)


@step(1.5)
def step_clock(world: ScheduleWorld) -> None:
    seconds = world.rng.choice((-7200, -3600, -500, -100, -5, 5, 100, 3600))
    world.note(f"the wall clock jumps by {seconds} s")
    world.ledger.clocks_disagree()
    world.clock.jump(seconds)
    world.ledger.clocks_disagree()
