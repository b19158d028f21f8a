"""Which duly tables can be viewed, and which of their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duly.ids import is_id

MAX_INTEGER = 2**63 - 1
_IDS = frozenset("id job_id schedule_id watcher_id".split())
_NUMBERS = frozenset("version seq slot started_at token tick_at day pos".split())


class TableView(NamedTuple):
    """The visible part of a table: its key columns, by which it is paged, and some others."""

    key: tuple[str, ...]
    columns: tuple[str, ...]


def _shown(key: str, columns: str = "") -> TableView:
    names = tuple(key.split())
    return TableView(names, (*names, *columns.split()))


_JOB = """function kind queue priority state token attempt crashes system_retries created_at
    scheduled_at run_at started_at expires_at timeout_ms parent_id owner worker_id trigger actor
    retry_of batch_id"""

TABLES: dict[str, TableView] = {
    "audit": _shown("id", "at actor action target"),
    "calendars": _shown("id", "owner name app version created_at updated_at orphaned_at"),
    "costs": _shown("schedule_id tick_at job_id token", "amount"),
    "counters": _shown("name labels", "value"),
    "days": _shown("schedule_id day", "dispatched skipped missed succeeded failed canceled"),
    "declarations": _shown("app"),
    "endpoints": _shown("id", "owner name timeout_ms version created_at updated_at"),
    "events": _shown("job_id seq", "name sent_at sent_by taken_by"),
    "functions": _shown(
        "name", "kind app internal alias_of published_at status status_by status_at"
    ),
    "gateways": _shown("id", "owner name version created_at updated_at seen_at stale_since"),
    "history": _shown("id", f"{_JOB} completed_at canceled_by exhausted"),
    "inbox": _shown("id", "webhook type owner received_at job_id"),
    "jobs": _shown("id", f"{_JOB} hold deadline_at hook_id begun_at"),
    "kept": _shown("id", f"{_JOB} completed_at canceled_by exhausted"),
    "keys": _shown("scope key", "job_id expires_at"),
    "logs": _shown("job_id seq", "logged_at level"),
    "meta": _shown("key"),
    "migrations": _shown("version", "name applied_at"),
    "progress": _shown("job_id", "value revision updated_at"),
    "queues": _shown("name", "paused_at paused_by at_once"),
    "requests": _shown("actor key", "target expires_at done"),
    "schedules": _shown(
        "id",
        """app owner key function zoned calendar rotation_index enabled changed_by start_at end_at
        remaining next_tick_at due_at awake_at filled_until last_tick_at last_dispatch_at
        last_job_id parked_at orphaned_at expect_at last_success_at version created_at
        updated_at""",
    ),
    "slots": _shown("key slot", "job_id token worker_id"),
    "starts": _shown("key started_at job_id token", "expires_at"),
    "steps": _shown("job_id scope pos", "kind name state token attempt started_at ended_at due_at"),
    "ticks": _shown(
        "schedule_id kind tick_at",
        "outcome reason job_id rotation_index due_at decided_at first_at count dst_adjusted",
    ),
    "tokens": _shown(
        "id",
        "name scopes owner created_at created_by expires_at last_used_at revoked_at revoked_by",
    ),
    "traces": _shown("job_id"),
    "watches": _shown("job_id watcher_id"),
    "workers": _shown("id", "app host pid queues slots threads alone beat started_at"),
}


def kind_of(column: str) -> type:
    """The type of a key column; ids are text, as everywhere."""
    return int if column in _NUMBERS else str


def is_id_column(column: str) -> bool:
    return column in _IDS


def key_of(table: str, row: Mapping[str, Any]) -> list[str | int]:
    """The key after which the following page starts."""
    return [row[column] for column in TABLES[table].key]


def is_key(table: str, key: Sequence[object]) -> bool:
    """Whether a row of the table could have this key."""
    columns = TABLES[table].key
    return len(key) == len(columns) and all(map(_fits, columns, key))


def _fits(column: str, value: object) -> bool:
    if type(value) is not kind_of(column):
        return False
    if isinstance(value, int):
        return -MAX_INTEGER <= value <= MAX_INTEGER
    text = str(value)
    return is_id(text) if is_id_column(column) else "\0" not in text and _is_unicode(text)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
