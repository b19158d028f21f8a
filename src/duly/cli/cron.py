"""`duly cron`: what an expression means. It needs no app and no database."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from duly.cli.command import EXIT_USAGE, Command, fail
from duly.cli.out import Column, Out
from duly.cli.root import Root
from duly.cli.when import Moment, ZoneName, now
from duly.clock import from_ms, to_ms
from duly.errors import InvalidCron
from duly.model.fires import Fire, fires
from duly.model.trigger import LATEST, Cron

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_FIRES = 1_000
IN_QUOTES = "put the expression in quotes, or the shell puts the names of files for each *"


def of_the_expression(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """The zone of the expression is also that of the times that are read and shown."""
    params = ctx.find_root().params
    params["tz"] = value or params.get("tz") or "UTC"


@click.command(cls=Command)
@click.argument("words", metavar="EXPRESSION", nargs=-1, required=True)
@click.option(
    "--tz",
    type=ZoneName(),
    is_eager=True,
    expose_value=False,
    callback=of_the_expression,
    help="The zone of the expression; else UTC, as for a schedule.",
)
@click.option(
    "-n",
    "number",
    type=click.IntRange(1, MOST_FIRES),
    default=5,
    show_default=True,
    help="So many fires.",
)
@click.option("--after", type=Moment(), help="Those after this time; else after now.")
@click.pass_obj
def cron(root: Root, words: tuple[str, ...], number: int, after: datetime | None) -> None:
    """Say a cron expression in words, and when it fires.

    Fires on days on which clocks are set forward or back are marked and explained.

    \b
    duly cron "0 9 * * 1-5" --tz Europe/Istanbul
    duly cron "30 2 * * *" --tz America/New_York --after 2026-03-07
    """
    out = root.out
    trigger = _read(words, out.tz.key)
    found = list(fires(trigger, number, to_ms(after or now())))
    value = {
        "expression": trigger.expression,
        "tz": trigger.tz,
        "description": trigger.describe(),
        "fires": [_data(fire) for fire in found],
    }
    out.show(value, lambda: _shown(out, trigger, found))
    if len(found) < number:
        again = " again" if found else ""
        end = f"{from_ms(LATEST * 1000):%Y-%m-%d}"
        out.note(f"it does not fire{again} before {end}, and duly looks no further")


def _read(words: tuple[str, ...], tz: str) -> Cron:
    expression = " ".join(words)
    try:
        return Cron(expression, tz)
    except InvalidCron as error:
        fail(str(error), EXIT_USAGE, hint=IN_QUOTES if len(words) > 1 else _pointed(error))


def _pointed(error: InvalidCron) -> str | None:
    """The expression, with what is wrong in it underlined."""
    if error.field == "expression" or not error.expression.isprintable():
        return None
    marks = "^" * max(len(error.text), 1)
    return f"{error.expression}\n      {' ' * error.position}{marks}"


def _shown(out: Out, trigger: Cron, found: list[Fire]) -> RenderableType:
    from rich.console import Group as Lines

    columns = [Column(trigger.tz, "fire", _local)]
    if trigger.tz != "UTC":
        columns.append(Column("UTC", "at_ms", _utc, flexible=True))
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


def _utc(at_ms: int) -> str:
    return f"{from_ms(at_ms):%Y-%m-%d %H:%M:%SZ}"


def _data(fire: Fire) -> dict[str, Any]:
    """As `GET /cron` gives it."""
    return {
        "at": f"{from_ms(fire.at_ms):%Y-%m-%dT%H:%M:%S}.000Z",
        "at_ms": fire.at_ms,
        "local": fire.local.isoformat(timespec="seconds"),
        "dst_adjusted": fire.dst_adjusted,
        "note": fire.note,
    }
