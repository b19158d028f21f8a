"""The server and its clients, as the tests of the server have them."""

from tests.server.conftest import (
    app,
    clock,
    db,
    hire,
    migrated_database,
    migrated_file,
    postgres_url,
    reused_database,
    shop,
)

__all__ = [
    "app",
    "clock",
    "db",
    "hire",
    "migrated_database",
    "migrated_file",
    "postgres_url",
    "reused_database",
    "shop",
]
