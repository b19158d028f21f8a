"""Checks a JSON value against a JSON Schema, and says where and why it does not match.

Workers publish the schema of each function's arguments, so that a service without the code can
check a call before it is stored. Only keywords that msgspec and pydantic write are checked; other
keywords are ignored, since the worker that runs the job validates against its own types.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

Schema = Mapping[str, Any] | bool
DEEPEST = 100


class Misfit(NamedTuple):
    """A value that does not match: its path (`.items[2].price`), and the reason."""

    path: str
    reason: str


def misfit(schema: Schema, value: object) -> Misfit | None:
    """The first problem of the value, or None if it matches."""
    root: Mapping[str, Any] = {} if isinstance(schema, bool) else schema
    try:
        return next(_faults(root, schema, value, "", 0), None)
    except RecursionError:  # Too deep for this check does not mean too deep for the worker.
        return None


def _faults(
    root: Mapping[str, Any], schema: Schema, value: object, path: str, depth: int
) -> Iterator[Misfit]:
    if isinstance(schema, bool):
        if not schema:
            yield Misfit(path, "not allowed")
        return
    if depth > DEEPEST:
        yield Misfit(path, "nested too deeply")
        return

    def inside(part: Schema, child: object, step: str = "") -> Iterator[Misfit]:
        # Only a schema that refers to itself is endless; a value is not.
        return _faults(root, part, child, path + step, 0 if step else depth + 1)

    if "$ref" in schema:
        yield from inside(_resolve(root, schema["$ref"]), value)
    for part in schema.get("allOf", ()):
        yield from inside(part, value)
    for keyword in ("anyOf", "oneOf"):
        parts: list[Schema] = schema.get(keyword, [])
        faults = [next(inside(part, value), None) for part in parts]
        found = [fault for fault in faults if fault is not None]
        if found and len(found) == len(faults):
            yield _closest(found, Misfit(path, _none_of(parts, value)))
    yield from _plain_faults(schema, value, path)
    if isinstance(value, dict):
        yield from _object_faults(schema, cast(dict[str, Any], value), path, inside)
    elif isinstance(value, list):
        yield from _array_faults(schema, cast(Sequence[object], value), path, inside)


Inside = Callable[..., Iterator[Misfit]]


def _resolve(root: Mapping[str, Any], reference: str) -> Schema:
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = cast(dict[str, Any], found).get(step, {}) if isinstance(found, dict) else {}
    return cast(Schema, found)


def _closest(faults: list[Misfit], of_all: Misfit) -> Misfit:
    """The alternative with the deepest fault, which is probably the intended one."""
    deepest = max(faults, key=lambda fault: len(fault.path))
    return deepest if len(deepest.path) > len(of_all.path) else of_all


def _none_of(parts: list[Schema], value: object) -> str:
    types = [name for part in parts for name in _types(part)]
    wanted = " or ".join(types) if types else "one of the allowed forms"
    return f"expected {wanted}, got {_type_name(value)}"


# One value ---------------------------------------------------------------------------------------


def _plain_faults(schema: Mapping[str, Any], value: object, path: str) -> Iterator[Misfit]:
    types = _types(schema)
    if types and not any(_is_a(name, value) for name in types):
        yield Misfit(path, f"expected {' or '.join(types)}, got {_type_name(value)}")
        return
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
        listed = ", ".join(repr(allowed) for allowed in schema["enum"])
        yield Misfit(path, f"expected one of {listed}")
    if "const" in schema and not _same(value, schema["const"]):
        yield Misfit(path, f"expected {schema['const']!r}")
    if isinstance(value, str):
        yield from _text_faults(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number_faults(schema, value, path)


def _types(schema: Schema) -> list[str]:
    if isinstance(schema, bool):
        return []
    types: str | list[str] = schema.get("type", [])
    # A decimal is written as a string, but also read from a number.
    also = ["number"] if schema.get("format") == "decimal" else []
    return [*([types] if isinstance(types, str) else types), *also]


def _is_a(name: str, value: object) -> bool:
    if name == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    # 3.0 is not an integer here, unlike in JSON Schema: the worker would not accept it as one.
    return _type_name(value) == name


def _type_name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _same(value: object, other: object) -> bool:
    """Equality in JSON, where neither true nor 1.0 equals 1."""
    return value == other and _type_name(value) == _type_name(other)


_UUID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def _reads_as(kind: type) -> Callable[[str], bool]:
    def reads(value: str) -> bool:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return False
        return True

    return reads


_FORMATS: dict[str, tuple[Callable[[str], object], str]] = {
    "date-time": (_reads_as(dt.datetime), "a date and time"),
    "date": (_reads_as(dt.date), "a date"),
    "time": (_reads_as(dt.time), "a time"),
    "duration": (_reads_as(dt.timedelta), "a duration"),
    "uuid": (_UUID.fullmatch, "a UUID"),
    "decimal": (_reads_as(decimal.Decimal), "a decimal number"),
}


def _text_faults(schema: Mapping[str, Any], value: str, path: str) -> Iterator[Misfit]:
    if len(value) < schema.get("minLength", 0):
        yield Misfit(path, f"expected at least {schema['minLength']} characters")
    if len(value) > schema.get("maxLength", len(value)):
        yield Misfit(path, f"expected at most {schema['maxLength']} characters")
    if "pattern" in schema and not _matches(schema["pattern"], value):
        yield Misfit(path, f"expected text that matches {schema['pattern']}")
    if known := _FORMATS.get(schema.get("format", "")):
        fits, words = known
        if not fits(value):
            yield Misfit(path, f"expected {words}")


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:  # pydantic uses Rust patterns, with more features.
        return True


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    try:
        # 0.3 is a multiple of 0.1, though their floats are not exact.
        return abs(math.remainder(value, step)) <= abs(value) / 1e9
    except OverflowError:  # An integer that is too large for a float.
        return True


_BOUNDS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("minimum", "at least", lambda value, bound: value >= bound),
    ("maximum", "at most", lambda value, bound: value <= bound),
    ("exclusiveMinimum", "more than", lambda value, bound: value > bound),
    ("exclusiveMaximum", "less than", lambda value, bound: value < bound),
    ("multipleOf", "a multiple of", _is_multiple),
)


def _number_faults(schema: Mapping[str, Any], value: float, path: str) -> Iterator[Misfit]:
    for keyword, words, holds in _BOUNDS:
        if keyword in schema and not holds(value, schema[keyword]):
            yield Misfit(path, f"expected {words} {schema[keyword]}")


# Containers ---------------------------------------------------------------------------------------


def _object_faults(
    schema: Mapping[str, Any], value: dict[str, Any], path: str, inside: Inside
) -> Iterator[Misfit]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield Misfit(f"{path}.{name}", "missing")
    for name, child in value.items():
        other = schema.get("additionalProperties", True)
        yield from inside(properties.get(name, other), child, f".{name}")


def _array_faults(
    schema: Mapping[str, Any], value: Sequence[object], path: str, inside: Inside
) -> Iterator[Misfit]:
    if len(value) < schema.get("minItems", 0):
        yield Misfit(path, f"expected at least {schema['minItems']} items")
    if len(value) > schema.get("maxItems", len(value)):
        yield Misfit(path, f"expected at most {schema['maxItems']} items")
    first = schema.get("prefixItems", [])
    for index, child in enumerate(value):
        part = first[index] if index < len(first) else schema.get("items", True)
        yield from inside(part, child, f"[{index}]")
