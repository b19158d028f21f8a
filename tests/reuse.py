"""One PostgreSQL database for many tests: emptied after each, replaced when more was changed.

Making and dropping a database takes a fifth of a second, which is most of what a small test takes.
"""

from __future__ import annotations

from uuid import uuid4

import psycopg
from psycopg import sql

# What tells whether only rows were changed: relations, functions, settings of the database.
SHAPE = """
    SELECT string_agg(what, ' ' ORDER BY what) FROM (
        SELECT c.oid::regclass::text || ' ' || c.relkind::text AS what
        FROM pg_class c WHERE c.relnamespace::regnamespace::text !~ '^(pg_|information_schema)'
            AND c.relkind IN ('p', 'v', 'S')
        UNION ALL SELECT a.attrelid::regclass::text || '.' || a.attname || ' ' || a.atttypid::text
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace::regnamespace::text !~ '^(pg_|information_schema)'
            AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace::regnamespace::text !~ '^(pg_|information_schema)'
        UNION ALL SELECT t.tgname || ' on ' || t.tgrelid::regclass::text FROM pg_trigger t
        WHERE NOT t.tgisinternal
        UNION ALL SELECT i.indexrelid::regclass::text FROM pg_index i
        JOIN pg_class c ON c.oid = i.indrelid
        WHERE c.relnamespace::regnamespace::text !~ '^(pg_|information_schema)'
        UNION ALL SELECT n.nspname::text FROM pg_namespace n
        UNION ALL SELECT setconfig::text FROM pg_db_role_setting s
        JOIN pg_database d ON d.oid = s.setdatabase WHERE d.datname = current_database()
    ) shape"""
TABLES = """
    SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relnamespace::regnamespace::text !~ '^(pg_|information_schema)'
        AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    ORDER BY c.relname <> 'jobs', 1"""
OTHERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'"""
RESTORED = ("duly.meta", "duly.migrations")


class ReusedDatabase:
    """A copy of a template, used by one test after the other."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._template = template
        self._name: str | None = None
        self._shape = ""
        self._rows: dict[str, list[tuple[object, ...]]] = {}

    @property
    def url(self) -> str:
        if self._name is None:
            self._name = f"test_{uuid4().hex[:16]}"
            self._on_server(f"CREATE DATABASE {self._name} TEMPLATE {self._template}")
            with psycopg.connect(self._url, autocommit=True) as connection:
                self._shape = self._look(connection)
                for table in RESTORED:
                    rows = connection.execute(sql.SQL("SELECT * FROM " + table)).fetchall()
                    self._rows[table] = rows
        return self._url

    @property
    def _url(self) -> str:
        return f"{self._server.rpartition('/')[0]}/{self._name}"

    def clean(self) -> None:
        """Make it as it was, or give it up."""
        try:
            self._empty()
        except psycopg.Error:
            self.drop()

    def _empty(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(OTHERS)
            if self._look(connection) != self._shape:
                raise psycopg.DataError("a test has changed more than rows")
            tables = [row[0] for row in connection.execute(TABLES)]
            with connection.transaction():
                for table in tables:
                    connection.execute(sql.SQL("DELETE FROM " + table))
                for table, rows in self._rows.items():
                    places = ", ".join(["%s"] * len(rows[0]))
                    into = sql.SQL(f"INSERT INTO {table} VALUES ({places})")
                    connection.cursor().executemany(into, rows)

    @staticmethod
    def _look(connection: psycopg.Connection[tuple[object, ...]]) -> str:
        row = connection.execute(SHAPE).fetchone()
        assert row is not None
        return str(row[0])

    def drop(self) -> None:
        if self._name is not None:
            self._on_server(f"DROP DATABASE {self._name} WITH (FORCE)")
            self._name = None

    def _on_server(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement.encode())
