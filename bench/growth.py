"""Measures whether a grown store slows down the jobs that are due.

The same end-to-end measurement on an empty database and on one with a million jobs that cannot
start, or have finished, alternately.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.cases import Sizes
from bench.databases import Database, Fresh, now_ms
from bench.figures import say
from bench.product import PATIENCE, Run, end_to_end, worker
from duly.model.job import Hold

HOUR_MS = 3_600_000
JANITOR_PATIENCE = 600.0


@dataclass
class Growth:
    """The rates of an empty and of a loaded store, measured alternately."""

    store: str
    ballast: str
    rows: int
    note: str = ""
    just_loaded: float | None = None
    empty: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    empty_cpu: list[float] = field(default_factory=list)
    loaded_cpu: list[float] = field(default_factory=list)

    def take_empty(self, run: Run) -> None:
        self.empty.append(run.rate)
        self.empty_cpu.append(run.cpu)

    def take_loaded(self, run: Run) -> None:
        self.loaded.append(run.rate)
        self.loaded_cpu.append(run.cpu)

    @property
    def ratio(self) -> float:
        """Each loaded round compared with the empty ones just before and after it; their median."""
        around = zip(self.empty, self.empty[1:], strict=False)
        pairs = zip(self.loaded, around, strict=True)
        return statistics.median(rate / statistics.mean(empty) for rate, empty in pairs)


def load_finished(database: Database, rows: int) -> str:
    database.load_finished(rows, now_ms())
    return "all of today"


def load_future(database: Database, rows: int) -> str:
    database.load_jobs(rows, run_at=str(now_ms() + 24 * HOUR_MS))
    return "due in a day, in the same queue"


def load_paused(database: Database, rows: int) -> str:
    with database.app() as measured:
        measured.app.queues.pause("paused")
    database.load_jobs(rows, queue="'paused'", run_at=str(now_ms() - HOUR_MS))
    return "due for an hour"


def load_unknown(database: Database, rows: int) -> str:
    database.load_jobs(rows, function="'unknown'", run_at=str(now_ms() - HOUR_MS))
    waited = one_job(database)
    began = time.monotonic()
    with database.app() as measured:
        store = measured.app.ready()
        while held := store.hold_unknown(now_ms()):
            if time.monotonic() - began > JANITOR_PATIENCE:
                raise TimeoutError(f"the janitor holds {held} at a time and does not finish")
    took = time.monotonic() - began
    return f"held by the janitor in {took:.1f} s; a job next to them took {waited:.2f} s before"


def one_job(database: Database) -> float:
    """How many seconds a worker that was just started takes for one job."""
    with database.app() as measured, worker(database) as running:
        began = time.monotonic()
        measured.app.run(measured.async_noop, 1)
        running.marks.wait_for(1, PATIENCE)
        return time.monotonic() - began


def load_key(database: Database, rows: int) -> str:
    database.load_jobs(rows, hold=f"'{Hold.KEY}'", run_at=str(now_ms() - HOUR_MS))
    return "hold set by hand, without the rows of a limit"


BALLASTS: dict[str, Callable[[Database, int], str]] = {
    "finished jobs in history": load_finished,
    "future jobs": load_future,
    "due jobs in a paused queue": load_paused,
    "due jobs of an unknown function": load_unknown,
    "due jobs behind one held key": load_key,
}


def measure_growth(store: str, fresh: Fresh, sizes: Sizes, rounds: int) -> list[Growth]:
    found: list[Growth] = []
    for ballast, load in BALLASTS.items():
        rows = sizes.finished_rows if load is load_finished else sizes.rows
        found.append(_measure(Growth(store, ballast, rows), fresh, sizes.growth_jobs, rounds))
    return found


def _measure(growth: Growth, fresh: Fresh, jobs: int, rounds: int) -> Growth:
    with fresh() as empty, fresh() as loaded:
        say(f"{growth.store}: loading {growth.rows:,} {growth.ballast}")
        growth.note = BALLASTS[growth.ballast](loaded, growth.rows)
        if loaded.dialect == "postgres":
            growth.just_loaded = _run(loaded, "just loaded", jobs).rate
        loaded.tidy()
        empty.tidy()
        for _ in range(rounds):
            growth.take_empty(_run(empty, "empty", jobs))
            growth.take_loaded(_run(loaded, f"{growth.rows:,} {growth.ballast}", jobs))
        growth.take_empty(_run(empty, "empty", jobs))
    return growth


def _run(database: Database, what: str, jobs: int) -> Run:
    run = end_to_end(database, "async_noop", jobs)
    say(f"{database.store}, end to end, {what}: {run.rate:,.0f} jobs/s, {run.cpu:.0f} µs of CPU")
    return run
