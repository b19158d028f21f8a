"""The statements about received webhooks; as in statements.py."""

from __future__ import annotations

from collections.abc import Collection

from duly.model.inbox import EventState
from duly.store.statements import Dialect, Statement, both, each

_FIELDS = "id webhook delivery type entity owner headers received_at job_id".split()
_COLUMNS = ", ".join(_FIELDS)
_READ = each(
    sqlite=", ".join(f"+{name}" for name in _FIELDS),
    postgres=", ".join(f"{name}::text" if name in ("id", "job_id") else name for name in _FIELDS),
)

INSERT_EVENT = both(
    f"""INSERT INTO @inbox ({_COLUMNS}, body)
        VALUES ({", ".join(f":{name}" for name in _FIELDS)}, :body)
        ON CONFLICT (webhook, delivery) DO NOTHING RETURNING 1"""
)
EVENT_OF_DELIVERY = each(
    sqlite="SELECT id FROM @inbox WHERE webhook = :webhook AND delivery = :delivery",
    postgres="SELECT id::text FROM @inbox WHERE webhook = :webhook AND delivery = :delivery",
)
POINT_EVENT = both("UPDATE @inbox SET job_id = :job_id WHERE id = :id")
POINT_TO_RETRY = both("UPDATE @inbox SET job_id = :job_id WHERE job_id = :retry_of")
GET_EVENT = each(
    sqlite=f"SELECT {_READ.sqlite}, +body FROM @inbox WHERE id = :id",
    postgres=f"SELECT {_READ.postgres}, body FROM @inbox WHERE id = :id",
)
# Of many who retry it at once, one after the other sees what the others have done.
LOCK_EVENT = each(
    sqlite="SELECT job_id FROM @inbox WHERE id = :id",
    postgres="SELECT job_id::text FROM @inbox WHERE id = :id FOR UPDATE",
)

# The newest unfinished job of an entity. It is written to, so that whoever ends it at the same time
# is done before this looks, or sees afterwards who waits for it, in whatever isolation.
_LAST_IN_LINE = "FROM @jobs WHERE trigger = 'webhook' AND batch_id = :line ORDER BY id DESC LIMIT 1"
LAST_IN_LINE = each(
    sqlite=f"SELECT id {_LAST_IN_LINE}",
    postgres=f"""UPDATE @jobs SET batch_id = batch_id
        WHERE id = (SELECT id {_LAST_IN_LINE} FOR UPDATE) RETURNING id::text""",
)

_JOB = "state, attempt, error_message"


def _jobs_sqlite(table: str, canceled_by: str) -> str:
    return f"""SELECT id, {_JOB}, {canceled_by} FROM {table}
        WHERE id IN (SELECT value FROM json_each(:ids))"""


def _jobs_postgres(table: str, canceled_by: str) -> str:
    return f"""SELECT w.id::text, j.* FROM unnest(:ids::uuid[]) AS w (id)
        CROSS JOIN LATERAL (
            SELECT {_JOB}, {canceled_by} FROM {table} WHERE id = w.id LIMIT 1) j"""


def _jobs(canceled_by: str, *tables: str) -> Statement:
    return each(
        sqlite=" UNION ALL ".join(_jobs_sqlite(table, canceled_by) for table in tables),
        postgres=" UNION ALL ".join(_jobs_postgres(table, canceled_by) for table in tables),
    )


LIVE_OF_EVENTS = _jobs("NULL AS canceled_by", "@jobs")
ENDED_OF_EVENTS = _jobs("canceled_by", "@history", "@kept")


# Which events may be in a state: by the ids of their jobs, or by their own. One that came while a
# job with the same key was there has that one, whoever had called it, and so an older one.
_UNPROCESSED = "trigger = 'webhook' AND state IN ('failed', 'canceled')"


def _told_by(**tables: str) -> Statement:
    """Ids of jobs in these tables, and of those that were there before their events."""
    own = [f"SELECT @id FROM @{table} WHERE {where}" for table, where in tables.items()]

    def text(*parts: str) -> str:
        cut = [f"SELECT * FROM ({part} LIMIT :most) p{n}" for n, part in enumerate(parts)]
        return " UNION ALL ".join(cut)

    return each(
        sqlite=text(*own, "SELECT job_id FROM @inbox WHERE job_id < id"),
        postgres=text(*own, "SELECT job_id::text FROM @inbox WHERE job_id < id"),
    )


PENDING_EVENTS = _told_by(jobs="trigger = 'webhook' AND state = 'pending'")
PROCESSING_EVENTS = _told_by(jobs="trigger = 'webhook' AND worker_id IS NOT NULL")
FAILED_EVENTS = _told_by(history=_UNPROCESSED, kept=_UNPROCESSED)
FILTERED_EVENTS = both("SELECT @id FROM @inbox WHERE job_id IS NULL LIMIT :most")
IN_STATE = {
    EventState.PENDING: (PENDING_EVENTS, "job_ids"),
    EventState.PROCESSING: (PROCESSING_EVENTS, "job_ids"),
    EventState.FAILED: (FAILED_EVENTS, "job_ids"),
    EventState.FILTERED: (FILTERED_EVENTS, "ids"),
}
"""Processed ones are many."""


def list_events(given: Collection[str]) -> Statement:
    """The statement that lists the inbox without bodies, newest first."""

    def text(dialect: Dialect) -> str:
        terms = {
            "webhook": "webhook = :webhook",
            "owner": "owner = :owner",
            "before_id": "i.id < :before_id",
            "ids": f"i.id {_one_of('ids', dialect)}",
            "job_ids": f"job_id {_one_of('job_ids', dialect)}",
        }
        chosen = [term for name, term in terms.items() if name in given]
        where = "WHERE " + " AND ".join(chosen) if chosen else ""
        read = getattr(_READ, dialect)
        return f"SELECT {read} FROM @inbox i {where} ORDER BY i.id DESC LIMIT :limit"

    return each(sqlite=text("sqlite"), postgres=text("postgres"))


def _one_of(name: str, dialect: Dialect) -> str:
    if dialect == "sqlite":
        return f"IN (SELECT value FROM json_each(:{name}))"
    return f"= ANY(:{name}::uuid[])"


OLD_EVENTS = each(
    sqlite="SELECT id, received_at FROM @inbox WHERE id > :after ORDER BY id LIMIT :limit",
    postgres="""SELECT i.id::text, received_at FROM @inbox i WHERE i.id > :after
        ORDER BY i.id LIMIT :limit""",
)
_WITHOUT_JOB = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} j WHERE j.id = job_id)"
    for table in ("@jobs", "@history", "@kept")
)
FORGET_EVENTS = each(
    sqlite=f"""DELETE FROM @inbox WHERE id IN (SELECT value FROM json_each(:ids))
        AND {_WITHOUT_JOB} RETURNING 1""",
    postgres=f"DELETE FROM @inbox WHERE id = ANY(:ids::uuid[]) AND {_WITHOUT_JOB} RETURNING 1",
)
