"""The verbs that also work in somebody else's transaction, without the I/O.

Each is a generator: it yields what to ask the database and is sent the rows. duly's own sessions
run it on their connection, `borrow.py` on the user's, whatever its driver and colour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from duly import fault
from duly.ids import is_id
from duly.model.job import JobFilter, JobRecord, Kind, NewJob, State, TrackedJob
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


def insert(dialect: Dialect, jobs: Sequence[NewJob], *, notify: bool = False) -> Steps[None]:
    """Store new jobs; `notify` lets PostgreSQL wake workers, once, when they are committed."""
    if jobs:
        # One statement, for on PostgreSQL it may stand alone; most need the shorter one.
        tracked = any(type(job) is TrackedJob for job in jobs)
        statement = sql.INSERT_TRACKED if tracked else sql.INSERT_JOBS
        fields = TRACKED if tracked else NEW
        yield Ask(statement, (rows if dialect == "sqlite" else columns)(jobs, fields))
    fault.point("enqueue.inserted")
    if notify and dialect == "postgres":
        yield Ask(sql.NOTIFY)


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
    for table in sql.tables_for(filter.state):
        rows = yield Ask(sql.list_jobs(filter, table), sql.parameters_of(filter))
        found |= {row[0]: record(row) for row in rows}
    newest_first = sorted(found.values(), key=lambda job: job.id, reverse=True)
    return newest_first[: filter.limit]


def record(row: Row) -> JobRecord:
    """A row of one of the three job tables as a value."""
    fields = list(row)
    fields[2] = Kind(fields[2])
    fields[5] = State(fields[5])
    return JobRecord(*fields)


# Cancel ------------------------------------------------------------------------------------------


def cancel(dialect: Dialect, job_id: str, by: str, now: int) -> Steps[bool | None]:
    if not is_id(job_id):
        return None
    if (yield from cancel_live(dialect, [job_id], by, now)):
        return True
    return None if (yield from get(job_id)) is None else False


def cancel_live(dialect: Dialect, job_ids: Iterable[str], by: str, now: int) -> Steps[int]:
    """Cancel those that are unfinished, and what descends from them through unfinished jobs."""
    level = _ids((yield Ask(sql.LIVE_IDS, {"ids": array(dialect, job_ids)})))
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
