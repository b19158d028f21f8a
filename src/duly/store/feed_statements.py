"""What has changed since one looked last, for live events; otherwise as in statements.py."""

from __future__ import annotations

from duly.store.statements import each

_JOB = "function, state, queue, owner, attempt, token, trigger, actor"

# Only SQLite numbers them, in the order in which they ended. Numbers of those that retention has
# removed are given again, so one goes on behind a job, and not behind a number.
NEWEST_ENDED = each(
    sqlite="SELECT id FROM @history ORDER BY seq DESC LIMIT 1", postgres="SELECT NULL WHERE false"
)
PLACE_OF_ENDED = each(
    sqlite="SELECT seq FROM @history WHERE id = :id", postgres="SELECT NULL WHERE false"
)
ENDED_SINCE = each(
    sqlite=f"""SELECT id, {_JOB}, completed_at, NULL, NULL, NULL, seq FROM @history
        WHERE seq > :seq ORDER BY seq LIMIT :limit""",
    # Only the partitions of these days are looked at.
    postgres=f"""SELECT id::text, {_JOB}, completed_at, NULL, NULL, NULL, 0 FROM @history
        WHERE bucket = ANY(:buckets::int2[]) AND completed_at >= :since
        ORDER BY completed_at LIMIT :limit""",
)
RUNNING_NOW = each(
    sqlite=f"""SELECT j.id, {_JOB}, started_at, p.value, p.note, p.revision, 0 FROM @jobs j
        LEFT JOIN @progress p ON p.job_id = j.id WHERE worker_id IS NOT NULL LIMIT :limit""",
    postgres=f"""SELECT j.id::text, {_JOB}, started_at, p.value, p.note, p.revision, 0 FROM @jobs j
        LEFT JOIN @progress p ON p.job_id = j.id WHERE worker_id IS NOT NULL LIMIT :limit""",
)
CREATED_SINCE = each(
    sqlite=f"""SELECT id, {_JOB}, created_at, NULL, NULL, NULL, 0 FROM @jobs
        WHERE id >= :since_id AND state = 'pending' ORDER BY id LIMIT :limit""",
    postgres=f"""SELECT id::text, {_JOB}, created_at, NULL, NULL, NULL, 0 FROM @jobs
        WHERE id >= :since_id::uuid AND state = 'pending' ORDER BY jobs.id LIMIT :limit""",
)
# Without that right one does not see for how long other roles have been writing.
SEES_WRITERS = each(
    sqlite="SELECT 1",
    postgres="""SELECT pg_has_role('pg_read_all_stats', 'USAGE') OR NOT EXISTS (
            SELECT 1 FROM pg_stat_activity
            WHERE datname = current_database() AND usename <> current_user)""",
)
_TICK = "kind, tick_at, outcome, reason, {job_id}, decided_at, s.owner, s.key"
TICKS_SINCE = each(
    sqlite=f"""SELECT t.schedule_id, {_TICK.format(job_id="job_id")} FROM @ticks t
        LEFT JOIN @schedules s ON s.id = t.schedule_id
        WHERE decided_at >= :since ORDER BY decided_at LIMIT :limit""",
    postgres=f"""SELECT t.schedule_id::text, {_TICK.format(job_id="job_id::text")} FROM @ticks t
        LEFT JOIN @schedules s ON s.id = t.schedule_id
        WHERE decided_at >= :since ORDER BY decided_at LIMIT :limit""",
)
AUDITED_SINCE = each(
    sqlite="""SELECT id, at, actor, action, target FROM @audit WHERE id >= :since_id
        ORDER BY id LIMIT :limit""",
    postgres="""SELECT id::text, at, actor, action, target FROM @audit
        WHERE id >= :since_id::uuid ORDER BY audit.id LIMIT :limit""",
)
