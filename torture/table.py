"""The rows that measures come to, as a table for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HEAD = ("measure", "tried", "found", "bound", "")
BEGIN = "<!-- torture: made by `make torture`, do not edit -->"
END = "<!-- end of torture -->"


class Row(NamedTuple):
    """What one measure has tried and found, and whether that is within its bound."""

    measure: str
    tried: str
    found: str
    bound: str
    kept: bool

    @property
    def cells(self) -> tuple[str, ...]:
        return (*self[:4], "ok" if self.kept else "**VIOLATED**")


def none_of(measure: str, tried: str, violations: int) -> Row:
    """A promise that allows no exception."""
    return Row(measure, tried, f"{violations:,}", "0", violations == 0)


def at_most(measure: str, tried: str, value: float, bound: float, unit: str) -> Row:
    shown = f"{value:.1f}{unit}"
    return Row(measure, tried, shown, f"≤ {bound:g}{unit}", value <= bound)


def at_least(measure: str, tried: str, value: float, bound: float, unit: str) -> Row:
    shown = f"{value:.0f}{unit}"
    return Row(measure, tried, shown, f"≥ {bound:g}{unit}", value >= bound)


def as_markdown(rows: Sequence[Row]) -> str:
    lines = [HEAD, *(row.cells for row in rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(HEAD))]
    ruled = [HEAD, tuple("-" * width for width in widths), *lines[1:]]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in ruled
    )


def write_report(path: Path, rows: Sequence[Row], facts: Mapping[str, str]) -> None:
    """Put the table where the last one stood."""
    before, after = around_table(path)
    about = "; ".join(f"{name}: {value}" for name, value in facts.items())
    text = f"{before}{BEGIN}\n\n{about}.\n\n{as_markdown(rows)}\n\n{END}{after}"
    path.write_text(text, encoding="utf-8")


def around_table(path: Path) -> tuple[str, str]:
    """What stands before and after the place of the table."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no place for the table: {BEGIN} … {END}")
    return before, after
