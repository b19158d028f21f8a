"""The statements that end an attempt; each database runs them in its own way."""

from __future__ import annotations

from duly.store.statements import (
    DAY_MS,
    HISTORY_BUCKETS,
    both,
    each,
)

# The columns that stay the same when a job moves to history.
MOVED = """id, function, kind, queue, priority, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, expires_at, timeout_ms, retry, args, parent_id,
    owner, tags, worker_id, trigger, actor, retry_of, batch_id, hook_id"""
FINAL = f"""{MOVED}, state, completed_at, result, error_kind, error_message, error_traceback,
    canceled_by, exhausted"""
BUCKET = f"((:now::int8 / {DAY_MS}) % {HISTORY_BUCKETS})::int2"
# Recording how other attempts ended must not wait long for the row of one job. This is not a
# separate statement, which would be one more round trip per batch.
LOCK_WAIT = "200ms"
_WAIT_SHORTLY = """(SELECT set_config('lock_timeout',
                coalesce(:lock_wait::text, current_setting('lock_timeout')), true)) IS NOT NULL"""
# The fence is id and token: the token is odd only while the job is running. Adding the state would
# make the batched form quadratic under PostgreSQL's generic plan.
FINISH = each(
    sqlite=f"""INSERT INTO @history ({FINAL})
        SELECT {MOVED}, ?, ?, ?, ?, ?, ?, NULL, ? FROM @jobs WHERE id = ? AND token = ?""",
    postgres=f"""WITH gone AS (
            DELETE FROM @jobs j
            USING unnest(:ids::uuid[], :tokens::int4[], :states::text[], :results::text[],
                :error_kinds::text[], :error_messages::text[], :error_tracebacks::text[],
                :exhausteds::bool[])
                AS f (id, token, state, result, error_kind, error_message, error_traceback,
                    exhausted)
            WHERE j.id = f.id AND j.token = f.token AND j.id = ANY(:ids::uuid[])
                AND {_WAIT_SHORTLY}
            RETURNING {", ".join("j." + c.strip() for c in MOVED.split(","))},
                f.state, f.result, f.error_kind, f.error_message, f.error_traceback, f.exhausted
        )
        INSERT INTO @history ({FINAL}, bucket)
        SELECT {MOVED}, state, :now::int8, result, error_kind, error_message, error_traceback,
            NULL, exhausted, {BUCKET}
        FROM gone RETURNING @id""",
)
# One mutation in its own transaction; `xid` shows that the body has not ended it and started
# another.
FINISH_MUTATION = both(
    f"""WITH gone AS (
            DELETE FROM @jobs WHERE id = :id AND token = :token
                AND pg_current_xact_id()::text = :xid
            RETURNING {MOVED}
        )
        INSERT INTO @history ({FINAL}, bucket)
        SELECT {MOVED}, 'succeeded', :now::int8, :result::text, NULL, NULL, NULL, NULL, false,
            {BUCKET}
        FROM gone RETURNING 1"""
)
FORGET_FINISHED = both("DELETE FROM @jobs WHERE id = ? AND token = ?")
AGAIN = each(
    sqlite="""UPDATE @jobs SET state = 'pending', token = token + 1, worker_id = NULL,
            started_at = NULL, deadline_at = NULL, attempt = :attempt,
            run_at = CASE WHEN :mail IS NULL OR mail = :mail THEN :run_at ELSE started_at END,
            crashes = :crashes, system_retries = :system_retries,
            lock_retries = lock_retries + :lock_failures, hold = :hold,
            error_kind = :error_kind, error_message = :error_message,
            error_traceback = :error_traceback, waits = :waits, limits = coalesce(:limits, limits),
            begun_at = CASE WHEN :begun THEN started_at ELSE begun_at END,
            expires_at = CASE WHEN :begun THEN NULL ELSE expires_at END,
            priority = CASE WHEN :begun AND begun_at IS NULL THEN min(priority + 1, 9)
                ELSE priority END
        WHERE id = :id AND token = :token""",
    postgres=f"""UPDATE @jobs j SET state = 'pending', token = j.token + 1, worker_id = NULL,
            started_at = NULL, deadline_at = NULL, attempt = f.attempt,
            run_at = CASE WHEN f.mail IS NULL OR j.mail = f.mail THEN f.run_at
                ELSE j.started_at END,
            crashes = f.crashes, system_retries = f.system_retries,
            lock_retries = j.lock_retries + f.lock_failures, hold = f.hold,
            error_kind = f.error_kind, error_message = f.error_message,
            error_traceback = f.error_traceback, waits = f.waits,
            limits = coalesce(f.limits, j.limits),
            begun_at = CASE WHEN f.begun THEN j.started_at ELSE j.begun_at END,
            expires_at = CASE WHEN f.begun THEN NULL ELSE j.expires_at END,
            priority = CASE WHEN f.begun AND j.begun_at IS NULL THEN least(j.priority + 1, 9)
                ELSE j.priority END
        FROM unnest(:ids::uuid[], :tokens::int4[], :run_ats::int8[], :attempts::int4[],
            :crashes::int4[], :system_retries::int4[], :holds::text[], :error_kinds::text[],
            :error_messages::text[], :error_tracebacks::text[], :lock_failures::int4[],
            :beguns::bool[], :mails::int4[], :waits::text[], :limits::text[])
            AS f (id, token, run_at, attempt, crashes, system_retries, hold, error_kind,
                error_message, error_traceback, lock_failures, begun, mail, waits, limits)
        WHERE j.id = f.id AND j.token = f.token AND j.id = ANY(:ids::uuid[])
            AND {_WAIT_SHORTLY}
        RETURNING j.id::text""",
)
# The rows that other transactions have locked; this locks all of the others. The end of a job also
# changes the workflows that wait for it.
LOCKED_IDS = both(
    """WITH free AS (
            SELECT id FROM @jobs WHERE id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED
        ), waiting AS MATERIALIZED (
            SELECT job_id, watcher_id
            FROM (SELECT id FROM @jobs WHERE id = ANY(:ids::uuid[]) AND watched) ending
            CROSS JOIN LATERAL (
                SELECT job_id, watcher_id FROM @watches WHERE job_id = ending.id LIMIT 1000) w
        ), told AS (
            SELECT id FROM @jobs WHERE id = ANY(ARRAY(SELECT watcher_id FROM waiting))
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        ), untold AS (
            SELECT job_id FROM waiting w WHERE watcher_id NOT IN (SELECT id FROM told)
                AND (SELECT 1 FROM @jobs WHERE id = w.watcher_id LIMIT 1) = 1
        )
        SELECT @id FROM @jobs WHERE id = ANY(:ids::uuid[])
            AND (id NOT IN (SELECT id FROM free) OR id IN (SELECT job_id FROM untold))"""
)
CURRENT_XID = both("SELECT pg_current_xact_id()::text")
NO_NESTED_LOOPS = both("SET LOCAL enable_nestloop = off")
SHORT_LOCK_WAIT = both(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
