"""The API reference of the site: a Markdown page for each area, from signatures and docstrings."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import msgspec

import duly

WIDTH = 88


@dataclass(frozen=True)
class Area:
    """One page: the public names of these modules, as users import them from `module`."""

    slug: str
    title: str
    module: str
    made_in: tuple[str, ...] = ()
    """Only names from modules that begin like this; otherwise all names of `module`."""
    also: tuple[str, ...] = ()
    """Objects that are reached through others and not imported, as `module:name`."""


AREAS = (
    Area(
        "app",
        "The app",
        "duly",
        made_in=("duly.app", "duly.calls.on", "duly.calls.registry", "duly.calls.replay"),
        also=(
            "duly.app.functions:Functions",
            "duly.app.queues:Queues",
            "duly.app.tokens:Tokens",
            "duly.observe.view:Observe",
            "duly.observe.health:HealthReport",
            "duly.observe.health:QueueHealth",
            "duly.store.base:WorkerInfo",
            "duly.store.base:HeldJobs",
            "duly.model.queue:QueuePause",
        ),
    ),
    Area(
        "functions",
        "Functions",
        "duly",
        made_in=(
            "duly.calls.kinds",
            "duly.functions",
            "duly.model.function",
            "duly.model.keys",
            "duly.model.redact",
            "duly.model.retry",
        ),
    ),
    Area(
        "contexts",
        "Contexts",
        "duly",
        made_in=(
            "duly.calls.context",
            "duly.calls.current",
            "duly.store.base",
            "duly.calls.async_tx",
            "duly.model.attempt",
        ),
    ),
    Area(
        "jobs",
        "Jobs",
        "duly",
        made_in=(
            "duly.calls.batches",
            "duly.calls.bulk",
            "duly.calls.jobs",
            "duly.model.job",
            "duly.model.progress",
            "duly.model.why",
            "duly.observe.why",
        ),
    ),
    Area(
        "workflows",
        "Workflows",
        "duly",
        made_in=("duly.calls.runs", "duly.model.workflow", "duly.workflows"),
    ),
    Area(
        "schedules",
        "Schedules",
        "duly",
        made_in=(
            "duly.model.condition",
            "duly.model.expect",
            "duly.model.forecast",
            "duly.model.schedule",
            "duly.model.trigger",
            "duly.model.why_schedule",
            "duly.schedules",
        ),
    ),
    Area("calendars", "Calendars", "duly", made_in=("duly.calendars", "duly.model.calendar")),
    Area("clocks", "Clocks", "duly", made_in=("duly.clock",)),
    Area("errors", "Errors", "duly.errors"),
    Area("testing", "duly.testing", "duly.testing"),
    Area("webhooks", "duly.webhooks", "duly.webhooks"),
    Area("endpoints", "duly.endpoints", "duly.endpoints"),
    Area("server", "duly.server", "duly.server"),
    Area("gateway", "duly.gateway", "duly.gateway"),
    Area("schedule-index", "duly.index", "duly.index"),
    Area("django", "duly.contrib.django", "duly.contrib.django"),
    Area("alembic", "duly.contrib.alembic", "duly.contrib.alembic"),
)
# Their methods are tests, which a subclass inherits and nobody calls.
WITHOUT_MEMBERS = {"ScheduleIndexConformance", "StoreConformance"}
# Made by duly, and not by users: what has one of these in its constructor, and these classes.
INTERNAL = {"Core", "JobRecord", "Read", "Run", "Store"}
NOT_CALLED = {
    "Action",
    "AsyncAction",
    "AsyncApp",
    "AsyncPlainAction",
    "AsyncWorkflow",
    "Branch",
    "Call",
    "Declared",
    "Function",
    "Mutation",
    "PlainAction",
    "Rows",
    "Wait",
    "Workflow",
}
# Used by other parts of duly, and free to change: docs/reference.md says so.
PRIVATE = {
    "Declared": {"as_published"},
    "DeclaredSchedule": {"admitted", "definition", "spec"},
    "Duly": set("command core found_at import_path owns_logging service ticker_service".split()),
    "On": {"records"},
    "Tx": {"call_is", "due_now", "end", "raise_if_alone_is_needed", "raise_if_doomed", "settle"},
}
PREFIXES: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
OPERATORS = {
    "__aenter__": "async with",
    "__aiter__": "async for",
    "__await__": "await",
    "__call__": "()",
    "__enter__": "with",
    "__iter__": "for",
}


@dataclass(frozen=True)
class Entry:
    """A class or function of a page."""

    name: str
    qualified: str
    value: Any
    members: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module: `__all__`, or the classes and functions it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if callable(getattr(module, name, None))]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]


def entries(area: Area) -> list[Entry]:
    module = importlib.import_module(area.module)
    found: list[Entry] = []
    for name in names_of(module) if area.module != "duly.contrib.django" else ["atomic"]:
        value = getattr(module, name)
        if not area.made_in or _begins(value.__module__, area.made_in):
            found.append(Entry(name, f"{area.module}.{name}", value, members(value)))
    for path in area.also:
        place, _, name = path.partition(":")
        value = getattr(importlib.import_module(place), name)
        found.append(Entry(name, f"{place}.{name}", value, members(value)))
    return found


def _begins(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def members(value: object) -> list[tuple[str, Any]]:
    """Methods and properties of a class, its own and those that it inherits within duly."""
    if not inspect.isclass(value) or value.__name__ in WITHOUT_MEMBERS:
        return []
    found: dict[str, Any] = {}
    for base in value.__mro__:
        if base.__module__.split(".")[0] != "duly":
            continue
        for name, member in vars(base).items():
            if name.startswith("_") and not (
                name in OPERATORS and not issubclass(value, enum.Enum)
            ):
                continue
            if _plain(member) is not None or isinstance(member, property):
                found.setdefault(name, member)
    return [(name, found[name]) for name in found if name not in private(value)]


def private(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in PRIVATE.get(base.__name__, ())}


def _plain(member: object) -> Callable[..., Any] | None:
    """The function of a method, whatever kind of method it is."""
    if isinstance(member, classmethod | staticmethod):
        return member.__func__
    return member if inspect.isfunction(member) else None


# Pages -------------------------------------------------------------------------------------------


def pages() -> Iterator[tuple[str, str]]:
    """File name and Markdown of each page; the first is the index."""
    yield "index.md", _index()
    for area in AREAS:
        yield f"{area.slug}.md", _page(area)


def _index() -> str:
    lines = [
        "# API reference",
        "",
        "Every public class, function and method with its signature and docstring. The",
        "[reference](../reference.md) describes the same names with their options in tables.",
    ]
    for area in AREAS:
        lines += ["", f"## [{area.title}]({area.slug}.md)", "", "| name | |", "|---|---|"]
        for entry in entries(area):
            summary = doc(entry.value).partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            lines.append(f"| [`{entry.name}`]({area.slug}.md#{entry.qualified}) | {summary} |")
    return "\n".join(lines) + "\n"


def _page(area: Area) -> str:
    module = importlib.import_module(area.module)
    parts = [f"# {area.title}"]
    if area.module != "duly" and area.slug != "errors":
        parts.append(inspect.cleandoc(module.__doc__ or ""))
    parts += [_entry(entry) for entry in entries(area)]
    return "\n\n".join(parts) + "\n"


def _entry(entry: Entry) -> str:
    heading = f"## `{entry.name}` {{ #{entry.qualified} }}"
    parts = [heading, signatures(entry.name, entry.value), doc(entry.value)]
    if inspect.isclass(entry.value):
        parts.append(_fields(entry.value))
    for name, member in entry.members:
        shown = OPERATORS.get(name, name)
        title = f"{entry.name}{shown}" if shown == "()" else f"{entry.name}.{shown}"
        if shown not in (name, "()"):
            title = f"{shown} {entry.name}"
        parts.append(f"### `{title}` {{ #{entry.qualified}.{name} }}")
        if isinstance(member, property):
            parts += [_code(_property(name, member)), doc(member.fget)]
        else:
            bound = not isinstance(member, staticmethod)
            parts += [
                signatures(name, _plain(member), bound=bound),
                doc(getattr(entry.value, name)),
            ]
    return "\n\n".join(part for part in parts if part)


def doc(value: object) -> str:
    """The docstring, but not that of object, type or str."""
    if isinstance(value, type) and not vars(value).get("__doc__"):
        return ""
    if isinstance(value, type) and value.__module__.split(".")[0] != "duly":
        return ""
    return inspect.getdoc(value) or ""


# Signatures --------------------------------------------------------------------------------------


def signatures(name: str, value: Any, *, bound: bool = False) -> str:
    """The call as code, with one line for each overload; "" if it is not for users to call."""
    if inspect.isclass(value):
        if issubclass(value, enum.Enum):
            return ""
        if issubclass(value, BaseException) and value.__init__ is Exception.__init__:
            return _code(f"class {name}({value.__bases__[0].__name__})")
        is_protocol = getattr(value, "_is_protocol", False)
        if is_protocol or name in NOT_CALLED or INTERNAL & set(re.findall(r"\w+", call("", value))):
            return _code(f"class {name}")
        return _code("class " + call(name, value, returns=False))
    overloads = typing.get_overloads(value) or [value]
    return _code("\n".join(_def(value) + call(name, each, bound=bound) for each in overloads))


def _def(value: Any) -> str:
    is_async = inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
    return "async def " if is_async else "def "


def call(name: str, value: Any, *, bound: bool = False, returns: bool = True) -> str:
    """`name(parameters) -> result`, over several lines if it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    written = list(_written(parameters, value))
    result = signature.return_annotation
    tail = "" if not returns or result is inspect.Parameter.empty else f" -> {_text(result)}"
    line = f"{name}({', '.join(written)}){tail}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in written) + f"){tail}"


def _written(parameters: list[inspect.Parameter], value: Any) -> Iterator[str]:
    kinds = inspect.Parameter
    star = False
    for place, parameter in enumerate(parameters):
        if parameter.kind is kinds.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        star = star or parameter.kind is kinds.VAR_POSITIONAL
        prefix = PREFIXES.get(parameter.kind, "")
        if options := _options(parameter, value):
            yield from options if star else ("*", *options)
            continue
        text = f"{prefix}{parameter.name}"
        if parameter.annotation is not kinds.empty:
            text += f": {_text(parameter.annotation)}"
        if parameter.default is not kinds.empty:
            equals = " = " if ": " in text else "="
            text += f"{equals}{_default(parameter.default)}"
        yield text
        following = parameters[place + 1] if place + 1 < len(parameters) else None
        if parameter.kind is kinds.POSITIONAL_ONLY and (
            following is None or following.kind is not kinds.POSITIONAL_ONLY
        ):
            yield "/"


def _options(parameter: inspect.Parameter, value: Any) -> list[str]:
    """The keyword arguments that `**options: Unpack[Options]` stands for."""
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
    if found is None:
        return []
    options = inspect.unwrap(value).__globals__[found[1]]
    fields: dict[str, Any] = {}
    for base in (*typing_bases(options), options):
        fields |= inspect.get_annotations(base)
    return [f"{name}: {_forward(each)} = ..." for name, each in fields.items()]


def typing_bases(options: Any) -> Iterator[Any]:
    """A TypedDict forgets its bases in `__mro__`, and remembers them here."""
    for base in getattr(options, "__orig_bases__", ()):
        if base is not typing.TypedDict and hasattr(base, "__annotations__"):
            yield from typing_bases(base)
            yield base


def _forward(annotation: Any) -> str:
    inner = getattr(annotation, "__forward_arg__", annotation)
    return _text(inner)


def _text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])|\bdatetime\.(?=timedelta)", "", text)


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is msgspec.UNSET or type(value).__module__ == "msgspec" or type(value) is object:
        return "..."
    if repr(value) == "<factory>":
        return "..."
    if callable(value) and hasattr(value, "__qualname__"):
        module = getattr(value, "__module__", "") or ""
        return f"{module}.{value.__qualname__}" if module != "builtins" else value.__qualname__
    if isinstance(value, msgspec.Struct) and _is_as_built(value):
        return f"{type(value).__name__}()"
    return re.sub(r"\bdatetime\.", "", repr(value))


def _is_as_built(value: msgspec.Struct) -> bool:
    """Whether every field has its default."""
    try:
        return value == type(value)()
    except TypeError:
        return False


def _property(name: str, value: property) -> str:
    result = inspect.signature(value.fget).return_annotation if value.fget else ""
    return name if result is inspect.Parameter.empty else f"{name}: {_text(result)}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


# Fields ------------------------------------------------------------------------------------------


def _fields(kind: type) -> str:
    """The members of an enum, or the attributes of a class that have an annotation."""
    if issubclass(kind, enum.Enum):
        rows = [(f"{each.name}", repr(each.value), "") for each in kind]
        head = "| member | value | |\n|---|---|---|\n"
    else:
        words = attribute_docs(kind)
        rows = [
            (name, _text(annotation), words.get(name, ""))
            for base in reversed(kind.__mro__)
            if base.__module__.split(".")[0] == "duly"
            for name, annotation in inspect.get_annotations(base).items()
            if not name.startswith("_") and not str(annotation).startswith("ClassVar")
            if name not in private(kind)
        ]
        rows += _parts(kind)
        head = "| attribute | type | |\n|---|---|---|\n"
        # The signature of a plain record says as much.
        if not words and {row[0] for row in rows} <= _parameters(kind):
            return ""
    if not rows:
        return ""
    cells = [(f"`{a}`", f"`{b}`".replace("|", "\\|"), c.replace("|", "\\|")) for a, b, c in rows]
    return head + "\n".join(f"| {a} | {b} | {c} |" for a, b, c in cells)


def _parts(kind: type) -> list[tuple[str, str, str]]:
    """The objects that an app has, such as `app.schedules`, and what each is for."""
    if kind.__name__ not in ("AsyncApp", "Duly"):
        return []
    app = duly.Duly("sqlite:///:memory:")
    made = app if isinstance(app, kind) else app.aio
    return [
        (name, type(value).__name__, doc(type(value)).partition("\n\n")[0].replace("\n", " "))
        for name, value in vars(made).items()
        if not name.startswith("_") and name not in private(kind)
    ]


def _parameters(kind: type) -> set[str]:
    try:
        return set(inspect.signature(kind).parameters)
    except (TypeError, ValueError):
        return set()


def attribute_docs(kind: type) -> dict[str, str]:
    """The strings that stand below attributes, for a class and those it inherits from in duly."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.split(".")[0] == "duly":
            found |= _strings_below(base)
    return found


def _strings_below(kind: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef), kind
    found: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = " ".join(following.value.value.split())
    return found


if __name__ == "__main__":
    for file, text in pages():
        sys.stdout.write(f"<!-- {file} -->\n{text}\n")
