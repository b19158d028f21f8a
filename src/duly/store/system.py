"""duly's own tables, to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly.ids import is_id
from duly.model.measure import MOST

if TYPE_CHECKING:
    from duly.store.session import Session

_IDS = frozenset("id job_id schedule_id".split())
_NUMBERS = frozenset("version seq slot started_at token tick_at day".split())


class Shown(NamedTuple):
    """What is shown of a table: the columns of its key, by which it is paged, and some others."""

    key: tuple[str, ...]
    columns: tuple[str, ...]


def _shown(key: str, columns: str = "") -> Shown:
    names = tuple(key.split())
    return Shown(names, (*names, *columns.split()))


_JOB = """function kind queue priority state token attempt crashes system_retries created_at
    scheduled_at run_at started_at expires_at timeout_ms parent_id owner worker_id trigger actor
    retry_of batch_id"""

TABLES: dict[str, Shown] = {
    "audit": _shown("id", "at actor action target"),
    "calendars": _shown("id", "owner name version created_at updated_at"),
    "costs": _shown("schedule_id tick_at job_id token", "amount"),
    "counters": _shown("name labels", "value"),
    "days": _shown("schedule_id day", "dispatched skipped missed succeeded failed canceled"),
    "declarations": _shown("app"),
    "endpoints": _shown("id", "owner name timeout_ms version created_at updated_at"),
    "functions": _shown(
        "name", "kind app internal alias_of published_at status status_by status_at"
    ),
    "gateways": _shown("id", "owner name version created_at updated_at seen_at stale_since"),
    "history": _shown("id", f"{_JOB} completed_at canceled_by exhausted"),
    "inbox": _shown("id", "webhook type owner received_at job_id"),
    "jobs": _shown("id", f"{_JOB} hold deadline_at hook_id"),
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
    "ticks": _shown(
        "schedule_id kind tick_at",
        "outcome reason job_id rotation_index due_at decided_at first_at count dst_adjusted",
    ),
    "tokens": _shown(
        "id",
        "name scopes owner created_at created_by expires_at last_used_at revoked_at revoked_by",
    ),
    "traces": _shown("job_id"),
    "workers": _shown("id", "app host pid queues slots alone beat started_at"),
}
FLAGS = frozenset("internal exhausted zoned enabled dst_adjusted alone".split())
"""SQLite has no booleans."""
_READ_AS_TEXT = frozenset(
    "id job_id schedule_id parent_id worker_id retry_of hook_id batch_id last_job_id target".split()
)


def kind_of(column: str) -> type:
    """What a column of a key holds; ids are text, as everywhere."""
    return int if column in _NUMBERS else str


def is_id_column(column: str) -> bool:
    return column in _IDS


def page_of(table: str, dialect: str, *, beyond: bool) -> str:
    """The statement that shows some rows of a table in the order of its key."""
    shown = TABLES[table]
    columns = ", ".join(_read(column, dialect) for column in shown.columns)
    key = ", ".join(f"t.{column}" for column in shown.key)
    given = ", ".join(_given(column, dialect) for column in shown.key)
    where = f" WHERE ({key}) > ({given})" if beyond else ""
    return f"SELECT {columns} FROM @{table} t{where} ORDER BY {key} LIMIT :limit"


def _read(column: str, dialect: str) -> str:
    if dialect == "sqlite":
        return f"+t.{column}"
    return f"t.{column}::text" if column in _READ_AS_TEXT else f"t.{column}"


def _given(column: str, dialect: str) -> str:
    if dialect == "sqlite":
        return f":{column}"
    kind = "uuid" if column in _IDS else "int8" if column in _NUMBERS else "text"
    return f":{column}::{kind}"


def count_rows(table: str) -> str:
    """The statement that counts the rows of a table, up to a limit."""
    return f"SELECT count(*) FROM (SELECT 1 FROM @{table} LIMIT {MOST}) found"


LONGEST = 2**63 - 1


class SystemTable(msgspec.Struct, frozen=True):
    """One of duly's tables: its rows, counted up to a limit, and what is shown of them."""

    name: str
    rows: int
    columns: tuple[str, ...]

    @property
    def capped(self) -> bool:
        return self.rows >= MOST


def tables(session: Session) -> list[SystemTable]:
    """duly's own tables, with their rows counted up to a limit."""
    return [
        SystemTable(name, session.run_text(count_rows(name), {})[0][0], shown.columns)
        for name, shown in sorted(TABLES.items())
    ]


def rows(
    session: Session, table: str, after: Sequence[str | int] | None, limit: int
) -> list[Mapping[str, Any]]:
    """Rows of one of duly's tables beyond a key, in the order of their keys.

    Without what users have written: arguments, results, bodies, secrets.
    """
    shown = TABLES[table]
    if after is not None and not is_key(table, after):
        return []
    beyond = {} if after is None else dict(zip(shown.key, after, strict=True))
    text = page_of(table, session.dialect, beyond=after is not None)
    found = session.run_text(text, beyond | {"limit": limit})
    return [
        {column: _plain(column, value) for column, value in zip(shown.columns, row, strict=True)}
        for row in found
    ]


def key_of(table: str, row: Mapping[str, Any]) -> list[str | int]:
    """What asks for the rows behind this one."""
    return [row[column] for column in TABLES[table].key]


def is_key(table: str, key: Sequence[object]) -> bool:
    """Whether a row of the table could have such a key."""
    columns = TABLES[table].key
    return len(key) == len(columns) and all(map(_fits, columns, key))


def _fits(column: str, value: object) -> bool:
    if type(value) is not kind_of(column):
        return False
    if isinstance(value, int):
        return -LONGEST <= value <= LONGEST
    text = str(value)
    return is_id(text) if is_id_column(column) else "\0" not in text and _is_unicode(text)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(column: str, value: Any) -> Any:
    return bool(value) if column in FLAGS and value is not None else value
