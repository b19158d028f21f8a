"""The results of measures, as a table for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HEAD = ("measure", "tried", "found", "bound", "")
BEGIN = "<!-- torture: made by `make torture`, do not edit -->"
END = "<!-- end of torture -->"
SO_FAR = " so far"


class Row(NamedTuple):
    """What one measure has tried and found, and whether that is within its limit."""

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


class Written(NamedTuple):
    """The contents of a page: a description of each run behind its table, and the table."""

    about: Sequence[str]
    rows: Sequence[Row]

    def without(self, later: Sequence[Row]) -> Written:
        """Without the rows that were measured again since."""
        anew = {row.measure for row in later}
        return self._replace(rows=[row for row in self.rows if row.measure not in anew])

    def without_failures_of(self, names: Collection[str]) -> Written:
        """Without the failures of these measures, which are tried again."""
        rows = [row for row in self.rows if row.measure.partition(": ")[0] not in names]
        return self._replace(rows=rows)


def failure(name: str, what: str, why: str) -> Row:
    """A measure that produced no rows."""
    return Row(f"{name}: {what}", "", why, "", kept=False)


def write_report(path: Path, written: Written) -> None:
    """Write the table in place of the previous one."""
    before, _, after = around_table(path)
    about = "\n\n".join(written.about)
    text = f"{before}{BEGIN}\n\n{about}\n\n{as_markdown(written.rows)}\n\n{END}{after}"
    path.write_text(text, encoding="utf-8")


def read_report(path: Path) -> Written:
    """What an earlier run has written, even if it was killed."""
    _, inside, _ = around_table(path)
    paragraphs = inside.strip().split("\n\n")
    rows = [_read_row(line) for line in paragraphs.pop().splitlines()[2:]]
    return Written([about.replace(SO_FAR, "") for about in paragraphs], rows)


def _read_row(line: str) -> Row:
    measure, tried, found, bound, verdict = (cell.strip() for cell in line.strip("| ").split("|"))
    return Row(measure, tried, found, bound, verdict == "ok")


def described(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in facts.items())


def around_table(path: Path) -> tuple[str, str, str]:
    """The text before the table, the table, and the text after it."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no place for the table: {BEGIN} … {END}")
    return before, inside, after
