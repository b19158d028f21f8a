"""Worlds with workflows: runs of random programs, what people send them, and two builds of code.

The code of the older build makes mistakes, which hold a run until the newer one takes it over.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any
from unittest import mock

from duly.errors import ApprovalClosed, TooManyEvents, WorkflowEnded
from duly.runtime import threads
from tests.simulator import steps
from tests.simulator.invariants import Ledger
from tests.simulator.process import Process
from tests.simulator.programs import EVENTS, NEW, OLD, WORKFLOWS, app, draw
from tests.simulator.records import Book, RecordLedger
from tests.simulator.steps import STEPS as JOB_STEPS
from tests.simulator.steps import Step
from tests.simulator.world import STEPS, Report, World, simulate

WITHOUT = frozenset(
    {
        *("enqueue", "enqueue_limited", "enqueue_keyed", "enqueue_debounced", "enqueue_batch"),
        *("enqueue_unfit", "enqueue_in_transaction", "write_together", "cancel_batch"),
        *("cancel_all", "mutations", "cancel", "step_clock"),
    }
)
WORKFLOW_STEPS: list[Step] = [step for step in JOB_STEPS if step.name not in WITHOUT]


def step(weight: float) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def add(do: Callable[[Any], None]) -> Callable[[Any], None]:
        WORKFLOW_STEPS.append(Step(do.__name__, weight, do))
        return do

    return add


@step(10)
def start_run(world: WorkflowWorld) -> None:
    rng = world.rng
    process = rng.choice(world.processes)
    name = rng.choice(WORKFLOWS)
    program = draw(rng, name == "flow_async")
    if world.runs and rng.random() < 0.3:
        place = rng.randrange(len(program) + 1)
        program.insert(place, ["send", rng.choice(world.runs[-5:]), rng.choice(EVENTS)])
    options: dict[str, Any] = {"queue": rng.choice(("default", "default", "slow"))}
    if rng.random() < 0.2:
        options["expires"] = rng.choice((1.0, 30.0))
    if rng.random() < 0.2:
        options["timeout"] = rng.choice((20.0, 400.0))
    world.note(f"{process.name} starts {name} {program} {options}")

    def run() -> None:
        job = process.app.run(app.functions[name].using(**options), program, "")
        world.ledger.acknowledged(job.id)
        world.runs.append(job.id)
        world.note(f"    as {world.ledger.name(job.id)}")

    process.act("client", run)


@step(10)
def send(world: WorkflowWorld) -> None:
    """An event, of which nobody knows whether it is awaited."""
    if world.runs:
        world.send(world.rng.choice(world.processes), world.rng.choice(world.runs[-8:]))


@step(8)
def decide(world: WorkflowWorld) -> None:
    """Somebody decides, perhaps too late."""
    waiting = world.approvals()
    if waiting:
        world.decide(world.rng.choice(world.processes), *world.rng.choice(waiting))


@step(1)
def resume_run(world: WorkflowWorld) -> None:
    """An operator lets a held run try again."""
    query = "SELECT id FROM duly_jobs WHERE hold IN ('error', 'history') ORDER BY id"
    held = [row[0] for row in world.ledger.db.execute(query)]
    if held:
        job_id = world.rng.choice(held)
        world.note(f"resumes {world.ledger.name(job_id)}")
        client = world.client
        client.act("client", lambda: client.store.resume_run(job_id))


@step(4)
def step_clock(world: WorkflowWorld) -> None:
    steps.step_clock(world)


@step(1.5)
def cancel_run(world: WorkflowWorld) -> None:
    if world.ledger.order:
        steps.cancel(world)


class InThisThread(Executor):
    """Does what it is given at once."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


async def _join(self: threads.Threads, answer_all: threads.AnswerAll, question: object) -> Any:
    ((value, error),) = answer_all([question])
    if error is not None:
        raise error
    return value


async def _at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


class WorkflowWorld(World):
    """A world of runs."""

    steps = WORKFLOW_STEPS
    functions = app.functions
    book: Book

    def __init__(self, *args: Any) -> None:
        self.runs: list[str] = []
        super().__init__(*args)

    def new_ledger(self) -> Ledger:
        arguments = (self.path, self.latest_ever, self.clock.monotonic, self.clocks_agree)
        ledger = RecordLedger(*arguments)
        self.book = ledger.open_book()
        return ledger

    def new_worker(self, knows_rare: bool = True) -> None:
        """Those that know less have the older build."""
        super().new_worker(knows_rare)

    def new_process(self, kind: str, *, knows_rare: bool = True, **settings: Any) -> Process:
        return super().new_process(kind, build=NEW if knows_rare else OLD, **settings)

    def knows_all(self, process: Process) -> bool:
        return process.build == NEW

    def interleave(self, process: Process, overtake: Callable[[], None] | None = None) -> None:
        """Whoever overtakes has another thread: no context, and no event loop, of this one."""
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            contextvars.Context().run(super().interleave, process, overtake)
        finally:
            asyncio._set_running_loop(loop)

    # People

    def send(self, process: Process, run: str, name: str | None = None) -> None:
        name = name or self.rng.choice(EVENTS)
        number = self.next_number()
        self.note(f"{process.name} sends {name} {number} to {self.ledger.name(run)}")

        def do() -> None:
            with suppress(WorkflowEnded, TooManyEvents, LookupError):
                process.app.send(run, name, number)

        process.act("client", do)

    def approvals(self, state: str = "%") -> list[tuple[str, str]]:
        """The approvals of live runs."""
        query = """SELECT s.job_id, s.name FROM duly_steps s JOIN duly_jobs j ON j.id = s.job_id
            WHERE s.kind = 'approval' AND s.state LIKE ? ORDER BY 1, 2"""
        return self.ledger.db.execute(query, (state,)).fetchall()

    def decide(self, process: Process, run: str, name: str) -> None:
        verb = self.rng.choice((process.app.approve, process.app.reject))
        self.note(f"{process.name}: {verb.__name__} {self.ledger.name(run)} {name}")

        def do() -> None:
            with suppress(WorkflowEnded, ApprovalClosed, LookupError):
                decision = verb(run, name)
                self.book.decided[run, name] = decision.approved

        process.act("client", do)

    # The end

    def _one_round(self) -> None:
        super()._one_round()
        for run, name in self.approvals("waiting"):
            self.decide(self.client, run, name)
        for run, name in self._awaited():
            self.send(self.client, run, name)

    def _awaited(self) -> list[tuple[str, str]]:
        query = """SELECT s.job_id, s.name FROM duly_steps s JOIN duly_jobs j ON j.id = s.job_id
            WHERE s.kind = 'event' AND s.state = 'waiting' AND NOT EXISTS (
                SELECT 1 FROM duly_events e WHERE e.job_id = s.job_id AND e.name = s.name
                AND e.taken_by IS NULL) GROUP BY 1, 2 ORDER BY 1, 2"""
        return self.ledger.db.execute(query).fetchall()


def simulate_workflows(seed: int, count: int = STEPS) -> Report:
    """Play one seed."""
    with (
        mock.patch.object(threads.Threads, "for_transaction", return_value=InThisThread()),
        mock.patch.object(threads.Threads, "join", _join),
        mock.patch.object(asyncio, "to_thread", _at_once),
        mock.patch.object(logging.getLogger("asyncio"), "disabled", True),
    ):
        return simulate(seed, count, WorkflowWorld)
