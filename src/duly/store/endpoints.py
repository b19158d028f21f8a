"""Endpoints in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from duly.errors import EndpointExists
from duly.ids import FIRST_ID, is_id, new_id
from duly.model.endpoint import EndpointRecord
from duly.store.schedules.audit import audit
from duly.store.statements import Statement, both, each

if TYPE_CHECKING:
    from duly.store.session import Session

_FIELDS = EndpointRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_READ = _COLUMNS.replace("id,", "id::text,", 1)


def _of_endpoints(rest: str, *, sqlite_rest: str | None = None) -> Statement:
    return each(
        sqlite=f"SELECT {_COLUMNS} FROM @endpoints e {sqlite_rest or rest}",
        postgres=f"SELECT {_READ} FROM @endpoints e {rest}",
    )


INSERT_ENDPOINT = both(
    f"""INSERT INTO @endpoints ({_COLUMNS}) VALUES ({", ".join(f":{name}" for name in _FIELDS)})
        ON CONFLICT (owner, name) DO NOTHING RETURNING 1"""
)
REPLACE_ENDPOINT = both(
    f"""UPDATE @endpoints SET {", ".join(f"{name} = :{name}" for name in _FIELDS[1:])}
        WHERE id = :id"""
)
DELETE_ENDPOINT = both("DELETE FROM @endpoints WHERE id = :id")
GET_ENDPOINT = _of_endpoints("WHERE e.id = :id")
LOCK_ENDPOINT = _of_endpoints("WHERE e.id = :id FOR UPDATE", sqlite_rest="WHERE e.id = :id")
ENDPOINT_NAMED = _of_endpoints("WHERE owner = :owner AND name = :name")
ENDPOINTS = each(
    sqlite=f"""SELECT {_COLUMNS} FROM @endpoints e
        WHERE (:owner IS NULL OR owner = :owner) AND e.id > :after ORDER BY e.id LIMIT :limit""",
    postgres=f"""SELECT {_READ} FROM @endpoints e
        WHERE (:owner::text IS NULL OR owner = :owner) AND e.id > :after::uuid
        ORDER BY e.id LIMIT :limit""",
)


Change = Callable[[EndpointRecord], EndpointRecord | None]

_NOT_CHANGED = ("version", "updated_at")


def add(session: Session, record: EndpointRecord, by: str | None, now: int) -> bool:
    """Store a new endpoint, audited. Return False if its owner has one with that name."""
    if not session.run(INSERT_ENDPOINT, msgspec.structs.asdict(record)):
        return False
    detail = {"name": record.name, "url": record.url}
    audit(session, "endpoint.create", f"endpoint:{record.id}", by, detail, now)
    return True


def edit(
    session: Session, endpoint_id: str, change: Change, by: str | None, now: int
) -> EndpointRecord | None:
    """Change an endpoint, audited, while it is locked.

    Raises EndpointExists if the name is taken.
    """
    if not is_id(endpoint_id):
        return None
    rows = session.run(LOCK_ENDPOINT, {"id": endpoint_id})
    if not rows:
        return None
    before = EndpointRecord(*rows[0])
    after = change(before)
    if after is None or after == before:
        return before
    if after.name != before.name:
        _reserve_name(session, after, now)
    after = msgspec.structs.replace(after, version=before.version + 1, updated_at=now)
    session.run(REPLACE_ENDPOINT, msgspec.structs.asdict(after))
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
    """Reserve a free name, as a new endpoint would, so that two requests cannot both get it."""
    taken = msgspec.structs.replace(record, id=new_id(now))
    if not session.run(INSERT_ENDPOINT, msgspec.structs.asdict(taken)):
        raise EndpointExists(record.name)
    session.run(DELETE_ENDPOINT, {"id": taken.id})


def remove(session: Session, endpoint_id: str, by: str | None, now: int) -> bool:
    if not is_id(endpoint_id):
        return False
    rows = session.run(LOCK_ENDPOINT, {"id": endpoint_id})
    if not rows:
        return False
    session.run(DELETE_ENDPOINT, {"id": endpoint_id})
    detail = {"name": EndpointRecord(*rows[0]).name}
    audit(session, "endpoint.remove", f"endpoint:{endpoint_id}", by, detail, now)
    return True


def get(session: Session, endpoint_id: str) -> EndpointRecord | None:
    if not is_id(endpoint_id):
        return None
    rows = session.run(GET_ENDPOINT, {"id": endpoint_id})
    return EndpointRecord(*rows[0]) if rows else None


def named(session: Session, owner: str, name: str) -> EndpointRecord | None:
    rows = session.run(ENDPOINT_NAMED, {"owner": owner, "name": name})
    return EndpointRecord(*rows[0]) if rows else None


def find(
    session: Session, owner: str | None, after: str | None = None, limit: int = 100
) -> list[EndpointRecord]:
    """A page of endpoints, oldest first; of every owner if `owner` is None."""
    if after is not None and not is_id(after):
        return []
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [EndpointRecord(*row) for row in session.run(ENDPOINTS, given)]
