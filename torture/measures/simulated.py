"""Simulated histories from fresh seeds, and every guard of the protocol taken away in turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import NamedTuple

from tests.simulator.mutants import MUTANTS, Mutant
from tests.simulator.tick_mutants import TICK_MUTANTS
from tests.simulator.timetables import ScheduleWorld
from tests.simulator.world import STEPS, World, simulate
from torture.measures.base import Share, processes, say
from torture.table import Row, none_of

CHUNK = 10
WORLDS: dict[bool, type[World]] = {False: World, True: ScheduleWorld}
EVERY = {mutant.name: mutant for mutant in MUTANTS + TICK_MUTANTS}
MOST_FRESH = 150


class Played(NamedTuple):
    seeds: int
    jobs: int
    violations: list[str]


def play(first: int, count: int, with_schedules: bool) -> Played:
    """Play so many seeds; a violation says how to replay it."""
    jobs, violations = 0, list[str]()
    for seed in range(first, first + count):
        report = simulate(seed, STEPS, WORLDS[with_schedules])
        jobs += report.jobs
        if report.violation:
            option = " --schedules" * with_schedules
            violations.append(f"{report}\nreplay: python -m tests.simulator --seed {seed}{option}")
    return Played(count, jobs, violations)


def run(share: Share) -> Iterator[Row]:
    """Half of the seeds have schedules in their worlds."""
    over_at = share.over_at
    firsts = itertools.count(share.seed, CHUNK)
    seeds, jobs, violations = 0, 0, 0
    try:
        with _pool() as pool:
            running: set[Future[Played]] = set()
            while running or time.monotonic() < over_at:
                while time.monotonic() < over_at and len(running) < 2 * processes():
                    first = next(firsts)
                    running.add(pool.submit(play, first, CHUNK, bool(first // CHUNK % 2)))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for played in (future.result() for future in done):
                    seeds, jobs = seeds + played.seeds, jobs + played.jobs
                    violations += len(played.violations)
                    say(*played.violations)
    finally:
        # Also of a run that is interrupted.
        words = (
            "simulated histories of jobs, retries, cancels, time limits, schedules, keys, batches"
        )
        yield none_of(words, f"{seeds:,} seeds, {jobs:,} jobs", violations)


def run_mutants(share: Share) -> Iterator[Row]:
    """By fresh seeds while there is time for it, else by those that are known to convict."""
    over_at = share.over_at
    with _pool() as pool:
        tried = pool.map(convict, EVERY, itertools.repeat(share.seed), itertools.repeat(over_at))
        found = dict(zip(EVERY, tried, strict=True))
    survivors = [name for name, by in found.items() if by is None]
    fresh = sum(by == "fresh" for by in found.values())
    say(*(f"nobody notices {name}" for name in survivors))
    words = f"{len(EVERY)} mutants, {fresh} by fresh seeds or a probe"
    yield none_of("protocol without one of its guards, not convicted", words, len(survivors))


def convict(name: str, seed: int, over_at: float) -> str | None:
    """How a mutant was convicted, if it was."""
    mutant: Mutant = EVERY[name]
    if mutant.convict(_until(over_at, range(seed, seed + MOST_FRESH))) is not None:
        return "fresh"
    return "known" if mutant.convict() is not None else None


def _until(over_at: float, seeds: Iterable[int]) -> Iterator[int]:
    return itertools.takewhile(lambda _: time.monotonic() < over_at, seeds)


def _pool() -> ProcessPoolExecutor:
    # The simulator patches its own process; a forked one would inherit this one's threads.
    return ProcessPoolExecutor(processes(), mp_context=get_context("spawn"))
