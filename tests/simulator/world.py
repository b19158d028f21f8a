"""The state of one simulation: a file, a clock, some processes, and what happened so far."""

from __future__ import annotations

import functools
import logging
import math
import random
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from duly import ManualClock, fault, ids
from duly.clock import SystemClock
from duly.functions import known_functions, redaction
from duly.functions.function import Function
from duly.runtime import threads
from duly.runtime.alone import AloneRuns
from duly.store import migrate
from duly.store.sqlite import SqliteStore
from tests.simulator import almanac, functions, records
from tests.simulator.almanac import Almanac
from tests.simulator.faults import Faults, SimConnection, SimulatedCrash
from tests.simulator.functions import acting
from tests.simulator.invariants import Ledger
from tests.simulator.log import SCHEMA, Violation
from tests.simulator.process import Process
from tests.simulator.promises import NARROW
from tests.simulator.steps import STEPS as JOB_STEPS
from tests.simulator.steps import Step
from tests.simulator.worker import SimTask

STEPS = 150
MOST_NESTED = 2
# Points outside transactions, where another thread or process may be faster.
GAPS = frozenset(
    {
        "enqueue.committed",
        "worker.claimed",
        "action.starting",
        "action.returned",
        "finish.committed",
        "mutation.committed",
        "rescue.committed",
        "ticker.committed",
        "workflow.step_starting",
        "workflow.step_committed",
        "workflow.step_returned",
        "workflow.recorded",
    }
)


@dataclass(frozen=True)
class Settings:
    """What kind of world a seed makes: some are calm, some crowded, some full of faults."""

    workers: int
    concurrency: int
    threads: int
    finishes_with_claim: bool
    interleave: float
    fault: float
    limited_queue: bool
    weights: tuple[float, ...]

    @classmethod
    def draw(cls, rng: random.Random, steps: Sequence[Step]) -> Settings:
        workers, concurrency = rng.choice((1, 2, 2, 3)), rng.choice((2, 5, 20))
        return cls(
            workers=workers,
            concurrency=concurrency,
            threads=concurrency // 2,
            finishes_with_claim=rng.random() < 0.6,
            interleave=rng.choice((0.0, 0.05, 0.15)),
            fault=rng.choice((0.0, 0.1, 0.3)),
            limited_queue=rng.random() < 0.5,
            weights=tuple(
                step.weight * rng.choice((0.5, 1, 2) if step.is_vital else (0, 0.5, 1, 3))
                for step in steps
            ),
        )


@dataclass(frozen=True)
class Report:
    """The outcome of one seed."""

    seed: int
    steps: int
    jobs: int
    digest: int
    trace: tuple[str, ...]
    violation: Violation | None

    def __str__(self) -> str:
        if self.violation is None:
            return f"seed {self.seed}: {self.jobs} jobs, nothing wrong"
        lines = "\n".join(self.trace)
        return f"{lines}\nseed {self.seed} breaks an invariant\n  {self.violation}"


class SimAloneRuns(AloneRuns):
    """Jobs that will run in their own process, once the simulation gives them one."""

    def __init__(self) -> None:
        self.wanted: list[str] = []

    def look_after(self) -> None:
        """How each of them ended is seen when it ends."""

    def start(self, job_id: str) -> None:
        if job_id not in self.wanted:
            self.wanted.append(job_id)


class RecordedClock(SystemClock):
    """A clock that shows the world's time, of which is known what it has said."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda: world.clock.now() / 1000, world.clock.monotonic)
        self._world = world

    def now(self) -> int:
        said = super().now()
        self._world.latest_said = max(self._world.latest_said, said)
        return said


class World:
    """Everything one seed decides about."""

    steps: Sequence[Step] = JOB_STEPS
    functions: Mapping[str, Function[..., Any]] = functions.app.functions
    almanac: Almanac | None
    drain_rounds = 200
    page = 100
    """How many schedules a ticker looks at in one transaction."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.settings = Settings.draw(self.rng, self.steps)
        self.clock = self.new_clock()
        self.latest_said = 0
        self.path = folder / "duly.db"
        self.path.write_bytes(template())
        self.ledger = self.new_ledger()
        if self.settings.limited_queue:
            self.ledger.limit_queue(NARROW, 1)
        self.almanac = self.new_almanac()
        self.trace: list[str] = []
        self.processes: list[Process] = []
        self.graves: list[SimTask] = []
        self.spare: list[SimConnection] = []
        """Connections of the dead: a new one would read the whole schema again."""
        self.batches: list[str] = []
        self.alone_runs = SimAloneRuns()
        self.writer: Process | None = None
        self.calm = False
        self._number = 0
        self._nested = 0
        self._names = 0
        self._calls = 0
        self.client = self.new_process("client")

    def new_clock(self) -> ManualClock:
        return ManualClock()

    def clock_of(self, process: Process) -> SystemClock:
        return RecordedClock(self)

    def new_ledger(self) -> Ledger:
        return Ledger(self.path, self.latest_ever, self.clock.monotonic, self.clocks_agree)

    def knows_all(self, process: Process) -> bool:
        """Whether it can run every job."""
        return "rare" in process.app.functions

    def new_almanac(self) -> Almanac | None:
        """What schedules owe, in worlds that have some."""
        return None

    # Processes

    def new_process(self, kind: str, **settings: Any) -> Process:
        self._names += 1
        process = Process(self, f"{kind}{self._names}", **settings)
        self.processes.append(process)
        return process

    def remove(self, process: Process) -> None:
        """The process is dead; there is always a client."""
        if not self._is_even(process):
            self.ledger.clocks_disagree()
        self.processes.remove(process)
        if process is self.client and not self.calm:
            self.client = self.new_process("client")

    def new_worker(self, knows_rare: bool = True) -> None:
        process = self.new_process("worker", knows_rare=knows_rare)
        self.note(f"{process.name} starts")
        process.act("start", process.start)
        if process in self.processes and not process.is_working:
            process.die()

    @property
    def workers(self) -> list[Process]:
        return [p for p in self.processes if p.is_working]

    def run_alone(self, job_id: str) -> None:
        """A process for one job, which then ends; its parent may see how."""
        process = self.new_process("alone")
        self.note(f"{process.name} for {self.ledger.name(job_id)}")
        process.act("start", lambda: process.start(alone=job_id))
        if process in self.processes:
            process.die()
        elif process.killed_itself:
            self._witness(process.worker_ids)

    def _witness(self, worker_ids: set[str]) -> None:
        """The worker that had started it lives on, unless the body took that along too.

        A process that dies by a fault dies with everything around it, so nothing sees that.
        """
        watching = [process for process in self.workers if not process.stack]
        if not watching or (not self.calm and self.rng.random() < 0.3):
            return
        self.ledger.witnessed |= worker_ids
        watching[0].act("janitor", lambda: watching[0].bury(worker_ids))

    # Chance

    def maybe_arm(self, process: Process) -> None:
        """Decide whether something goes wrong in what this process does next."""
        if not self.calm and self.rng.random() < self.settings.fault:
            kind = self.rng.choice(Faults.KINDS)
            skip = self.rng.randrange(2 if kind in ("busy", "lost") else 20)
            process.faults.arm(kind, skip, self.rng.choice((1, 1, 3, 8)))
            self.note(f"    ({kind} after {skip})")

    def interleave(self, process: Process, overtake: Callable[[], None] | None = None) -> None:
        """A thread at this point may be overtaken by any other thread or process."""
        if process.faults.dead:
            # Its locks are released when it is buried: until then no other process can do anything.
            raise SimulatedCrash
        calm = self.calm or not process.is_open
        possible = not calm and self.writer is None and self._nested < MOST_NESTED
        chance = self.settings.interleave * (4 if overtake else 1)
        if possible and self.rng.random() < chance:
            self._nested += 1
            try:
                (overtake or self.step)()
            finally:
                self._nested -= 1
        if process.faults.dead:
            raise SimulatedCrash

    def at_point(self, name: str) -> None:
        """After a commit, before its process has taken notice, its other loops are the fastest."""
        if name in GAPS and acting:
            process = acting[-1]
            self.interleave(process, self.rng.choice((process.claim, process.settle, self.step)))

    # Running

    def latest_ever(self) -> int:
        """The latest time that any process, alive or dead, has taken for the present."""
        return self.latest_said

    def latest_now(self) -> int:
        """The time of the process whose clock is ahead of all others."""
        return max(process.clock.now() for process in self.processes)

    def clocks_agree(self) -> bool:
        """Whether no process still has to be caught up with by a clock that was set back."""
        return all(map(self._is_even, self.processes))

    def _is_even(self, process: Process) -> bool:
        return abs(process.clock.now() - self.clock.now()) <= 1

    def next_number(self) -> int:
        """An argument that no other call has."""
        self._calls += 1
        return self._calls

    def note(self, text: str) -> None:
        self.trace.append(f"{self._number:4} {'  ' * self._nested}{text}")

    def step(self) -> None:
        (step,) = self.rng.choices(self.steps, self.settings.weights)
        step.do(self)

    def check(self) -> None:
        self.ledger.check_state()
        if self.almanac is not None:
            self.almanac.sync()
        for process in self.processes:
            process.check_slots()
        if Violation.first is not None:
            raise Violation.first

    def run(self, count: int) -> None:
        for _ in range(self.settings.workers):
            self.new_worker()
        for self._number in range(count):
            self.step()
            self.check()
        self.drain()
        self.ledger.check_end()

    def drain(self) -> None:
        """No more faults, one worker that knows everything: now all must come to an end."""
        self.note("drain")
        self.calm = True
        for name in sorted(self.ledger.paused):
            self.client.app.queues.resume(name)
        quiet = 0
        for number in range(self.drain_rounds):
            if number == 2:
                self._end_frozen()
            self._one_round()
            quiet = 0 if self._pass_time() else quiet + 1
            # What has just ended is cleared away in the round after it.
            if quiet >= 2 and number >= 4:
                break

    def _end_frozen(self) -> None:
        """Bodies that a worker has left behind count until their process ends."""
        for process in [process for process in self.processes if process.has_frozen]:
            process.die()

    def _one_round(self) -> None:
        if not any(process.knows_all for process in self.workers):
            self.new_worker()
        for process in self.workers:
            self._let_work(process)
        while self.alone_runs.wanted:
            self.run_alone(self.alone_runs.wanted.pop(0))
        self.check()

    def _let_work(self, process: Process) -> None:
        process.act("beat", process.beat.one_pass)
        process.act("janitor", process.janitor.one_pass)
        process.claim()
        process.run_bodies()
        process.watch()
        process.settle()

    def _pass_time(self) -> bool:
        """Advance to when something is due; False if nothing is left."""
        pending = "state = 'pending' AND hold IS NOT 'batch'"
        query = f"SELECT count(*), min(iif({pending}, run_at, NULL)) FROM duly_jobs"
        left, due = self.ledger.db.execute(f"{query} WHERE hold IS NOT 'signature'").fetchone()
        # Those of a process for one job are freed when it was silent for some rounds.
        (slots,) = self.ledger.db.execute("SELECT count(*) FROM duly_slots").fetchone()
        # A wall clock that was set back has to catch up with the processes that saw it ahead.
        # What a rate counts was noted then.
        (started,) = self.ledger.db.execute("SELECT max(started_at) FROM duly_starts").fetchone()
        until = max(due or 0, self.latest_now(), started or 0)
        self.clock.advance(max(1.0, (until - self.clock.now()) / 1000))
        return bool(left or slots)

    def close(self) -> None:
        self.calm = True
        for process in list(self.processes):
            with suppress(Violation):
                process.die()
        for task in self.graves:
            with suppress(SimulatedCrash):
                task.coroutine.close()
        for raw in self.spare:
            raw.close()
        self.ledger.close()

    def digest(self) -> int:
        """The whole history as a number, to compare replays."""
        query = "SELECT op, id, state, token, attempt, run_at, worker_id FROM sim_log ORDER BY seq"
        return zlib.crc32(repr((self.trace, self.ledger.db.execute(query).fetchall())).encode())


def simulate(seed: int, count: int = STEPS, kind: type[World] = World) -> Report:
    """Play one seed."""
    Violation.forget()
    acting.clear()
    with playground(seed) as folder:
        world = kind(seed, folder)
        try:
            with suppress(Violation), fault.inject(world.at_point):
                world.run(count)
            jobs, trace = len(world.ledger.jobs), tuple(world.trace)
            return Report(seed, count, jobs, world.digest(), trace, Violation.first)
        finally:
            world.close()


@contextmanager
def playground(seed: int) -> Iterator[Path]:
    """A folder, and a process without chance, threads and noise."""
    source = ids._Source()
    source.bits = random.Random(seed).getrandbits
    state, log = random.getstate(), logging.getLogger("duly")
    level = log.level
    with ExitStack() as stack:
        stack.callback(random.setstate, state)
        stack.callback(log.setLevel, level)
        stack.enter_context(mock.patch.object(ids, "_source", source))
        for verb in ("call", "read", "look"):
            stack.enter_context(mock.patch.object(threads.Threads, verb, _at_once))
        # Asking again after a while would depend on the speed of the machine.
        for module in (known_functions, redaction):
            stack.enter_context(mock.patch.object(module, "STATUS_SECONDS", math.inf))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="duly-simulator-"))
        log.setLevel(logging.CRITICAL + 1)
        random.seed(seed)
        yield Path(folder)


async def _at_once(self: threads.Threads, work: Callable[[], Any]) -> Any:
    return work()


def template() -> bytes:
    """A migrated database with the log's triggers and the user's tables."""
    return _template(tuple(step.checksum for step in migrate.migrations("sqlite")))


@functools.cache
def _template(checksums: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="duly-simulator-") as folder:
        path = Path(folder, "duly.db")
        store = SqliteStore(path, synchronous="OFF")
        store.migrate(0)
        store.close()
        db = sqlite3.connect(path, isolation_level=None)
        db.executescript(SCHEMA + almanac.SCHEMA + records.SCHEMA)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        return path.read_bytes()
