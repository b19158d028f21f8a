"""`duly webhooks`: list, inspect and retry received webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.api import Api, ApiError
from duly.cli.ask import owner_option
from duly.cli.command import EXIT_ERROR, Group
from duly.cli.ids import missing, recent, resolved
from duly.cli.out import Column, Item, Out, pretty
from duly.cli.root import Root

if TYPE_CHECKING:
    from rich.console import RenderableType

STATES = ["pending", "processing", "processed", "failed", "filtered"]


@click.group(cls=Group)
def webhooks() -> None:
    """List, inspect and retry received webhooks."""


@webhooks.command("list")
@click.option("--webhook", metavar="NAME", help="Only deliveries to this webhook.")
@click.option("--state", type=click.Choice(STATES), help="Only deliveries in this state.")
@owner_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of deliveries.",
)
@click.pass_obj
def list_(root: Root, /, limit: int, **filters: str | None) -> None:
    """List received deliveries, newest first.

    \b
    duly webhooks list --webhook github --state failed
    """
    out = root.out
    found = list(root.api.pages("/webhooks", most=limit, cursor="before", **filters))
    columns = [
        Column("id", "id", ids=True),
        Column("webhook", "webhook", flexible=True),
        Column("type", "type", flexible=True),
        Column("state", "state"),
        Column("received", "received_at_ms", out.ago, right=True),
    ]
    out.table(found, columns, empty="no deliveries")


@webhooks.command()
@click.argument("event_id", metavar="ID")
@click.pass_obj
def show(root: Root, event_id: str) -> None:
    """Show a delivery: headers without secrets, payload and outcome.

    \b
    duly webhooks show 0190f0c2-…
    """
    event = _get(root.api, event_id)
    root.out.show(event, lambda: _shown(root.out, event))


@webhooks.command()
@click.argument("event_ids", metavar="ID...", nargs=-1, required=True)
@click.pass_obj
def retry(root: Root, event_ids: tuple[str, ...]) -> None:
    """Process failed deliveries again; exit 1 if one of them has not failed.

    \b
    duly webhooks retry 0190f0c2-…
    """
    api = root.api
    answers = [
        {"id": event_id, **api.post("/webhooks/{}/retry", event_id)}
        for event_id in [_get(api, text)["id"] for text in event_ids]
    ]
    root.out.show(answers, lambda: None)
    for answer in answers:
        root.out.say(f"{answer['id']} {_became(answer)}")
    if not all(answer["retried"] for answer in answers):
        raise SystemExit(EXIT_ERROR)


def _became(answer: Item) -> str:
    if answer["retried"]:
        return f"is processed again as job {answer['job_id']}"
    return f"is {answer['state']}; only failed deliveries can be retried"


def _get(api: Api, event_id: str) -> Item:
    try:
        found: Item = api.get("/webhooks/{}", resolved(api, "delivery", "/webhooks", event_id))
    except ApiError as error:
        if error.status != 404:
            raise
        missing("delivery", event_id, recent(api, "/webhooks"))
    return found


def _shown(out: Out, event: Item) -> RenderableType:
    headers = "\n".join(f"{name}: {value}" for name, value in event["headers"].items())
    return out.fields(
        [
            ("id", event["id"]),
            ("webhook", event["webhook"]),
            ("type", event["type"]),
            ("entity", event["entity"]),
            ("delivery", event["delivery"]),
            ("owner", event["owner"]),
            ("state", event["state"]),
            ("attempts", event["attempts"] or None),
            ("error", event["error"]),
            ("job", event["job_id"]),
            ("received", out.moment(event["received_at_ms"])),
            ("size", f"{event['size']:,} bytes"),
            ("headers", headers or None),
            ("payload", pretty(event["payload"])),
        ]
    )
