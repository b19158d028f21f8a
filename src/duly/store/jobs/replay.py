"""Retries finished jobs, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from duly.ids import is_id
from duly.model.audit import NewAuditEntry
from duly.model.job import JobRecord, State, TrackedJob
from duly.store import inbox
from duly.store.jobs import batches, enqueue
from duly.store.jobs.read import get
from duly.store.schedules.audit import audit, write_entry
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)
from duly.store.steps import HOLDER_OF_KEY

TAKE_KEY = both(
    "INSERT INTO @keys (scope, key, job_id, expires_at) VALUES (:scope, :key, :job_id, :expires_at)"
    " ON CONFLICT (scope, key) DO NOTHING RETURNING key"
)
KEYS_TAKEN = each(
    sqlite="""SELECT key FROM @keys WHERE scope = :scope
        AND key IN (SELECT value FROM json_each(:keys))""",
    postgres="SELECT key FROM @keys WHERE scope = :scope AND key = ANY(:keys::text[])",
)
_FINISHED = ("history", "kept")
HOOKS_OF = each(
    sqlite=" UNION ALL ".join(
        f"""SELECT +id, +hook_id FROM @{table}
            WHERE id IN (SELECT value FROM json_each(:ids)) AND hook_id IS NOT NULL"""
        for table in _FINISHED
    ),
    postgres=" UNION ALL ".join(
        f"""SELECT w.id::text, hook_id::text FROM unnest(:ids::uuid[]) AS w (id)
            CROSS JOIN LATERAL (SELECT hook_id FROM @{table} WHERE id = w.id LIMIT 1) t
            WHERE hook_id IS NOT NULL"""
        for table in _FINISHED
    ),
)
RETRY_OF = "retry-of"


def hooks_of(session: Session, job_ids: Sequence[str]) -> dict[str, JobRecord | None]:
    """The hooks of those finished jobs that have one, by job id; None if retention removed it."""
    found = session.run(HOOKS_OF, {"ids": session.array(job_ids)})
    return {job_id: get(session, hook_id) for job_id, hook_id in found}


def repeated(session: Session, job_ids: Sequence[str]) -> set[str]:
    """The ids of those jobs that other jobs have already repeated."""
    where = {"scope": RETRY_OF, "keys": session.array(job_ids)}
    return {row[0] for row in session.run(KEYS_TAKEN, where)}


def replay(
    session: Session,
    jobs: Sequence[TrackedJob],
    expires_at: int,
    audit_entry: NewAuditEntry | None = None,
) -> dict[str, str]:
    """Insert jobs that repeat others (`retry_of`), all or none, and the hooks that wait for them.

    A member of a batch is replaced by the job that repeats it. A job that was already repeated is
    not repeated again until the given time. Returns, by the id of each job, the id of the one that
    repeats it. The audit entry is written if there is a new job.
    """
    fresh: list[TrackedJob] = []
    repeated: dict[str, str] = {}
    hooks = {job.id: job for job in jobs if job.retry_of is None}
    for job in jobs:
        if job.retry_of is None:
            continue
        key = {"scope": RETRY_OF, "key": job.retry_of}
        if session.run(TAKE_KEY, key | {"job_id": job.id, "expires_at": expires_at}):
            fresh.append(inbox.repeat(session, job))
            repeated[job.retry_of] = job.id
        else:
            repeated[job.retry_of] = session.run(HOLDER_OF_KEY, key)[0][0]
    batches.replace(session, fresh)
    fresh += [hooks[job.hook_id] for job in fresh if job.hook_id is not None]
    enqueue.insert_jobs(session, fresh)
    if fresh:
        write_entry(session, audit_entry)
    return repeated


def retry_event(
    session: Session,
    event_id: str,
    again: Callable[[JobRecord, Mapping[str, JobRecord | None]], Sequence[TrackedJob]],
    expires_at: int,
    by: str | None,
    now: int,
) -> str | None:
    """Retry the failed or canceled job of an event, audited. Return the new job's id.

    `again` makes the new job and its hook, from the record and what `hooks_of` finds for it.

    Does nothing and returns None if there is no such event, or its job has not failed.
    """
    if not is_id(event_id):
        return None
    rows = session.run(inbox.LOCK_EVENT, {"id": event_id})
    job_id = rows[0][0] if rows else None
    record = None if job_id is None else get(session, job_id)
    if record is None or record.state not in (State.FAILED, State.CANCELED):
        return None
    jobs = again(record, hooks_of(session, [record.id]))
    repeated: str = replay(session, jobs, expires_at)[record.id]
    # The job may have been enqueued by another caller, and the event merged into it.
    session.run(inbox.POINT_EVENT, {"id": event_id, "job_id": repeated})
    audit(session, "webhook.retry", f"webhook:{event_id}", by, {"job": repeated}, now)
    return repeated
