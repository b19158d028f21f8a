"""The server as its clients see it, on both stores, on a clock that stands still."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Duly
from duly.server import make_asgi

Client = TestClient


@pytest.fixture
def postgres_url(postgres_with_notes: str) -> str:
    return postgres_with_notes


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


class Surfer:
    """Somebody with a browser that keeps cookies and sends forms as pages have them."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, path: str, **more: Any) -> Any:
        return self.client.get(path, follow_redirects=False, **more)

    def post(self, path: str, **fields: Any) -> Any:
        if "duly_csrf" not in self.client.cookies:
            self.client.get("/login")
        token = self.client.cookies.get("duly_csrf") or ""
        return self.client.post(path, data={"csrf": token, **fields}, follow_redirects=False)

    def log_in(self, secret: str) -> Any:
        return self.post("/login", token=secret, next="/schedules")

    def done(self, path: str, **fields: Any) -> str:
        """Do it, and give the page that follows."""
        answer = self.post(path, **fields)
        assert answer.status_code == 303, answer.text
        page = self.client.get(answer.headers["location"])
        assert page.status_code == 200
        return str(page.text)


@pytest.fixture
def surfer(shop: Duly) -> Iterator[Surfer]:
    with TestClient(make_asgi(shop)) as client:
        yield Surfer(client)
