"""duly's own tables, to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duly.ids import is_id
from duly.model.measure import MOST
from duly.store import system_statements as sql

if TYPE_CHECKING:
    from duly.store.session import Session

LONGEST = 2**63 - 1


class SystemTable(msgspec.Struct, frozen=True):
    """One of duly's tables: its rows, counted up to a limit, and what is shown of them."""

    name: str
    rows: int
    columns: tuple[str, ...]

    @property
    def capped(self) -> bool:
        return self.rows >= MOST


def tables(session: Session) -> list[SystemTable]:
    """duly's own tables, with their rows counted up to a limit."""
    return [
        SystemTable(name, session.run_text(sql.count_rows(name), {})[0][0], shown.columns)
        for name, shown in sorted(sql.TABLES.items())
    ]


def rows(
    session: Session, table: str, after: Sequence[str | int] | None, limit: int
) -> list[Mapping[str, Any]]:
    """Rows of one of duly's tables beyond a key, in the order of their keys.

    Without what users have written: arguments, results, bodies, secrets.
    """
    shown = sql.TABLES[table]
    if after is not None and not is_key(table, after):
        return []
    beyond = {} if after is None else dict(zip(shown.key, after, strict=True))
    text = sql.page_of(table, session.dialect, beyond=after is not None)
    found = session.run_text(text, beyond | {"limit": limit})
    return [
        {column: _shown(column, value) for column, value in zip(shown.columns, row, strict=True)}
        for row in found
    ]


def key_of(table: str, row: Mapping[str, Any]) -> list[str | int]:
    """What asks for the rows behind this one."""
    return [row[column] for column in sql.TABLES[table].key]


def is_key(table: str, key: Sequence[object]) -> bool:
    """Whether a row of the table could have such a key."""
    columns = sql.TABLES[table].key
    return len(key) == len(columns) and all(map(_fits, columns, key))


def _fits(column: str, value: object) -> bool:
    if type(value) is not sql.kind_of(column):
        return False
    if isinstance(value, int):
        return -LONGEST <= value <= LONGEST
    text = str(value)
    return is_id(text) if sql.is_id_column(column) else "\0" not in text and _is_unicode(text)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(column: str, value: Any) -> Any:
    return bool(value) if column in sql.FLAGS and value is not None else value
