"""Test for a chosen time what duly survives, and print the results: `make torture`.

    make torture                                      ten minutes
    make torture TORTURE=1h REPORT=docs/guarantees.md an hour; the table goes into that page
    make torture ARGS="--only load,points --store sqlite --seed 7"

Exit code 1 if any promise was broken. docs/how-to/torture.md says how to read the table.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import describe
from tests.loopback import sitecustomize as loopback
from tests.postgres import DEFAULT_VERSION
from torture.measures import (
    disk,
    existing,
    fuzzed,
    glitches,
    hardship,
    levels,
    lines,
    load,
    points,
    requests,
    simulated,
    strained,
    upgrade,
    workflows,
)
from torture.measures.base import STORES, Measure, Share, say
from torture.table import (
    SO_FAR,
    Row,
    Written,
    around_table,
    as_markdown,
    described,
    failure,
    read_report,
    write_report,
)

UNITS = {"s": 1, "m": 60, "h": 3_600}
# Shares of the total time; measures that are limited by their work need no more than this. Faults
# under load get the most: closer together they would leave no time to work.
MEASURES: dict[str, tuple[float, Measure]] = {
    "load": (0.4, load.run),
    "workflows": (0.03, workflows.run),
    "points": (0.2, points.run),
    "glitches": (0.03, glitches.run),
    "simulated": (0.08, simulated.run),
    "mutants": (0.04, simulated.run_mutants),
    "hardship": (0.03, hardship.run),
    "disk": (0.01, disk.run),
    "levels": (0.03, levels.run),
    "strained": (0.02, strained.run),
    "lines": (0.02, lines.run),
    "upgrade": (0.01, upgrade.run),
    "existing": (0.04, existing.run),
    "requests": (0.03, requests.run),
    "fuzzed": (0.03, fuzzed.run),
}
FACTS = ("date", "cpu", "memory", "system", "python", "sqlite")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    report = Report(given)
    owed = [name for name in MEASURES if name in given.only]
    try:
        while owed:
            for row in measure(owed[0], given):
                report.add(row)
            del owed[0]
    except (KeyboardInterrupt, SystemExit):
        for name in owed:
            report.add(failure(name, "not measured", "interrupted"))
    report.write()
    print(as_markdown(report.rows))
    return 0 if all(row.kept for row in report.whole.rows) else 1


class Report:
    """The rows so far.

    Each is written to the page immediately, because a run may be interrupted.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self.rows: list[Row] = []
        self._page: Path | None = given.report
        self._given = given
        self._facts = {name: value for name, value in describe().items() if name in FACTS}
        self._began = time.monotonic()
        if self._page:
            # After an hour it would be too late to report that there is none.
            around_table(self._page)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        if not row.kept:
            say(" | ".join(row.cells))
        self.write(SO_FAR)

    @property
    def whole(self) -> Written:
        """Including the page's rows of other measures, if this run continues that page."""
        if not self._given.go_on:
            return Written([], self.rows)
        page = read_report(self._given.report).without_failures_of(self._given.only)
        others = [about for about in page.about if not about.endswith(self._mark)]
        return Written(others, [*page.without(self.rows).rows, *self.rows])

    def write(self, so_far: str = "") -> None:
        if self._page:
            whole = self.whole
            about = [*whole.about, self._about(so_far)]
            write_report(self._page, whole._replace(about=about))

    def _about(self, so_far: str) -> str:
        took = f"{(time.monotonic() - self._began) / 60:.0f} minutes{so_far}"
        return described(self._facts | {"postgresql": DEFAULT_VERSION, "took": took}) + self._mark

    @property
    def _mark(self) -> str:
        """Identifies this run among the others on its page."""
        only = f"; only: {', '.join(self._given.only)}" if self._given.go_on else ""
        return f"; seed: {self._given.seed}{only}."


def measure(name: str, given: argparse.Namespace) -> Iterator[Row]:
    """Run one measure, for its share of the time. If it crashes, that is a finding too."""
    weight, run = MEASURES[name]
    shared = MEASURES if given.go_on else given.only
    seconds = given.time * weight / sum(MEASURES[each][0] for each in shared)
    print(f"{name}: {seconds:.0f} s", flush=True, file=sys.stderr)
    try:
        yield from run(Share(seconds, given.time, given.store, given.seed, given.in_full))
    except Exception as error:
        traceback.print_exc()
        yield failure(name, "broke down", type(error).__name__)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture", description="Test what duly survives.")
    parser.add_argument(
        "time", type=seconds_of, nargs="?", default="10m", help="Total time, such as 10m, 1h or 8h."
    )
    parser.add_argument(
        "--only",
        type=_names,
        default=tuple(MEASURES),
        help=f"Only these measures: {','.join(MEASURES)}.",
    )
    parser.add_argument("--store", choices=STORES, action="append", help="Only this store.")
    parser.add_argument(
        "--in-full", action="store_true", help="Run all cases, even if it takes longer."
    )
    parser.add_argument("--seed", type=int, help="Random seed (default: a new one each time).")
    parser.add_argument("--report", type=Path, help="Write the table into this page.")
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="Keep the page's other rows: run the --only measures as parts of one long run.",
    )
    given = parser.parse_args(arguments)
    if given.go_on and not given.report:
        parser.error("--go-on requires --report: the page that has the other rows")
    given.store = tuple(given.store or STORES)
    if given.seed is None:
        given.seed = int(datetime.now(UTC).timestamp()) % 1_000_000 * 1_000
    return given


def seconds_of(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"a time is like 90s, 10m or 1h, not {text!r}")
    return float(found[1]) * UNITS[found[2]]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such measure: {', '.join(unknown)}")
    return names


if __name__ == "__main__":
    # So that all child processes end together with this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(loopback.run(main))
