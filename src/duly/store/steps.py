"""The verbs that also work in a user's transaction, without the I/O.

Each is a generator: it yields the statements to run and is sent their rows. duly's own sessions run
it on their connection, `handles.py` on the user's, for any driver, sync or async.
"""

from __future__ import annotations

from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple, TypeVar

import msgspec

from duly import fault
from duly.errors import IsolationTooHigh, StoreUnavailable
from duly.ids import is_id
from duly.model.job import (
    JobFilter,
    JobRecord,
    KeyedJob,
    KeyEntry,
    Kind,
    NewJob,
    State,
    TrackedJob,
)
from duly.model.progress import LogEntry, Look, ProgressReport
from duly.model.stored_values import word
from duly.store import statements as sql
from duly.store.jobs.finish import BUCKET, FINAL, MOVED
from duly.store.jobs.listing import FINAL_RECORD, LIVE_RECORD, list_jobs, parameters_of, tables_for
from duly.store.statements import (
    Dialect,
    Fields,
    Statement,
    both,
    each,
)

_NEW = Fields(NewJob.__struct_fields__)
TRACKED_COLUMNS = Fields(TrackedJob.__struct_fields__)
# Checked before it is read: on PostgreSQL a failing statement would end the user's transaction.
HAS_META = each(
    sqlite="SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = '@meta'",
    postgres="SELECT 1 WHERE to_regclass('@meta') IS NOT NULL",
)
READ_STORE_ID = each(
    sqlite="SELECT +value FROM main.@meta WHERE key = 'store_id'",
    postgres="SELECT value FROM @meta WHERE key = 'store_id'",
)
DATABASE_NAME = each(
    sqlite="SELECT +file FROM pragma_database_list WHERE name = 'main'",
    postgres="SELECT current_database()::text",
)


def _insert(fields: Fields) -> Statement:
    into = f"INSERT INTO @jobs ({fields.columns})"
    return each(
        sqlite=f"{into} VALUES ({fields.values})",
        postgres=f"{into} SELECT * FROM unnest({fields.arrays})",
    )


INSERT_JOBS = _insert(_NEW)
INSERT_TRACKED = _insert(TRACKED_COLUMNS)
_NOTIFY = "SELECT pg_notify('duly', '')"
# The same, and wake waiting workers on commit (PostgreSQL only).
INSERT_JOBS_AND_NOTIFY = both(f"WITH stored AS ({INSERT_JOBS.postgres}) {_NOTIFY}")
INSERT_TRACKED_AND_NOTIFY = both(f"WITH stored AS ({INSERT_TRACKED.postgres}) {_NOTIFY}")
LIVE_IDS = each(
    sqlite="SELECT @id FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))",
    postgres="SELECT @id FROM @jobs WHERE id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE",
)
# The same for jobs that must not have started meanwhile.
PENDING_IDS = each(
    sqlite=f"{LIVE_IDS.sqlite} AND state = 'pending'",
    postgres="""SELECT @id FROM @jobs WHERE id = ANY(:ids::uuid[]) AND state = 'pending'
        ORDER BY id FOR UPDATE""",
)
# The isolation level of a user's transaction (PostgreSQL only), and whether a cancel in it has to
# see what other transactions commit meanwhile: the children of a job that has run, or other members
# of its batch. Above READ COMMITTED, a row that changes after this look cannot be locked any more.
CANCEL_NEEDS = both(
    """SELECT current_setting('transaction_isolation'), EXISTS (SELECT 1 FROM @jobs
        WHERE id = :id AND (token > 0 OR batch_id IS NOT NULL))"""
)
CHILD_IDS = each(
    sqlite="SELECT @id FROM @jobs WHERE parent_id IN (SELECT value FROM json_each(:ids))",
    postgres="SELECT @id FROM @jobs WHERE parent_id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE",
)
# Moves live rows that the same transaction has locked.
MOVE_CANCELED = each(
    sqlite=f"""INSERT INTO @history ({FINAL})
        SELECT {MOVED}, 'canceled', :now, NULL, :error_kind, :error_message, NULL,
            CASE WHEN :from_parent THEN 'parent:' || parent_id ELSE :by END, 0
        FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres=f"""WITH gone AS (
            DELETE FROM @jobs WHERE id = ANY(:ids::uuid[]) RETURNING {MOVED}
        )
        INSERT INTO @history ({FINAL}, bucket)
        SELECT {MOVED}, 'canceled', :now::int8, NULL, :error_kind::text, :error_message::text,
            NULL, CASE WHEN :from_parent::bool THEN 'parent:' || parent_id ELSE :by::text END,
            false, {BUCKET}
        FROM gone""",
)
FORGET_CANCELED = both("DELETE FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))")
GET_LIVE = both(f"SELECT {LIVE_RECORD} FROM @jobs WHERE id = :id")
GET_HISTORY = both(f"SELECT {FINAL_RECORD} FROM @history WHERE id = :id")
GET_KEPT = both(f"SELECT {FINAL_RECORD} FROM @kept WHERE id = :id")
HOLDER_OF_KEY = each(
    sqlite="SELECT job_id FROM @keys WHERE scope = :scope AND key = :key",
    postgres="SELECT job_id::text FROM @keys WHERE scope = :scope AND key = :key",
)
# Only the running attempt may report, and of two reports the later one is kept.
REPORT = each(
    sqlite="""INSERT INTO @progress (job_id, value, note, revision, updated_at)
        SELECT f.id, f.value, f.note, f.revision, f.updated_at
        FROM (SELECT ? AS id, ? AS token, ? AS revision, ? AS value, ? AS note, ? AS updated_at) f
        WHERE EXISTS (SELECT 1 FROM @jobs WHERE id = f.id AND token = f.token)
        ON CONFLICT (job_id) DO UPDATE SET value = excluded.value, note = excluded.note,
            revision = excluded.revision, updated_at = excluded.updated_at
        WHERE excluded.revision > @progress.revision""",
    postgres="""INSERT INTO @progress AS p (job_id, value, note, revision, updated_at)
        SELECT f.id, f.value, f.note, f.revision, f.updated_at
        FROM unnest(:job_id::uuid[], :token::int4[], :revision::int8[], :value::float8[],
            :note::text[], :updated_at::int8[]) AS f (id, token, revision, value, note, updated_at)
        CROSS JOIN LATERAL (SELECT 1 FROM @jobs WHERE id = f.id AND token = f.token LIMIT 1) runs
        ORDER BY f.id
        ON CONFLICT (job_id) DO UPDATE SET value = excluded.value, note = excluded.note,
            revision = excluded.revision, updated_at = excluded.updated_at
        WHERE excluded.revision > p.revision""",
)
# A line that was stored although the answer was lost is not stored twice.
WRITE_LOGS = each(
    sqlite="""INSERT INTO @logs (job_id, seq, logged_at, level, line) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING""",
    postgres="""INSERT INTO @logs (job_id, seq, logged_at, level, line)
        SELECT * FROM unnest(:job_id::uuid[], :seq::int8[], :logged_at::int8[], :level::text[],
            :line::text[])
        ON CONFLICT DO NOTHING""",
)
# The progress of a workflow belongs to the whole run, not only to its latest claim.
_REVISION = """CASE WHEN kind = 'workflow'
    THEN (((CAST(token AS bigint) - 1) | 1) << 32) | (p.revision & 4294967295)
    ELSE p.revision END"""


def _look_sqlite(table: str) -> str:
    return f"""SELECT +t.id, +state, +token, +attempt, +value, +note, {_REVISION},
            +updated_at
        FROM {table} t LEFT JOIN @progress p ON p.job_id = t.id
        WHERE t.id IN (SELECT value FROM json_each(:ids))"""


# One job after the other: a plan that was made while a table was empty would read all of it, even
# after it has grown.
def _look_postgres(table: str) -> str:
    return f"""SELECT w.id::text, state, token, attempt, value, note,
            {_REVISION}, updated_at
        FROM unnest(:ids::uuid[]) AS w (id)
        CROSS JOIN LATERAL (
            SELECT state, token, attempt, kind FROM {table} WHERE id = w.id LIMIT 1) t
        LEFT JOIN LATERAL (SELECT value, note, revision, updated_at FROM @progress
            WHERE job_id = w.id LIMIT 1) p ON true"""


def _look(*tables: str) -> Statement:
    """The state, progress and latest log line of jobs in these tables."""
    return each(
        sqlite=" UNION ALL ".join(map(_look_sqlite, tables)),
        postgres=" UNION ALL ".join(map(_look_postgres, tables)),
    )


LOOK_LIVE = _look("@jobs")
LOOK_ENDED = _look("@history", "@kept")
INSERT_TRACES = each(
    sqlite="INSERT INTO @traces (job_id, parent) VALUES (?, ?) ON CONFLICT DO NOTHING",
    postgres="""INSERT INTO @traces (job_id, parent)
        SELECT * FROM unnest(:job_id::uuid[], :parent::text[]) ON CONFLICT DO NOTHING""",
)
# A job that is stored only if no other job holds its keys. It waits for uncommitted holders.
INSERT_KEYED = both(
    f"""INSERT INTO @jobs ({TRACKED_COLUMNS.columns}) VALUES ({TRACKED_COLUMNS.named})
        ON CONFLICT DO NOTHING RETURNING 1"""
)
# The holder of the keys; the job itself, if it was stored and only the answer was lost.
KEY_HOLDER = both(
    """SELECT @id FROM @jobs WHERE id = :id
        UNION ALL SELECT @id FROM @jobs WHERE unique_key = :unique_key
        UNION ALL SELECT @id FROM @jobs WHERE pending_key = :pending_key LIMIT 1"""
)
# It has not started, or it would no longer have the key; a later call decides when it will. If a
# worker has claimed it, the call takes it back: the worker finds another token when it wants to
# start the body.
_IF_CLAIMED = "CASE state WHEN 'running' THEN 1 ELSE 0 END"
DEBOUNCE = both(
    f"""UPDATE @jobs SET args = :args, run_at = :run_at, expires_at = :expires_at,
            hold = CASE WHEN hold = 'key' THEN NULL ELSE hold END, state = 'pending',
            token = token + {_IF_CLAIMED}, attempt = attempt - {_IF_CLAIMED}, worker_id = NULL,
            started_at = NULL, deadline_at = NULL
        WHERE pending_key = :pending_key RETURNING @id"""
)
# An idempotency key belongs to a run of a workflow until it has ended, however long that takes.
KEEP_KEY = both(
    """INSERT INTO @keys AS k (scope, key, job_id, expires_at)
        VALUES (:scope, :key, :job_id, :expires_at)
        ON CONFLICT (scope, key) DO UPDATE
            SET job_id = excluded.job_id, expires_at = excluded.expires_at
            WHERE k.expires_at <= :now AND NOT (k.scope = 'idempotency' AND EXISTS (
                SELECT 1 FROM @jobs WHERE id = k.job_id AND kind = 'workflow')) RETURNING 1"""
)
PASS_KEY = both(
    """UPDATE @keys SET job_id = :holder
        WHERE scope = :scope AND key = :key AND job_id = :job_id"""
)
NOTIFY = both(_NOTIFY)


Row = tuple[Any, ...]
T = TypeVar("T")


class Ask(NamedTuple):
    """One request: a statement, or a composed text, and its parameters (or many rows of them)."""

    statement: Statement | str
    parameters: Mapping[str, Any] | Sequence[Row] = {}


Steps = Generator[Ask, list[Row], T]


def drive(steps: Steps[T], answer: Callable[[Ask], list[Row]]) -> T:
    """Run the steps to the end."""
    try:
        ask = next(steps)
        while True:
            ask = steps.send(answer(ask))
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(steps: Steps[T], answer: Callable[[Ask], Awaitable[list[Row]]]) -> T:
    """Run the steps to the end; the answers are awaited."""
    try:
        ask = next(steps)
        while True:
            ask = steps.send(await answer(ask))
    except StopIteration as end:
        value: T = end.value
        return value


# Enqueue -----------------------------------------------------------------------------------------


def insert(
    dialect: Dialect, jobs: Sequence[NewJob], *, notify: bool = False
) -> Steps[dict[str, str]]:
    """Store new jobs. `notify` lets PostgreSQL wake workers, once, on commit.

    Returns, for the id of each job that was not stored because its key is held, the holder's id.
    """
    keyed = keyed_of(jobs)
    existing = (yield from insert_keyed(keyed)) if keyed else {}
    plain = without(jobs, keyed, existing) if keyed else jobs
    notify = notify and dialect == "postgres"
    if plain:
        # One statement, because on PostgreSQL it may run on its own; most calls need the shorter
        # one.
        tracked = any(isinstance(job, TrackedJob) for job in plain)
        fields = TRACKED if tracked else NEW
        values = (rows if dialect == "sqlite" else columns)(plain, fields)
        yield Ask(_INSERTS[tracked, notify], values)
    yield from insert_traces(dialect, jobs, existing)
    fault.point("enqueue.inserted")
    if notify and not plain:
        yield Ask(NOTIFY)
    return existing


_INSERTS = {
    # By whether some are tracked, and whether to notify workers.
    (False, False): INSERT_JOBS,
    (True, False): INSERT_TRACKED,
    (False, True): INSERT_JOBS_AND_NOTIFY,
    (True, True): INSERT_TRACKED_AND_NOTIFY,
}


def keyed_of(jobs: Iterable[NewJob]) -> list[KeyedJob]:
    """The jobs that are stored only if their keys are free."""
    return [job for job in jobs if isinstance(job, KeyedJob) and job.has_keys]


def insert_traces(
    dialect: Dialect, jobs: Iterable[NewJob], existing: Mapping[str, str]
) -> Steps[None]:
    """Record which of the stored jobs belong to a trace."""
    traced = [
        Trace(job.id, job.trace)
        for job in jobs
        if isinstance(job, KeyedJob) and job.trace is not None and job.id not in existing
    ]
    if traced:
        yield Ask(INSERT_TRACES, many(dialect, traced, Trace))


class Trace(NamedTuple):
    job_id: str
    parent: str


def without(
    jobs: Sequence[NewJob], keyed: Sequence[KeyedJob], existing: Mapping[str, str]
) -> list[NewJob]:
    """The other jobs. A hook must not wait for a job or a batch that was not stored."""
    absent = [job for job in keyed if job.id in existing]
    done = {job.id for job in keyed} | {job.hook_id for job in absent}
    members = [job for job in jobs if isinstance(job, TrackedJob) and job.id not in existing]
    empty = {job.batch_id for job in absent} - {job.batch_id for job in members}
    return [
        msgspec.structs.replace(job, hold=None) if job.id in empty else job
        for job in jobs
        if job.id not in done
    ]


# Keys --------------------------------------------------------------------------------------------

KEY_TRIES = 20


def insert_keyed(jobs: Iterable[KeyedJob]) -> Steps[dict[str, str]]:
    """Store jobs whose keys are free. Return the holders of the other jobs' keys, by job id."""
    existing: dict[str, str] = {}
    # Sorted, so that two callers that want the same keys do not deadlock.
    for job in sorted(jobs, key=_by_key):
        holder = yield from _insert_one(job)
        if holder != job.id:
            existing[job.id] = holder
    return existing


def _by_key(job: KeyedJob) -> tuple[str, str, list[str]]:
    # For equal keys the earliest call comes first: the sort is stable.
    return job.pending_key or "", job.unique_key or "", [entry.key for entry in job.entries]


def _insert_one(job: KeyedJob) -> Steps[str]:
    """The id of the job that holds the keys now."""
    for entry in job.entries:
        holder = yield from _keep(job, entry)
        if holder != job.id:
            yield from _pass_entries(job, holder)
            return holder
    values = {name: getattr(job, name) for name in TRACKED}
    for _ in range(KEY_TRIES):
        if (yield Ask(INSERT_KEYED, values)):
            return job.id
        other = yield from _holder_of(job)
        if other is not None:
            if other != job.id:
                yield from _pass_entries(job, other)
            return other
        # The holder has started or ended between the two statements: try again.
    raise StoreUnavailable(f"another job of {job.function} took its key each time; try again")


def _holder_of(job: KeyedJob) -> Steps[str | None]:
    """The job that holds the keys; a debounced call replaces its arguments."""
    pending = job.pending_key
    if job.debounced:
        changed = {"args": job.args, "run_at": job.run_at, "expires_at": job.expires_at}
        rows = yield Ask(DEBOUNCE, changed | {"pending_key": pending})
        if rows:
            return str(rows[0][0])
        pending = None
    keys = {"pending_key": pending, "unique_key": job.unique_key}
    rows = yield Ask(KEY_HOLDER, keys | {"id": job.id})
    return str(rows[0][0]) if rows else None


def _keep(job: KeyedJob, entry: KeyEntry) -> Steps[str]:
    """Take a key that outlives its job, unless it is held. Return the holder."""
    which = {"scope": entry.scope, "key": entry.key}
    for _ in range(KEY_TRIES):
        until = {"expires_at": entry.expires_at, "now": job.created_at}
        if (yield Ask(KEEP_KEY, which | until | {"job_id": job.id})):
            return job.id
        rows = yield Ask(HOLDER_OF_KEY, which)
        if rows:
            return str(rows[0][0])
    raise StoreUnavailable(f"another job of {job.function} took its key each time; try again")


def _pass_entries(job: KeyedJob, holder: str) -> Steps[None]:
    """The call returned another job. A repeat must return it too, even after that job has ended."""
    for entry in job.entries:
        which = {"scope": entry.scope, "key": entry.key, "job_id": job.id}
        yield Ask(PASS_KEY, which | {"holder": holder})


NEW, TRACKED = NewJob.__struct_fields__, TrackedJob.__struct_fields__


def rows(jobs: Sequence[NewJob], fields: Sequence[str] = NEW) -> list[Row]:
    if fields is NEW:
        return [msgspec.structs.astuple(job)[: len(NEW)] for job in jobs]
    return [tuple([getattr(job, name, None) for name in fields]) for job in jobs]


def columns(jobs: Sequence[NewJob], fields: Sequence[str] = NEW) -> dict[str, Any]:
    """The fields of many jobs, each as one array."""
    by_field = zip(*rows(jobs, fields), strict=True)
    return {name: list(column) for name, column in zip(fields, by_field, strict=True)}


# Reading -----------------------------------------------------------------------------------------


def get(job_id: str) -> Steps[JobRecord | None]:
    """Live first, then history: a single statement over both can miss a row that moves."""
    if not is_id(job_id):
        return None
    for statement in (GET_LIVE, GET_HISTORY, GET_KEPT):
        rows = yield Ask(statement, {"id": job_id})
        if rows:
            return record(rows[0])
    return None


def find(filter: JobFilter) -> Steps[list[JobRecord]]:
    found: dict[str, JobRecord] = {}
    for table in tables_for(filter):
        rows = yield Ask(list_jobs(filter, table), parameters_of(filter))
        found |= {row[0]: record(row) for row in rows}
    newest_first = sorted(found.values(), key=lambda job: job.id, reverse=True)
    return newest_first[: filter.limit]


def record(row: Row) -> JobRecord:
    """A job from a row of one of the three job tables."""
    fields = named(JobRecord, row)
    fields["kind"] = word(fields["kind"], Kind, Kind.ACTION)
    fields["state"] = word(fields["state"], State, State.FAILED)
    return JobRecord(**fields)


def named(kind: type[msgspec.Struct], row: Row) -> dict[str, Any]:
    """The columns of a row by field name; the other fields have defaults."""
    return dict(zip(kind.__struct_fields__, row, strict=False))


# Progress and log lines --------------------------------------------------------------------------


def report(
    dialect: Dialect, progress: Sequence[ProgressReport], lines: Sequence[LogEntry]
) -> Steps[None]:
    """Store the reports of running attempts."""
    if progress:
        yield Ask(REPORT, many(dialect, progress, ProgressReport))
    if lines:
        yield Ask(WRITE_LOGS, many(dialect, lines, LogEntry))


def look(dialect: Dialect, job_ids: Collection[str]) -> Steps[list[Look]]:
    """Reads live jobs first, then finished ones. See `get`."""
    wanted = {job_id for job_id in job_ids if is_id(job_id)}
    found: dict[str, Look] = {}
    for statement in (LOOK_LIVE, LOOK_ENDED):
        missing = [job_id for job_id in wanted if job_id not in found]
        if missing:
            rows = yield Ask(statement, {"ids": array(dialect, missing)})
            for job_id, state, *rest in rows:
                found[job_id] = Look(job_id, word(state, State, State.FAILED), *rest)
    return list(found.values())


def many(dialect: Dialect, values: Sequence[Row], kind: type[NamedTuple]) -> Any:
    """Many rows, as the dialect takes them."""
    if dialect == "sqlite":
        return list(values)
    by_field = zip(*values, strict=True)
    return {name: list(column) for name, column in zip(kind._fields, by_field, strict=True)}


# Cancel ------------------------------------------------------------------------------------------


def cancel(dialect: Dialect, job_id: str, by: str, now: int) -> Steps[bool | None]:
    if not is_id(job_id):
        return None
    if (yield from cancel_live(dialect, [job_id], by, now)):
        return True
    return None if (yield from get(job_id)) is None else False


def cancel_for_user(dialect: Dialect, job_id: str, by: str, now: int) -> Steps[bool | None]:
    """The same in a user's transaction, which may have any isolation level."""
    if dialect == "postgres" and is_id(job_id):
        [(level, needs_to_see)] = yield Ask(CANCEL_NEEDS, {"id": job_id})
        if needs_to_see and level in sql.SNAPSHOT_LEVELS:
            raise IsolationTooHigh(job_id, level)
    return (yield from cancel(dialect, job_id, by, now))


def cancel_live(
    dialect: Dialect, job_ids: Iterable[str], by: str, now: int, *, only_pending: bool = False
) -> Steps[int]:
    """Cancel the unfinished ones, and descendants that are reached through unfinished jobs."""
    which = PENDING_IDS if only_pending else LIVE_IDS
    level = _ids((yield Ask(which, {"ids": array(dialect, job_ids)})))
    if level:
        yield from move_canceled(dialect, level, now, by=by)
        fault.point("cancel.moved")
    return len(level) + (yield from cancel_children(dialect, level, now))


def cancel_children(dialect: Dialect, parent_ids: Sequence[str], now: int) -> Steps[int]:
    """Cancel the unfinished children of jobs that have ended, and their descendants."""
    canceled = 0
    level = parent_ids
    while level:
        # A new statement, so that children committed meanwhile are seen.
        level = _ids((yield Ask(CHILD_IDS, {"ids": array(dialect, level)})))
        if level:
            yield from move_canceled(dialect, level, now, from_parent=True)
            fault.point("cancel.moved")
            canceled += len(level)
    return canceled


def move_canceled(
    dialect: Dialect,
    job_ids: Sequence[str],
    now: int,
    *,
    by: str | None = None,
    from_parent: bool = False,
    error_kind: str | None = None,
    error_message: str | None = None,
) -> Steps[None]:
    """Move live rows that the same transaction has locked to history."""
    which = {"ids": array(dialect, job_ids)}
    how = {
        "now": now,
        "by": by,
        "from_parent": from_parent,
        "error_kind": error_kind,
        "error_message": error_message,
    }
    yield Ask(MOVE_CANCELED, which | how)
    if dialect == "sqlite":
        yield Ask(FORGET_CANCELED, which)


def array(dialect: Dialect, values: Iterable[str]) -> Any:
    """Many strings as one parameter."""
    many = list(values)
    return msgspec.json.encode(many).decode() if dialect == "sqlite" else many


def _ids(rows: Iterable[Row]) -> list[str]:
    return [row[0] for row in rows]


# Whose database ----------------------------------------------------------------------------------


def store_id() -> Steps[str | None]:
    """The id of this database's store; None if duly's tables do not exist."""
    if not (yield Ask(HAS_META)):
        return None
    rows = yield Ask(READ_STORE_ID)
    return rows[0][0] if rows else None


def database_name() -> Steps[str]:
    rows = yield Ask(DATABASE_NAME)
    return str(rows[0][0])
