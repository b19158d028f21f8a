"""An app on both stores, on a clock that stands still."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from duly import Duly, ManualClock
from tests.jobs.support import Database, Hire, ManualWorker, prepare
from tests.levels import STRICTER
from tests.postgres import fresh_database
from tests.reuse import ReusedDatabase


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def migrated_database(postgres_server: str) -> Iterator[str]:
    """A PostgreSQL database with every table that these tests need, to be copied."""
    with fresh_database(postgres_server) as url:
        prepare(Duly(url)).close()
        yield url.rpartition("/")[2]


@pytest.fixture(scope="session")
def reused_database(postgres_server: str, migrated_database: str) -> Iterator[ReusedDatabase]:
    database = ReusedDatabase(postgres_server, migrated_database)
    yield database
    database.drop()


@pytest.fixture
def postgres_url(reused_database: ReusedDatabase, request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a migrated database that only this test has at this time."""
    yield from reused_database.lend(request)


@pytest.fixture(scope="session")
def stricter_databases(
    postgres_server: str, migrated_database: str
) -> Iterator[dict[str, ReusedDatabase]]:
    """The same with another isolation level, by the level."""
    stricter = {
        level: ReusedDatabase(postgres_server, migrated_database, level) for level in STRICTER
    }
    yield stricter
    for database in stricter.values():
        database.drop()


@pytest.fixture
def postgres_repeatable_read_url(
    stricter_databases: dict[str, ReusedDatabase], request: pytest.FixtureRequest
) -> Iterator[str]:
    yield from stricter_databases["repeatable read"].lend(request)


@pytest.fixture
def postgres_serializable_url(
    stricter_databases: dict[str, ReusedDatabase], request: pytest.FixtureRequest
) -> Iterator[str]:
    yield from stricter_databases["serializable"].lend(request)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in an SQLite file: to copy it takes a fiftieth of the time."""
    file = tmp_path_factory.mktemp("migrated") / "duly.db"
    prepare(Duly(f"sqlite:///{file}")).close()
    return file


@pytest.fixture
def app(url: str, clock: ManualClock, migrated_file: Path) -> Iterator[Duly]:
    """A migrated app without functions; the database also has a table `notes` of the user's."""
    if url.startswith("sqlite"):  # the other is such a copy already
        shutil.copyfile(migrated_file, url.removeprefix("sqlite:///"))
    app = Duly(url, clock=clock)
    yield app
    app.close()


@pytest.fixture
def db(app: Duly, url: str) -> Iterator[Database]:
    """Plain SQL beside the app."""
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def hire(app: Duly) -> Iterator[Hire]:
    """Make workers that know the functions registered so far; they stop with the test."""
    hired: list[ManualWorker] = []

    def make(
        of: Duly = app,
        *,
        concurrency: int = 10,
        queues: Sequence[str] | None = None,
        alone: str | None = None,
    ) -> ManualWorker:
        hired.append(ManualWorker(of, concurrency=concurrency, queues=queues, alone=alone))
        return hired[-1]

    yield make
    for worker in hired:
        worker.stop()
