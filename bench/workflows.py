"""Measures workflows: steps per second, how soon a run continues, and what sleeping runs cost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial

from bench import product
from bench.app import Measured
from bench.cases import Sizes
from bench.databases import Database, Fresh
from bench.figures import CALM, DULY, RAW, Figure, Trial, one
from bench.flows import RECORDS, WOKEN
from bench.product import DEFAULT_CONCURRENCY, PATIENCE, Worker, worker
from bench.raw import rate
from duly.functions.new_job import new_job
from duly.model.job import NewJob
from duly.model.workflow import Put, Step, StepKind, StepState
from duly.store.workflows import PUT_STEPS, put_one, put_parameters

RUNS = 100

LONE = "app.run, one call after the other"
ONE = "steps of one run, actions"
ONE_RETRIED = "steps of one run, actions with retry"
ONE_MUTATION = "steps of one run, mutations"
MANY = f"steps of {RUNS} async runs, actions"
MANY_RETRIED = f"steps of {RUNS} async runs, actions with retry"
MANY_SYNC = f"steps of {RUNS} sync runs, actions"
WAKE = f"wake of a run with {RECORDS} records, p50"
BESIDE_SLEEPING = "jobs next to sleeping runs"
MEMORY_BESIDE = "memory of a worker next to sleeping runs"

SINGLE = {ONE: "actions", ONE_RETRIED: "retried", ONE_MUTATION: "mutations"}
TOGETHER = {MANY: "actions", MANY_RETRIED: "retried", MANY_SYNC: "sync_actions"}
SETTING = f"concurrency {DEFAULT_CONCURRENCY}"


def workflow_trials(store: str, fresh: Fresh, sizes: Sizes) -> Iterator[list[Trial]]:
    lone = Figure(store, LONE, DULY, "one caller", default=True)
    yield [
        one(lone, partial(_lone, fresh, sizes.steps)),
        *(_steps(store, row, flow, fresh, 1, sizes.steps) for row, flow in SINGLE.items()),
    ]
    for row, flow in TOGETHER.items():
        measured = _steps(store, row, flow, fresh, RUNS, sizes.steps_each)
        if row == MANY_SYNC:
            yield [measured]
        else:
            raw = Figure(store, row, RAW, f"a statement for {RUNS} runs", "steps/s")
            at_most_once = row == MANY
            yield [
                one(raw, partial(_raw, fresh, RUNS, sizes.steps_each, at_most_once)),
                measured,
            ]
    yield [_wake_trial(store, fresh, sizes.pings)]
    yield [_beside_trial(store, fresh, sizes, side) for side in (CALM, DULY)]


# Steps -------------------------------------------------------------------------------------------


def _lone(fresh: Fresh, count: int) -> float:
    with fresh() as database, database.app() as measured:
        measured.app.run(measured.async_noop, 0)
        return product.enqueue_singly(measured, count)


def _steps(store: str, row: str, flow: str, fresh: Fresh, runs: int, each: int) -> Trial:
    figure = Figure(store, row, DULY, SETTING, "steps/s", default=True)

    def measure() -> float:
        with fresh() as database, database.app() as measured, worker(database) as running:
            began, used = _start(database, measured, running, flow, runs, each)
            running.marks.wait_for(1 + runs, PATIENCE)
            database.wait_until_finished()
            seconds = time.monotonic() - began
            figure.cpu.append((running.cpu_seconds() - used) / (runs * each) * 1e6)
            return runs * each / seconds

    return one(figure, measure)


def _start(
    database: Database, measured: Measured, running: Worker, name: str, runs: int, each: int
) -> tuple[float, float]:
    """Start all runs in one commit, on a worker that has run one before."""
    app, flow = measured.app, getattr(measured.flows, name)
    app.run(flow, 5)
    running.marks.wait_for(1, PATIENCE)
    database.wait_until_finished()
    now = app.clock.now()
    jobs = [new_job(flow.bind(each), now, now, None) for _ in range(runs)]
    used = running.cpu_seconds()
    app.store.enqueue(jobs)
    began = time.monotonic()
    app.store.ring()
    return began, used


# The bare statements -----------------------------------------------------------------------------


def _raw(fresh: Fresh, runs: int, each: int, at_most_once: bool) -> float:
    """The same records, those of all runs in one transaction, without the code that makes them."""
    with fresh() as database:
        with database.app() as measured:
            now, flow = measured.app.clock.now(), measured.flows.actions
            jobs = [new_job(flow.bind(each), now, now, None) for _ in range(runs)]
            measured.app.store.enqueue(jobs)
        batches = [_records(jobs, pos, at_most_once) for pos in range(each)]
        with closing(database.connect()) as connection:
            write = _write_to(database, connection)
            ready = [write(batch) for batch in batches]
            return rate(runs * each, lambda: [record() for record in ready])


def _records(jobs: Sequence[NewJob], pos: int, at_most_once: bool) -> list[Put]:
    """What all runs record at a time: that a step has begun, with the result before it, or both."""

    def step(pos: int, state: StepState) -> Step:
        done = state == StepState.SUCCEEDED
        return Step(
            scope="", pos=pos, kind=StepKind.ACTION, name="act", state=state, token=0,
            started_at=1, ended_at=1 if done else None, args=f'{{"n":{pos}}}',
            result=f"{pos}" if done else None,
        )  # fmt: skip

    puts: list[Put] = []
    for job in jobs:
        fence = job.id, 0
        if not at_most_once:
            puts.append(Put(fence, step(pos, StepState.SUCCEEDED), None))
            continue
        if pos > 0:
            puts.append(Put(fence, step(pos - 1, StepState.SUCCEEDED), StepState.STARTED))
        puts.append(Put(fence, step(pos, StepState.STARTED), None))
    return puts


def _write_to(
    database: Database, connection: object
) -> Callable[[Sequence[Put]], Callable[[], None]]:
    """Return what prepares a write."""
    execute = connection.execute  # type: ignore[attr-defined]

    def on_postgres(puts: Sequence[Put]) -> Callable[[], None]:
        parameters = put_parameters(puts)
        return lambda: execute(database.texts[PUT_STEPS], parameters).fetchall()

    def on_sqlite(puts: Sequence[Put]) -> Callable[[], None]:
        statements = [put_one(put) for put in puts]
        ready = [(database.texts[statement], values) for statement, values in statements]

        def write() -> None:
            execute("BEGIN IMMEDIATE")
            for text, values in ready:
                execute(text, values).fetchall()
            execute("COMMIT")

        return write

    return on_sqlite if database.dialect == "sqlite" else on_postgres


# Waking ------------------------------------------------------------------------------------------


def _wake_trial(store: str, fresh: Fresh, count: int) -> Trial:
    figures = [
        Figure(store, WAKE, CALM, "pickup of a plain job", "ms"),
        Figure(store, WAKE, DULY, "an event for it", "ms", default=True),
    ]
    return Trial(figures, partial(_wakes, fresh, count))


def _wakes(fresh: Fresh, count: int) -> list[float]:
    """From the call to the line behind the wait, and to the body of a plain job; in turns."""
    with fresh() as database, database.app() as measured, worker(database) as running:
        app = measured.app
        runs = app.run_many(measured.flows.waiting.bind(RECORDS) for _ in range(count + 1))
        running.marks.wait_for(count + 1, PATIENCE)
        database.wait_until_finished()
        for number, run in enumerate(runs):
            time.sleep(random.uniform(0.020, 0.050))
            app.run(measured.ping, time.monotonic_ns())
            running.marks.wait_for_pings(2 * number + 1, PATIENCE)
            time.sleep(random.uniform(0.020, 0.050))
            app.send(run, WOKEN, time.monotonic_ns())
            running.marks.wait_for_pings(2 * number + 2, PATIENCE)
        # The first of each does not count.
        times = running.marks.pings()[2:]
        return [product.quantiles(times[side::2])[0] for side in (0, 1)]


# Sleeping runs -----------------------------------------------------------------------------------


def _beside_trial(store: str, fresh: Fresh, sizes: Sizes, side: str) -> Trial:
    count = sizes.sleeping if side == DULY else 0
    setting = f"{count:,} of them"
    figures = [
        Figure(store, BESIDE_SLEEPING, side, setting, default=side == DULY),
        Figure(store, MEMORY_BESIDE, side, setting, "MB", default=side == DULY),
    ]
    return Trial(figures, partial(_beside, fresh, count, sizes.growth_jobs))


def _beside(fresh: Fresh, sleeping: int, jobs: int) -> list[float]:
    with fresh() as database:
        if sleeping:
            database.copy_run(_asleep(database), sleeping)
        database.tidy()
        run = product.end_to_end(database, "async_noop", jobs)
        return [run.rate, run.memory]


def _asleep(database: Database) -> str:
    """A run that a worker has started, and that is waiting for tomorrow."""
    with database.app() as measured, worker(database) as running:
        job = measured.app.run(measured.flows.sleeping, 1)
        running.marks.wait_for(1, PATIENCE)
        database.wait_until_finished()
        return job.id
