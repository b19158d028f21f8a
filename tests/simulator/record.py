"""`python -m tests.simulator.record`: find a seed that convicts each mutant, and write it down.

Whoever changes what a seed means (a new step, another weight, one more draw) runs this once: it
tries the seed that is recorded, then the others in their order, and rewrites the `seed=` of
mutants.py, whose test would otherwise have to search. With words as arguments, only the mutants
whose names contain one of them.
"""

# ruff: noqa: T201
from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.simulator import mutants
from tests.simulator.mutants import MUTANTS, Mutant

SOURCE = Path(mutants.__file__)


def main(words: Sequence[str]) -> int:
    survivors = 0
    for mutant in MUTANTS:
        if words and not any(word in mutant.name for word in words):
            continue
        verdict = mutant.convict()
        end = f"{verdict.where}, {verdict.violation.invariant}" if verdict else "SURVIVES"
        print(f"{mutant.name}: {end}", flush=True)
        survivors += verdict is None
        if verdict is not None and mutant.probe is None:
            write_down(mutant, int(verdict.where.removeprefix("seed ")))
    return survivors


def write_down(mutant: Mutant, seed: int) -> None:
    text = SOURCE.read_text()
    found = re.search(rf'@mutant\("{re.escape(mutant.name)}"(, seed=\d+)?\)', text)
    assert found is not None, f"{mutant.name} is not in {SOURCE.name}"
    hint = f", seed={seed}" if seed else ""
    line = f'@mutant("{mutant.name}"{hint})'
    SOURCE.write_text(text[: found.start()] + line + text[found.end() :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
