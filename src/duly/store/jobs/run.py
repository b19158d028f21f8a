"""Due jobs, started bodies, expiry and time limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duly.model.function import RESERVED
from duly.model.job import (
    Claim,
    ErrorKind,
    Settlement,
)
from duly.store import steps
from duly.store.base import (
    Lane,
)
from duly.store.engine import Engine
from duly.store.jobs.claim import CLAIMED, IS_DUE_ALONE
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)

# A claimed job has its key until its body starts: if it is given back unstarted, it still has it.
START_BODY = both(
    "UPDATE @jobs SET pending_key = NULL WHERE id = :id AND token = :token RETURNING @id"
)
_OUR_QUEUE = f"substr(queue, 1, {len(RESERVED)}) = '{RESERVED}'"
DUE_ALONE = each(
    sqlite=f"""SELECT @id FROM @jobs WHERE {IS_DUE_ALONE}
        AND function IN (SELECT value FROM json_each(:functions))
        AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)) OR {_OUR_QUEUE})
        LIMIT 10""",
    postgres=f"""SELECT @id FROM @jobs WHERE {IS_DUE_ALONE} AND function = ANY(:functions::text[])
        AND (:queues::text[] IS NULL OR queue = ANY(:queues::text[]) OR {_OUR_QUEUE})
        LIMIT 10""",
)
EXPIRED_IDS = each(
    sqlite="""SELECT id FROM @jobs WHERE state = 'pending' AND expires_at <= :now
        AND attempt = 0 LIMIT 500""",
    # In index order: for any other order, a prepared plan would read all jobs by id.
    postgres="""SELECT @id FROM @jobs WHERE state = 'pending' AND expires_at <= :now
        AND attempt = 0
        ORDER BY expires_at LIMIT 500 FOR UPDATE SKIP LOCKED""",
)
_LATE = CLAIMED.replace("args", "@short_args")
_OVERDUE = f"SELECT {_LATE} FROM @jobs WHERE deadline_at <= :before AND state = 'running'"
OVERDUE = each(
    sqlite=f"{_OVERDUE} LIMIT 500", postgres=f"{_OVERDUE} ORDER BY deadline_at LIMIT 500"
)


def lanes(session: Session) -> list[Lane]:
    """Every queue and priority with claimable jobs, and when the first one is due."""
    return [Lane(*row) for row in session.lanes()]


def start_bodies(store: Engine, attempts: Sequence[tuple[str, int]]) -> set[str]:
    """Start the bodies of these attempts (job id, token). Return the ids of those that still run.

    From here on, calls with the same keys create other jobs. The bodies of the other attempts must
    not start.
    """
    write = store.write_one if len(attempts) == 1 else store.write
    return write(lambda session: _start_bodies(session, attempts))


def _start_bodies(session: Session, attempts: Sequence[tuple[str, int]]) -> set[str]:
    started = [
        session.run(START_BODY, {"id": job_id, "token": token})
        for job_id, token in sorted(attempts)
    ]
    return {row[0] for rows in started for row in rows}


def due_alone(
    session: Session, functions: Sequence[str], queues: Sequence[str] | None, now: int
) -> list[str]:
    """Some due jobs of that kind, of these functions and queues; None for any queue."""
    of = None if queues is None else session.array(queues)
    which = {"functions": session.array(functions), "queues": of, "now": now}
    return [row[0] for row in session.run(DUE_ALONE, which)]


def time_out(
    store: Engine, before: int, judge: Callable[[Claim], Settlement | None], now: int
) -> set[str]:
    """Settle running jobs whose deadline is `before` or earlier, as `judge` decides.

    Returns the ids of those that were still running.
    """
    late = store.read(lambda session: overdue(session, before))
    # Once one is settled, for whatever outcome, its token is different.
    settlements = [end for claim in late if (end := judge(claim)) is not None]
    return store.write(lambda s: s.settle(settlements, now)) if settlements else set()


def overdue(session: Session, before: int) -> list[Claim]:
    return [Claim(*row) for row in session.run(OVERDUE, {"before": before})]


def expire(store: Engine, now: int) -> int:
    """Cancel pending jobs that did not start in time."""
    if not store.read(lambda session: session.ids(EXPIRED_IDS, {"now": now})):
        return 0
    return store.write(lambda session: cancel_expired(session, now))


def cancel_expired(session: Session, now: int) -> int:
    expired = session.ids(EXPIRED_IDS, {"now": now})
    if expired:
        verb = steps.move_canceled(
            session.dialect,
            expired,
            now,
            error_kind=ErrorKind.EXPIRED,
            error_message="not started before it expired",
        )
        steps.drive(verb, session.answer)
    return len(expired)
