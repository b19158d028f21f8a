"""The statements that claim due jobs; each database runs them in its own way."""

from __future__ import annotations

from duly.store.statements import (
    both,
    each,
)

CLAIMED = """@id, token, attempt, crashes, system_retries, function, kind, queue, priority,
    run_at, timeout_ms, retry, args, lock_retries, begun_at, pending_key IS NOT NULL"""
CLAIMABLE = "state = 'pending' AND hold IS NULL"
IN_TIME = "(expires_at IS NULL OR expires_at > :now OR attempt > 0)"
# The time limit of a workflow covers all of its claims.
TO_RUNNING = """UPDATE @jobs SET state = 'running', token = token + 1, attempt = attempt + 1,
    worker_id = :worker, started_at = coalesce(begun_at, :now),
    deadline_at = coalesce(begun_at, :now) + timeout_ms"""
# The lanes (queue and priority) that hold claimable jobs, each with its earliest due time: one
# index probe per lane, however many jobs it holds.
LANES = each(
    # Two probes: for (queue, priority) > (…) SQLite would step through the whole lane.
    sqlite=f"""SELECT * FROM (
            SELECT queue, priority, run_at FROM @jobs
            WHERE {CLAIMABLE} AND queue = :queue AND priority > :priority
            ORDER BY priority, run_at LIMIT 1)
        UNION ALL SELECT * FROM (
            SELECT queue, priority, run_at FROM @jobs
            WHERE {CLAIMABLE} AND queue > :queue
            ORDER BY queue, priority, run_at LIMIT 1)
        LIMIT 1""",
    postgres=f"""WITH RECURSIVE lanes AS (
            (SELECT queue, priority, run_at FROM @jobs WHERE {CLAIMABLE}
             ORDER BY queue, priority, run_at LIMIT 1)
            UNION ALL
            SELECT n.queue, n.priority, n.run_at FROM lanes l CROSS JOIN LATERAL (
                SELECT queue, priority, run_at FROM @jobs
                WHERE {CLAIMABLE} AND (queue, priority) > (l.queue, l.priority)
                ORDER BY queue, priority, run_at LIMIT 1) n
        ) SELECT queue, priority, run_at,
            -- Ordered, for an EXISTS may rather read the table than an index that is nearly empty.
            (SELECT limit_key FROM @jobs WHERE {CLAIMABLE} AND limit_key IS NOT NULL
             ORDER BY limit_key, queue, function, run_at LIMIT 1) IS NOT NULL
            OR EXISTS (SELECT 1 FROM @queues WHERE at_once IS NOT NULL)
        FROM lanes""",
)


def _sqlite_level(level: int) -> str:
    return f"""SELECT * FROM (
        SELECT id, args_bytes, function, limit_key, limits FROM @jobs
        WHERE queue = :queue AND priority = {level} AND {CLAIMABLE} AND run_at <= :now
            AND function IN (SELECT value FROM json_each(:functions))
            AND {IN_TIME}
        ORDER BY run_at, id LIMIT :limit)"""


def _postgres_pick(columns: str, plain: str, open_queue: str) -> str:
    return f"""SELECT {columns} FROM (
            SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM (
                SELECT due.*
                FROM unnest(:queues::text[], :levels::int2[], :floors::int8[])
                    AS lane (queue, level, floor)
                CROSS JOIN LATERAL (
                    SELECT id, octet_length(args) AS size{plain and ", " + plain}
                    FROM @jobs
                    WHERE queue = lane.queue AND priority = lane.level AND {CLAIMABLE}
                        AND run_at <= :now AND run_at >= lane.floor
                        AND function = ANY(:functions::text[])
                        AND function <> ALL(ARRAY(
                            SELECT name FROM @functions WHERE status IN ('paused', 'deleted')))
                        AND {IN_TIME}
                        {"" if plain else "AND limit_key IS NULL"}
                    ORDER BY run_at, id LIMIT :limit
                    FOR UPDATE SKIP LOCKED
                ) due
                WHERE lane.queue <> ALL(ARRAY(SELECT name FROM @queues WHERE {open_queue}))
                    AND (SELECT count(*) FROM @queues
                        WHERE name = '*' AND paused_at IS NOT NULL) = 0
                LIMIT :limit
            ) picked
        ) bounded WHERE total = size OR total <= :bytes"""


# SQLite picks the due jobs of a queue, highest priority first, and CLAIM takes them in the same
# transaction. PostgreSQL does both in one statement, and skips jobs that a limit may keep back.
# There the lanes must come in the given order without a sort, which would read and lock all of
# them. So a lane is joined with nothing but its own jobs (an anti-join with @queues may hash the
# lanes).
PICK = each(
    sqlite=" UNION ALL ".join(_sqlite_level(level) for level in range(9, -1, -1)) + " LIMIT :limit",
    postgres=_postgres_pick("id", "", "paused_at IS NOT NULL OR at_once IS NOT NULL"),
)
CLAIM = each(
    sqlite=f"""{TO_RUNNING} WHERE id IN (SELECT value FROM json_each(:ids))
        RETURNING {CLAIMED}""",
    postgres=f"{TO_RUNNING} WHERE id = ANY(ARRAY({PICK.postgres})) RETURNING {CLAIMED}",
)
# The same including jobs under limits (PostgreSQL only): a picked job is claimed once it may start.
PICK_LIMITED = both(
    _postgres_pick(
        "id::text, queue, function, limit_key, limits, priority, run_at",
        "queue, function, limit_key, limits, priority, run_at",
        "paused_at IS NOT NULL",
    )
)
IS_DUE_ALONE = f"""hold = 'alone' AND state = 'pending' AND run_at <= :now AND {IN_TIME}
    AND NOT EXISTS (SELECT 1 FROM @queues WHERE name IN (queue, '*') AND paused_at IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM @functions
        WHERE name = function AND status IN ('paused', 'deleted'))"""
