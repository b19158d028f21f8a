"""Which rows are measured, in which settings, and what each is divided by."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

from bench import product
from bench.app import Measured, new_jobs
from bench.databases import Database, Fresh
from bench.figures import DULY, RAW, Figure, Trial, one
from bench.product import DEFAULT_CONCURRENCY
from bench.raw import Raw, rate, raw_over
from duly.model.job import NewJob

CALLERS = 64
BULK = 10_000

SINGLE = "enqueue, one caller"
CROWD = f"enqueue, {CALLERS} callers at once"
IN_BULK = "enqueue in bulk"
ASYNC = "end to end, async no-op actions"
SYNC = "end to end, sync no-op actions"
MUTATIONS = "end to end, mutations (one row each)"
GROUPED = "end to end, mutations, group=True"
END_TO_END = (ASYNC, SYNC, MUTATIONS)
_FUNCTIONS = {
    ASYNC: "async_noop",
    SYNC: "sync_noop",
    MUTATIONS: "insert_row",
    GROUPED: "insert_grouped",
}
PICKUP_RUN = "pickup after app.run, another process"
PICKUP_ON = "pickup after app.on(handle), another process"
PICKUP_HERE = "pickup after app.run, same process"


@dataclass(frozen=True)
class Sizes:
    """How much is done in one round."""

    rounds: int
    singles: int
    each_caller: int
    bulks: int
    jobs: int
    mutations: int
    pings: int
    growth_jobs: int
    concurrencies: tuple[int, ...]
    batches: tuple[int, ...]
    ticks: int
    schedules: int
    due_schedules: int
    rows: int
    """Jobs in the way: future, paused, unknown, held."""
    finished_rows: int
    held_jobs: int
    backlog: int
    memory_jobs: int
    limited_jobs: int
    steps: int
    """Of one run of a workflow."""
    steps_each: int
    """Of each of many."""
    sleeping: int


QUICK = Sizes(
    rounds=1,
    singles=200,
    each_caller=5,
    bulks=1,
    jobs=2_000,
    mutations=1_000,
    pings=20,
    growth_jobs=1_000,
    concurrencies=(100,),
    batches=(100,),
    ticks=5,
    schedules=5_000,
    due_schedules=500,
    rows=2_000,
    finished_rows=2_000,
    held_jobs=3_000,
    backlog=3_000,
    memory_jobs=20_000,
    limited_jobs=100,
    steps=100,
    steps_each=5,
    sleeping=2_000,
)
SHORT = Sizes(
    rounds=3,
    singles=2_000,
    each_caller=200,
    bulks=3,
    jobs=20_000,
    mutations=10_000,
    pings=100,
    growth_jobs=20_000,
    concurrencies=(100, 1000),
    batches=(100, 1000),
    ticks=50,
    schedules=100_000,
    due_schedules=5_000,
    rows=100_000,
    finished_rows=100_000,
    held_jobs=20_000,
    backlog=100_000,
    memory_jobs=100_000,
    limited_jobs=2_000,
    steps=1_000,
    steps_each=50,
    sleeping=100_000,
)
FULL = Sizes(
    rounds=5,
    singles=5_000,
    each_caller=500,
    bulks=5,
    jobs=50_000,
    mutations=20_000,
    pings=300,
    growth_jobs=50_000,
    concurrencies=(100, 500, 1000, 2000),
    batches=(100, 500, 1000, 2000),
    ticks=100,
    schedules=1_000_000,
    due_schedules=10_000,
    rows=1_000_000,
    finished_rows=5_000_000,
    held_jobs=100_000,
    backlog=300_000,
    memory_jobs=1_000_000,
    limited_jobs=5_000,
    steps=1_000,
    steps_each=100,
    sleeping=100_000,
)


# Enqueue -----------------------------------------------------------------------------------------


def enqueue_trials(store: str, fresh: Fresh, sizes: Sizes) -> Iterator[list[Trial]]:
    def raw(count: int, group: int) -> Callable[[], float]:
        return lambda: _raw_insert(fresh, count, group)

    def duly(measure: Callable[[Measured], float]) -> Callable[[], float]:
        return lambda: _with_app(fresh, measure)

    crowd, bulk = CALLERS * sizes.each_caller, BULK * sizes.bulks
    row = SINGLE
    yield [
        one(Figure(store, row, RAW, "1 in a transaction"), raw(sizes.singles, 1)),
        one(
            Figure(store, row, DULY, "app.run", default=True),
            duly(lambda measured: product.enqueue_singly(measured, sizes.singles)),
        ),
    ]
    row = CROWD
    yield [
        one(Figure(store, row, RAW, f"{CALLERS} in a transaction"), raw(crowd, CALLERS)),
        one(
            Figure(store, row, DULY, "app.run, a thread each", default=True),
            duly(lambda measured: product.enqueue_at_once(measured, CALLERS, sizes.each_caller)),
        ),
        one(
            Figure(store, row, DULY, "app.aio.run"),
            duly(lambda measured: product.enqueue_awaited(measured, CALLERS, sizes.each_caller)),
        ),
    ]
    row = IN_BULK
    yield [
        one(Figure(store, row, RAW, f"{BULK:,} in a transaction"), raw(bulk, BULK)),
        one(
            Figure(store, row, DULY, f"app.run_many of {BULK:,}", default=True),
            duly(lambda measured: product.enqueue_in_bulk(measured, BULK, sizes.bulks)),
        ),
    ]


def _with_app(fresh: Fresh, measure: Callable[[Measured], float]) -> float:
    with fresh() as database, database.app() as measured:
        # The first call connects and checks the schema.
        measured.app.run(measured.async_noop, 0)
        return measure(measured)


def _raw_insert(fresh: Fresh, count: int, group: int) -> float:
    with fresh() as database, bare(database, "async_noop", count) as (raw, fill):
        return raw.insert_all(fill, group)


# End to end --------------------------------------------------------------------------------------


def end_to_end_trials(store: str, fresh: Fresh, sizes: Sizes) -> Iterator[list[Trial]]:
    for row in END_TO_END:
        raws = [_raw_trial(store, row, fresh, sizes, batch) for batch in sizes.batches]
        dulys = [_duly_trial(store, row, fresh, sizes, c) for c in sizes.concurrencies]
        yield raws + dulys
    # On SQLite mutations share a transaction anyway.
    if store == "PostgreSQL":
        yield [_duly_trial(store, GROUPED, fresh, sizes, c) for c in sizes.concurrencies]


def _count(row: str, sizes: Sizes) -> int:
    return sizes.mutations if row in (MUTATIONS, GROUPED) else sizes.jobs


def _raw_trial(store: str, row: str, fresh: Fresh, sizes: Sizes, batch: int) -> Trial:
    def measure() -> float:
        with fresh() as database:
            return _raw_drain(database, _FUNCTIONS[row], _count(row, sizes), batch)

    return one(Figure(store, row, RAW, f"claims of {batch}"), measure)


def _raw_drain(database: Database, function: str, count: int, batch: int) -> float:
    with bare(database, function, count) as (raw, jobs):
        raw.insert(raw.ready(jobs))
        work = raw.mutate if function == _FUNCTIONS[MUTATIONS] else raw.drain
        return rate(count, lambda: work(batch))


def _duly_trial(store: str, row: str, fresh: Fresh, sizes: Sizes, concurrency: int) -> Trial:
    default = concurrency == DEFAULT_CONCURRENCY
    figure = Figure(store, row, DULY, f"concurrency {concurrency}", default=default)

    def measure() -> float:
        with fresh() as database:
            count = _count(row, sizes)
            run = product.end_to_end(database, _FUNCTIONS[row], count, concurrency)
            figure.cpu.append(run.cpu)
            return run.rate

    return one(figure, measure)


# Latency -----------------------------------------------------------------------------------------


def latency_trials(store: str, fresh: Fresh, sizes: Sizes) -> Iterator[list[Trial]]:
    def figures(row: str, side: str, setting: str) -> list[Figure]:
        rows = (f"{row}, p50", f"{row}, p99")
        return [Figure(store, each, side, setting, "ms", side == DULY) for each in rows]

    def raw() -> Sequence[float]:
        with fresh() as database:
            return product.quantiles(_raw_pickups(database, sizes.pings))

    def duly(pick_up: Callable[[Database, int], list[float]]) -> Sequence[float]:
        with fresh() as database:
            return product.quantiles(pick_up(database, sizes.pings))

    setting = f"concurrency {DEFAULT_CONCURRENCY}"
    yield [
        Trial(figures(PICKUP_RUN, RAW, "one insert, one claim"), raw),
        Trial(figures(PICKUP_RUN, DULY, setting), partial(duly, product.pickup)),
    ]
    yield [Trial(figures(PICKUP_ON, DULY, setting), partial(duly, product.pickup_on))]
    if store == "SQLite":
        yield [Trial(figures(PICKUP_HERE, DULY, setting), partial(duly, product.pickup_here))]


def _raw_pickups(database: Database, samples: int) -> list[float]:
    with bare(database, "ping", samples) as (raw, jobs):
        times: list[float] = []
        for job in jobs:
            time.sleep(random.uniform(0.020, 0.050))
            times.append(raw.pick_up(job))
        return times


@contextmanager
def bare(database: Database, function: str, count: int) -> Iterator[tuple[Raw, list[NewJob]]]:
    """The bare loops, and enough jobs to feed them."""
    with database.app() as measured:
        jobs = new_jobs(measured.app, getattr(measured, function), count)
    with closing(raw_over(database, sorted({*_FUNCTIONS.values(), "ping"}))) as raw:
        yield raw, jobs
