"""`python -m tests.simulator --seed 123 --verbose`, `--seeds 0-999`, `--workflows`, `--mutants`."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulator.clock_mutants import CLOCK_MUTANTS
from tests.simulator.glitches import simulate_glitches
from tests.simulator.mutants import MUTANTS
from tests.simulator.tick_mutants import TICK_MUTANTS
from tests.simulator.timetables import simulate_schedules
from tests.simulator.workflow_mutants import WORKFLOW_MUTANTS
from tests.simulator.workflows import simulate_workflows
from tests.simulator.world import STEPS, simulate


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0-199", help="a range, first-last")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each seed")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--schedules", action="store_true", help="worlds with schedules")
    kinds.add_argument("--glitches", action="store_true", help="worlds with wrong clocks")
    kinds.add_argument("--workflows", action="store_true", help="worlds with workflows")
    parser.add_argument("--mutants", action="store_true", help="who convicts which mutant")
    parser.add_argument("--verbose", action="store_true", help="print every step")
    options = parser.parse_args(arguments)
    if options.mutants:
        return show_mutants()
    first, last = map(int, options.seeds.split("-"))
    seeds = range(first, last + 1) if options.seed is None else [options.seed]
    play = simulate_glitches if options.glitches else simulate
    play = simulate_schedules if options.schedules else play
    play = simulate_workflows if options.workflows else play
    world = " --glitches" * options.glitches + " --schedules" * options.schedules
    world += " --workflows" * options.workflows
    began = time.monotonic()
    for seed in seeds:
        report = play(seed, options.steps)
        if options.verbose:
            print("\n".join(report.trace))
        if report.violation:
            print(report)
            words = f"--seed {seed} --steps {options.steps}{world}"
            print(f"replay: python -m tests.simulator {words}")
            return 1
    seconds = time.monotonic() - began
    print(f"{len(seeds)} seeds of {options.steps} steps in {seconds:.1f} s, nothing wrong")
    return 0


def show_mutants() -> int:
    survivors = 0
    for mutant in MUTANTS + TICK_MUTANTS + CLOCK_MUTANTS + WORKFLOW_MUTANTS:
        verdict = mutant.convict()
        survivors += verdict is None
        words = f"{verdict.where}, {verdict.violation.invariant}" if verdict else "SURVIVES"
        print(f"{mutant.name}: {words}")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
