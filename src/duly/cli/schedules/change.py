"""Commands that create, change and run schedules."""

from __future__ import annotations

import shlex
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from duly.cli.api import ApiError
from duly.cli.ask import (
    force_option,
    new_owner_option,
    note_option,
    schedule_id,
    sure,
    with_full_ids,
)
from duly.cli.command import EXIT_ERROR, EXIT_USAGE, fail
from duly.cli.follow import follow
from duly.cli.jobs import end
from duly.cli.out import Item, Out
from duly.cli.root import Root
from duly.cli.schedules.group import on_one, said, schedules, words
from duly.cli.schedules.options import (
    CLEARABLE,
    arguments,
    body_of,
    called,
    schedule_options,
)
from duly.cli.schedules.preview import foreseen
from duly.cli.schedules.show import show_ticks
from duly.cli.values import Pair, together
from duly.cli.when import Moment
from duly.clock import from_ms

if TYPE_CHECKING:
    from rich.console import RenderableType

FIRST_TICKS = 5
MAX_SHOWN = 10
BACKFILL_PAGE = 500
"""How many ticks one request backfills."""
_pairs = click.argument("pairs", metavar="[NAME=TEXT | NAME:=JSON]...", nargs=-1, type=Pair())


# Creating and changing ---------------------------------------------------------------------------


@schedules.command()
@click.argument("key", metavar="KEY")
@click.argument("function", metavar="FUNCTION")
@_pairs
@schedule_options
@click.option("--disabled", is_flag=True, help="Create it disabled.")
@click.option("--fire-at-once", is_flag=True, help="With --every: the first tick is due now.")
@new_owner_option
@click.pass_obj
def create(
    root: Root,
    /,
    key: str,
    function: str,
    pairs: tuple[tuple[str, Any], ...],
    disabled: bool,
    fire_at_once: bool,
    owner: str | None,
    **options: Any,
) -> None:
    """Create a schedule that calls FUNCTION, or POSTs to endpoint:NAME.

    Arguments are name=text or name:=json. Give --cron, --every, --at, --rule or --trigger. The
    upcoming runs are previewed.

    \b
    duly schedules create nightly report --cron "0 2 * * *" --tz Europe/Berlin
    duly schedules create sync pull depth:=2 --every 15m --overlap buffer_one
    duly schedules create ping endpoint:billing --every 1h --calendar closed
    duly schedules create pay run --rule "FREQ=DAILY" --anchor 2026-05-01T09:00
    """
    _check_one_trigger(options, needed=True)
    body = body_of(options) | called(function) | arguments(pairs)
    body |= {"key": key, "owner": owner, "enabled": not disabled}
    if fire_at_once:
        body["fire_at_once"] = True
    made = root.api.post("/schedules", body=with_full_ids(root.api, body))
    root.out.show(made, lambda: _first_ticks(root, made))


@schedules.command()
@on_one
@_pairs
@schedule_options
@click.option("--function", metavar="NAME", help="Call this function, or POST to endpoint:NAME.")
@click.option(
    "--clear",
    type=click.Choice(sorted(CLEARABLE)),
    multiple=True,
    help="Remove this option; repeatable.",
)
@click.option(
    "--version",
    type=int,
    help="Fail unless the schedule is at this version (default: the current one).",
)
@click.pass_obj
def update(
    root: Root,
    /,
    key: str,
    owner: str | None,
    pairs: tuple[tuple[str, Any], ...],
    function: str | None,
    clear: tuple[str, ...],
    version: int | None,
    **options: Any,
) -> None:
    """Change a schedule; options that are not given stay as they are.

    Arguments, if given, replace all existing arguments. A new trigger, time zone, start or end
    applies from now.

    \b
    duly schedules update nightly --cron "30 2 * * *" --jitter 5m
    duly schedules update nightly --clear calendar --clear condition
    """
    _check_one_trigger(options, needed=False)
    changes = body_of(options, clear) | arguments(pairs)
    if function is not None:
        changes |= called(function)
    if not changes:
        fail("give at least one option to change", EXIT_USAGE)
    api = root.api
    which = schedule_id(api, key, owner)
    read = api.get("/schedules/{}", which)["version"] if version is None else version
    body = {"version": read, **with_full_ids(api, changes)}
    try:
        changed = api.patch("/schedules/{}", which, body=body)
    except ApiError as error:
        if error.code != "stale_version":
            raise
        show = shlex.join(["duly", "schedules", "show", key])
        fail(
            f"{key!r} is no longer at version {read}; nothing was changed",
            hint=f"check it with `{show}`, then try again",
        )
    root.out.show(changed, lambda: _first_ticks(root, changed))


def _check_one_trigger(options: dict[str, Any], *, needed: bool) -> None:
    names = ("cron", "every", "at", "rule", "trigger")
    given = [f"--{name}" for name in names if options[name] is not None]
    if len(given) > 1:
        fail(f"give {' or '.join(given)}, not both", EXIT_USAGE)
    if needed and not given:
        fail("give --cron, --every, --at, --rule or --trigger", EXIT_USAGE)


def _first_ticks(root: Root, schedule: Item) -> RenderableType:
    """A created or changed schedule, with its upcoming ticks."""
    from rich.console import Group as Lines

    out = root.out
    coming = root.api.items("/schedules/{}/preview", schedule["id"], n=FIRST_TICKS, tz=out.tz.key)
    head = f"{schedule['key']} calls {schedule['function']}: {schedule['description']}"
    return Lines(
        out.cell(head),
        out.cell(said(out, schedule)),
        out.cell(""),
        foreseen(out, coming),
    )


@schedules.command()
@on_one
@note_option
@click.pass_obj
def enable(root: Root, key: str, owner: str | None, note: str | None) -> None:
    """Enable a schedule; ticks missed while it was disabled do not run.

    \b
    duly schedules enable nightly --note "the import is fixed"
    """
    _do(root, key, owner, "/schedules/{}/enable", {"note": note})


@schedules.command()
@on_one
@note_option
@click.pass_obj
def disable(root: Root, key: str, owner: str | None, note: str | None) -> None:
    """Disable a schedule immediately; existing jobs continue.

    \b
    duly schedules disable nightly --note "until the import is fixed"
    """
    _do(root, key, owner, "/schedules/{}/disable", {"note": note})


@schedules.command()
@on_one
@force_option
@click.pass_obj
def remove(root: Root, key: str, owner: str | None, force: bool) -> None:
    """Remove a schedule, but keep its unfinished jobs and its ledger.

    Asks for confirmation on a terminal; elsewhere, --force is required.

    \b
    duly schedules remove nightly
    """
    which = schedule_id(root.api, key, owner)
    found = root.api.get("/schedules/{}", which)
    sure(f"Remove schedule {found['key']!r} of {found['function']}?", force=force)
    root.api.delete("/schedules/{}", which)
    root.out.show({"removed": which}, lambda: root.out.cell(f"{found['key']} was removed"))


# Ticks -------------------------------------------------------------------------------------------


@schedules.command("skip-next")
@on_one
@click.pass_obj
def skip_next(root: Root, key: str, owner: str | None) -> None:
    """Skip the next tick; the ledger records it as skipped by an operator.

    \b
    duly schedules skip-next nightly
    """
    _do(root, key, owner, "/schedules/{}/skip-next", None)


@schedules.command("move-next")
@on_one
@click.argument("to", type=Moment())
@click.pass_obj
def move_next(root: Root, key: str, owner: str | None, to: datetime) -> None:
    """Move the next tick to another time, before the tick that follows it.

    \b
    duly schedules move-next nightly +30m
    duly schedules move-next nightly 2026-05-01T09:00
    """
    _do(root, key, owner, "/schedules/{}/move-next", {"to": to.isoformat()})


def _do(root: Root, key: str, owner: str | None, path: str, body: Any) -> None:
    changed = root.api.post(path, schedule_id(root.api, key, owner), body=body)
    root.out.show(changed, lambda: root.out.cell(said(root.out, changed)))


@schedules.command()
@on_one
@_pairs
@click.option("--wait", is_flag=True, help="Wait for the job; exit 1 if it fails.")
@click.pass_obj
def run(
    root: Root, key: str, owner: str | None, pairs: tuple[tuple[str, Any], ...], wait: bool
) -> None:
    """Run a schedule now, in addition to its ticks; exit 1 if that is refused.

    The calendar and the condition are not checked. Arguments, if given, replace the schedule's own.

    \b
    duly schedules run nightly --wait
    duly schedules run nightly day=2026-05-01
    """
    body = {"inputs": together(pairs)} if pairs else None
    tick = root.api.post("/schedules/{}/run", schedule_id(root.api, key, owner), body=body)
    job_id = tick["job_id"]
    if wait and job_id is not None:
        end(root.out, follow(root.api, root.out, job_id, key))
        return
    root.out.show(tick, lambda: root.out.cell(_ran(key, tick)))
    if tick["outcome"] != "dispatched":
        raise SystemExit(EXIT_ERROR)


def _ran(key: str, tick: Item) -> str:
    if tick["outcome"] == "dispatched":
        return f"{key} runs as job {tick['job_id']}"
    return f"{key} was not run: {words(tick['reason'], tick['detail'])}"


# -7d is a time, not an option.
@schedules.command(context_settings={"ignore_unknown_options": True})
@on_one
@click.argument("start", type=Moment())
@click.argument("until", metavar="END", type=Moment())
@click.option("--dry-run", is_flag=True, help="Only show which ticks would run.")
@force_option
@click.pass_obj
def backfill(
    root: Root,
    key: str,
    owner: str | None,
    start: datetime,
    until: datetime,
    dry_run: bool,
    force: bool,
) -> None:
    """Run past ticks from START to END (exclusive) that are not in the ledger.

    First shows what would run, and asks for confirmation. At most 10,000 ticks. Repeating a
    range runs nothing twice.

    \b
    duly schedules backfill nightly 2026-05-01 2026-06-01
    duly schedules backfill nightly -7d now --dry-run
    """
    which = schedule_id(root.api, key, owner)
    range_ = {"start": start.isoformat(), "end": until.isoformat()}
    would = root.api.post("/schedules/{}/backfill", which, body={**range_, "dry_run": True})
    out = root.out
    if dry_run or not would["dispatched"]:
        _show_backfill(out, would, "would be")
        return
    if not out.as_json:
        _show_backfill(out, would, "would be")
    sure(f"Run {_count(would['dispatched'], 'tick')} of {key!r}?", force=force)
    filled: Item = {"dispatched": 0, "skipped": 0, "dry_run": False, "ticks": []}
    try:
        _fill(root, which, would, (start, until), filled)
    except (ApiError, KeyboardInterrupt):
        out.note(f"{_sum(filled, 'were')}; run the same command again to continue")
        raise
    if out.as_json:
        out.data(filled)
    else:
        out.say(_sum(filled, "were"))


def _fill(
    root: Root, which: str, would: Item, span: tuple[datetime, datetime], filled: Item
) -> None:
    """Backfill the range in parts, oldest first; each part is done entirely or not at all."""
    ticks = [from_ms(tick["tick_at_ms"]) for tick in would["ticks"]]
    bounds = [span[0], *ticks[BACKFILL_PAGE::BACKFILL_PAGE], span[1]]
    with root.out.progress("Running ticks") as advance:
        for since, end_ in pairwise(bounds):
            advance(len(filled["ticks"]), len(ticks), f"up to {end_:%Y-%m-%d %H:%M}")
            part = {"start": since.isoformat(), "end": end_.isoformat()}
            answer = root.api.post("/schedules/{}/backfill", which, body=part)
            filled["ticks"] += answer["ticks"]
            filled["dispatched"] += answer["dispatched"]
            filled["skipped"] += answer["skipped"]


def _show_backfill(out: Out, would: Item, verb: str) -> None:
    shown = would["ticks"][:MAX_SHOWN]
    show_ticks(out, shown, empty="no ticks in this range", value=would)
    if len(would["ticks"]) > MAX_SHOWN:
        out.say(f"… and {len(would['ticks']) - MAX_SHOWN} more")
    if would["ticks"]:
        out.say(_sum(would, verb))


def _sum(answer: Item, verb: str) -> str:
    dispatched = _count(answer["dispatched"], "tick")
    return f"{dispatched} {verb} dispatched, {answer['skipped']} skipped"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
