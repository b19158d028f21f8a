"""`duly import`: import schedules from cron and other systems."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from duly.app import operations
from duly.cli.ask import Decorator, all_of
from duly.cli.command import EXIT_ERROR, EXIT_USAGE, Group, fail
from duly.cli.imports.entry import ReadEntry, is_mapping
from duly.cli.imports.match import Matcher, Rule
from duly.cli.imports.plan import Change, Planner, write
from duly.cli.out import Out, brief
from duly.cli.root import Root
from duly.cli.when import local_zone, tz_option
from duly.errors import InvalidOption

if TYPE_CHECKING:
    from rich.text import Text

KINDS = {"new": "green", "change": "yellow", "unchanged": "dim", "cannot": "red"}
NO_PICKLES = "a job store contains pickles, and reading a pickle can run any code"


class Mapped(click.ParamType[Rule]):
    """`regex=function`."""

    name = "REGEX=FUNCTION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Rule:
        pattern, sign, function = str(value).rpartition("=")
        if not sign or not function:
            self.fail(f"{value!r} is not a rule; write 'regex=function'", param, ctx)
        try:
            return Rule(re.compile(pattern), function)
        except re.error as error:
            self.fail(f"{pattern!r} is not a valid regular expression: {error}", param, ctx)


def _common(prefix: str) -> Decorator:
    return all_of(
        click.option(
            "--map",
            "rules",
            type=Mapped(),
            multiple=True,
            help="Entries that match call this function; repeatable.",
        ),
        click.option("--prefix", default=prefix, show_default=True, help="Prefix for the keys."),
        click.option(
            "--yes", is_flag=True, help="Write the schedules instead of only showing them."
        ),
        click.option(
            "--as-code", is_flag=True, help="Print Python code that declares the schedules."
        ),
    )


class How(NamedTuple):
    """The options that every source has."""

    rules: tuple[Rule, ...]
    prefix: str
    yes: bool
    as_code: bool
    function: str | None = None


@click.group(cls=Group)
def imports() -> None:
    """Import schedules from cron and other systems.

    Shows what is new and what would change; --yes writes it. Repeating an import changes nothing.
    --as-code prints `app.schedule(…)` lines for your code instead, and does not need the database.
    Exit 1 if an entry cannot be imported.
    """


# Sources -----------------------------------------------------------------------------------------


@imports.command()
@click.argument("file", type=click.File(encoding="utf-8", errors="surrogateescape"))
@click.option("--system", is_flag=True, help="Expect a user column, as in /etc/crontab.")
@click.option(
    "--function", metavar="NAME", help="Call this function, with the line's command as command=."
)
@_common("crontab:")
@tz_option("Time zone of the schedules (default: this machine's).")
@click.pass_obj
def crontab(
    root: Root,
    file: Any,
    system: bool,
    function: str | None,
    rules: tuple[Rule, ...],
    prefix: str,
    yes: bool,
    as_code: bool,
    tz: str | None,
) -> None:
    """Import a crontab from a file, or from standard input with -.

    Each line calls a function, which gets the line's command as `command` and, with --system, the
    user as `user`, if it has these parameters. CRON_TZ is used; other variables are not imported.

    \b
    crontab -l | duly import crontab - --function run_command
    duly import crontab cron.txt --map 'backup\\.sh=backup' --yes
    duly import crontab /etc/crontab --system --function run_command
    """
    from duly.cli.imports.from_crontab import read_crontab

    if function is None and not rules:
        fail("give the function to call: --function NAME, or --map 'regex=function'", EXIT_USAGE)
    if not system and file.name.startswith(("/etc/crontab", "/etc/cron.d/")):
        fail(f"{file.name} has a user column; give --system", EXIT_USAGE)
    zone = tz or local_zone()
    found = read_crontab(file.read(), zone, system=system)
    if found.settings:
        names = ", ".join(f"{name} (line {line})" for name, line in found.settings.items())
        root.out.note(f"variables that were not imported: {names}")
    _import(root, found.found, How(rules, prefix, yes, as_code, function))


@imports.command("celery-beat")
@click.argument("source", metavar="MODULE:NAME|FILE.json")
@_common("beat:")
@tz_option("Time zone of the schedules (default: the app's `timezone`, or UTC).")
@click.pass_obj
def celery_beat(
    root: Root,
    source: str,
    rules: tuple[Rule, ...],
    prefix: str,
    yes: bool,
    as_code: bool,
    tz: str | None,
) -> None:
    """Import Celery's `beat_schedule` from an app or a dict.

    Unless --map matches, an entry calls the function that has its task's name, or the part of that
    name after the last dot. Celery does not have to be installed unless the module imports it.

    \b
    duly import celery-beat shop.celery:app
    duly import celery-beat beat.json --map '^shop\\.tasks\\.mail=send_mail' --yes
    """
    from duly.cli.imports.from_celery import beat_of, read_beat

    beat = beat_of(_json_file(source) if source.endswith(".json") else _object(source))
    if beat is None:
        raise InvalidOption("SOURCE", f"{source} has no beat_schedule")
    zone = tz or beat.tz or "UTC"
    found = read_beat(beat.schedule, zone)
    _import(root, found, How(rules, prefix, yes, as_code))


@imports.command()
@click.argument("source", metavar="MODULE:SCHEDULER")
@_common("apscheduler:")
@click.pass_obj
def apscheduler(
    root: Root, source: str, rules: tuple[Rule, ...], prefix: str, yes: bool, as_code: bool
) -> None:
    """Import the jobs of an APScheduler 3 scheduler.

    Jobs are read with get_jobs(), so the module may have to start the scheduler. The database of a
    job store is not read: it contains pickles, which can run code when they are read.

    \b
    duly import apscheduler shop.jobs:scheduler
    duly import apscheduler shop.jobs:scheduler --map 'jobs:tidy=clean_up' --yes
    """
    from duly.cli.imports.from_apscheduler import read_jobs

    if "://" in source or (Path(source).is_file() and not source.endswith(".py")):
        fail(f"{NO_PICKLES}; name the scheduler as module:scheduler", EXIT_USAGE)
    scheduler = _object(source)
    if not callable(getattr(scheduler, "get_jobs", None)):
        raise InvalidOption("SOURCE", f"{source} is not a scheduler: it has no get_jobs()")
    _import(root, read_jobs(scheduler), How(rules, prefix, yes, as_code))


def _object(source: str) -> Any:
    from duly.cli.find import find_object

    return find_object(source, "SOURCE")


def _json_file(source: str) -> Any:
    try:
        found = json.loads(Path(source).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidOption("SOURCE", f"cannot read {source}: {error}") from error
    if not is_mapping(found):
        raise InvalidOption("SOURCE", f"{source} does not contain a JSON object")
    return found


def _import(root: Root, found: Iterable[ReadEntry], how: How) -> None:
    if not how.as_code:
        _plan(root, found, Planner(root.api, _matcher(how, _known(root))), yes=how.yes)
    elif how.yes:
        fail("give --yes to write schedules or --as-code to print code, not both", EXIT_USAGE)
    else:
        operations.import_modules(root.app)
        _print_code(root, found, _matcher(how, _registered(root)))


def _matcher(how: How, known: Mapping[str, Mapping[str, Any]]) -> Matcher:
    return Matcher(known, how.prefix, how.rules, how.function)


def _known(root: Root) -> dict[str, Any]:
    """The parameters of every function that schedules can call."""
    known = {
        each["name"]: each["arguments"].get("properties", {})
        for each in root.api.items("/functions")
        if not each["internal"]
    }
    # The functions of an app are not published until a worker has run it.
    return known if root.is_remote else {**known, **_registered(root)}


def _registered(root: Root) -> dict[str, Any]:
    """The same for the functions of the app itself, without the database."""
    return {
        info.name: json.loads(info.schema).get("properties", {})
        for info in operations.published(root.app)
        if not info.internal
    }


# Code --------------------------------------------------------------------------------------------


def _print_code(root: Root, found: Iterable[ReadEntry], matcher: Matcher) -> None:
    from duly.cli.imports import code

    declared = code.declarations(root.app, matcher, found)
    text = code.module(declared)
    entries = [{"where": d.where, "key": d.key, "reason": d.reason} for d in declared]
    root.out.show({"code": text, "entries": entries}, lambda: click.echo(text, nl=bool(text)))
    refused = sum(each.reason is not None for each in declared)
    root.out.note(f"{len(declared) - refused} written as code, {refused} cannot be imported")
    if refused:
        raise SystemExit(EXIT_ERROR)


# Planning and writing ----------------------------------------------------------------------------


def _plan(root: Root, found: Iterable[ReadEntry], planner: Planner, *, yes: bool) -> None:
    out = root.out
    changes = list(planner.plan(found))
    to_write = [change for change in changes if change.kind in ("new", "change")]
    for change in changes:
        if not out.as_json:
            _show(out, change)
    written = _written(root, to_write) if yes else 0
    out.show({"written": written, "entries": [_data(change) for change in changes]}, lambda: None)
    out.say(_summary(changes, written, len(to_write)))
    if any(change.kind == "cannot" for change in changes):
        raise SystemExit(EXIT_ERROR)


def _written(root: Root, changes: list[Change]) -> int:
    done = 0
    with root.out.progress("Writing") as advance:
        try:
            for change in write(root.api, changes):
                done += 1
                advance(done, len(changes), str(change.key))
        except BaseException:
            root.out.note(
                f"{done} of {len(changes)} were written; run the same import again to continue"
            )
            raise
    return done


def _summary(changes: list[Change], written: int, to_write: int) -> str:
    counts = {kind: sum(change.kind == kind for change in changes) for kind in KINDS}
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    if not changes:
        return "nothing to import"
    if written:
        return f"{said}: {written} written"
    return (
        f"{said}: nothing was written; give --yes to write"
        if to_write
        else f"{said}: nothing to write"
    )


def _show(out: Out, change: Change) -> None:
    head = out.styled(f"{change.kind:<9} ", KINDS[change.kind])
    head.append_text(out.cell(change.key or change.where))
    out.print(head)
    for line in _lines(out, change):
        out.print(line)


def _lines(out: Out, change: Change) -> Iterable[Text]:
    if change.reason is not None:
        yield _indented(out, f"{change.where}: {change.text}" if change.key else change.text)
        yield _indented(out, change.reason)
    if change.would is None:
        return
    yield _indented(out, f"{change.would['function']} {brief(change.would['args'])}")
    yield _indented(out, change.would["description"])
    if change.kind == "change":
        for name, (before, after) in change.changed.items():
            yield _indented(out, f"{name}: {brief(before)} → {brief(after)}")
    if change.kind != "unchanged":
        yield _indented(out, f"next {out.moment(change.would['next_tick_at_ms']) or 'never'}")
    if change.lost:
        yield _indented(out, f"not imported: {', '.join(change.lost)}")


def _indented(out: Out, text: str) -> Text:
    return out.cell(f"          {text}")


def _data(change: Change) -> dict[str, Any]:
    would = change.would or {}
    return {
        "kind": change.kind,
        "where": change.where,
        "text": change.text,
        "key": change.key,
        "reason": change.reason,
        **{name: would.get(name) for name in ("function", "args", "options", "description")},
        "next_tick_at": would.get("next_tick_at"),
        "next_tick_at_ms": would.get("next_tick_at_ms"),
        "changed": {
            name: {"before": before, "after": after}
            for name, (before, after) in change.changed.items()
        },
        "not_taken_over": list(change.lost),
    }
