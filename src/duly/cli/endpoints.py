"""`duly endpoints`: manage the HTTP addresses that jobs and schedules POST to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.cli.ask import (
    all_of,
    force_option,
    named,
    new_owner_option,
    owner_option,
    remove_it,
    sure,
)
from duly.cli.command import EXIT_USAGE, Group, fail
from duly.cli.follow import follow
from duly.cli.jobs import end
from duly.cli.out import Column, Item, Out
from duly.cli.root import Root
from duly.cli.values import Json
from duly.cli.when import Length, length

if TYPE_CHECKING:
    from rich.console import RenderableType

SECRET = "Sign requests with this secret: env:NAME or file:PATH, read by the workers."


@click.group(cls=Group)
def endpoints() -> None:
    """List, create, change and remove endpoints, and send to them."""


_settings = all_of(
    click.option(
        "--header",
        "headers",
        metavar="NAME=VALUE",
        multiple=True,
        help="Send this header; give credentials as a reference: authorization=env:NAME.",
    ),
    click.option("--timeout", type=Length(), help="Time limit of one attempt."),
    click.option(
        "--attempts",
        type=click.IntRange(1, 1_000),
        help="Maximum number of attempts; 1: at most once, even after a crash.",
    ),
)


# Reading -----------------------------------------------------------------------------------------


@endpoints.command("list")
@owner_option
@click.pass_obj
def list_(root: Root, owner: str | None) -> None:
    """List endpoints, oldest first.

    \b
    duly endpoints list
    """
    columns = [
        Column("name", "name"),
        Column("url", "url", flexible=True),
        Column("signed", None, _signed),
        Column("attempts", "retry", _attempts, right=True),
        Column("timeout", "timeout", length, right=True),
        Column("owner", "owner"),
    ]
    found = list(root.api.pages("/endpoints", owner=owner))
    root.out.table(found, columns, empty="no endpoints; create one with `duly endpoints create`")


@endpoints.command()
@click.argument("name", metavar="NAME|ID")
@owner_option
@click.pass_obj
def show(root: Root, name: str, owner: str | None) -> None:
    """Show an endpoint; secrets are shown only as references.

    \b
    duly endpoints show billing
    """
    endpoint = _get(root, name, owner)
    root.out.show(endpoint, lambda: _shown(root.out, endpoint))


def _get(root: Root, name: str, owner: str | None) -> Item:
    return named(root.api, "/endpoints", "endpoint", name, owner)


def _signed(endpoint: Item) -> str:
    return "no" if endpoint["secret"] is None else "yes"


def _attempts(retry: Item) -> int:
    return int(retry["attempts"])


def _shown(out: Out, endpoint: Item) -> RenderableType:
    headers = "\n".join(f"{name}: {value}" for name, value in endpoint["headers"].items())
    retry = endpoint["retry"]
    tries = "at most once" if retry is None else f"up to {retry['attempts']} times"
    return out.fields(
        [
            ("id", endpoint["id"]),
            ("name", endpoint["name"]),
            ("url", endpoint["url"]),
            ("secret", endpoint["secret"]),
            ("headers", headers or None),
            ("sent", f"{tries}, within {length(endpoint['timeout'])} each time"),
            ("owner", endpoint["owner"]),
            ("version", endpoint["version"]),
            ("created", out.moment(endpoint["created_at_ms"])),
            ("updated", out.moment(endpoint["updated_at_ms"])),
        ]
    )


# Changing ----------------------------------------------------------------------------------------


@endpoints.command()
@click.argument("name")
@click.argument("url")
@click.option("--secret", metavar="REFERENCE", help=SECRET)
@_settings
@new_owner_option
@click.pass_obj
def create(
    root: Root,
    name: str,
    url: str,
    secret: str | None,
    headers: tuple[str, ...],
    timeout: float | None,
    attempts: int | None,
    owner: str | None,
) -> None:
    """Create an endpoint.

    \b
    duly endpoints create billing https://billing.example.com/hook --attempts 5
    duly endpoints create crm https://crm.example.com/in --secret env:CRM_SECRET \\
        --header authorization=env:CRM_TOKEN
    """
    body: dict[str, Any] = {
        "name": name,
        "url": url,
        "secret": secret,
        "headers": _headers(headers),
        "owner": owner,
        "retry": None if attempts is None else _retry(attempts),
    }
    if timeout is not None:
        body["timeout"] = timeout
    made = root.api.post("/endpoints", body=body)
    root.out.show(made, lambda: root.out.cell(f"created {made['name']}: {made['url']}"))


@endpoints.command()
@click.argument("name", metavar="NAME|ID")
@click.option("--name", "new_name", metavar="NAME", help="Rename it.")
@click.option("--url", "url", metavar="URL", help="Change the URL, for waiting jobs as well.")
@click.option("--secret", metavar="REFERENCE", help=f"{SECRET} Empty: do not sign.")
@_settings
@owner_option
@click.pass_obj
def update(
    root: Root,
    name: str,
    new_name: str | None,
    url: str | None,
    secret: str | None,
    headers: tuple[str, ...],
    timeout: float | None,
    attempts: int | None,
    owner: str | None,
) -> None:
    """Change an endpoint; options that are not given stay as they are.

    --header adds or replaces a header; NAME= with no value removes it.

    \b
    duly endpoints update billing --url https://pay.example.com/hook --attempts 3
    """
    changes: dict[str, Any] = {"name": new_name, "url": url, "timeout": timeout}
    changes = {field: value for field, value in changes.items() if value is not None}
    if secret is not None:
        changes["secret"] = secret or None
    if not changes and not headers and attempts is None:
        fail("give at least one change: --url, --secret, --header …", EXIT_USAGE)
    endpoint = _get(root, name, owner)
    if attempts is not None:
        changes["retry"] = _retry(attempts, endpoint["retry"])
    if headers:
        changes["headers"] = _merged(endpoint["headers"], _headers(headers))
    changes["version"] = endpoint["version"]
    changed = root.api.patch("/endpoints/{}", endpoint["id"], body=changes)
    root.out.show(changed, lambda: _shown(root.out, changed))


@endpoints.command()
@click.argument("name", metavar="NAME|ID")
@owner_option
@force_option
@click.pass_obj
def remove(root: Root, name: str, owner: str | None, force: bool) -> None:
    """Remove an endpoint; jobs that have not been sent to it yet fail.

    \b
    duly endpoints remove billing
    """
    endpoint = _get(root, name, owner)
    sure(f"Remove endpoint {endpoint['name']!r} ({endpoint['url']})?", force=force)
    remove_it(root, "/endpoints/{}", endpoint)


@endpoints.command()
@click.argument("name", metavar="NAME|ID")
@click.argument("body", metavar="[JSON|@FILE]", required=False, type=Json())
@click.option("--no-wait", is_flag=True, help="Print the job's id and exit.")
@click.option("--key", metavar="KEY", help="Idempotency key: a second send with it sends nothing.")
@owner_option
@click.pass_obj
def send(
    root: Root, name: str, body: Any, no_wait: bool, key: str | None, owner: str | None
) -> None:
    """Send a POST now, as a job, and wait for it; exit 1 if it fails.

    \b
    duly endpoints send billing '{"order": 7}'
    duly endpoints send billing @order.json --no-wait
    """
    endpoint = _get(root, name, owner)
    content = {} if body is None else {"body": body}
    job = root.api.post("/endpoints/{}/send", endpoint["id"], body=content, key=key)
    if no_wait:
        root.out.show(job, lambda: root.out.cell(job["id"]))
    else:
        end(root.out, follow(root.api, root.out, job["id"], endpoint["name"]))


# Arguments ---------------------------------------------------------------------------------------


def _retry(attempts: int, before: Item | None = None) -> Item | None:
    """The retry policy with this number of attempts, keeping the delays."""
    return None if attempts == 1 else {**(before or {}), "attempts": attempts}


def _headers(pairs: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not name.strip() or not sign:
            # The value may be a secret, so the message does not repeat it.
            fail("--header must be NAME=VALUE", EXIT_USAGE)
        headers[name.strip()] = value
    return headers


def _merged(before: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """Headers with some of them replaced; names are not case-sensitive."""
    names = {name.lower() for name in given}
    kept = {name: value for name, value in before.items() if name.lower() not in names}
    return kept | {name: value for name, value in given.items() if value}
