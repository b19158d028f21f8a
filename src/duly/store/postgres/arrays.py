"""Writes lists as PostgreSQL array literals.

psycopg inspects every item to find its type. The statements declare the type of each array
themselves, and a batch of a thousand jobs has a dozen arrays. Written like this they cost a tenth
as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, TypeAlias, TypeGuard

Item: TypeAlias = str | bytes | float | bool


def with_arrays(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a statement, with lists replaced by array literals."""
    return {
        name: array_text(value) if _is_list(value) else value for name, value in parameters.items()
    }


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def array_text(values: Sequence[Item | None]) -> str:
    """`{1,NULL,"a \\"word\\""}`; numbers and booleans are never quoted, all others always."""
    return f"{{{_items(values)}}}"


def _items(values: Sequence[Any]) -> str:
    """Most lists contain a single type, so no item has to be inspected here."""
    if len(values) == 1:
        return "NULL" if values[0] is None else _item(values[0])
    kinds = set(map(type, values))
    if kinds == {NoneType}:
        return ",".join(["NULL"] * len(values))
    if kinds <= {int, bool, float}:
        return ",".join(map(str, values))
    if all(issubclass(kind, str) for kind in kinds):
        text = '","'.join(values)
        if "\\" not in text and text.count('"') == 2 * (len(values) - 1):
            return f'"{text}"'
    return ",".join(["NULL" if value is None else _item(value) for value in values])


def _item(value: object) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    if isinstance(value, bool | int | float):
        return str(value)
    raise TypeError(f"cannot be an item of an array: {type(value).__name__}")
