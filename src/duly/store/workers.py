"""The processes that run jobs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from duly.model.stored import read
from duly.store import statements as sql
from duly.store.base import (
    WorkerInfo,
)
from duly.store.session import Session
from duly.store.steps import Row


def register(session: Session, worker: WorkerInfo, now: int) -> None:
    session.run(
        sql.INSERT_WORKER,
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
        },
    )


def workers(session: Session) -> list[WorkerInfo]:
    return [_worker(row) for row in session.run(sql.WORKERS)]


def beats(session: Session) -> dict[str, int]:
    """Every worker's beat counter."""
    return dict(session.run(sql.BEATS))


def holdings(session: Session, worker_id: str) -> dict[str, int]:
    """Token by job id of the rows that carry the worker's id."""
    return dict(session.run(sql.HOLDINGS, {"worker": worker_id}))


def relist(session: Session, worker_id: str, functions: Iterable[str]) -> None:
    session.run(sql.RELIST_WORKER, {"id": worker_id, "functions": _json(functions)})


def known_functions(session: Session) -> set[str]:
    rows = session.run(sql.KNOWN_FUNCTIONS)
    return {name for (text,) in rows for name in read(text, list[str], [])}


def _worker(row: Row) -> WorkerInfo:
    id_, app, host, pid, queues, functions, slots, alone, beat, started_at = row
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
    )


def _json(names: Iterable[str]) -> str:
    return msgspec.json.encode(list(names)).decode()
