"""Queues that an operator has paused, or limited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from duly.store import statements as sql
from duly.store.base import QueuePause
from duly.store.schedule_statements import EVERYTHING
from duly.store.schedules.audit import audit

if TYPE_CHECKING:
    from duly.store.session import Session


def pause(session: Session, name: str, by: str | None, note: str | None, now: int) -> None:
    """Start no more of its jobs; audited, as all that is done to queues."""
    session.run(sql.PAUSE_QUEUE, {"name": name, "by": by, "note": note, "now": now})
    _audit(session, name, "pause", by, {"note": note}, now)


def resume(session: Session, name: str, by: str | None, now: int) -> None:
    """Start its jobs again."""
    session.run(sql.RESUME_QUEUE, {"name": name})
    _audit(session, name, "resume", by, None, now)


def limit(session: Session, name: str, at_once: int | None, by: str | None, now: int) -> None:
    """Run at most so many jobs of the queue at once, over all workers; None: any number."""
    session.run(sql.LIMIT_QUEUE, {"name": name, "at_once": at_once})
    _audit(session, name, "limit", by, {"at_once": at_once}, now)


def paused(session: Session) -> list[QueuePause]:
    """Those of which no job starts; not those that only everything's pause stops."""
    rows = session.run(sql.QUEUES)
    return [QueuePause(*row) for row in rows if row[1] is not None and row[0] != EVERYTHING]


def _audit(
    session: Session,
    name: str,
    verb: str,
    by: str | None,
    detail: Mapping[str, Any] | None,
    now: int,
) -> None:
    audit(session, f"queue.{verb}", f"queue:{name}", by, detail, now)
