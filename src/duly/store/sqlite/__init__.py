"""The store in one SQLite file."""

from duly.store.sqlite.commits import Write
from duly.store.sqlite.connection import Connection
from duly.store.sqlite.errors import translated
from duly.store.sqlite.lane import SqliteMutationLane
from duly.store.sqlite.session import SQL, WORDS, SqliteSession
from duly.store.sqlite.store import SqliteStore
from duly.store.sqlite.tx import SqliteTx

__all__ = [
    "SQL",
    "WORDS",
    "Connection",
    "SqliteMutationLane",
    "SqliteSession",
    "SqliteStore",
    "SqliteTx",
    "Write",
    "translated",
]
