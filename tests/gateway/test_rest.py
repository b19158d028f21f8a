"""The REST API of a gateway: who may ask, what is refused, and one shape of errors."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from duly import ManualClock, every
from duly.gateway import Gateway
from duly.gateway.server import MAX_BODY, make_app
from duly.ids import new_id
from tests.jobs.support import wait_until

SECRET = "canary-5f1c"


class Api:
    """Asks the ASGI application as a server would."""

    def __init__(self, gateway: Gateway, *, client: Any = ("127.0.0.1", 5000)) -> None:
        self._app = make_app(gateway)
        self._client = client

    def __call__(
        self, method: str, path: str, body: Any = None, *, host: str = "127.0.0.1", **options: Any
    ) -> httpx2.Response:
        return asyncio.run(self._ask(method, path, body, host, options))

    async def _ask(
        self, method: str, path: str, body: Any, host: str, options: dict[str, Any]
    ) -> httpx2.Response:
        transport = httpx2.ASGITransport(app=self._app, client=self._client)
        given = {} if body is None else {"json": body}
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, path, **given | options)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    clock = ManualClock(datetime(2026, 7, 1, 9, 0, tzinfo=UTC))
    gateway = Gateway(tmp_path / "crons.db", {"probe": lambda: None}, clock=clock).open()
    yield gateway
    gateway.stop()


@pytest.fixture
def api(gateway: Gateway) -> Api:
    return Api(gateway)


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message", "field", "hint"}
    error: dict[str, Any] = body["error"]
    return error


NEW = {"handler": "probe", "schedule": {"kind": "every", "every_ms": 60_000}}


@pytest.mark.spec("R43", "R44", "R45", "R46", "R47")
def test_a_cron_is_made_read_changed_run_and_removed(api, gateway):
    made = api("POST", "/cron", NEW)
    assert made.status_code == 201
    path = f"/cron/{made.json()['id']}"
    assert made.json()["next_at"] == "2026-07-01T09:01:00Z"
    assert api("GET", path).json() == made.json()
    assert api("GET", "/cron").json() == {"crons": [made.json()], "after": None}

    disabled = api("PATCH", path, {"enabled": False}).json()
    assert (disabled["enabled"], disabled["next_at"]) == (False, None)
    assert api("GET", "/cron").json()["crons"] == []
    assert len(api("GET", "/cron?disabled=true").json()["crons"]) == 1
    assert api("POST", path, {"enabled": True}).json()["next_at"] == "2026-07-01T09:01:00Z"

    assert api("POST", f"{path}/run", {"mode": "due"}).json() == {
        "ran": False,
        "reason": "not-due",
    }
    assert api("POST", f"{path}/run", {}).json() == {"ran": True, "reason": None}
    wait_until(lambda: gateway.cron_get(made.json()["id"]).last_status == "ok")

    assert api("DELETE", path).json() == {"removed": True}
    assert api("DELETE", path).json() == {"removed": False}


def test_a_cron_of_a_chosen_id_is_made_once(api, gateway):
    chosen = NEW | {"id": new_id(0), "schedule": {"kind": "at", "at": "2026-07-01T10:00:00Z"}}
    made = api("POST", "/cron", chosen)
    assert (made.status_code, made.json()["id"]) == (201, chosen["id"])
    # By then its time has passed, and a new one would be refused.
    gateway.clock.advance(7200)
    assert api("POST", "/cron", chosen).json()["id"] == chosen["id"]
    assert len(api("GET", "/cron?disabled=true").json()["crons"]) == 1
    assert api("POST", "/cron", NEW | {"id": new_id(1)}).status_code == 409


@pytest.mark.spec("R44")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (NEW | {"retries": 3}, "retries"),
        (NEW | {"schedule": {"kind": "every", "every_ms": 60_000, "x": 1}}, "schedule.x"),
        (NEW | {"schedule": {"kind": "never"}}, "schedule.kind"),
        (NEW | {"handler": "nobody"}, "handler"),
        (NEW | {"handler": 5}, "handler"),
        (NEW | {"payload": {"x": 1}}, "payload"),
        (NEW | {"enabled": "yes"}, "enabled"),
        (NEW | {"id": "mine"}, "id"),
        ({"handler": "probe"}, "schedule"),
        ([], None),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(api, body, field):
    answer = api("POST", "/cron", body)

    assert answer.status_code == 400
    assert error_of(answer)["field"] == field
    assert api("GET", "/cron?disabled=true").json()["crons"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/cron/nobody", None, 404, "cron_not_found"),
        ("PATCH", "/cron/nobody", {}, 404, "cron_not_found"),
        ("POST", "/cron/nobody/run", {}, 404, "cron_not_found"),
        ("GET", "/crons", None, 404, "not_found"),
        ("PUT", "/cron", {}, 405, "method_not_allowed"),
        ("GET", "/cron?limit=0", None, 400, "invalid"),
        ("GET", "/cron?limit=201", None, 400, "invalid"),
        ("GET", "/cron?limit=%D9%A3", None, 400, "invalid"),
        ("GET", "/cron?disabled=1", None, 400, "invalid"),
        ("GET", "/cron?after=x", None, 400, "invalid"),
        ("GET", "/cron?page=2", None, 400, "invalid"),
        ("POST", "/cron/x/run", {"mode": "often"}, 400, "invalid"),
        ("POST", "/cron/x/run", {"when": "now"}, 400, "invalid"),
    ],
)
def test_errors_have_one_shape(api, method, path, body, status, code):
    answer = api(method, path, body)

    assert (answer.status_code, error_of(answer)["code"]) == (status, code)


def test_a_second_cron_of_a_name_is_a_conflict(api):
    api("POST", "/cron", NEW)

    assert api("POST", "/cron", NEW).status_code == 409


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"\xff\xfe", JSON, 400),
        (b"[" * 50_000, JSON, 400),
        (b'{"handler": "' + b"x" * MAX_BODY + b'"}', JSON, 413),
        (json.dumps(NEW).encode(), {"Content-Type": "text/plain"}, 415),
        (json.dumps(NEW).encode(), {}, 415),
    ],
)
def test_bodies_that_are_no_json_are_refused(api, content, headers, status):
    answer = api("POST", "/cron", content=content, headers=headers)

    assert answer.status_code == status
    error_of(answer)


# Who may ask -------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setenv("GATEWAY_SECRET", SECRET)
    gateway = Gateway(tmp_path / "guarded.db", {"probe": print}, secret="env:GATEWAY_SECRET").open()
    yield gateway
    gateway.stop()


ROUTES = [
    ("GET", "/cron"),
    ("POST", "/cron"),
    ("GET", "/cron/x"),
    ("PATCH", "/cron/x"),
    ("POST", "/cron/x"),
    ("POST", "/cron/x/run"),
    ("DELETE", "/cron/x"),
]


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {SECRET}", f"Bearer {SECRET}x", SECRET, "é"],
)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_asks_for_the_secret(guarded, method, path, given):
    headers = {"Authorization": given.encode("latin-1")}
    answer = Api(guarded, client=("203.0.113.9", 1))(method, path, {}, headers=headers)

    assert answer.status_code == 401
    assert error_of(answer)["code"] == "unauthorized"
    assert SECRET not in answer.text + str(answer.headers)


def test_whoever_has_the_secret_may_ask_from_anywhere(guarded):
    api = Api(guarded, client=("203.0.113.9", 1))

    answer = api("GET", "/cron", host="edge", headers={"Authorization": f"Bearer {SECRET}"})

    assert answer.status_code == 200


def test_a_secret_that_is_gone_opens_nothing(guarded, monkeypatch):
    monkeypatch.delenv("GATEWAY_SECRET")

    assert Api(guarded)("GET", "/cron", headers={"Authorization": "Bearer "}).status_code == 503


@pytest.mark.parametrize(
    ("client", "host"),
    [
        (("203.0.113.9", 1), "127.0.0.1"),
        (None, "127.0.0.1"),
        (("127.0.0.1", 1), "rebound.example"),
        (("127.0.0.1", 1), "127.0.0.1.example"),
    ],
)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_secret_only_the_machine_itself_may_ask(gateway, method, path, client, host):
    answer = Api(gateway, client=client)(method, path, {}, host=host)

    assert (answer.status_code, error_of(answer)["code"]) == (403, "only_local")


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1", "localhost:8700"), ("::1", "[::1]:8700"), ("::1", "[::1]")]
)
def test_the_machine_itself_has_several_names(gateway, address, host):
    assert Api(gateway, client=(address, 1))("GET", "/cron", host=host).status_code == 200


def test_health_is_open_and_terse(guarded):
    answer = Api(guarded, client=("203.0.113.9", 1))("GET", "/healthz", host="edge")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_a_store_that_is_closed_is_unavailable(gateway):
    gateway.cron_add("probe", every(minutes=1))
    gateway.stop()

    assert Api(gateway)("GET", "/cron").status_code == 503
