"""Compares the threads of workers with the database connections that sync actions can get.

Each sync action that runs may hold a connection of the user's own: from a SQLAlchemy engine's pool,
or, with Django's ORM, one for each thread.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from duly.errors import StoreError
from duly.store.base import DatabaseInfo

if TYPE_CHECKING:
    from duly.core import Core

log = logging.getLogger(__name__)


class EnginePool(NamedTuple):
    """The connection pool of a SQLAlchemy engine."""

    engine: str
    """Where it was found: module and name."""
    size: int
    overflow: int


def engine_pools() -> list[EnginePool]:
    """The limited pools of the sync SQLAlchemy engines that loaded modules have as globals."""
    sqlalchemy = sys.modules.get("sqlalchemy")
    if sqlalchemy is None:
        return []
    found = {id(pool): (name, pool) for name, pool in _pools(sqlalchemy)}
    limits = ((name, pool.size(), pool._max_overflow) for name, pool in found.values())
    return [EnginePool(*limit) for limit in limits if limit[1] > 0 and limit[2] >= 0]


def _pools(sqlalchemy: Any) -> Iterator[tuple[str, Any]]:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if isinstance(value, sqlalchemy.Engine):
                pool: Any = value.pool
                if isinstance(pool, sqlalchemy.pool.QueuePool):
                    yield f"{module.__name__}.{name}", pool


def pool_problems(threads: int, pools: Sequence[EnginePool]) -> list[str]:
    """One line for each pool that has fewer connections than a worker has threads."""
    return [
        f"{threads} threads share the {pool.size + pool.overflow} connections of {pool.engine}"
        f" (pool_size {pool.size} + max_overflow {pool.overflow}); a job that gets none within"
        " pool_timeout fails"
        for pool in pools
        if pool.size + pool.overflow < threads
    ]


POOL_HINT = "raise pool_size or max_overflow, or lower --threads"


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
    for problem in pool_problems(threads, engine_pools()):
        log.warning("%s: %s", problem, POOL_HINT)


def warn_about_server(core: Core, threads: int, processes: int) -> None:
    """Called before worker processes start."""
    with suppress(StoreError):
        problem = server_problem([threads] * processes, core.ready().database())
        if problem is not None:
            log.warning("%s: %s", problem, SERVER_HINT)
