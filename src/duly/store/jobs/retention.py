"""Removes old finished jobs; each database runs the statements in its own way."""

from __future__ import annotations

from typing import NamedTuple

from duly.store.jobs.finish import FINAL
from duly.store.statements import (
    both,
    each,
)

# Finished jobs leave history in the order in which they came. Some move to @kept instead: the
# newest finished job of a function, exhausted jobs that have not reached their own limit, and
# children of a workflow that has not ended, which may still ask for them. A
# small number on SQLite, so that a concurrent claim waits only a millisecond.
OLDEST_AT_ONCE = 30
OLDEST_FINISHED = each(
    sqlite=f"""SELECT id, function, exhausted, completed_at, parent_id FROM @history NOT INDEXED
        ORDER BY seq LIMIT {OLDEST_AT_ONCE}""",
    postgres="SELECT 1 FROM @history WHERE bucket = :bucket LIMIT 1",
)


class OldFinished(NamedTuple):
    """A row of `OLDEST_FINISHED` on SQLite."""

    id: str
    function: str
    exhausted: int
    completed_at: int
    parent_id: str | None


LIVE_WORKFLOWS = both(
    """SELECT id FROM @jobs
        WHERE id IN (SELECT value FROM json_each(:ids)) AND kind = 'workflow'"""
)
# No janitor has run since the bucket was last used: the old rows are at its start.
LEFT_BEHIND = both(
    "SELECT 1 FROM @history WHERE bucket = :bucket AND ctid < '(8,1)' AND completed_at < :cutoff"
    " LIMIT 1"
)
# The newest job is the one that was created last, which is also what schedule conditions look at.
# Its state is listed so that the index can be used.
_ENDED = "state IN ('succeeded', 'failed', 'canceled')"
NEWER_FINISHED = both(
    f"SELECT 1 FROM @history WHERE function = :function AND {_ENDED} AND id > :id LIMIT 1"
)
_HAS_LIVE_PARENT = """EXISTS (SELECT 1 FROM @jobs p
                WHERE p.id = {0}.parent_id AND p.kind = 'workflow')"""
KEEP = each(
    sqlite=f"""INSERT INTO @kept ({FINAL}) SELECT {FINAL} FROM @history
        WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres=f"""INSERT INTO @kept ({FINAL})
        SELECT {FINAL} FROM @history newest WHERE bucket = :bucket AND id IN (
            -- Ids are in order as texts too, and to sort a day would take a file.
            SELECT max(id::text COLLATE "C")::uuid FROM @history
            WHERE bucket = :bucket AND completed_at < :cutoff GROUP BY function)
        AND NOT EXISTS (SELECT 1 FROM @history later
            WHERE later.function = newest.function AND later.{_ENDED} AND later.id > newest.id)
        UNION
        SELECT {FINAL} FROM @history
        WHERE bucket = :bucket AND exhausted AND completed_at < :cutoff
            AND completed_at >= :exhausted_after
        UNION
        SELECT {FINAL} FROM @history h
        WHERE bucket = :bucket AND parent_id IS NOT NULL AND completed_at < :cutoff
            AND {_HAS_LIVE_PARENT.format("h")}
        ON CONFLICT (id) DO NOTHING""",
)
DELETE_FINISHED = each(
    sqlite="DELETE FROM @history WHERE id IN (SELECT value FROM json_each(:ids))",
    postgres="DELETE FROM @history WHERE bucket = :bucket AND completed_at < :cutoff",
)
# A clock that was ahead has filled the bucket of a day in the future.
FINISHED_LATER = both(
    "SELECT 1 FROM @history WHERE bucket = :bucket AND completed_at >= :cutoff LIMIT 1"
)
# One janitor at a time: otherwise two of them would count the same jobs twice.
TAKE_BUCKET = both("SELECT pg_try_advisory_xact_lock(hashtext('@schema.history'), :bucket::int4)")
TRUNCATE_BUCKET = "TRUNCATE @schema.history_{bucket:02d}"
DROP_KEPT = each(
    sqlite=f"""DELETE FROM @kept WHERE (exhausted = 0 OR completed_at < :exhausted_after)
        AND (EXISTS (SELECT 1 FROM @history h WHERE h.function = duly_kept.function
                AND h.{_ENDED} AND h.id > duly_kept.id)
            OR EXISTS (SELECT 1 FROM @kept k WHERE k.function = duly_kept.function
                AND k.{_ENDED} AND k.id > duly_kept.id))
            AND NOT {_HAS_LIVE_PARENT.format("duly_kept")}
        RETURNING id""",
    postgres=f"""DELETE FROM @kept o WHERE (NOT exhausted OR completed_at < :exhausted_after)
        AND (EXISTS (SELECT 1 FROM @history h WHERE h.function = o.function
                AND h.{_ENDED} AND h.id > o.id)
            OR EXISTS (SELECT 1 FROM @kept k WHERE k.function = o.function
                AND k.{_ENDED} AND k.id > o.id))
            AND NOT {_HAS_LIVE_PARENT.format("o")}
        RETURNING id::text""",
)


def _forget_with_bucket(table: str) -> str:
    return f"""DELETE FROM {table} o USING @history h
        WHERE h.bucket = :bucket AND h.completed_at < :cutoff AND h.id = o.job_id
            AND NOT EXISTS (SELECT 1 FROM @kept k WHERE k.id = o.job_id)"""


FORGET_PROGRESS_IN = both(_forget_with_bucket("@progress"))
FORGET_LOGS_IN = both(_forget_with_bucket("@logs"))
FORGET_TRACES_IN = both(_forget_with_bucket("@traces"))
FORGET_STEPS_IN = both(_forget_with_bucket("@steps"))
FORGET_EVENTS_IN = both(_forget_with_bucket("@events"))
FORGET_IN = (
    *(FORGET_PROGRESS_IN, FORGET_LOGS_IN, FORGET_TRACES_IN),
    *(FORGET_STEPS_IN, FORGET_EVENTS_IN),
)
