"""Inserts jobs."""

from __future__ import annotations

from collections.abc import Sequence

from duly import fault
from duly.model.audit import NewAuditEntry
from duly.model.job import NewJob
from duly.store import steps
from duly.store.jobs.finish import BUCKET
from duly.store.schedules.audit import write_entry
from duly.store.session import Session
from duly.store.statements import (
    Fields,
    each,
)

# What of it a finished job has too.
FINAL_FIELDS = (*NewJob.__struct_fields__, "trigger", "actor", "retry_of", "batch_id")
_CANCELED = Fields(FINAL_FIELDS)
# The child of a parent that is gone: stored, so that its id means something, and never run.
INSERT_CANCELED = each(
    sqlite=f"""INSERT INTO @history ({_CANCELED.columns}, state, token, attempt, crashes,
            system_retries, completed_at, canceled_by)
        VALUES ({_CANCELED.values}, 'canceled', 0, 0, 0, 0, ?, ?)""",
    postgres=f"""INSERT INTO @history ({_CANCELED.columns}, state, token, attempt, crashes,
            system_retries, completed_at, canceled_by, bucket)
        SELECT *, 'canceled', 0, 0, 0, 0, :now::int8, :by::text, {BUCKET}
        FROM unnest({_CANCELED.arrays})""",
)
LOCK_PARENT = each(
    sqlite="SELECT 1 FROM @jobs WHERE id = :id AND token = :token",
    postgres="SELECT 1 FROM @jobs WHERE id = :id AND token = :token FOR SHARE",
)


def insert_jobs(session: Session, jobs: Sequence[NewJob], ring: bool = False) -> dict[str, str]:
    return session.take(steps.insert(session.dialect, jobs, notify=ring))


def insert_audited(
    session: Session, jobs: Sequence[NewJob], audit_entry: NewAuditEntry
) -> dict[str, str]:
    """As enqueue, and write down who wanted it if the first of them is stored."""
    existing = insert_jobs(session, jobs)
    if jobs[0].id not in existing:
        write_entry(session, audit_entry)
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
    return bool(session.run(LOCK_PARENT, {"id": job_id, "token": token}))
