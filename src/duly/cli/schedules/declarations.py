"""Commands for declared schedules: show what applying them would change, and apply them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from duly.cli.ask import force_option, sure
from duly.cli.out import Item, Out, brief
from duly.cli.root import Root
from duly.cli.schedules.group import schedules

if TYPE_CHECKING:
    from rich.console import RenderableType

SIGNS = {
    "create": ("+", "green"),
    "revive": ("+", "green"),
    "adopt": ("+", "green"),
    "change": ("~", "yellow"),
    "rename": ("~", "yellow"),
    "orphan": ("-", "red"),
    "remove": ("-", "red"),
    "blocked": ("!", "red"),
}
"""Entries of other kinds change nothing and are not shown."""
MEANING = {
    "orphan": "no longer declared: it is disabled, and `duly schedules prune` removes it",
    "remove": "no longer declared",
    "revive": "declared again",
    "adopt": "exists already; code declares it from now on",
}
CALENDAR_MEANING = MEANING | {
    "orphan": "no longer declared; `duly schedules prune` removes it when no schedule uses it"
}


@schedules.command()
@click.pass_obj
def plan(root: Root) -> None:
    """Show what `apply` would change: + new, ~ changed, - no longer declared, ! left out.

    Schedules and calendars whose declaration is unchanged keep their state and the operators'
    changes.

    \b
    duly schedules plan
    """
    found = root.api.get("/schedules/plan")
    root.out.show(found, lambda: diff(root.out, found))


@schedules.command()
@force_option
@click.pass_obj
def apply(root: Root, force: bool) -> None:
    """Apply the schedules and calendars declared in code, after showing the changes and asking.

    \b
    duly schedules apply
    """
    _do(root, "/schedules/apply", "Apply", "applied", force=force)


@schedules.command()
@force_option
@click.pass_obj
def prune(root: Root, force: bool) -> None:
    """Remove schedules no longer declared in code, after showing them and asking.

    Calendars that are no longer declared are removed too, unless a schedule uses them.

    \b
    duly schedules prune
    """
    _do(root, "/schedules/prune", "Remove", "removed", force=force)


def _do(root: Root, path: str, verb: str, done: str, *, force: bool) -> None:
    would = root.api.post(path, body={"dry_run": True})
    out = root.out
    if would["changes"]:
        if not out.as_json:
            out.print(diff(out, would))
        what = "change" if verb == "Apply" else _noun(would["entries"])
        plural = "" if would["changes"] == 1 else "s"
        sure(f"{verb} {would['changes']} {what}{plural}?", force=force)
    # Even if nothing changes, this marks the set of declarations as the newest.
    answer = root.api.post(path, body={})
    out.show(answer, lambda: _done(out, would, answer, done))


def _noun(entries: Iterable[Item]) -> str:
    """What is removed."""
    nouns = {"calendar" if e["is_calendar"] else "schedule" for e in entries if not e["reason"]}
    return nouns.pop() if len(nouns) == 1 else "object"


def _done(out: Out, would: Item, answer: Item, done: str) -> RenderableType:
    from rich.console import Group as Lines

    if not answer["changes"]:
        return out.cell("nothing to change")
    said = out.cell(f"{done}: {answer['changes']}")
    if answer["entries"] == would["entries"]:
        return said
    # Another change came first, so the result differs from the plan shown above.
    return Lines(diff(out, answer), said)


def diff(out: Out, plan: Item) -> RenderableType:
    """A plan, one line for each change."""
    from rich.console import Group as Lines

    shown = [entry for entry in plan["entries"] if entry["kind"] in SIGNS]
    lines = [line for entry in shown for line in _entry(out, entry)]
    unchanged = len(plan["entries"]) - len(shown)
    return Lines(*lines, out.styled(f"{unchanged} unchanged", "dim"))


def _entry(out: Out, entry: Item) -> list[RenderableType]:
    sign, colour = SIGNS[entry["kind"]]
    head = f"{sign} calendar {entry['key']}" if entry["is_calendar"] else f"{sign} {entry['key']}"
    if entry["renamed_from"]:
        head += f", was {entry['renamed_from']}"
    meaning = (CALENDAR_MEANING if entry["is_calendar"] else MEANING).get(entry["kind"])
    if entry["reason"] or meaning:
        head += f": {entry['reason'] or meaning}"
    changes = [
        out.styled(f"    {name}: {_value(change['before'])} → {_value(change['after'])}", colour)
        for name, change in entry["changed"].items()
    ]
    return [out.styled(head, colour), *changes]


def _value(value: object) -> str:
    return "nothing" if value is None else brief(value)
