"""Gateways in the store: their address, and their last answer or failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.ids import FIRST_ID, is_id
from duly.model.gateway import GatewayRecord
from duly.store.schedules.audit import audit
from duly.store.statements import Statement, both, each

if TYPE_CHECKING:
    from duly.store.session import Session

_FIELDS = GatewayRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_VALUES = ", ".join(f":{name}" for name in _FIELDS)
_READ = ", ".join("g.id::text" if name == "id" else name for name in _FIELDS)


def _of_gateways(rest: str, *, sqlite_rest: str | None = None) -> Statement:
    return each(
        sqlite=f"SELECT {_COLUMNS} FROM @gateways g {sqlite_rest or rest}",
        postgres=f"SELECT {_READ} FROM @gateways g {rest}",
    )


INSERT_GATEWAY = both(
    f"""INSERT INTO @gateways ({_COLUMNS}) VALUES ({_VALUES})
        ON CONFLICT (owner, name) DO NOTHING RETURNING 1"""
)
DELETE_GATEWAY = both("DELETE FROM @gateways WHERE id = :id RETURNING name")
GET_GATEWAY = _of_gateways("WHERE g.id = :id")
GATEWAY_NAMED = _of_gateways("WHERE owner = :owner AND name = :name")
_PAGE = "WHERE ({owner} IS NULL OR owner = :owner) AND g.id > {after} ORDER BY g.id LIMIT :limit"
GATEWAYS = _of_gateways(
    _PAGE.format(owner=":owner::text", after=":after::uuid"),
    sqlite_rest=_PAGE.format(owner=":owner", after=":after"),
)
# A process that asked at the same time may have received a later answer.
NOTE_GATEWAY = both(
    """UPDATE @gateways SET crons = :crons, seen_at = :seen_at, error = :error,
            stale_since = :stale_since
        WHERE id = :id AND coalesce(seen_at, 0) <= coalesce(:seen_at, 0)"""
)


def add_gateway(session: Session, record: GatewayRecord, by: str | None, now: int) -> bool:
    """Store a gateway, audited. Return False if its owner has one with that name."""
    if not session.run(INSERT_GATEWAY, msgspec.structs.asdict(record)):
        return False
    detail = {"name": record.name, "url": record.url}
    audit(session, "gateway.create", f"gateway:{record.id}", by, detail, now)
    return True


def remove_gateway(session: Session, gateway_id: str, by: str | None, now: int) -> bool:
    """Delete a gateway, audited. Return False if there is none."""
    if not is_id(gateway_id):
        return False
    rows = session.run(DELETE_GATEWAY, {"id": gateway_id})
    if not rows:
        return False
    audit(session, "gateway.remove", f"gateway:{gateway_id}", by, {"name": rows[0][0]}, now)
    return True


def get_gateway(session: Session, gateway_id: str) -> GatewayRecord | None:
    if not is_id(gateway_id):
        return None
    rows = session.run(GET_GATEWAY, {"id": gateway_id})
    return GatewayRecord(*rows[0]) if rows else None


def gateway_named(session: Session, owner: str, name: str) -> GatewayRecord | None:
    rows = session.run(GATEWAY_NAMED, {"owner": owner, "name": name})
    return GatewayRecord(*rows[0]) if rows else None


def gateways(
    session: Session, owner: str | None, after: str | None = None, limit: int = 100
) -> list[GatewayRecord]:
    """A page of gateways, oldest first; of every owner if `owner` is None."""
    if after is not None and not is_id(after):
        return []
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [GatewayRecord(*row) for row in session.run(GATEWAYS, given)]


def note_gateway(session: Session, record: GatewayRecord) -> None:
    """Record a gateway's answer or failure, unless a later one is recorded."""
    heard = ("id", "crons", "seen_at", "error", "stale_since")
    session.run(NOTE_GATEWAY, {name: getattr(record, name) for name in heard})
