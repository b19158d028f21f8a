"""Jobs that come in."""

from __future__ import annotations

from collections.abc import Sequence

from duly import fault
from duly.model.job import (
    NewJob,
)
from duly.store import statements as sql
from duly.store import steps
from duly.store.schedules.audit import Deed, write_down
from duly.store.session import Session


def insert_jobs(session: Session, jobs: Sequence[NewJob], ring: bool = False) -> dict[str, str]:
    return session.take(steps.insert(session.dialect, jobs, notify=ring))


def insert_audited(session: Session, jobs: Sequence[NewJob], deed: Deed) -> dict[str, str]:
    """As enqueue, and write down who wanted it if the first of them is stored."""
    existing = insert_jobs(session, jobs)
    if jobs[0].id not in existing:
        write_down(session, deed)
    return existing


def insert_children(
    session: Session, parent: tuple[str, int], jobs: Sequence[NewJob], by: str, now: int
) -> dict[str, str] | None:
    """Insert jobs of a running action, if its row still carries the token; as enqueue.

    Otherwise they are stored canceled, and the answer is None.
    """
    existing = insert_jobs(session, jobs) if lock_running(session, *parent) else None
    if existing is None:
        session.insert_canceled(jobs, by, now)
    fault.point("child.inserted")
    return existing


def lock_running(session: Session, job_id: str, token: int) -> bool:
    """Whether the job still runs under this token; it stays so until the transaction ends."""
    return bool(session.run(sql.LOCK_PARENT, {"id": job_id, "token": token}))
