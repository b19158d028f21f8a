"""`duly why`: explain why a job or a schedule has not run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import click

from duly.cli.api import Api, ApiError
from duly.cli.ask import MAX_LOOKED_AT, owner_option, schedule_id
from duly.cli.command import Command
from duly.cli.ids import is_prefix, matching, missing, only, recent
from duly.cli.out import Item, Out
from duly.cli.root import Root
from duly.ids import is_id

if TYPE_CHECKING:
    from rich.console import RenderableType

SAY_HOW_LONG = ("waits_for_event", "waits_for_approval", "waits_for_jobs")
"""Reasons that say in words when they end."""


@click.command(cls=Command)
@click.argument("name", metavar="JOB_OR_SCHEDULE")
@owner_option
@click.pass_obj
def why(root: Root, name: str, owner: str | None) -> None:
    """Explain why a job or a schedule has not run.

    Give a job's id, or a schedule's key or id. Reasons are listed in the order in which they have
    to be resolved.

    \b
    duly why nightly
    duly why 0190f0c2-…
    """
    api, out = root.api, root.out
    found = _found(api, name, owner)
    out.show(found, lambda: _shown(out, found))


def _found(api: Api, name: str, owner: str | None) -> Item:
    if is_id(name):
        return _of_id(api, name)
    if not is_prefix(name) or _if_there(api, "/schedules/named", key=name, owner=owner):
        return _of_schedule(api, schedule_id(api, name, owner))
    both = [each["id"] for path in ("/jobs", "/schedules") for each in matching(api, path, name)]
    if not both:
        _missing(api, name, owner)
    return _of_id(api, only("job or schedule", name, both))


def _of_id(api: Api, name: str) -> Item:
    job: Item | None = _if_there(api, "/jobs/{}/why", name)
    if job is not None:
        return job
    if _if_there(api, "/schedules/{}", name) is None:
        _missing(api, name, None)
    return _of_schedule(api, name)


def _missing(api: Api, name: str, owner: str | None) -> NoReturn:
    keys = (each["key"] for each in api.pages("/schedules", most=MAX_LOOKED_AT, owner=owner))
    missing("job and no schedule", name, chain(keys, recent(api, "/jobs")))


def _of_schedule(api: Api, which: str) -> Item:
    """The schedule's reasons, with those of its unfinished jobs."""
    found: Item = api.get("/schedules/{}/why", which)
    named = dict.fromkeys(job for reason in found["reasons"] for job in reason["jobs"])
    jobs = (_if_there(api, "/jobs/{}/why", job) for job in named)
    return {**found, "jobs": [job for job in jobs if job is not None and _waits(job)]}


def _if_there(api: Api, path: str, *names: str, **query: str | None) -> Any:
    try:
        return api.get(path, *names, **query)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _waits(job: Item) -> bool:
    return any(reason["cause"] != "finished" for reason in job["reasons"])


def _shown(out: Out, found: Item) -> RenderableType:
    from rich.console import Group as Lines

    parts = [*_explained(out, found)]
    for job in found.get("jobs", ()):
        parts += _explained(out, job, f"job {job['job_id']}: ")
    return Lines(*parts)


def _explained(out: Out, found: Item, prefix: str = "") -> Sequence[RenderableType]:
    """A heading and a line for each reason."""
    from rich.table import Table

    texts = [reason["text"] for reason in found["reasons"]]
    head = found["text"].removesuffix(f": {'; '.join(texts)}.")
    lines = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    for reason in found["reasons"]:
        lines.add_row(out.styled("•", "dim"), out.cell(_line(out, reason)))
        if reason.get("traceback"):
            lines.add_row("", out.styled(reason["traceback"].rstrip(), "dim"))
    return [out.styled(f"{prefix}{head}", "bold"), lines]


def _line(out: Out, reason: Item) -> str:
    """The reason, with the time until which it holds in the displayed zone as well."""
    until = reason["until_ms"]
    if until is None:
        return str(reason["text"])
    if reason["cause"] in SAY_HOW_LONG:
        return f"{reason['text']} ({out.at(until)} {out.tz.key})"
    return f"{reason['text']}, {out.ago(until)} ({out.at(until)} {out.tz.key})"
