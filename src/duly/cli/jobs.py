"""`duly jobs`: list, inspect, retry and cancel jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from duly.cli import complete
from duly.cli.api import Api, ApiError
from duly.cli.ask import all_of, force_option, no_match, owner_option, sure
from duly.cli.command import EXIT_ERROR, EXIT_USAGE, Group, fail
from duly.cli.follow import FINAL, PAUSE_SECONDS, Patience, follow
from duly.cli.ids import missing, recent, resolved
from duly.cli.out import Column, Out, pretty
from duly.cli.root import Root
from duly.clock import os_sleep

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.group(cls=Group)
def jobs() -> None:
    """List, inspect, retry and cancel jobs."""


_filters = all_of(
    click.option(
        "--function",
        metavar="NAME",
        shell_complete=complete.functions,
        help="Only jobs of this function.",
    ),
    click.option("--queue", metavar="NAME", help="Only jobs in this queue."),
    owner_option,
)


_state = click.option(
    "--state",
    type=click.Choice(["pending", "running", "succeeded", "failed", "canceled"]),
    help="Only jobs in this state.",
)
_limit = click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of jobs.",
)


# Reading -----------------------------------------------------------------------------------------


@jobs.command("list")
@_state
@_filters
@_limit
@click.pass_obj
def list_(root: Root, /, limit: int, **filters: str | None) -> None:
    """List jobs, newest first.

    \b
    duly jobs list --state failed --limit 50
    duly jobs list --function send_mail --json
    """
    found = list(root.api.pages("/jobs", most=limit, cursor="before", **filters))
    out = root.out
    out.table(found, _columns(out), empty=partial(no_match, root.api, "jobs", filters))


@jobs.command()
@_filters
@_limit
@click.pass_obj
def dead(root: Root, /, limit: int, **filters: str | None) -> None:
    """List dead letters: failed jobs that used up their attempts.

    Jobs without retries, and jobs that failed with an error that is not retried, are not dead
    letters; see `duly jobs list --state failed`.

    \b
    duly jobs dead --function send_mail
    duly jobs retry --dead --function send_mail
    """
    found = list(root.api.pages("/jobs", most=limit, cursor="before", dead=True, **filters))
    out = root.out
    columns = [*_columns(out)[:-1], Column("error", None, _error, flexible=True)]
    out.table(found, columns, empty=partial(no_match, root.api, "dead jobs", filters))


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.pass_obj
def show(root: Root, job_id: str) -> None:
    """Show a job: arguments, times, result or error, and the jobs it enqueued.

    \b
    duly jobs show 0190f0c2-…
    """
    job = _get(root.api, job_id)
    children = root.api.items("/jobs/{}/children", job["id"])
    root.out.show({**job, "children": children}, lambda: _shown(root.out, job, children))


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.pass_obj
def watch(root: Root, job_id: str) -> None:
    """Follow a job live until it ends; exit 1 if it does not succeed.

    With --json, each change is printed as a line of JSON.

    \b
    duly jobs watch 0190f0c2-…
    """
    job = _get(root.api, job_id)
    if job["state"] not in FINAL or root.out.as_json:
        job = follow(root.api, root.out, job["id"], job["function"], lines=root.out.as_json)
    end(root.out, job, quiet=root.out.as_json)


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--follow", "live", is_flag=True, help="Continue until the job ends.")
@click.pass_obj
def logs(root: Root, job_id: str, live: bool) -> None:
    """Show a job's log, oldest line first.

    \b
    duly jobs logs 0190f0c2-… --follow
    """
    job_id = _get(root.api, job_id)["id"]
    after = _print_lines(root, job_id, 0)
    if not (after or live):
        root.out.note("no log lines")
    if live:
        _follow_lines(root, job_id, after)


def _follow_lines(root: Root, job_id: str, after: int) -> None:
    """Print the lines after line `after` until the job has ended."""
    patience = Patience()
    # Log lines cause no events, so this polls.
    while True:
        try:
            # Read the state first: lines read after the end are complete.
            ended = root.api.get("/jobs/{}", job_id)["state"] in FINAL
            after = _print_lines(root, job_id, after)
            patience.heard()
            if ended:
                return
        except ApiError as error:
            patience.bear(error)
        os_sleep(PAUSE_SECONDS)


def _print_lines(root: Root, job_id: str, after: int) -> int:
    """Print the lines after line `after`, and return the number of the last one."""
    following: int | None = after
    while following is not None:
        page = root.api.get("/jobs/{}/logs", job_id, after=following)
        for line in page["items"]:
            after = line["seq"]
            if root.out.as_json:
                root.out.line(line)
            else:
                root.out.say(f"{line['at']} {line['level']:<7} {line['text']}")
        following = page["next"]
    return after


# Changing ----------------------------------------------------------------------------------------


@jobs.command()
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@_state
@_filters
@force_option
@click.pass_obj
def cancel(root: Root, /, job_ids: tuple[str, ...], force: bool, **filters: str | None) -> None:
    """Cancel jobs and the jobs they enqueued, by id or by filter.

    \b
    duly jobs cancel 0190f0c2-…
    duly jobs cancel --function send_mail --state pending
    """
    if _by_id(job_ids, filters):
        answers = [
            {"id": job_id, **root.api.post("/jobs/{}/cancel", job_id)}
            for job_id in _resolved(root.api, job_ids)
        ]
        root.out.show(answers, lambda: None)
        for answer in answers:
            said = "was canceled" if answer["canceled"] else "had already ended"
            root.out.say(f"{answer['id']} {said}")
    else:
        _bulk(root, {"verb": "cancel", **filters}, "Cancel", force=force)


@jobs.command()
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--dead", is_flag=True, help="All dead letters.")
@_state
@_filters
@force_option
@click.pass_obj
def retry(
    root: Root, /, job_ids: tuple[str, ...], dead: bool, force: bool, **filters: str | None
) -> None:
    """Retry failed or canceled jobs, by id or by filter.

    \b
    duly jobs retry 0190f0c2-…
    duly jobs retry --dead --function send_mail
    """
    if _by_id(job_ids, {**filters, "dead": dead or None}):
        ids = _resolved(root.api, job_ids)
        again = [root.api.post("/jobs/{}/retry", job_id) for job_id in ids]
        root.out.show(again, lambda: None)
        for job in again:
            root.out.say(f"{job['retry_of']} is retried as {job['id']}")
    else:
        _bulk(root, {"verb": "retry", "dead": dead, **filters}, "Retry", force=force)


def _by_id(job_ids: tuple[str, ...], filters: dict[str, Any]) -> bool:
    named = [f"--{name}" for name, value in filters.items() if value is not None]
    if job_ids and named:
        fail(f"give ids or {', '.join(named)}, not both", EXIT_USAGE)
    if not job_ids and not named:
        fail("give job ids, or filter with --function, --state …", EXIT_USAGE)
    return bool(job_ids)


def _bulk(root: Root, body: dict[str, Any], verb: str, *, force: bool) -> None:
    """Run a bulk change as a job, and follow it to its end."""
    given = {name: value for name, value in body.items() if value is not None}
    preview = root.api.post("/jobs/bulk", body={**given, "dry_run": True})
    matched = preview["matched"]
    if not matched:
        root.out.show({"job": None, **preview}, lambda: None)
        root.out.say(no_match(root.api, "matching jobs", body))
        return
    sure(f"{verb} {matched} job{'s' if matched > 1 else ''}?", force=force)
    job = root.api.post("/jobs/bulk", body=given)["job"]
    end(root.out, follow(root.api, root.out, job["id"], verb))


# Shared by several commands ----------------------------------------------------------------------


def _get(api: Api, job_id: str) -> dict[str, Any]:
    try:
        job: dict[str, Any] = api.get("/jobs/{}", resolved(api, "job", "/jobs", job_id))
    except ApiError as error:
        if error.status != 404:
            raise
        missing("job", job_id, recent(api, "/jobs"))
    return job


def _resolved(api: Api, texts: Sequence[str]) -> list[str]:
    """The ids of jobs that exist; nothing is changed unless all of them do."""
    return [_get(api, text)["id"] for text in texts]


def end(out: Out, job: dict[str, Any], *, quiet: bool = False) -> None:
    """Print a job's outcome, and exit with 1 unless it succeeded."""
    if not quiet:
        out.show(job, lambda: _outcome(out, job))
    if job["state"] != "succeeded":
        raise SystemExit(EXIT_ERROR)


def _outcome(out: Out, job: dict[str, Any]) -> RenderableType:
    from rich.console import Group as Lines

    shown: list[RenderableType] = [out.cell(job["state"])]
    if job["error"] is not None:
        shown.append(out.cell(_error(job)))
    elif job["result"] is not None:
        shown.append(out.cell(pretty(job["result"])))
    return Lines(*shown)


def _error(job: dict[str, Any]) -> str:
    error = job["error"]
    return "" if error is None else f"{error['kind'] or 'error'}: {error['message']}"


def _columns(out: Out) -> list[Column]:
    return [
        Column("id", "id", ids=True),
        Column("function", "function", flexible=True, least=12),
        Column("state", "state"),
        Column("due", "run_at_ms", out.ago, right=True),
        Column("try", "attempt", right=True),
    ]


def _shown(out: Out, job: dict[str, Any], children: list[dict[str, Any]]) -> RenderableType:
    from rich.console import Group as Lines

    progress = job["progress"]
    fields = [
        ("id", job["id"]),
        ("function", job["function"]),
        ("state", job["state"]),
        ("kind", job["kind"]),
        ("queue", job["queue"]),
        ("arguments", pretty(job["args"]) if job["args"] else None),
        ("attempt", job["attempt"] or None),
        ("progress", progress and f"{progress['value']:.0%} {progress['note'] or ''}"),
        ("created", out.moment(job["created_at_ms"])),
        ("due", out.moment(job["run_at_ms"])),
        ("started", out.moment(job["started_at_ms"])),
        ("completed", out.moment(job["completed_at_ms"])),
        ("called by", job["parent_id"] or job["actor"]),
        ("owner", job["owner"]),
        ("tags", ", ".join(job["tags"]) or None),
        ("retry of", job["retry_of"]),
        ("canceled by", job["canceled_by"]),
        ("result", None if job["result"] is None else pretty(job["result"])),
        ("error", _error(job) or None),
    ]
    parts: list[RenderableType] = [out.fields(fields)]
    if job["error"] is not None and job["error"]["traceback"]:
        parts.append(out.styled(job["error"]["traceback"].rstrip(), "dim"))
    if children:
        parts += [out.cell("\nenqueued"), out.grid(children, _columns(out))]
    return Lines(*parts)
