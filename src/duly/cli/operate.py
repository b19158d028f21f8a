"""Queues, workers, the kill switch, the audit log and the version."""

from __future__ import annotations

from typing import Any, cast

import click

import duly
from duly.cli.ask import named, note_option, schedule_id
from duly.cli.command import Command, Group
from duly.cli.ids import LISTS, missing, resolved
from duly.cli.out import Column, Item, brief
from duly.cli.root import Root
from duly.ids import is_id
from duly.nearest import did_you_mean

Pause = dict[str, Any] | None
AUDITED = (*LISTS, "function", "queue", "webhook")
"""What the target of an audit entry can be, apart from the whole system."""


@click.command(cls=Command)
@click.pass_obj
def version(root: Root) -> None:
    """Print the version.

    \b
    duly version
    """
    root.out.show({"version": duly.__version__}, lambda: root.out.cell(duly.__version__))


# Everything --------------------------------------------------------------------------------------


@click.command(cls=Command)
@note_option
@click.pass_obj
def pause(root: Root, note: str | None) -> None:
    """Pause everything: no job starts and no tick is dispatched.

    Running jobs continue. Ticks that become due meanwhile are recorded as skipped by the kill
    switch.

    \b
    duly pause --note "moving the database"
    """
    answer = root.api.post("/kill-switch/pause", body={"note": note})
    root.out.show(answer, lambda: root.out.cell(f"everything is paused {_by(answer['paused'])}"))


@click.command(cls=Command)
@click.pass_obj
def resume(root: Root) -> None:
    """Resume after `duly pause`.

    \b
    duly resume
    """
    answer = root.api.post("/kill-switch/resume")
    root.out.show(answer, lambda: root.out.cell("everything is running again"))


def _by(paused: Pause) -> str:
    if paused is None:
        return ""
    by = f"by {paused['by']}" if paused["by"] else ""
    return f"{by}: {paused['note']}" if paused["note"] else by


# Queues ------------------------------------------------------------------------------------------


@click.group(cls=Group)
def queues() -> None:
    """List, pause and resume queues."""


@queues.command("list")
@click.pass_obj
def list_queues(root: Root) -> None:
    """List every queue that a function, worker, pause or limit refers to.

    \b
    duly queues list
    """
    columns = [
        Column("queue", "name"),
        Column("state", None, _state),
        Column("at once", "at_once", right=True),
        Column("note", "paused", _by, flexible=True),
    ]
    root.out.table(root.api.items("/queues"), columns, empty="no queues")


@queues.command("pause")
@click.argument("name")
@note_option
@click.pass_obj
def pause_queue(root: Root, name: str, note: str | None) -> None:
    """Pause a queue: start no more of its jobs; running jobs continue.

    \b
    duly queues pause mail --note "the provider is down"
    """
    _check_queue(root, name)
    answer = root.api.post("/queues/{}/pause", name, body={"note": note})
    root.out.show(answer, lambda: root.out.cell(f"{name} is paused {_by(answer['paused'])}"))


@queues.command("resume")
@click.argument("name")
@click.pass_obj
def resume_queue(root: Root, name: str) -> None:
    """Resume a paused queue.

    \b
    duly queues resume mail
    """
    _check_queue(root, name)
    answer = root.api.post("/queues/{}/resume", name)
    root.out.show(answer, lambda: root.out.cell(f"{name} is active again"))


def _state(queue: Item) -> str:
    return "paused" if queue["paused"] else "active"


def _check_queue(root: Root, name: str) -> None:
    """Refuse unknown names, which are more likely typos than future queues."""
    names = [queue["name"] for queue in root.api.items("/queues")]
    if name not in names:
        missing("queue", name, names)


# Workers and the audit log -----------------------------------------------------------------------


@click.group(cls=Group)
def workers() -> None:
    """List workers."""


@workers.command("list")
@click.pass_obj
def list_workers(root: Root) -> None:
    """List the registered workers.

    \b
    duly workers list
    """
    out = root.out
    columns = [
        Column("id", "id", ids=True),
        Column("host", "host", flexible=True),
        Column("pid", "pid", right=True),
        Column("slots", "slots", right=True),
        Column("threads", "threads", right=True),
        Column("queues", None, _served, flexible=True),
        Column("started", "started_at_ms", out.ago, right=True),
    ]
    out.table(root.api.items("/workers"), columns, empty="no workers; start one with `duly worker`")


def _served(worker: Item) -> str:
    return ", ".join(worker["queues"] or ["all"])


@click.command(cls=Command)
@click.option(
    "--target",
    metavar="KIND:NAME|ID",
    help="Only changes to this object, such as schedule:nightly or job:ID.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of entries.",
)
@click.pass_obj
def audit(root: Root, target: str | None, limit: int) -> None:
    """Show the audit log, newest entry first.

    \b
    duly audit --limit 100
    """
    out = root.out
    if target is not None:
        target = _full_target(root, target)
    columns = [
        Column("when", "at_ms", out.at),
        Column("who", "actor", flexible=True),
        Column("what", "action"),
        Column("target", "target", flexible=True, least=28, ids=True),
        Column("detail", "detail", _detail, flexible=True, least=12),
    ]
    found = list(root.api.pages("/audit", most=limit, cursor="before", target=target))
    out.table(found, columns, empty=_no_entries(target))


def _no_entries(target: str | None) -> str:
    """What to print if there are none; the kind of the target may be mistyped."""
    kind, _, name = (target or "").partition(":")
    if name and kind not in AUDITED and (near := did_you_mean(kind, AUDITED)):
        return f"no audit entries with --target {target!r}; {near}"
    return "no audit entries"


def _detail(detail: Any) -> str:
    if not isinstance(detail, dict):
        return brief(detail)
    fields = cast("dict[str, Any]", detail)
    return ", ".join(f"{name}: {brief(each)}" for name, each in fields.items() if each is not None)


def _full_target(root: Root, target: str) -> str:
    """KIND:ID with a full id; other targets, such as functions, have no ids."""
    kind, _, text = target.partition(":")
    if kind == "webhook":
        return f"{kind}:{resolved(root.api, 'delivery', '/webhooks', text)}"
    if kind not in LISTS or is_id(text):
        return target
    if kind == "schedule":
        return f"{kind}:{schedule_id(root.api, text)}"
    if kind == "job":
        return f"{kind}:{resolved(root.api, kind, LISTS[kind], text)}"
    return f"{kind}:{named(root.api, LISTS[kind], kind, text)['id']}"
