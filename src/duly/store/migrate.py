"""Schema migrations: which ones are still to be applied, and whether this code may use the store.

The store holds `version` (the newest step applied) and `min_code` (the oldest code that may still
use it). A step first expands the schema, and only the next release contracts it, so that old and
new processes can run side by side.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources

import msgspec

from duly.errors import NotMigrated, StoreError, StoreTooNew
from duly.store import statements as sql
from duly.store.copy_mark import refuse_moved
from duly.store.statements import (
    Dialect,
    Statement,
    both,
)

CREATE_META = both("CREATE TABLE IF NOT EXISTS @meta (key text PRIMARY KEY, value text NOT NULL)")
READ_META = both("SELECT key, value FROM @meta")
WRITE_META = both(
    "INSERT INTO @meta (key, value) VALUES (:key, :value)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
CREATE_MIGRATIONS = both(
    "CREATE TABLE IF NOT EXISTS @migrations (version integer PRIMARY KEY, name text NOT NULL,"
    " checksum text NOT NULL, applied_at bigint NOT NULL)"
)
READ_MIGRATIONS = both("SELECT version, checksum FROM @migrations ORDER BY version")
WRITE_MIGRATION = both(
    "INSERT INTO @migrations (version, name, checksum, applied_at)"
    " VALUES (:version, :name, :checksum, :now)"
)
LOCK_MIGRATIONS = both("SELECT pg_advisory_xact_lock(hashtext('duly.migrate'))")
CREATE_SCHEMA = both("CREATE SCHEMA IF NOT EXISTS @schema")


class Migration(msgspec.Struct, frozen=True):
    """One numbered step of the schema."""

    version: int
    name: str
    min_code: int
    text: str

    @property
    def checksum(self) -> str:
        """Of the statements alone, so that a comment can be reworded later."""
        statements = " ".join(re.sub(r"--.*", "", self.text).split())
        return hashlib.sha256(statements.encode()).hexdigest()


@cache
def migrations(dialect: Dialect) -> Sequence[Migration]:
    """Every step that this code knows, oldest first."""
    folder = resources.files("duly.store.migrations")
    suffix = f".{dialect}.sql"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(suffix))
    return tuple(_read(name.removesuffix(suffix), (folder / name).read_text()) for name in names)


def _read(name: str, text: str) -> Migration:
    min_code = re.match(r"-- min_code: (\d+)\n", text)
    assert min_code, f"migration {name} does not say its min_code"
    return Migration(int(name.split("_")[0]), name, int(min_code[1]), text)


def code_version(dialect: Dialect) -> int:
    """The schema version that this code needs."""
    return migrations(dialect)[-1].version


def missing(dialect: Dialect, applied: Mapping[int, str]) -> list[Migration]:
    """The steps that are not applied yet. Raises if an applied step has a different text here."""
    steps = migrations(dialect)
    for step in steps:
        if applied.get(step.version, step.checksum) != step.checksum:
            raise StoreError(
                f"migration {step.name} was applied with a different text than this code has; "
                "the store belongs to a different build of duly"
            )
    return [step for step in steps if step.version not in applied]


def script(dialect: Dialect, words: dict[str, str], applied: Mapping[int, str], now: int) -> str:
    """Everything that `migrate` would run, in one transaction, for running it by hand."""

    def plain(statement: Statement, **values: str | int) -> str:
        # As for SQLite: names are filled in, and parameters are then replaced by their values.
        text = sql.render(getattr(statement, dialect), "sqlite", words)
        return re.sub(r":(\w+)", lambda match: _literal(values[match[1]]), text) + ";"

    steps = missing(dialect, applied)
    if not steps:
        return ""
    parts = ["PRAGMA journal_mode = WAL;"] if dialect == "sqlite" else []
    parts.append(f"{sql.BEGIN.decode()};" if dialect == "postgres" else "BEGIN;")
    if not applied:
        parts += [plain(CREATE_SCHEMA)] if dialect == "postgres" else []
        parts += [plain(CREATE_META), plain(CREATE_MIGRATIONS)]
        parts.append(plain(WRITE_META, key="store_id", value=new_store_id()))
    for step in steps:
        row = plain(
            WRITE_MIGRATION,
            version=step.version,
            name=step.name,
            checksum=step.checksum,
            now=now,
        )
        parts += [in_schema(step.text, words), row]
    parts.append(plain(WRITE_META, key="version", value=str(steps[-1].version)))
    parts.append(plain(WRITE_META, key="min_code", value=str(steps[-1].min_code)))
    return "\n".join([*parts, "COMMIT;", ""])


def in_schema(text: str, words: Mapping[str, str]) -> str:
    """A step's text with the schema name filled in."""
    return text.replace("__schema__", words["schema"])


def new_store_id() -> str:
    """An id that identifies a store."""
    return os.urandom(16).hex()


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def check(dialect: Dialect, meta: Mapping[str, str]) -> None:
    """Refuse a store that this code may not use."""
    if "version" not in meta:
        raise NotMigrated("duly's tables are not in this database; run `duly migrate`")
    code = code_version(dialect)
    if int(meta["min_code"]) > code:
        raise StoreTooNew(code, int(meta["min_code"]))
    if int(meta["version"]) < code:
        raise NotMigrated(
            f"duly's tables have version {meta['version']}, but this code needs {code}; "
            "run `duly migrate`"
        )
    refuse_moved(meta)


def split(text: str) -> Iterator[str]:
    """The statements of an SQLite script; triggers contain semicolons themselves."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if statement.strip() and sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
