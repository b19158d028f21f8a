"""The `schedules` command group, and helpers that its commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from duly.cli import complete
from duly.cli.ask import owner_option
from duly.cli.command import Group
from duly.cli.out import Item, Out, brief


@click.group(cls=Group)
def schedules() -> None:
    """List, create, change and preview schedules.

    KEY is a schedule's key or id. For a schedule that has an owner, give the key with --owner.
    """


def on_one(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command on one schedule."""
    key = click.argument("key", metavar="KEY", shell_complete=complete.schedules)
    return key(owner_option(command))


def said(out: Out, schedule: Item) -> str:
    """One line with the status and the next tick."""
    text = f"{schedule['key']} is {schedule['status']}"
    if schedule["error"]:
        text += f": {schedule['error']}"
    elif schedule["note"]:
        text += f" ({schedule['note']})"
    if schedule["next_tick_at_ms"] is not None:
        text += f"; next tick {out.moment(schedule['next_tick_at_ms'])}"
    if schedule["override"]:
        text += f", {overridden(out, schedule['override'])}"
    return text


def overridden(out: Out, override: Item) -> str:
    """What an operator decided about the next tick."""
    by = f" by {override['by']}" if override["by"] else ""
    if override["to_at_ms"] is None:
        return f"skipped{by}"
    return f"moved{by} to {out.moment(override['to_at_ms'])}"


def words(reason: str, detail: Mapping[str, Any]) -> str:
    """Why a tick was skipped."""
    from duly.model.why_schedule import in_words

    return in_words(reason, detail)


def inputs(tick: Item) -> str:
    """The inputs of a dispatch."""
    turn = tick["rotation_index"]
    given = brief(tick["inputs"]) if tick["inputs"] else ""
    return given if turn is None else f"rotation {turn}: {given}"
