"""The figures as tables, as JSON, and compared with the bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from bench.bars import Bar, ratio_of
from bench.figures import CALM, RAW, Figure, limit_of
from bench.growth import Growth

# Text --------------------------------------------------------------------------------------------


HEAD = "store|what|who|setting|median|lowest|highest|of limit|CPU/job".split("|")
GROWTH_HEAD = "store|next to|rows|empty|loaded|of empty|CPU/job|just loaded|note".split("|")


def print_report(figures: Sequence[Figure], growths: Sequence[Growth], kept: list[Bar]) -> None:
    if figures:
        _table(HEAD, [_line(figure, figures) for figure in figures], numbers=4)
    if growths:
        _table(GROWTH_HEAD, [_growth_line(growth) for growth in growths], numbers=2, texts=1)
    for bar in kept:
        print(bar)


def _line(figure: Figure, figures: Sequence[Figure]) -> list[str]:
    who = figure.side
    setting = f"{figure.setting} (default)" if figure.default else figure.setting
    spread = [figure.value, min(figure.samples), max(figure.samples)]
    ratio = None if figure.side in (RAW, CALM) else ratio_of(figure, figures)
    if ratio is None:
        of_raw = "limit" if figure is limit_of(figure, figures) else ""
    else:
        of_raw = f"{ratio:.0%}" if figure.unit.endswith("/s") else f"{ratio:.1f} ×"
    numbers = [_number(value, figure.unit) for value in spread]
    cpu = f"{statistics.median(figure.cpu):.0f} µs" if figure.cpu else ""
    return [figure.store, figure.row, who, setting, *numbers, of_raw, cpu]


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f}/s" if unit.endswith("/s") else f"{value:.2f} {unit}"


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
    """A Markdown table. Columns from `numbers` on are right-aligned, except the last `texts`."""
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
