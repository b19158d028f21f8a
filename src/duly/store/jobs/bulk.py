"""Applies a bulk change to one page of jobs."""

from __future__ import annotations

from collections.abc import Callable

from duly import fault
from duly.store.base import (
    CancelJobs,
    Change,
    RepeatJobs,
)
from duly.store.jobs import cancel, enqueue, replay
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)
from duly.store.steps import LIVE_IDS, PENDING_IDS

# While a bulk job runs, its arguments store how far it is: the next attempt continues there.
CHECKPOINT = both("UPDATE @jobs SET args = :args WHERE id = :id AND token = :token")
_ASK_ANEW = "hold = CASE WHEN hold = 'key' THEN NULL ELSE hold END"
# Pending jobs that the same transaction has locked. The time between a job's due time and its
# expiry stays the same; jobs that wait for a key request it again when they are due.
RESCHEDULE = each(
    sqlite=f"""UPDATE @jobs SET run_at = :run_at, expires_at = expires_at + :run_at - run_at,
            {_ASK_ANEW} WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres=f"""UPDATE @jobs SET run_at = :run_at::int8,
            expires_at = expires_at + :run_at::int8 - run_at, {_ASK_ANEW}
        WHERE id = ANY(:ids::uuid[])""",
)


def change_page(
    session: Session,
    running: tuple[str, int],
    change: Change,
    checkpoint: Callable[[int], str],
    now: int,
) -> int | None:
    """Change some jobs for a running job (id, token), and record how far it is. Return how many.

    Both happen in one transaction: `checkpoint(count)` becomes the running job's arguments. Does
    nothing and returns None if the job no longer runs under that token.
    """
    if not enqueue.lock_running(session, *running):
        return None
    changed = _change(session, change, now)
    fault.point("bulk.changed")
    job_id, token = running
    session.run(CHECKPOINT, {"id": job_id, "token": token, "args": checkpoint(changed)})
    return changed


def _change(session: Session, change: Change, now: int) -> int:
    if isinstance(change, RepeatJobs):
        repeated = replay.replay(session, change.jobs, change.expires_at)
        return sum(repeated.get(job.retry_of or "") == job.id for job in change.jobs)
    any_state = isinstance(change, CancelJobs) and not change.only_pending
    which = LIVE_IDS if any_state else PENDING_IDS
    found = session.ids(which, {"ids": session.array(change.ids)})
    if isinstance(change, CancelJobs):
        cancel.cancel_live(session, found, change.by, now)
    elif found:
        session.run(RESCHEDULE, {"ids": session.array(found), "run_at": change.run_at})
    return len(found)
