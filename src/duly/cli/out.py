"""Output of commands: JSON for programs, tables that fit the terminal for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import click

from duly.cli import when
from duly.cli.safe import safe as safe
from duly.cli.safe import safe_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDE = 10_000
"""The width of output that is not a terminal."""
STATES = {
    "pending": "cyan",
    "running": "blue",
    "not started": "cyan",
    "waiting": "cyan",
    "held": "red",
    "retrying": "yellow",
    "timed out": "red",
    "succeeded": "green",
    "failed": "red",
    "canceled": "yellow",
    "dispatched": "green",
    "dispatch": "green",
    "skipped": "yellow",
    "skip": "yellow",
    "missed": "red",
    "ok": "green",
    "paused": "yellow",
    "never_ran": "dim",
    "enabled": "green",
    "disabled": "yellow",
    "parked": "red",
    "orphaned": "red",
    "ended": "dim",
    "active": "green",
    "processed": "green",
    "filtered": "dim",
    "stale": "red",
}
GAP = 2
"""The space between columns."""
ID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ID_SIZES = (13, 18, 23, 36)
"""Ends of the groups of an id, from the one that completes its milliseconds."""
Item = dict[str, Any]
Advance = Callable[[int, int | None, str], None]
"""Progress: how many are done, of how many (None: unknown), and a short text."""


class Column(NamedTuple):
    """A field of the items (None: the item itself), and how to show it.

    On a narrow terminal a `flexible` column is truncated down to `least` characters, and `ids` are
    shortened to unique prefixes.
    """

    title: str
    field: str | None
    show: Callable[[Any], Any] = str
    right: bool = False
    flexible: bool = False
    least: int = 8
    ids: bool = False

    def of(self, item: Item) -> Any:
        value = item if self.field is None else item[self.field]
        return None if value is None else self.show(value)


class Fitted(NamedTuple):
    """A table that fits the terminal: some of its columns, their widths, and the cells."""

    columns: Sequence[Column]
    widths: Sequence[int]
    rows: Sequence[Sequence[Text]]


class Out:
    """Results on standard output, and notes on standard error."""

    def __init__(self, *, as_json: bool, tz: str | None) -> None:
        self.as_json = as_json
        self.given_tz = tz

    # For programs --------------------------------------------------------------------------------

    def data(self, value: Any) -> None:
        """A value as JSON."""
        click.echo(safe_json(value, indent=2))

    def line(self, value: Any) -> None:
        """One of several values, as a line of JSON."""
        click.echo(safe_json(value))

    # For people ----------------------------------------------------------------------------------

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        # Files and pipes have no width.
        width = None if sys.stdout.isatty() else WIDE
        return Console(highlight=False, soft_wrap=False, width=width, emoji=False, markup=False)

    @cached_property
    def tz(self) -> ZoneInfo:
        return when.shown_zone(self.given_tz)

    @cached_property
    def now_ms(self) -> int:
        """The time of the first output, to which relative times refer."""
        return when.CLOCK.now()

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def has_colours(self) -> bool:
        return self.console.color_system is not None and not self.console.no_color

    def show(self, value: Any, render: Callable[[], RenderableType | None]) -> None:
        """Print a value: as JSON, or as `render` shows it to people."""
        if self.as_json:
            self.data(value)
        elif (shown := render()) is not None:
            self.print(shown)

    def print(self, shown: RenderableType) -> None:
        if self.console.is_terminal:
            self.console.print(shown)
            return
        with self.console.capture() as captured:
            self.console.print(shown)
        # Tables are padded to their full width, which only a terminal needs.
        self._write("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def say(self, text: str) -> None:
        """Print a sentence for people; with --json, nothing."""
        if not self.as_json:
            click.echo(safe(text))

    def note(self, text: str) -> None:
        """Print a note for people on standard error; with --json, nothing."""
        if not self.as_json:
            click.echo(safe(text), err=True)

    def table(
        self,
        items: Sequence[Item],
        columns: Sequence[Column],
        *,
        empty: str | Callable[[], str],
        value: Any = None,
    ) -> None:
        """Print a list: with --json `value` or the items, for people a table."""
        if self.as_json:
            self.data(list(items) if value is None else value)
        elif not items:
            self.say(empty if isinstance(empty, str) else empty())
        else:
            if self.is_terminal:
                fitted = self._fitted(items, columns)
                self.print(self._drawn(fitted))
                if hidden := [column.title for column in columns[len(fitted.columns) :]]:
                    self.note(f"hidden: {', '.join(hidden)}")
            else:
                self._print_lines(items, columns)
            if any(column.title.endswith("at") or column.title in TIMED for column in columns):
                self.note(f"times in {self.tz.key}")

    def _print_lines(self, items: Iterable[Item], columns: Sequence[Column]) -> None:
        """For files and pipes: one line for each item, with tabs between the fields."""
        rows = [[self._in_one_line(column.of(item)).plain for column in columns] for item in items]
        for row in ([column.title for column in columns], *rows):
            self._write("\t".join(row))

    def _write(self, text: str) -> None:
        # Not click.echo(), which replaces a stream whose encoding is ASCII.
        sys.stdout.write(f"{text}\n")

    def grid(self, items: Iterable[Item], columns: Sequence[Column]) -> RenderableType:
        return self._drawn(self._fitted(items, columns))

    def _drawn(self, fitted: Fitted) -> RenderableType:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        for column, width in zip(fitted.columns, fitted.widths, strict=True):
            justify: Any = "right" if column.right else "left"
            table.add_column(
                column.title, justify=justify, width=width, no_wrap=True, overflow="ellipsis"
            )
        for row in fitted.rows:
            table.add_row(*row)
        return table

    def _fitted(self, items: Iterable[Item], columns: Sequence[Column]) -> Fitted:
        """Shorten ids, then leave out columns on the right, then truncate flexible ones."""
        room = self.console.width
        rows = [[self._in_one_line(column.of(item)) for column in columns] for item in items]
        widths = _widths(columns, rows)
        if _total(widths) > room:
            _shorten_ids(columns, rows)
            widths = _widths(columns, rows)
        least = [
            min(width, column.least) if column.flexible else width
            for column, width in zip(columns, widths, strict=True)
        ]
        kept = len(columns)
        while kept > 1 and _total(least[:kept]) > room:
            kept -= 1
        widths, least = widths[:kept], least[:kept]
        while _total(widths) > room:
            spare = [width - minimum for width, minimum in zip(widths, least, strict=True)]
            # If nothing is left to truncate, this is a single column.
            widest = max(range(kept), key=lambda index: (spare[index] > 0, widths[index]))
            widths[widest] -= 1
        return Fitted(columns[:kept], widths, [row[:kept] for row in rows])

    def _in_one_line(self, value: Any) -> Text:
        text = self.cell(value).copy()
        if "\n" in text.plain:
            text.plain = text.plain.replace("\n", "\\n")
        text.no_wrap, text.overflow = True, "ellipsis"
        return text

    def fields(self, pairs: Iterable[tuple[str, Any]]) -> RenderableType:
        """Names and values, one pair a line, without those that are None."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in pairs:
            if value is not None:
                table.add_row(name, self.cell(value))
        return table

    def cell(self, value: Any) -> Text:
        from rich.text import Text

        if isinstance(value, Text):
            return value
        text = "" if value is None else str(value)
        return Text(safe(text), style=STATES.get(text, ""))

    def styled(self, text: str, style: str) -> Text:
        from rich.text import Text

        return Text(safe(text), style=style)

    # Times ---------------------------------------------------------------------------------------

    def ago(self, at_ms: int | None) -> str | None:
        return None if at_ms is None else when.relative(at_ms, self.now_ms)

    def ago_of(self, at: str | None) -> str | None:
        """Like `ago`, for a time in the API's format."""
        return self.ago(when.ms_of(at))

    def at(self, at_ms: int | None) -> str | None:
        """A short time for tables, which name the zone below."""
        return None if at_ms is None else when.absolute(at_ms, self.tz, self.now_ms)

    def moment(self, at_ms: int | None) -> str | None:
        """A full time: 2026-05-01 09:00:00 +03 (in 5m)."""
        if at_ms is None:
            return None
        return f"{when.absolute(at_ms, self.tz)} ({when.relative(at_ms, self.now_ms)})"

    # Progress ------------------------------------------------------------------------------------

    @contextmanager
    def progress(self, title: str) -> Generator[Advance]:
        """A progress bar on standard error, if that is a terminal."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda done, total, word: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%", markup=False),
            TextColumn("{task.fields[word]}", markup=False),
        )
        console = Console(stderr=True, highlight=False)
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=None, word="")

            def advance(done: int, total: int | None, word: str) -> None:
                bar.update(task, completed=done, total=total, word=safe(word))

            yield advance


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> list[int]:
    return [
        max([len(column.title), *(row[index].cell_len for row in rows)])
        for index, column in enumerate(columns)
    ]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _shorten_ids(columns: Sequence[Column], rows: Sequence[Sequence[Text]]) -> None:
    """Cut ids down to prefixes that are unique in the table."""
    cells = [row[index] for row in rows for index, column in enumerate(columns) if column.ids]
    ids = {found for cell in cells for found in ID.findall(cell.plain)}
    size = next(size for size in ID_SIZES if len({found[:size] for found in ids}) == len(ids))
    for cell in cells:
        cell.plain = ID.sub(lambda found: found[0][:size], cell.plain)


def pretty(value: Any) -> str:
    """A JSON value for people: text unquoted, anything else indented."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def brief(value: Any) -> str:
    """A JSON value for people, in one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


TIMED = {"next", "last", "due", "when", "created", "started", "updated"}
