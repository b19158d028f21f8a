"""Simulated histories from fresh seeds, and every guard of the protocol removed in turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tests.simulator.clock_mutants import CLOCK_MUTANTS
from tests.simulator.glitches import simulate_glitches
from tests.simulator.mutants import MUTANTS, Mutant
from tests.simulator.tick_mutants import TICK_MUTANTS
from tests.simulator.timetables import simulate_schedules
from tests.simulator.workflow_mutants import WORKFLOW_MUTANTS
from tests.simulator.workflows import simulate_workflows
from tests.simulator.world import Report, simulate
from torture.measures.base import Share, say, side_by_side
from torture.table import Row, none_of

HOURLY = 30_000
CHUNK = 10
# By the option that replays one.
WORLDS: dict[str, Callable[[int], Report]] = {
    "": simulate,
    " --schedules": simulate_schedules,
    " --glitches": simulate_glitches,
    " --workflows": simulate_workflows,
}
EVERY = {
    mutant.name: mutant for mutant in MUTANTS + TICK_MUTANTS + CLOCK_MUTANTS + WORKFLOW_MUTANTS
}
MOST_FRESH = 150


class Played(NamedTuple):
    seeds: int
    jobs: int
    violations: list[str]


def play(first: int, count: int, world: str) -> Played:
    """Play this many seeds; a violation includes how to replay it."""
    jobs, violations = 0, list[str]()
    for seed in range(first, first + count):
        report = WORLDS[world](seed)
        jobs += report.jobs
        if report.violation:
            violations.append(f"{report}\nreplay: python -m tests.simulator --seed {seed}{world}")
    return Played(count, jobs, violations)


def run(share: Share) -> Iterator[Row]:
    """A quarter of the seeds have schedules in their worlds, others wrong clocks or workflows."""
    seeds, jobs, violations = 0, 0, 0
    try:
        for played in side_by_side(play, _chunks(share)):
            seeds, jobs = seeds + played.seeds, jobs + played.jobs
            violations += len(played.violations)
            say(*played.violations)
    finally:
        # Even if the run is interrupted.
        words = (
            "simulated histories of jobs, retries, cancels, time limits, schedules, keys, batches,"
            " wrong clocks, workflows"
        )
        yield none_of(words, f"{seeds:,} seeds, {jobs:,} jobs", violations)


def _chunks(share: Share) -> Iterator[tuple[int, int, str]]:
    """The seeds to play next, while there is time or something owed."""
    over_at = share.over_at
    owed = share.scaled(HOURLY) * share.in_full
    for done, world in zip(itertools.count(0, CHUNK), itertools.cycle(WORLDS), strict=False):
        if done >= owed and time.monotonic() >= over_at:
            return
        yield share.seed + done, CHUNK, world


def run_mutants(share: Share) -> Iterator[Row]:
    """Try fresh seeds while there is time, then those that are known to detect the mutant."""
    over_at = time.monotonic() + share.limit
    tried = side_by_side(convict, ((name, share.seed, over_at) for name in EVERY))
    found = dict(tried)
    survivors = [name for name, by in found.items() if by is None]
    fresh = sum(by == "fresh" for by in found.values())
    say(*(f"not detected: {name}" for name in survivors))
    words = f"{len(EVERY)} mutants, {fresh} by fresh seeds or a probe"
    yield none_of("removed protocol guards that went undetected", words, len(survivors))


def convict(name: str, seed: int, over_at: float) -> tuple[str, str | None]:
    """The mutant's name, and how it was detected, if it was."""
    mutant: Mutant = EVERY[name]
    if mutant.convict(_until(over_at, range(seed, seed + MOST_FRESH))) is not None:
        return name, "fresh"
    return name, "known" if mutant.convict() is not None else None


def _until(over_at: float, seeds: Iterable[int]) -> Iterator[int]:
    return itertools.takewhile(lambda _: time.monotonic() < over_at, seeds)
