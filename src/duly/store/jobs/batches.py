"""The members of batches, in the order of the calls, and how many are in each state.

A retry takes the place of the job that it repeats. `place-of` has the first try of each retry, and
`members-of:<batch>` the newest try of each first one. Members that were not retried have no keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from duly.ids import is_id
from duly.model.job import JobRecord, State, TrackedJob, Trigger
from duly.store import steps
from duly.store.jobs.listing import FINAL_LISTED, LIVE_LISTED
from duly.store.session import Session
from duly.store.statements import DAY_MS, Dialect, Statement, Table, both, each
from duly.store.steps import HOLDER_OF_KEY

PLACE_OF, MEMBERS_OF = "place-of", "members-of"
KEPT_MS = 5 * 365 * DAY_MS
"""How long it is known which job took whose place: longer than jobs are kept."""

_TABLES: tuple[Table, ...] = ("jobs", "history", "kept")


def _never_retried(table: Table, dialect: Dialect) -> str:
    key = "t.id::text" if dialect == "postgres" else "t.id"
    return f"""@{table} t WHERE t.batch_id = :id AND t.retry_of IS NULL
        AND NOT EXISTS (SELECT 1 FROM @keys k WHERE k.scope = :scope AND k.key = {key})"""


# One after the other, for the same reason as in `steps.look`.
def _retries(table: Table, dialect: Dialect) -> str:
    if dialect == "sqlite":
        return f"@keys k JOIN @{table} t ON t.id = k.job_id WHERE k.scope = :scope"
    return f"""@keys k CROSS JOIN LATERAL (
            SELECT id, state FROM @{table} WHERE id = k.job_id LIMIT 1) t
        WHERE k.scope = :scope"""


def _counts(dialect: Dialect) -> str:
    parts = [f"SELECT t.state FROM {_never_retried(table, dialect)}" for table in _TABLES]
    parts += [f"SELECT t.state FROM {_retries(table, dialect)}" for table in _TABLES]
    members = " UNION ALL ".join(parts)
    return f"SELECT state, count(*) FROM ({members}) members GROUP BY state"


# One statement, and so one snapshot: a member that moves or is retried meanwhile is counted once.
BATCH_COUNTS = each(sqlite=_counts("sqlite"), postgres=_counts("postgres"))


def _page(dialect: Dialect) -> str:
    text, uuid, plus = ("::text", "::uuid", "") if dialect == "postgres" else ("", "", "+")
    state = f"(:state{text} IS NULL OR t.state = :state{text})"
    parts = [
        f"""SELECT {plus}t.id{text} AS id, {plus}t.id{text} AS place
            FROM {_never_retried(table, dialect)}
            AND t.id > :after{uuid} AND {state} ORDER BY t.id LIMIT :limit"""
        for table in _TABLES
    ]
    parts += [
        f"""SELECT {plus}t.id{text} AS id, {plus}k.key AS place FROM {_retries(table, dialect)}
            AND k.key > :after{text} AND {state} ORDER BY k.key LIMIT :limit"""
        for table in _TABLES
    ]
    every = " UNION ALL ".join(f"SELECT * FROM ({part}) p{n}" for n, part in enumerate(parts))
    order = "place" if dialect == "sqlite" else 'place COLLATE "C"'
    return f"SELECT id, place FROM ({every}) members ORDER BY {order} LIMIT :limit"


# One statement, for the same reason.
MEMBER_IDS = each(sqlite=_page("sqlite"), postgres=_page("postgres"))


def _records(columns: str, table: Table) -> Statement:
    return each(
        sqlite=f"SELECT {columns} FROM @{table} WHERE id IN (SELECT value FROM json_each(:ids))",
        postgres=f"""SELECT t.* FROM unnest(:ids::uuid[]) AS w (id)
            CROSS JOIN LATERAL (SELECT {columns} FROM @{table} WHERE id = w.id LIMIT 1) t""",
    )


LISTED_LIVE = _records(LIVE_LISTED, "jobs")
LISTED_HISTORY = _records(FINAL_LISTED, "history")
LISTED_KEPT = _records(FINAL_LISTED, "kept")
HAS_MEMBERS = both(
    " UNION ALL ".join(
        f"SELECT * FROM (SELECT 1 FROM @{table} WHERE batch_id = :id LIMIT 1) {table}"
        for table in _TABLES
    )
)
SET_KEY = both(
    """INSERT INTO @keys (scope, key, job_id, expires_at)
        VALUES (:scope, :key, :job_id, :expires_at)
        ON CONFLICT (scope, key) DO UPDATE
            SET job_id = excluded.job_id, expires_at = excluded.expires_at"""
)
# The hooks of batches that have not started; a trigger that is about to free one waits for this.
LOCK_HOOKS = each(
    sqlite="""SELECT @id FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))
        AND state = 'pending' AND token = 0""",
    postgres="""SELECT @id FROM @jobs t WHERE id = ANY(:ids::uuid[])
        AND state = 'pending' AND token = 0 ORDER BY t.id FOR UPDATE""",
)
HOLD_HOOKS = each(
    sqlite="""UPDATE @jobs SET hold = 'batch'
        WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres="UPDATE @jobs SET hold = 'batch' WHERE id = ANY(:ids::uuid[])",
)


def batch_counts(session: Session, batch_id: str) -> dict[str, int]:
    """How many members of a batch are in each state, in one snapshot. Only newest tries count."""
    return dict(session.run(BATCH_COUNTS, {"id": batch_id, "scope": _members_of(batch_id)}))


def batch_members(
    session: Session, batch_id: str, state: State | None, after: str, limit: int
) -> list[tuple[str, JobRecord]]:
    """The next members after a place, in the order of the calls, each with its place.

    A place is the id of the first try. The records have the columns that lists show.
    """
    where = {"id": batch_id, "scope": _members_of(batch_id), "state": state}
    found = session.run(MEMBER_IDS, where | {"after": after, "limit": limit})
    records: dict[str, JobRecord] = {}
    # In the order in which jobs move between tables.
    for statement in (LISTED_LIVE, LISTED_HISTORY, LISTED_KEPT):
        missing = [job_id for job_id, _ in found if job_id not in records]
        if missing:
            rows = session.run(statement, {"ids": session.array(missing)})
            records |= {row[0]: steps.record(row) for row in rows}
    return [(place, records[job_id]) for job_id, place in found if job_id in records]


def batch_has_members(session: Session, batch_id: str) -> bool:
    return is_id(batch_id) and bool(session.run(HAS_MEMBERS, {"id": batch_id}))


def replace(session: Session, retries: Sequence[TrackedJob]) -> None:
    """Let new jobs take the places of the members that they repeat (`retry_of`).

    If the hook of their batch has not started, it waits for them too.
    """
    members = [job for job in retries if job.batch_id and job.trigger != Trigger.WEBHOOK]
    for job in members:
        rows = session.run(HOLDER_OF_KEY, {"scope": PLACE_OF, "key": job.retry_of})
        place = rows[0][0] if rows else job.retry_of
        until = {"expires_at": job.created_at + KEPT_MS}
        session.run(SET_KEY, until | {"scope": PLACE_OF, "key": job.id, "job_id": place})
        scope = _members_of(str(job.batch_id))
        session.run(SET_KEY, until | {"scope": scope, "key": place, "job_id": job.id})
    if members:
        batch_ids = sorted({str(job.batch_id) for job in members})
        hooks = session.ids(LOCK_HOOKS, {"ids": session.array(batch_ids)})
        if hooks:
            session.run(HOLD_HOOKS, {"ids": session.array(hooks)})


def _members_of(batch_id: str) -> str:
    return f"{MEMBERS_OF}:{batch_id}"
