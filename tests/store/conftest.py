"""A PostgreSQL database with duly's tables in it, for every test that does not test migration."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from duly.store.postgres import PostgresStore
from tests.postgres import fresh_database

NOW = 1_767_225_600_000


@pytest.fixture(scope="session")
def migrated_template(postgres_server: str) -> Iterator[str]:
    """The name of a database to copy: much faster than to migrate for each test."""
    with fresh_database(postgres_server) as url:
        store = PostgresStore(url)
        store.migrate(NOW)
        store.close()
        yield url.rpartition("/")[2]


@pytest.fixture
def migrated_postgres(postgres_server: str, migrated_template: str) -> Iterator[str]:
    """The DSN of a database with duly's tables that only this test has."""
    name = f"test_{uuid4().hex[:16]}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(create.format(sql.Identifier(name), sql.Identifier(migrated_template)))
        yield f"{postgres_server.rpartition('/')[0]}/{name}"
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
