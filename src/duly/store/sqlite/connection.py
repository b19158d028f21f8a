"""A connection, and the statements with which duly begins and ends transactions on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

# Our own texts for statements that a body must not run: Python caches prepared statements by their
# text, and a cached one would bypass the authorizer.
BEGIN = "BEGIN IMMEDIATE -- duly"
COMMIT = "COMMIT -- duly"
ROLLBACK = "ROLLBACK -- duly"


class Connection(sqlite3.Connection):
    """A connection of a store, which keeps it until it is closed."""

    held_in: set[Connection]
    gone = False
    """Whether the store closed it while it was not in use. A holder must then open another."""

    def close(self) -> None:
        super().close()
        self.held_in.discard(self)


def close_all(connections: Iterable[Connection]) -> None:
    for raw in list(connections):
        raw.gone = True
        raw.close()
