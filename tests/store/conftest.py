"""A PostgreSQL database with duly's tables in it, for every test that does not test migration."""

from collections.abc import Iterator

import pytest

from duly.store.postgres import PostgresStore
from tests.postgres import fresh_database
from tests.reuse import ReusedDatabase

NOW = 1_767_225_600_000


@pytest.fixture(scope="session")
def migrated_template(postgres_server: str) -> Iterator[str]:
    """The name of a database to copy: much faster than to migrate for each test."""
    with fresh_database(postgres_server) as url:
        store = PostgresStore(url)
        store.migrate(NOW)
        store.close()
        yield url.rpartition("/")[2]


@pytest.fixture(scope="session")
def reused_template(postgres_server: str, migrated_template: str) -> Iterator[ReusedDatabase]:
    database = ReusedDatabase(postgres_server, migrated_template)
    yield database
    database.drop()


@pytest.fixture
def migrated_postgres(
    reused_template: ReusedDatabase, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The DSN of a database with duly's tables that only this test has at this time."""
    yield from reused_template.lend(request)
