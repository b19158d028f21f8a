"""Looks up objects by name or id, and asks before a change that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from duly.cli.api import Api, ApiError
from duly.cli.command import fail
from duly.cli.ids import is_prefix, matching, missing, named_or_prefix, only
from duly.cli.safe import safe
from duly.ids import is_id
from duly.nearest import did_you_mean

if TYPE_CHECKING:
    from duly.cli.root import Root

MAX_LOOKED_AT = 1_000
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def schedule_id(api: Api, name: str, owner: str | None = None) -> str:
    """The id of a schedule that is given by its key, its id or a prefix of its id."""
    if is_id(name):
        return name
    try:
        return str(api.get("/schedules/named", key=name, owner=owner)["id"])
    except ApiError as error:
        if error.status != 404:
            raise
        if is_prefix(name) and (same := [each["id"] for each in matching(api, "/schedules", name)]):
            return only("schedule", name, same)
        found = list(api.pages("/schedules", most=MAX_LOOKED_AT, owner=owner))
        _check_owner(name, [each["owner"] for each in found if each["key"] == name])
        missing("schedule", name, (each["key"] for each in found))


def _check_owner(name: str, owners: Sequence[str | None]) -> None:
    if owners:
        whose = ", ".join(sorted(owner or "another app" for owner in owners))
        fail(f"{name!r} is a schedule of {whose}", hint="give --owner, or the schedule's id")


def named(api: Api, path: str, what: str, name: str, owner: str | None = None) -> dict[str, Any]:
    """The item of a list with this name or id; two owners may use the same name."""
    found = list(api.pages(path, owner=owner))
    same = named_or_prefix(found, what, name)
    if not same:
        missing(what, name, (each["name"] for each in found))
    if len(same) > 1:
        owners = ", ".join(str(each["owner"] or "no owner") for each in same)
        fail(
            f"there are {len(same)} {what}s called {name!r} ({owners})",
            hint="give --owner, or the id",
        )
    return dict(same[0])


REFERENCES = {"calendar": "/calendars", "endpoint": "/endpoints"}
"""Fields of a body or query that take a name or an id, and where they are looked up."""


def with_full_ids(api: Api, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, in which prefixes of ids are completed; a name is not taken for a prefix."""
    return {name: _full(api, name, value) for name, value in fields.items()}


def _full(api: Api, field: str, given: Any) -> Any:
    if field not in REFERENCES or not isinstance(given, str) or not is_prefix(given):
        return given
    found = named_or_prefix(api.pages(REFERENCES[field]), field, given)
    return given if not found or found[0]["name"] == given else found[0]["id"]


FILTERS = {"function": "/functions", "queue": "/queues"}


def no_match(api: Api, what: str, filters: Mapping[str, Any]) -> str:
    """What to print if a list is empty; a filter that nothing has may be mistyped."""
    for field, path in FILTERS.items():
        if filters.get(field) is not None:
            names = [each["name"] for each in api.items(path)]
            if filters[field] not in names and (near := did_you_mean(filters[field], names)):
                return f"no {what} with --{field} {filters[field]!r}; {near}"
    return f"no {what}"


def sure(question: str, *, force: bool) -> None:
    """Continue only if the user confirms, with --force or at the prompt."""
    if force:
        return
    if not sys.stdin.isatty():
        said = f"{question} Cannot ask: this is not a terminal"
        fail(said, hint="give --force to skip the question")
    if not click.confirm(safe(question), err=True):
        fail("nothing was changed")


def remove_it(root: Root, path: str, one: dict[str, Any], said: str = "removed") -> None:
    """Remove it without asking, and print that it was `said`."""
    root.api.delete(path, one["id"])
    answer = {"id": one["id"], "removed": True}
    root.out.show(answer, lambda: root.out.cell(f"{one['name']} was {said}"))


def all_of(*options: Decorator) -> Decorator:
    """Several options of a command, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


force_option = click.option("--force", is_flag=True, help="Do not ask for confirmation.")
owner_option = click.option("--owner", metavar="OWNER", help="Only this owner's objects.")
new_owner_option = click.option("--owner", metavar="OWNER", help="Set the owner.")
note_option = click.option("--note", metavar="TEXT", help="The reason, shown to other operators.")
