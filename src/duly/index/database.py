"""The transactions in which the index works: its own, and those of a user's connection.

An index that is given a path or a DSN opens connections of its own. Given a connection, it uses
that, one transaction at a time. What the database refuses is an error of duly's on connections of
its own, and the driver's on a user's.
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
    """One that is under way."""

    dialect: Dialect

    @abstractmethod
    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]: ...

    @abstractmethod
    def run_many(self, statement: Statement, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it for each of the rows."""

    @abstractmethod
    def run_script(self, script: Statement) -> None:
        """Run several statements without parameters."""

    def advance(self, moves: Sequence[Mapping[str, Any]]) -> None:
        """Give each (user, key) its next time."""
        self.run_many(sql.ADVANCE, moves)

    def no_table(self, name: str) -> NoScheduleTable | None:
        """The error that says how to create a table, if it is one of ours."""
        table = name.rpartition(".")[2]
        if table not in sql.SCHEMA:
            return None
        return NoScheduleTable(table, getattr(sql.SCHEMA[table], self.dialect))


class Database(ABC):
    """Where an index, or a collection, has its table."""

    # Whether only the thread that asks may use it.
    is_tied_to_thread = False

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """A transaction of its own: it has committed when the block has ended."""

    @abstractmethod
    def borrow(self, connection: Any) -> Transaction:
        """The transaction of a user's connection, which the user ends."""

    @abstractmethod
    def close(self) -> None: ...

    def create(self, table: str) -> None:
        """Create the table, unless it is there."""
        with self.transaction() as tx:
            if not tx.run(sql.HAS_TABLE, {"name": table}):
                tx.run(sql.LOCK_SCHEMA)
                tx.run_script(sql.SCHEMA[table])


class Idle(Generic[C]):
    """The connections that nobody uses now; those of a process that forked are left alone."""

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
