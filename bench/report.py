"""The figures as tables, as JSON, and against the bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench import schedules
from bench.cases import END_TO_END
from bench.cron import times_croniter
from bench.figures import DULY, RAW, Figure, best, limit_of
from bench.growth import Growth

LEAST_OF_RAW = 0.25
LEAST_WHEN_GROWN = 0.90
LEAST_OF_CRONITER = 10.0
MOST_MS_EMPTY = 2.0


@dataclass(frozen=True)
class Bar:
    """A promise, and whether this run kept it."""

    promise: str
    least: float
    measured: float

    @property
    def passed(self) -> bool:
        return self.measured >= self.least


def bars(figures: Sequence[Figure], growths: Sequence[Growth]) -> list[Bar]:
    ends = [f for f in figures if f.side == DULY and f.row in END_TO_END]
    groups: dict[tuple[str, str], list[Figure]] = {}
    for figure in ends:
        groups.setdefault((figure.store, figure.row), []).append(figure)
    found = [bar for group in groups.values() for bar in _end_to_end_bars(group, figures)]
    for growth in growths:
        promise = f"{growth.store}, {growth.rows:,} {growth.ballast}: % of the empty store"
        found.append(Bar(promise, LEAST_WHEN_GROWN, growth.ratio))
    found += _schedule_bars(figures)
    if (times := times_croniter(figures)) is not None:
        found.append(Bar("cron, next tick: % of croniter", LEAST_OF_CRONITER, times))
    return found


def _schedule_bars(figures: Sequence[Figure]) -> Iterator[Bar]:
    for figure in figures:
        if figure.side == DULY and figure.row == schedules.ROW:
            ratio = ratio_of(figure, figures)
            assert ratio is not None
            yield Bar(f"{figure.store}, {figure.row}: % of the bare loop", LEAST_OF_RAW, ratio)
        elif figure.row == schedules.EMPTY:
            promise = f"{figure.store}, {figure.row}: {MOST_MS_EMPTY:g} ms as % of a pass"
            yield Bar(promise, 1.0, MOST_MS_EMPTY / figure.value)


def _end_to_end_bars(group: Sequence[Figure], figures: Sequence[Figure]) -> Iterator[Bar]:
    defaults = [figure for figure in group if figure.default]
    for name, figure in [("default", f) for f in defaults] + [("fastest", best(group))]:
        promise = f"{figure.store}, {figure.row}, {name} ({figure.setting}): % of raw"
        ratio = ratio_of(figure, figures)
        if ratio is not None:
            yield Bar(promise, LEAST_OF_RAW, ratio)


def ratio_of(figure: Figure, figures: Sequence[Figure]) -> float | None:
    """What part of the raw limit it reached; for times, how many times the limit it took."""
    limit = limit_of(figure, figures)
    return None if limit is None else figure.value / limit.value


# Text --------------------------------------------------------------------------------------------


HEAD = "store|what|who|setting|median|lowest|highest|of raw|CPU/job".split("|")
GROWTH_HEAD = "store|beside|rows|empty|loaded|of empty|CPU/job|just loaded|note".split("|")


def print_report(figures: Sequence[Figure], growths: Sequence[Growth], kept: list[Bar]) -> None:
    if figures:
        _table(HEAD, [_line(figure, figures) for figure in figures], numbers=4)
    if growths:
        _table(GROWTH_HEAD, [_growth_line(growth) for growth in growths], numbers=2, texts=1)
    for bar in kept:
        verdict = "pass" if bar.passed else "FAIL"
        print(f"{verdict}  {bar.promise}: {bar.measured:.0%}, the bar is {bar.least:.0%}")


def _line(figure: Figure, figures: Sequence[Figure]) -> list[str]:
    who = figure.side
    setting = f"{figure.setting} (default)" if figure.default else figure.setting
    spread = [figure.value, min(figure.samples), max(figure.samples)]
    ratio = None if figure.side == RAW else ratio_of(figure, figures)
    if ratio is None:
        of_raw = "limit" if figure is limit_of(figure, figures) else ""
    else:
        of_raw = f"{ratio:.1f} ×" if figure.unit == "ms" else f"{ratio:.0%}"
    numbers = [_number(value, figure.unit) for value in spread]
    cpu = f"{statistics.median(figure.cpu):.0f} µs" if figure.cpu else ""
    return [figure.store, figure.row, who, setting, *numbers, of_raw, cpu]


def _number(value: float, unit: str) -> str:
    return f"{value:.2f} ms" if unit == "ms" else f"{value:,.0f}/s"


def _growth_line(growth: Growth) -> list[str]:
    just_loaded = "" if growth.just_loaded is None else f"{growth.just_loaded:,.0f}/s"
    cpu = [f"{statistics.median(taken):.0f}" for taken in (growth.empty_cpu, growth.loaded_cpu)]
    return [
        growth.store,
        growth.ballast,
        f"{growth.rows:,}",
        f"{statistics.median(growth.empty):,.0f}/s",
        f"{statistics.median(growth.loaded):,.0f}/s",
        f"{growth.ratio:.0%}",
        f"{cpu[0]} → {cpu[1]} µs",
        just_loaded,
        growth.note,
    ]


def _table(head: Sequence[str], lines: list[list[str]], *, numbers: int, texts: int = 0) -> None:
    """A Markdown table: columns from `numbers` on are right-aligned, but for the last `texts`."""
    widths = [max(len(row[i]) for row in [list(head), *lines]) for i in range(len(head))]
    right = range(numbers, len(head) - texts)
    rules = ["-" * (w - 1) + ":" if i in right else "-" * w for i, w in enumerate(widths)]
    for row in (head, rules, *lines):
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in _numbered(row, widths)]
        print(f"| {' | '.join(cells)} |")
    print()


def _numbered(row: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[int, tuple[str, int]]]:
    return enumerate(zip(row, widths, strict=True))


# JSON --------------------------------------------------------------------------------------------


def as_json(
    machine: dict[str, str], figures: Sequence[Figure], growths: Sequence[Growth], kept: list[Bar]
) -> dict[str, Any]:
    return {
        "machine": machine,
        "figures": [
            asdict(f) | {"median": f.value, "of_raw": ratio_of(f, figures)} for f in figures
        ],
        "growth": [asdict(growth) | {"of_empty": growth.ratio} for growth in growths],
        "bars": [asdict(bar) | {"passed": bar.passed} for bar in kept],
    }
