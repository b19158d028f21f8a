"""The transactions in which the index works: its own, or those of your connections.

Given a path or a DSN, an index opens its own connections. Given a connection, it uses that one,
one transaction at a time. Database errors are duly's errors on its own connections, and the
driver's errors on yours.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

from duly.errors import NoScheduleTable
from duly.index import statements as sql
from duly.index.statements import Dialect, Statement

Row = tuple[Any, ...]


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Transaction(ABC):
    """A transaction in progress."""

    dialect: Dialect

    @abstractmethod
    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]: ...

    @abstractmethod
    def run_many(self, statement: Statement, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement for each row."""

    @abstractmethod
    def run_script(self, script: Statement) -> None:
        """Run several statements without parameters."""

    def advance(self, moves: Sequence[Mapping[str, Any]]) -> None:
        """Set the next time of each (user, key)."""
        self.run_many(sql.ADVANCE, moves)

    def no_table(self, name: str) -> NoScheduleTable | None:
        """The error that says how to create a missing table, if it belongs to duly."""
        table = name.rpartition(".")[2]
        if table not in sql.SCHEMA:
            return None
        return NoScheduleTable(table, getattr(sql.SCHEMA[table], self.dialect))


class Database(ABC):
    """The database in which an index or a collection has its table."""

    # Whether it may be used only in the calling thread.
    is_tied_to_thread = False

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """Its own transaction, which commits at the end of the block."""

    @abstractmethod
    def borrow(self, connection: Any) -> Transaction:
        """The transaction of your connection, which you end."""

    @abstractmethod
    def close(self) -> None: ...

    def create(self, table: str) -> None:
        """Create the table, unless it exists."""
        with self.transaction() as tx:
            if not tx.run(sql.HAS_TABLE, {"name": table}):
                tx.run(sql.LOCK_SCHEMA)
                tx.run_script(sql.SCHEMA[table])


class Idle(Generic[C]):
    """Idle connections; connections from before a fork are left alone."""

    def __init__(self) -> None:
        self._by_process: dict[int, list[C]] = {}

    def take(self) -> C | None:
        try:
            return self._mine().pop()
        except IndexError:
            return None

    def give_back(self, connection: C) -> None:
        self._mine().append(connection)

    def close(self) -> None:
        for connection in self._by_process.pop(os.getpid(), []):
            connection.close()

    def _mine(self) -> list[C]:
        return self._by_process.setdefault(os.getpid(), [])
