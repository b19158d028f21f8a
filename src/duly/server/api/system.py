"""duly's own tables, read-only."""

from __future__ import annotations

import json
from typing import Annotated, Any

from msgspec import Meta

from duly.app import Duly, operations
from duly.model.access import Principal, Scope
from duly.model.system import TABLES, is_key, key_of
from duly.server.answers import Refused, Shape
from duly.server.api.common import Cursor, Limit
from duly.server.api.operation import Operations, Reader, require_all_owners

api = Operations("system", "/system")

NEEDED_SCOPES = {"audit": Scope.OPERATE, "requests": Scope.ADMIN, "tokens": Scope.ADMIN}
"""Tables whose own routes require more than the `read` scope require it here too."""


class TableShape(Shape):
    name: str
    rows: Annotated[int, Meta(description="The number of rows, counted up to 10,000.")]
    capped: Annotated[bool, Meta(description="Whether there may be more rows.")]
    columns: Annotated[list[str], Meta(description="The columns that are shown; never user data.")]


class RowsShape(Shape):
    items: list[dict[str, Any]]
    next: str | None


@api.get("")
def tables(app: Duly, who: Reader) -> list[TableShape]:
    """List duly's own tables. They are read-only, without arguments, results, errors, bodies and
    secrets."""
    require_all_owners(who)
    return [
        TableShape(
            name=table.name, rows=table.rows, capped=table.capped, columns=list(table.columns)
        )
        for table in operations.system_tables(app)
    ]


@api.get("/{table}")
def rows(
    app: Duly,
    who: Reader,
    table: str,
    after: Cursor = None,
    limit: Limit = 100,
) -> RowsShape:
    """List the rows of a table, in key order."""
    require_all_owners(who)
    if table not in TABLES:
        raise Refused(404, "table_not_found", f"duly has no table {table!r}")
    _check(who, table)
    found = operations.system_rows(app, table, _key(table, after), limit + 1)
    shown = [dict(row) for row in found[:limit]]
    more = len(found) > limit
    return RowsShape(items=shown, next=json.dumps(key_of(table, shown[-1])) if more else None)


def _check(who: Principal, table: str) -> None:
    needed = NEEDED_SCOPES.get(table)
    if needed is not None and not who.may(needed):
        raise Refused(403, "forbidden", f"the scope {needed} is required for this table")


def _key(table: str, after: str | None) -> list[str | int] | None:
    if after is None:
        return None
    try:
        key = json.loads(after)
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or not is_key(table, key):  # pyright: ignore
        raise Refused(422, "invalid", "give the `next` value of the previous page", field="after")
    return key  # pyright: ignore[reportUnknownVariableType]
