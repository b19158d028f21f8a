"""The options of a schedule on the command line, and what of them goes to the API."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from duly.cli.ask import all_of
from duly.cli.command import EXIT_USAGE, fail
from duly.cli.out import Item
from duly.cli.values import Json, together
from duly.cli.when import Length, Moment, tz_option
from duly.model.lengths import write_length

OVERLAPS = ["skip", "allow", "buffer_one", "buffer_all", "cancel_other"]
CLEARABLE = {
    "calendar": "calendar",
    "shift": "shift",
    "condition": "condition",
    "rotation": "rotation",
    "catch-up-window": "catch_up_window",
    "jitter": "jitter",
    "budget": "budget",
    "start": "start_at",
    "end": "end_at",
    "remaining": "remaining",
    "expect": "expect",
    "alert": "alert",
    "note": "note",
}
OF_JOBS = ("queue", "priority", "timeout")
ENDPOINT = "endpoint:"


schedule_options = all_of(
    click.option("--cron", metavar="EXPR", help="When: five fields, as `duly cron` explains."),
    click.option("--every", type=Length(), help="When: again and again, as 15m or 1d."),
    click.option("--at", type=Moment(), help="When: once, then."),
    tz_option("The zone of --cron (UTC by default), and of times without an offset."),
    click.option("--anchor", "anchor_at", type=Moment(), help="One tick of --every."),
    click.option("--calendar", metavar="NAME", help="It decides on which dates there are ticks."),
    click.option(
        "--shift",
        type=click.Choice(["next", "previous", "nearest"]),
        help="Where a tick goes whose date the calendar forbids.",
    ),
    click.option("--condition", type=Json(), metavar="JSON", help="What must hold; or @FILE."),
    click.option("--rotation", type=Json(), metavar="JSON", help="Arguments in turn; or @FILE."),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="What a tick does while a job is unfinished; skip is usual.",
    ),
    click.option("--catch-up", type=click.IntRange(0), help="How many missed ticks still run."),
    click.option("--catch-up-window", type=Length(), help="How old these may be."),
    click.option("--jitter", type=Length(), help="A delay up to so long, fixed for each tick."),
    click.option(
        "--budget", type=Json(), metavar="JSON", help='As {"runs": 5, "per": 86400}: seconds.'
    ),
    click.option("--start", "start_at", type=Moment(), help="No tick before."),
    click.option("--end", "end_at", type=Moment(), help="No tick later."),
    click.option("--remaining", type=click.IntRange(1), help="End after so many dispatches."),
    click.option("--expect", type=Json(), metavar="JSON", help='A promise, as {"by": "07:00"}.'),
    click.option("--alert", metavar="NAME", help="Who is told of a broken one: function or URL."),
    click.option("--note", metavar="TEXT", help="Others see it."),
    click.option("--queue", metavar="NAME", help="Of its jobs."),
    click.option("--priority", type=click.IntRange(0, 9), help="Of its jobs."),
    click.option("--timeout", type=Length(), help="How long an attempt of its jobs may take."),
)


def body_of(options: dict[str, Any], cleared: Sequence[str] = ()) -> dict[str, Any]:
    """What was given, as the API takes it; what is to be taken away is null there."""
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    if given.get("at"):
        # It has done its work: an instant has no zone.
        given.pop("tz", None)
    if "every" in given:
        given["every_ms"] = round(given.pop("every") * 1000)
    taken = {CLEARABLE[name]: None for name in cleared}
    if both := sorted(taken.keys() & given.keys()):
        fail(f"{both[0]} is both given and taken away", EXIT_USAGE)
    jobs = {name: given.pop(name) for name in OF_JOBS if name in given}
    return given | taken | ({"options": jobs} if jobs else {})


def called(function: str) -> dict[str, str]:
    """The function, or the endpoint, that is called."""
    if function.startswith(ENDPOINT):
        return {"endpoint": function.removeprefix(ENDPOINT)}
    return {"function": function}


def arguments(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {"args": together(pairs)} if pairs else {}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def create_command(schedule: Item) -> str:
    """The command that makes such a schedule, quoted for a shell."""
    if schedule["declared"]:
        return f"# {json.dumps(schedule['key'])} is declared in code: duly schedules apply"
    words = ["duly", "schedules", "create"]
    for option, value in _options_of(schedule).items():
        words += [f"--{option}", value] if value is not None else []
    words += [] if schedule["enabled"] else ["--disabled"]
    words += ["--", schedule["key"], schedule["function"]]
    words += [f"{name}:={json.dumps(value)}" for name, value in schedule["args"].items()]
    others = sorted(schedule["options"].keys() - set(OF_JOBS))
    lost = f"  # without its job options {', '.join(others)}" if others else ""
    return shlex.join(words) + lost


def _options_of(schedule: Item) -> dict[str, str | None]:
    """What `schedules create` is given, by the names of its options; None if it is not."""
    jobs = schedule["options"]
    return {
        "cron": schedule["cron"],
        "every": schedule["every"],
        "at": schedule["at"],
        "tz": None if schedule["at"] or schedule["tz"] == "UTC" else schedule["tz"],
        "anchor": schedule["anchor_at"],
        "calendar": schedule["calendar"],
        "shift": schedule["shift"],
        "condition": _json(schedule["condition"]),
        "rotation": _json(schedule["rotation"]),
        "overlap": schedule["overlap"],
        "catch-up": str(schedule["catch_up"]),
        "catch-up-window": _length(schedule["catch_up_window"]),
        "jitter": _length(schedule["jitter"]),
        "budget": _json(schedule["budget"]),
        "start": schedule["start_at"],
        "end": schedule["end_at"],
        "remaining": None if schedule["remaining"] is None else str(schedule["remaining"]),
        "expect": _json(schedule["expect"]),
        "alert": schedule["alert"],
        "note": schedule["note"],
        "queue": jobs.get("queue"),
        "priority": None if jobs.get("priority") is None else str(jobs["priority"]),
        # Of a job's options it is stored in milliseconds.
        "timeout": None if jobs.get("timeout") is None else write_length(jobs["timeout"]),
        "owner": schedule["owner"],
    }


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _length(seconds: float | None) -> str | None:
    return None if seconds is None else write_length(round(seconds * 1000))
