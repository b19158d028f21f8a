"""A PostgreSQL database with duly's tables in it, for every test that does not test migration."""

from collections.abc import Iterator

import pytest

from duly.store.postgres import PostgresStore
from tests.levels import READ_COMMITTED, STRICTER
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
def reused_templates(
    postgres_server: str, migrated_template: str
) -> Iterator[dict[str, ReusedDatabase]]:
    """By the isolation level that they have; one that nobody asks for is not made."""
    databases = {
        level: ReusedDatabase(postgres_server, migrated_template, level)
        for level in (READ_COMMITTED, *STRICTER)
    }
    yield databases
    for database in databases.values():
        database.drop()


@pytest.fixture
def migrated_postgres(
    reused_templates: dict[str, ReusedDatabase], request: pytest.FixtureRequest
) -> Iterator[str]:
    """The DSN of a database with duly's tables that only this test has at this time.

    A class of tests may have a `level`.
    """
    level = getattr(request.cls, "level", READ_COMMITTED)
    yield from reused_templates[level].lend(request)
