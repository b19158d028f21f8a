"""What a measure is given, and how it says what it sees while it goes on."""

# ruff: noqa: T201
from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torture.table import Row

HOUR = 3_600.0
STORES = ("sqlite", "postgres")
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


class Share(NamedTuple):
    """How long a measure may take of a run of how long, where, and from which seed."""

    seconds: float
    whole: float
    stores: tuple[str, ...]
    seed: int

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
    def over_at(self) -> float:
        return time.monotonic() + self.seconds


Measure = Callable[[Share], Iterator[Row]]


def say(*lines: object) -> None:
    """Tell whoever waits; a violation is shown as soon as it is seen."""
    for line in lines:
        print(f"  {line}", flush=True, file=sys.stderr)


def processes() -> int:
    return max(2, os.cpu_count() or 1)
