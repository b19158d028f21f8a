"""`duly observe`: show schedules and gateway crons in one list."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from duly.cli.ask import owner_option
from duly.cli.command import Command
from duly.cli.out import Column, Item, Out
from duly.cli.root import Root
from duly.cli.when import ms_of
from duly.model.durations import write_length

PAGE = 200


@click.command(cls=Command)
@owner_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Maximum number of rows.",
)
@click.pass_obj
def observe(root: Root, owner: str | None, limit: int) -> None:
    """Show schedules and gateway crons in one list.

    Gateways are asked for their crons. If a gateway does not respond, its last known crons are
    shown.

    \b
    duly observe
    duly observe --display-tz Europe/Istanbul --json
    """
    out = root.out
    found = _look(root, owner, limit)
    columns = [
        Column("function / gateway", None, _resource, flexible=True, least=20),
        Column("status", "status"),
        Column("next", "next_run", partial(_at, out)),
        Column("type", None, _type, flexible=True, least=12),
        Column("last run", None, partial(_last_run, out)),
        Column("zone", "tz", flexible=True),
    ]
    out.table(found["rows"], columns, empty="no schedules and no gateway crons", value=found)
    for gateway in found["gateways"]:
        if gateway["stale_since"]:
            out.note(f"{gateway['name']} does not respond: {gateway['error']}")


def _look(root: Root, owner: str | None, limit: int) -> Item:
    """The rows of all pages; the first page has the gateways."""
    rows: list[Item] = []
    gateways: list[Item] = []
    asked: dict[str, Any] = {"owner": owner, "tz": root.out.tz.key}
    following: str | None = None
    while True:
        most = min(limit - len(rows), PAGE)
        more = {} if following is None else {"after": following}
        page = root.api.get("/observe/schedules", **asked, **more, limit=most)
        rows += page["rows"]
        gateways += page["gateways"]
        following = page["next"]
        if following is None or len(rows) >= limit:
            return {"rows": rows, "gateways": gateways, "next": following}


def _resource(row: Item) -> str:
    return (
        str(row["resource"]) if row["source"] == "gateway" else f"{row['resource']} ({row['key']})"
    )


def _type(row: Item) -> str:
    """The trigger: cron or interval, with the expression or period."""
    if not row["type"]:
        return "unreadable"
    interval = row["type"] == "interval"
    period = write_length(int(row["expression"])) if interval else row["expression"]
    return f"{row['type']} {period}"


def _at(out: Out, instant: str) -> str | None:
    return out.at(ms_of(instant))


def _last_run(out: Out, row: Item) -> str | None:
    ran_at = row["last_run"] and _at(out, row["last_run"])
    return f"{ran_at}, {row['last_status']}" if ran_at and row["last_status"] else ran_at
