"""Commands that show schedules: the list, their health and their ledger."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from duly.cli.ask import no_match, owner_option, schedule_id, with_full_ids
from duly.cli.command import EXIT_ERROR
from duly.cli.out import STATES, Column, Item, Out, brief, pretty
from duly.cli.root import Root
from duly.cli.schedules.group import on_one, overridden, schedules, words
from duly.cli.when import Moment, length
from duly.model.schedule_options import OPTIONS, Kind, Option

if TYPE_CHECKING:
    from rich.text import Text

OUTCOMES = ["dispatched", "skipped", "missed"]
REASONS = [
    "calendar",
    "condition_failed",
    "budget_exceeded",
    "overlap_in_flight",
    "cycle_detected",
    "schedule_slot_exists",
    "target_paused",
    "target_deprecated",
    "kill_switch",
    "operator",
]


@schedules.command("list")
@click.option("--function", metavar="NAME", help="Only schedules of this function.")
@click.option("--enabled/--disabled", default=None, help="Only enabled or disabled schedules.")
@click.option("--parked", is_flag=True, default=None, help="Only parked schedules.")
@click.option("--calendar", metavar="NAME", help="Only schedules that use this calendar.")
@owner_option
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Maximum number of schedules.",
)
@click.pass_obj
def list_(root: Root, /, limit: int, **filters: Any) -> None:
    """List schedules, oldest first.

    \b
    duly schedules list --disabled
    duly schedules list --calendar closed --json
    """
    filters = with_full_ids(root.api, filters)
    found = list(root.api.pages("/schedules", most=limit, **filters))
    out = root.out
    columns = [
        Column("key", "key", flexible=True, least=16),
        Column("status", "status"),
        Column("next", "next_tick_at_ms", out.ago, right=True),
        Column("when", "description", flexible=True, least=16),
        Column("last run", None, partial(_last_run, out)),
        Column("function", "function", flexible=True, least=12),
    ]
    if any(each["owner"] for each in found):
        columns.insert(1, Column("owner", "owner", flexible=True))
    out.table(found, columns, empty=partial(no_match, root.api, "schedules", filters))


def _last_run(out: Out, schedule: Item) -> str | None:
    """When it last dispatched a job, and the state of that job."""
    ran_at = out.ago(schedule["last_dispatch_at_ms"])
    status = schedule["last_status"]
    return f"{ran_at}, {status}" if ran_at and status else ran_at


@schedules.command()
@on_one
@click.pass_obj
def show(root: Root, key: str, owner: str | None) -> None:
    """Show a schedule: what it calls, when, its options and its state.

    \b
    duly schedules show nightly
    """
    schedule = root.api.get("/schedules/{}", schedule_id(root.api, key, owner))
    root.out.show(schedule, lambda: root.out.fields(_fields(root.out, schedule)))


@schedules.command()
@click.argument("key", metavar="[KEY]", required=False)
@owner_option
@click.pass_obj
def health(root: Root, key: str | None, owner: str | None) -> None:
    """Check schedules: OK, MISSED, PAUSED or NEVER_RAN; exit 1 if one is missed.

    A schedule is missed if it is overdue or parked, if its last tick was missed, or if it broke its
    expectation.

    \b
    duly schedules health || notify-someone
    """
    if key is None:
        found = list(root.api.pages("/schedules/health", owner=owner))
    else:
        found = [root.api.get("/schedules/{}/health", schedule_id(root.api, key, owner))]
    out = root.out
    columns = [
        Column("health", "state", partial(_loud, out)),
        Column("key", "key", flexible=True),
        Column("why", "why", flexible=True),
    ]
    out.table(found, columns, empty="no schedules")
    states = Counter(each["state"] for each in found)
    if len(found) > 1:
        out.note(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    if states["missed"]:
        raise SystemExit(EXIT_ERROR)


def _loud(out: Out, state: str) -> Text:
    return out.styled(state.upper(), STATES[state])


@schedules.command()
@on_one
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only ticks with this outcome.")
@click.option("--reason", type=click.Choice(REASONS), help="Only ticks skipped for this reason.")
@click.option("--after", type=Moment(), help="Only ticks at or after this time.")
@click.option("--before", type=Moment(), help="Only ticks before this time.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of ticks.",
)
@click.pass_obj
def ticks(
    root: Root,
    key: str,
    owner: str | None,
    outcome: str | None,
    reason: str | None,
    after: datetime | None,
    before: datetime | None,
    limit: int,
) -> None:
    """Show the ledger of a schedule, newest tick first.

    \b
    duly schedules ticks nightly --outcome skipped
    duly schedules ticks nightly --reason calendar --after -30d
    """
    asked = {
        "outcome": outcome,
        "reason": reason,
        "after": None if after is None else after.isoformat(),
    }
    found = _ledger(root, schedule_id(root.api, key, owner), asked, before, limit)
    show_ticks(root.out, found, empty="no ticks yet; `duly schedules preview` shows upcoming ones")


def _ledger(
    root: Root, which: str, asked: dict[str, Any], before: datetime | None, limit: int
) -> list[Item]:
    """The pages of a ledger, back in time; ticks of the same time are on one page."""
    following = None if before is None else before.isoformat()
    found: list[Item] = []
    while len(found) < limit:
        most = min(200, limit - len(found))
        page = root.api.get("/schedules/{}/ticks", which, **asked, before=following, limit=most)
        found += page["items"]
        following = page["next"]
        if following is None:
            break
    return found


def show_ticks(out: Out, found: list[Item], *, empty: str, value: Any = None) -> None:
    """Rows of the ledger."""
    columns = [
        Column("when", "tick_at_ms", out.at),
        Column("outcome", "outcome"),
        Column("why", None, _fate, flexible=True, ids=True),
    ]
    out.table(found, columns, empty=empty, value=value)


def _fate(tick: Item) -> str:
    if tick["outcome"] == "missed":
        return f"{tick['count']} ticks since {tick['first_at']}"
    if tick["reason"] == "schedule_slot_exists" and tick["first_at"]:
        return f"{tick['reason']}: {tick['count']} ticks since {tick['first_at']}"
    if tick["outcome"] == "skipped":
        return f"{tick['reason']}: {words(tick['reason'], tick['detail'])}"
    text = f"job {tick['job_id']}" if tick["job_id"] else ""
    if tick["kind"] == "manual":
        text += ", run by hand"
    if tick["rotation_index"] is not None:
        text += f", rotation {tick['rotation_index']}"
    if tick["dst_adjusted"]:
        text += ", moved by a daylight saving change"
    return text.removeprefix(", ")


# Details ----------------------------------------------------------------------------------------


def _fields(out: Out, schedule: Item) -> list[tuple[str, Any]]:
    return [
        *_of_call(schedule),
        *_of_state(out, schedule),
        *_of_options(out, schedule),
        ("declared", "by code" if schedule["declared"] else None),
        ("version", schedule["version"]),
        ("created", out.moment(schedule["created_at_ms"])),
        ("updated", out.moment(schedule["updated_at_ms"])),
    ]


def _of_call(schedule: Item) -> list[tuple[str, Any]]:
    return [
        ("id", schedule["id"]),
        ("key", schedule["key"]),
        ("owner", schedule["owner"]),
        ("function", schedule["function"]),
        ("arguments", pretty(schedule["args"]) if schedule["args"] else None),
    ]


def _of_state(out: Out, schedule: Item) -> list[tuple[str, Any]]:
    override = schedule["override"]
    return [
        ("status", schedule["status"]),
        ("changed by", schedule["changed_by"]),
        ("error", schedule["error"]),
        ("late", schedule["late"]),
        ("next tick", out.moment(schedule["next_tick_at_ms"])),
        ("looked at", _if_other(out, schedule["due_at_ms"], schedule["next_tick_at_ms"])),
        ("operator", None if override is None else overridden(out, override)),
        ("last dispatch", out.moment(schedule["last_dispatch_at_ms"])),
        ("last job", schedule["last_job_id"]),
        ("last status", schedule["last_status"]),
    ]


def _if_other(out: Out, one: int | None, other: int | None) -> str | None:
    return None if one == other else out.moment(one)


def _of_options(out: Out, schedule: Item) -> list[tuple[str, Any]]:
    options = [(option.flag, _value(out, option, schedule)) for option in OPTIONS]
    return [
        ("when", schedule["description"]),
        ("cron", schedule["cron"]),
        ("zone", schedule["tz"]),
        *((flag.replace("-", " "), value) for flag, value in options),
    ]


def _value(out: Out, option: Option, schedule: Item) -> Any:
    value = schedule[option.name]
    if option.name == "calendar":
        return value or schedule["calendar_id"]
    if not value:
        return value
    if option.name == "rotation":
        return f"{len(value)} entries, the next is {turn(schedule)}"
    match option.kind:
        case Kind.INSTANT:
            return out.moment(schedule[f"{option.name}_ms"])
        case Kind.LENGTH:
            return length(value)
        case Kind.OBJECT | Kind.LIST:
            return pretty(value)
        case Kind.RECORD:
            return ", ".join(f"{name} {brief(each)}" for name, each in value.items() if each)
        case _:
            return value


def turn(schedule: Item) -> int:
    """The index of the next entry in a rotation."""
    return int(schedule["rotation_index"]) % len(schedule["rotation"])
