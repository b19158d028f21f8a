"""`duly workflows`: list and inspect runs, send them events, answer and resume them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from duly.cli import complete
from duly.cli.api import Api, ApiError
from duly.cli.ask import no_match, owner_option
from duly.cli.command import EXIT_ERROR, Group
from duly.cli.ids import missing, recent, resolved
from duly.cli.out import Column, Item, Out, brief, pretty
from duly.cli.root import Root
from duly.cli.values import Json
from duly.cli.when import length

if TYPE_CHECKING:
    from rich.console import RenderableType

STATES = ["not_started", "waiting", "held", "running", "succeeded", "failed", "canceled"]
MAX_UNREAD = 20
"""How many unread events `show` lists."""


@click.group(cls=Group)
def workflows() -> None:
    """List and inspect workflow runs, send them events, answer and resume them."""


# Reading -----------------------------------------------------------------------------------------


@workflows.command("list")
@click.option(
    "--state",
    type=click.Choice(STATES),
    help="Only runs in this state. waiting: started, and waiting for something.",
)
@click.option(
    "--function",
    metavar="NAME",
    shell_complete=complete.functions,
    help="Only runs of this workflow.",
)
@owner_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of runs.",
)
@click.pass_obj
def list_(
    root: Root, limit: int, state: str | None, function: str | None, owner: str | None
) -> None:
    """List workflow runs, newest first.

    \b
    duly workflows list --state waiting
    duly workflows list --function checkout --json
    """
    filters = {"phase": state, "function": function, "owner": owner}
    found = list(root.api.pages("/workflows", most=limit, cursor="before", **filters))
    out = root.out
    columns = [
        Column("id", "id", ids=True),
        Column("workflow", "function", flexible=True, least=12),
        Column("state", "phase", _words),
        Column("created", "created_at_ms", out.ago, right=True),
        Column("waits for", None, partial(_waits_in_short, out), flexible=True, least=12),
    ]
    out.table(found, columns, empty=partial(no_match, root.api, "workflow runs", filters))


@workflows.command()
@click.argument("run_id", metavar="ID")
@click.pass_obj
def show(root: Root, run_id: str) -> None:
    """Show a run: its steps with inputs and results, and what it waits for.

    \b
    duly workflows show 0190f0c2-…
    """
    api, out = root.api, root.out
    run = _get(api, run_id)
    steps = list(api.pages("/workflows/{}/steps", run["id"]))
    events = _unread(api, run["id"])
    out.show(
        {**run, "steps": steps, "unread_events": events}, lambda: _shown(out, run, steps, events)
    )


def _unread(api: Api, run_id: str) -> list[Item]:
    """The events that no step has received."""
    found: list[Item] = []
    after: int | None = 0
    while after is not None:
        page = api.get("/workflows/{}/events", run_id, after=after, unread=True)
        found += page["items"]
        after = page["next"]
    return found


# Changing ----------------------------------------------------------------------------------------


@workflows.command()
@click.argument("run_id", metavar="ID")
@click.argument("name")
@click.argument("payload", metavar="[JSON]", type=Json(), required=False)
@click.option("--once", metavar="KEY", help="Send it only once, however often this is repeated.")
@click.pass_obj
def send(root: Root, run_id: str, name: str, payload: Any, once: str | None) -> None:
    """Send an event to a run.

    The payload is JSON, or @FILE to read it from a file.

    \b
    duly workflows send 0190f0c2-… packed '{"tracking": "X1"}' --once parcel-7
    """
    run = _get(root.api, run_id)
    body = {"name": name, "payload": payload, "once": once}
    sent = root.api.post("/workflows/{}/events", run["id"], body=body)
    root.out.show(sent, lambda: root.out.cell(f"{name} was sent to {run['id']}"))


_data = click.option("--data", metavar="JSON", type=Json(), help="Data to give with the answer.")


@workflows.command()
@click.argument("run_id", metavar="ID")
@click.argument("name", default="approval")
@click.option("--choice", metavar="OPTION", help="Choose this option. Default: the first.")
@_data
@click.pass_obj
def approve(root: Root, run_id: str, name: str, choice: str | None, data: Any) -> None:
    """Answer an approval with its first option, or with another one.

    \b
    duly workflows approve 0190f0c2-…
    duly workflows approve 0190f0c2-… budget --choice later --data '{"days": 2}'
    """
    _answer(root, "approve", run_id, {"name": name, "choice": choice, "data": data})


@workflows.command()
@click.argument("run_id", metavar="ID")
@click.argument("name", default="approval")
@_data
@click.pass_obj
def reject(root: Root, run_id: str, name: str, data: Any) -> None:
    """Answer an approval with its last option.

    \b
    duly workflows reject 0190f0c2-… --data '{"why": "too expensive"}'
    """
    _answer(root, "reject", run_id, {"name": name, "data": data})


def _answer(root: Root, verb: str, run_id: str, body: Mapping[str, Any]) -> None:
    run = _get(root.api, run_id)
    decision = root.api.post(f"/workflows/{{}}/{verb}", run["id"], body=body)
    said = f"{body['name']} of {run['id']} was answered with {decision['choice']}"
    root.out.show(decision, lambda: root.out.cell(said))


@workflows.command()
@click.argument("run_id", metavar="ID")
@click.pass_obj
def resume(root: Root, run_id: str) -> None:
    """Let a held run continue with the current code; exit 1 if it is not held.

    A run is held if its code raised an exception that it does not declare, or no longer fits what
    the run has recorded. It also continues by itself when other code starts.

    \b
    duly workflows resume 0190f0c2-…
    """
    run = _get(root.api, run_id)
    answer = root.api.post("/workflows/{}/resume", run["id"])
    said = "continues" if answer["resumed"] else "is not held"
    root.out.show(answer, lambda: root.out.cell(f"{run['id']} {said}"))
    if not answer["resumed"]:
        raise SystemExit(EXIT_ERROR)


# Shared by several commands ----------------------------------------------------------------------


def _get(api: Api, run_id: str) -> Item:
    try:
        run: Item = api.get("/workflows/{}", resolved(api, "workflow run", "/workflows", run_id))
    except ApiError as error:
        if error.status != 404 or error.code != "job_not_found":
            raise
        missing("workflow run", run_id, recent(api, "/workflows"))
    return run


def _words(text: str) -> str:
    return text.replace("_", " ")


def _wait_in_words(out: Out, wait: Item) -> str:
    """event packed, approval budget, job …, until in 5m."""
    if wait["kind"] == "timer":
        return f"timer, {out.ago(wait['until_ms'])}"
    return f"{_words(wait['kind'])} {wait['name']}"


def _waits_in_short(out: Out, run: Item) -> str:
    return ", ".join(_wait_in_words(out, wait) for wait in run["waits"])


def _shown(out: Out, run: Item, steps: Sequence[Item], events: Sequence[Item]) -> RenderableType:
    from rich.console import Group as Lines

    error = run["error"]
    fields = [
        ("id", run["id"]),
        ("workflow", run["function"]),
        ("state", _words(run["phase"])),
        ("arguments", pretty(run["args"]) if run["args"] else None),
        ("created", out.moment(run["created_at_ms"])),
        ("completed", out.moment(run["completed_at_ms"])),
        ("owner", run["owner"]),
        ("canceled by", run["canceled_by"]),
        ("result", None if run["result"] is None else pretty(run["result"])),
        ("error", error and error["message"]),
    ]
    parts: list[RenderableType] = [out.fields(fields)]
    if error is not None and error["traceback"]:
        parts.append(out.styled(error["traceback"].rstrip(), "dim"))
    if run["waits"]:
        parts += [out.cell("\nwaits for"), out.grid(run["waits"], _wait_columns(out))]
    if steps:
        parts += [out.cell("\nsteps"), out.grid(steps, _step_columns(out))]
    if events:
        columns = [
            Column("event", "name"),
            Column("sent", "sent_at_ms", out.ago, right=True),
            Column("payload", "payload", brief, flexible=True),
        ]
        parts += [out.cell("\nunread events"), out.grid(events[:MAX_UNREAD], columns)]
        if len(events) > MAX_UNREAD:
            parts.append(out.cell(f"and {len(events) - MAX_UNREAD:,} more"))
    return Lines(*parts)


def _wait_columns(out: Out) -> list[Column]:
    return [
        Column("what", None, partial(_wait_in_words, out)),
        Column("since", "since_ms", out.ago, right=True),
        Column("ends", "until_ms", out.ago, right=True),
        Column("asks", None, _asks, flexible=True),
    ]


def _asks(wait: Item) -> str | None:
    """What an approval asks, and with which answers."""
    if wait["error"] is not None:
        return str(wait["error"]["message"])
    if wait["kind"] != "approval":
        return None
    to = f"{wait['to']}: " if wait["to"] else ""
    return f"{to}{wait['text'] or ''} ({', '.join(wait['options'])})"


def _step_columns(out: Out) -> list[Column]:
    return [
        Column("step", "label"),
        Column("kind", "kind"),
        Column("state", "state", _words),
        Column("try", "attempt", right=True),
        Column("took", None, _took, right=True),
        Column("input", None, _input, flexible=True),
        Column("result", None, _outcome, flexible=True),
    ]


def _input(step: Item) -> str | None:
    return brief(step["args"]) if step["args"] else None


def _took(step: Item) -> str | None:
    if step["ended_at_ms"] is None:
        return None
    return length((step["ended_at_ms"] - step["started_at_ms"]) / 1000)


def _outcome(step: Item) -> str | None:
    if step["error"] is not None:
        return str(step["error"]["message"])
    if step["job_id"] is not None:
        return f"job {step['job_id']}"
    return None if step["result"] is None else brief(step["result"])
