"""A connection, and the words by which duly begins and ends transactions on it."""

from __future__ import annotations

import sqlite3

# Texts of our own for what a body must not do: Python caches prepared statements by their text, and
# a cached one would pass the authorizer unseen.
BEGIN = "BEGIN IMMEDIATE -- duly"
COMMIT = "COMMIT -- duly"
ROLLBACK = "ROLLBACK -- duly"


class Connection(sqlite3.Connection):
    """A connection that was closed for a fork says so; its owner opens another."""

    gone = False
