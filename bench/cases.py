"""Which rows are measured, in which settings, and what each is divided by."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

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
ASYNC = "end to end, async no-op actions"
SYNC = "end to end, sync no-op actions"
MUTATIONS = "end to end, mutations (one row each)"
END_TO_END = (ASYNC, SYNC, MUTATIONS)
_FUNCTIONS = {ASYNC: "async_noop", SYNC: "sync_noop", MUTATIONS: "insert_row"}


@dataclass(frozen=True)
class Sizes:
    """How much is done in one round."""

    singles: int = 5_000
    each_caller: int = 500
    bulks: int = 5
    jobs: int = 50_000
    mutations: int = 20_000
    pings: int = 200
    growth_jobs: int = 50_000
    concurrencies: tuple[int, ...] = (100, 500, 1000, 2000)
    batches: tuple[int, ...] = (100, 500, 1000, 2000)
    ticks: int = 100
    due_schedules: int = 10_000


QUICK = Sizes(200, 5, 1, 2_000, 1_000, 20, 1_000, (100,), (100,), 5, 500)


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
    row = f"enqueue, {CALLERS} callers at once"
    yield [
        one(Figure(store, row, RAW, f"{CALLERS} in a transaction"), raw(crowd, CALLERS)),
        one(
            Figure(store, row, DULY, "app.run", default=True),
            duly(lambda measured: product.enqueue_at_once(measured, CALLERS, sizes.each_caller)),
        ),
    ]
    row = "enqueue in bulk"
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


def _count(row: str, sizes: Sizes) -> int:
    return sizes.mutations if row == MUTATIONS else sizes.jobs


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
    def figures(side: str, setting: str) -> list[Figure]:
        rows = ("pickup by an idle worker, p50", "pickup by an idle worker, p99")
        return [Figure(store, row, side, setting, "ms", side == DULY) for row in rows]

    def raw() -> Sequence[float]:
        with fresh() as database:
            return product.quantiles(_raw_pickups(database, sizes.pings))

    def duly() -> Sequence[float]:
        with fresh() as database:
            return product.quantiles(product.pickup(database, sizes.pings))

    yield [
        Trial(figures(RAW, "one insert, one claim"), raw),
        Trial(figures(DULY, f"concurrency {DEFAULT_CONCURRENCY}"), duly),
    ]


def _raw_pickups(database: Database, samples: int) -> list[float]:
    with bare(database, "ping", samples) as (raw, jobs):
        times: list[float] = []
        for job in jobs:
            time.sleep(random.uniform(0.020, 0.050))
            times.append(raw.pick_up(job))
        return times


@contextmanager
def bare(database: Database, function: str, count: int) -> Iterator[tuple[Raw, list[NewJob]]]:
    """The bare loops, and so many jobs to feed them."""
    with database.app() as measured:
        jobs = new_jobs(measured.app, getattr(measured, function), count)
    with closing(raw_over(database, ["async_noop", "insert_row", "ping", "sync_noop"])) as raw:
        yield raw, jobs
