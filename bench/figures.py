"""What was measured, and in which order, so that figures can be compared."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

RAW = "raw"
DULY = "duly"
CALM = "calm"
"""duly itself, without the disturbance that the row is about."""


@dataclass
class Figure:
    """One row of the table: one system in one setting, measured in every round."""

    store: str
    row: str
    side: str
    setting: str
    unit: str = "jobs/s"
    default: bool = False
    samples: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Microseconds of the worker's processor time per job, if there is a worker."""

    @property
    def value(self) -> float:
        return statistics.median(self.samples)


@dataclass(frozen=True)
class Trial:
    """How a figure gets its samples; some measurements give several figures at once."""

    figures: Sequence[Figure]
    measure: Callable[[], Sequence[float]]
    optional: bool = False


def one(figure: Figure, measure: Callable[[], float], *, optional: bool = False) -> Trial:
    return Trial([figure], lambda: [measure()], optional)


def interleave(trials: Sequence[Trial], rounds: int) -> list[Figure]:
    """Run every trial once per round, so that a disturbance of the machine affects all of them.

    Every second round runs backwards, so that no trial always comes first.
    """
    for number in range(rounds):
        for trial in trials if number % 2 == 0 else reversed(trials):
            try:
                _take(trial, f"round {number + 1} of {rounds}")
            except Exception as error:
                if not trial.optional:
                    raise
                print(f"skipped: {trial.figures[0].side}, {trial.figures[0].row}: {error}")
    return [figure for trial in trials for figure in trial.figures if figure.samples]


def _take(trial: Trial, which: str) -> None:
    for figure, sample in zip(trial.figures, trial.measure(), strict=True):
        figure.samples.append(sample)
        say(
            f"{figure.store}, {figure.row}, {figure.side}, {figure.setting}, {which}: "
            f"{sample:,.6g} {figure.unit}"
        )


def limit_of(figure: Figure, figures: Sequence[Figure]) -> Figure | None:
    """The best that the bare database, or undisturbed duly, reached for the same row in the run."""
    row = [f for f in figures if (f.store, f.row) == (figure.store, figure.row)]
    limits = [f for f in row if f.side in (RAW, CALM)]
    return best(limits) if limits else None


def best(figures: Sequence[Figure]) -> Figure:
    """The fastest: more jobs per second, or fewer milliseconds."""
    pick = max if figures[0].unit.endswith("/s") else min
    return pick(figures, key=lambda figure: figure.value)


def say(line: str) -> None:
    """Print progress, apart from the results."""
    print(line, file=sys.stderr, flush=True)
