"""Creates the store that a database URL names."""

from __future__ import annotations

import importlib
from pathlib import Path
from urllib.parse import unquote

from duly.clock import Clock, SystemClock
from duly.errors import InvalidURL, without_password
from duly.store.base import POOL
from duly.store.sqlite import SqliteStore
from duly.store.table import Store


def make_store(
    url: str,
    clock: Clock,
    schema: str,
    pooler: bool,
    synchronous: str,
    pool: int = POOL,
) -> Store:
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme == "sqlite":
        return SqliteStore(sqlite_path(url), synchronous=synchronous)
    if scheme in ("postgres", "postgresql"):
        postgres = importlib.import_module("duly.store.postgres")
        system_clock = clock if isinstance(clock, SystemClock) else None
        store: Store = postgres.PostgresStore(
            url, schema=schema, pooler=pooler, pool=pool, clock=system_clock
        )
        return store
    raise InvalidURL(
        f"{without_password(url)!r} is not a database URL; "
        "use sqlite:///file.db or postgresql://user@host/name"
    )


def sqlite_path(url: str) -> Path | None:
    """The absolute path, or None for a private temporary file.

    A relative path is relative to the working directory, which may change later.
    """
    rest = url.partition("://")[2]
    if not rest.startswith("/") or rest == "/":
        raise InvalidURL(
            f"{url!r} does not name a file; use sqlite:///relative.db or sqlite:////absolute.db"
        )
    name = unquote(rest[1:].partition("?")[0])
    if name == ":memory:":
        return None
    return Path(name).absolute()
