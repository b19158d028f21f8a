"""Asks the database itself whether its files are intact.

On SQLite this is its `integrity_check`. On PostgreSQL it is amcheck if the server has it; otherwise
every row is read, which verifies the page checksums, and every table is counted again through its
indexes.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from tests.jobs.support import Database

INDEXES = """SELECT i.indexrelid::regclass::text FROM pg_index i
    JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
    WHERE c.relnamespace = 'duly'::regnamespace AND c.relkind = 'i' AND a.amname = 'btree'"""
TABLES = """SELECT oid::regclass::text FROM pg_class
    WHERE relnamespace = 'duly'::regnamespace AND relkind = 'r'"""
HAS_AMCHECK = "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'"
BY_TABLE = ("SET enable_indexscan = off", "SET enable_indexonlyscan = off")
BY_INDEX = ("SET enable_seqscan = off", "SET enable_bitmapscan = off")


def damage(db: Database) -> Iterator[str]:
    """Every fault that was found; there must be none."""
    try:
        yield from _damage(db)
    except psycopg.Error as error:
        yield str(error)


def _damage(db: Database) -> Iterator[str]:
    if db.is_sqlite:
        yield from (text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok")
    elif db.scalar(HAS_AMCHECK):
        db.execute("CREATE EXTENSION amcheck")
        for (index,) in db.execute(INDEXES):
            db.execute("SELECT bt_index_check(?::regclass, true)", index)
    else:
        yield from _miscounted(db)


def _miscounted(db: Database) -> Iterator[str]:
    for (table,) in db.execute(TABLES):
        db.execute(f"SELECT sum(hashtext(t::text)::bigint) FROM {table} t")
        counts = [_count(db, table, way) for way in (BY_TABLE, BY_INDEX)]
        if len(set(counts)) > 1:
            yield f"{table} has {counts[0]} rows, and {counts[1]} by its index"


def _count(db: Database, table: str, settings: tuple[str, ...]) -> int:
    for setting in settings:
        db.execute(setting)
    try:
        return db.count(table)
    finally:
        db.execute("RESET ALL")
