"""Keeps Alembic's autogenerate off duly's tables.

In env.py: `context.configure(…, include_object=include_object, include_name=include_name)`. With
your own conditions: `return include_object(*args) and …`. If duly's schema has another name:
`functools.partial(include_object, schema="jobs")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SQLITE_PREFIX = "duly_"


def include_object(
    object: Any,
    name: str | None,
    type_: str,
    reflected: bool,
    compare_to: Any,
    *,
    schema: str = "duly",
) -> bool:
    """Return False for duly's tables, unless your own metadata declares a table of that name."""
    if type_ != "table" or not reflected:
        return True
    return object.schema != schema and not (name or "").startswith(SQLITE_PREFIX)


def include_name(
    name: str | None, type_: str, parent_names: Mapping[str, Any], *, schema: str = "duly"
) -> bool:
    """Return False for duly's schema, which `include_schemas=True` would otherwise read."""
    return type_ != "schema" or name != schema
