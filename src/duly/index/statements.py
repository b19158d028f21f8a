"""All SQL statements of the schedule index and its collections."""

from __future__ import annotations

from typing import Literal, NamedTuple

Dialect = Literal["sqlite", "postgres"]


class Statement(NamedTuple):
    """A statement with `:name` parameters in both dialects."""

    sqlite: str
    postgres: str


def _both(text: str) -> Statement:
    return Statement(text, text)


# Tables ------------------------------------------------------------------------------------------

INDEX_TABLE = "schedule_index"
RECORD_TABLE = "schedule_records"

SCHEMA: dict[str, Statement] = {
    INDEX_TABLE: Statement(
        """\
CREATE TABLE IF NOT EXISTS schedule_index (
    user_id TEXT NOT NULL,
    key TEXT NOT NULL,
    cron TEXT NOT NULL,
    timezone TEXT,
    next_fire_at INTEGER NOT NULL,
    PRIMARY KEY (user_id, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idx_schedule_index_next_fire_at
    ON schedule_index (next_fire_at);
""",
        """\
CREATE TABLE IF NOT EXISTS schedule_index (
    user_id text NOT NULL,
    key text NOT NULL,
    cron text NOT NULL,
    timezone text,
    next_fire_at bigint NOT NULL,
    PRIMARY KEY (user_id, key)
);
CREATE INDEX IF NOT EXISTS idx_schedule_index_next_fire_at
    ON schedule_index (next_fire_at);
""",
    ),
    RECORD_TABLE: Statement(
        """\
CREATE TABLE IF NOT EXISTS schedule_records (
    user_id TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (user_id, key)
) WITHOUT ROWID;
""",
        """\
CREATE TABLE IF NOT EXISTS schedule_records (
    user_id text NOT NULL,
    key text NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (user_id, key)
);
""",
    ),
}

# A role that may not create tables must not need to if the tables exist.
HAS_TABLE = Statement(
    "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name",
    "SELECT 1 WHERE to_regclass(:name) IS NOT NULL",
)
# CREATE … IF NOT EXISTS fails if two processes run it at the same time.
LOCK_SCHEMA = Statement("SELECT 1", "SELECT pg_advisory_xact_lock(7260434410)")

# Settings for duly's own PostgreSQL transactions, whatever the connection's defaults are: a claim
# with an old snapshot fails instead of skipping rows, and one lost in a crash would be made again.
SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)

# The index ---------------------------------------------------------------------------------------

UPSERT = _both(
    "INSERT INTO schedule_index (user_id, key, cron, timezone, next_fire_at) "
    "VALUES (:user_id, :key, :cron, :timezone, :next_fire_at) "
    "ON CONFLICT (user_id, key) DO UPDATE SET cron = excluded.cron, "
    "timezone = excluded.timezone, next_fire_at = excluded.next_fire_at"
)

REMOVE = _both("DELETE FROM schedule_index WHERE user_id = :user_id AND key = :key")

_DUE = (
    "SELECT user_id, key, cron, timezone, next_fire_at FROM schedule_index "
    "WHERE next_fire_at <= :now AND (next_fire_at, user_id, key) > (:at, :user_id, :key) "
    "ORDER BY next_fire_at, user_id, key LIMIT :limit"
)
DUE = Statement(_DUE, f"{_DUE} FOR UPDATE SKIP LOCKED")

# SQLite runs it for each row, PostgreSQL once for all rows.
ADVANCE = Statement(
    "UPDATE schedule_index SET next_fire_at = :next_fire_at "
    "WHERE user_id = :user_id AND key = :key",
    "UPDATE schedule_index AS old SET next_fire_at = new.next_fire_at "
    "FROM unnest(:user_id::text[], :key::text[], :next_fire_at::bigint[]) "
    "AS new (user_id, key, next_fire_at) "
    "WHERE old.user_id = new.user_id AND old.key = new.key",
)

# Collections -------------------------------------------------------------------------------------

INSERT_RECORD = _both(
    "INSERT INTO schedule_records (user_id, key, state) VALUES (:user_id, :key, :state) "
    "ON CONFLICT (user_id, key) DO NOTHING RETURNING key"
)

_RECORD = "SELECT state FROM schedule_records WHERE user_id = :user_id AND key = :key"
GET_RECORD = _both(_RECORD)
LOCK_RECORD = Statement(_RECORD, f"{_RECORD} FOR UPDATE")

UPDATE_RECORD = _both(
    "UPDATE schedule_records SET state = :state WHERE user_id = :user_id AND key = :key"
)

DELETE_RECORD = _both(
    "DELETE FROM schedule_records WHERE user_id = :user_id AND key = :key RETURNING key"
)

RECORDS_OF_USER = _both(
    "SELECT user_id, key, state FROM schedule_records WHERE user_id = :user_id ORDER BY key"
)

# Rebuilding --------------------------------------------------------------------------------------

# No record may change during the rebuild. On SQLite the transaction itself ensures that.
LOCK_RECORDS = Statement("SELECT 1", "LOCK TABLE schedule_records IN SHARE ROW EXCLUSIVE MODE")

RECORDS_WITH_ROWS = _both(
    "SELECT r.user_id, r.key, r.state, i.cron, i.timezone, i.next_fire_at "
    "FROM schedule_records AS r LEFT JOIN schedule_index AS i "
    "ON i.user_id = r.user_id AND i.key = r.key "
    "WHERE (r.user_id, r.key) > (:user_id, :key) ORDER BY r.user_id, r.key LIMIT :limit"
)

ROWS_WITHOUT_RECORD = _both(
    "SELECT i.user_id, i.key FROM schedule_index AS i WHERE NOT EXISTS "
    "(SELECT 1 FROM schedule_records AS r WHERE r.user_id = i.user_id AND r.key = i.key)"
)

RECORDS = _both(
    "SELECT user_id, key, state, NULL, NULL, NULL FROM schedule_records "
    "WHERE (user_id, key) > (:user_id, :key) ORDER BY user_id, key LIMIT :limit"
)
