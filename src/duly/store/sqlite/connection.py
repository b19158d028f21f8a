"""A connection, and the statements with which duly begins and ends transactions on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

# Texts of our own for what a body must not do: Python caches prepared statements by their text, and
# a cached one would pass the authorizer unseen.
BEGIN = "BEGIN IMMEDIATE -- duly"
COMMIT = "COMMIT -- duly"
ROLLBACK = "ROLLBACK -- duly"


class Connection(sqlite3.Connection):
    """A connection of a store, which holds it until it is closed."""

    held_in: set[Connection]
    gone = False
    """Whether the store closed it while nobody used it; whoever had it opens another."""

    def close(self) -> None:
        super().close()
        self.held_in.discard(self)


def close_all(connections: Iterable[Connection]) -> None:
    for raw in list(connections):
        raw.gone = True
        raw.close()
