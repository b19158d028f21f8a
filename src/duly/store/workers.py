"""Workers: registration, heartbeats and the jobs they hold."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from duly.model.stored_values import read
from duly.store.base import (
    WorkerInfo,
)
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)
from duly.store.steps import Row

# As a range: if all running jobs belong to one worker, SQLite 3.46 would otherwise read the whole
# index.
HELD_BY_WORKER = "worker_id BETWEEN :worker AND :worker"
INSERT_WORKER = both(
    "INSERT INTO @workers (id, app, host, pid, queues, functions, slots, alone, started_at,"
    " threads, threaded)"
    " VALUES (:id, :app, :host, :pid, :queues, :functions, :slots, :alone, :now,"
    " :threads, :threaded)"
)
DELETE_WORKER = both("DELETE FROM @workers WHERE id = :id")
BEAT = both("UPDATE @workers SET beat = beat + 1 WHERE id = ANY(:ids::uuid[]) RETURNING @id")
WORKERS = both(
    "SELECT @id, app, host, pid, queues, functions, slots, alone, beat, started_at, threads,"
    " threaded FROM @workers ORDER BY id"
)
BEATS = both("SELECT @id, beat FROM @workers")
HOLDINGS = each(
    sqlite=f"SELECT id, token FROM @jobs WHERE {HELD_BY_WORKER}",
    postgres="SELECT id::text, token FROM @jobs WHERE worker_id = :worker",
)
KNOWN_FUNCTIONS = both("SELECT functions FROM @workers")
RELIST_WORKER = both(
    "UPDATE @workers SET functions = :functions, threaded = :threaded WHERE id = :id"
)


def register(session: Session, worker: WorkerInfo, now: int) -> None:
    session.run(
        INSERT_WORKER,
        {
            "id": worker.id,
            "app": worker.app,
            "host": worker.host,
            "pid": worker.pid,
            "queues": None if worker.queues is None else _json(worker.queues),
            "functions": _json(worker.functions),
            "slots": worker.slots,
            "alone": worker.alone,
            "now": now,
            "threads": worker.threads,
            "threaded": _json(worker.threaded),
        },
    )


def workers(session: Session) -> list[WorkerInfo]:
    return [_worker(row) for row in session.run(WORKERS)]


def beats(session: Session) -> dict[str, int]:
    """Every worker's heartbeat counter."""
    return dict(session.run(BEATS))


def holdings(session: Session, worker_id: str) -> dict[str, int]:
    """The tokens of the rows with the worker's id, by job id."""
    return dict(session.run(HOLDINGS, {"worker": worker_id}))


def relist(
    session: Session, worker_id: str, functions: Iterable[str], threaded: Iterable[str]
) -> None:
    lists = {"functions": _json(functions), "threaded": _json(threaded)}
    session.run(RELIST_WORKER, {"id": worker_id} | lists)


def known_functions(session: Session) -> set[str]:
    rows = session.run(KNOWN_FUNCTIONS)
    return {name for (text,) in rows for name in read(text, list[str], [])}


def _worker(row: Row) -> WorkerInfo:
    id_, app, host, pid, queues, functions, slots, alone, beat, started_at, threads, threaded = row
    return WorkerInfo(
        id_,
        app,
        host,
        pid,
        None if queues is None else read(queues, tuple[str, ...], ()),
        read(functions, tuple[str, ...], ()),
        slots,
        bool(alone),
        beat,
        started_at,
        threads,
        read(threaded, tuple[str, ...], ()),
    )


def _json(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()
