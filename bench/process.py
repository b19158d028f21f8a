"""Measures the memory and the start time of a worker process."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

from bench.app import new_jobs
from bench.databases import Fresh
from bench.figures import DULY, Figure, Trial, one
from bench.product import PATIENCE, worker

IDLE = "memory of an idle worker"
GROWN = "memory of a worker, growth"
IMPORT = "import duly"
HELP = "duly --help"
STARTS = 5
PAGE = 10_000

_IMPORT = "import time; t = time.perf_counter(); import duly; print(time.perf_counter() - t)"


def memory_trials(store: str, fresh: Fresh, jobs: int) -> Iterator[list[Trial]]:
    setting = f"over the last {jobs - jobs // 10:,} of {jobs:,} jobs"
    figures = [
        Figure(store, IDLE, DULY, "no job has run", "MB", default=True),
        Figure(store, GROWN, DULY, setting, "MB", default=True),
    ]
    yield [Trial(figures, partial(_memory, fresh, jobs))]


def _memory(fresh: Fresh, jobs: int) -> Sequence[float]:
    """When idle, and how much is added after the first tenth of the jobs has run."""
    with fresh() as database, database.app() as measured, worker(database) as running:
        time.sleep(1)
        idle = running.memory()
        warm = 0.0
        for done in range(PAGE, jobs + 1, PAGE):
            measured.app.store.enqueue(new_jobs(measured.app, measured.async_noop, PAGE))
            measured.app.store.ring()
            running.marks.wait_for(done, PATIENCE)
            if done <= max(PAGE, jobs // 10):
                warm = running.memory()
        database.wait_until_finished()
        return idle, running.memory() - warm


def start_trials() -> Iterator[list[Trial]]:
    """Medians of several starts, with all code compiled."""
    for row, measure in ((IMPORT, _import), (HELP, _help)):
        setting = f"median of {STARTS}"
        yield [one(Figure("any store", row, DULY, setting, "ms", True), measure)]


def _import() -> float:
    command = [sys.executable, "-c", _IMPORT]
    asked = [subprocess.check_output(command, env=_compiling()) for _ in range(STARTS + 1)]
    return statistics.median(map(float, asked[1:])) * 1000


def _help() -> float:
    times: list[float] = []
    for _ in range(STARTS + 1):
        began = time.perf_counter()
        command = [sys.executable, "-m", "duly", "--help"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_compiling())
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times[1:])


def _compiling() -> dict[str, str]:
    """The first start leaves its code compiled, whatever the environment says."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
