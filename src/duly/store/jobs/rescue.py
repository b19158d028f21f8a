"""Rescues the jobs of workers that have stopped or died."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from duly import fault
from duly.model.job import (
    Kind,
    Lost,
    Settlement,
)
from duly.store import limits
from duly.store.jobs.finish import LOCKED_IDS
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)
from duly.store.steps import Row
from duly.store.workers import DELETE_WORKER, HELD_BY_WORKER

_LOST = "@id, token, kind, attempt, crashes, system_retries, run_at, retry"
# The runs that have recorded a step since they were claimed.
ADVANCED = each(
    sqlite="""SELECT json_extract(value, '$[0]') FROM json_each(:lost) WHERE EXISTS (
        SELECT 1 FROM @steps WHERE job_id = json_extract(value, '$[0]')
            AND token = json_extract(value, '$[1]'))""",
    postgres="""SELECT w.id::text FROM unnest(:ids::uuid[], :tokens::int4[]) AS w (id, token)
        CROSS JOIN LATERAL (
            SELECT 1 FROM @steps WHERE job_id = w.id AND token = w.token LIMIT 1) s""",
)
RUNNING_OF = each(
    sqlite=f"SELECT {_LOST} FROM @jobs WHERE {HELD_BY_WORKER}",
    postgres=f"SELECT {_LOST} FROM @jobs WHERE worker_id = :worker ORDER BY id FOR UPDATE",
)
IDS_OF = both("SELECT @id FROM @jobs WHERE worker_id = :worker")
# The same as RUNNING_OF, without those that other transactions have locked (PostgreSQL only).
RUNNING_UNLOCKED = both(
    f"""SELECT {_LOST} FROM @jobs
        WHERE worker_id = :worker AND NOT @jobs.id = ANY(:locked::uuid[])
        ORDER BY id FOR UPDATE"""
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
    lost = _lost(session, session.run(RUNNING_OF, {"worker": worker_id}))
    session.settle([judge(job) for job in lost], now)
    limits.release_all(session, worker_id, now)
    fault.point("rescue.moved")
    session.run(DELETE_WORKER, {"id": worker_id})
    return len(lost)


def rescue_unlocked(
    session: Session,
    worker_id: str,
    beat: int | None,
    judge: Callable[[Lost], Settlement],
    now: int,
) -> int | None:
    """The same for those jobs that no other transaction has locked (PostgreSQL only).

    The worker's row stays until the others have been rescued too.
    """
    rows = session.run(LOCK_WORKER, {"id": worker_id})
    if not rows or (beat is not None and rows[0][0] != beat):
        return None
    which = {"worker": worker_id}
    locked = session.ids(LOCKED_IDS, {"ids": session.ids(IDS_OF, which)})
    lost = _lost(session, session.run(RUNNING_UNLOCKED, which | {"locked": locked}))
    session.settle([judge(job) for job in lost], now)
    limits.release(session, [(job.id, job.token) for job in lost], now)
    fault.point("rescue.moved")
    return len(lost)


def _lost(session: Session, rows: Iterable[Row]) -> list[Lost]:
    lost = [Lost(*row) for row in rows]
    runs = [job for job in lost if job.kind == Kind.WORKFLOW]
    if not runs:
        return lost
    pairs = [(job.id, job.token) for job in runs]
    which = {
        "lost": msgspec.json.encode(pairs).decode(),
        "ids": [job.id for job in runs],
        "tokens": [job.token for job in runs],
    }
    names = ("lost",) if session.dialect == "sqlite" else ("ids", "tokens")
    advanced = set(session.ids(ADVANCED, {name: which[name] for name in names}))
    return [msgspec.structs.replace(job, advanced=job.id in advanced) for job in lost]
