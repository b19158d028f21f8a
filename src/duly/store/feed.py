"""Reads the changes since an earlier look.

Transactions do not commit in the order of the times that they write. So each look starts again
where the oldest transaction started that was still open at the previous look, and returns some
changes twice. Writers record a time slightly before the commit, which `SLACK_MS` allows for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.model.job import State
from duly.model.news import AuditNews, Changes, Cursor, JobNews, News, TickNews
from duly.store.schedules.facts import first_id_at
from duly.store.statements import (
    DAY_MS,
    HISTORY_BUCKETS,
    each,
)
from duly.store.steps import Row

if TYPE_CHECKING:
    from duly.store.session import Session

# How long a transaction has been open whose writes are not visible yet, in milliseconds.
LONGEST_WRITE = each(
    sqlite="SELECT 0",
    postgres="""SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
            * 1000
        FROM pg_stat_activity
        WHERE datname = current_database() AND backend_xid IS NOT NULL""",
)


_JOB = "function, state, queue, owner, attempt, token, trigger, actor"

# Only SQLite numbers them, in the order in which they ended. Numbers freed by retention are used
# again, so paging continues after a job, not after a number.
NEWEST_ENDED = each(
    sqlite="SELECT id FROM @history ORDER BY seq DESC LIMIT 1", postgres="SELECT NULL WHERE false"
)
PLACE_OF_ENDED = each(
    sqlite="SELECT seq FROM @history WHERE id = :id", postgres="SELECT NULL WHERE false"
)
ENDED_SINCE = each(
    sqlite=f"""SELECT id, {_JOB}, completed_at, NULL, NULL, NULL, seq FROM @history
        WHERE seq > :seq ORDER BY seq LIMIT :limit""",
    # Only the partitions of these days are read.
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
# Without this right, other roles' open transactions are not visible.
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


SLACK_MS = 5_000
RUNNING = 500
"""The largest number of running jobs that are read."""


def newest(session: Session, now: int) -> Cursor:
    """The cursor at which a new follower starts."""
    return Cursor(_horizon(session, now), _newest_ended(session))


def sees_writers(session: Session) -> bool:
    """Whether all open transactions are visible. If not, `changes` may miss ended jobs."""
    return bool(session.run(SEES_WRITERS)[0][0])


def changes(session: Session, cursor: Cursor, now: int, limit: int) -> Changes:
    # This comes first, so that a writer which the following statements do not see started after it.
    """Changes since a cursor: a limited number of each kind. Some may be returned twice.

    No job that has ended is left out, whatever order transactions commit in.
    """
    horizon = _horizon(session, now)
    given: dict[str, Any] = {
        "since": cursor.since,
        "since_id": first_id_at(cursor.since),
        "limit": limit,
    }
    ended, last = _ended(session, cursor, given, now)
    created = [_job(row) for row in session.run(CREATED_SINCE, given)]
    ticks = [TickNews(*row) for row in session.run(TICKS_SINCE, given)]
    audited = [AuditNews(*row) for row in session.run(AUDITED_SINCE, given)]
    running = [_job(row) for row in session.run(RUNNING_NOW, {"limit": RUNNING})]
    most = max(len(ended), len(created), len(ticks), len(audited))
    news: list[News] = [*ended, *created, *ticks, *audited, *running]
    # A look that starts earlier than the last one would show nothing new.
    after = Cursor(max(horizon, cursor.since), _newest_ended(session) if last is None else last)
    return Changes(news, after, whole=most < limit and last is not None)


def _horizon(session: Session, now: int) -> int:
    milliseconds: float = session.run(LONGEST_WRITE)[0][0]
    return now - round(milliseconds) - SLACK_MS


def _newest_ended(session: Session) -> str:
    rows = session.run(NEWEST_ENDED) if session.dialect == "sqlite" else []
    return rows[0][0] if rows else ""


def _ended(
    session: Session, cursor: Cursor, given: dict[str, Any], now: int
) -> tuple[list[JobNews], str | None]:
    """Jobs that have ended, and the last of them; None if they cannot be determined."""
    if session.dialect == "sqlite":
        place = session.run(PLACE_OF_ENDED, {"id": cursor.ended}) if cursor.ended else [(0,)]
        if not place:
            # Retention has removed it, and perhaps others that ended later.
            return [], None
        rows = session.run(ENDED_SINCE, given | {"seq": place[0][0]})
        return [_job(row) for row in rows], rows[-1][0] if rows else cursor.ended
    days = range(cursor.since // DAY_MS, now // DAY_MS + 1)
    buckets = sorted({day % HISTORY_BUCKETS for day in days[-HISTORY_BUCKETS:]})
    rows = session.run(ENDED_SINCE, given | {"buckets": buckets})
    return [_job(row) for row in rows], ""


def _job(row: Row) -> JobNews:
    job_id, function, state, *rest = row[:-1]
    return JobNews(job_id, function, State(state), *rest)
