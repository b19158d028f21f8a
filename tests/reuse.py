"""One PostgreSQL database for many tests: emptied after each, replaced when more was changed.

Making and dropping a database takes a fifth of a second, which is most of what a small test takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from tests.kept import KeptConnections, forget, keep_connections
from tests.levels import READ_COMMITTED

# What tells whether only rows were changed: relations, columns, functions, triggers, settings, and
# duly's own marks.
# 16384 is the first number that PostgreSQL gives to what users make.
SHAPE = """
    WITH spaces AS MATERIALIZED (SELECT oid FROM pg_namespace WHERE nspname !~ '^pg_'),
    relations AS MATERIALIZED (
        SELECT oid, relnatts FROM pg_class
        WHERE oid >= 16384 AND relnamespace IN (SELECT oid FROM spaces))
    SELECT
        (SELECT (count(*), max(oid), sum(relnatts))::text FROM relations),
        (SELECT (count(*), sum(atttypid::bigint), count(*) FILTER (WHERE attnotnull))::text
            FROM pg_attribute WHERE attrelid >= 16384 AND NOT attisdropped
                AND attrelid IN (SELECT oid FROM relations)),
        (SELECT (count(*), max(oid), sum(hashtext(prosrc)))::text FROM pg_proc
            WHERE oid >= 16384),
        (SELECT (count(*), string_agg(tgenabled::text, ''))::text FROM pg_trigger
            WHERE NOT tgisinternal),
        (SELECT count(*) FROM spaces),
        (SELECT string_agg(setconfig::text, '') FROM pg_db_role_setting s
            JOIN pg_database d ON d.oid = s.setdatabase WHERE d.datname = current_database()),
        (SELECT string_agg(m::text, '' ORDER BY m::text) FROM duly.meta m),
        (SELECT string_agg(m::text, '' ORDER BY m::text) FROM duly.migrations m)"""
# In one statement: the way to the server and back fifty times takes longer than the work.
EMPTY = """
    DO $$ DECLARE place text; BEGIN
        FOR place IN SELECT oid::regclass::text FROM pg_class
            WHERE relnamespace::regnamespace::text !~ '^(pg_|information_schema)'
                AND relkind IN ('r', 'p') AND NOT relispartition
                AND oid NOT IN ('duly.meta'::regclass, 'duly.migrations'::regclass)
            ORDER BY relname <> 'jobs', 1
        LOOP EXECUTE 'DELETE FROM ' || place; END LOOP;
    END $$"""
# Beside the marks of the migration there is what a ticker has noted.
NOTED = "DELETE FROM duly.meta WHERE key <> ALL (%s)"
OTHERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> ALL (%s)
        AND backend_type = 'client backend'"""


class ReusedDatabase:
    """A copy of a template, used by one test after the other; `isolation` is its default level."""

    def __init__(self, server: str, template: str, isolation: str = READ_COMMITTED) -> None:
        self._server = server
        self._template = template
        self._isolation = isolation
        self._name: str | None = None
        self._cleaner: psycopg.Connection[tuple[object, ...]] | None = None
        self._kept: KeptConnections | None = None
        self._marks: list[object] = []
        self._shape: object = None

    @property
    def url(self) -> str:
        if self._name is None:
            self._name = f"test_{uuid4().hex[:16]}"
            self._on_server(f"CREATE DATABASE {self._name} TEMPLATE {self._template}")
            if self._isolation != READ_COMMITTED:
                level = f"default_transaction_isolation = '{self._isolation}'"
                self._on_server(f"ALTER DATABASE {self._name} SET {level}")
            # Kept: a new one has to learn the catalogs, which takes longer than to clean.
            self._cleaner = psycopg.connect(self._url, autocommit=True)
            self._marks = [key for (key,) in self._cleaner.execute("SELECT key FROM duly.meta")]
            self._shape = self._look(self._cleaner)
            self._kept = keep_connections(self._url)
        return self._url

    @property
    def _url(self) -> str:
        return f"{self._server.rpartition('/')[0]}/{self._name}"

    def lend(self, request: pytest.FixtureRequest) -> Iterator[str]:
        """The database for one test; a new one, and for it alone, if it is marked so."""
        alone = request.node.get_closest_marker("new_database") is not None
        if not alone:
            yield self.url
            self.clean()
            return
        self.drop()
        url = self.url
        self._forget_connections()
        yield url
        self.drop()

    def clean(self) -> None:
        """Make it as it was, or give it up."""
        assert self._cleaner is not None
        try:
            self._empty(self._cleaner)
        except psycopg.Error:
            self.drop()

    def _empty(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        connection.execute(OTHERS, [self._kept.pids() if self._kept else []])
        connection.execute(NOTED, [self._marks])
        if self._look(connection) != self._shape:
            raise psycopg.DataError("a test has changed more than rows")
        connection.execute(EMPTY)

    @staticmethod
    def _look(connection: psycopg.Connection[tuple[object, ...]]) -> object:
        return connection.execute(SHAPE).fetchone()

    def drop(self) -> None:
        if self._cleaner is not None:
            self._cleaner.close()
            self._cleaner = None
        self._forget_connections()
        if self._name is not None:
            self._on_server(f"DROP DATABASE {self._name} WITH (FORCE)")
            self._name = None

    def _forget_connections(self) -> None:
        if self._kept is not None:
            forget(self._kept)
            self._kept = None

    def _on_server(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement.encode())
