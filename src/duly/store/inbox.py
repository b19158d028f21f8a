"""Received webhooks in the store: one row each, with its job in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly import fault
from duly.ids import FIRST_ID, go_past, is_id
from duly.model.inbox import (
    EventPage,
    EventState,
    FoundEvent,
    InboxFilter,
    InboxRecord,
    JobOfEvent,
    line_of,
)
from duly.model.job import Hold, NewJob, State, TrackedJob, Trigger
from duly.model.stored_values import word
from duly.store import limits
from duly.store.jobs.enqueue import insert_jobs
from duly.store.statements import Dialect, Statement, both, each

if TYPE_CHECKING:
    from duly.store.session import Session

_FIELDS = "id webhook delivery type entity owner headers received_at job_id".split()
_COLUMNS = ", ".join(_FIELDS)
_READ = each(
    sqlite=", ".join(f"+{name}" for name in _FIELDS),
    postgres=", ".join(f"{name}::text" if name in ("id", "job_id") else name for name in _FIELDS),
)

INSERT_EVENT = both(
    f"""INSERT INTO @inbox ({_COLUMNS}, body)
        VALUES ({", ".join(f":{name}" for name in _FIELDS)}, :body)
        ON CONFLICT (webhook, delivery) DO NOTHING RETURNING 1"""
)
EVENT_OF_DELIVERY = each(
    sqlite="SELECT id FROM @inbox WHERE webhook = :webhook AND delivery = :delivery",
    postgres="SELECT id::text FROM @inbox WHERE webhook = :webhook AND delivery = :delivery",
)
POINT_EVENT = both("UPDATE @inbox SET job_id = :job_id WHERE id = :id")
POINT_TO_RETRY = both("UPDATE @inbox SET job_id = :job_id WHERE job_id = :retry_of")
GET_EVENT = each(
    sqlite=f"SELECT {_READ.sqlite}, +body FROM @inbox WHERE id = :id",
    postgres=f"SELECT {_READ.postgres}, body FROM @inbox WHERE id = :id",
)
# Concurrent retries of the same event run one after the other, so each sees what the others did.
LOCK_EVENT = each(
    sqlite="SELECT job_id FROM @inbox WHERE id = :id",
    postgres="SELECT job_id::text FROM @inbox WHERE id = :id FOR UPDATE",
)

# The newest unfinished job of an entity. It is written to, so that a transaction which ends the job
# at the same time either commits before this read or afterwards sees which job waits for it, at any
# isolation level.
_LAST_IN_LINE = "FROM @jobs WHERE trigger = 'webhook' AND batch_id = :line ORDER BY id DESC LIMIT 1"
LAST_IN_LINE = each(
    sqlite=f"SELECT id {_LAST_IN_LINE}",
    postgres=f"""UPDATE @jobs SET batch_id = batch_id
        WHERE id = (SELECT id {_LAST_IN_LINE} FOR UPDATE) RETURNING id::text""",
)

_JOB = "state, attempt, error_message"


def _jobs_sqlite(table: str, canceled_by: str) -> str:
    return f"""SELECT id, {_JOB}, {canceled_by} FROM {table}
        WHERE id IN (SELECT value FROM json_each(:ids))"""


def _jobs_postgres(table: str, canceled_by: str) -> str:
    return f"""SELECT w.id::text, j.* FROM unnest(:ids::uuid[]) AS w (id)
        CROSS JOIN LATERAL (
            SELECT {_JOB}, {canceled_by} FROM {table} WHERE id = w.id LIMIT 1) j"""


def _jobs(canceled_by: str, *tables: str) -> Statement:
    return each(
        sqlite=" UNION ALL ".join(_jobs_sqlite(table, canceled_by) for table in tables),
        postgres=" UNION ALL ".join(_jobs_postgres(table, canceled_by) for table in tables),
    )


LIVE_OF_EVENTS = _jobs("NULL AS canceled_by", "@jobs")
ENDED_OF_EVENTS = _jobs("canceled_by", "@history", "@kept")


# Which events may be in a state, by the ids of their jobs or by their own. An event that arrived
# while there was a job with the same key points to that job, which may be of any caller and has an
# older id.
_UNPROCESSED = "trigger = 'webhook' AND state IN ('failed', 'canceled')"


def _shown_by(**tables: str) -> Statement:
    """Ids of jobs in these tables, and of jobs that are older than their events."""
    own = [f"SELECT @id FROM @{table} WHERE {where}" for table, where in tables.items()]

    def text(*parts: str) -> str:
        cut = [f"SELECT * FROM ({part} LIMIT :most) p{n}" for n, part in enumerate(parts)]
        return " UNION ALL ".join(cut)

    return each(
        sqlite=text(*own, "SELECT job_id FROM @inbox WHERE job_id < id"),
        postgres=text(*own, "SELECT job_id::text FROM @inbox WHERE job_id < id"),
    )


PENDING_EVENTS = _shown_by(jobs="trigger = 'webhook' AND state = 'pending'")
PROCESSING_EVENTS = _shown_by(jobs="trigger = 'webhook' AND worker_id IS NOT NULL")
FAILED_EVENTS = _shown_by(history=_UNPROCESSED, kept=_UNPROCESSED)
FILTERED_EVENTS = both("SELECT @id FROM @inbox WHERE job_id IS NULL LIMIT :most")
IN_STATE = {
    EventState.PENDING: (PENDING_EVENTS, "job_ids"),
    EventState.PROCESSING: (PROCESSING_EVENTS, "job_ids"),
    EventState.FAILED: (FAILED_EVENTS, "job_ids"),
    EventState.FILTERED: (FILTERED_EVENTS, "ids"),
}
"""There is no entry for processed events: there are too many of them."""


def list_events(given: Collection[str]) -> Statement:
    """The statement that lists the inbox without bodies, newest first."""

    def text(dialect: Dialect) -> str:
        terms = {
            "webhook": "webhook = :webhook",
            "owner": "owner = :owner",
            "before_id": "i.id < :before_id",
            "ids": f"i.id {_one_of('ids', dialect)}",
            "job_ids": f"job_id {_one_of('job_ids', dialect)}",
        }
        chosen = [term for name, term in terms.items() if name in given]
        where = "WHERE " + " AND ".join(chosen) if chosen else ""
        read = getattr(_READ, dialect)
        return f"SELECT {read} FROM @inbox i {where} ORDER BY i.id DESC LIMIT :limit"

    return each(sqlite=text("sqlite"), postgres=text("postgres"))


def _one_of(name: str, dialect: Dialect) -> str:
    if dialect == "sqlite":
        return f"IN (SELECT value FROM json_each(:{name}))"
    return f"= ANY(:{name}::uuid[])"


OLD_EVENTS = each(
    sqlite="SELECT id, received_at FROM @inbox WHERE id > :after ORDER BY id LIMIT :limit",
    postgres="""SELECT i.id::text, received_at FROM @inbox i WHERE i.id > :after
        ORDER BY i.id LIMIT :limit""",
)
_WITHOUT_JOB = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} j WHERE j.id = job_id)"
    for table in ("@jobs", "@history", "@kept")
)
FORGET_EVENTS = each(
    sqlite=f"""DELETE FROM @inbox WHERE id IN (SELECT value FROM json_each(:ids))
        AND {_WITHOUT_JOB} RETURNING 1""",
    postgres=f"DELETE FROM @inbox WHERE id = ANY(:ids::uuid[]) AND {_WITHOUT_JOB} RETURNING 1",
)


PAGE, PAGES = 500, 2
"""How many events are read at once, and how many such batches for one page of a list."""
MAX_LOOKED_UP = 1_000
"""The largest number of events in a state that are looked up by id."""

MakeEventJobs = Callable[[], Sequence[TrackedJob | NewJob]]
"""The job of an event, followed by the hooks that wait for it."""


class StoredEvent(NamedTuple):
    """The event of a delivery in the inbox, and whether it is new."""

    event_id: str
    new: bool


def receive(session: Session, record: InboxRecord, make_jobs: MakeEventJobs | None) -> StoredEvent:
    """Store a delivery and its jobs in one transaction, unless the delivery is already stored.

    Without jobs it is stored as filtered. The job of an entity is held until the earlier jobs of
    the same webhook and entity have ended.
    """
    jobs: list[NewJob] = [] if make_jobs is None else _in_line(session, record, make_jobs)
    row = msgspec.structs.asdict(record) | {"job_id": jobs[0].id if jobs else None}
    if not session.run(INSERT_EVENT, row):
        delivery = {"webhook": record.webhook, "delivery": record.delivery}
        return StoredEvent(session.run(EVENT_OF_DELIVERY, delivery)[0][0], new=False)
    existing = insert_jobs(session, jobs) if jobs else {}
    if jobs and jobs[0].id in existing:
        session.run(POINT_EVENT, {"id": record.id, "job_id": existing[jobs[0].id]})
    fault.point("webhook.stored")
    return StoredEvent(record.id, new=True)


def _in_line(session: Session, record: InboxRecord, make_jobs: MakeEventJobs) -> list[NewJob]:
    """The jobs of an event. The first waits for the earlier ones of its entity."""
    if record.entity is None:
        return list(make_jobs())
    line = line_of(record.webhook, record.entity)
    last = _last_in_line(session, line)
    if last is not None:
        # Jobs of a line start in the order of their ids, whichever process created them.
        go_past(last)
    first, *hooks = make_jobs()
    assert isinstance(first, TrackedJob)
    hold = None if last is None else Hold.BATCH
    return [msgspec.structs.replace(first, batch_id=line, hold=hold), *hooks]


def _last_in_line(session: Session, line: str) -> str | None:
    """The newest unfinished job of an entity. No job can join the line until this is committed."""
    limits.lock(session, [f"line {line}"])
    rows = session.run(LAST_IN_LINE, {"line": line})
    return rows[0][0] if rows else None


def repeat(session: Session, job: TrackedJob) -> TrackedJob:
    """Let a job that repeats the job of an event replace it, at the end of the line."""
    if job.trigger != Trigger.WEBHOOK:
        return job
    session.run(POINT_TO_RETRY, {"job_id": job.id, "retry_of": job.retry_of})
    if job.batch_id is None or _last_in_line(session, job.batch_id) is None:
        return job
    return msgspec.structs.replace(job, hold=Hold.BATCH)


def get(session: Session, event_id: str) -> FoundEvent | None:
    """A received webhook and its job; None if unknown, or if retention has removed that job."""
    if not is_id(event_id):
        return None
    rows = session.run(GET_EVENT, {"id": event_id})
    found = _with_jobs(session, [InboxRecord(*row) for row in rows])
    return found[0] if found else None


def find(session: Session, filter: InboxFilter) -> EventPage:
    """Events that match, newest first, without their bodies. See EventPage."""
    given = {
        name: value
        for name in ("webhook", "owner", "before_id")
        if (value := getattr(filter, name)) is not None
    }
    few = None if filter.state is None else _ids_in_state(session, filter.state)
    return _walk(session, filter, given) if few is None else _among(session, filter, given | few)


def _ids_in_state(session: Session, state: EventState) -> dict[str, Any] | None:
    """Ids of the events that may be in a state, as a parameter; None if there are too many."""
    if state not in IN_STATE:
        return None
    statement, told_by = IN_STATE[state]
    ids = [row[0] for row in session.run(statement, {"most": MAX_LOOKED_UP + 1})]
    return {told_by: session.array(ids)} if len(ids) <= MAX_LOOKED_UP else None


def _among(session: Session, filter: InboxFilter, given: dict[str, Any]) -> EventPage:
    records = _list(session, given, MAX_LOOKED_UP)
    found = [event for event in _with_jobs(session, records) if event.state == filter.state]
    if len(found) > filter.limit:
        return EventPage(found[: filter.limit], found[filter.limit - 1].record.id)
    # Several events may have the same job.
    return EventPage(found, records[-1].id if len(records) == MAX_LOOKED_UP else None)


def _walk(session: Session, filter: InboxFilter, given: dict[str, Any]) -> EventPage:
    most = filter.limit + 1 if filter.state is None else PAGE
    found: list[FoundEvent] = []
    for _ in range(PAGES):
        page = _list(session, given, most)
        found += [e for e in _with_jobs(session, page) if filter.state in (None, e.state)]
        if len(found) > filter.limit:
            shown = found[: filter.limit]
            return EventPage(shown, shown[-1].record.id)
        if len(page) < most:
            return EventPage(found, None)
        given = given | {"before_id": page[-1].id}
    return EventPage(found, given["before_id"])


def _list(session: Session, given: dict[str, Any], limit: int) -> list[InboxRecord]:
    statement = list_events(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [InboxRecord(*row) for row in session.run_text(text, given | {"limit": limit})]


def _with_jobs(session: Session, records: Sequence[InboxRecord]) -> list[FoundEvent]:
    """The events with their jobs, except those whose job retention has removed."""
    jobs = _jobs_of(session, [record.job_id for record in records if record.job_id])
    return [
        FoundEvent(record, jobs.get(record.job_id or ""))
        for record in records
        if record.job_id is None or record.job_id in jobs
    ]


def _jobs_of(session: Session, job_ids: Iterable[str]) -> dict[str, JobOfEvent]:
    """Reads live jobs first, then finished ones, so that a job which moves is not missed."""
    wanted = list(job_ids)
    found: dict[str, JobOfEvent] = {}
    for statement in (LIVE_OF_EVENTS, ENDED_OF_EVENTS):
        missing = [job_id for job_id in wanted if job_id not in found]
        if missing:
            rows = session.run(statement, {"ids": session.array(missing)})
            for job_id, state, *rest in rows:
                found[job_id] = JobOfEvent(word(state, State, State.FAILED), *rest)
    return found


def forget(session: Session, after: str, cutoff: int) -> tuple[str, int]:
    """Delete some old events after `after` that were filtered or whose job is gone.

    Events count as old if they were received before the cutoff. Returns where to continue, "" at
    the end, and how many were deleted.
    """
    page = session.run(OLD_EVENTS, {"after": after or FIRST_ID, "limit": PAGE})
    old = [event_id for event_id, received_at in page if received_at < cutoff]
    gone = session.run(FORGET_EVENTS, {"ids": session.array(old)}) if old else []
    # Ids are nearly in the order of arrival: after one recent event, all others are recent too.
    is_over = len(page) < PAGE or page[-1][1] >= cutoff
    return "" if is_over else page[-1][0], len(gone)
