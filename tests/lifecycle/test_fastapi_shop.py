"""The shop of examples/fastapi_shop, in this process and under uvicorn with two of its own."""

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from duly import ManualClock
from tests.cli.processes import TOP, environment, wait_until
from tests.lifecycle.conftest import Serve

FOLDER = TOP / "examples/fastapi_shop"
LAMP = {"item": "lamp", "email": "ada@example.org"}


@pytest.fixture
def shop_url(url: str) -> str:
    """As SQLAlchemy takes it."""
    return url.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture
def shop(shop_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example as a module of its own on an empty database, with its tables."""
    monkeypatch.setenv("SHOP_DATABASE_URL", shop_url)
    monkeypatch.setenv("SHOP_MAILS", str(tmp_path / "mails"))
    spec = importlib.util.spec_from_file_location("fastapi_shop", FOLDER / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    shop = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fastapi_shop", shop)
    spec.loader.exec_module(shop)
    shop.create_tables()
    yield shop
    shop.app.close()
    shop.engine.dispose()


def order(client: TestClient) -> dict[str, Any]:
    answer = client.post("/orders", json=LAMP)
    assert answer.status_code == 201
    placed: dict[str, Any] = answer.json()
    return placed


def on_shelf(shop: ModuleType) -> int:
    with Session(shop.engine) as session:
        left: int = session.get_one(shop.Stock, "lamp").on_shelf
        return left


def test_an_order_is_reserved_paid_for_and_stays_so(shop: ModuleType, tmp_path: Path):
    with TestClient(shop.web) as client:
        placed = order(client)
        assert shop.app.job(placed["reserve"]).result(timeout=60) == "reserved"
        assert shop.app.job(placed["receipt"]).result(timeout=60) == "ada@example.org"

        assert client.get("/orders/1").json()["state"] == "reserved"
        assert client.get(f"/jobs/{placed['receipt']}").json()["state"] == "succeeded"
        assert client.post("/orders/1/pay").json()["state"] == "paid"
        assert client.post("/orders/1/pay").status_code == 409

    (expiry,) = shop.app.jobs(function="expire")
    with shop.app.transaction() as tx:
        assert shop.expire(tx, 1) is False
    assert 890 < (expiry.run_at - expiry.created_at).total_seconds() < 910
    assert on_shelf(shop) == 2
    assert len(list((tmp_path / "mails").iterdir())) == 1
    assert shop.app.workers() == []


def test_an_order_that_nobody_pays_for_expires(shop: ModuleType, monkeypatch: pytest.MonkeyPatch):
    clock = ManualClock()
    monkeypatch.setattr(shop.app.core, "clock", clock)
    with TestClient(shop.web) as client:
        placed = order(client)
        assert shop.app.job(placed["reserve"]).result(timeout=60) == "reserved"
        assert on_shelf(shop) == 2
        (expiry,) = shop.app.jobs(function="expire")
        clock.advance(899)
        assert client.get("/orders/1").json()["state"] == "reserved"

        clock.advance(1)

        assert expiry.result(timeout=60) is True
        assert client.get("/orders/1").json()["state"] == "expired"
        assert client.post("/orders/1/pay").status_code == 409
    assert on_shelf(shop) == 3


def test_the_last_lamp_is_sold_once(shop: ModuleType):
    with TestClient(shop.web) as client:
        placed = [order(client) for _ in range(5)]
        states = [shop.app.job(one["reserve"]).result(timeout=60) for one in placed]
    assert Counter(states) == {"reserved": 3, "sold out": 2}
    assert on_shelf(shop) == 0


def test_an_order_that_fails_leaves_no_jobs(shop: ModuleType, monkeypatch: pytest.MonkeyPatch):
    client = TestClient(shop.web, raise_server_exceptions=False)
    monkeypatch.setattr(shop, "send_receipt", "not a function")
    assert client.post("/orders", json=LAMP).status_code == 500
    assert client.post("/orders", json=LAMP | {"item": "sofa"}).status_code == 404
    assert client.post("/orders", json=LAMP | {"email": "?"}).status_code == 422
    assert shop.app.jobs() == []
    assert client.get("/orders/1").status_code == 404
    assert client.get("/jobs/nobody").status_code == 404


def test_a_receipt_is_tried_again(shop: ModuleType, monkeypatch: pytest.MonkeyPatch):
    deliver, keys = shop.deliver, []

    def fail_at_first(key: str, email: str, text: str) -> None:
        keys.append(key)
        if len(keys) == 1:
            raise ConnectionError("the mail server is away")
        deliver(key, email, text)

    monkeypatch.setattr(shop, "deliver", fail_at_first)
    clock = ManualClock()
    monkeypatch.setattr(shop.app.core, "clock", clock)
    with TestClient(shop.web) as client:
        placed = order(client)
        receipt = shop.app.job(placed["receipt"])
        wait_until(lambda: keys and receipt.state == "pending", "it waits for the second attempt")
        clock.advance(3600)
        assert receipt.result(timeout=60) == "ada@example.org"
        assert client.get(f"/jobs/{receipt.id}").json()["attempt"] == 2
    assert keys == [receipt.id, receipt.id]


def test_two_uvicorn_processes_run_every_job_once(
    shop: ModuleType, serve: Serve, shop_url: str, tmp_path: Path
):
    def command(fd: int) -> list[str]:
        uvicorn = [sys.executable, "-m", "uvicorn", "shop:web"]
        return [*uvicorn, "--workers=2", f"--fd={fd}", f"--app-dir={FOLDER}"]

    env = {"SHOP_DATABASE_URL": shop_url, "SHOP_MAILS": str(tmp_path / "mails")}
    server = serve(command, env, tmp_path)
    wait_until(lambda: len(shop.app.workers()) == 2, "both processes work")

    with ThreadPoolExecutor(8) as clients:
        placed = list(clients.map(lambda _: server.ask("/orders", LAMP), range(40)))
    jobs = [shop.app.job(one[name]) for one in placed for name in ("reserve", "receipt")]
    states = Counter(job.result(timeout=60) for job in jobs)

    assert states == {"reserved": 3, "sold out": 37, "ada@example.org": 40}
    assert on_shelf(shop) == 0
    assert {path.stem for path in (tmp_path / "mails").iterdir()} == {p["receipt"] for p in placed}
    assert {job.attempt for job in jobs} == {1}
    assert len(shop.app.jobs(function="expire", state="pending")) == 3
    assert len({worker.pid for worker in shop.app.workers()}) == 2
    assert server.stop() == 0
    assert shop.app.workers() == []


def test_the_tables_are_made_by_the_command_of_the_readme(tmp_path: Path):
    env = environment(SHOP_DATABASE_URL=f"sqlite:///{tmp_path}/shop.db")
    for _ in range(2):
        subprocess.run([sys.executable, str(FOLDER / "shop.py")], env=env, check=True, timeout=60)
    assert (tmp_path / "shop.db").exists()
