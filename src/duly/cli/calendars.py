"""`duly calendars`: manage the dates on which schedules may tick."""

from __future__ import annotations

import calendar as months
from collections.abc import Iterator
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import click

from duly.cli.ask import force_option, named, new_owner_option, owner_option, remove_it, sure
from duly.cli.command import EXIT_USAGE, Group, fail
from duly.cli.out import Column, Item, Out
from duly.cli.root import Root
from duly.cli.when import now, tz_option

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from duly.model.calendar import Calendar

KINDS = ["skip_dates", "only_dates"]
KIND_WORDS = {
    "skip_dates": "no ticks on the marked dates",
    "only_dates": "ticks only on the marked dates",
}
MONTHS = 3
COMPARED = 50
"""How many ticks of each schedule are compared before a change."""
MAX_SHOWN = 20
MONTH_WIDTH = 20


@click.group(cls=Group)
def calendars() -> None:
    """List, create, change and remove calendars."""


KIND_HELP = "skip_dates: no ticks on its dates; only_dates: ticks only on its dates."
_kind = click.option("--kind", type=click.Choice(KINDS), help=KIND_HELP)
_tz = tz_option("Time zone of its dates.")
_rules = click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="NAME",
    help="Add recurring dates: weekends, us-federal-holidays, tr-public-holidays.",
)
_name = click.argument("name", metavar="NAME|ID")


# Reading -----------------------------------------------------------------------------------------


@calendars.command("list")
@owner_option
@click.pass_obj
def list_(root: Root, owner: str | None) -> None:
    """List calendars, the built-in ones first.

    \b
    duly calendars list
    """
    columns = [
        Column("name", "name"),
        Column("until", None, _until),
        Column("kind", "kind", flexible=True),
        Column("zone", "tz", flexible=True),
        Column("owner", None, _whose, flexible=True),
    ]
    root.out.table(list(root.api.pages("/calendars", owner=owner)), columns, empty="no calendars")


def _until(calendar: Item) -> str:
    return calendar["last_date"] or "no end"


def _whose(calendar: Item) -> str:
    if calendar["declared"]:
        return "declared in code"
    return "built in" if calendar["read_only"] else calendar["owner"] or ""


@calendars.command()
@_name
@owner_option
@click.option("--from", "first", metavar="DATE", help="First month to show (default: this month).")
@click.option(
    "--months",
    "count",
    type=click.IntRange(1, 24),
    default=MONTHS,
    show_default=True,
    help="How many months to show.",
)
@click.pass_obj
def show(root: Root, name: str, owner: str | None, first: str | None, count: int) -> None:
    """Show a calendar: the coming months with its dates, and the schedules that use it.

    \b
    duly calendars show tr-public-holidays
    duly calendars show "plant closed" --from 2027-01 --months 12
    """
    start = _month(first)
    found = _get(root, name, owner)
    used = [each["key"] for each in root.api.pages("/schedules", calendar=found["id"])]
    root.out.show({**found, "schedules": used}, lambda: _shown(root.out, found, used, start, count))


def _get(root: Root, name: str, owner: str | None) -> Item:
    return named(root.api, "/calendars", "calendar", name, owner)


def _month(text: str | None) -> date:
    if text is None:
        return now().date().replace(day=1)
    try:
        return date.fromisoformat(text if len(text) > 7 else f"{text}-01").replace(day=1)
    except ValueError:
        fail(f"--from {text!r} is not a date; write 2027-01 or 2027-01-31", EXIT_USAGE)


def _shown(out: Out, found: Item, used: list[str], start: date, count: int) -> RenderableType:
    from rich.columns import Columns
    from rich.console import Group as Lines

    calendar = _understood(found)
    fields = [
        ("id", None if found["read_only"] else found["id"]),
        ("name", found["name"]),
        ("kind", f"{found['kind']}: {KIND_WORDS.get(found['kind'], '')}"),
        ("zone", found["tz"]),
        ("rules", ", ".join(found["rules"]) or None),
        ("dates", f"{len(found['dates']):,}" if found["dates"] else None),
        ("until", _until(found)),
        ("owner", _whose(found) or None),
        ("orphaned", "code no longer declares it" if found["orphaned"] else None),
        ("used by", ", ".join(used) or "no schedule"),
        ("version", None if found["read_only"] else found["version"]),
        ("updated", out.moment(found["updated_at_ms"])),
    ]
    starts = list(_months(start, count))
    grids = [month_grid(out, calendar, each) for each in starts]
    lines: list[RenderableType] = [
        out.fields(fields),
        out.cell(""),
        Columns(grids, padding=(1, 3), width=MONTH_WIDTH),
    ]
    lines += [out.cell(f"{day} {label}") for day, label in _labels(calendar, starts)]
    return Lines(*lines)


def _understood(found: Item) -> Calendar:
    from duly.model.calendar import Calendar

    fields = ("name", "kind", "tz", "dates", "rules")
    return Calendar.decode({name: found[name] for name in fields})


def _months(start: date, count: int) -> Iterator[date]:
    for _ in range(count):
        yield start
        start = (start + timedelta(days=31)).replace(day=1)


def _days(start: date) -> Iterator[date]:
    for day in range(1, months.monthrange(start.year, start.month)[1] + 1):
        yield start.replace(day=day)


def month_grid(out: Out, calendar: Calendar, start: date) -> Text:
    """A month in seven columns, Monday first, with its dates in color or shown as ##."""
    from rich.text import Text

    title = f"{start:%B %Y}".center(MONTH_WIDTH).rstrip()
    grid = Text(f"{title}\n", style="")
    grid.stylize("bold")
    grid.append("Mo Tu We Th Fr Sa Su", style="dim")
    grid.append("\n" + "   " * start.weekday())
    for day in _days(start):
        grid.append(*_cell(out, day, calendar))
        grid.append("\n" if day.weekday() == 6 else " ")
    return grid


def _cell(out: Out, day: date, calendar: Calendar) -> tuple[str, str]:
    if calendar.label(day) is None:
        return f"{day.day:2}", ""
    # Without colors, a sign replaces the number of the day.
    style = "bold white on red" if calendar.kind == "skip_dates" else "bold black on green"
    return (f"{day.day:2}", style) if out.has_colours else ("##", "")


def _labels(calendar: Calendar, starts: list[date]) -> Iterator[tuple[date, str]]:
    """The labels of the marked dates, unless there are too many, as with weekends."""
    named_days = [
        (day, label)
        for start in starts
        for day in _days(start)
        if (label := calendar.label(day)) is not None
    ]
    if len(named_days) <= MAX_SHOWN:
        yield from named_days


# Creating ----------------------------------------------------------------------------------------


@calendars.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), required=True, help=KIND_HELP)
@_tz
@click.option("--date", "dates", multiple=True, metavar="DATE[=LABEL]", help="A date; repeatable.")
@_rules
@new_owner_option
@click.pass_obj
def create(
    root: Root,
    name: str,
    kind: str,
    tz: str | None,
    dates: tuple[str, ...],
    rules: tuple[str, ...],
    owner: str | None,
) -> None:
    """Create a calendar.

    \b
    duly calendars create "plant closed" --kind skip_dates --tz Europe/Istanbul \\
        --date "2026-08-03=summer break" --date 2026-08-04
    """
    body = {
        "name": name,
        "kind": kind,
        "tz": tz or "UTC",
        "dates": _dates(dates),
        "rules": list(rules),
        "owner": owner,
    }
    _print_saved(root, root.api.post("/calendars", body=body))


@calendars.command()
@_name
@click.argument("new_name", metavar="NEW_NAME")
@_kind
@_tz
@click.option("--add", multiple=True, metavar="DATE[=LABEL]", help="Add a date; repeatable.")
@click.option("--remove", multiple=True, metavar="DATE", help="Remove a date; repeatable.")
@new_owner_option
@click.pass_obj
def clone(
    root: Root,
    name: str,
    new_name: str,
    kind: str | None,
    tz: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    owner: str | None,
) -> None:
    """Copy a calendar, with the given changes.

    \b
    duly calendars clone tr-public-holidays-2026 ours --add "2026-12-31=inventory"
    """
    source = _get(root, name, None)
    body = {"name": new_name, "owner": owner, **_content(kind, tz, add, remove, ())}
    _print_saved(root, root.api.post("/calendars/{}/clone", source["id"], body=body))


@calendars.command("import")
@click.argument("name")
@click.argument("file", type=click.File(encoding="utf-8-sig"))
@_kind
@_tz
@click.option(
    "--from", "first", metavar="DATE", help="First date to import (default: start of this year)."
)
@click.option("--to", "last", metavar="DATE", help="Last date to import (default: in five years).")
@new_owner_option
@click.pass_obj
def import_(
    root: Root,
    name: str,
    file: Any,
    kind: str | None,
    tz: str | None,
    first: str | None,
    last: str | None,
    owner: str | None,
) -> None:
    """Import dates from an iCalendar file into a new or an existing calendar.

    The dates of an existing calendar are replaced.

    \b
    duly calendars import "school holidays" holidays.ics --kind skip_dates \\
        --tz Europe/Berlin
    curl -s https://example.com/cal.ics | duly calendars import shared -
    """
    try:
        text = file.read()
    except UnicodeDecodeError:
        fail(f"{file.name} is not a text file", EXIT_USAGE)
    body = {"name": name, "ical": text, "kind": kind, "tz": tz, "owner": owner}
    body |= {"first": first, "last": last}
    _print_saved(root, root.api.post("/calendars/import", body=body))


@calendars.command()
@click.argument("name")
@click.argument("country", metavar="COUNTRY")
@click.option(
    "--year",
    "years",
    type=int,
    multiple=True,
    help="A year to import, repeatable (default: this year).",
)
@click.option("--subdivision", metavar="CODE", help="A state or province, such as BY.")
@_kind
@_tz
@new_owner_option
@click.pass_obj
def holidays(
    root: Root,
    name: str,
    country: str,
    years: tuple[int, ...],
    subdivision: str | None,
    kind: str | None,
    tz: str | None,
    owner: str | None,
) -> None:
    """Import a country's public holidays into a new or an existing calendar.

    The dates of an existing calendar are replaced.

    \b
    duly calendars holidays bavaria DE --subdivision BY --year 2026 --year 2027 \\
        --kind skip_dates --tz Europe/Berlin
    """
    body = {
        "name": name,
        "country": country,
        "years": list(years) or [now().year],
        "subdivision": subdivision,
        "kind": kind,
        "tz": tz,
        "owner": owner,
    }
    _print_saved(root, root.api.post("/calendars/holidays", body=body))


def _print_saved(root: Root, made: Item) -> None:
    dates = len(made["dates"])
    rules = f", {', '.join(made['rules'])}" if made["rules"] else ""
    said = f"{made['name']}: {made['kind']}, {dates} date{'' if dates == 1 else 's'}{rules}"
    root.out.show(made, lambda: root.out.cell(said))


# Changing ----------------------------------------------------------------------------------------


@calendars.command()
@_name
@click.option("--name", "new_name", metavar="NAME", help="Rename it.")
@_kind
@_tz
@click.option("--add", multiple=True, metavar="DATE[=LABEL]", help="Add a date; repeatable.")
@click.option("--remove", multiple=True, metavar="DATE", help="Remove a date; repeatable.")
@_rules
@owner_option
@click.option("--dry-run", is_flag=True, help="Only show which ticks would change.")
@force_option
@click.pass_obj
def update(
    root: Root,
    name: str,
    new_name: str | None,
    kind: str | None,
    tz: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    rules: tuple[str, ...],
    owner: str | None,
    dry_run: bool,
    force: bool,
) -> None:
    """Change a calendar, after confirmation if that affects upcoming ticks.

    The change applies to all schedules that use it.

    \b
    duly calendars update "plant closed" --add "2026-12-24=half day" --dry-run
    duly calendars update "plant closed" --remove 2026-08-04
    """
    content = _content(kind, tz, add, remove, rules)
    if not content and new_name is None:
        fail("give at least one change: --add, --remove, --kind …", EXIT_USAGE)
    found = _get(root, name, owner)
    changes = _compared(root, found, content) if content else []
    if dry_run:
        root.out.show(changes, lambda: _changes_shown(root.out, changes))
        return
    if changes:
        _show_before(root.out, changes)
        sure(f"Change calendar {found['name']!r}?", force=force)
    body = {**content, "version": found["version"]}
    if new_name is not None:
        body["name"] = new_name
    _print_saved(root, root.api.patch("/calendars/{}", found["id"], body=body))


@calendars.command()
@_name
@owner_option
@click.option("--dry-run", is_flag=True, help="Only show which ticks would change.")
@force_option
@click.pass_obj
def remove(root: Root, name: str, owner: str | None, dry_run: bool, force: bool) -> None:
    """Remove a calendar; schedules that use it continue without it.

    First shows which of their ticks would change.

    \b
    duly calendars remove "plant closed"
    """
    found = _get(root, name, owner)
    # No calendar is equivalent to one that skips no dates.
    nothing: Item = {"kind": "skip_dates", "dates": [], "rules": []}
    changes = _compared(root, found, nothing)
    if dry_run:
        root.out.show(changes, lambda: _changes_shown(root.out, changes))
        return
    _show_before(root.out, changes)
    sure(f"Remove calendar {found['name']!r}?", force=force)
    remove_it(root, "/calendars/{}", found)


def _compared(root: Root, found: Item, content: Item) -> list[Item]:
    body = {**content, "n": COMPARED}
    changes: list[Item] = root.api.post("/calendars/{}/changes", found["id"], body=body)
    return changes


def _show_before(out: Out, changes: list[Item]) -> None:
    """Print the changes on standard error, next to the question; with --json, nothing."""
    if not out.as_json:
        from rich.console import Console

        Console(stderr=True, highlight=False).print(_changes_shown(out, changes))


def _changes_shown(out: Out, changes: list[Item]) -> RenderableType:
    from rich.console import Group as Lines

    if not changes:
        return out.cell(f"none of the next {COMPARED} ticks of its schedules would change")
    columns = [
        Column("schedule", "key", flexible=True),
        Column("tick at", "tick_at_ms", out.at),
        Column("now", "before", str),
        Column("then", "after", str),
        Column("why", "why", flexible=True),
    ]
    title = f"of the next {COMPARED} ticks of each of its schedules, {len(changes)} would change:"
    lines: list[RenderableType] = [out.cell(title), out.grid(changes[:MAX_SHOWN], columns)]
    if len(changes) > MAX_SHOWN:
        lines.append(out.cell(f"and {len(changes) - MAX_SHOWN} more"))
    return Lines(*lines)


# Arguments ---------------------------------------------------------------------------------------


def _content(
    kind: str | None,
    tz: str | None,
    add: tuple[str, ...],
    remove: tuple[str, ...],
    rules: tuple[str, ...],
) -> dict[str, Any]:
    """The changes to a calendar, for the API."""
    given: dict[str, Any] = {
        "kind": kind,
        "tz": tz,
        "add": _dates(add),
        "remove": list(remove),
        "rules": list(rules),
    }
    return {name: value for name, value in given.items() if value}


def _dates(texts: tuple[str, ...]) -> dict[str, str]:
    """Dates and their labels."""
    return {day.strip(): label.strip() for day, _, label in (text.partition("=") for text in texts)}
