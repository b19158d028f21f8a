"""The audit log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from duly.ids import new_id
from duly.model.audit import ROW, AuditEntry, NewAuditEntry
from duly.model.schedule import Outcome, Reason, ScheduleRecord, TickKind, TickRecord
from duly.store.statements import both, each

if TYPE_CHECKING:
    from duly.store.session import Session

AUDIT = both(
    "INSERT INTO @audit (id, at, actor, action, target, detail)"
    " VALUES (:id, :at, :actor, :action, :target, :detail)"
)
AUDIT_DETAIL = both("SELECT detail FROM @audit WHERE id = :id")
AUDIT_OF = each(
    sqlite="""SELECT id, at, actor, action, target, detail FROM @audit
        WHERE target = :target ORDER BY id DESC LIMIT :limit""",
    postgres="""SELECT id::text, at, actor, action, target, detail FROM @audit
        WHERE target = :target ORDER BY audit.id DESC LIMIT :limit""",
)
# The number of rows that are read in order to find some of them.
AUDITED_SLOTS = both(
    """SELECT at, detail FROM @audit WHERE target = :target AND action = 'schedule_slot_exists'
        ORDER BY id DESC LIMIT 1000"""
)


def write_entry(session: Session, audit_entry: NewAuditEntry | None) -> None:
    if audit_entry is not None:
        audit(session, *audit_entry)


def detail_of(session: Session, entry_id: str) -> Any:
    """The detail of the entry with this id; None if there is none."""
    rows = session.run(AUDIT_DETAIL, {"id": entry_id})
    return msgspec.json.decode(rows[0][0]) if rows else None


def audit_of(session: Session, target: str, limit: int = 100) -> list[AuditEntry]:
    """The entries about one target, newest first."""
    rows = session.run(AUDIT_OF, {"target": target, "limit": limit})
    return [AuditEntry(*row) for row in rows]


def audit(
    session: Session,
    action: str,
    target: str,
    actor: str | None,
    detail: Mapping[str, Any] | None,
    now: int,
    *,
    entry_id: str | None = None,
) -> None:
    """Write an audit entry: who did what to which target."""
    text = None if detail is None else msgspec.json.encode(detail).decode()
    chosen = entry_id or new_id(now)
    row = {"id": chosen, "at": now, "actor": actor, "action": action, "target": target}
    session.run(AUDIT, row | {"detail": text})


def audit_gone(
    session: Session, records: Iterable[ScheduleRecord], by: str | None, now: int
) -> None:
    """Record schedules that were deleted with their function, so that they can be restored."""
    for record in records:
        detail = {"because": "its function was deleted", ROW: msgspec.to_builtins(record)}
        audit(session, "schedule.remove", f"schedule:{record.id}", by, detail, now)


def refused_slots(session: Session, schedule_id: str) -> list[TickRecord]:
    """Second dispatches of a slot that were requested and refused, newest first.

    Several that were requested together have a `count`, and start at `first_at`.
    """
    rows = session.run(AUDITED_SLOTS, {"target": f"schedule:{schedule_id}"})
    return [tick for at, detail in rows if (tick := _refused(schedule_id, at, detail))]


def _refused(schedule_id: str, at: int, detail: str | None) -> TickRecord | None:
    try:
        slots = msgspec.json.decode(detail or "", type=_Slots)
    except msgspec.MsgspecError:
        return None
    last = slots.tick_at if slots.last is None else slots.last
    return TickRecord(
        schedule_id,
        TickKind.SLOT,
        last,
        Outcome.SKIPPED,
        Reason.SLOT_EXISTS,
        due_at=last,
        decided_at=at,
        first_at=None if slots.last is None else slots.tick_at,
        count=slots.count,
    )


class _Slots(msgspec.Struct):
    """The detail of an entry about slots that were taken."""

    tick_at: int
    last: int | None = None
    count: int = 1


def audit_slot(
    session: Session, schedule_id: str, tick_at: int, actor: str | None, now: int
) -> None:
    """Record that a second dispatch of a slot was requested and refused."""
    audit(session, Reason.SLOT_EXISTS, f"schedule:{schedule_id}", actor, {"tick_at": tick_at}, now)
