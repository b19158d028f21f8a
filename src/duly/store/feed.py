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
    return Cursor(_horizon(session, now), _newest_ended(session))


def sees_writers(session: Session) -> bool:
    """Whether one can know of everybody who writes now; if not, `changes` may miss ends."""
    return bool(session.run(sql.SEES_WRITERS)[0][0])


def changes(session: Session, cursor: Cursor, now: int, limit: int) -> Changes:
    # First, so that whoever writes unseen by what follows has begun after it.
    """What has changed since: at most so many of each kind; some of it may come twice.

    Nothing is left out that has ended, whatever order transactions commit in.
    """
    horizon = _horizon(session, now)
    given: dict[str, Any] = {
        "since": cursor.since,
        "since_id": first_id_at(cursor.since),
        "limit": limit,
    }
    ended, last = _ended(session, cursor, given, now)
    created = [_job(row) for row in session.run(sql.CREATED_SINCE, given)]
    ticks = [TickNews(*row) for row in session.run(sql.TICKS_SINCE, given)]
    audited = [AuditNews(*row) for row in session.run(sql.AUDITED_SINCE, given)]
    running = [_job(row) for row in session.run(sql.RUNNING_NOW, {"limit": RUNNING})]
    most = max(len(ended), len(created), len(ticks), len(audited))
    news: list[News] = [*ended, *created, *ticks, *audited, *running]
    # A look that begins earlier than the last one would show nothing new.
    after = Cursor(max(horizon, cursor.since), _newest_ended(session) if last is None else last)
    return Changes(news, after, whole=most < limit and last is not None)


def _horizon(session: Session, now: int) -> int:
    milliseconds: float = session.run(LONGEST_WRITE)[0][0]
    return now - round(milliseconds) - SLACK_MS


def _newest_ended(session: Session) -> str:
    rows = session.run(sql.NEWEST_ENDED) if session.dialect == "sqlite" else []
    return rows[0][0] if rows else ""


def _ended(
    session: Session, cursor: Cursor, given: dict[str, Any], now: int
) -> tuple[list[JobNews], str | None]:
    """Jobs that have ended, and the last of them; None where nobody knows which they are."""
    if session.dialect == "sqlite":
        place = session.run(sql.PLACE_OF_ENDED, {"id": cursor.ended}) if cursor.ended else [(0,)]
        if not place:
            # Retention has removed it, and perhaps others that ended later.
            return [], None
        rows = session.run(sql.ENDED_SINCE, given | {"seq": place[0][0]})
        return [_job(row) for row in rows], rows[-1][0] if rows else cursor.ended
    days = range(cursor.since // DAY_MS, now // DAY_MS + 1)
    buckets = sorted({day % HISTORY_BUCKETS for day in days[-HISTORY_BUCKETS:]})
    rows = session.run(sql.ENDED_SINCE, given | {"buckets": buckets})
    return [_job(row) for row in rows], ""


def _job(row: Row) -> JobNews:
    job_id, function, state, *rest = row[:-1]
    return JobNews(job_id, function, State(state), *rest)
