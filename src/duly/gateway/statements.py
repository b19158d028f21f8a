"""All SQL statements of a gateway's own store."""

from __future__ import annotations

from duly.gateway.crons import CronRecord

VERSION = 1

_FIELDS = CronRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_VALUES = ", ".join(f":{name}" for name in _FIELDS)
_CHANGES = ", ".join(f"{name} = :{name}" for name in _FIELDS if name != "id")

SET_UP = "PRAGMA journal_mode = WAL"
SAFE = "PRAGMA synchronous = FULL"
BEGIN = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"

GET_VERSION = "PRAGMA user_version"
SET_VERSION = f"PRAGMA user_version = {VERSION}"
CREATE = """CREATE TABLE IF NOT EXISTS gateway_crons (
    id text PRIMARY KEY,
    name text NOT NULL UNIQUE,
    handler text NOT NULL,
    schedule text NOT NULL,
    enabled integer NOT NULL,
    payload text NOT NULL,
    next_at integer,
    running_at integer,
    last_run_at integer,
    last_status text,
    last_error text,
    last_duration_ms integer,
    errors integer NOT NULL,
    revision integer NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL
) WITHOUT ROWID"""
CREATE_DUE = """CREATE INDEX IF NOT EXISTS gateway_crons_due ON gateway_crons (next_at)
    WHERE next_at IS NOT NULL AND running_at IS NULL"""

INSERT = f"""INSERT INTO gateway_crons ({_COLUMNS}) VALUES ({_VALUES})
    ON CONFLICT DO NOTHING RETURNING 1"""
REPLACE = f"UPDATE OR IGNORE gateway_crons SET {_CHANGES} WHERE id = :id RETURNING 1"
REMOVE = "DELETE FROM gateway_crons WHERE id = :id RETURNING 1"
COUNT = "SELECT count(*) FROM gateway_crons"
GET = f"SELECT {_COLUMNS} FROM gateway_crons WHERE id = :id"
PAGE = f"""SELECT {_COLUMNS} FROM gateway_crons WHERE id > :after AND (enabled OR :disabled)
    ORDER BY id LIMIT :limit"""
RUNNING = f"SELECT {_COLUMNS} FROM gateway_crons WHERE running_at IS NOT NULL"
_WAITING = "FROM gateway_crons WHERE next_at IS NOT NULL AND running_at IS NULL"
DUE = f"SELECT {_COLUMNS} {_WAITING} AND next_at <= :now ORDER BY next_at LIMIT :limit"
NEXT_DUE = f"SELECT min(next_at) {_WAITING}"
REST = "UPDATE gateway_crons SET running_at = NULL WHERE id = :id AND running_at = :running_at"
