"""What the tests of the index stand on: one place in a database, and plain SQL beside duly."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
import pytest

from duly.index import IndexRow, PostgresScheduleIndex, SqliteScheduleIndex
from duly.store.placeholders import to_psycopg
from duly.testing.index_conformance import NOW

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize(
    "url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)

Index = SqliteScheduleIndex | PostgresScheduleIndex


class Place(NamedTuple):
    """A database, and how SQL is asked of it."""

    is_sqlite: bool
    address: str
    """What an index or a collection takes."""

    def open(self, **options: Any) -> Index:
        kind = SqliteScheduleIndex if self.is_sqlite else PostgresScheduleIndex
        return kind(self.address, **options)

    def open_on(self, handle: Any, **options: Any) -> Index:
        kind = SqliteScheduleIndex if self.is_sqlite else PostgresScheduleIndex
        return kind(handle, **options)

    def connect(self, **options: Any) -> Any:
        if self.is_sqlite:
            return sqlite3.connect(self.address, **{"timeout": 0, **options})
        return psycopg.connect(self.address, **options)

    def ask(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement in a transaction of its own."""
        with closing(self.connect()) as connection:
            cursor = connection.execute(text if self.is_sqlite else to_psycopg(text), values)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
        return rows

    def rows(self) -> list[IndexRow]:
        """Everything that the index has."""
        columns = "user_id, key, cron, timezone, next_fire_at"
        found = self.ask(f"SELECT {columns} FROM schedule_index ORDER BY user_id, key")
        return [IndexRow(*values) for values in found]

    def times(self) -> dict[str, int]:
        return {row.key: row.next_fire_at for row in self.rows()}

    def insert_due(self, count: int, at: int = NOW) -> list[str]:
        """Rows that are due, and their keys."""
        keys = [f"{number:04}" for number in range(count)]
        insert = "INSERT INTO schedule_index VALUES ('anna', ?, '0 * * * *', NULL, ?)"
        with closing(self.connect()) as connection:
            text = insert if self.is_sqlite else to_psycopg(insert)
            connection.cursor().executemany(text, [(key, at) for key in keys])
            connection.commit()
        return keys
