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
    click.option(
        "--cron", metavar="EXPR", help="Run at the times of a cron expression; see `duly cron`."
    ),
    click.option("--every", type=Length(), help="Run at this interval, such as 15m or 1d."),
    click.option("--at", type=Moment(), help="Run once, at this time."),
    click.option(
        "--rule",
        metavar="RRULE",
        help="Run by a recurrence rule (RFC 5545), counted from --anchor, or from its DTSTART.",
    ),
    click.option(
        "--trigger", type=Json(), metavar="JSON|@FILE", help="Run by a trigger of any kind."
    ),
    tz_option("Time zone of --cron and --rule (default: UTC) and of times without an offset."),
    click.option(
        "--anchor", "anchor_at", type=Moment(), help="Count --every or --rule from this time."
    ),
    *(_option(option) for option in OPTIONS),
    click.option("--queue", metavar="NAME", help="Queue of its jobs."),
    click.option("--priority", type=click.IntRange(0, 9), help="Priority of its jobs."),
    click.option("--timeout", type=Length(), help="Time limit of one attempt of its jobs."),
)


def body_of(options: dict[str, Any], cleared: Sequence[str] = ()) -> dict[str, Any]:
    """The given options in the API's form; options to remove are null."""
    given = {name: _plain(value) for name, value in options.items() if value is not None}
    if given.get("at"):
        # It has been applied to the time; a single instant has no zone.
        given.pop("tz", None)
    if "rule" in given:
        given["trigger"] = _rule(given)
    if "every" in given:
        given["every_ms"] = round(given.pop("every") * 1000)
    taken = {CLEARABLE[name]: None for name in cleared}
    if both := sorted(taken.keys() & given.keys()):
        fail(f"{both[0]} is both set and cleared", EXIT_USAGE)
    jobs = {name: given.pop(name) for name in JOB_OPTIONS if name in given}
    return given | taken | ({"options": jobs} if jobs else {})


def _rule(given: dict[str, Any]) -> dict[str, Any]:
    """The trigger that --rule, --anchor and --tz describe."""
    rule = {"kind": "rule", "rule": given.pop("rule")}
    if start := given.pop("anchor_at", None):
        rule["start"] = start
    # The zone of a DTSTART is in its text.
    if (tz := given.pop("tz", None)) or start:
        rule["tz"] = tz or "UTC"
    return rule


def called(function: str) -> dict[str, str]:
    """The target of a schedule: a function or an endpoint."""
    if function.startswith(ENDPOINT):
        return {"endpoint": function.removeprefix(ENDPOINT)}
    return {"function": function}


def arguments(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return {"args": together(pairs)} if pairs else {}


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def create_command(schedule: Item) -> str:
    """The command that recreates a schedule, quoted for a shell."""
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
    """The options of `schedules create` for this schedule; None if not needed."""
    jobs = schedule["options"]
    return {
        "cron": schedule["cron"],
        "every": schedule["every"],
        "at": schedule["at"],
        "trigger": json.dumps(schedule["trigger"]) if _is_only_a_trigger(schedule) else None,
        "tz": schedule["tz"] if _has_zone(schedule) else None,
        "anchor": schedule["anchor_at"],
        **{option.flag: _written(option, schedule[option.name]) for option in OPTIONS},
        "queue": jobs.get("queue"),
        "priority": None if jobs.get("priority") is None else str(jobs["priority"]),
        # Unlike other options, this one is stored in milliseconds.
        "timeout": None if jobs.get("timeout") is None else write_length(jobs["timeout"]),
        "owner": schedule["owner"],
    }


def _is_only_a_trigger(schedule: Item) -> bool:
    """Whether it is a rule, or several triggers."""
    return not (schedule["cron"] or schedule["every"] or schedule["at"])


def _has_zone(schedule: Item) -> bool:
    return bool(schedule["cron"] or schedule["every"]) and schedule["tz"] != "UTC"


def _written(option: Option, value: Any) -> str | None:
    """A value in the form its option accepts; None if there is none."""
    if value is None:
        return None
    if option.kind in JSON:
        return json.dumps(value)
    return write_length(round(value * 1000)) if option.kind is Kind.LENGTH else str(value)
