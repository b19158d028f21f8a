"""Creates the store that a database URL names."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from urllib.parse import unquote

from duly.clock import Clock, SystemClock
from duly.errors import InvalidURL, without_password
from duly.store.base import POOL
from duly.store.sqlite import SqliteStore
from duly.store.table import Store

log = logging.getLogger(__name__)


def make_store(
    url: str,
    folder: Path,
    clock: Clock,
    schema: str,
    pooler: bool,
    synchronous: str,
    pool: int = POOL,
) -> Store:
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme == "sqlite":
        return SqliteStore(sqlite_path(url, folder), synchronous=synchronous)
    if scheme in ("postgres", "postgresql"):
        postgres = importlib.import_module("duly.store.postgres")
        system_clock = clock if isinstance(clock, SystemClock) else None
        store: Store = postgres.PostgresStore(
            url, schema=schema, pooler=pooler, pool=pool, clock=system_clock
        )
        return store
    raise InvalidURL(
        f"{without_password(url)!r} is not a database URL;  "
        "use sqlite:///file.db or postgresql://user@host/name"
    )


def sqlite_path(url: str, folder: Path) -> Path | None:
    """The path, or None for a private temporary file.

    A relative path starts at the app module's folder.
    """
    rest = url.partition("://")[2]
    if not rest.startswith("/") or rest == "/":
        raise InvalidURL(
            f"{url!r} does not name a file; use sqlite:///relative.db or sqlite:////absolute.db"
        )
    name = unquote(rest[1:].partition("?")[0])
    if name == ":memory:":
        return None
    path = Path(name)
    if not path.is_absolute():
        path = folder / path
        log.info("using the database at %s", path)
    return path
