"""`duly schedules preview` and `forecast`: upcoming ticks and the number of jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import click

from duly.cli.ask import owner_option, schedule_id
from duly.cli.command import EXIT_USAGE, fail
from duly.cli.out import Column, Item, Out
from duly.cli.root import Root
from duly.cli.schedules.group import inputs, on_one, schedules, words
from duly.cli.when import Moment, now, relative

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

LEVELS = " ▁▂▃▄▅▆▇█"
HEAT = ("dim", "green", "yellow", "red")
HOURS = 24
WIDE = 72
"""The width from which a table has room for details, and an hour for two characters."""
BUSIEST = 5
MARKS = {"dispatch": "●", "skip": "○"}
COLOURS = {"dispatch": "green", "skip": "yellow"}


@schedules.command()
@on_one
@click.option(
    "-n", type=click.IntRange(1, 200), default=10, show_default=True, help="How many ticks."
)
@click.option("--after", type=Moment(), help="Only ticks after this time.")
@click.option("--simulate", is_flag=True, help="Assume that each dispatched job succeeds.")
@click.pass_obj
def preview(
    root: Root, key: str, owner: str | None, n: int, after: datetime | None, simulate: bool
) -> None:
    """Preview the next ticks: which would run, which would be skipped, and why.

    Nothing is changed. For a disabled schedule, the preview shows what would happen if it were
    enabled now.

    \b
    duly schedules preview nightly
    duly schedules preview nightly -n 50 --after 2026-12-20
    duly schedules preview nightly --display-tz Asia/Tokyo
    """
    out = root.out
    found = root.api.items(
        "/schedules/{}/preview",
        schedule_id(root.api, key, owner),
        n=n,
        after=None if after is None else after.isoformat(),
        tz=out.tz.key,
        simulate=simulate,
    )
    out.show(found, lambda: foreseen(out, found))
    if _is_elsewhere(found):
        out.note(f"local time is UTC{found[0]['local'][-6:]}, yours is {out.tz.key}")


def foreseen(out: Out, found: list[Item]) -> RenderableType:
    """Upcoming ticks as a table and on a timeline."""
    from rich.console import Group as Lines

    if not found:
        return out.cell("no upcoming ticks")
    parts: list[RenderableType] = [out.grid(_with_notes(found), _columns(out, found))]
    if len(found) > 1:
        parts += [out.cell(""), time_line(out, found)]
    return Lines(*parts)


def _columns(out: Out, found: list[Item]) -> list[Column]:
    if out.console.width < WIDE:
        columns = [
            Column("", "decision", partial(_mark, out)),
            Column("local time", "local", partial(_clock, "%a %d")),
            Column("reason", "reason", flexible=True),
        ]
    else:
        columns = [
            Column("decision", "decision", partial(_decision, out)),
            Column("local time", "local", partial(_clock, "%a %Y-%m-%d")),
            Column("reason", "reason"),
            Column("detail", None, _detail, flexible=True),
        ]
    if _is_elsewhere(found):
        columns.insert(2, Column("yours", "viewer", partial(_clock, "%a")))
    return columns


def _is_elsewhere(found: list[Item]) -> bool:
    """Whether the schedule's zone and the displayed zone show different times."""
    return any(tick["local"] != tick["viewer"] for tick in found)


def _decision(out: Out, decision: str) -> Text:
    return out.styled(f"{MARKS[decision]} {decision}", COLOURS[decision])


def _mark(out: Out, decision: str) -> Text:
    return out.styled(MARKS[decision], COLOURS[decision])


def _clock(day: str, local: str) -> str:
    """Fri 2026-07-03 09:00; seconds only if they are not zero."""
    at = datetime.fromisoformat(local)
    return f"{at:{day} %H:%M:%S}".removesuffix(":00")


def _with_notes(found: list[Item]) -> list[Item]:
    """The ticks, with notes on daylight saving changes."""
    noted: list[Item] = []
    before: timedelta | None = None
    for tick in found:
        offset = datetime.fromisoformat(tick["local"]).utcoffset()
        note = None
        if tick["dst_adjusted"]:
            note = "DST: its local time is skipped"
        elif before is not None and offset is not None and offset != before:
            note = f"DST: clocks are set {'forward' if offset > before else 'back'} before it"
        noted.append({**tick, "dst": note})
        before = offset
    return noted


def _detail(tick: Item) -> str:
    text = inputs(tick) if tick["decision"] == "dispatch" else words(tick["reason"], tick["detail"])
    return "; ".join(part for part in (tick["dst"], text) if part)


def time_line(out: Out, found: list[Item]) -> RenderableType:
    """The ticks on a scale of time that starts now, unless the first tick is far away."""
    from rich.console import Group as Lines
    from rich.text import Text

    times = [tick["due_at_ms"] for tick in found]
    first, end = min(times), max(times)
    start = out.now_ms if first - out.now_ms <= end - first else first
    width = min(out.console.width, 100) - 1
    cells: list[str | None] = [None] * (width + 1)
    for tick in found:
        place = round((tick["due_at_ms"] - start) / max(1, end - start) * width)
        place = min(max(place, 0), width)
        if cells[place] != "dispatch":
            cells[place] = tick["decision"]
    line = Text()
    for decision in cells:
        line.append(MARKS[decision] if decision else "─", COLOURS[decision] if decision else "dim")
    left, right = relative(start, out.now_ms), relative(end, out.now_ms)
    labels = f"{left}{right:>{max(0, len(cells) - len(left))}}"
    return Lines(line, out.styled(labels, "dim"))


# Forecast ----------------------------------------------------------------------------------------


@schedules.command()
@click.option(
    "--days", type=click.IntRange(1, 92), default=7, show_default=True, help="How many days."
)
@click.option("--start", type=Moment(), help="Start at the hour of this time (default: now).")
@click.option(
    "--ics", is_flag=True, help="Print upcoming ticks as an iCalendar feed; at most 31 days."
)
@click.option("--schedule", "key", metavar="KEY", help="With --ics: only this schedule.")
@owner_option
@click.pass_obj
def forecast(
    root: Root, days: int, start: datetime | None, ics: bool, key: str | None, owner: str | None
) -> None:
    """Forecast how many jobs schedules will create, by hour.

    Shows the busiest minutes and schedules, too.

    Considers triggers and calendars, but not conditions, budgets or overlaps.

    \b
    duly schedules forecast --days 14
    duly schedules forecast --ics > ticks.ics
    """
    if ics:
        _print_feed(root, days, start, key, owner)
        return
    if key is not None:
        fail("--schedule requires --ics", EXIT_USAGE)
    out = root.out
    first = _whole_hour(start or now(), out.tz)
    found = root.api.get("/forecast", days=days, start=first.isoformat(), owner=owner)
    out.show(found, lambda: _forecast(out, found))
    if not found["complete"]:
        out.note("too many ticks with jitter: some of them are counted without it")


def _print_feed(
    root: Root, days: int, start: datetime | None, key: str | None, owner: str | None
) -> None:
    if start is not None:
        fail("--start cannot be used with --ics: a feed starts now", EXIT_USAGE)
    which = None if key is None else schedule_id(root.api, key, owner)
    text = root.api.text("/forecast.ics", days=days, schedule=which, owner=owner)
    click.echo(text, nl=False)


def _whole_hour(at: datetime, tz: ZoneInfo) -> datetime:
    return at.astimezone(tz).replace(minute=0, second=0, microsecond=0)


class Day(NamedTuple):
    """A line of the forecast: dispatches by hour; None for hours outside its range."""

    name: str
    hours: list[int | None]

    @property
    def total(self) -> int:
        return sum(count or 0 for count in self.hours)


def days_of(found: Item, tz: ZoneInfo) -> list[Day]:
    """The hours of a forecast as local days; an hour that occurs twice counts as one."""
    days: dict[str, Day] = {}
    for hour in found["hours"]:
        local = datetime.fromisoformat(hour["at"]).astimezone(tz)
        name = f"{local:%a %d %b}"
        day = days.setdefault(f"{local:%Y-%m-%d}", Day(name, [None] * HOURS))
        day.hours[local.hour] = (day.hours[local.hour] or 0) + hour["dispatches"]
    return list(days.values())


def _forecast(out: Out, found: Item) -> RenderableType:
    from rich.console import Group as Lines

    days = days_of(found, out.tz)
    size = 2 if out.console.width >= WIDE else 1
    most = max((count or 0 for day in days for count in day.hours), default=0)
    head = f"{found['total']} dispatches of {found['schedules']} schedules, {out.tz.key}"
    parts: list[RenderableType] = [out.cell(head), out.cell(""), _scale(out, size)]
    parts += [_strip(out, day, most, size) for day in days]
    if found["busiest"]:
        parts += [out.cell(""), out.grid(found["busiest"][:BUSIEST], _busiest(out))]
        parts += [out.cell(""), out.grid(found["by_schedule"][:BUSIEST], SCHEDULES)]
    return Lines(*parts)


def _scale(out: Out, size: int) -> Text:
    marks = "".join(f"{hour:<{6 * size}}" for hour in range(0, HOURS, 6))
    return out.styled(f"{'':<11}{marks}", "dim")


def _strip(out: Out, day: Day, most: int, size: int) -> Text:
    from rich.text import Text

    line = Text(f"{day.name:<11}", no_wrap=True, overflow="crop")
    for count in day.hours:
        line.append(*_block(count, most, size))
    return line.append(f" {day.total:>4}", "dim")


def _block(count: int | None, most: int, size: int) -> tuple[str, str]:
    if count is None:
        return " " * size, ""
    if not count:
        return "·" * size, "dim"
    level = max(1, round(count / most * (len(LEVELS) - 1)))
    heat = HEAT[min(level * len(HEAT) // len(LEVELS), len(HEAT) - 1)]
    return LEVELS[level] * size, heat


SCHEDULES = [
    Column("busiest schedules", "key", flexible=True),
    Column("dispatches", "dispatches", right=True),
]


def _busiest(out: Out) -> list[Column]:
    return [
        Column("busiest minutes", "at_ms", out.at),
        Column("dispatches", "dispatches", right=True),
    ]
