"""The kill switch: while it is on, no schedule dispatches and no job starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.model.queue import QueuePause
from duly.store.queues import EVERYTHING, PAUSE_QUEUE, RESUME_QUEUE
from duly.store.schedules.audit import audit
from duly.store.statements import both

if TYPE_CHECKING:
    from duly.store.session import Session

KILL_SWITCH = both(
    "SELECT paused_by, paused_at, note FROM @queues WHERE name = '*' AND paused_at IS NOT NULL"
)


def pause_everything(session: Session, by: str | None, note: str | None, now: int) -> None:
    """Start no job of any queue and dispatch no tick until resumed. Audited."""
    session.run(PAUSE_QUEUE, {"name": EVERYTHING, "by": by, "note": note, "now": now})
    audit(session, "pause", "everything", by, {"note": note}, now)


def resume_everything(session: Session, by: str | None, now: int) -> bool:
    """Undo `pause_everything`. Return False if everything was running already."""
    if not session.run(KILL_SWITCH):
        return False
    session.run(RESUME_QUEUE, {"name": EVERYTHING})
    audit(session, "resume", "everything", by, None, now)
    return True


def kill_switch(session: Session) -> QueuePause | None:
    """Who paused everything, if it is paused."""
    for by, at, note in session.run(KILL_SWITCH):
        return QueuePause(EVERYTHING, at, by, note)
    return None
