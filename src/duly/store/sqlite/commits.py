"""One commit for the writes of many callers: all of them together, or one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from duly.store.commit import Ticket
from duly.store.sqlite.connection import BEGIN, COMMIT, ROLLBACK
from duly.store.sqlite.session import SqliteSession

log = logging.getLogger(__name__)

Write = Callable[[SqliteSession], Any]


def alone(session: SqliteSession, ticket: Ticket[Write]) -> None:
    raw = session.raw
    raw.execute(BEGIN)
    try:
        ticket.value = ticket.work(session)
        raw.execute(COMMIT)
    except BaseException:
        if raw.in_transaction:
            raw.execute(ROLLBACK)
        raise


def together(session: SqliteSession, tickets: Sequence[Ticket[Write]]) -> bool:
    """All in one transaction, a savepoint each. False: it broke, nothing of it happened."""
    raw = session.raw
    raw.execute(BEGIN)
    try:
        for ticket in tickets:
            if not _one_of_many(session, ticket):
                return False
        raw.execute(COMMIT)
        return True
    except Exception:
        log.debug("a shared commit failed; its writes are repeated one by one", exc_info=True)
        return False
    finally:
        if raw.in_transaction:
            raw.execute(ROLLBACK)


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
