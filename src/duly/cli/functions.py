"""`duly functions`: list, pause and deprecate functions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import click

from duly.cli import complete
from duly.cli.api import Api
from duly.cli.ask import force_option, note_option, sure
from duly.cli.command import Group
from duly.cli.out import Column, Item, Out, brief
from duly.cli.root import Root
from duly.cli.schedules.options import create_command

if TYPE_CHECKING:
    from rich.console import RenderableType

DEEPEST = 5


@click.group(cls=Group)
def functions() -> None:
    """List, pause and deprecate functions."""


# Reading -----------------------------------------------------------------------------------------


@functions.command("list")
@click.option("--all", "every", is_flag=True, help="Include internal, deleted and alias functions.")
@click.pass_obj
def list_(root: Root, every: bool) -> None:
    """List the functions that workers have published.

    \b
    duly functions list
    duly functions list --all --json
    """
    found = [each for each in root.api.items("/functions") if every or _is_listed(each)]
    columns = [
        Column("function", "name"),
        Column("status", "status"),
        Column("arguments", "arguments", _in_short, flexible=True),
        Column("kind", "kind", flexible=True),
        Column("queue", "queue", flexible=True),
    ]
    empty = "no functions; a worker publishes its app's functions when it starts"
    root.out.table(found, columns, empty=empty)


def _is_listed(function: Item) -> bool:
    return (
        not function["internal"]
        and function["alias_of"] is None
        and function["status"] != "deleted"
    )


@functions.command()
@click.argument("name", shell_complete=complete.functions)
@click.pass_obj
def show(root: Root, name: str) -> None:
    """Show a function: its arguments, how to call it, and its status.

    \b
    duly functions show send_mail
    """
    function = _get(root.api, name)
    root.out.show(function, lambda: _shown(root.out, function))


def _get(api: Api, name: str) -> Item:
    found: Item = api.get("/functions/{}", name)
    return found


def _shown(out: Out, function: Item) -> RenderableType:
    from rich.console import Group as Lines

    fields = [
        ("name", function["name"]),
        ("alias of", function["alias_of"]),
        ("kind", function["kind"]),
        ("app", function["app"]),
        ("queue", function["queue"]),
        ("trigger", function["trigger"]),
        ("status", function["status"]),
        ("decided", out.moment(function["status_at_ms"])),
        ("by", function["status_by"]),
        ("note", function["status_note"]),
        ("internal", "yes" if function["internal"] else None),
        ("published", out.moment(function["published_at_ms"])),
    ]
    arguments = list(_arguments(function["arguments"]))
    shown: list[RenderableType] = [out.fields(fields)]
    if arguments:
        columns = [
            Column("argument", "name"),
            Column("type", "type"),
            Column("default", "default"),
            Column("", "said", flexible=True),
        ]
        shown += [out.cell(""), out.grid(arguments, columns)]
    else:
        shown.append(out.cell("\nno arguments"))
    shown.append(out.styled(f"\n{call_of(function)}", "cyan"))
    return Lines(*shown)


# JSON Schema -------------------------------------------------------------------------------------


def _arguments(schema: Item) -> Iterator[Item]:
    required = schema.get("required", [])
    for name, part in schema.get("properties", {}).items():
        default = "required" if name in required else "optional"
        if "default" in part:
            default = brief(part["default"])
        hidden = "redacted" if part.get("writeOnly") else ""
        said = part.get("description") or hidden
        yield {"name": name, "type": type_of(schema, part), "default": default, "said": said}


def _in_short(schema: Item) -> str:
    """name, times=1"""
    required = schema.get("required", [])
    return ", ".join(
        name if name in required or "default" not in part else f"{name}={brief(part['default'])}"
        for name, part in schema.get("properties", {}).items()
    )


def type_of(root: Item, part: Any, depth: int = 0) -> str:
    """The type of a value in words: `string`, `list of integer`, `integer or null`."""
    part = _resolved(root, part)
    if depth > DEEPEST:
        return "anything"
    if "enum" in part:
        return " | ".join(brief(each) for each in part["enum"])
    if "const" in part:
        return brief(part["const"])
    for several in ("anyOf", "oneOf"):
        if several in part:
            types = (type_of(root, each, depth + 1) for each in part[several])
            return " or ".join(dict.fromkeys(types))
    kind = " or ".join(_kinds(part)) or part.get("title", "anything")
    if kind == "array" and "items" in part:
        return f"list of {type_of(root, part['items'], depth + 1)}"
    if kind == "object":
        return str(part.get("title", "object"))
    return str(part.get("format", kind)) if kind == "string" else str(kind)


def _kinds(part: Item) -> list[str]:
    kinds: str | list[str] = part.get("type", [])
    return [kinds] if isinstance(kinds, str) else kinds


def _resolved(root: Item, part: Any) -> Item:
    """The target of a reference; {} if there is none."""
    for _ in range(DEEPEST):
        if not isinstance(part, dict):
            return {}
        if "$ref" not in part:
            return cast(Item, part)
        name = str(cast(Item, part)["$ref"]).rpartition("/")[2]
        part = root.get("$defs", {}).get(name)
    return {}


def call_of(function: Item) -> str:
    """A command that runs it, with example values for the required arguments."""
    schema = function["arguments"]
    properties = schema.get("properties", {})
    words = [
        _pair(name, example_of(schema, properties.get(name, {})))
        for name in schema.get("required", [])
    ]
    return " ".join(["duly run", shlex.quote(function["name"]), *words])


def _pair(name: str, value: Any) -> str:
    said = f"{name}={value}" if isinstance(value, str) else f"{name}:={brief(value)}"
    return shlex.quote(said)


EXAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
    "date": "2026-05-01",
    "date-time": "2026-05-01T09:00:00Z",
    "time": "09:00:00Z",
    "duration": "PT5M",
    "email": "me@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "1.50",
}


def example_of(root: Item, part: Any, depth: int = 0) -> Any:
    """An example value that fits the schema."""
    part = _resolved(root, part)
    if depth > DEEPEST:
        return "text"
    if "default" in part:
        return part["default"]
    if "const" in part:
        return part["const"]
    if part.get("enum") or part.get("examples"):
        return (part.get("examples") or part["enum"])[0]
    for several in ("anyOf", "oneOf"):
        choices = [each for each in part.get(several, []) if each.get("type") != "null"]
        if choices:
            return example_of(root, choices[0], depth + 1)
    kind = next(iter(_kinds(part)), "string")
    if kind == "array":
        return [example_of(root, part["items"], depth + 1)] if "items" in part else []
    if kind == "object":
        needed, inner = part.get("required", []), part.get("properties", {})
        return {name: example_of(root, inner.get(name, {}), depth + 1) for name in needed}
    return EXAMPLES.get(part.get("format", kind), EXAMPLES.get(kind, "text"))


# Changing ----------------------------------------------------------------------------------------


@functions.command()
@click.argument("name", shell_complete=complete.functions)
@note_option
@click.pass_obj
def pause(root: Root, name: str, note: str | None) -> None:
    """Pause a function: its jobs wait, and its ticks are skipped.

    \b
    duly functions pause send_mail --note "the provider is down"
    """
    _decide(root, name, "pause", note, "is paused; its jobs wait")


@functions.command()
@click.argument("name", shell_complete=complete.functions)
@click.pass_obj
def resume(root: Root, name: str) -> None:
    """Let the jobs of a paused function start again.

    \b
    duly functions resume send_mail
    """
    _decide(root, name, "resume", None, "is active again")


@functions.command()
@click.argument("name", shell_complete=complete.functions)
@note_option
@click.pass_obj
def deprecate(root: Root, name: str, note: str | None) -> None:
    """Deprecate a function: pending jobs finish, its ticks are skipped.

    New calls cause a warning in Python and are refused over HTTP.

    \b
    duly functions deprecate send_fax --note "use send_mail"
    """
    _decide(root, name, "deprecate", note, "is deprecated; its waiting jobs still run")


@functions.command()
@click.argument("name", shell_complete=complete.functions)
@note_option
@force_option
@click.pass_obj
def delete(root: Root, name: str, note: str | None, force: bool) -> None:
    """Delete a function and its schedules, and cancel its pending jobs.

    It stays deleted even if code still defines it, and new calls are refused. To undo this, run
    `duly functions restore`. That prints the commands that recreate its schedules; the jobs stay
    canceled.

    \b
    duly functions delete send_fax --note "replaced by send_mail"
    """
    function = _get(root.api, name)
    if not force:
        sure(f"Delete {function['name']}? {_what_goes(root.api, function['name'])}", force=False)
    _decide(root, name, "delete", note, "was deleted")


@functions.command()
@click.argument("name", shell_complete=complete.functions)
@click.pass_obj
def restore(root: Root, name: str) -> None:
    """Make a paused, deprecated or deleted function active again.

    For schedules that were removed with it, it prints the commands that recreate them.

    \b
    duly functions restore send_fax
    """
    answer = _decide(root, name, "restore", None, "is active")
    if answer["removed"] and not root.out.as_json:
        root.out.note("its schedules were removed with it; these commands recreate them:")
        for schedule in answer["removed"]:
            root.out.say(create_command(schedule))


def _what_goes(api: Api, name: str) -> str:
    pending = {"verb": "cancel", "function": name, "state": "pending", "dry_run": True}
    jobs = api.post("/jobs/bulk", body=pending)["matched"]
    schedules = sum(1 for _ in api.pages("/schedules", function=name))
    jobs_said = f"{jobs} pending job{'' if jobs == 1 else 's'}"
    return (
        f"It cancels {jobs_said} and removes {schedules} schedule{'' if schedules == 1 else 's'}."
    )


def _decide(root: Root, name: str, verb: str, note: str | None, said: str) -> Item:
    answer = root.api.post("/functions/{}/status", name, body={"verb": verb, "note": note})
    root.out.show(answer, lambda: root.out.cell(f"{answer['name']} {said}"))
    return dict(answer)
