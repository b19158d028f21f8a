"""Endpoints: addresses that jobs and schedules POST to, as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from duly.errors import EndpointExists
from duly.ids import FIRST_ID, is_id, new_id
from duly.model.endpoint import EndpointRecord
from duly.store import endpoint_statements as sql
from duly.store.schedules.audit import audit

if TYPE_CHECKING:
    from duly.store.session import Session

Change = Callable[[EndpointRecord], EndpointRecord | None]

_NOT_CHANGED = ("version", "updated_at")


def add(session: Session, record: EndpointRecord, by: str | None, now: int) -> bool:
    """Store a new endpoint, audited; False if its owner has one of that name."""
    if not session.run(sql.INSERT_ENDPOINT, msgspec.structs.asdict(record)):
        return False
    detail = {"name": record.name, "url": record.url}
    audit(session, "endpoint.create", f"endpoint:{record.id}", by, detail, now)
    return True


def edit(
    session: Session, endpoint_id: str, change: Change, by: str | None, now: int
) -> EndpointRecord | None:
    """Change an endpoint, audited, under its lock; EndpointExists if the name is taken."""
    if not is_id(endpoint_id):
        return None
    rows = session.run(sql.LOCK_ENDPOINT, {"id": endpoint_id})
    if not rows:
        return None
    before = EndpointRecord(*rows[0])
    after = change(before)
    if after is None or after == before:
        return before
    if after.name != before.name:
        _reserve_name(session, after, now)
    after = msgspec.structs.replace(after, version=before.version + 1, updated_at=now)
    session.run(sql.REPLACE_ENDPOINT, msgspec.structs.asdict(after))
    names = [
        name
        for name in EndpointRecord.__struct_fields__
        if name not in _NOT_CHANGED and getattr(before, name) != getattr(after, name)
    ]
    detail: dict[str, Any] = {"version": after.version, "changed": names}
    if after.url != before.url:
        detail["url"] = [before.url, after.url]
    audit(session, "endpoint.update", f"endpoint:{endpoint_id}", by, detail, now)
    return after


def _reserve_name(session: Session, record: EndpointRecord, now: int) -> None:
    """Take a name that nobody has, as a new endpoint would: two who want it cannot both get it."""
    taken = msgspec.structs.replace(record, id=new_id(now))
    if not session.run(sql.INSERT_ENDPOINT, msgspec.structs.asdict(taken)):
        raise EndpointExists(record.name)
    session.run(sql.DELETE_ENDPOINT, {"id": taken.id})


def remove(session: Session, endpoint_id: str, by: str | None, now: int) -> bool:
    if not is_id(endpoint_id):
        return False
    rows = session.run(sql.LOCK_ENDPOINT, {"id": endpoint_id})
    if not rows:
        return False
    session.run(sql.DELETE_ENDPOINT, {"id": endpoint_id})
    detail = {"name": EndpointRecord(*rows[0]).name}
    audit(session, "endpoint.remove", f"endpoint:{endpoint_id}", by, detail, now)
    return True


def get(session: Session, endpoint_id: str) -> EndpointRecord | None:
    if not is_id(endpoint_id):
        return None
    rows = session.run(sql.GET_ENDPOINT, {"id": endpoint_id})
    return EndpointRecord(*rows[0]) if rows else None


def named(session: Session, owner: str, name: str) -> EndpointRecord | None:
    rows = session.run(sql.ENDPOINT_NAMED, {"owner": owner, "name": name})
    return EndpointRecord(*rows[0]) if rows else None


def find(
    session: Session, owner: str | None, after: str | None = None, limit: int = 100
) -> list[EndpointRecord]:
    """A page of them, oldest first; of all owners if it is None."""
    if after is not None and not is_id(after):
        return []
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [EndpointRecord(*row) for row in session.run(sql.ENDPOINTS, given)]
