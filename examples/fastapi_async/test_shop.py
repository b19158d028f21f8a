"""Run with: DULY_TEST_URL=postgresql://localhost/shop_test pytest"""

import asyncio
import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from shop import Session, Table, create_tables, print_album, web
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

from duly import Duly
from duly.testing import assert_enqueued, assert_not_enqueued, drain

ALBUM = {"email": "ada@example.org", "pages": 4}


@pytest.fixture
def client(duly_app: Duly, duly_test_url: str) -> Iterator[TestClient]:
    """The application on the test database, with empty tables."""
    url = duly_test_url.replace("postgresql://", "postgresql+asyncpg://")
    # NullPool: the test client and drain use different event loops.
    engine = create_async_engine(url, poolclass=NullPool)
    Session.configure(bind=engine)

    async def empty_tables() -> None:
        async with engine.begin() as connection:
            await connection.run_sync(Table.metadata.drop_all)
        await create_tables(engine)

    asyncio.run(empty_tables())
    with TestClient(web) as client:
        yield client


def test_an_album_is_printed(client: TestClient, duly_app: Duly) -> None:
    placed = client.post("/albums", json=ALBUM).json()
    assert_enqueued(duly_app, print_album.bind(placed["album"]))
    assert client.get(f"/albums/{placed['album']}").json()["state"] == "ordered"

    [job] = drain(duly_app)

    assert job.result() == "4 pages for ada@example.org"
    assert client.get(f"/albums/{placed['album']}").json()["state"] == "printed"


def test_a_refused_order_leaves_nothing(client: TestClient, duly_app: Duly) -> None:
    assert client.post("/albums", json=ALBUM | {"email": "eve@blocked.example"}).status_code == 403
    assert client.post("/albums", json=ALBUM | {"pages": 0}).status_code == 422
    assert_not_enqueued(duly_app)
    assert client.get("/albums/1").status_code == 404


def test_progress_is_streamed(client: TestClient, duly_app: Duly) -> None:
    job = client.post("/albums", json=ALBUM).json()["job"]
    drain(duly_app)
    [line] = [s for s in client.get(f"/jobs/{job}/events").text.splitlines() if s[:5] == "data:"]
    assert json.loads(line[5:]) == {"state": "succeeded", "progress": 1.0, "note": "page 4 of 4"}
    assert client.get("/jobs/unknown/events").status_code == 404


def test_the_dashboard_asks_for_a_token(client: TestClient) -> None:
    assert client.get("/ops/jobs").url.path == "/ops/login"
