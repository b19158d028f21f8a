"""What a measure is given, and how it says what it sees while it goes on."""

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
    """How long a measure may take of a run of how long, where, and from which seed."""

    seconds: float
    whole: float
    stores: tuple[str, ...]
    seed: int
    in_full: bool = False
    """Whether what is counted goes on beyond the time, until there is all that is owed."""

    def scaled(self, hourly: int, least: int = 1) -> int:
        """So many as this run owes if a run of an hour owes `hourly`."""
        return max(least, round(hourly * self.whole / HOUR))

    def replay(self, measure: str, store: str, seconds: float | None = None) -> str:
        """How to try the same again: in a run as long as this one, or of so many seconds."""
        return (
            f"replay: python -m torture.run {math.ceil(seconds or self.whole)}s --only {measure}"
            f" --store {store} --seed {self.seed}"
        )

    @property
    def limit(self) -> float:
        """How long to go on at most with what ends when there is enough of it."""
        return math.inf if self.in_full else self.seconds

    def until_enough(self, enough: int) -> Iterator[int]:
        """Count up to what is enough, while there is time."""
        over_at = time.monotonic() + self.limit
        return itertools.takewhile(lambda _: time.monotonic() < over_at, range(enough))

    @property
    def over_at(self) -> float:
        return time.monotonic() + self.seconds


Measure = Callable[[Share], Iterator[Row]]


def say(*lines: object) -> None:
    """Tell whoever waits; a violation is shown as soon as it is seen."""
    for line in lines:
        print(f"  {line}", flush=True, file=sys.stderr)


def processes() -> int:
    return max(2, os.cpu_count() or 1)


def _get_ready() -> None:
    look_less_often()
    # So that whatever was started is ended with this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def side_by_side(work: Callable[[*Ts], T], given: Iterator[tuple[*Ts]]) -> Iterator[T]:
    """What comes of each; none is begun before there is a processor for it."""
    # Whoever works may patch its own process; a forked one would inherit this one's threads.
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
                # This was told to end, and so are they.
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
            yield from (future.result() for future in done)
