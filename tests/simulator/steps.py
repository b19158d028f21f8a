"""The steps of a simulation, and how often each occurs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from duly import Retry, Unique
from duly.errors import StoreError
from duly.functions.function import Function
from duly.functions.new_job import new_job, new_jobs
from duly.model.job import NewJob
from duly.runtime.heartbeat import rescue
from duly.store.commit import Ticket
from duly.store.jobs.enqueue import insert_jobs
from duly.store.session import Session
from duly.store.sqlite import Write
from tests.simulator.functions import ACTIONS, DEBOUNCED, HOOKS, MUTATIONS
from tests.simulator.promises import LIMITS, NARROW, UNIQUES, Wish

if TYPE_CHECKING:
    from tests.simulator.process import Process
    from tests.simulator.world import World


class Step(NamedTuple):
    name: str
    weight: float
    do: Callable[[World], None]

    @property
    def is_vital(self) -> bool:
        """Without these, no world makes progress."""
        return self.weight >= 6


STEPS: list[Step] = []


def step(weight: float) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    def add(do: Callable[[World], None]) -> Callable[[World], None]:
        STEPS.append(Step(do.__name__, weight, do))
        return do

    return add


QUEUES = ("default", "default", "slow", NARROW)
NAMES = (
    *sorted({*MUTATIONS, *ACTIONS} - HOOKS - DEBOUNCED),
    *sorted({*ACTIONS} - HOOKS - DEBOUNCED),
    *("write", "write", "spawn", "walk", "walk"),
)
# Where two calls of one function should meet, there must not be many functions.
KEYED_NAMES = ("write", "poke", "dwell", "boom")
# Long lives, and short ones that end badly.
LIMITED_NAMES = ("dwell", "dwell", "walk", "stubborn_walk", "write", "boom", "deadly", "poison")


# Enqueue -------------------------------------------------------------------------------------


def draw_call(world: World, process: Process, names: Sequence[str] = NAMES) -> Wish:
    """A function with options and arguments, as the seed wants it."""
    rng = world.rng
    known = process.app.functions
    name = rng.choice([name for name in names if name in known])
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
        options["retry"] = Retry(attempts=rng.choice((2, 5)), delay=rng.choice((0, 0, 2)), jitter=0)
    if rng.random() < 0.15:
        hook = known["after_job"]
        options["on_complete"] = _limited(rng, hook) if rng.random() < 0.3 else hook
    wish = Wish(known[name].using(**options), args)
    return Wish(_limited(rng, wish.function), args) if rng.random() < 0.1 else wish


def _labelled(function: Function[..., Any], label: str, **options: Any) -> Function[..., Any]:
    return function.using(tags=[*function.options.tags, label], **options)


def _limited(rng: Random, function: Function[..., Any]) -> Function[..., Any]:
    name = rng.choice(list(LIMITS))
    return _labelled(function, f"limit:{name}", limit=LIMITS[name])


def draw_limited(world: World, process: Process) -> Wish:
    """A call that competes with others for a limit."""
    wish = draw_call(world, process, LIMITED_NAMES)
    if wish.function.options.limit is not None:
        return wish
    return replace(wish, function=_limited(world.rng, wish.function))


def draw_keyed(world: World, process: Process) -> Wish:
    """A call of which there shall be one."""
    wish = draw_call(world, process, KEYED_NAMES)
    function = wish.function
    if world.rng.random() < 0.8:
        scope = world.rng.choice(list(UNIQUES))
        function = _labelled(function, f"{scope}:a", unique=UNIQUES[scope])
    if not function.options.unique or world.rng.random() < 0.4:
        key = world.rng.choice(("a", "b", "c"))
        function = _labelled(function, f"once:{key}", idempotency_key=key)
    return replace(wish, function=function)


def draw_debounced(world: World, process: Process) -> Wish:
    """A call that waits for others like it."""
    rng = world.rng
    function = draw_call(world, process, sorted(DEBOUNCED)).function
    seconds, key = rng.choice((0.5, 3, 30)), rng.choice((None, "a"))
    unique = None if key is None else Unique(key)
    function = _labelled(function, f"debounce:{key}", debounce=seconds, unique=unique)
    return Wish(function, (world.next_number(),), round(seconds * 1000))


def draw_any(world: World, process: Process) -> Wish:
    draws = (draw_call, draw_call, draw_limited, draw_keyed, draw_debounced)
    return world.rng.choice(draws)(world, process)


def _enqueue(world: World, draw: Callable[[World, Process], Wish]) -> None:
    process = world.rng.choice(world.processes)
    wish = draw(world, process)
    delay = world.rng.choice((0, 0, 0, 0, 1, 30, 900))
    world.note(f"{process.name} enqueues {wish} in {delay} s")

    def run() -> None:
        since, called_at = world.ledger.sync(), process.clock.now()
        job = process.app.run_after(delay, wish.function, *wish.args)
        world.note(f"    as {world.ledger.name(job.id)}")
        world.ledger.answered(wish, job.id, job.existed, called_at, since)

    process.act("client", run)


@step(12)
def enqueue(world: World) -> None:
    _enqueue(world, draw_call)


@step(5)
def enqueue_limited(world: World) -> None:
    _enqueue(world, draw_limited)


@step(3)
def enqueue_keyed(world: World) -> None:
    _enqueue(world, draw_keyed)


@step(3)
def enqueue_debounced(world: World) -> None:
    _enqueue(world, draw_debounced)


@step(2.5)
def enqueue_batch(world: World) -> None:
    process = world.rng.choice(world.processes)
    wishes = [draw_any(world, process) for _ in range(world.rng.choice((0, 1, 1, 2, 3, 4)))]
    hook = process.app.function("after_batch")
    if world.rng.random() < 0.2:
        hook = _limited(world.rng, hook)
    world.note(f"{process.name} enqueues a batch of {', '.join(map(str, wishes)) or 'nothing'}")

    def run() -> None:
        batch = process.app.batch([wish.call for wish in wishes], on_complete=hook)
        world.batches.append(batch.id)
        world.ledger.batched(batch.id, wishes)
        world.note(f"    as {world.ledger.name(batch.id)}")

    process.act("client", run)


@step(1)
def enqueue_unfit(world: World) -> None:
    """A job whose arguments fit no signature is held, whichever worker claims it."""
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


@step(3)
def enqueue_in_transaction(world: World) -> None:
    """With the user's own data: both or neither."""
    process = world.rng.choice(world.processes)
    wish = draw_any(world, process)
    fails = world.rng.random() < 0.4
    world.note(f"{process.name} enqueues {wish} and {'fails' if fails else 'commits'}")

    def run() -> None:
        since, called_at = world.ledger.sync(), process.clock.now()
        try:
            with process.app.transaction() as tx:
                job = tx.run(wish.function, *wish.args)
                if fails:
                    if not job.existed:
                        world.ledger.rolled_back(job.id)
                    raise KeyError
            world.ledger.answered(wish, job.id, job.existed, called_at, since)
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
    wishes: list[Wish] = []
    groups: list[list[NewJob]] = []
    called_at = process.clock.now()
    for _ in range(3):
        wish = draw_any(world, process)
        rows = new_jobs(wish.call, called_at, called_at, None)
        wishes.append(wish)
        groups.append(rows * 2 if world.rng.random() < 0.2 and not wish.is_keyed else rows)

    def run() -> None:
        since = world.ledger.sync()
        tickets: list[Ticket[Write]] = [Ticket(partial(_insert, jobs)) for jobs in groups]
        process.store._commit_batch(tickets)
        for wish, ticket, (job, *more) in zip(wishes, tickets, groups, strict=True):
            if ticket.error is None:
                job_id = ticket.value.get(job.id, job.id)
                world.ledger.answered(wish, job_id, job_id != job.id, called_at, since)
            elif job in more:
                world.ledger.rolled_back(job.id)

    process.act("client", run)


def _insert(jobs: list[NewJob], session: Session) -> dict[str, str]:
    return insert_jobs(session, jobs)


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
        world.ledger.asked_to_cancel.add(job_id)

        def run() -> None:
            try:
                process.app.cancel(job_id)
            except LookupError:
                return

        process.act("client", run)


@step(1)
def cancel_batch(world: World) -> None:
    if world.batches:
        batch_id = world.rng.choice(world.batches[-5:])
        world.note(f"cancels the batch of {world.ledger.name(batch_id)}")
        world.ledger.asked_to_cancel.add(batch_id)

        def run() -> None:
            try:
                world.client.app.batch_of(batch_id).cancel()
            except LookupError:
                return

        world.client.act("client", run)


@step(0.4)
def cancel_all(world: World) -> None:
    name = world.rng.choice(NAMES)
    world.note(f"cancels every {name}")
    world.ledger.asked_to_cancel.add(name)
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
    world.ledger.clocks_disagree()
    world.clock.jump(seconds)
    world.ledger.clocks_disagree()


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
        fails = world.rng.random() < world.settings.fault * 3
        outage = world.rng.choice((1, 2, 3, 4, 6, 100)) if fails else 0
        process.act("stop", process.worker.stop, outage=outage)
        if not process.is_working and world.rng.random() < 0.5:
            process.act("start", process.start)


@step(0.5)
def declare_dead(world: World) -> None:
    """A live worker is taken for dead, as can happen when only its heartbeats are seen."""
    if process := worker(world):
        assert process.worker is not None
        worker_id = process.worker.id
        world.note(f"{process.name} is declared dead")
        world.ledger.may_leave.add(worker_id)
        world.ledger.declared_dead.add(worker_id)
        client = world.client
        client.act("client", lambda: rescue(client.store, client.clock, worker_id, None))
