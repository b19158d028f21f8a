"""The pytest plugin: `duly_app`, the app under test with its own store and clock.

Name the app in pytest's configuration (`duly_app = "shop.tasks:app"`), or override the fixture
`duly_app_under_test`. An app on SQLite has a private file in each test. For an app on PostgreSQL,
DULY_TEST_URL or `duly_test_url` names a database: each test process has a schema there, which is
emptied before each test.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator

import pytest

from duly.app import Duly
from duly.clock import ManualClock
from duly.errors import without_password
from duly.testing.kit import PRIVATE, clock_of, override

URL = "DULY_TEST_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("duly_app", "the duly app under test, as module:app")
    parser.addini("duly_test_url", f"the test database; {URL} in the environment takes precedence")


@pytest.fixture(scope="session")
def duly_app_under_test(request: pytest.FixtureRequest) -> Duly:
    """The app for `duly_app`: as named in the configuration."""
    path = request.config.getini("duly_app")
    if not path:
        pytest.fail("name the app under test: duly_app = module:app in pytest's configuration")
    app = _named(path)
    if not isinstance(app, Duly):
        pytest.fail(f"duly_app: {path} is not a duly app but {app!r}")
    return app


def _named(path: str) -> object:
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
    except Exception as error:
        pytest.fail(f"duly_app: {module} cannot be imported: {type(error).__name__}: {error}")
    try:
        return getattr(found, name or "app")
    except AttributeError:
        pytest.fail(f"duly_app: {module} has no {name or 'app'!r}", pytrace=False)


@pytest.fixture(scope="session")
def duly_test_url(request: pytest.FixtureRequest, duly_app_under_test: Duly) -> str:
    """The URL of the database that `duly_app` uses: as configured, or a private SQLite file."""
    url: str = os.environ.get(URL) or request.config.getini("duly_test_url") or ""
    where = f"{URL}, or duly_test_url in pytest's configuration"
    if not url and duly_app_under_test.core.store.address().dialect == "postgres":
        pytest.fail(
            f"the app under test is on PostgreSQL: set {where}, to the URL of a test database, "
            f"or to {PRIVATE} to test on SQLite",
            pytrace=False,
        )
    if url and url != PRIVATE and not url.startswith(("postgres://", "postgresql")):
        shown = without_password(url)
        pytest.fail(f"{where}, must be postgresql://… or {PRIVATE}, not {shown!r}", pytrace=False)
    return url or PRIVATE


@pytest.fixture(scope="session")
def duly_schema(duly_app_under_test: Duly, duly_test_url: str) -> Iterator[str]:
    """The schema of this test process, if the tests run on PostgreSQL."""
    schema = f"duly_test_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{os.getpid()}"
    yield schema
    if duly_test_url != PRIVATE:
        with override(duly_app_under_test, duly_test_url, schema=schema) as app:
            _execute(app, f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def duly_app(duly_app_under_test: Duly, duly_test_url: str, duly_schema: str) -> Iterator[Duly]:
    """The app under test, with an empty store and a clock that stands still."""
    with override(duly_app_under_test, duly_test_url, schema=duly_schema) as app:
        if duly_test_url != PRIVATE:
            _execute(app, EMPTY.format(schema=duly_schema))
        yield app


@pytest.fixture
def duly_clock(duly_app: Duly) -> ManualClock:
    """The clock of the app under test."""
    return clock_of(duly_app)


# The identity of the store and its version are kept.
EMPTY = """DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'
        AND tablename NOT IN ('meta', 'migrations') LOOP
        EXECUTE format('TRUNCATE {schema}.%I CASCADE', name);
    END LOOP;
END $$"""


def _execute(app: Duly, statement: str) -> None:
    with app.transaction() as tx:
        tx.execute(statement)
