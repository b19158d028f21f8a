"""The statements about gateways; otherwise as in statements.py."""

from __future__ import annotations

from duly.model.gateway import GatewayRecord
from duly.store.statements import Statement, both, each

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
# Who asked at the same time may have heard something later.
NOTE_GATEWAY = both(
    """UPDATE @gateways SET crons = :crons, seen_at = :seen_at, error = :error,
            stale_since = :stale_since
        WHERE id = :id AND coalesce(seen_at, 0) <= coalesce(:seen_at, 0)"""
)
