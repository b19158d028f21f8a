"""What a measure is given, and how it reports what it sees."""

# ruff: noqa: T201
from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import NamedTuple, TypeVar, TypeVarTuple

from duly.runtime.collector import look_less_often
from torture.table import Row

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
HOUR = 3_600.0
STORES = ("sqlite", "postgres")
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


class Share(NamedTuple):
    """How long a measure may take, in a run of how long, on which stores, and from which seed."""

    seconds: float
    whole: float
    stores: tuple[str, ...]
    seed: int
    in_full: bool = False
    """Whether to continue after the time until everything owed was counted."""

    def scaled(self, hourly: int, least: int = 1) -> int:
        """The number that this run owes if a run of an hour owes `hourly`."""
        return max(least, round(hourly * self.whole / HOUR))

    def replay(self, measure: str, store: str, seconds: float | None = None) -> str:
        """How to try the same again: in a run as long as this one, or of the given length."""
        return (
            f"replay: python -m torture.run {math.ceil(seconds or self.whole)}s --only {measure}"
            f" --store {store} --seed {self.seed}"
        )

    @property
    def limit(self) -> float:
        """The time limit of measures that end once they have counted enough."""
        return math.inf if self.in_full else self.seconds

    def until_enough(self, enough: int) -> Iterator[int]:
        """Count up to `enough`, while there is time."""
        over_at = time.monotonic() + self.limit
        return itertools.takewhile(lambda _: time.monotonic() < over_at, range(enough))

    @property
    def over_at(self) -> float:
        return time.monotonic() + self.seconds


Measure = Callable[[Share], Iterator[Row]]


def say(*lines: object) -> None:
    """Print progress; violations are shown as soon as they are found."""
    for line in lines:
        print(f"  {line}", flush=True, file=sys.stderr)


def processes() -> int:
    return max(2, os.cpu_count() or 1)


def _get_ready() -> None:
    look_less_often()
    # So that all child processes end together with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def side_by_side(work: Callable[[*Ts], T], given: Iterator[tuple[*Ts]]) -> Iterator[T]:
    """The results of parallel work; none starts before there is a processor for it."""
    # Work may patch its own process; a forked one would inherit this one's threads.
    spawned = get_context("spawn")
    with ProcessPoolExecutor(processes(), spawned, initializer=_get_ready) as pool:
        running: set[Future[T]] = set()
        while True:
            room = itertools.islice(given, 2 * processes() - len(running))
            running |= {pool.submit(work, *each) for each in room}
            if not running:
                return
            try:
                done, running = wait(running, return_when=FIRST_COMPLETED)
            except BaseException:
                # This process was told to end, and so are they.
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
            yield from (future.result() for future in done)
