"""The shop of examples/django_shop with every table made, to be copied for each test."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.frameworks.django_processes import Host, prepare
from tests.postgres import fresh_database


@pytest.fixture(scope="session")
def django_host() -> Iterator[Host]:
    with closing(Host()) as host:
        yield host


@pytest.fixture(scope="session")
def shop_file(django_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    prepare(django_host, "sqlite", folder)
    return folder / "shop.db"


@pytest.fixture(scope="session")
def shop_database(
    django_host: Host, postgres_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with fresh_database(postgres_server) as url:
        prepare(django_host, url, tmp_path_factory.mktemp("shop"))
        yield url.rpartition("/")[2]


@pytest.fixture
def shop_url(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a copy, which on SQLite is the shop's file in the test's folder."""
    if url.startswith("sqlite"):
        shutil.copyfile(request.getfixturevalue("shop_file"), tmp_path / "shop.db")
        yield url
        return
    template = request.getfixturevalue("shop_database")
    with fresh_database(request.getfixturevalue("postgres_server"), template) as copy:
        yield copy
