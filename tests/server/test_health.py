"""/healthz, /readyz and app.health(): whether everything works, in words and for machines."""

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import pytest
from starlette.testclient import TestClient

from duly import Duly
from duly.errors import StoreUnavailable
from duly.model.measure import CAP
from duly.observe.health import LATE_MS
from duly.server import make_asgi
from duly.store import measures


class Broken:
    """A store that does not answer; whatever else is asked of it would be a mistake."""

    def __getattr__(self, name: str):
        raise AssertionError(f"nobody may ask the database for {name}")


def unreachable():
    raise StoreUnavailable("canary: connection to db.internal refused")


@pytest.fixture
def hourly(shop: Duly) -> Duly:
    shop.schedules.create("hourly", shop.functions["greet"].bind("ada"), every=timedelta(hours=1))
    return shop


# The report --------------------------------------------------------------------------------------


def test_a_quiet_app_is_healthy(shop):
    report = shop.health()
    assert report.ready
    assert report.ticking
    assert report.database
    assert report.schema
    assert (report.evaluator_lag_ms, report.worker_lag_ms, report.queues) == (0, 0, ())
    assert report.warnings == ()
    assert msgspec.to_builtins(report)["schedules"] == {"active": 0, "parked": 0, "inactive": 0}


def test_a_worker_that_is_behind_is_seen_in_the_lag(shop, clock, hire):
    greet = shop.functions["greet"]
    shop.run(greet, "ada")
    shop.run_after(timedelta(hours=1), greet, "bob")
    clock.advance(5)
    report = shop.health()
    (queue,) = report.queues
    assert (queue.name, queue.lag_ms, queue.due, queue.later) == ("default", 5_000, 1, 1)
    assert (report.worker_lag_ms, report.workers) == (5_000, 0)
    clock.advance(120)
    assert shop.health().worker_lag_ms == 125_000
    assert shop.health().warnings == ("jobs have been due for 125 s; no worker is running",)
    assert shop.health().ready, "that is for workers to mend, not for whoever enqueues"
    worker = hire()
    assert shop.health().warnings == ("jobs have been due for 125 s; the workers cannot keep up",)
    worker.work()
    report = shop.health()
    assert (report.worker_lag_ms, report.workers, report.queues[0].due) == (0, 1, 0)


def test_a_paused_queue_is_no_lag_of_the_workers(shop, clock):
    shop.run(shop.functions["greet"], "ada")
    shop.queues.pause("default")
    clock.advance(100)
    report = shop.health()
    assert (report.worker_lag_ms, report.queues[0].lag_ms) == (0, 100_000)
    assert report.warnings == ("queue 'default' is paused with jobs waiting in it",)
    shop.queues.resume("default")
    shop.pause("a fire drill")
    assert shop.health().worker_lag_ms == 0
    assert shop.health().paused
    assert "everything is paused" in shop.health().warnings


def test_schedules_that_nobody_ticks_are_seen(hourly, clock):
    clock.advance(3600 + LATE_MS // 1000)
    report = hourly.health()
    assert (report.evaluator_lag_ms, report.ticking, report.ready) == (LATE_MS, True, True)
    clock.advance(1)
    report = hourly.health()
    assert (report.evaluator_lag_ms, report.ready) == (LATE_MS + 1_000, False)
    assert report.warnings == ("schedules have been overdue for 61 s; is a ticker running?",)
    assert report.schedules is not None
    assert report.schedules.active == 1
    hourly.schedules.disable("hourly")
    report = hourly.health()
    assert report.ready
    assert report.schedules is not None
    assert report.schedules.inactive == 1


def test_nothing_is_counted_beyond_the_limit(shop, clock, monkeypatch):
    monkeypatch.setattr(measures, "CAP", 3)
    greet = shop.functions["greet"]
    for priority in (1, 5):
        for _ in range(2):
            shop.run(greet.using(priority=priority), "ada")
    (depth,) = shop.store.depths(clock.now())
    assert (depth.due, depth.later, depth.capped) == (3, 0, False)
    assert msgspec.structs.replace(depth, due=CAP).capped


# Over HTTP ---------------------------------------------------------------------------------------


def test_healthz_touches_nothing_and_says_nothing(shop, monkeypatch):
    client = TestClient(make_asgi(shop))
    monkeypatch.setattr(shop.core, "store", Broken())
    answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"ok": True})


def test_readyz_is_open_and_terse(hourly, clock):
    client = TestClient(make_asgi(hourly))
    answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True,
        "checks": {"database": True, "tables": True, "schedules": True},
    }
    clock.advance(3600 + 61)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "ready": False,
        "checks": {"database": True, "tables": True, "schedules": False},
    }


def test_readyz_asks_the_database_once_a_second_at_most(shop, clock, monkeypatch):
    client = TestClient(make_asgi(shop))
    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(shop.core, "ready", unreachable)
    assert client.get("/readyz").status_code == 200
    clock.advance(1)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["database"] is False
    assert "canary" not in answer.text


def test_a_database_that_hangs_holds_one_thread_and_nobody_up(shop, bearer, monkeypatch):
    monkeypatch.setattr("duly.server.health.ANSWER_SECONDS", 0.2)
    token, ready, goes_on = bearer("read"), shop.core.ready, threading.Event()
    door = TestClient(make_asgi(shop))
    open_door = TestClient(make_asgi(shop, auth="open", only={"health"}, metrics_open=True))

    def hangs():
        goes_on.wait(30)
        return ready()

    monkeypatch.setattr(shop.core, "ready", hangs)
    try:
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(lambda _: door.get("/readyz"), range(50)))
        assert {answer.status_code for answer in answers} == {503}
        assert {answer.json()["checks"]["database"] for answer in answers} == {False}
        looking = [each for each in threading.enumerate() if each.name == "duly-health"]
        assert len(looking) == 1
        assert door.get("/healthz").status_code == 200
        answer = door.get("/metrics", headers=token)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        answer = open_door.get("/metrics")
        assert (answer.status_code, "duly_up 0\n" in answer.text) == (200, True)
    finally:
        goes_on.set()
    for thread in looking:
        thread.join(20)
    monkeypatch.setattr("duly.server.health.ANSWER_SECONDS", 20)  # for slow machines
    assert door.get("/readyz").status_code == 200
    assert "duly_up 1\n" in door.get("/metrics", headers=token).text


def test_an_app_without_tables_is_not_ready(tmp_path):
    app = Duly(f"sqlite:///{tmp_path / 'new.db'}", auto_migrate=False)
    client = TestClient(make_asgi(app))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert client.get("/healthz").status_code == 200
    app.close()


def test_only_health_serves_health_and_nothing_else(shop, bearer):
    client = TestClient(make_asgi(shop, only={"health"}))
    assert client.get("/healthz").status_code == 200
    assert client.get("/api/v1/jobs").status_code == 404
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=bearer("read")).status_code == 200
    rest = TestClient(make_asgi(shop, auth="open", only={"api"}))
    assert rest.get("/healthz").status_code == 404


def test_open_metrics_are_only_for_an_address_of_their_own(tmp_path):
    (tmp_path / "shop.py").write_text(
        f"from duly import Duly\napp = Duly('sqlite:///{tmp_path}/shop.db')\n"
    )
    command = [sys.executable, "-m", "duly", "--app", "shop:app", "serve", "--open-metrics"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "--only health" in refused.stderr


def test_health_and_open_metrics_from_a_process_of_their_own(tmp_path):
    (tmp_path / "shop.py").write_text(
        f"from duly import Duly\napp = Duly('sqlite:///{tmp_path}/shop.db')\n"
    )
    new = Duly(f"sqlite:///{tmp_path}/shop.db")
    new.migrate()
    new.close()
    command = [sys.executable, "-m", "duly", "--app", "shop:app", "serve", "--port", "0"]
    command += ["--only", "health", "--open-metrics"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            greeting = next(line for line in server.stderr if "http://" in line)
            address = re.findall(r"http://\S+", greeting)[0].rstrip("/")

            def get(path: str) -> tuple[int, str]:
                with urlopen(f"{address}{path}", timeout=20) as answer:
                    return answer.status, answer.read().decode()

            assert get("/healthz") == (200, '{"ok": true}')
            assert json.loads(get("/readyz")[1])["ready"] is True
            assert "duly_up 1\n" in get("/metrics")[1]
            with pytest.raises(HTTPError) as refused:
                get("/api/v1/jobs")
            refused.value.close()
            assert refused.value.code == 404
        finally:
            server.terminate()
