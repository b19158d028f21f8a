"""Commands for the parts of a schedule: its condition, rotation and calendar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.cli.ask import schedule_id, with_full_ids
from duly.cli.command import EXIT_USAGE, fail
from duly.cli.out import Column, Item, Out, brief
from duly.cli.root import Root
from duly.cli.schedules.group import on_one, said, schedules
from duly.cli.schedules.show import turn
from duly.cli.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


@schedules.command()
@on_one
@click.option("--set", "new", type=Json(), metavar="JSON", help="Replace the condition.")
@click.option("--clear", is_flag=True, help="Remove the condition.")
@click.option(
    "--try", "other", type=Json(), metavar="JSON", help="Evaluate a condition without saving it."
)
@click.pass_obj
def condition(root: Root, key: str, owner: str | None, new: Any, clear: bool, other: Any) -> None:
    """Evaluate a schedule's condition now, operator by operator.

    JSON may be given as @FILE.

    \b
    duly schedules condition nightly
    duly schedules condition nightly --try '{"/last_24h_stats/failed": {"lt": 3}}'
    duly schedules condition nightly --clear
    """
    _check_one(set=new is not None, clear=clear, **{"try": other is not None})
    api = root.api
    which = schedule_id(api, key, owner)
    if new is not None or clear:
        _change(root, which, {"condition": new})
    if clear:
        root.out.show({"condition": None}, lambda: root.out.cell(f"{key} has no condition"))
    elif other is not None:
        _explain(root, key, api.post("/schedules/{}/explain", which, body={"condition": other}))
    else:
        _explain(root, key, api.get("/schedules/{}/explain", which))


def _change(root: Root, which: str, changes: dict[str, Any]) -> Item:
    version = root.api.get("/schedules/{}", which)["version"]
    changed: Item = root.api.patch("/schedules/{}", which, body={"version": version, **changes})
    return changed


def _check_one(**given: bool) -> None:
    names = [f"--{name}" for name, is_given in given.items() if is_given]
    if len(names) > 1:
        fail(f"give only one of {' and '.join(names)}", EXIT_USAGE)


def _explain(root: Root, key: str, explanation: Item) -> None:
    out = root.out
    out.show(explanation, lambda: _explained(out, key, explanation))


def _explained(out: Out, key: str, explanation: Item) -> RenderableType:
    from rich.console import Group as Lines

    if not explanation["checks"]:
        return out.cell(f"{key} has no condition")
    held = ("it is met", "green") if explanation["passes"] else ("it is not met", "yellow")
    return Lines(*(_check(out, each) for each in explanation["checks"]), out.styled(*held))


def _check(out: Out, check: Item) -> Text:
    """One operator in words: what was compared with what, and why it passes or not."""
    mark = out.styled("✓", "green") if check["passes"] else out.styled("✗", "yellow")
    where = check["pointer"] or "the context"
    said = f" {where} {check['operator']} {brief(check['expected'])}: {check['why']}"
    return mark.append_text(out.cell(said))


@schedules.command()
@on_one
@click.option(
    "--set",
    "new",
    type=Json(),
    metavar="JSON",
    help="Replace the rotation, starting from its first entry.",
)
@click.option(
    "--clear", is_flag=True, help="Remove the rotation; runs use the schedule's own arguments."
)
@click.pass_obj
def rotation(root: Root, key: str, owner: str | None, new: Any, clear: bool) -> None:
    """Show or change the arguments that successive runs use in turn.

    JSON may be given as @FILE.

    \b
    duly schedules rotation nightly
    duly schedules rotation nightly --set '[{"team": "a"}, {"team": "b"}]'
    """
    _check_one(set=new is not None, clear=clear)
    api = root.api
    which = schedule_id(api, key, owner)
    if new is not None:
        found = api.put("/schedules/{}/rotation", which, body={"rotation": new})
    elif clear:
        api.delete("/schedules/{}/rotation", which)
        found = api.get("/schedules/{}", which)
    else:
        found = api.get("/schedules/{}", which)
    value = {"rotation": found["rotation"], "rotation_index": found["rotation_index"]}
    root.out.show(value, lambda: _turns(root.out, found))


def _turns(out: Out, schedule: Item) -> RenderableType:
    entries = schedule["rotation"]
    if not entries:
        return out.cell(f"{schedule['key']} has no rotation")
    rows = [
        {"turn": "→ next" if index == turn(schedule) else "", "index": index, "arguments": entry}
        for index, entry in enumerate(entries)
    ]
    columns = [
        Column("turn", "turn"),
        Column("entry", "index", right=True),
        Column("arguments", "arguments", brief, flexible=True),
    ]
    return out.grid(rows, columns)


@schedules.command()
@on_one
@click.argument("calendar", metavar="CALENDAR")
@click.pass_obj
def attach(root: Root, key: str, owner: str | None, calendar: str) -> None:
    """Attach a calendar, which decides the dates on which the schedule runs.

    \b
    duly schedules attach nightly closed
    """
    which = schedule_id(root.api, key, owner)
    body = with_full_ids(root.api, {"calendar": calendar})
    changed = root.api.post("/schedules/{}/attach", which, body=body)
    root.out.show(
        changed, lambda: root.out.cell(f"{said(root.out, changed)}, {_dates(root, changed)}")
    )


def _dates(root: Root, schedule: Item) -> str:
    """The dates that its calendar allows, in words."""
    calendar = root.api.get("/calendars/{}", schedule["calendar_id"])
    on = "except on" if calendar["kind"] == "skip_dates" else "only on"
    return f"{on} dates in {calendar['name']}"


@schedules.command()
@on_one
@click.pass_obj
def detach(root: Root, key: str, owner: str | None) -> None:
    """Detach the calendar, so that the schedule runs on every date.

    \b
    duly schedules detach nightly
    """
    changed = root.api.post("/schedules/{}/detach", schedule_id(root.api, key, owner))
    root.out.show(changed, lambda: root.out.cell(f"{said(root.out, changed)}, on every date"))
