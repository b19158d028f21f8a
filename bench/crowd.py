"""Measures how much other work disturbs a caller.

On SQLite a single caller, and a connection that knows nothing of duly, next to a worker process
that works off a backlog. On both stores, jobs next to others that report progress all the time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from bench.app import INSERT_ROW, UPDATES_PER_SECOND, new_jobs
from bench.databases import Database, Fresh
from bench.figures import CALM, DULY, Figure, Trial, one
from bench.product import DEFAULT_CONCURRENCY, PATIENCE, quantiles, worker
from bench.raw import rate
from duly import Duly

LONE = "single enqueue next to a backlog, p99"
PLAIN = "plain connection next to a backlog, p99"
TALKING = "jobs next to others that report progress"
TALKERS = 100
WATCHERS = 200
PAUSE = 0.010


def crowd_trials(store: str, fresh: Fresh, backlog: int, jobs: int) -> Iterator[list[Trial]]:
    if store == "SQLite":
        yield [_beside_trial(store, fresh, side, backlog) for side in (CALM, DULY)]
    setting = f"{TALKERS * UPDATES_PER_SECOND:,} updates/s, {WATCHERS} watchers"
    yield [
        one(
            Figure(store, TALKING, side, setting, default=side == DULY),
            partial(_beside_talkers, fresh, jobs, side),
        )
        for side in (CALM, DULY)
    ]


# Next to a backlog --------------------------------------------------------------------------------


def _beside_trial(store: str, fresh: Fresh, side: str, backlog: int) -> Trial:
    setting = f"{backlog:,} due jobs" if side == DULY else "an idle worker"
    figures = [Figure(store, row, side, setting, "ms", side == DULY) for row in (LONE, PLAIN)]
    return Trial(figures, partial(_beside_backlog, fresh, backlog, side))


def _beside_backlog(fresh: Fresh, backlog: int, side: str) -> Sequence[float]:
    """p99 of either; a caller that is told the database is busy raises."""
    with (
        fresh() as database,
        database.app() as measured,
        closing(sqlite3.connect(database.url.removeprefix("sqlite:///"))) as plain,
        worker(database) as running,
    ):

        def enqueue() -> None:
            measured.app.run(measured.async_noop, 0)

        def insert() -> None:
            plain.execute(INSERT_ROW, (0,))
            plain.commit()

        enqueue()
        running.marks.wait_for(1, PATIENCE)
        if side == DULY:
            database.load_jobs(backlog)
            running.marks.wait_for(100, PATIENCE)
        until = backlog if side == DULY else 1 << 62
        lone: list[float] = []
        others: list[float] = []
        ends = time.monotonic() + 3
        while running.marks.count < until and (side == DULY or time.monotonic() < ends):
            lone.append(_timed(enqueue))
            others.append(_timed(insert))
        running.marks.wait_for(backlog if side == DULY else 1, PATIENCE)
        return [quantiles(lone)[1], quantiles(others)[1]]


def _timed(work: Callable[[], None]) -> float:
    time.sleep(PAUSE)
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


# Next to reporting jobs ---------------------------------------------------------------------------


def _beside_talkers(fresh: Fresh, jobs: int, side: str) -> float:
    """Jobs per second in the remaining slots.

    For the calm figure the others do not report and are not watched.
    """
    with (
        fresh() as database,
        database.app() as measured,
        worker(database, TALKERS + DEFAULT_CONCURRENCY) as running,
    ):
        app = measured.app
        function = measured.talk if side == DULY else measured.keep_quiet
        ids = [job.id for job in app.run_many(function.bind(jobs) for _ in range(TALKERS))]
        _wait_until_running(database, TALKERS)
        with _watched(app, ids if side == DULY else []):
            rows = new_jobs(app, measured.async_noop, jobs)

            def work() -> None:
                app.store.enqueue(rows)
                app.store.ring()
                running.marks.wait_for(jobs, PATIENCE)

            found = rate(jobs, work)
            database.wait_until_finished()
        return found


def _wait_until_running(database: Database, count: int) -> None:
    until = time.monotonic() + PATIENCE
    while database.run("SELECT count(*) FROM @jobs WHERE state = 'running'")[0][0] < count:
        if time.monotonic() > until:
            raise TimeoutError("the reporting jobs have not started")
        time.sleep(0.01)


@contextmanager
def _watched(app: Duly, job_ids: Sequence[str]) -> Iterator[None]:
    """Watch the jobs with this many watchers until these have ended."""

    async def watch(job_id: str) -> None:
        job = await app.aio.job(job_id)
        async for _ in job.watch():
            pass

    async def watch_all() -> None:
        await asyncio.gather(
            *(watch(job_ids[n % len(job_ids)]) for n in range(WATCHERS if job_ids else 0))
        )

    thread = threading.Thread(target=lambda: asyncio.run(watch_all()))
    thread.start()
    try:
        yield
    finally:
        thread.join()
