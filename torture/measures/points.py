"""Every fault point × {kill, error, answer lost, pause beyond the lease} × both stores."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.postgres import fresh_database, temporary_postgres
from torture.load.audit import Verdict, evidence
from torture.load.fleet import Fleet
from torture.load.points import Cell, cells, try_all
from torture.load.scene import scratch_folder
from torture.load.terms import MODES
from torture.load.ticks import Count, count_slots
from torture.measures.base import NAMES, Share, say
from torture.table import Row

SCHEDULES = 5
MOST_PASSES = 4
# Roughly how long one of them takes: most run in parallel.
SECONDS = {
    "sqlite": {"kill": 2.0, "error": 3.0, "lost": 3.0, "pause": 16.0},
    "postgres": {"kill": 3.0, "error": 4.0, "lost": 4.0, "pause": 8.0},
}


class Tried(NamedTuple):
    """The result of some faults on one database."""

    missing: list[Cell]
    verdict: Verdict
    ticks: Count
    evidence: list[str]

    @property
    def is_clean(self) -> bool:
        return not self.missing and self.verdict.is_clean and self.ticks.is_clean


def run(share: Share) -> Iterator[Row]:
    """As many as there is time for, others each time; in an hour all of them."""
    # In parallel: most of the time is spent waiting for stopped processes.
    with ThreadPoolExecutor() as pool:
        yield from pool.map(lambda store: try_some(store, share), share.stores)


def try_some(store: str, share: Share) -> Row:
    chosen = choose(store, share.seconds, share.seed)
    tried = try_on(store, chosen, share.seed)
    if not tried.is_clean:
        say(f"{store}: {tried.verdict}; {tried.ticks}", *tried.evidence)
        say(*(f"never happened: {cell}" for cell in tried.missing))
        say(share.replay("points", store, share.seconds))
    words = f"{NAMES[store]}: fault points × {', '.join(MODES)}"
    broken = "0" if tried.is_clean else f"{tried.verdict}"
    return Row(words, f"{len(chosen)} of {len(cells())}", broken, "0", tried.is_clean)


def choose(store: str, seconds: float, seed: int) -> list[Cell]:
    """A random selection, with the same kinds of fault next to one another."""
    every = cells()
    random.Random(seed).shuffle(every)
    until = itertools.accumulate(SECONDS[store][cell.mode] for cell in every)
    chosen = [cell for cell, end in zip(every, until, strict=True) if end <= seconds]
    return sorted(chosen, key=lambda cell: MODES.index(cell.mode))


def try_on(store: str, wanted: Sequence[Cell], seed: int) -> Tried:
    """Run all of them on a new database of a store, and check the result."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        url = stack.enter_context(database(store, folder))
        return try_there(url, folder, wanted, seed)


def try_there(url: str, folder: Path, wanted: Sequence[Cell], seed: int) -> Tried:
    chance = random.Random(seed)
    fleet = Fleet(url, folder, schedules=SCHEDULES)
    try:
        fleet.worker_process()
        fleet.enqueuer()
        nths = iter(lambda: chance.randint(1, MOST_PASSES), 0)
        missing = try_all(fleet, wanted, nths)
        fleet.drain()
        verdict = fleet.verdict()
        shown = list(evidence(fleet.db, fleet.trace, verdict))
        return Tried(missing, verdict, count_slots(fleet.db), shown)
    finally:
        fleet.close()


@contextmanager
def database(store: str, folder: Path) -> Iterator[str]:
    if store == "sqlite":
        yield f"sqlite:///{folder}/duly.db"
    else:
        with temporary_postgres() as server, fresh_database(server) as url:
            yield url
