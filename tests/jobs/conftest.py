"""An app on both stores, on a clock that stands still."""

from collections.abc import Iterator, Sequence

import pytest

from duly import Duly, ManualClock
from tests.jobs.support import Database, Hire, ManualWorker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(url: str, clock: ManualClock) -> Iterator[Duly]:
    """A migrated app without functions; the database also has a table `notes` of the user's."""
    app = Duly(url, clock=clock)
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE notes (text text)")
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
