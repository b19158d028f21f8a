"""Counts what a process does, and adds the counts to those in the store.

Counting only changes numbers in memory. They are added to those of the other processes about once a
second, in one statement, and when the process stops. A process that is killed loses its latest
counts.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

import msgspec

from duly.clock import Clock
from duly.errors import StoreError
from duly.model.measure import (
    BOUND_LABELS,
    BOUNDS,
    DURATION,
    DURATION_SUM,
    LABELS,
    TICKS,
    Count,
)
from duly.runtime.loop import Loop
from duly.store.schedules.tick import TickPass
from duly.store.table import Store

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
MAX_NAMES = 1_000
OTHER_NAME = "other"
"""Stands for all functions after the first thousand."""

Key = tuple[str, tuple[str, ...]]


class Counts:
    """The counts of this process since they were last stored."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start again at zero: in a forked child, earlier counts are the parent's to store."""
        self._guard = threading.Lock()
        self._flushing = threading.Lock()
        self._counted: Counter[Key] = Counter()
        self._names: set[str] = set()

    def add(self, name: str, *labels: str, value: int = 1) -> None:
        with self._guard:
            self._counted[name, labels] += value

    def known(self, name: str) -> str:
        """The name as a label. The number of labels is limited."""
        if name in self._names:
            return name
        if len(self._names) >= MAX_NAMES:
            return OTHER_NAME
        self._names.add(name)
        return name

    def ran(self, function: str, outcome: str, seconds: float, times: int = 1) -> None:
        """Count an attempt that ended this many seconds after it was claimed."""
        bucket = BOUND_LABELS[bisect_left(BOUNDS, seconds)]
        with self._guard:
            function = self.known(function)
            self._counted[DURATION, (function, outcome, bucket)] += times
            self._counted[DURATION_SUM, (function, outcome)] += round(seconds * 1000) * times

    def ticked(self, ticked: TickPass) -> None:
        """Count a page of decided schedules."""
        found = {("dispatched", ""): ticked.dispatched, ("missed", ""): ticked.missed}
        found |= {("skipped", reason): count for reason, count in ticked.skips.items()}
        with self._guard:
            for labels, count in found.items():
                if count:
                    self._counted[TICKS, labels] += count

    def flush(self, store: Store) -> None:
        """Add the counts to those in the store. If that fails, they are kept for the next time."""
        # One at a time: after a flush, the store must contain everything counted before it.
        with self._flushing:
            with self._guard:
                counted, self._counted = self._counted, Counter()
            if not counted:
                return
            try:
                store.add_counts(as_counts(counted))
            except BaseException:
                with self._guard:
                    self._counted.update(counted)
                raise


def as_counts(counted: Mapping[Key, int]) -> list[Count]:
    return [
        Count(name, _labels(name, values), value)
        for (name, values), value in sorted(counted.items())
    ]


def _labels(name: str, values: tuple[str, ...]) -> str:
    return msgspec.json.encode(dict(zip(LABELS[name], values, strict=True))).decode()


class CountsLoop:
    """Flushes the counts about once a second, until it is stopped."""

    def __init__(self, counts: Counts, store: Store, clock: Clock) -> None:
        self._counts = counts
        self._store = store
        self.loop = Loop("counts", self.one_pass, clock)

    def one_pass(self) -> float:
        try:
            self._counts.flush(self._store)
        except StoreError as error:
            log.debug("counters cannot be stored now: %s", error)
        return FLUSH_SECONDS

    def stop(self) -> None:
        """Flush the last counts."""
        self.loop.stop()
        self.loop.join(5)
        try:
            self._counts.flush(self._store)
        except StoreError as error:
            log.warning("the latest counters are lost: %s", error)
