"""duly's own tables, read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duly.model.measure import CAP
from duly.model.system import TABLES, is_id_column, is_key, kind_of

if TYPE_CHECKING:
    from duly.store.session import Session

FLAGS = frozenset("internal exhausted zoned enabled dst_adjusted alone".split())
"""SQLite has no booleans."""
_READ_AS_TEXT = frozenset(
    "id job_id schedule_id parent_id worker_id retry_of hook_id batch_id last_job_id target".split()
)


def page_of(table: str, dialect: str, *, beyond: bool) -> str:
    """The statement that shows some rows of a table in key order."""
    shown = TABLES[table]
    columns = ", ".join(_read(column, dialect) for column in shown.columns)
    key = ", ".join(f"t.{column}" for column in shown.key)
    given = ", ".join(_parameter(column, dialect) for column in shown.key)
    where = f" WHERE ({key}) > ({given})" if beyond else ""
    return f"SELECT {columns} FROM @{table} t{where} ORDER BY {key} LIMIT :limit"


def _read(column: str, dialect: str) -> str:
    if dialect == "sqlite":
        return f"+t.{column}"
    return f"t.{column}::text" if column in _READ_AS_TEXT else f"t.{column}"


def _parameter(column: str, dialect: str) -> str:
    if dialect == "sqlite":
        return f":{column}"
    kind = "uuid" if is_id_column(column) else "int8" if kind_of(column) is int else "text"
    return f":{column}::{kind}"


def count_rows(table: str) -> str:
    """The statement that counts the rows of a table, up to a limit."""
    return f"SELECT count(*) FROM (SELECT 1 FROM @{table} LIMIT {CAP}) found"


class SystemTable(msgspec.Struct, frozen=True):
    """One of duly's tables: its rows, counted up to a limit, and the columns that are shown."""

    name: str
    rows: int
    columns: tuple[str, ...]

    @property
    def capped(self) -> bool:
        return self.rows >= CAP


def tables(session: Session) -> list[SystemTable]:
    """duly's own tables, with their rows counted up to a limit."""
    return [
        SystemTable(name, session.run_text(count_rows(name), {})[0][0], shown.columns)
        for name, shown in sorted(TABLES.items())
    ]


def rows(
    session: Session, table: str, after: Sequence[str | int] | None, limit: int
) -> list[Mapping[str, Any]]:
    """Rows of one of duly's tables after a key, in key order.

    User data is left out: arguments, results, bodies, secrets.
    """
    shown = TABLES[table]
    if after is not None and not is_key(table, after):
        return []
    beyond = {} if after is None else dict(zip(shown.key, after, strict=True))
    text = page_of(table, session.dialect, beyond=after is not None)
    found = session.run_text(text, beyond | {"limit": limit})
    return [
        {column: _plain(column, value) for column, value in zip(shown.columns, row, strict=True)}
        for row in found
    ]


def _plain(column: str, value: Any) -> Any:
    return bool(value) if column in FLAGS and value is not None else value
