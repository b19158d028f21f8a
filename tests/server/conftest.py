"""The server as its clients see it, on both stores, on a clock that stands still."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, Tx
from duly.server import make_asgi
from tests.jobs.conftest import (
    app,
    clock,
    db,
    hire,
    migrated_database,
    migrated_file,
    postgres_url,
    reused_database,
)

__all__ = [
    "app",
    "clock",
    "db",
    "hire",
    "migrated_database",
    "migrated_file",
    "postgres_url",
    "reused_database",
]

Client = TestClient


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


@pytest.fixture
def client(shop: Duly) -> Iterator[TestClient]:
    """A client of a server that lets everybody in."""
    with TestClient(make_asgi(shop, auth="open")) as client:
        yield client


@pytest.fixture
def guarded(shop: Duly) -> Iterator[TestClient]:
    """A client of a server that asks for tokens; it has none yet."""
    with TestClient(make_asgi(shop)) as client:
        yield client


@pytest.fixture
def bearer(shop: Duly) -> Callable[..., dict[str, Any]]:
    """Headers with a new token of these scopes, of an owner or of nobody in particular."""

    def make(*scopes: str, owner: str | None = None) -> dict[str, Any]:
        made = shop.tokens.create("test", scopes, owner=owner)
        return {"Authorization": f"Bearer {made.secret}"}

    return make
