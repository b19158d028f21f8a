"""Holds: due jobs that cannot start, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from duly.ids import FIRST_ID
from duly.model.function import CLOSED, Status
from duly.model.job import (
    Hold,
)
from duly.store import functions, workers
from duly.store.base import (
    HeldJobs,
)
from duly.store.engine import Engine
from duly.store.functions import LOCK_STATUSES
from duly.store.jobs import cancel
from duly.store.jobs.claim import CLAIMABLE
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)

# Only the head of a lane is checked: unknown jobs behind known ones do not slow down claims yet.
UNKNOWN_AT_HEAD = each(
    sqlite=f"""SELECT id, function FROM (
            SELECT id, function FROM @jobs
            WHERE queue = :queue AND priority = :priority AND {CLAIMABLE} AND run_at <= :now
            ORDER BY run_at, id LIMIT 1000)
        WHERE function NOT IN (SELECT value FROM json_each(:functions))""",
    postgres=f"""SELECT id::text, function FROM (
            SELECT id, function FROM @jobs
            WHERE queue = :queue AND priority = :priority AND {CLAIMABLE} AND run_at <= :now
            ORDER BY run_at, id LIMIT 1000) head
        WHERE NOT function = ANY(:functions::text[])""",
)
SET_HOLD = each(
    sqlite=f"""UPDATE @jobs SET hold = :hold
        WHERE id IN (SELECT value FROM json_each(:ids)) AND {CLAIMABLE}""",
    # Claimable, in other words: the plan must find the jobs by id, not among all claimable ones.
    postgres="""UPDATE @jobs SET hold = :hold
        WHERE id = ANY(:ids::uuid[]) AND state = 'pending' AND coalesce(hold, '') = ''""",
)
HELD_IDS = each(
    sqlite="""SELECT id FROM @jobs WHERE hold = :hold
        AND function IN (SELECT value FROM json_each(:functions)) LIMIT 1000""",
    postgres="""SELECT t.id::text FROM @jobs t
        WHERE hold = :hold AND function = ANY(:functions::text[])
        ORDER BY function, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED""",
)
CLEAR_HOLD = each(
    sqlite="UPDATE @jobs SET hold = NULL WHERE id IN (SELECT value FROM json_each(:ids))",
    postgres="UPDATE @jobs SET hold = NULL WHERE id = ANY(:ids::uuid[])",
)
HELD = both(
    "SELECT hold, function, count(*), min(run_at) FROM"
    " (SELECT hold, function, run_at FROM @jobs WHERE hold IS NOT NULL LIMIT 10000) held"
    " GROUP BY hold, function ORDER BY hold, function"
)


def _hooks(place: str) -> str:
    return f"""SELECT t.function, @id, t.batch_id IS NULL
            AND (SELECT 1 FROM @jobs m WHERE m.batch_id = t.id
                ORDER BY m.batch_id LIMIT 1) IS NULL
            AND (SELECT 1 FROM @jobs m WHERE m.hook_id = t.id
                ORDER BY m.hook_id LIMIT 1) IS NULL
        FROM @jobs t WHERE t.hold = 'batch' AND {place}
        ORDER BY t.hold, t.function, t.id LIMIT 100"""


# Some of the jobs that wait for others to end, and whether all of those have ended. The hook of a
# batch has the batch's id; webhook jobs that wait in a line belong to a batch and are not hooks.
# Two probes on SQLite, for the same reason as in LANES.
HOOKS = each(
    sqlite=f"""SELECT * FROM ({_hooks("t.function = :function AND t.id > :id")})
        UNION ALL SELECT * FROM ({_hooks("t.function > :function")}) LIMIT 100""",
    postgres=_hooks("(t.function, t.id) > (:function, :id)"),
)
FREE_HOOKS = each(
    sqlite="""UPDATE @jobs SET hold = NULL
        WHERE id IN (SELECT value FROM json_each(:ids)) AND hold = 'batch' RETURNING 1""",
    postgres="""UPDATE @jobs SET hold = NULL
        WHERE id = ANY(:ids::uuid[]) AND hold = 'batch' RETURNING 1""",
)


MAX_HOOKS = 100
"""The LIMIT of HOOKS."""

# Every process checks this each second and usually finds nothing, so checking takes neither a lock
# nor a transaction id.


def hold_unknown(store: Engine, now: int) -> int:
    """Hold due jobs of functions that are paused or that no worker has. Return how many.

    Jobs of a deleted function are canceled.
    """
    stuck = store.read(lambda session: stuck_at_heads(session, now))
    return store.write(lambda session: hold_stuck(session, stuck, now)) if stuck else 0


def release_known(store: Engine) -> int:
    """Free held jobs of functions that a worker now has, or that are no longer paused.

    Return how many.
    """
    known = store.read(freed)
    return sum(_release_some(store, hold, names) for hold, names in known.items())


def _release_some(store: Engine, hold: Hold, functions: Collection[str]) -> int:
    if not functions or not store.read(lambda session: held_ids(session, hold, functions)):
        return 0
    return store.write(lambda session: release(session, hold, functions))


def release_for(store: Engine, functions: Sequence[str]) -> None:
    """Free the jobs that waited for a worker with these functions."""
    for hold in (Hold.FUNCTION, Hold.SIGNATURE):
        while store.write(partial(release, hold=hold, functions=functions)):
            pass


def relist(
    store: Engine, worker_id: str, functions: Sequence[str], threaded: Sequence[str]
) -> None:
    """Store a worker's new list of functions, and free the jobs that waited for them."""
    store.write(lambda session: workers.relist(session, worker_id, functions, threaded))
    release_for(store, functions)


def free_hooks(store: Engine, after: Sequence[str]) -> tuple[Sequence[str], int]:
    """Free hooks that no longer wait for an unfinished job, for whatever reason.

    Checks some hooks after `after`, a function and id. Returns the last one checked, () at the end,
    and how many were freed.
    """
    function, job_id = after or ("", FIRST_ID)
    where = {"function": function, "id": job_id}
    hooks = store.read(lambda session: session.run(HOOKS, where))
    stuck = [hook_id for _, hook_id, is_stuck in hooks if is_stuck]
    freed = store.write(lambda session: _free_hooks(session, stuck)) if stuck else 0
    return hooks[-1][:2] if len(hooks) == MAX_HOOKS else (), freed


def stuck_at_heads(session: Session, now: int) -> list[tuple[str, str]]:
    """Due jobs at the head of their lane that no worker may start: id and function."""
    statuses = functions.statuses(session)
    known = session.array(
        sorted(
            name for name in workers.known_functions(session) if statuses.get(name) not in CLOSED
        )
    )
    stuck: list[tuple[str, str]] = []
    for queue, priority, run_at, *_ in session.lanes():
        if run_at <= now:
            where = {"queue": queue, "priority": priority, "now": now, "functions": known}
            found = session.run(UNKNOWN_AT_HEAD, where)
            stuck += [(job_id, function) for job_id, function in found]
    return stuck


def hold_stuck(session: Session, stuck: Sequence[tuple[str, str]], now: int) -> int:
    """Hold jobs that no worker may start; cancel those of deleted functions.

    The statuses are read again: they may have changed since the jobs were found.
    """
    statuses = {name: Status(status) for name, status in session.run(LOCK_STATUSES)}
    known = workers.known_functions(session)
    paused = [i for i, f in stuck if statuses.get(f) == Status.PAUSED]
    deleted = [i for i, f in stuck if statuses.get(f) == Status.DELETED]
    unknown = [i for i, f in stuck if statuses.get(f) not in CLOSED and f not in known]
    hold(session, unknown, Hold.FUNCTION)
    hold(session, paused, Hold.PAUSED)
    if deleted:
        cancel.cancel_live(session, deleted, "operator", now, only_pending=True)
    return len(unknown) + len(paused) + len(deleted)


def freed(session: Session) -> dict[Hold, set[str]]:
    """The functions whose jobs no longer need to be held, by hold."""
    known = workers.known_functions(session)
    statuses = functions.statuses(session)
    paused = {name for name, status in statuses.items() if status == Status.PAUSED}
    # Jobs that wait for a key are canceled with their function once they are not held.
    deleted = {name for name, status in statuses.items() if status == Status.DELETED}
    return {Hold.FUNCTION: known, Hold.PAUSED: known - paused, Hold.KEY: deleted}


def hold(session: Session, job_ids: Sequence[str], reason: Hold) -> None:
    if job_ids:
        session.run(SET_HOLD, {"ids": session.array(job_ids), "hold": reason})


def release(session: Session, hold: Hold, functions: Iterable[str]) -> int:
    """Free up to 1,000 jobs of these functions that are held for this reason."""
    held = held_ids(session, hold, functions)
    if held:
        session.run(CLEAR_HOLD, {"ids": session.array(held)})
    return len(held)


def held_ids(session: Session, hold: Hold, functions: Iterable[str]) -> list[str]:
    return session.ids(HELD_IDS, {"hold": hold, "functions": session.array(functions)})


def held(session: Session) -> list[HeldJobs]:
    return [HeldJobs(*row) for row in session.run(HELD)]


def _free_hooks(session: Session, job_ids: Sequence[str]) -> int:
    return len(session.run(FREE_HOOKS, {"ids": session.array(job_ids)}))
