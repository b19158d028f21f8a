"""`duly tokens`: manage the API tokens of the server."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from duly.cli.api import Api
from duly.cli.ask import force_option, owner_option, sure
from duly.cli.command import Group, fail
from duly.cli.ids import missing, named_or_prefix
from duly.cli.out import Column, Item
from duly.cli.root import Root
from duly.cli.when import Moment, tz_option

SCOPES = ["read", "enqueue", "operate", "admin"]


@click.group(cls=Group)
def tokens() -> None:
    """Create, list and revoke API tokens."""


@tokens.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    required=True,
    help="What it allows; repeatable. operate includes read and enqueue; admin includes all.",
)
@click.option("--owner", metavar="OWNER", help="Limit it to this owner.")
@click.option("--expires", type=Moment(), help="Expire at this time (default: never).")
@tz_option("Time zone in which the dashboard shows times to its user.")
@click.pass_obj
def create(
    root: Root,
    name: str,
    scopes: tuple[str, ...],
    owner: str | None,
    expires: datetime | None,
    tz: str | None,
) -> None:
    """Create a token. Its secret is shown only once.

    \b
    duly tokens create deploy --scope operate --expires +90d
    export DULY_TOKEN=$(duly tokens create ci --scope read --scope enqueue)
    """
    body: dict[str, Any] = {
        "name": name,
        "scopes": list(scopes),
        "owner": owner,
        "expires_at": None if expires is None else expires.isoformat(),
        "tz": tz,
    }
    made = root.api.post("/tokens", body=body)
    root.out.note(f"token {made['name']!r} for {', '.join(made['scopes'])}; this is its secret,")
    root.out.note("which is shown only once: store it safely")
    root.out.show(made, lambda: None)
    # Printed raw on its own line, so that no terminal width can break it.
    root.out.say(made["secret"])


@tokens.command("list")
@owner_option
@click.option("--all", "every", is_flag=True, help="Include revoked and expired tokens.")
@click.pass_obj
def list_(root: Root, owner: str | None, every: bool) -> None:
    """List valid tokens, oldest first.

    --json includes their ids. Secrets are not stored.

    \b
    duly tokens list --all
    """
    out = root.out
    found = [
        each
        for each in root.api.pages("/tokens", owner=owner)
        if every or each["status"] == "active"
    ]
    columns = [
        Column("name", "name"),
        Column("scopes", "scopes", ", ".join, flexible=True),
        Column("owner", "owner", flexible=True),
        Column("status", "status"),
        Column("expires", "expires_at", out.ago_of, right=True),
        Column("last used", "last_used_at", out.ago_of, right=True),
    ]
    out.table(found, columns, empty="no tokens; create one with `duly tokens create`")


@tokens.command()
@click.argument("name", metavar="NAME|ID")
@force_option
@click.pass_obj
def revoke(root: Root, name: str, force: bool) -> None:
    """Revoke a token permanently.

    \b
    duly tokens revoke deploy
    """
    token = _found(root.api, name)
    sure(f"Revoke token {token['name']!r} ({token['id']})?", force=force)
    answer = root.api.post("/tokens/{}/revoke", token["id"])
    shown = {"id": token["id"], **answer}
    said = "was revoked" if answer["revoked"] else "had already been revoked"
    root.out.show(shown, lambda: root.out.cell(f"{token['name']} {said}"))


def _found(api: Api, name: str) -> Item:
    """The token with this id, or the only valid one with this name."""
    every = list(api.pages("/tokens"))
    active = [each for each in every if each["status"] == "active"]
    same = [each for each in every if each["id"] == name]
    same = same or named_or_prefix(active, "token", name)
    if not same:
        missing("valid token", name, (each["name"] for each in every))
    if len(same) > 1:
        ids = ", ".join(each["id"] for each in same)
        fail(f"{len(same)} tokens are called {name!r}: {ids}", hint="give an id")
    return dict(same[0])
