"""`duly cron`: explain a cron expression or a rule, without an app or a database."""

from __future__ import annotations

import re
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from duly.cli.command import EXIT_USAGE, Command, fail
from duly.cli.out import Column, Out
from duly.cli.root import Root
from duly.cli.when import Moment, now, tz_option
from duly.clock import from_ms, to_ms
from duly.errors import InvalidCron, InvalidOption
from duly.model.fires import Fire, fires
from duly.model.local_times import LATEST
from duly.model.trigger import Cron, Rule
from duly.zones import zone

if TYPE_CHECKING:
    from rich.console import RenderableType

MAX_FIRES = 1_000
RULE = re.compile(r"FREQ=|RRULE|DTSTART", re.IGNORECASE)
IN_QUOTES = "quote the expression; otherwise the shell replaces each * with file names"


@click.command(cls=Command)
@click.argument("words", metavar="EXPRESSION", nargs=-1, required=True)
@tz_option("Time zone of the expression and of --after (default: UTC).", "UTC")
@click.option(
    "-n",
    "number",
    type=click.IntRange(1, MAX_FIRES),
    default=5,
    show_default=True,
    help="How many fire times to show.",
)
@click.option("--after", type=Moment(), help="Only fire times after this time (default: now).")
@click.option("--start", type=Moment(), help="Start of a recurrence rule (default: today, 0:00).")
@click.pass_obj
def cron(
    root: Root,
    words: tuple[str, ...],
    tz: str,
    number: int,
    after: datetime | None,
    start: datetime | None,
) -> None:
    """Explain a cron expression or a rule and show when it fires.

    Fire times on days with a daylight saving change are marked and explained.

    \b
    duly cron "0 9 * * 1-5" --tz Europe/Istanbul
    duly cron "30 2 * * *" --tz America/New_York --after 2026-03-07
    duly cron "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO" --start 2026-03-02T09:00
    """
    out = root.out
    trigger = _read(words, tz, start)
    found = list(fires(trigger, number, to_ms(after or now())))
    value = {
        "expression": trigger.rule if isinstance(trigger, Rule) else trigger.expression,
        "tz": trigger.tz,
        "description": trigger.describe(),
        "fires": [_data(fire) for fire in found],
    }
    out.show(value, lambda: _shown(out, trigger, found))
    if len(found) < number:
        again = " again" if found else ""
        end = f"{from_ms(LATEST * 1000):%Y-%m-%d}"
        out.note(f"it does not fire{again} before {end}, the end of the search")


def _read(words: tuple[str, ...], tz: str, start: datetime | None) -> Cron | Rule:
    expression = " ".join(words)
    if RULE.search(expression):
        try:
            return _rule(expression, tz, start)
        except InvalidOption as error:
            fail(str(error), EXIT_USAGE)
    try:
        return Cron(expression, tz)
    except InvalidCron as error:
        fail(str(error), EXIT_USAGE, hint=IN_QUOTES if len(words) > 1 else _pointed(error))


def _rule(text: str, tz: str, start: datetime | None) -> Rule:
    if "DTSTART" in text.upper() and start is None:
        return Rule(text, tz=tz if tz != "UTC" else "")
    midnight = now().astimezone(zone(tz).info).replace(hour=0, minute=0, second=0, microsecond=0)
    return Rule(text, start or midnight, tz)


def _pointed(error: InvalidCron) -> str | None:
    """The expression, with the error underlined."""
    if error.field == "expression" or not error.expression.isprintable():
        return None
    marks = "^" * max(len(error.text), 1)
    return f"{error.expression}\n      {' ' * error.position}{marks}"


def _shown(out: Out, trigger: Cron | Rule, found: list[Fire]) -> RenderableType:
    from rich.console import Group as Lines

    columns = [Column(trigger.tz, "fire", _local)]
    other = out.tz.key if out.given_tz else "UTC"
    if trigger.tz != other:
        columns.append(Column(other, "at_ms", partial(_elsewhere, zone(other).info), flexible=True))
    columns.append(Column("from now", "at_ms", out.ago, right=True))
    items = [{"fire": fire, "at_ms": fire.at_ms} for fire in found]
    parts: list[RenderableType] = [out.cell(trigger.describe())]
    if found:
        parts += [out.cell(""), out.grid(items, columns)]
    notes = [f"* {_wall(fire)}: {fire.note}" for fire in found if fire.note]
    if notes:
        parts.append(out.cell(""))
    return Lines(*parts, *map(out.cell, notes))


def _local(fire: Fire) -> str:
    return f"{_wall(fire)} *" if fire.note else _wall(fire)


def _wall(fire: Fire) -> str:
    return f"{fire.local:%a %Y-%m-%d %H:%M:%S %Z}"


def _elsewhere(tz: ZoneInfo, at_ms: int) -> str:
    return f"{from_ms(at_ms).astimezone(tz):%Y-%m-%d %H:%M:%S %Z}".replace(" UTC", "Z")


def _data(fire: Fire) -> dict[str, Any]:
    """A fire as `GET /cron` returns it."""
    return {
        "at": f"{from_ms(fire.at_ms):%Y-%m-%dT%H:%M:%S}.000Z",
        "at_ms": fire.at_ms,
        "local": fire.local.isoformat(timespec="seconds"),
        "dst_adjusted": fire.dst_adjusted,
        "note": fire.note,
    }
