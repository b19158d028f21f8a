"""One commit for the writes of many callers, all together or one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from duly.model.job import NewJob
from duly.store.commit import Ticket
from duly.store.jobs.enqueue import insert_jobs
from duly.store.sqlite.connection import BEGIN, COMMIT, ROLLBACK
from duly.store.sqlite.session import SqliteSession

log = logging.getLogger(__name__)

Write = Callable[[SqliteSession], Any]
Begun = Callable[[], None]
"""Called when the transaction has started, which may have taken a while."""


class Insert:
    """Store jobs that have no keys, so that only a failure can refuse them."""

    __slots__ = ("jobs",)

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs

    def __call__(self, session: SqliteSession) -> dict[str, str]:
        return insert_jobs(session, self.jobs)


def alone(session: SqliteSession, ticket: Ticket[Write], begun: Begun) -> None:
    raw = session.raw
    try:
        # Ctrl-C during the wait is raised after it has succeeded.
        raw.execute(BEGIN)
        begun()
        ticket.value = ticket.work(session)
        raw.execute(COMMIT)
    except BaseException:
        if raw.in_transaction:
            raw.execute(ROLLBACK)
        raise


def together(session: SqliteSession, tickets: Sequence[Ticket[Write]], begun: Begun) -> bool:
    """Run all writes in one transaction, inserts first, each of the others in a savepoint.

    Returns False if it failed; then none of it happened.
    """
    raw = session.raw
    try:
        raw.execute(BEGIN)
        begun()
        return _all_of_many(session, tickets)
    finally:
        if raw.in_transaction:
            raw.execute(ROLLBACK)


def _all_of_many(session: SqliteSession, tickets: Sequence[Ticket[Write]]) -> bool:
    try:
        _insert_all(session, tickets)
        for ticket in tickets:
            if not isinstance(ticket.work, Insert) and not _one_of_many(session, ticket):
                return False
        session.raw.execute(COMMIT)
        return True
    except Exception:
        log.debug("a shared commit failed; its writes are repeated one by one", exc_info=True)
        return False


def _insert_all(session: SqliteSession, tickets: Sequence[Ticket[Write]]) -> None:
    jobs: list[NewJob] = []
    for ticket in tickets:
        if isinstance(ticket.work, Insert):
            jobs += ticket.work.jobs
            ticket.value = {}
    if jobs:
        insert_jobs(session, jobs)


def _one_of_many(session: SqliteSession, ticket: Ticket[Write]) -> bool:
    raw = session.raw
    raw.execute("SAVEPOINT duly_write")
    try:
        ticket.value = ticket.work(session)
    except Exception as error:
        if not raw.in_transaction:
            return False
        ticket.error = error
        raw.execute("ROLLBACK TO duly_write")
    raw.execute("RELEASE duly_write")
    return True
