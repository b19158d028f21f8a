"""`duly gateways`: manage gateways and their crons."""

from __future__ import annotations

import shlex
from datetime import datetime
from functools import cached_property, partial
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
from duly.cli.command import EXIT_ERROR, EXIT_USAGE, Group, fail
from duly.cli.ids import missing, named_or_prefix
from duly.cli.out import Column, Item, Out, pretty
from duly.cli.root import Root
from duly.cli.values import Pair, together
from duly.cli.when import Length, Moment, ms_of, tz_option
from duly.model.durations import write_length

if TYPE_CHECKING:
    from rich.console import RenderableType

SERVE = (
    "duly.cli.gateway_serve:serve",
    "Run a gateway's crons and its REST API until SIGTERM or Ctrl-C.",
)


@click.group(cls=Group, lazy={"serve": SERVE})
def gateways() -> None:
    """Manage gateways and their crons."""


# Gateways ----------------------------------------------------------------------------------------


@gateways.command("list")
@owner_option
@click.pass_obj
def list_(root: Root, owner: str | None) -> None:
    """List gateways with their last known state, without contacting them.

    \b
    duly gateways list
    """
    out = root.out
    columns = [
        Column("name", "name"),
        Column("url", "url", flexible=True),
        Column("state", None, _state),
        Column("crons", "crons", len, right=True),
        Column("seen", "seen_at", out.ago_of, right=True),
        Column("owner", "owner"),
    ]
    found = list(root.api.pages("/gateways", owner=owner))
    out.table(found, columns, empty="no gateways; add one with `duly gateways add`")


def _state(gateway: Item) -> str:
    if gateway["stale"]:
        return "stale"
    return "ok" if gateway["seen_at"] else "never contacted"


@gateways.command()
@click.argument("name")
@click.argument("url")
@click.option(
    "--secret", metavar="REFERENCE", help="Its secret: env:NAME or file:PATH, read by the server."
)
@click.option("--link-local", is_flag=True, help="Accept a link-local address.")
@new_owner_option
@click.pass_obj
def add(
    root: Root, name: str, url: str, secret: str | None, link_local: bool, owner: str | None
) -> None:
    """Add a gateway, so that its crons can be listed and changed from here.

    \b
    duly gateways add edge http://10.1.0.7:8700 --secret env:EDGE_SECRET
    """
    place = {"url": url, "secret": secret, "link_local": link_local}
    body = {"name": name, "owner": owner, **place}
    made = root.api.post("/gateways", body=body)
    crons = shlex.join(["duly", "gateways", "crons", made["name"]])
    said = f"added {made['name']}; list its crons with `{crons}`"
    root.out.show(made, lambda: root.out.cell(said))


@gateways.command()
@click.argument("name", metavar="NAME|ID")
@owner_option
@force_option
@click.pass_obj
def remove(root: Root, name: str, owner: str | None, force: bool) -> None:
    """Forget a gateway; the gateway itself and its crons keep running.

    \b
    duly gateways remove edge
    """
    gateway = _get(root, name, owner)
    sure(f"Forget gateway {gateway['name']!r} ({gateway['url']})?", force=force)
    remove_it(root, "/gateways/{}", gateway, "forgotten")


def _get(root: Root, name: str, owner: str | None) -> Item:
    return named(root.api, "/gateways", "gateway", name, owner)


# Crons -------------------------------------------------------------------------------------------


class Crons:
    """The context of the commands on a gateway's crons; looks up the gateway when needed."""

    def __init__(self, root: Root, name: str, owner: str | None) -> None:
        self.root = root
        self._name, self._owner = name, owner

    @cached_property
    def gateway(self) -> Item:
        return _get(self.root, self._name, self._owner)


@gateways.group(cls=Group, invoke_without_command=True)
@click.argument("name", metavar="GATEWAY")
@owner_option
@click.pass_context
def crons(ctx: click.Context, name: str, owner: str | None) -> None:
    """List a gateway's crons, or change them with a subcommand.

    If the gateway does not respond, the last known crons are shown and the exit code is 1.

    \b
    duly gateways crons edge
    duly gateways crons edge add backup --cron "0 3 * * *"
    duly gateways crons edge run backup
    """
    of = Crons(ctx.obj, name, owner)
    ctx.obj = of
    if ctx.invoked_subcommand is None:
        _list_crons(of)


def _list_crons(of: Crons) -> None:
    out = of.root.out
    gateway = of.root.api.get("/gateways/{}/crons", of.gateway["id"])
    columns = [
        Column("name", "name"),
        Column("handler", "handler", flexible=True),
        Column("schedule", "schedule", _when, flexible=True),
        Column("zone", "tz", flexible=True),
        Column("status", None, _status),
        Column("next", "next_at", out.ago_of, right=True),
        Column("last run", None, partial(_last_run, out)),
    ]
    out.table(gateway["crons"], columns, empty="no crons", value=gateway)
    if gateway["stale"]:
        out.note(f"{gateway['name']} does not respond: {gateway['error']}")
        seen = gateway["seen_at"]
        out.note(f"last seen {out.ago_of(seen)}" if seen else "it has never responded")
        raise SystemExit(EXIT_ERROR)


def _when(schedule: Item) -> str:
    kind = schedule.get("kind")
    if kind == "cron":
        return str(schedule["cron"])
    if kind == "every":
        return f"every {write_length(schedule['every_ms'])}"
    return f"at {schedule.get('at')}"


def _status(cron: Item) -> str:
    return "enabled" if cron["enabled"] else "disabled"


def _last_run(out: Out, cron: Item) -> str | None:
    if cron["running_at"]:
        return f"{out.ago_of(cron['running_at'])}, running"
    ran_at = out.ago_of(cron["last_run_at"])
    return ran_at and f"{ran_at}, {cron['last_status']}"


_schedule_options = all_of(
    click.option("--cron", metavar="EXPRESSION", help="Run at the times of a cron expression."),
    tz_option("Time zone of --cron (default: UTC) and of times without an offset."),
    click.option("--every", type=Length(), help="Run at this interval, such as 5m or 2h."),
    click.option("--at", type=Moment(), help="Run once, at this time."),
)


PAYLOAD = "[NAME=TEXT | NAME:=JSON]..."


@crons.command("add")
@click.argument("handler")
@click.argument("payload", metavar=PAYLOAD, nargs=-1, type=Pair())
@_schedule_options
@click.option(
    "--name", "cron_name", metavar="NAME", help="Name of the cron (default: its handler's name)."
)
@click.option("--disabled", is_flag=True, help="Create it disabled.")
@click.pass_obj
def cron_add(
    of: Crons,
    handler: str,
    payload: tuple[tuple[str, Any], ...],
    cron: str | None,
    tz: str | None,
    every: float | None,
    at: datetime | None,
    cron_name: str | None,
    disabled: bool,
) -> None:
    """Add a cron to a gateway.

    \b
    duly gateways crons edge add backup --cron "0 3 * * *" --tz Europe/Istanbul
    duly gateways crons edge add probe --every 5m host=db1
    """
    schedule = _schedule(cron, tz, every, at)
    if schedule is None:
        fail("give --cron, --every or --at", EXIT_USAGE)
    body = {
        "handler": handler,
        "schedule": schedule,
        "name": cron_name,
        "payload": together(payload) or None,
        "enabled": not disabled,
    }
    made = of.root.api.post("/gateways/{}/crons", of.gateway["id"], body=body)
    of.root.out.show(made, lambda: _shown(of.root.out, made))


@crons.command("update")
@click.argument("cron_id", metavar="CRON")
@click.argument("payload", metavar=PAYLOAD, nargs=-1, type=Pair())
@_schedule_options
@click.option("--handler", metavar="NAME", help="Call this handler.")
@click.option("--name", "cron_name", metavar="NAME", help="Rename it.")
@click.option("--enable/--disable", "enabled", default=None, help="Enable or disable it.")
@click.pass_obj
def cron_update(
    of: Crons,
    cron_id: str,
    payload: tuple[tuple[str, Any], ...],
    cron: str | None,
    tz: str | None,
    every: float | None,
    at: datetime | None,
    handler: str | None,
    cron_name: str | None,
    enabled: bool | None,
) -> None:
    """Change a gateway's cron; a payload replaces the existing one.

    \b
    duly gateways crons edge update backup --disable
    """
    changes = {
        "handler": handler,
        "schedule": _schedule(cron, tz, every, at),
        "name": cron_name,
        "payload": together(payload) or None,
        "enabled": enabled,
    }
    given = {field: value for field, value in changes.items() if value is not None}
    if not given:
        fail("give at least one change: --cron, --disable …", EXIT_USAGE)
    gateway, found = _cron(of, cron_id)
    changed = of.root.api.patch("/gateways/{}/crons/{}", gateway, found["id"], body=given)
    of.root.out.show(changed, lambda: _shown(of.root.out, changed))


@crons.command("run")
@click.argument("cron_id", metavar="CRON")
@click.option("--if-due", is_flag=True, help="Only if it is due.")
@click.pass_obj
def cron_run(of: Crons, cron_id: str, if_due: bool) -> None:
    """Run a gateway's cron now; exit 1 if it was not run.

    \b
    duly gateways crons edge run backup --if-due
    """
    gateway, found = _cron(of, cron_id)
    body = {"mode": "due" if if_due else "force"}
    answer = of.root.api.post("/gateways/{}/crons/{}/run", gateway, found["id"], body=body)
    said = "was started" if answer["ran"] else f"was not run: {answer['reason']}"
    of.root.out.show(answer, lambda: of.root.out.cell(f"{found['name']} {said}"))
    if not answer["ran"]:
        raise SystemExit(EXIT_ERROR)


@crons.command("remove")
@click.argument("cron_id", metavar="CRON")
@force_option
@click.pass_obj
def cron_remove(of: Crons, cron_id: str, force: bool) -> None:
    """Remove a gateway's cron.

    \b
    duly gateways crons edge remove backup
    """
    gateway, found = _cron(of, cron_id)
    sure(f"Remove cron {found['name']!r} of gateway {of.gateway['name']!r}?", force=force)
    answer = of.root.api.delete("/gateways/{}/crons/{}", gateway, found["id"])
    of.root.out.show(answer, lambda: of.root.out.cell(f"{found['name']} was removed"))


def _schedule(
    cron: str | None, tz: str | None, every: float | None, at: datetime | None
) -> Item | None:
    given = sum(value is not None for value in (cron, every, at))
    if given > 1:
        fail("give one of --cron, --every and --at", EXIT_USAGE)
    zone = {} if tz is None else {"tz": tz}
    if cron is not None:
        return {"kind": "cron", "cron": cron, **zone}
    if every is not None:
        return {"kind": "every", "every_ms": round(every * 1000), **zone}
    if zone and at is None:
        fail("--tz goes with --cron, --every or --at", EXIT_USAGE)
    return None if at is None else {"kind": "at", "at": at.isoformat()}


def _cron(of: Crons, cron: str) -> tuple[str, Item]:
    """The gateway's id, and its current cron with this name or id."""
    gateway = of.root.api.get("/gateways/{}/crons", of.gateway["id"])
    if gateway["stale"]:
        fail(f"gateway {gateway['name']!r} does not respond: {gateway['error']}")
    known: list[Item] = gateway["crons"]
    found = named_or_prefix(known, "cron", cron)
    if not found:
        missing(f"cron of {gateway['name']!r} called", cron, (each["name"] for each in known))
    return gateway["id"], dict(found[0])


def _shown(out: Out, cron: Item) -> RenderableType:
    return out.fields(
        [
            ("id", cron["id"]),
            ("name", cron["name"]),
            ("handler", cron["handler"]),
            ("schedule", _when(cron["schedule"])),
            ("zone", cron["tz"]),
            ("payload", pretty(cron["payload"]) if cron["payload"] else None),
            ("status", _status(cron)),
            ("next", out.moment(ms_of(cron["next_at"]))),
            ("last run", _last_run(out, cron)),
            ("error", cron["last_error"]),
        ]
    )
