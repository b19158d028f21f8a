"""Reads jobs, live or finished."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from duly.ids import is_id
from duly.model.job import (
    JobFilter,
    JobRecord,
    KeyEntry,
)
from duly.model.progress import LogEntry, Look
from duly.store import statements as sql
from duly.store import steps
from duly.store.jobs.listing import (
    FINISHED,
    LIVE_RECORD,
    count_jobs,
    finished_page,
    live_page,
    parameters_of,
)
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)

IS_KEPT = both("SELECT 1 FROM @keys WHERE scope = :scope AND key = :key AND expires_at > :now")
READ_LOGS = each(
    sqlite="""SELECT +seq, +logged_at, +level, +line FROM @logs
        WHERE job_id = :job_id AND seq > :after ORDER BY seq""",
    postgres="""SELECT seq, logged_at, level, line FROM @logs
        WHERE job_id = :job_id AND seq > :after ORDER BY seq""",
)
TRACES_OF = each(
    sqlite="""SELECT +job_id, +parent FROM @traces
        WHERE job_id IN (SELECT value FROM json_each(:ids))""",
    postgres="SELECT job_id::text, parent FROM @traces WHERE job_id = ANY(:ids::uuid[])",
)
JOB_WITH_KEY = both(
    f"""SELECT {LIVE_RECORD} FROM @jobs WHERE unique_key = :key
        UNION ALL SELECT {LIVE_RECORD} FROM @jobs WHERE pending_key = :key LIMIT 1"""
)


def with_key(session: Session, key: str) -> JobRecord | None:
    """The unfinished job that holds a key."""
    rows = session.run(JOB_WITH_KEY, {"key": key})
    return steps.record(rows[0]) if rows else None


def get(session: Session, job_id: str) -> JobRecord | None:
    return steps.drive(steps.get(job_id), session.answer)


def find(session: Session, filter: JobFilter) -> list[JobRecord]:
    """Jobs that match, newest first."""
    return steps.drive(steps.find(filter), session.answer)


def look(session: Session, job_ids: Collection[str]) -> list[Look]:
    """The state, progress and latest log line of these jobs, in one or two statements for all of
    them.

    Jobs that are not in the store are left out.
    """
    return steps.drive(steps.look(session.dialect, job_ids), session.answer) if job_ids else []


def logs(session: Session, job_id: str, after: int) -> list[LogEntry]:
    """The log lines of a job after a given one, in order."""
    if not is_id(job_id):
        return []
    rows = session.run(READ_LOGS, {"job_id": job_id, "after": after})
    return [LogEntry(job_id, *row) for row in rows]


def count(session: Session, filter: JobFilter, *, live: bool) -> int:
    """How many unfinished, or finished, jobs match. duly's internal jobs are not counted."""
    tables: Sequence[sql.Table] = ("jobs",) if live else FINISHED
    texts = [count_jobs(filter, table) for table in tables]
    return sum(session.run_text(text, parameters_of(filter))[0][0] for text in texts)


def live_ids(session: Session, filter: JobFilter, after: str) -> list[str]:
    """The next unfinished jobs that match, oldest first, after a given one. See `count`."""
    parameters = parameters_of(filter) | {"after_id": after}
    return [row[0] for row in session.run_text(live_page(filter), parameters)]


def finished(session: Session, filter: JobFilter, after: str) -> list[JobRecord]:
    """The same for finished jobs."""
    parameters = parameters_of(filter) | {"after_id": after}
    found: dict[str, JobRecord] = {}
    for table in FINISHED:
        rows = session.run_text(finished_page(filter, table), parameters)
        found |= {row[0]: steps.record(row) for row in rows}
    return sorted(found.values(), key=lambda job: job.id)[: filter.limit]


def is_kept(session: Session, entry: KeyEntry, now: int) -> bool:
    """Whether an earlier call with this key is remembered."""
    return bool(session.run(IS_KEPT, {"scope": entry.scope, "key": entry.key, "now": now}))


def traces(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    """The `traceparent` of those jobs that belong to a trace."""
    return dict(session.run(TRACES_OF, {"ids": session.array(job_ids)}))
