"""`app.lifespan`: a worker that lives as long as an ASGI application serves, beside its loop."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.testclient import TestClient

from duly import Ctx, Duly
from duly.errors import StoreMissing
from tests.jobs.support import PATIENCE


@pytest.mark.parametrize("framework", [FastAPI, Starlette])
def test_jobs_run_while_it_serves(url: str, framework: type[Starlette]):
    app = Duly(url)
    app.migrate()

    @app.action
    def answer(ctx: Ctx) -> int:
        return 42

    for _ in range(2):
        with TestClient(framework(lifespan=app.lifespan)):
            assert app.run(answer).result(timeout=PATIENCE) == 42
            assert len(app.workers()) == 1
        assert app.workers() == []
    app.close()


def test_starting_does_not_block_the_loop(sqlite_url: str):
    """Somebody holds the write lock until the loop gets to let it go."""
    app = Duly(sqlite_url)
    app.migrate()

    async def serve(holder: sqlite3.Connection) -> None:
        holder.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.05, holder.rollback)
        async with app.lifespan(None):
            assert not holder.in_transaction
            assert len(app.workers()) == 1

    file = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        asyncio.run(serve(holder))
    app.close()


def test_stopping_does_not_block_the_loop(url: str):
    """A running job goes on until the loop gets to let it end."""
    app = Duly(url)
    app.migrate()
    began, go_on = threading.Event(), threading.Event()

    @app.action
    def wait(ctx: Ctx) -> bool:
        began.set()
        return go_on.wait(PATIENCE)

    async def serve() -> None:
        async with app.lifespan(None):
            job = app.run(wait)
            await asyncio.to_thread(began.wait, PATIENCE)
            asyncio.get_running_loop().call_later(0.05, go_on.set)
        assert job.result(timeout=0) is True

    asyncio.run(serve())
    assert app.workers() == []
    app.close()


def test_a_server_without_a_database_does_not_start(tmp_path: Path):
    app = Duly(f"sqlite:///{tmp_path}/missing.db")
    with pytest.raises(StoreMissing), TestClient(FastAPI(lifespan=app.lifespan)):
        pass
    app.close()
