"""The functions that apps have published, and their status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from duly.model.function import FunctionInfo, Published, Status
from duly.store import schedule_statements as schedule_sql
from duly.store import statements as sql
from duly.store.schedules.audit import audit, audit_gone
from duly.store.schedules.rows import schedule_of
from duly.store.session import Session
from duly.store.steps import Row


def publish(
    session: Session, functions: Sequence[Published], now: int, *, force: bool = False
) -> None:
    """Describe functions to everybody; their status stays as it is.

    A description that was replaced before, or that belongs to another app, changes nothing
    unless it is forced.
    """
    # In one order, so that workers that start together do not lock each other out; a function
    # before its aliases, which take its status.
    for function in sorted(functions, key=lambda f: (f.alias_of is not None, f.name)):
        fields = msgspec.structs.asdict(function)
        digest = function.digest()
        session.run(sql.PUBLISH, fields | {"digest": digest, "now": now, "force": force})


def functions(session: Session) -> list[FunctionInfo]:
    return [_function(row) for row in session.run(sql.FUNCTIONS)]


def function(session: Session, name: str) -> FunctionInfo | None:
    rows = session.run(sql.FUNCTION, {"name": name})
    return _function(rows[0]) if rows else None


def statuses(session: Session) -> dict[str, Status]:
    """The functions that are not active."""
    return {name: Status(status) for name, status in session.run(sql.STATUSES)}


def set_status(
    session: Session,
    name: str,
    status: Status,
    allowed: Iterable[Status],
    *,
    by: str | None,
    note: str | None,
    now: int,
) -> bool:
    """Give a published function, and its aliases, a status, if it has an allowed one now."""
    values = {"name": name, "status": status, "by": by, "note": note, "now": now}
    changed = session.run(sql.SET_STATUS, values | {"allowed": session.array(allowed)})
    detail: dict[str, Any] = {"note": note}
    if status == Status.DELETED and changed:
        names = session.array(row[0] for row in changed)
        gone = session.run(schedule_sql.DELETE_SCHEDULES_OF, {"functions": names})
        records = [schedule_of(row) for row in gone]
        audit_gone(session, records, by, now)
        detail["removed"] = [record.id for record in records]
    if changed:
        audit(session, f"function.{status}", f"function:{name}", by, detail, now)
    return (name,) in changed


def _function(row: Row) -> FunctionInfo:
    fields = list(row)
    fields[5] = bool(fields[5])
    fields[8] = Status(fields[8])
    return FunctionInfo(*fields)
