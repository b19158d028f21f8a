"""Cancels jobs and their descendants."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from duly.ids import FIRST_ID
from duly.model.audit import NewAuditEntry
from duly.model.job import (
    JobFilter,
    State,
)
from duly.store import steps
from duly.store.engine import Engine
from duly.store.jobs.listing import live_matching, parameters_of
from duly.store.schedules.audit import write_entry
from duly.store.session import Session

CANCEL_PAGE = 500


def cancel(
    session: Session, job_id: str, by: str, now: int, audit_entry: NewAuditEntry | None = None
) -> bool | None:
    """Cancel a job and its unfinished descendants in one transaction. See StoreTx.cancel.

    The audit entry is written if this call canceled it.
    """
    won = steps.drive(steps.cancel(session.dialect, job_id, by, now), session.answer)
    if won:
        write_entry(session, audit_entry)
    return won


def cancel_live(
    session: Session, job_ids: Iterable[str], by: str, now: int, *, only_pending: bool = False
) -> int:
    verb = steps.cancel_live(session.dialect, job_ids, by, now, only_pending=only_pending)
    return steps.drive(verb, session.answer)


def _cancel_page(
    session: Session, filter: JobFilter, after: str, by: str, now: int
) -> tuple[int, str]:
    """Cancel one page of matching jobs.

    Return how many, and where the next page starts ("" = end).
    """
    parameters = parameters_of(filter) | {"after_id": after, "limit": CANCEL_PAGE}
    page = [row[0] for row in session.run_text(live_matching(filter), parameters)]
    only_pending = filter.state == State.PENDING
    canceled = cancel_live(session, page, by, now, only_pending=only_pending) if page else 0
    return canceled, page[-1] if len(page) == CANCEL_PAGE else ""


def cancel_matching(store: Engine, filter: JobFilter, by: str, now: int) -> int:
    """Cancel every unfinished job that matches, in batches. Return how many."""
    canceled, after = 0, FIRST_ID
    while after:
        page = partial(_cancel_page, filter=filter, after=after, by=by, now=now)
        more, after = store.write(page)
        canceled += more
    return canceled
