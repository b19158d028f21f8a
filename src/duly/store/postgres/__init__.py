"""The store in its own PostgreSQL schema."""

import importlib

from duly.errors import MissingExtra

try:
    importlib.import_module("psycopg")
except ImportError as missing:
    raise MissingExtra("postgres", "PostgreSQL") from missing

from duly.store.postgres.connection import PlainAsyncCursor, PlainCursor
from duly.store.postgres.lane import PostgresMutationLane
from duly.store.postgres.session import PostgresSession
from duly.store.postgres.store import PostgresStore
from duly.store.postgres.tx import PostgresTx

__all__ = [
    "PlainAsyncCursor",
    "PlainCursor",
    "PostgresMutationLane",
    "PostgresSession",
    "PostgresStore",
    "PostgresTx",
]
