"""`duly run`: run a function and wait for its result."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from duly.cli import EXIT_INTERRUPTED, complete
from duly.cli.api import Api
from duly.cli.ask import new_owner_option
from duly.cli.command import EXIT_USAGE, Command, fail
from duly.cli.follow import follow
from duly.cli.jobs import end
from duly.cli.root import Root
from duly.cli.values import Pair, together
from duly.cli.when import Length, Moment


@click.command(cls=Command)
@click.argument("function", shell_complete=complete.functions)
@click.argument("pairs", metavar="[NAME=TEXT | NAME:=JSON]...", nargs=-1, type=Pair())
@click.option("--after", type=Length(), help="Run it after this delay: 90s, 5m, 2h.")
@click.option("--at", type=Moment(), help="Run it at this time.")
@click.option("--no-wait", is_flag=True, help="Print the job's id and exit.")
@click.option("--queue", metavar="NAME", help="Use this queue.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 to 9; 9 starts first.")
@click.option("--timeout", type=Length(), help="Time limit of one attempt.")
@click.option(
    "--key", metavar="KEY", help="Idempotency key: a second run with it creates no new job."
)
@new_owner_option
@click.pass_obj
def run(
    root: Root,
    function: str,
    pairs: tuple[tuple[str, Any], ...],
    after: float | None,
    at: datetime | None,
    no_wait: bool,
    queue: str | None,
    priority: int | None,
    timeout: float | None,
    key: str | None,
    owner: str | None,
) -> None:
    """Run a function and wait for its result; exit 1 if it fails.

    Arguments are name=text or name:=json. Ctrl-C asks whether to cancel the job.

    \b
    duly run send_mail to=me@example.com copies:=2
    duly run report day=2026-05-01 --after 5m --no-wait
    """
    if after is not None and at is not None:
        fail("give --after or --at, not both", EXIT_USAGE)
    options = {"queue": queue, "priority": priority, "timeout": timeout}
    body = {
        "function": function,
        "args": together(pairs),
        "run_at": None if at is None else at.isoformat(),
        "run_after": after,
        "owner": owner,
        "options": {name: value for name, value in options.items() if value is not None},
    }
    api = root.api
    job = api.post("/jobs", body=body, key=key)
    if no_wait:
        root.out.show(job, lambda: root.out.cell(job["id"]))
        return
    try:
        job = follow(api, root.out, job["id"], function)
    except KeyboardInterrupt:
        _leave(api, job["id"])
    end(root.out, job)


def _leave(api: Api, job_id: str) -> None:
    """Stop waiting; the job continues unless the user cancels it."""
    try:
        cancel = click.confirm(f"\nCancel job {job_id}?", default=False, err=True)
    except click.Abort:
        cancel = False
    if cancel:
        api.post("/jobs/{}/cancel", job_id)
    said = "was canceled" if cancel else "continues; follow it with `duly jobs watch`"
    click.echo(f"duly: job {job_id} {said}", err=True)
    raise SystemExit(EXIT_INTERRUPTED)
