"""Published functions and their status in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from duly.model.function import FunctionInfo, Published, Status
from duly.store.schedules.audit import audit, audit_gone
from duly.store.schedules.rows import FIELDS, READ, schedule_of
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)
from duly.store.steps import Row, named

_INFO = """name, kind, app, schema, options, internal, alias_of, published_at,
    status, status_by, status_note, status_at"""
# A new alias takes the status of its function; an existing row keeps its own. Only `force` restores
# a description that was replaced before, or lets one app overwrite another's.
PUBLISH = both(
    """INSERT INTO @functions AS f
            (name, kind, app, schema, options, internal, alias_of, seen, published_at, status)
        VALUES (:name, :kind, :app, :schema, :options, :internal, :alias_of, :digest, :now,
            coalesce((SELECT status FROM @functions WHERE name = :alias_of), 'active'))
        ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, app = excluded.app,
            schema = excluded.schema, options = excluded.options, internal = excluded.internal,
            alias_of = excluded.alias_of, published_at = excluded.published_at,
            seen = CASE WHEN f.seen LIKE '%' || excluded.seen || '%' THEN f.seen
                ELSE f.seen || ' ' || excluded.seen END
        WHERE f.app = excluded.app AND f.seen NOT LIKE '%' || excluded.seen || '%' OR :force"""
)
FUNCTIONS = both(f"SELECT {_INFO} FROM @functions ORDER BY name")
FUNCTION = both(f"SELECT {_INFO} FROM @functions WHERE name = :name")
STATUSES = both("SELECT name, status FROM @functions WHERE status <> 'active'")
CLOSED_FUNCTIONS = both("SELECT name FROM @functions WHERE status IN ('paused', 'deleted')")
_SET_STATUS = """UPDATE @functions SET status = :status, status_by = :by, status_note = :note,
        status_at = :now WHERE (name = :name OR alias_of = :name) AND"""
# The status is compared in the update itself: it may have changed since it was read.
SET_STATUS = each(
    sqlite=f"{_SET_STATUS} status IN (SELECT value FROM json_each(:allowed)) RETURNING name",
    postgres=f"{_SET_STATUS} status = ANY(:allowed::text[]) RETURNING name",
)
# No one can restore a function while its jobs are being canceled.
LOCK_STATUSES = each(sqlite=STATUSES.sqlite, postgres=f"{STATUSES.postgres} FOR SHARE")


DELETE_SCHEDULES_OF = each(
    sqlite=f"""DELETE FROM @schedules
        WHERE function IN (SELECT value FROM json_each(:functions))
        RETURNING {", ".join(FIELDS)}""",
    postgres=f"""DELETE FROM @schedules s
        WHERE function = ANY(:functions::text[]) RETURNING {READ.postgres}""",
)


def publish(
    session: Session, functions: Sequence[Published], now: int, *, force: bool = False
) -> None:
    """Describe functions to all processes. Their status does not change.

    A description that was replaced before, or that belongs to another app, changes nothing unless
    forced.
    """
    # Sorted, so that workers that start at the same time do not deadlock; a function comes before
    # its aliases, which take its status.
    for function in sorted(functions, key=lambda f: (f.alias_of is not None, f.name)):
        fields = msgspec.structs.asdict(function)
        digest = function.digest()
        session.run(PUBLISH, fields | {"digest": digest, "now": now, "force": force})


def functions(session: Session) -> list[FunctionInfo]:
    return [_function(row) for row in session.run(FUNCTIONS)]


def function(session: Session, name: str) -> FunctionInfo | None:
    rows = session.run(FUNCTION, {"name": name})
    return _function(rows[0]) if rows else None


def statuses(session: Session) -> dict[str, Status]:
    """The functions that are not active."""
    return {name: Status(status) for name, status in session.run(STATUSES)}


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
    """Set the status of a published function and its aliases, if its current one allows it."""
    values = {"name": name, "status": status, "by": by, "note": note, "now": now}
    changed = session.run(SET_STATUS, values | {"allowed": session.array(allowed)})
    detail: dict[str, Any] = {"note": note}
    if status == Status.DELETED and changed:
        names = session.array(row[0] for row in changed)
        gone = session.run(DELETE_SCHEDULES_OF, {"functions": names})
        records = [schedule_of(row) for row in gone]
        audit_gone(session, records, by, now)
        detail["removed"] = [record.id for record in records]
    if changed:
        audit(session, f"function.{status}", f"function:{name}", by, detail, now)
    return (name,) in changed


def _function(row: Row) -> FunctionInfo:
    fields = named(FunctionInfo, row)
    fields["internal"] = bool(fields["internal"])
    fields["status"] = Status(fields["status"])
    return FunctionInfo(**fields)
