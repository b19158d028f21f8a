"""What has changed since a look.

Transactions do not end in the order of the times that they write. A look therefore begins again
where the oldest transaction began that was still writing when the last look was taken, and shows
some things twice. Whoever writes says a time of a little before, which `SLACK_MS` allows for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.model.job import State
from duly.model.news import AuditNews, Changes, Cursor, JobNews, News, TickNews
from duly.store import feed_statements as sql
from duly.store.schedules.facts import first_id_at
from duly.store.statements import DAY_MS, HISTORY_BUCKETS, LONGEST_WRITE
from duly.store.steps import Row

if TYPE_CHECKING:
    from duly.store.session import Session

SLACK_MS = 5_000
RUNNING = 500
"""At most so many running jobs are looked at."""


def newest(session: Session, now: int) -> Cursor:
    """Where one begins who wants to see what comes."""
    seq = session.run(sql.NEWEST_ENDED)[0][0] if session.dialect == "sqlite" else 0
    return Cursor(_horizon(session, now), seq)


def changes(session: Session, cursor: Cursor, now: int, limit: int) -> Changes:
    # First, so that whoever writes unseen by what follows has begun after it.
    horizon = _horizon(session, now)
    given: dict[str, Any] = {
        "since": cursor.since,
        "since_id": first_id_at(cursor.since),
        "limit": limit,
    }
    ended, seq = _ended(session, cursor, given, now)
    created = [_job(row) for row in session.run(sql.CREATED_SINCE, given)]
    ticks = [TickNews(*row) for row in session.run(sql.TICKS_SINCE, given)]
    audited = [AuditNews(*row) for row in session.run(sql.AUDITED_SINCE, given)]
    running = [_job(row) for row in session.run(sql.RUNNING_NOW, {"limit": RUNNING})]
    most = max(len(ended), len(created), len(ticks), len(audited))
    news: list[News] = [*ended, *created, *ticks, *audited, *running]
    # A look that begins earlier than the last one would show nothing new.
    return Changes(news, Cursor(max(horizon, cursor.since), seq), whole=most < limit)


def _horizon(session: Session, now: int) -> int:
    milliseconds: float = session.run(LONGEST_WRITE)[0][0]
    return now - round(milliseconds) - SLACK_MS


def _ended(
    session: Session, cursor: Cursor, given: dict[str, Any], now: int
) -> tuple[list[JobNews], int]:
    if session.dialect == "sqlite":
        # Where all of them were removed, numbers begin anew.
        newest = session.run(sql.NEWEST_ENDED)[0][0]
        seq = cursor.seq if newest >= cursor.seq else 0
        rows = session.run(sql.ENDED_SINCE, given | {"seq": seq})
        return [_job(row) for row in rows], rows[-1][-1] if rows else max(newest, 0)
    days = range(cursor.since // DAY_MS, now // DAY_MS + 1)
    buckets = sorted({day % HISTORY_BUCKETS for day in days[-HISTORY_BUCKETS:]})
    rows = session.run(sql.ENDED_SINCE, given | {"buckets": buckets})
    return [_job(row) for row in rows], 0


def _job(row: Row) -> JobNews:
    job_id, function, state, *rest = row[:-1]
    return JobNews(job_id, function, State(state), *rest)
