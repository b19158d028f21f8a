"""Rescues the jobs of workers that have stopped or died."""

from __future__ import annotations

from collections.abc import Callable

from duly import fault
from duly.model.job import (
    Lost,
    Settlement,
)
from duly.store import limits
from duly.store.session import Session
from duly.store.statements import (
    each,
)
from duly.store.workers import DELETE_WORKER, HELD_BY_WORKER

_LOST = "@id, token, kind, attempt, crashes, system_retries, run_at, retry"
RUNNING_OF = each(
    sqlite=f"SELECT {_LOST} FROM @jobs WHERE {HELD_BY_WORKER}",
    postgres=f"SELECT {_LOST} FROM @jobs WHERE worker_id = :worker ORDER BY id FOR UPDATE",
)
LOCK_WORKER = each(
    sqlite="SELECT beat FROM @workers WHERE id = :id",
    postgres="SELECT beat FROM @workers WHERE id = :id FOR UPDATE",
)


def deregister(session: Session, worker_id: str, now: int) -> None:
    session.run(DELETE_WORKER, {"id": worker_id})
    # Otherwise they would never be freed.
    limits.release_all(session, worker_id, now)


def rescue(
    session: Session,
    worker_id: str,
    beat: int | None,
    judge: Callable[[Lost], Settlement],
    now: int,
) -> int | None:
    """Settle every job of a dead worker and remove its row, in one transaction.

    `judge(job)` decides how. Does nothing and returns None if the worker has sent a heartbeat
    since.
    """
    rows = session.run(LOCK_WORKER, {"id": worker_id})
    if not rows or (beat is not None and rows[0][0] != beat):
        return None
    lost = [Lost(*row) for row in session.run(RUNNING_OF, {"worker": worker_id})]
    session.settle([judge(job) for job in lost], now)
    limits.release_all(session, worker_id, now)
    fault.point("rescue.moved")
    session.run(DELETE_WORKER, {"id": worker_id})
    return len(lost)
