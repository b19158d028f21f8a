"""Fixtures that several folders use: migrated databases, and an app on a clock that stands still.

tests/conftest.py registers this plugin, so that no conftest imports fixtures from another.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from duly import Ctx, Duly, ManualClock, Tx
from tests.jobs.support import Database, Hire, ManualWorker, prepare
from tests.levels import READ_COMMITTED, STRICTER
from tests.postgres import fresh_database
from tests.reuse import ReusedDatabase

Reused = dict[str, ReusedDatabase]


@contextmanager
def reused_databases(server: str, prepare: Callable[[Duly], object]) -> Iterator[Reused]:
    """Prepared databases by their isolation level; one that no test asks for is not created."""
    with fresh_database(server) as url:
        with closing(Duly(url)) as app:
            prepare(app)
        template = url.rpartition("/")[2]
        databases = {
            level: ReusedDatabase(server, template, level) for level in (READ_COMMITTED, *STRICTER)
        }
        yield databases
        for database in databases.values():
            database.drop()


@pytest.fixture(scope="session")
def migrated_databases(postgres_server: str) -> Iterator[Reused]:
    with reused_databases(postgres_server, Duly.migrate) as databases:
        yield databases


@pytest.fixture(scope="session")
def databases_with_notes(postgres_server: str) -> Iterator[Reused]:
    with reused_databases(postgres_server, prepare) as databases:
        yield databases


@pytest.fixture
def migrated_postgres(migrated_databases: Reused, request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a migrated database that only this test has at this time.

    A class of tests may have a `level`.
    """
    level = getattr(request.cls, "level", READ_COMMITTED)
    yield from migrated_databases[level].lend(request)


@pytest.fixture
def postgres_with_notes(
    databases_with_notes: Reused, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The same with a user's table `notes`."""
    yield from databases_with_notes[READ_COMMITTED].lend(request)


@pytest.fixture
def postgres_repeatable_read_url(
    databases_with_notes: Reused, request: pytest.FixtureRequest
) -> Iterator[str]:
    yield from databases_with_notes["repeatable read"].lend(request)


@pytest.fixture
def postgres_serializable_url(
    databases_with_notes: Reused, request: pytest.FixtureRequest
) -> Iterator[str]:
    yield from databases_with_notes["serializable"].lend(request)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with the same tables: copying it takes a fiftieth of the time."""
    file = tmp_path_factory.mktemp("migrated") / "duly.db"
    prepare(Duly(f"sqlite:///{file}")).close()
    return file


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(url: str, clock: ManualClock, migrated_file: Path) -> Iterator[Duly]:
    """An app without functions on a migrated database, which also has a user's table `notes`.

    In a folder that uses this fixture, `postgres_url` is `postgres_with_notes`.
    """
    if url.startswith("sqlite"):
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
        threads: int | None = None,
        queues: Sequence[str] | None = None,
        alone: str | None = None,
    ) -> ManualWorker:
        sizes = {"concurrency": concurrency, "threads": threads or concurrency}
        hired.append(ManualWorker(of, **sizes, queues=queues, alone=alone))
        return hired[-1]

    yield make
    for worker in hired:
        worker.stop()


@pytest.fixture
def shop(app: Duly) -> Duly:
    """The app with some functions, published as by a worker."""

    @app.action
    def greet(ctx: Ctx, name: str, times: int = 1) -> str:
        return f"hello, {name}" * times

    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))

    @app.action(internal=True)
    def secretly(ctx: Ctx) -> None: ...

    app.functions.publish()
    return app
