"""Paused and limited queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from duly.model.queue import QueuePause
from duly.store.schedules.audit import audit
from duly.store.statements import (
    both,
)

if TYPE_CHECKING:
    from duly.store.session import Session

PAUSE_QUEUE = both(
    "INSERT INTO @queues (name, paused_at, paused_by, note) VALUES (:name, :now, :by, :note)"
    " ON CONFLICT (name) DO UPDATE SET paused_at = :now, paused_by = :by, note = :note"
)
RESUME_QUEUE = both(
    "UPDATE @queues SET paused_at = NULL, paused_by = NULL, note = NULL WHERE name = :name"
)
LIMIT_QUEUE = both(
    "INSERT INTO @queues (name, at_once) VALUES (:name, :at_once)"
    " ON CONFLICT (name) DO UPDATE SET at_once = excluded.at_once"
)
QUEUES = both("SELECT name, paused_at, paused_by, note FROM @queues ORDER BY name")


EVERYTHING = "*"


def pause(session: Session, name: str, by: str | None, note: str | None, now: int) -> None:
    """Start no more of its jobs. Audited, like all changes to queues."""
    session.run(PAUSE_QUEUE, {"name": name, "by": by, "note": note, "now": now})
    _audit(session, name, "pause", by, {"note": note}, now)


def resume(session: Session, name: str, by: str | None, now: int) -> None:
    """Start its jobs again."""
    session.run(RESUME_QUEUE, {"name": name})
    _audit(session, name, "resume", by, None, now)


def limit(session: Session, name: str, at_once: int | None, by: str | None, now: int) -> None:
    """Limit how many jobs of the queue run at once on all workers; None for no limit."""
    session.run(LIMIT_QUEUE, {"name": name, "at_once": at_once})
    _audit(session, name, "limit", by, {"at_once": at_once}, now)


def paused(session: Session) -> list[QueuePause]:
    """The queues that are paused themselves, not only by the kill switch."""
    return [
        QueuePause(name, paused_at, paused_by, note)
        for name, paused_at, paused_by, note in session.run(QUEUES)
        if paused_at is not None and name != EVERYTHING
    ]


def _audit(
    session: Session,
    name: str,
    verb: str,
    by: str | None,
    detail: Mapping[str, Any] | None,
    now: int,
) -> None:
    audit(session, f"queue.{verb}", f"queue:{name}", by, detail, now)
