"""The schedule options of the command line, converted for the API."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from duly.cli.ask import Decorator, all_of
from duly.cli.command import EXIT_USAGE, fail
from duly.cli.out import Item
from duly.cli.values import Json, together
from duly.cli.when import Length, Moment, tz_option
from duly.model.durations import write_length
from duly.model.schedule_options import JSON, OPTIONS, Kind, Option

CLEARABLE = {option.flag: option.name for option in OPTIONS if option.usual is None}
JOB_OPTIONS = ("queue", "priority", "timeout")
ENDPOINT = "endpoint:"


def _option(option: Option) -> Decorator:
    flag, help = f"--{option.flag}", option.help
    match option.kind:
        case Kind.CHOICE:
            kind: Any = click.Choice([str(choice) for choice in option.choices])
        case Kind.WHOLE:
            kind = click.IntRange(option.least)
        case Kind.LENGTH:
            kind = Length()
        case Kind.INSTANT:
            kind = Moment()
        case Kind.OBJECT | Kind.LIST | Kind.RECORD:
            return click.option(flag, option.name, type=Json(), metavar="JSON|@FILE", help=help)
        case _:
            return click.option(flag, option.name, metavar=option.kind.upper(), help=help)
    return click.option(flag, option.name, type=kind, help=help)


schedule_options = all_of(
    click.option("--cron", metavar="EXPR", help="When: five fields, as `duly cron` explains."),
    click.option("--every", type=Length(), help="When: again and again, as 15m or 1d."),
    click.option("--at", type=Moment(), help="When: once, then."),
    tz_option("The zone of --cron (UTC by default), and of times without an offset."),
    click.option("--anchor", "anchor_at", type=Moment(), help="One tick of --every."),
    *(_option(option) for option in OPTIONS),
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
    jobs = {name: given.pop(name) for name in JOB_OPTIONS if name in given}
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
    others = sorted(schedule["options"].keys() - set(JOB_OPTIONS))
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
        **{option.flag: _written(option, schedule[option.name]) for option in OPTIONS},
        "queue": jobs.get("queue"),
        "priority": None if jobs.get("priority") is None else str(jobs["priority"]),
        # Of a job's options it is stored in milliseconds.
        "timeout": None if jobs.get("timeout") is None else write_length(jobs["timeout"]),
        "owner": schedule["owner"],
    }


def _written(option: Option, value: Any) -> str | None:
    """A value as its option takes it; None if there is none."""
    if value is None:
        return None
    if option.kind in JSON:
        return json.dumps(value)
    return write_length(round(value * 1000)) if option.kind is Kind.LENGTH else str(value)
