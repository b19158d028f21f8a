"""Canaries: no secret is found in a log, an answer or a database, whatever was done with it."""

import base64
import hashlib
import hmac
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, Redact, every
from duly.errors import DulyError
from duly.server import make_asgi
from duly.webhooks import Bearer as BearerSource
from duly.webhooks import GitHub
from tests.jobs.support import Database, Hire
from tests.server.listening import Heard, Reply, listening
from tests.server.test_gateways import Process

V1 = "/api/v1"
HMAC_SECRET = "canary-hmac-0001"
HOOK_BEARER = "canary-hook-bearer-0002"
ENDPOINT_KEY = base64.b64encode(b"canary-endpoint-key-0003").decode()
ENDPOINT_AUTH = "canary-endpoint-auth-0004"
DISPATCH = "canary-dispatch-0005"
GATEWAY = "canary-gateway-0006"
WRONG = "canary-wrong-bearer-0007"
PLAIN = "canary-plain-where-a-reference-belongs-0008"
HIDDEN = "canary-hidden-argument-0009"
CANARIES = [
    *(HMAC_SECRET, HOOK_BEARER, ENDPOINT_KEY, ENDPOINT_AUTH),
    *(DISPATCH, GATEWAY, WRONG, PLAIN),
]


def spellings(secret: str) -> list[bytes]:
    raw = secret.encode()
    return [raw, base64.b64encode(raw), base64.urlsafe_b64encode(raw), raw.hex().encode()]


def leaks(secrets: list[str], where: bytes) -> list[str]:
    lower = where.lower()
    return [
        secret
        for secret in secrets
        if any(text in where or text.lower() in lower for text in spellings(secret))
    ]


class Recorded:
    """A client that keeps every answer, headers and all."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self.answers: list[bytes] = []

    def __call__(self, method: str, path: str, **given: Any) -> Any:
        answer = self._client.request(method, path, **given)
        self.answers.append(repr(answer.headers).encode() + answer.content)
        assert answer.status_code < 500 or answer.status_code in (502, 503), answer.text
        return answer


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, secret=GATEWAY)
    yield process
    if process.running:
        process.end()


@pytest.fixture
def secretive(app: Duly, monkeypatch: pytest.MonkeyPatch) -> Duly:
    """An app that has secrets of every kind."""
    for name, value in {
        "HOOK_BEARER": HOOK_BEARER,
        "ENDPOINT_KEY": f"whsec_{ENDPOINT_KEY}",
        "ENDPOINT_AUTH": f"Bearer {ENDPOINT_AUTH}",
        "DISPATCH": DISPATCH,
        "GATEWAY": GATEWAY,
        "OTHER": WRONG,
    }.items():
        monkeypatch.setenv(name, value)

    @app.action
    def fails(ctx: Ctx, event_id: str) -> None:
        raise RuntimeError("it fails")

    @app.action
    def whisper(ctx: Ctx, name: str, hidden: Annotated[str, Redact]) -> str:
        logging.getLogger("shop").info("for %s", name)
        return name

    @app.action
    def count(ctx: Ctx, hidden: Annotated[int, Redact]) -> int:
        raise ValueError("no")

    app.webhook("github", source=GitHub(secrets=[HMAC_SECRET]), process=fails)
    app.webhook("bearer", source=BearerSource(secrets=["env:HOOK_BEARER"]), process=fails)
    app.dispatch.secrets = ["env:DISPATCH"]
    app.endpoints.allow = ["127.0.0.1"]
    app.functions.publish()
    return app


def use_hooks(ask: Recorded) -> None:
    body = b'{"a": 1}'
    digest = hmac.new(HMAC_SECRET.encode(), body, hashlib.sha256).hexdigest()
    right = {"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={digest}"}
    for delivery in ("1", "1", "2"):
        answer = ask(
            "POST", "/hooks/github", content=body, headers={**right, "X-GitHub-Delivery": delivery}
        )
        assert answer.status_code == 200
    ask("POST", "/hooks/github", content=b"{}", headers={**right, "X-GitHub-Delivery": "3"})
    ask("POST", "/hooks/github", content=body)
    for secret, status in ((HOOK_BEARER, 200), (WRONG, 401), ("", 401)):
        headers = {"Authorization": f"Bearer {secret}"}
        assert ask("POST", "/hooks/bearer", content=body, headers=headers).status_code == status
    headers = {"Authorization": f"Bearer {HOOK_BEARER}"}
    assert ask("POST", "/hooks/bearer", content=b"{", headers=headers).status_code == 400


def use_endpoints(ask: Recorded, app: Duly, hire: Hire, admin: dict[str, str]) -> None:
    def echo(heard: Heard) -> Reply:
        return Reply(
            500, str(heard.headers).encode(), (("X-Echo", heard.headers["authorization"]),)
        )

    with listening() as listener:
        listener.reply = echo
        given = {
            "url": listener.url,
            "secret": "env:ENDPOINT_KEY",
            "headers": {"Authorization": "env:ENDPOINT_AUTH"},
            "retry": {"attempts": 2, "delay": 0, "jitter": 0},
        }
        for name, changes in {
            "echoes": {},
            "gone": {"url": "http://127.0.0.1:1/"},
            "no-key": {"secret": "env:OTHER"},
            "no-secret": {"secret": "env:NOWHERE"},
        }.items():
            body = given | changes | {"name": name}
            made = ask("POST", f"{V1}/endpoints", json=body, headers=admin)
            assert made.status_code == 201, made.text
            path = f"{V1}/endpoints/{made.json()['id']}/send"
            assert ask("POST", path, json={"body": {}}, headers=admin).status_code == 202
        hire().work()
        assert f"Bearer {ENDPOINT_AUTH}" == listener.heard[0].headers["authorization"]
    refused: list[dict[str, Any]] = [
        {"secret": PLAIN},
        {"headers": {"Authorization": PLAIN}},
        {"headers": {"X-Api-Key": PLAIN}},
        {"url": f"http://user:{PLAIN}@127.0.0.1/"},
        {"secret": [PLAIN]},
        {"headers": {"X": [PLAIN]}},
    ]
    for changes in refused:
        body = given | {"name": "refused"} | changes
        answer = ask("POST", f"{V1}/endpoints", json=body, headers=admin)
        assert answer.status_code == 422, (changes, answer.text)


def use_dispatch(ask: Recorded, app: Duly) -> None:
    body = {"nominalFireTime": app.clock.now(), "idempotencyKey": "k", "input": {"event_id": "x"}}
    for secret, status in ((DISPATCH, 202), (DISPATCH, 200), (WRONG, 401)):
        headers = {"Authorization": f"Bearer {secret}"}
        answer = ask("POST", f"{V1}/dispatch/fails", json=body, headers=headers)
        assert answer.status_code == status, answer.text


def use_gateways(ask: Recorded, process: Process, admin: dict[str, str]) -> None:
    found = {}
    for name, secret, url in (
        ("edge", "env:GATEWAY", process.url),
        ("wrong", "env:OTHER", process.url),
        ("gone", "env:GATEWAY", "http://127.0.0.1:1"),
    ):
        body = {"name": name, "url": url, "secret": secret}
        made = ask("POST", f"{V1}/gateways", json=body, headers=admin)
        assert made.status_code == 201, made.text
        found[name] = made.json()["id"]
    cron = {"handler": "fail", "schedule": {"kind": "every", "every_ms": 3_600_000}}
    made = ask("POST", f"{V1}/gateways/{found['edge']}/crons", json=cron, headers=admin)
    assert made.status_code == 201, made.text
    path = f"{V1}/gateways/{found['edge']}/crons/{made.json()['id']}/run"
    assert ask("POST", path, headers=admin).status_code == 200
    for name in ("wrong", "gone"):
        answer = ask("POST", f"{V1}/gateways/{found[name]}/crons", json=cron, headers=admin)
        assert answer.status_code >= 400
    for body in (
        {"name": "x", "url": process.url, "secret": PLAIN},
        {"name": "x", "url": f"http://user:{PLAIN}@127.0.0.1/", "secret": "env:GATEWAY"},
    ):
        assert ask("POST", f"{V1}/gateways", json=body, headers=admin).status_code == 422


def use_hidden_arguments(ask: Recorded, hire: Hire, admin: dict[str, str]) -> None:
    def call(function: str, **args: Any) -> Any:
        body = {"function": function, "args": args}
        return ask("POST", f"{V1}/jobs", json=body, headers=admin)

    made = call("whisper", name="ada", hidden=HIDDEN)
    assert made.status_code == 201, made.text
    assert call("count", hidden=HIDDEN).status_code == 422
    assert call("whisper", name="ada", hidden=[HIDDEN]).status_code == 422
    assert call("whisper", name=7, hidden=HIDDEN).status_code == 422
    schedule = {
        "key": "quietly",
        "function": "whisper",
        "args": {"name": "ada", "hidden": HIDDEN},
        "cron": "0 9 * * *",
    }
    scheduled = ask("POST", f"{V1}/schedules", json=schedule, headers=admin)
    assert scheduled.status_code == 201, scheduled.text
    ask("POST", f"{V1}/schedules/{scheduled.json()['id']}/run", json={}, headers=admin)
    hire().work()


def read_everything(ask: Recorded, admin: dict[str, str]) -> None:
    """Every list, and everything that is in one."""
    paths = ask("GET", f"{V1}/openapi.json").json()["paths"]
    lists = [path for path, methods in paths.items() if "get" in methods and "{" not in path]
    lists.remove(f"{V1}/events")
    parameters = {
        f"{V1}/cron": {"expression": "0 9 * * *"},
        f"{V1}/schedules/named": {"key": "quietly"},
    }
    things = [path for path, methods in paths.items() if "get" in methods and path.count("{") == 1]
    for path in lists:
        answer = ask("GET", path, params=parameters.get(path), headers=admin)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        if "json" not in answer.headers["content-type"]:
            continue
        found = answer.json()
        items = found.get("items", []) if isinstance(found, dict) else found
        for item in items:
            for each in things:
                name = item.get("id") or item.get("name")
                if name and each.startswith(f"{path}/{{"):
                    before, _, after = each.partition("{")
                    ask("GET", before + name + after.partition("}")[2], headers=admin)


def dump(db: Database) -> dict[str, bytes]:
    """Every table with all of its columns."""
    if db.is_sqlite:
        named = "SELECT name FROM sqlite_master WHERE type = 'table'"
    else:
        named = (
            "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
        )
    tables = [name for (name,) in db.connect().execute(named).fetchall()]
    rows = {name: db.connect().execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    return {
        name: b"\n".join(_bytes(v) for row in found for v in row) for name, found in rows.items()
    }


def _bytes(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()


def test_no_secret_is_found_anywhere(
    secretive: Duly, hire: Hire, db: Database, gateway: Process, caplog: pytest.LogCaptureFixture
):
    app = secretive
    caplog.set_level(logging.DEBUG)
    first = app.tokens.create("admin", ["admin"])
    admin = {"Authorization": f"Bearer {first.secret}"}
    with TestClient(make_asgi(app)) as client:
        ask = Recorded(client)
        body, key = {"name": "ci", "scopes": ["read"]}, {"Idempotency-Key": "once"}
        shown = client.post(f"{V1}/tokens", json=body, headers=admin | key)
        token = shown.json()["secret"]
        again = ask("POST", f"{V1}/tokens", json=body, headers=admin | key)
        assert again.json()["secret"] is None
        held = {"Authorization": f"Bearer {token}"}
        assert ask("GET", f"{V1}/jobs", headers=held).status_code == 200
        assert ask("GET", f"{V1}/tokens", headers=held).status_code == 403
        ask("POST", f"{V1}/tokens/{again.json()['id']}/revoke", headers=admin)
        assert ask("GET", f"{V1}/jobs", headers=held).status_code == 401
        for scheme in ("Bearer", "bearer", "Basic", "Digest"):
            headers = {"Authorization": f"{scheme} {WRONG}"}
            assert ask("GET", f"{V1}/jobs", headers=headers).status_code == 401

        use_hooks(ask)
        use_endpoints(ask, app, hire, admin)
        use_dispatch(ask, app)
        use_gateways(ask, gateway, admin)
        use_hidden_arguments(ask, hire, admin)
        read_everything(ask, admin)

    secrets = [*CANARIES, first.secret, token]
    assert leaks([*secrets, HIDDEN], b"\n".join(ask.answers)) == []
    records = "\n".join(f"{record.__dict__}" for record in caplog.records) + caplog.text
    assert "for ada" in records, "records were taken"
    assert leaks([*secrets, HIDDEN], records.encode()) == []

    tables = dump(db)
    assert len(tables) > 20
    for name, content in tables.items():
        assert leaks(secrets, content) == [], name
    holding = {name.rpartition(".")[2] for name in tables if leaks([HIDDEN], tables[name])}
    plain = {name.removeprefix("duly_") for name in holding}
    called_from = ("jobs", "all_jobs", "history", "schedules")
    assert plain
    assert all(name.startswith(called_from) for name in plain), plain

    gateway.end()
    files = [path for path in gateway.folder.rglob("*") if path.is_file()]
    assert any(path.name == "crons.db" for path in files)
    for path in files:
        if path.name.startswith("crons"):
            assert leaks(secrets, path.read_bytes()) == [], path
    assert leaks(secrets, "".join(gateway.said).encode()) == []
    shown_things = [app, app.tokens, first, app.dispatch, app.webhooks, app.gateways, app.endpoints]
    shown_things += [*app.webhooks.declared.values(), *app.endpoints.list(), *app.gateways.list()]
    assert leaks(secrets, repr(shown_things).encode()) == []


def test_errors_do_not_show_what_may_be_a_secret(app):
    said: list[str] = []
    for attempt in (
        lambda: app.endpoints.create("x", "https://a.example/", secret=PLAIN),
        lambda: app.endpoints.create("x", "https://a.example/", headers={"Authorization": PLAIN}),
        lambda: app.gateways.add("x", "http://127.0.0.1:1", secret=PLAIN),
        lambda: app.gateways.add("x", f"http://u:{PLAIN}@127.0.0.1:1", secret="env:X"),
        lambda: app.gateways.add("x", "http://127.0.0.1:1", every(hours=1)),
        lambda: setattr(app.dispatch, "secrets", [PLAIN, 7]),
        lambda: app.webhook("x", source=GitHub(secrets=[PLAIN, ""]), process=lambda: None),
    ):
        with suppress(TypeError):
            try:
                attempt()
            except DulyError as error:
                said.append(f"{error} {error!r} {error.__dict__}")
    assert len(said) >= 4
    assert leaks([PLAIN], "".join(said).encode()) == []
