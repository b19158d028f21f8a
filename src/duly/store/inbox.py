"""Received webhooks in the store: one row each, and its job in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from duly.model.stored import word
from duly.store import inbox_statements as sql
from duly.store import limits
from duly.store.jobs.enqueue import insert_jobs

if TYPE_CHECKING:
    from duly.store.session import Session

PAGE, PAGES = 500, 2
"""So many events are looked at at once, and for one page of a list."""
FEW = 1_000
"""Up to so many events that may be in a state are looked up."""

MakeEventJobs = Callable[[], Sequence[TrackedJob | NewJob]]
"""The job of an event, first, and those that wait for its end."""


class Stored(NamedTuple):
    """The event under which a delivery is in the inbox, and whether it has just come there."""

    event_id: str
    new: bool


def receive(session: Session, record: InboxRecord, make_jobs: MakeEventJobs | None) -> Stored:
    """Store a delivery and its jobs in one transaction, unless the delivery is there already.

    Without jobs it is stored as filtered. The job of an entity is held until the earlier ones
    of the same webhook and entity have ended.
    """
    jobs: list[NewJob] = [] if make_jobs is None else _in_line(session, record, make_jobs)
    row = msgspec.structs.asdict(record) | {"job_id": jobs[0].id if jobs else None}
    if not session.run(sql.INSERT_EVENT, row):
        delivery = {"webhook": record.webhook, "delivery": record.delivery}
        return Stored(session.run(sql.EVENT_OF_DELIVERY, delivery)[0][0], new=False)
    existing = insert_jobs(session, jobs) if jobs else {}
    if jobs and jobs[0].id in existing:
        session.run(sql.POINT_EVENT, {"id": record.id, "job_id": existing[jobs[0].id]})
    fault.point("webhook.stored")
    return Stored(record.id, new=True)


def _in_line(session: Session, record: InboxRecord, make_jobs: MakeEventJobs) -> list[NewJob]:
    """The jobs of an event; the first waits for the earlier ones of its entity."""
    if record.entity is None:
        return list(make_jobs())
    line = line_of(record.webhook, record.entity)
    last = _last_in_line(session, line)
    if last is not None:
        # Jobs of a line start in the order of their ids, whichever process has made them.
        go_past(last)
    first, *hooks = make_jobs()
    assert isinstance(first, TrackedJob)
    hold = None if last is None else Hold.BATCH
    return [msgspec.structs.replace(first, batch_id=line, hold=hold), *hooks]


def _last_in_line(session: Session, line: str) -> str | None:
    """The newest unfinished job of an entity; nobody joins the line until this is committed."""
    limits.lock(session, [f"line {line}"])
    rows = session.run(sql.LAST_IN_LINE, {"line": line})
    return rows[0][0] if rows else None


def repeat(session: Session, job: TrackedJob) -> TrackedJob:
    """A job that repeats that of an event takes its place, at the end of the line."""
    if job.trigger != Trigger.WEBHOOK:
        return job
    session.run(sql.POINT_TO_RETRY, {"job_id": job.id, "retry_of": job.retry_of})
    if job.batch_id is None or _last_in_line(session, job.batch_id) is None:
        return job
    return msgspec.structs.replace(job, hold=Hold.BATCH)


def get(session: Session, event_id: str) -> FoundEvent | None:
    """A received webhook and its job; None also if retention has removed the job."""
    if not is_id(event_id):
        return None
    rows = session.run(sql.GET_EVENT, {"id": event_id})
    found = _with_jobs(session, [InboxRecord(*row) for row in rows])
    return found[0] if found else None


def find(session: Session, filter: InboxFilter) -> EventPage:
    """Some of them without their bodies, newest first; see EventPage."""
    given = {
        name: value
        for name in ("webhook", "owner", "before_id")
        if (value := getattr(filter, name)) is not None
    }
    few = None if filter.state is None else _few(session, filter.state)
    return _walk(session, filter, given) if few is None else _among(session, filter, given | few)


def _few(session: Session, state: EventState) -> dict[str, Any] | None:
    """Those that may be in a state, by what tells them; None if there are many of them."""
    if state not in sql.IN_STATE:
        return None
    statement, told_by = sql.IN_STATE[state]
    ids = [row[0] for row in session.run(statement, {"most": FEW + 1})]
    return {told_by: session.array(ids)} if len(ids) <= FEW else None


def _among(session: Session, filter: InboxFilter, given: dict[str, Any]) -> EventPage:
    records = _list(session, given, FEW)
    found = [event for event in _with_jobs(session, records) if event.state == filter.state]
    if len(found) > filter.limit:
        return EventPage(found[: filter.limit], found[filter.limit - 1].record.id)
    # Several events may have the same job.
    return EventPage(found, records[-1].id if len(records) == FEW else None)


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
    statement = sql.list_events(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [InboxRecord(*row) for row in session.run_text(text, given | {"limit": limit})]


def _with_jobs(session: Session, records: Sequence[InboxRecord]) -> list[FoundEvent]:
    """The events with their jobs; without those whose job retention has removed."""
    jobs = _jobs_of(session, [record.job_id for record in records if record.job_id])
    return [
        FoundEvent(record, jobs.get(record.job_id or ""))
        for record in records
        if record.job_id is None or record.job_id in jobs
    ]


def _jobs_of(session: Session, job_ids: Iterable[str]) -> dict[str, JobOfEvent]:
    """Live first, then what has ended: a job on the move is not missed."""
    wanted = list(job_ids)
    found: dict[str, JobOfEvent] = {}
    for statement in (sql.LIVE_OF_EVENTS, sql.ENDED_OF_EVENTS):
        missing = [job_id for job_id in wanted if job_id not in found]
        if missing:
            rows = session.run(statement, {"ids": session.array(missing)})
            for job_id, state, *rest in rows:
                found[job_id] = JobOfEvent(word(state, State, State.FAILED), *rest)
    return found


def forget(session: Session, after: str, cutoff: int) -> tuple[str, int]:
    """Forget events from before the cutoff, some of those after one, whose job is gone, or
    which were filtered; where to go on, "" at the end, and how many went."""
    page = session.run(sql.OLD_EVENTS, {"after": after or FIRST_ID, "limit": PAGE})
    old = [event_id for event_id, received_at in page if received_at < cutoff]
    gone = session.run(sql.FORGET_EVENTS, {"ids": session.array(old)}) if old else []
    # They come nearly in the order of their ids: where one is young, so are those behind it.
    is_over = len(page) < PAGE or page[-1][1] >= cutoff
    return "" if is_over else page[-1][0], len(gone)
