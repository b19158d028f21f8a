"""Lists the jobs that match a filter."""

from __future__ import annotations

from typing import Any

from duly.model.function import RESERVED
from duly.model.job import DEFAULT_QUEUE, JobFilter, State
from duly.store.statements import (
    RECORD_COLUMNS,
    Table,
)


def _record(*absent: str) -> str:
    return ", ".join("NULL" if c in absent else f"@{c}" for c in RECORD_COLUMNS)


LIVE_RECORD = _record("completed_at", "result", "canceled_by")
FINAL_RECORD = _record("hold")
LIVE_LISTED = LIVE_RECORD.replace("@args", "@short_args")
FINAL_LISTED = FINAL_RECORD.replace("@args", "@final_args").replace("@result", "@short_result")
_CONDITIONS = {
    "state": "state = :state",
    "function": "function = :function",
    "queue": "queue = :queue",
    "owner": "owner = :owner",
    "parent_id": "parent_id = :parent_id",
    "run_after": "run_at >= :run_after",
    "run_before": "run_at < :run_before",
    "before_id": "id < :before_id",
    "batch_id": "batch_id = :batch_id",
    "exhausted": "exhausted",
    "begun": "(begun_at IS NOT NULL) = :begun",
    "held": "(coalesce(hold, '') IN ('error', 'history')) = :held",
}
# Written like this so that the indexes which leave most jobs out can be used.
_OTHER_QUEUE = f"queue <> '{DEFAULT_QUEUE}'"
_UNSUCCESSFUL = f"length(state) < {len(State.SUCCEEDED)}"


def list_jobs(filter: JobFilter, table: Table) -> str:
    """The statement that lists a table's jobs, newest first, with the requested conditions only."""
    record = LIVE_LISTED if table == "jobs" else FINAL_LISTED
    # Qualified, because on PostgreSQL a bare id would be the selected text, which is not indexed.
    return f"SELECT {record} FROM @{table} t{_where(filter)} ORDER BY t.id DESC LIMIT :limit"


def live_matching(filter: JobFilter) -> str:
    """The statement that finds live jobs for a bulk verb, in id order, one page at a time."""
    where = _where(filter)
    glue = " AND" if where else " WHERE"
    return f"SELECT @id FROM @jobs t{where}{glue} id > :after_id ORDER BY t.id LIMIT :limit"


def _where(filter: JobFilter, *more: str) -> str:
    terms = [term for field, term in _CONDITIONS.items() if getattr(filter, field) is not None]
    if filter.queue not in (None, DEFAULT_QUEUE):
        terms.append(_OTHER_QUEUE)
    elif filter.state in (State.FAILED, State.CANCELED) and not (filter.function or filter.owner):
        terms.append(_UNSUCCESSFUL)
    terms += more
    return " WHERE " + " AND ".join(terms) if terms else ""


# In the order in which jobs move between tables: reading them in this order misses no job that
# moves meanwhile.
FINISHED: tuple[Table, ...] = ("history", "kept")


def tables_for(filter: JobFilter) -> tuple[Table, ...]:
    """The tables that can hold jobs which match."""
    if filter.exhausted:
        return FINISHED
    if filter.state is None:
        return ("jobs", *FINISHED)
    return FINISHED if filter.state.is_terminal else ("jobs",)


def parameters_of(filter: JobFilter) -> dict[str, Any]:
    """The parameters of a filter's statement."""
    given = {field: getattr(filter, field) for field in _CONDITIONS}
    return {field: value for field, value in given.items() if value is not None} | {
        "limit": filter.limit
    }


# Not LIKE, which is case-insensitive on SQLite.
_NOT_OURS = f"substr(function, 1, {len(RESERVED)}) <> '{RESERVED}'"
_BEYOND = "id > :after_id"


def live_page(filter: JobFilter) -> str:
    """The statement that finds live jobs for a bulk job, oldest first."""
    return f"SELECT @id FROM @jobs t{_where(filter, _NOT_OURS, _BEYOND)} ORDER BY t.id LIMIT :limit"


def finished_page(filter: JobFilter, table: Table) -> str:
    """The same for finished jobs, with the columns that lists show."""
    where = _where(filter, _NOT_OURS, _BEYOND)
    return f"SELECT {FINAL_LISTED} FROM @{table} t{where} ORDER BY t.id LIMIT :limit"


def count_jobs(filter: JobFilter, table: Table) -> str:
    """The statement that counts the jobs on such pages."""
    return f"SELECT count(*) FROM @{table} t{_where(filter, _NOT_OURS)}"
