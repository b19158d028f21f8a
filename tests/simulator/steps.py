"""What can happen, and how often?"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from duly import Retry
from duly.errors import StoreError
from duly.functions import Function, new_job
from duly.model.job import NewJob
from duly.runtime.beat import rescue
from duly.store.commit import Ticket
from duly.store.session import Session
from duly.store.sqlite import Write
from tests.simulator.functions import ACTIONS, MUTATIONS

if TYPE_CHECKING:
    from tests.simulator.process import Process
    from tests.simulator.world import World


class Step(NamedTuple):
    name: str
    weight: float
    do: Callable[[World], None]

    @property
    def is_vital(self) -> bool:
        """Without these no world gets anywhere."""
        return self.weight >= 6


STEPS: list[Step] = []


def step(weight: float) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    def add(do: Callable[[World], None]) -> Callable[[World], None]:
        STEPS.append(Step(do.__name__, weight, do))
        return do

    return add


QUEUES = ("default", "default", "slow")
NAMES = (*MUTATIONS, *ACTIONS, *ACTIONS, "write", "write", "spawn", "walk", "walk")


# Enqueue -------------------------------------------------------------------------------------


def call(world: World, process: Process) -> tuple[Function[..., Any], tuple[Any, ...]]:
    """A function with options and arguments, as the seed wants it."""
    rng = world.rng
    known = process.app.functions
    name = rng.choice([name for name in NAMES if name in known])
    args: tuple[Any, ...] = ()
    if name == "meddle":
        args = (rng.choice(world.ledger.order[-12:] or ["nobody"]),)
    elif name == "picky":
        args = (1,)
    options: dict[str, Any] = {"queue": rng.choice(QUEUES), "priority": rng.choice((0, 5, 5, 9))}
    if rng.random() < 0.2:
        options["expires"] = rng.choice((1.0, 30.0))
    if rng.random() < 0.5:
        options["timeout"] = rng.choice((2.0, 2.0, 20.0))
    if rng.random() < 0.5:
        options["retry"] = Retry(attempts=rng.choice((2, 5)), base=rng.choice((0, 0, 2)), jitter=0)
    return known[name].using(**options), args


@step(12)
def enqueue(world: World) -> None:
    process = world.rng.choice(world.processes)
    function, args = call(world, process)
    delay = world.rng.choice((0, 0, 0, 0, 1, 30, 900))
    world.note(f"{process.name} enqueues {function.name}{args or ''} in {delay} s")

    def run() -> None:
        job = process.app.run_after(delay, function, *args)
        world.ledger.acknowledged(job.id)

    process.act("client", run)


@step(1)
def enqueue_unfit(world: World) -> None:
    """A job whose arguments fit no signature is held, whoever claims it."""
    process = world.client
    world.note("enqueues an unfit picky")
    unfit = process.app.function("picky").bind(1)
    unfit.args = '{"number":"one"}'

    def run() -> None:
        now = process.clock.now()
        job = new_job(unfit, now, now, None)
        process.app.ready().enqueue([job])
        world.ledger.acknowledged(job.id)

    process.act("client", run)


@step(2)
def enqueue_in_transaction(world: World) -> None:
    """With the user's own data: both or neither."""
    process = world.rng.choice(world.processes)
    function, args = call(world, process)
    fails = world.rng.random() < 0.4
    world.note(f"{process.name} enqueues {function.name} and {'fails' if fails else 'commits'}")

    def run() -> None:
        try:
            with process.app.transaction() as tx:
                job = tx.run(function, *args)
                if fails:
                    world.ledger.rolled_back(job.id)
                    raise KeyError
            world.ledger.acknowledged(job.id)
        except KeyError:
            return
        except sqlite3.Error as error:  # The user's transaction shows the driver's own errors.
            raise StoreError from error

    process.act("client", run)


@step(2)
def write_together(world: World) -> None:
    """Writes that wait at the same moment share a commit; one of them may fail."""
    process = world.client
    world.note("enqueues several together")
    groups: list[list[NewJob]] = []
    for _ in range(3):
        function, args = call(world, process)
        now = process.clock.now()
        job = new_job(function.bind(*args), now, now, None)
        groups.append([job, job] if world.rng.random() < 0.2 else [job])

    def run() -> None:
        tickets: list[Ticket[Write]] = [Ticket(partial(_insert, jobs)) for jobs in groups]
        process.store._commit_batch(tickets)
        for ticket, (job, *twice) in zip(tickets, groups, strict=True):
            if ticket.error is None:
                world.ledger.acknowledged(job.id)
            elif twice:
                world.ledger.rolled_back(job.id)

    process.act("client", run)


def _insert(jobs: list[NewJob], session: Session) -> None:
    session.insert_jobs(jobs)


# Loops ---------------------------------------------------------------------------------------


def worker(world: World) -> Process | None:
    return world.rng.choice(world.workers) if world.workers else None


@step(14)
def work(world: World) -> None:
    """A busy moment: claim, run some, settle."""
    if process := worker(world):
        world.note(f"{process.name} works")
        process.claim()
        process.run_mutations(world.rng.choice((1, 3, 50)))
        for _ in range(3):
            process.run_actions(world.rng.choice)
        process.settle()


@step(8)
def claim(world: World) -> None:
    if process := worker(world):
        world.note(f"{process.name} claims")
        process.claim()


@step(6)
def settle(world: World) -> None:
    if process := worker(world):
        world.note(f"{process.name} settles")
        process.settle()


@step(10)
def mutations(world: World) -> None:
    waiting = [p for p in world.processes if p.worker and p.worker.mutations.queued]
    if waiting:
        process, count = world.rng.choice(waiting), world.rng.choice((1, 3, 50))
        world.note(f"{process.name} runs {count} mutations")
        process.run_mutations(count)


@step(16)
def action(world: World) -> None:
    acting = [p for p in world.processes if p.worker and p.worker.actions]
    if acting:
        process = world.rng.choice(acting)
        world.note(f"{process.name} goes on with an action")
        process.run_actions(world.rng.choice)


@step(2)
def watch(world: World) -> None:
    if process := worker(world):
        world.note(f"{process.name} watches time limits")
        process.watch()


@step(8)
def beat(world: World) -> None:
    if process := worker(world):
        world.note(f"{process.name} beats")
        process.act("beat", process.beat.one_pass)


@step(4)
def janitor(world: World) -> None:
    if process := worker(world):
        world.note(f"{process.name} cleans up")
        process.act("janitor", process.janitor.one_pass)


@step(2)
def alone(world: World) -> None:
    if world.alone_runs.wanted:
        world.run_alone(world.alone_runs.wanted.pop(0))


# People --------------------------------------------------------------------------------------


@step(6)
def cancel(world: World) -> None:
    if world.ledger.order:
        job_id = world.rng.choice(world.ledger.order[-15:])
        process = world.rng.choice(world.processes)
        world.note(f"{process.name} cancels {world.ledger.name(job_id)}")

        def run() -> None:
            try:
                process.app.cancel(job_id)
            except LookupError:
                return

        process.act("client", run)


@step(0.4)
def cancel_all(world: World) -> None:
    name = world.rng.choice(NAMES)
    world.note(f"cancels every {name}")
    world.client.act("client", lambda: world.client.app.cancel_all(name))


@step(0.4)
def pause(world: World) -> None:
    name = world.rng.choice(QUEUES)
    world.note(f"pauses {name}")
    world.client.act("client", lambda: world.client.app.queues.pause(name))


@step(1.5)
def resume(world: World) -> None:
    name = world.rng.choice(QUEUES)
    world.note(f"resumes {name}")
    world.client.act("client", lambda: world.client.app.queues.resume(name))


# Time ----------------------------------------------------------------------------------------


@step(8)
def advance(world: World) -> None:
    seconds = world.rng.choice((0.001, 0.5, 0.5, 1, 2, 3, 35, 35, 400))
    world.note(f"{seconds:g} s pass")
    world.clock.advance(seconds)


@step(1.5)
def step_clock(world: World) -> None:
    seconds = world.rng.choice((-500, -100, -5, 5, 100))
    world.note(f"the wall clock jumps by {seconds} s")
    world.clock.jump(seconds)


# Life and death ------------------------------------------------------------------------------


@step(2.5)
def crash(world: World) -> None:
    process = world.rng.choice(world.processes)
    if process is not world.client and not process.stack:
        world.note(f"{process.name} dies")
        process.die()


@step(6)
def restart(world: World) -> None:
    if len(world.processes) <= world.settings.workers:
        world.new_worker(knows_rare=world.rng.random() < 0.5)


@step(1)
def stop(world: World) -> None:
    """A graceful stop, perhaps in an outage; the process may live on and start another worker."""
    if process := worker(world):
        assert process.worker is not None
        world.note(f"{process.name} stops")
        outage = world.rng.random() < world.settings.fault * 3
        process.act("stop", process.worker.stop, outage=outage)
        if not process.is_working and world.rng.random() < 0.5:
            process.act("start", process.start)


@step(0.5)
def declare_dead(world: World) -> None:
    """Somebody takes a living worker for dead, as can happen where only beats are seen."""
    if process := worker(world):
        assert process.worker is not None
        worker_id = process.worker.id
        world.note(f"{process.name} is declared dead")
        world.ledger.may_leave.add(worker_id)
        client = world.client
        client.act("client", lambda: rescue(client.store, client.clock, worker_id, None))
