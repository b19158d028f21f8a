"""Measures how long one claim takes while something stands in its way.

A worker in this process makes its passes one by one, so that each can be timed: under a transaction
that is held open on PostgreSQL, while the janitor deletes a day of finished jobs, and next to jobs
with arguments of the maximum size. A page of a list with those jobs is timed too.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from bench.app import Measured, make_app, new_jobs
from bench.databases import Database, Fresh, now_ms
from bench.figures import CALM, DULY, Figure, Trial, one
from bench.marks import Marks
from bench.product import DEFAULT_CONCURRENCY, PATIENCE, quantiles
from duly.model.signature import MAX_ARGS_BYTES
from duly.runtime.janitor import Janitor
from duly.runtime.worker import Worker
from duly.store.statements import DAY_MS

HELD = "claim under a held transaction, p99"
RETAINED = "claim while a day is deleted, p99"
LONG = 100
BESIDE_LONG = f"claim next to {LONG} jobs of 8 MiB, p50"
LISTED_LONG = f"page of {LONG} jobs of 8 MiB, p50"
EXPIRED_MS = 8 * DAY_MS
AFTERWARDS = 50
"""The least number of timed claims, even if the day is deleted immediately."""


def claim_trials(store: str, fresh: Fresh, jobs: int, rows: int) -> Iterator[list[Trial]]:
    def pair(row: str, setting: str, measure: Callable[[str], float]) -> list[Trial]:
        return [
            one(Figure(store, row, side, setting, "ms", side == DULY), partial(measure, side))
            for side in (CALM, DULY)
        ]

    if store == "PostgreSQL":
        yield pair(HELD, f"the last tenth of {jobs:,} jobs", lambda s: _held(fresh, jobs, s))
    yield pair(RETAINED, f"{rows:,} rows", lambda s: _retained(fresh, rows, s))
    yield [_long_trial(store, fresh)]


# Under a held transaction ------------------------------------------------------------------------


def _held(fresh: Fresh, jobs: int, side: str) -> float:
    with fresh() as database, closing(database.connect()) as holder, _claims(database) as claims:
        if side == DULY:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM bench_rows")
        claims.enqueue(jobs)
        times = claims.drain()
        return _p99(times[-len(times) // 10 :])


# While a day is forgotten ------------------------------------------------------------------------


def _retained(fresh: Fresh, rows: int, side: str) -> float:
    with fresh() as database, _claims(database) as claims:
        database.load_finished(rows, now_ms() - EXPIRED_MS)
        database.tidy()
        claims.enqueue(DEFAULT_CONCURRENCY)
        claims.drain()
        if side == CALM:
            return _p99(claims.some(lambda made: made < 4 * AFTERWARDS))
        janitor = threading.Thread(target=_forget, args=(claims.measured,))
        janitor.start()
        times = claims.some(lambda made: janitor.is_alive() or made < AFTERWARDS)
        janitor.join()
        return _p99(times)


def _forget(measured: Measured) -> None:
    app = measured.app
    janitor = Janitor(app.ready(), app.clock)
    while janitor.one_pass() == 0:
        pass


# Next to long arguments ---------------------------------------------------------------------------


def _long_trial(store: str, fresh: Fresh) -> Trial:
    figures = [
        Figure(store, row, side, "half of them canceled", "ms", side == DULY)
        for row in (BESIDE_LONG, LISTED_LONG)
        for side in (CALM, DULY)
    ]
    return Trial(figures, partial(_beside_long, fresh))


def _beside_long(fresh: Fresh) -> list[float]:
    """Next to short and long jobs in turn: writing a gigabyte keeps the disk busy for a while."""
    with fresh() as short, fresh() as long, _claims(short) as calm, _claims(long) as beside:
        for claims, size in ((calm, 10), (beside, MAX_ARGS_BYTES)):
            for place in range(LONG):
                claims.enqueue_later(size, canceled=place % 2 == 0)
        short.tidy()
        long.tidy()
        # Jobs that are claimed later would be on the page, too.
        listed = [(calm.page(), beside.page()) for _ in range(AFTERWARDS)]
        claimed = [(calm.one(), beside.one()) for _ in range(4 * AFTERWARDS)]
        pairs = (*zip(*claimed, strict=True), *zip(*listed, strict=True))
        return [quantiles([*times])[0] for times in pairs]


# A worker, pass by pass --------------------------------------------------------------------------


class Claims:
    """A worker in this process that claims on request."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self._worker = Worker(measured.app.core, concurrency=DEFAULT_CONCURRENCY)
        self._worker.register()

    def enqueue(self, count: int) -> None:
        """In pages, a moment apart, as jobs arrive."""
        for first in range(0, count, 1000):
            size = min(1000, count - first)
            jobs = new_jobs(self.measured.app, self.measured.async_noop, size)
            self.measured.app.store.enqueue(jobs)

    def enqueue_later(self, size: int, *, canceled: bool) -> None:
        """One job that is not due, with arguments of this many bytes."""
        app = self.measured.app
        (job,) = new_jobs(app, self.measured.async_noop, 1)
        # Compressible arguments would be short on PostgreSQL.
        args = f'{{"n":"{os.urandom(size // 2 - 4).hex()}"}}'
        later = msgspec.structs.replace(job, run_at=job.run_at + DAY_MS, args=args)
        app.store.enqueue([later])
        if canceled:
            app.store.cancel(job.id, "bench", app.clock.now())

    def page(self) -> float:
        """The milliseconds of a list."""
        began = time.perf_counter()
        assert len(self.measured.app.jobs(limit=LONG)) == LONG
        return (time.perf_counter() - began) * 1000

    def drain(self) -> list[float]:
        """The milliseconds of every claim until no job is due."""
        times: list[float] = []
        while (took := self._claim()) is not None:
            times.append(took)
        return times

    def one(self) -> float:
        """The milliseconds of a claim that finds some jobs."""
        return self.some(lambda made: made < 1)[0]

    def some(self, go_on: Callable[[int], bool]) -> list[float]:
        """The milliseconds of several claims, each of which finds some jobs."""
        times: list[float] = []
        while go_on(len(times)):
            self.enqueue(10)
            times += self.drain()
        return times

    def _claim(self) -> float | None:
        """The milliseconds of one claim; None if it found nothing."""
        worker = self._worker
        worker.heartbeat_succeeded()
        began = time.perf_counter()
        worker.one_pass()
        took = (time.perf_counter() - began) * 1000
        if worker.idle:
            return None
        worker._wait_until_quiet(PATIENCE)
        # SQLite settles ended attempts with the next claim.
        if not worker.store.finishes_with_claim:
            self._settle()
        return took

    def _settle(self) -> None:
        while not self._worker.idle:
            self._worker.finish_pass()

    def close(self) -> None:
        self._worker.stop()


@contextmanager
def _claims(database: Database) -> Iterator[Claims]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        marks = Marks(Path(folder, "marks"))
        measured = make_app(database.url, marks)
        try:
            measured.app.ready()
            with closing(Claims(measured)) as claims:
                yield claims
        finally:
            measured.app.close()
            marks.close()


def _p99(times: list[float]) -> float:
    return quantiles(times)[1]
