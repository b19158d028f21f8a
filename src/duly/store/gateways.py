"""Gateways in the store: where they are, and what they said last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.ids import FIRST_ID, is_id
from duly.model.gateway import GatewayRecord
from duly.store import gateway_statements as sql
from duly.store.schedules.audit import audit

if TYPE_CHECKING:
    from duly.store.session import Session


def add_gateway(session: Session, record: GatewayRecord, by: str | None, now: int) -> bool:
    """Store a gateway, audited; False if its owner has one of that name."""
    if not session.run(sql.INSERT_GATEWAY, msgspec.structs.asdict(record)):
        return False
    detail = {"name": record.name, "url": record.url}
    audit(session, "gateway.create", f"gateway:{record.id}", by, detail, now)
    return True


def remove_gateway(session: Session, gateway_id: str, by: str | None, now: int) -> bool:
    """Forget a gateway, audited; False if there is none."""
    if not is_id(gateway_id):
        return False
    rows = session.run(sql.DELETE_GATEWAY, {"id": gateway_id})
    if not rows:
        return False
    audit(session, "gateway.remove", f"gateway:{gateway_id}", by, {"name": rows[0][0]}, now)
    return True


def get_gateway(session: Session, gateway_id: str) -> GatewayRecord | None:
    if not is_id(gateway_id):
        return None
    rows = session.run(sql.GET_GATEWAY, {"id": gateway_id})
    return GatewayRecord(*rows[0]) if rows else None


def gateway_named(session: Session, owner: str, name: str) -> GatewayRecord | None:
    rows = session.run(sql.GATEWAY_NAMED, {"owner": owner, "name": name})
    return GatewayRecord(*rows[0]) if rows else None


def gateways(
    session: Session, owner: str | None, after: str | None = None, limit: int = 100
) -> list[GatewayRecord]:
    """A page of them, oldest first; of all owners if it is None."""
    if after is not None and not is_id(after):
        return []
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [GatewayRecord(*row) for row in session.run(sql.GATEWAYS, given)]


def note_gateway(session: Session, record: GatewayRecord) -> None:
    """Write down what was heard of a gateway, unless something later was."""
    heard = ("id", "crons", "seen_at", "error", "stale_since")
    session.run(sql.NOTE_GATEWAY, {name: getattr(record, name) for name in heard})
