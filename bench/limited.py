"""Measures how fast jobs of one key follow each other, and the effect on other jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

from bench import product
from bench.app import LIMITED_AT_ONCE, new_jobs
from bench.databases import Database, Fresh
from bench.figures import CALM, DULY, Figure, Trial, one
from bench.product import DEFAULT_CONCURRENCY, PATIENCE

ROW = f"no-op actions of one key, {LIMITED_AT_ONCE} at once"
BESIDE = "pickup next to a busy key, p50"


def limited_trials(store: str, fresh: Fresh, jobs: int, pings: int) -> Iterator[list[Trial]]:
    setting = f"concurrency {DEFAULT_CONCURRENCY}"
    yield [one(Figure(store, ROW, DULY, setting, default=True), lambda: _rate(fresh, jobs))]
    yield [
        one(
            Figure(store, BESIDE, side, setting, "ms", side == DULY),
            partial(_beside, fresh, pings, 10 * jobs if side == DULY else 0),
        )
        for side in (CALM, DULY)
    ]


def _rate(fresh: Fresh, jobs: int) -> float:
    with fresh() as database:
        return product.end_to_end(database, "limited_noop", jobs).rate


def _beside(fresh: Fresh, pings: int, backlog: int) -> float:
    """Unlimited jobs of the same worker, while those of the key follow each other."""
    with fresh() as database, database.app() as measured:
        if backlog:
            measured.app.store.enqueue(new_jobs(measured.app, measured.limited_noop, backlog))
        return product.quantiles(_pickup_in_backlog(database, pings))[0]


def _pickup_in_backlog(database: Database, pings: int) -> list[float]:
    with database.app() as measured, product.worker(database) as running:
        for _ in range(1 + pings):
            time.sleep(random.uniform(0.020, 0.050))
            measured.app.run(measured.ping, time.monotonic_ns())
        running.marks.wait_for_pings(1 + pings, PATIENCE)
        return running.marks.pings()[1:]
