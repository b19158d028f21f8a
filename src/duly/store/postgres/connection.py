"""A connection with cursors that ignore the user's psycopg settings."""

from __future__ import annotations

import select
from typing import Any

import psycopg
import psycopg.postgres
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row
from psycopg.types import TypesRegistry

from duly.store.steps import Row

Connection = psycopg.Connection[Any]


def _plain_adapters() -> AdaptersMap:
    types = TypesRegistry()
    psycopg.postgres.register_default_types(types)
    adapters = AdaptersMap(types=types)
    psycopg.postgres.register_default_adapters(adapters)
    return adapters


# psycopg's initial configuration: nothing that a user registers, globally or per connection, is in
# it.
ADAPTERS = _plain_adapters()


class PlainCursor(psycopg.Cursor[Row]):
    """A cursor that ignores the user's settings."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


class PlainAsyncCursor(psycopg.AsyncCursor[Row]):
    """The same for async connections."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS


def is_hung_up(raw: Connection) -> bool:
    """Whether an idle connection was closed: a server sends something unasked only to say so."""
    if raw.closed:
        return True
    asked = select.poll()
    asked.register(raw.fileno(), select.POLLIN)
    return bool(asked.poll(0))
