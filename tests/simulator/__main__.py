"""`python -m tests.simulator --seed 123 --verbose` or `--seeds 0-999`."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulator.world import STEPS, simulate


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", default="0-199", help="a range, first-last")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each seed")
    parser.add_argument("--verbose", action="store_true", help="print every step")
    options = parser.parse_args(arguments)
    first, last = map(int, options.seeds.split("-"))
    seeds = range(first, last + 1) if options.seed is None else [options.seed]
    began = time.monotonic()
    for seed in seeds:
        report = simulate(seed, options.steps)
        if options.verbose:
            print("\n".join(report.trace))
        if report.violation:
            print(report)
            print(f"replay: python -m tests.simulator --seed {seed} --steps {options.steps}")
            return 1
    seconds = time.monotonic() - began
    print(f"{len(seeds)} seeds of {options.steps} steps in {seconds:.1f} s, nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
