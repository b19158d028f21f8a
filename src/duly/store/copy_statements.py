"""The statements that copy a store to another database. See statements.py for how they are written.

Every column of a table is copied: the columns and their types are read from the database, not
listed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duly.model.system import TABLES as SHOWN
from duly.store.statements import Dialect, both, each

Types = Mapping[str, str]
"""The columns of a table and their types, as the database names them."""

# Rows that belong to one database only: its schema, and the processes that use it.
OF_THE_PLACE = frozenset({"meta", "migrations", "workers", "slots"})
KEYS: dict[str, tuple[str, ...]] = {
    name: shown.key for name, shown in sorted(SHOWN.items()) if name not in OF_THE_PLACE
}
"""Every table that is copied, with the columns of its key."""
NUMBERING = frozenset({"seq", "bucket"})
"""Columns of the history table that only one of the two databases has."""

# The mark ----------------------------------------------------------------------------------------

# A process that changes the mark of a store holds it until its transaction ends.
PUT_MARK = both(
    "INSERT INTO @meta (key, value) VALUES ('copy', :mark) ON CONFLICT (key) DO NOTHING RETURNING 1"
)
LOCK_MARK = each(
    sqlite="SELECT value FROM @meta WHERE key = 'copy'",
    postgres="SELECT value FROM @meta WHERE key = 'copy' FOR UPDATE",
)
DROP_META = both("DELETE FROM @meta WHERE key = :key")

# Of queues without any settings.
FORGET_QUEUE = both(
    "DELETE FROM @queues WHERE name = :name AND paused_at IS NULL AND at_once IS NULL"
)
RUNNING = both("SELECT count(*) FROM @jobs WHERE worker_id IS NOT NULL")
TAKEN_SLOTS = both("SELECT count(*) FROM @slots")

# A store that is shut ----------------------------------------------------------------------------

# A process that holds this row in an uncommitted transaction may still write.
LET_PASS = both("INSERT INTO @meta (key, value) VALUES ('copying', '')")
STOP_PASS = both("DELETE FROM @meta WHERE key = 'copying'")
_NOT_LET = "NOT EXISTS (SELECT 1 FROM @meta WHERE key = 'copying')"
_WRITES = ("insert", "update", "delete")

# Fires for every statement, even one that would change nothing.
_REFUSE = f"""CREATE OR REPLACE FUNCTION @schema.refuse_write() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF {_NOT_LET} THEN
        RAISE EXCEPTION USING MESSAGE = (SELECT value FROM @meta WHERE key = 'refused');
    END IF;
    RETURN NULL;
END $$"""


def shut(dialect: Dialect, tables: Sequence[str], message: str) -> list[str]:
    """Refuse every write to these tables. PostgreSQL reads the message from the meta table."""
    if dialect == "postgres":
        return [_REFUSE, *(_refuse_on(table) for table in tables)]
    makes = [_abort_on(table, write, message) for table in tables for write in _WRITES]
    return [*unshut(dialect), *makes]


def _refuse_on(table: str) -> str:
    return f"""CREATE OR REPLACE TRIGGER refuse_write
        BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON @{table}
        FOR EACH STATEMENT EXECUTE FUNCTION @schema.refuse_write()"""


def _abort_on(table: str, write: str, message: str) -> str:
    # An @ would be taken for one of our names.
    text = message.replace("'", "''").replace("@", "(at)")
    return f"""CREATE TRIGGER duly_refuse_{write}_{table} BEFORE {write} ON @{table}
        WHEN {_NOT_LET} BEGIN SELECT RAISE(ABORT, '{text}'); END"""


def unshut(dialect: Dialect) -> list[str]:
    """Allow writes again."""
    if dialect == "postgres":
        drops = [f"DROP TRIGGER IF EXISTS refuse_write ON @{table}" for table in KEYS]
        return [*drops, "DROP FUNCTION IF EXISTS @schema.refuse_write()"]
    return [f"DROP TRIGGER IF EXISTS duly_refuse_{w}_{table}" for table in KEYS for w in _WRITES]


# Tables ------------------------------------------------------------------------------------------


def columns_of(dialect: Dialect, table: str) -> str:
    if dialect == "sqlite":
        return f"SELECT name, lower(type) FROM pragma_table_info('@{table}')"
    return f"""SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
        WHERE attrelid = '@{table}'::regclass AND attnum > 0 AND NOT attisdropped"""


def count_all(table: str) -> str:
    return f"SELECT count(*) FROM @{table}"


def is_used(table: str) -> str:
    return f"SELECT 1 FROM @{table} LIMIT 1"


def delete_all(table: str) -> str:
    return f"DELETE FROM @{table}"


def page(dialect: Dialect, table: str, types: Types, *, beyond: bool) -> str:
    """Whole rows in key order, with ids as text."""
    read = ", ".join(_read(dialect, column, kind) for column, kind in types.items())
    return _in_order(dialect, table, types, read, beyond)


def sizes(dialect: Dialect, table: str, types: Types, *, beyond: bool) -> str:
    """The size in bytes of the arguments and results of those rows."""
    size = "coalesce({}_bytes, 0)" if dialect == "sqlite" else "coalesce(octet_length({}), 0)"
    read = " + ".join(size.format(name) for name in ("args", "result") if name in types)
    return _in_order(dialect, table, types, read, beyond)


def _in_order(dialect: Dialect, table: str, types: Types, read: str, beyond: bool) -> str:
    names = KEYS[table]
    key = ", ".join(f't."{column}"' for column in names)
    given = ", ".join(_parameter(dialect, column, types[column]) for column in names)
    where = f" WHERE ({key}) > ({given})" if beyond else ""
    return f"SELECT {read} FROM @{table} t{where} ORDER BY {key} LIMIT :limit"


def _read(dialect: Dialect, column: str, kind: str) -> str:
    return f't."{column}"::text' if (dialect, kind) == ("postgres", "uuid") else f't."{column}"'


def _parameter(dialect: Dialect, column: str, kind: str) -> str:
    return f":{column}::{kind}" if dialect == "postgres" else f":{column}"


def insert(dialect: Dialect, table: str, types: Types) -> str:
    """One row on SQLite, an array of values for each column on PostgreSQL."""
    columns = ", ".join(f'"{column}"' for column in types)
    into = f"INSERT INTO @{table} ({columns})"
    if dialect == "sqlite":
        return f"{into} VALUES ({', '.join(f':{column}' for column in types)})"
    arrays = ", ".join(f":{column}::{kind}[]" for column, kind in types.items())
    return f"{into} SELECT * FROM unnest({arrays})"
