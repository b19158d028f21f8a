"""Who may do what: every route with every scope, and with the things of another owner.

The routes are those of the OpenAPI document, so a new one is judged as soon as it is there.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from duly import Ctx, Duly
from duly.model.access import Scope
from duly.server import Principal, make_asgi
from duly.webhooks import Bearer
from tests.jobs.support import Database, on_postgres, on_sqlite, wait_until

SCOPES = [str(scope) for scope in Scope]
IMPLIED = {
    "read": {"read"},
    "enqueue": {"enqueue"},
    "operate": {"read", "enqueue", "operate"},
    "admin": set(SCOPES),
}
OPEN = {"/healthz", "/readyz"}
WITH_A_SECRET_OF_ITS_OWN = {"/api/v1/dispatch/{function}"}
STREAMS = {"/api/v1/events"}
CALL = {"function": "greet", "args": {"name": "ann"}}
# A request that is well formed, for each operation that needs a body.
BODIES: dict[str, Any] = {
    "jobs_create": CALL,
    "jobs_bulk": {"verb": "cancel", "function": "greet", "dry_run": True},
    "functions_set_status": {"verb": "pause"},
    "schedules_create": {"key": "new", **CALL, "every": "1h"},
    "schedules_check": {"key": "new", **CALL, "every": "1h"},
    "schedules_update": {"version": 1, "every_ms": 7_200_000},
    "schedules_move_next": {"to": "2026-01-01T00:30:00Z"},
    "schedules_attach": {"calendar": "weekends"},
    "schedules_set_rotation": {"rotation": [{"name": "bob"}]},
    "schedules_backfill": {
        "start": "2025-12-31T00:00:00Z",
        "end": "2025-12-31T01:00:00Z",
        "dry_run": True,
    },
    "schedules_explain_another": {"condition": {"/last_24h_stats/failed": {"lt": 3}}},
    "calendars_create": {"name": "new", "kind": "skip_dates", "dates": ["2026-12-24"]},
    "calendars_import_ical": {
        "name": "imported",
        "kind": "skip_dates",
        "tz": "UTC",
        "ical": "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART;VALUE=DATE:20261224\r\n"
        "END:VEVENT\r\nEND:VCALENDAR\r\n",
    },
    "calendars_holidays": {
        "name": "free",
        "kind": "skip_dates",
        "tz": "Europe/Berlin",
        "country": "DE",
        "years": [2026],
    },
    "calendars_update": {"version": 1, "dates": ["2026-12-25"]},
    "calendars_clone": {"name": "copy"},
    "calendars_compare": {"dates": ["2026-12-25"]},
    "conditions_validate": {"condition": {}},
    "conditions_explain": {"condition": {}, "context": {}},
    "operations_limit_queue": {"at_once": 3},
    "tokens_create": {"name": "new", "scopes": ["read"]},
    "endpoints_create": {"name": "new", "url": "https://example.com/x"},
    "endpoints_update": {"version": 1, "timeout": 5},
    "gateways_add": {"name": "new", "url": "http://127.0.0.1:9/"},
    "gateways_cron_add": {"handler": "probe", "schedule": {"kind": "every", "every_ms": 60_000}},
    "gateways_cron_update": {"enabled": False},
}
# What needs more than a path.
QUERIES = {
    "forecast_cron": {"expression": "0 9 * * *"},
    "schedules_named": {"key": "hourly", "owner": "ann"},
}
# What says whose things it asks for.
SAYS_WHOSE = {"schedules_named"}
# What is everybody's, so that a token of an owner may not use it at all.
EVERYBODYS = {
    "functions_set_status",
    "schedules_plan",
    "schedules_apply",
    "schedules_prune",
    "operations_pause_queue",
    "operations_resume_queue",
    "operations_limit_queue",
    "operations_workers",
    "operations_doctor",
    "operations_pause",
    "operations_resume",
    "operations_audit",
    "system_tables",
    "system_rows",
    "health_metrics",
    "gateways_add",
    "gateways_remove",
}
# What has an owner, by the name of the parameter.
OWNED = {"job_id", "schedule_id", "calendar", "token_id", "event_id", "endpoint_id", "gateway_id"}


REFUSALS = (401, 403, 404, 405, 422)


# What has to have happened before.
PREPARED: dict[str, Callable[[Duly, dict[str, str]], object]] = {
    "jobs_retry": lambda shop, ids: shop.cancel(ids["job_id"]),
    "schedules_enable": lambda shop, ids: shop.schedules.disable(ids["schedule_id"]),
    "schedules_detach": lambda shop, ids: shop.schedules.attach(ids["schedule_id"], "weekends"),
    "operations_resume": lambda shop, ids: shop.pause(),
    "webhooks_retry": lambda shop, ids: shop.cancel(
        shop.webhooks.get(ids["event_id"]).job_id or ""
    ),
}


class Operation(NamedTuple):
    name: str
    method: str
    path: str
    scope: str | None
    parameters: tuple[str, ...]
    needs_body: bool

    @property
    def changes(self) -> bool:
        """Whether an operator does something by it."""
        dry = self.name in BODIES and "dry_run" in BODIES[self.name]
        # Where code declares nothing, there is nothing to apply.
        nothing = dry or self.name in ("schedules_apply", "schedules_prune")
        return self.method != "GET" and self.scope in ("operate", "admin") and not nothing

    @property
    def is_owned(self) -> bool:
        return any(name in OWNED for name in self.parameters)

    def ask(self, client: TestClient, ids: dict[str, str], headers: dict[str, str]) -> Any:
        path = self.path.format(**{name: ids[name] for name in self.parameters})
        body = BODIES[self.name] if self.needs_body else None
        query = QUERIES.get(self.name)
        return client.request(self.method, path, json=body, params=query, headers=headers)


def prepare(operation: Operation, shop: Duly, ids: dict[str, str]) -> None:
    PREPARED.get(operation.name, lambda shop, ids: None)(shop, ids)


def operations() -> list[Operation]:
    app = Duly("sqlite:///:memory:")
    client = TestClient(make_asgi(app, auth="open"))
    document = client.get("/api/v1/openapi.json").json()
    app.close()
    return [
        Operation(
            operation["operationId"],
            method.upper(),
            path,
            operation.get("x-scope"),
            tuple(each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"),
            operation.get("requestBody", {}).get("required", False),
        )
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


OPERATIONS = operations()
ASKED = [each for each in OPERATIONS if each.path not in OPEN | STREAMS | WITH_A_SECRET_OF_ITS_OWN]
each_operation = pytest.mark.parametrize("operation", ASKED, ids=lambda each: each.name)


def test_every_route_says_which_scope_it_needs():
    without = {each.path for each in OPERATIONS if each.scope is None}
    assert without == OPEN | WITH_A_SECRET_OF_ITS_OWN
    assert {each.scope for each in ASKED} == set(SCOPES)


def test_an_owner_without_a_name_is_no_principal():
    with pytest.raises(ValueError, match="use None for no owner"):
        Principal("x", frozenset({Scope.READ}), owner="")


def test_every_body_is_one_of_an_operation():
    assert {each.name for each in ASKED if each.needs_body} == set(BODIES)
    assert {each.name for each in ASKED} >= EVERYBODYS


def _ids(shop: Duly, greet: Any) -> dict[str, str]:
    schedule = shop.schedules.of("ann").create("hourly", greet.bind("ann"), every=3600)
    calendar = shop.calendars.of("ann").create("closed", "skip_dates", dates=["2026-12-24"])
    endpoint = shop.endpoints.of("ann").create("billing", "https://example.com/hook")
    gateway = shop.gateways.of("ann").add("edge", "http://127.0.0.1:9/")
    event = shop.webhooks.receive("in", [("authorization", "Bearer s3cret")], b"{}")
    assert event.event_id is not None
    return {
        "job_id": shop.run(greet, "ann").id,
        "schedule_id": schedule.id,
        "calendar": calendar.id,
        "token_id": shop.tokens.create("hers", ["read"], owner="ann").token.id,
        "event_id": event.event_id,
        "endpoint_id": endpoint.id,
        "gateway_id": gateway.id,
        "cron_id": "nightly",
        "name": "greet",
        "table": "jobs",
    }


@pytest.fixture
def shop(app: Duly) -> Duly:
    @app.action
    def greet(ctx: Ctx, name: str, times: int = 1) -> str:
        return f"hello, {name}" * times

    @app.action
    def take(ctx: Ctx, event_id: str) -> None: ...

    app.webhook("in", source=Bearer(secrets=["s3cret"]), process=take, owner="ann")
    app.functions.publish()
    return app


@pytest.fixture
def ids(shop: Duly) -> dict[str, str]:
    """Things of ann's."""
    return _ids(shop, shop.functions["greet"].using(owner="ann"))


Bearing = Callable[..., dict[str, str]]


def test_without_a_token_nothing_is_told(guarded: TestClient, ids: dict[str, str]):
    for operation in ASKED:
        for given in (None, "Bearer duly_wrong", "Basic eDp5", "Bearer"):
            headers: dict[str, str] = {} if given is None else {"Authorization": given}
            answer = operation.ask(guarded, ids, headers)
            assert answer.status_code == 401, operation
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "unauthorized"


def test_a_scope_that_is_too_narrow_is_refused(
    guarded: TestClient, ids: dict[str, str], bearer: Bearing
):
    for held in SCOPES:
        headers = bearer(held)
        for operation in ASKED:
            if operation.scope not in IMPLIED[held]:
                answer = operation.ask(guarded, ids, headers)
                assert answer.status_code == 403, (operation, held)
                assert answer.json()["error"]["code"] == "forbidden"


@on_sqlite
@each_operation
def test_the_scope_that_it_names_is_enough(
    operation: Operation, shop: Duly, guarded: TestClient, ids: dict[str, str], bearer: Bearing
):
    prepare(operation, shop, ids)
    answer = operation.ask(guarded, ids, bearer(str(operation.scope)))
    assert answer.status_code not in REFUSALS, answer.text


def test_the_things_of_another_owner_are_not_there(
    guarded: TestClient, ids: dict[str, str], bearer: Bearing
):
    headers = bearer("admin", owner="bob")
    for operation in ASKED:
        answer = operation.ask(guarded, ids, headers)
        said = f"{operation.name}: {answer.status_code} {answer.text}"
        if operation.name in EVERYBODYS | SAYS_WHOSE:
            assert answer.status_code == 403, said
        elif operation.is_owned:
            assert answer.status_code == 404, said
            assert "ann" not in answer.text, said
        else:
            assert answer.status_code < 300, said
            assert not any(ids[name] in answer.text for name in OWNED), said


@on_postgres
@each_operation
def test_an_owner_has_what_is_hers(
    operation: Operation, shop: Duly, guarded: TestClient, ids: dict[str, str], bearer: Bearing
):
    prepare(operation, shop, ids)
    answer = operation.ask(guarded, ids, bearer("admin", owner="ann"))
    if operation.name in EVERYBODYS:
        assert answer.status_code == 403, answer.text
    else:
        assert answer.status_code not in REFUSALS, answer.text


def test_a_token_of_an_owner_makes_things_of_that_owner_only(
    guarded: TestClient, ids: dict[str, str], bearer: Bearing
):
    bob = bearer("admin", owner="bob")
    made = guarded.post("/api/v1/jobs", json=CALL, headers=bob)
    assert made.json()["owner"] == "bob"
    refused = guarded.post("/api/v1/jobs", json={**CALL, "owner": "ann"}, headers=bob)
    assert refused.status_code == 403
    token = guarded.post("/api/v1/tokens", json={"name": "x", "scopes": ["admin"]}, headers=bob)
    assert token.json()["owner"] == "bob"


def test_seed_calendars_are_everybodys_to_read_and_nobodys_to_change(
    guarded: TestClient, bearer: Bearing
):
    bob = bearer("admin", owner="bob")
    assert guarded.get("/api/v1/calendars/weekends", headers=bob).status_code == 200
    for headers in (bob, bearer("admin")):
        change = {"version": 0, "dates": ["2026-12-24"]}
        refused = guarded.patch("/api/v1/calendars/weekends", json=change, headers=headers)
        assert refused.status_code == 403
        assert guarded.delete("/api/v1/calendars/weekends", headers=headers).status_code == 403


def test_a_revoked_or_expired_token_opens_nothing(shop: Duly, guarded: TestClient, clock: Any):
    made = shop.tokens.create("short", ["read"], expires=shop.clock.now() + 1000)
    headers = {"Authorization": f"Bearer {made.secret}"}
    assert guarded.get("/api/v1/jobs", headers=headers).status_code == 200
    clock.advance(1)
    assert guarded.get("/api/v1/jobs", headers=headers).status_code == 401
    other = shop.tokens.create("other", ["read"])
    headers = {"Authorization": f"Bearer {other.secret}"}
    assert guarded.get("/api/v1/jobs", headers=headers).status_code == 200
    shop.tokens.revoke(other.token.id, by="me")
    assert guarded.get("/api/v1/jobs", headers=headers).status_code == 401


@on_sqlite
def test_who_reads_waits_for_nobody_who_writes(
    shop: Duly, guarded: TestClient, bearer: Bearing, db: Database
):
    headers = bearer("read")
    begun = time.monotonic()
    db.execute("BEGIN IMMEDIATE")
    try:
        for _ in range(3):
            assert guarded.get("/api/v1/jobs", headers=headers).status_code == 200
        assert time.monotonic() - begun < 5
    finally:
        db.execute("ROLLBACK")
    assert guarded.get("/api/v1/jobs", headers=headers).status_code == 200
    wait_until(lambda: shop.tokens.list()[0].last_used is not None)


def test_the_application_around_may_say_who_asks(shop: Duly, bearer: Bearing):
    def who(request: Request) -> Principal | None:
        name = request.headers.get("x-user")
        return None if name is None else Principal(name, frozenset({Scope.READ}), owner=name)

    async def later(request: Request) -> Principal | None:
        return who(request)

    for auth in (who, later):
        client = TestClient(make_asgi(shop, auth=auth))
        assert client.get("/api/v1/jobs").status_code == 401
        assert client.get("/api/v1/jobs", headers={"x-user": "ann"}).status_code == 200
        refused = client.post("/api/v1/jobs", json=CALL, headers={"x-user": "ann"})
        assert refused.status_code == 403
        # A token of ours goes before it, also a wrong one; another is not our business.
        assert client.get("/api/v1/jobs", headers=bearer("read")).status_code == 200
        wrong = {"x-user": "ann", "Authorization": "Bearer duly_no"}
        assert client.get("/api/v1/jobs", headers=wrong).status_code == 401
        theirs = {"x-user": "ann", "Authorization": "Bearer eyJhbGciOiJIUzI1NiJ9"}
        assert client.get("/api/v1/jobs", headers=theirs).status_code == 200


def test_a_slow_callback_stops_nobody_else(shop: Duly):
    inside, go = threading.Event(), threading.Event()

    def who(request: Request) -> Principal | None:
        inside.set()
        assert go.wait(20)
        return None

    with TestClient(make_asgi(shop, auth=who)) as client:
        asked = threading.Thread(target=client.get, args=("/api/v1/jobs",))
        asked.start()
        assert inside.wait(20)
        assert client.get("/healthz").status_code == 200
        go.set()
        asked.join(20)


def test_a_row_that_cannot_be_read_costs_only_itself(shop: Duly, client: TestClient, db: Database):
    greet = shop.functions["greet"].using(tags=["a"])
    fine, broken = shop.run(greet, "ann"), shop.run(greet, "bob")
    shop.pause(by="ann", note="by hand")
    db.execute("UPDATE @jobs SET args = '{oops', tags = '[oops' WHERE id = ?", broken.id)
    db.execute("UPDATE @audit SET detail = '{oops'")

    unreadable = {"…": "cannot be read"}
    jobs = {job["id"]: job for job in client.get("/api/v1/jobs").json()["items"]}
    assert (jobs[broken.id]["args"], jobs[broken.id]["tags"]) == (unreadable, [])
    assert (jobs[fine.id]["args"], jobs[fine.id]["tags"]) == ({"name": "ann"}, ["a"])
    assert [entry["detail"] for entry in client.get("/api/v1/audit").json()["items"]] == [
        unreadable
    ]
    for page in ("/jobs", f"/jobs/{broken.id}", "/audit"):
        assert client.get(page).status_code == 200


def test_what_is_nested_too_deep_breaks_no_list(shop: Duly, client: TestClient):
    @shop.action
    def swallow(ctx: Ctx, value: Any) -> Any:
        return value

    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    shop.run(swallow, deep)
    (job,) = client.get("/api/v1/jobs").json()["items"]
    assert job["args"] == {"…": "nested too deeply to show"}


@on_sqlite
@pytest.mark.parametrize(
    "operation", [each for each in ASKED if each.changes], ids=lambda each: each.name
)
def test_every_operator_action_has_a_row_with_its_actor(
    operation: Operation, shop: Duly, guarded: TestClient, ids: dict[str, str], bearer: Bearing
):
    headers = bearer("admin")
    prepare(operation, shop, ids)
    before = shop.store.audit_page(None, None, 1)
    answer = operation.ask(guarded, ids, headers)
    assert answer.status_code < 300 or answer.status_code == 502, answer.text
    after = shop.store.audit_page(None, None, 1)
    assert after != before
    assert (after[0].actor or "").startswith("test (token:")
