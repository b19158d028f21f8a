"""`python -m tests.simulator.record`: find a seed that convicts each mutant, and write it down.

Run this once after a change to what a seed means (a new step, another weight, one more draw): it
tries the seed that is recorded, then the others in their order, and rewrites the `seed=` where the
mutant is defined, whose test would otherwise have to search. With words as arguments, only the
mutants whose names contain one of them.
"""

# ruff: noqa: T201
from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.simulator.clock_mutants import CLOCK_MUTANTS
from tests.simulator.mutants import MUTANTS, Mutant
from tests.simulator.tick_mutants import TICK_MUTANTS
from tests.simulator.workflow_mutants import WORKFLOW_MUTANTS


def main(words: Sequence[str]) -> int:
    survivors = 0
    for mutant in MUTANTS + TICK_MUTANTS + CLOCK_MUTANTS + WORKFLOW_MUTANTS:
        if words and not any(word in mutant.name for word in words):
            continue
        verdict = mutant.convict()
        end = f"{verdict.where}, {verdict.violation.invariant}" if verdict else "SURVIVES"
        print(f"{mutant.name}: {end}", flush=True)
        survivors += verdict is None
        if verdict is not None and verdict.where not in ("probe", f"seed {mutant.seed}"):
            write_down(mutant, int(verdict.where.removeprefix("seed ")))
    return survivors


def write_down(mutant: Mutant, seed: int) -> None:
    source = Path(mutant.plant.__code__.co_filename)
    text = source.read_text()
    found = re.search(rf'@mutant\("{re.escape(mutant.name)}"(, seed=\d+)?\)', text)
    assert found is not None, f"{mutant.name} is not in {source.name}"
    hint = f", seed={seed}" if seed else ""
    line = f'@mutant("{mutant.name}"{hint})'
    source.write_text(text[: found.start()] + line + text[found.end() :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
