"""Fixtures for code that brings its own transaction."""

from collections.abc import Iterator

import pytest

from duly import Ctx, Duly
from duly.calls.kinds import Action
from tests.callers.handles import ON_POSTGRES, ON_SQLITE, Caller
from tests.levels import is_parametrized

POSTGRES = pytest.mark.postgres


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once for each handle, on the database that it is for; without one, once for each database."""
    if is_parametrized(metafunc, "caller"):
        return
    if "caller" in metafunc.fixturenames:
        handles = [pytest.param("sqlite", kind, id=name("sqlite", kind)) for kind in ON_SQLITE]
        handles += [
            pytest.param("postgres", kind, id=name("postgres", kind), marks=POSTGRES)
            for kind in ON_POSTGRES
        ]
        metafunc.parametrize(("url", "caller"), handles, indirect=True)
    elif "url" in metafunc.fixturenames and not is_parametrized(metafunc, "url"):
        both = ["sqlite", pytest.param("postgres", marks=POSTGRES)]
        metafunc.parametrize("url", both, indirect=True)


def name(database: str, kind: type[Caller]) -> str:
    return f"{database}-{kind.__name__}"


@pytest.fixture
def postgres_url(postgres_with_notes: str) -> str:
    return postgres_with_notes


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database."""
    database: str = request.getfixturevalue(f"{request.param}_url")
    return database


@pytest.fixture
def caller(request: pytest.FixtureRequest, app: Duly, url: str) -> Iterator[Caller]:
    """User code with a handle of its own for the app's database."""
    caller: Caller = request.param(url)
    yield caller
    caller.close()


@pytest.fixture
def hello(app: Duly) -> Action[[str], str]:
    @app.action
    def hello(ctx: Ctx, name: str) -> str:
        return f"hello, {name}"

    return hello
