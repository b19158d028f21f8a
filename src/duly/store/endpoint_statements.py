"""The statements about endpoints; as in statements.py."""

from __future__ import annotations

from duly.model.endpoint import EndpointRecord
from duly.store.statements import Statement, both, each

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
