"""The form for calling a function: one field per parameter, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, cast

from duly.server.dashboard.forms import Form

PREFIX = "arg."
"""Keeps parameter names apart from the form's own field names."""
DEEPEST = 5

Data = Mapping[str, Any]


class Kind(StrEnum):
    """The kind of input for a value."""

    TEXT = "text"
    DATE = "date"
    WHOLE = "whole number"
    NUMBER = "number"
    CHOICE = "choice"
    SECRET = "secret"
    JSON = "json"


class Parameter(NamedTuple):
    """A function's parameter and its form field."""

    name: str
    kind: Kind
    words: str
    """Its type."""
    required: bool
    nullable: bool
    options: tuple[str, ...]
    """The values of a choice, each as JSON."""

    @property
    def field(self) -> str:
        return PREFIX + self.name


class Missing(ValueError):
    """A required parameter has no value."""


# Parameters --------------------------------------------------------------------------------------


def parameters(schema: Data) -> list[Parameter]:
    required = schema.get("required", ())
    properties: Data = schema.get("properties", {})
    return [_parameter(schema, name, part, name in required) for name, part in properties.items()]


def signature(schema: Data) -> str:
    """Such as: name: string, times?: integer."""
    return ", ".join(
        f"{each.name}{'' if each.required else '?'}: {each.words}" for each in parameters(schema)
    )


def _parameter(root: Data, name: str, part: Any, required: bool) -> Parameter:
    forms = list(_forms(root, part, 0))
    some = [form for form in forms if form.get("type") != "null"]
    kind, options = _kind(some)
    words = "hidden" if kind is Kind.SECRET else " | ".join(dict.fromkeys(map(_words, forms)))
    return Parameter(name, kind, words or "any", required, len(some) < len(forms), options)


def _forms(root: Data, part: Any, depth: int) -> Iterator[Data]:
    """The forms that a value may have, with references resolved and alternatives listed."""
    if not isinstance(part, Mapping) or depth > DEEPEST:
        yield {}
        return
    found = cast(Data, part)
    if "$ref" in found:
        name = str(found["$ref"]).rpartition("/")[2]
        yield from _forms(root, root.get("$defs", {}).get(name, {}), depth + 1)
        return
    alternatives = found.get("anyOf", found.get("oneOf"))
    if alternatives is not None:
        for each in alternatives:
            yield from _forms(root, each, depth + 1)
        return
    types: str | list[str] | None = found.get("type")
    listed = types if isinstance(types, list) else [types]
    yield from ({**found, "type": each} for each in listed)


def _kind(forms: list[Data]) -> tuple[Kind, tuple[str, ...]]:
    options = [option for form in forms for option in _options(form)]
    if forms and all(_options(form) for form in forms):
        return Kind.CHOICE, tuple(dict.fromkeys(map(json.dumps, options)))
    if len(forms) != 1:
        return Kind.JSON, ()
    form = forms[0]
    if form.get("writeOnly"):
        return Kind.SECRET, ()
    match form.get("type"):
        case "string":
            return (Kind.DATE if form.get("format") == "date" else Kind.TEXT), ()
        case "integer":
            return Kind.WHOLE, ()
        case "number":
            return Kind.NUMBER, ()
        case _:
            return Kind.JSON, ()


def _options(form: Data) -> list[Any]:
    """All possible values, if they can be listed."""
    if form.get("type") == "boolean":
        return [True, False]
    return [form["const"]] if "const" in form else list(form.get("enum", ()))


def _words(form: Data) -> str:
    if "const" in form or "enum" in form:
        return " | ".join(map(json.dumps, _options(form)))
    if form.get("type") == "array" and isinstance(form.get("items"), Mapping):
        return f"list of {form['items'].get('type') or 'any'}"
    name = str(form.get("title") or form.get("type") or "any")
    return f"{name} ({form['format']})" if "format" in form else name


# Answers -----------------------------------------------------------------------------------------


class Answers(NamedTuple):
    """The arguments from the form, and an error message for each that is wrong."""

    args: dict[str, Any]
    errors: dict[str, str]


def answers(asked: list[Parameter], form: Form) -> Answers:
    """Empty fields are left out, so that the function's defaults apply."""
    args: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for each in asked:
        text = written(each, form)
        try:
            if text.strip():
                args[each.name] = READ[each.kind](text)
            elif each.required and each.nullable:
                args[each.name] = None
            elif each.required:
                raise Missing("a value is required")
        except (ValueError, RecursionError) as error:
            errors[each.name] = str(error)
    return Answers(args, errors)


def written(parameter: Parameter, form: Form) -> str:
    """The text as it was typed, including surrounding spaces."""
    return next(iter(form.all(parameter.field)), "").replace("\r\n", "\n")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("give a whole number") from None


def _number(text: str) -> float:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError("give a number")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise ValueError(f'this is not JSON: {error}; put text in "quotes"') from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


READ: dict[Kind, Callable[[str], Any]] = {
    Kind.TEXT: str,
    Kind.DATE: str.strip,
    Kind.WHOLE: _whole,
    Kind.NUMBER: _number,
    Kind.CHOICE: _json,
    Kind.SECRET: _json,
    Kind.JSON: _json,
}
