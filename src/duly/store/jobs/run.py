"""Jobs that are due, start, or took too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duly.model.job import (
    Claim,
    ErrorKind,
    Settlement,
)
from duly.store import statements as sql
from duly.store import steps
from duly.store.base import (
    Lane,
)
from duly.store.engine import Engine
from duly.store.session import Session


def lanes(session: Session) -> list[Lane]:
    """Every queue and priority with claimable jobs, and when the first one is due."""
    return [Lane(*row) for row in session.lanes()]


def start_bodies(store: Engine, attempts: Sequence[tuple[str, int]]) -> set[str]:
    """The bodies of these attempts (job id, token) start now: calls with their keys make other
    jobs from here on. The ids of those that still run; no other body may start.
    """
    write = store.write_one if len(attempts) == 1 else store.write
    return write(lambda session: _start_bodies(session, attempts))


def _start_bodies(session: Session, attempts: Sequence[tuple[str, int]]) -> set[str]:
    started = [
        session.run(sql.START_BODY, {"id": job_id, "token": token})
        for job_id, token in sorted(attempts)
    ]
    return {row[0] for rows in started for row in rows}


def due_alone(
    session: Session, functions: Sequence[str], queues: Sequence[str] | None, now: int
) -> list[str]:
    """Some due jobs of that kind, of these functions and queues; None: of any queue."""
    of = None if queues is None else session.array(queues)
    which = {"functions": session.array(functions), "queues": of, "now": now}
    return [row[0] for row in session.run(sql.DUE_ALONE, which)]


def time_out(
    store: Engine, before: int, judge: Callable[[Claim], Settlement | None], now: int
) -> int:
    """Settle running jobs whose deadline is `before` or older, where `judge` says how."""
    late = store.read(lambda session: overdue(session, before))
    # Whatever becomes of one meanwhile, its token is another then.
    settlements = [end for claim in late if (end := judge(claim)) is not None]
    return len(store.write(lambda s: s.settle(settlements, now))) if settlements else 0


def overdue(session: Session, before: int) -> list[Claim]:
    return [Claim(*row) for row in session.run(sql.OVERDUE, {"before": before})]


def expire(store: Engine, now: int) -> int:
    """Cancel pending jobs that were not started in time."""
    if not store.read(lambda session: session.ids(sql.EXPIRED_IDS, {"now": now})):
        return 0
    return store.write(lambda session: cancel_expired(session, now))


def cancel_expired(session: Session, now: int) -> int:
    expired = session.ids(sql.EXPIRED_IDS, {"now": now})
    if expired:
        message = "not started before it expired"
        session.take(
            steps.move_canceled(
                session.dialect,
                expired,
                now,
                error_kind=ErrorKind.EXPIRED,
                error_message=message,
            )
        )
    return len(expired)
