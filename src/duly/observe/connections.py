"""Compares the threads of workers with the database connections that sync actions can get.

Each sync action that runs may hold a connection of the user's own: from a SQLAlchemy engine's pool,
from Django's pool, or, with Django's ORM and no pool, one for each thread.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from duly.errors import StoreError
from duly.store.base import DatabaseInfo

if TYPE_CHECKING:
    from duly.core import Core

log = logging.getLogger(__name__)

PSYCOPG_POOL_SIZE = 4
"""The default size of a psycopg pool."""


class ClientPool(NamedTuple):
    """A limited pool from which functions get their connections."""

    name: str
    """Where it is: module and name of an engine, or a key of DATABASES."""
    connections: int
    settings: str
    timeout: str
    """The option that says how long a function waits for a connection."""


def client_pools() -> list[ClientPool]:
    """The limited pools that this process has, as far as they can be recognized."""
    return [*_engine_pools(), *_django_pools()]


def _engine_pools() -> Iterator[ClientPool]:
    """Those of the sync SQLAlchemy engines that loaded modules have as globals."""
    sqlalchemy = sys.modules.get("sqlalchemy")
    if sqlalchemy is None:
        return
    for name, pool in {id(pool): (name, pool) for name, pool in _engines(sqlalchemy)}.values():
        size, overflow = pool.size(), pool._max_overflow
        if size > 0 and overflow >= 0:
            settings = f"pool_size {size} + max_overflow {overflow}"
            yield ClientPool(name, size + overflow, settings, "pool_timeout")


def _engines(sqlalchemy: Any) -> Iterator[tuple[str, Any]]:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            # `isinstance` would make lazy objects, such as Django's settings, load themselves.
            if issubclass(type(value), sqlalchemy.Engine):
                pool: Any = value.pool
                if isinstance(pool, sqlalchemy.pool.QueuePool):
                    yield f"{module.__name__}.{name}", pool


def _django_pools() -> Iterator[ClientPool]:
    """Those that Django has for PostgreSQL, by OPTIONS["pool"]."""
    conf: Any = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured:
        return
    for alias, database in conf.settings.DATABASES.items():
        pool = database.get("OPTIONS", {}).get("pool")
        if pool:
            options: Mapping[str, Any] = {} if pool is True else pool
            size = options.get("max_size") or options.get("min_size", PSYCOPG_POOL_SIZE)
            yield ClientPool(
                f"DATABASES[{alias!r}]", size, f"max_size {size}", "the pool's timeout"
            )


def pool_problems(threads: int, pools: Sequence[ClientPool]) -> list[str]:
    """One line for each pool that has fewer connections than a worker has threads."""
    return [
        f"{threads} threads share {_connections(pool.connections)} of {pool.name}"
        f" ({pool.settings}); a job that gets none within {pool.timeout} fails"
        for pool in pools
        if pool.connections < threads
    ]


def _connections(number: int) -> str:
    return "the only connection" if number == 1 else f"the {number} connections"


POOL_HINT = "enlarge the pool, or lower --threads"


def server_problem(threads: Sequence[int], engine: DatabaseInfo) -> str | None:
    """Whether worker processes with so many threads each may lack connections."""
    if engine.connections is None or not engine.max_connections or engine.is_pooled:
        return None
    free = max(0, engine.max_connections - engine.reserved_connections - engine.connections)
    needed = sum(threads)
    if needed <= free:
        return None
    if len(set(threads)) == 1:
        who = f"{threads[0]} threads × {len(threads)} process{'' if len(threads) == 1 else 'es'}"
    else:
        who = f"{needed} threads of {len(threads)} processes"
    return (
        f"{who} may open {needed} connections; the server has {free} of"
        f" {engine.max_connections} left"
    )


SERVER_HINT = "lower --threads or --processes, raise max_connections, or use a pooler"


def warn_about_pools(threads: int) -> None:
    """Called when a worker starts."""
    for problem in pool_problems(threads, client_pools()):
        log.warning("%s: %s", problem, POOL_HINT)


def warn_about_server(core: Core, threads: int, processes: int) -> None:
    """Called before worker processes start."""
    with suppress(StoreError):
        problem = server_problem([threads] * processes, core.ready().database())
        if problem is not None:
            log.warning("%s: %s", problem, SERVER_HINT)
