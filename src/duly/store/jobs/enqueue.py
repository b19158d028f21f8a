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

# The columns that a finished job has too.
FINAL_FIELDS = (
    *NewJob.__struct_fields__,
    *("trigger", "actor", "retry_of", "batch_id", "hook_id"),
)
_CANCELED = Fields(FINAL_FIELDS)
# The child of a parent that is gone: stored, so that its id is valid, but never run.
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
    return steps.drive(steps.insert(session.dialect, jobs, notify=ring), session.answer)


def insert_audited(
    session: Session, jobs: Sequence[NewJob], audit_entry: NewAuditEntry
) -> dict[str, str]:
    """Insert jobs, with an audit entry if the first of them is new. See Store.enqueue."""
    existing = insert_jobs(session, jobs)
    if jobs[0].id not in existing:
        write_entry(session, audit_entry)
    return existing


def insert_children(
    session: Session, parent: tuple[str, int], jobs: Sequence[NewJob], by: str, now: int
) -> dict[str, str] | None:
    """Insert jobs of a running action, if its row still carries the token. See Store.enqueue.

    Otherwise they are stored as canceled, and this returns None.
    """
    existing = insert_jobs(session, jobs) if lock_running(session, *parent) else None
    if existing is None:
        session.insert_canceled(jobs, by, now)
    fault.point("child.inserted")
    return existing


def lock_running(session: Session, job_id: str, token: int) -> bool:
    """Whether the job still runs under this token. That stays true until the transaction ends."""
    return bool(session.run(LOCK_PARENT, {"id": job_id, "token": token}))
