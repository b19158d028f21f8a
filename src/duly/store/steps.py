"""The verbs that also work in somebody else's transaction, without the I/O.

Each is a generator: it yields what to ask the database and is sent the rows. duly's own sessions
run it on their connection, `borrow.py` on the user's, whatever its driver and colour.
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
from duly.model.stored import word
from duly.store import statements as sql
from duly.store.statements import Dialect, Statement

Row = tuple[Any, ...]
T = TypeVar("T")


class Ask(NamedTuple):
    """One question: a statement, or a composed text, and its parameters (or many rows of them)."""

    statement: Statement | str
    parameters: Mapping[str, Any] | Sequence[Row] = {}


Steps = Generator[Ask, list[Row], T]


def drive(steps: Steps[T], answer: Callable[[Ask], list[Row]]) -> T:
    """Take the steps to their end."""
    try:
        ask = next(steps)
        while True:
            ask = steps.send(answer(ask))
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(steps: Steps[T], answer: Callable[[Ask], Awaitable[list[Row]]]) -> T:
    """Take the steps to their end; the answers are awaited."""
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
    """Store new jobs; `notify` lets PostgreSQL wake workers, once, when they are committed.

    By the id of each that was not stored, because somebody holds its key, the holder's.
    """
    keyed = keyed_of(jobs)
    existing = (yield from insert_keyed(keyed)) if keyed else {}
    plain = without(jobs, keyed, existing) if keyed else jobs
    notify = notify and dialect == "postgres"
    if plain:
        # One statement, for on PostgreSQL it may stand alone; most need the shorter one.
        tracked = any(isinstance(job, TrackedJob) for job in plain)
        fields = TRACKED if tracked else NEW
        values = (rows if dialect == "sqlite" else columns)(plain, fields)
        yield Ask(_INSERTS[tracked, notify], values)
    yield from insert_traces(dialect, jobs, existing)
    fault.point("enqueue.inserted")
    if notify and not plain:
        yield Ask(sql.NOTIFY)
    return existing


_INSERTS = {
    # By whether some are tracked, and whether workers are told.
    (False, False): sql.INSERT_JOBS,
    (True, False): sql.INSERT_TRACKED,
    (False, True): sql.INSERT_JOBS_AND_NOTIFY,
    (True, True): sql.INSERT_TRACKED_AND_NOTIFY,
}


def keyed_of(jobs: Iterable[NewJob]) -> list[KeyedJob]:
    """Those that are stored only if nobody holds their keys."""
    return [job for job in jobs if isinstance(job, KeyedJob) and job.has_keys]


def insert_traces(
    dialect: Dialect, jobs: Iterable[NewJob], existing: Mapping[str, str]
) -> Steps[None]:
    """Note which of the jobs that were stored belong to a trace."""
    traced = [
        Trace(job.id, job.trace)
        for job in jobs
        if isinstance(job, KeyedJob) and job.trace is not None and job.id not in existing
    ]
    if traced:
        yield Ask(sql.INSERT_TRACES, many(dialect, traced, Trace))


class Trace(NamedTuple):
    job_id: str
    parent: str


def without(
    jobs: Sequence[NewJob], keyed: Sequence[KeyedJob], existing: Mapping[str, str]
) -> list[NewJob]:
    """The other jobs. A hook must not wait for a job that was not stored, nor for such a batch."""
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
    """Store jobs whose keys nobody holds; by the id of each other one, who holds them."""
    existing: dict[str, str] = {}
    # In one order, so that two who want the same keys do not wait for each other.
    for job in sorted(jobs, key=_by_key):
        holder = yield from _insert_one(job)
        if holder != job.id:
            existing[job.id] = holder
    return existing


def _by_key(job: KeyedJob) -> tuple[str, str, list[str]]:
    # Of the same keys the earliest call first: the sort is stable.
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
        if (yield Ask(sql.INSERT_KEYED, values)):
            return job.id
        other = yield from _holder_of(job)
        if other is not None:
            if other != job.id:
                yield from _pass_entries(job, other)
            return other
        # Whoever held the key has started or ended between the two: try again.
    raise StoreUnavailable(f"the key of {job.function} kept changing hands; try again")


def _holder_of(job: KeyedJob) -> Steps[str | None]:
    """The job that stands in the way; a debounced call leaves its arguments there."""
    pending = job.pending_key
    if job.debounced:
        changed = {"args": job.args, "run_at": job.run_at, "expires_at": job.expires_at}
        rows = yield Ask(sql.DEBOUNCE, changed | {"pending_key": pending})
        if rows:
            return str(rows[0][0])
        pending = None
    keys = {"pending_key": pending, "unique_key": job.unique_key}
    rows = yield Ask(sql.KEY_HOLDER, keys | {"id": job.id})
    return str(rows[0][0]) if rows else None


def _keep(job: KeyedJob, entry: KeyEntry) -> Steps[str]:
    """Take a key that outlives its job, unless somebody has it; who has it then."""
    which = {"scope": entry.scope, "key": entry.key}
    for _ in range(KEY_TRIES):
        until = {"expires_at": entry.expires_at, "now": job.created_at}
        if (yield Ask(sql.KEEP_KEY, which | until | {"job_id": job.id})):
            return job.id
        rows = yield Ask(sql.HOLDER_OF_KEY, which)
        if rows:
            return str(rows[0][0])
    raise StoreUnavailable(f"the key of {job.function} kept changing hands; try again")


def _pass_entries(job: KeyedJob, holder: str) -> Steps[None]:
    """The call was answered with another job: so will be a repeat, also when that has ended."""
    for entry in job.entries:
        which = {"scope": entry.scope, "key": entry.key, "job_id": job.id}
        yield Ask(sql.PASS_KEY, which | {"holder": holder})


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
    """Live first, then history: one statement over both can miss a row on the move."""
    if not is_id(job_id):
        return None
    for statement in (sql.GET_LIVE, sql.GET_HISTORY, sql.GET_KEPT):
        rows = yield Ask(statement, {"id": job_id})
        if rows:
            return record(rows[0])
    return None


def find(filter: JobFilter) -> Steps[list[JobRecord]]:
    found: dict[str, JobRecord] = {}
    for table in sql.tables_for(filter):
        rows = yield Ask(sql.list_jobs(filter, table), sql.parameters_of(filter))
        found |= {row[0]: record(row) for row in rows}
    newest_first = sorted(found.values(), key=lambda job: job.id, reverse=True)
    return newest_first[: filter.limit]


def record(row: Row) -> JobRecord:
    """A row of one of the three job tables as a value."""
    fields = list(row)
    fields[2] = word(fields[2], Kind, Kind.ACTION)
    fields[5] = word(fields[5], State, State.FAILED)
    return JobRecord(*fields)


# Progress and log lines --------------------------------------------------------------------------


def report(
    dialect: Dialect, progress: Sequence[ProgressReport], lines: Sequence[LogEntry]
) -> Steps[None]:
    """Write down what running attempts have said."""
    if progress:
        yield Ask(sql.REPORT, many(dialect, progress, ProgressReport))
    if lines:
        yield Ask(sql.WRITE_LOGS, many(dialect, lines, LogEntry))


def look(dialect: Dialect, job_ids: Collection[str]) -> Steps[list[Look]]:
    """Live first, then what has ended; as `get`."""
    wanted = {job_id for job_id in job_ids if is_id(job_id)}
    found: dict[str, Look] = {}
    for statement in (sql.LOOK_LIVE, sql.LOOK_ENDED):
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
    """The same in a transaction that is not duly's own, whose isolation level may be any."""
    if dialect == "postgres" and is_id(job_id):
        [(level, needs_to_see)] = yield Ask(sql.CANCEL_NEEDS, {"id": job_id})
        if needs_to_see and level in sql.SNAPSHOT_LEVELS:
            raise IsolationTooHigh(job_id, level)
    return (yield from cancel(dialect, job_id, by, now))


def cancel_live(
    dialect: Dialect, job_ids: Iterable[str], by: str, now: int, *, only_pending: bool = False
) -> Steps[int]:
    """Cancel those that are unfinished, and what descends from them through unfinished jobs."""
    which = sql.PENDING_IDS if only_pending else sql.LIVE_IDS
    level = _ids((yield Ask(which, {"ids": array(dialect, job_ids)})))
    canceled = 0
    from_parent = False
    while level:
        yield from move_canceled(dialect, level, now, by=by, from_parent=from_parent)
        fault.point("cancel.moved")
        canceled += len(level)
        # A new statement, so that children committed meanwhile are seen.
        level = _ids((yield Ask(sql.CHILD_IDS, {"ids": array(dialect, level)})))
        from_parent = True
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
    yield Ask(sql.MOVE_CANCELED, which | how)
    if dialect == "sqlite":
        yield Ask(sql.FORGET_CANCELED, which)


def array(dialect: Dialect, values: Iterable[str]) -> Any:
    """Many strings as one parameter."""
    many = list(values)
    return msgspec.json.encode(many).decode() if dialect == "sqlite" else many


def _ids(rows: Iterable[Row]) -> list[str]:
    return [row[0] for row in rows]


# Whose database ----------------------------------------------------------------------------------


def store_id() -> Steps[str | None]:
    """What tells this database's store from any other; None if duly's tables are not there."""
    if not (yield Ask(sql.HAS_META)):
        return None
    rows = yield Ask(sql.READ_STORE_ID)
    return rows[0][0] if rows else None


def database_name() -> Steps[str]:
    rows = yield Ask(sql.DATABASE_NAME)
    return str(rows[0][0])
