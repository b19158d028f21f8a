"""The API for jobs, functions, queues, workers, the kill switch, the audit log and tokens."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, ManualClock, State, Unique
from duly.errors import StoreUnavailable
from tests.server.contract import Api, check

GREET = {"function": "greet", "args": {"name": "ann"}}
NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def api(client: TestClient) -> Api:
    return Api(client)


@pytest.fixture
def job(api: Api) -> dict[str, Any]:
    made: dict[str, Any] = api.post("/jobs", GREET, status=201)
    return made


# Jobs --------------------------------------------------------------------------------------------


def test_a_function_is_called_by_its_name(api: Api, clock: ManualClock):
    when = datetime.fromtimestamp(clock.now() / 1000, UTC) + timedelta(hours=1)
    body = GREET | {
        "run_at": when.isoformat(),
        "owner": "anna",
        "options": {"queue": "mail", "priority": 2, "timeout": 5, "expires": 60, "tags": ["a"]},
    }

    job = api.post("/jobs", body, status=201)

    assert (job["function"], job["args"], job["state"]) == ("greet", {"name": "ann"}, "pending")
    assert (job["queue"], job["priority"], job["owner"]) == ("mail", 2, "anna")
    assert (job["tags"], job["trigger"], job["actor"]) == (["a"], "api", "local")
    assert datetime.fromisoformat(job["run_at"]) == when.replace(microsecond=when.microsecond)
    assert api.get("/jobs/{id}", id=job["id"]) == job | {"progress": None}


def test_jobs_of_a_function_are_listed_under_its_older_names_too(api: Api, shop: Duly):
    old = api.post("/jobs", GREET, status=201)
    renamed = shop.function("greet")
    del shop.core.functions.registered["greet"]
    shop.action(name="welcome", aliases=["greet"])(renamed.body)
    new = api.post("/jobs", GREET | {"function": "welcome"}, status=201)
    which = {"function": "welcome", "limit": 1}
    pages = [api.get("/jobs", params=which)]
    pages.append(api.get("/jobs", params=which | {"before": pages[0]["next"]}))
    assert [item["id"] for page in pages for item in page["items"]] == [new["id"], old["id"]]


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"function": "nobody"}, 404, "unknown_function", None),
        ({"function": "secretly", "args": {}}, 404, "unknown_function", None),
        ({"function": "duly.bulk", "args": {}}, 404, "unknown_function", None),
        ({"function": "\u0000"}, 404, "unknown_function", None),
        ({"args": {}}, 422, "invalid_argument", "name"),
        ({"args": {"name": 1}}, 422, "invalid_argument", "name"),
        ({"args": {"name": "x", "self": 1}}, 422, "invalid_argument", "self"),
        ({"args": {"name": "x", "times": "2"}}, 422, "invalid_argument", "times"),
        ({"args": []}, 422, "invalid", "args"),
        ({"colour": "red"}, 422, "invalid", "colour"),
        ({"run_at": "2026-01-01T00:00:00"}, 422, "invalid", "run_at"),
        ({"run_after": -1}, 422, "invalid", "run_after"),
        ({"run_after": 1e13}, 422, "invalid_time", None),
        ({"options": {"priority": 10}}, 422, "invalid", "options.priority"),
        ({"options": {"queue": ""}}, 422, "invalid_option", "queue"),
        ({"owner": "\u0000"}, 422, "invalid_option", "owner"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(
    api: Api, changes: dict[str, Any], status: int, code: str, field: str | None
):
    error = api.error("POST", "/jobs", GREET | changes, status=status)

    assert error["code"] == code
    if field is not None:
        assert error["field"] == field
    assert api.get("/jobs")["items"] == []


def test_run_at_or_run_after(api: Api):
    body = GREET | {"run_at": "2026-01-01T00:00:00Z", "run_after": 1}

    assert api.error("POST", "/jobs", body, status=422)["field"] == "run_after"


def test_what_is_no_json_is_refused(client: TestClient):
    headers = {"content-type": "application/json"}
    answer = client.post("/api/v1/jobs", content="{", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    for text in ("[" * 100_000, '{"function": "greet", "args": {"name": NaN}}'):
        answer = client.post("/api/v1/jobs", content=text, headers=headers)
        assert answer.status_code in (400, 422), answer.text


def test_numbers_that_javascript_cannot_hold_go_out_as_text(api: Api, shop: Duly):
    @shop.action
    def count(ctx: Ctx, n: int) -> int:
        return n

    shop.functions.publish()
    largest = api.post("/jobs", {"function": "count", "args": {"n": 2**53 - 1}}, status=201)
    larger = api.post("/jobs", {"function": "count", "args": {"n": -(2**53)}}, status=201)

    assert (largest["args"]["n"], larger["args"]["n"]) == (2**53 - 1, str(-(2**53)))


def test_a_request_that_is_repeated_makes_nothing_twice(api: Api, client: TestClient):
    def post(_: int) -> Any:
        headers = {"Idempotency-Key": "one"}
        return client.post("/api/v1/jobs", json=GREET, headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))

    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len(api.get("/jobs")["items"]) == 1
    error = api.error("POST", "/jobs", GREET | {"owner": "x"}, key="one", status=422)
    assert (error["code"], error["field"]) == ("idempotency_mismatch", "Idempotency-Key")


@pytest.mark.spec("N27")
def test_the_status_of_a_function_decides_about_calls(api: Api, shop: Duly):
    shop.functions.pause("greet")
    api.post("/jobs", GREET, status=201)
    shop.functions.resume("greet")
    shop.functions.deprecate("greet")
    assert api.error("POST", "/jobs", GREET, status=409)["code"] == "function_deprecated"
    shop.functions.delete("greet")
    assert api.error("POST", "/jobs", GREET, status=410)["code"] == "function_deleted"


def test_jobs_come_in_pages_by_filter(api: Api, job: dict[str, Any]):
    api.post("/jobs", {"function": "note", "args": {"text": "t"}}, status=201)
    api.post("/jobs", GREET | {"owner": "anna", "options": {"queue": "mail"}}, status=201)

    first = api.get("/jobs", params={"limit": 2})
    second = api.get("/jobs", params={"limit": 2, "before": first["next"]})
    assert (len(first["items"]), second["next"]) == (2, None)
    assert second["items"] == [job]

    def count(**params: Any) -> int:
        return len(api.get("/jobs", params=params)["items"])

    assert count(function="greet") == 2
    assert count(queue="mail") == count(owner="anna") == 1
    assert (count(state="pending"), count(state="failed"), count(dead=True)) == (3, 0, 0)
    assert api.error("GET", "/jobs", params={"before": "x"}, status=422)["field"] == "before"
    assert api.error("GET", "/jobs", params={"state": "x"}, status=422)["field"] == "state"


@pytest.mark.parametrize("name", ["function", "queue", "owner"])
def test_no_address_holds_a_nul(api: Api, name: str):
    assert api.error("GET", "/jobs", params={name: "\u0000"}, status=400)["code"] == "bad_request"
    assert api.error("GET", "/jobs/{id}", id="%00", status=400)["code"] == "bad_request"


@pytest.mark.parametrize("text", [r"\u0000", r"\ud800", r"a\udfff"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs", '{"function": "TEXT"}'),
        ("/jobs", '{"function": "greet", "args": {"name": "x"}, "owner": "TEXT"}'),
        ("/jobs/bulk", '{"verb": "cancel", "function": "TEXT", "dry_run": true}'),
        ("/jobs/bulk", '{"verb": "cancel", "owner": "TEXT", "dry_run": true}'),
        ("/schedules", '{"key": "k", "every": "15m", "function": "TEXT"}'),
        ("/schedules", '{"key": "TEXT", "every": "15m", "function": "greet"}'),
        (
            "/schedules",
            '{"key": "k", "every": "15m", "function": "greet", "args": {"name": "x"},'
            ' "calendar": "TEXT"}',
        ),
        ("/calendars", '{"name": "TEXT", "kind": "skip_dates"}'),
        ("/calendars/import", '{"name": "TEXT", "ical": "x"}'),
        ("/conditions/explain", '{"condition": {"": {"eq": 1}}, "context": "TEXT"}'),
        ("/tokens", '{"name": "x", "scopes": ["read"], "owner": "TEXT"}'),
    ],
)
def test_a_text_that_no_database_takes(client: TestClient, path: str, body: str, text: str):
    """What is only looked for is looked for in vain, or refused; that is up to the database."""
    answer = client.post(
        f"/api/v1{path}",
        content=body.replace("TEXT", text),
        headers={"content-type": "application/json"},
    )

    assert answer.status_code in ((200, 422) if "dry_run" in body else (404, 422)), answer.text
    check(client, "POST", f"/api/v1{path}", answer)


@pytest.mark.parametrize("wrong", ["x", NOBODY])
def test_a_job_that_is_not_there(api: Api, wrong: str):
    for method, path in (
        ("GET", ""),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("GET", "/children"),
        ("GET", "/logs"),
        ("GET", "/why"),
    ):
        error = api.error(method, "/jobs/{id}" + path, id=wrong, status=404)
        assert error["code"] == "job_not_found"


def test_a_job_is_canceled_and_run_again(api: Api, shop: Duly, job: dict[str, Any]):
    assert api.post("/jobs/{id}/cancel", id=job["id"]) == {"canceled": True}
    assert api.post("/jobs/{id}/cancel", id=job["id"]) == {"canceled": False}
    assert api.get("/jobs/{id}", id=job["id"])["canceled_by"] == "local"

    again = api.post("/jobs/{id}/retry", id=job["id"], status=201)
    assert (again["retry_of"], again["state"]) == (job["id"], "pending")
    assert api.post("/jobs/{id}/retry", id=job["id"], status=201)["id"] == again["id"]

    entries = shop.ready().audit_of(f"job:{job['id']}")
    assert [(entry.action, entry.actor) for entry in entries] == [
        ("job.retry", "local"),
        ("job.cancel", "local"),
    ], "once each: the second time nothing changed"
    assert json.loads(entries[0].detail or "") == {"job_id": again["id"]}


def test_what_cannot_be_written_down_is_not_done(
    client: TestClient, shop: Duly, monkeypatch: pytest.MonkeyPatch
):
    shop.endpoints.allow = ["127.0.0.1"]
    endpoint = shop.endpoints.create("here", "http://127.0.0.1:9/")
    waits, gone = (shop.run_after(60, shop.functions["greet"], name) for name in ("a", "b"))
    shop.cancel(gone)

    def full(*_: object) -> None:
        raise StoreUnavailable("there is no room for it")

    with monkeypatch.context() as patch:
        for module in ("cancel", "enqueue", "replay"):
            patch.setattr(f"duly.store.jobs.{module}.write_entry", full)
        for path, body in (
            (f"/jobs/{waits.id}/cancel", None),
            (f"/jobs/{gone.id}/retry", None),
            ("/jobs/bulk", {"verb": "cancel", "function": "greet"}),
            (f"/endpoints/{endpoint.id}/send", {}),
        ):
            assert client.post(f"/api/v1{path}", json=body).status_code == 503
    assert {job.id: job.state for job in shop.jobs()} == {
        waits.id: State.PENDING,
        gone.id: State.CANCELED,
    }
    for path in (f"/jobs/{waits.id}/cancel", f"/jobs/{gone.id}/retry"):
        assert client.post(f"/api/v1{path}").is_success


def test_one_who_may_only_call_is_told_little_of_a_job_that_was_there(
    guarded: TestClient, shop: Duly, bearer: Any
):
    @shop.action(unique=Unique("one", scope="unfinished"))
    def sync(ctx: Ctx, who: str) -> None: ...

    shop.functions.publish()
    first = shop.run(sync, "somebody else's")
    call = {"function": "sync", "args": {"who": "me"}}
    caller, reader = (Api(guarded, bearer(*scopes)) for scopes in (["enqueue"], ["operate"]))
    assert caller.post("/jobs", call, status=200) == {
        "id": first.id,
        "function": "sync",
        "state": "pending",
    }
    assert reader.post("/jobs", call, status=200)["args"] == {"who": "somebody else's"}
    new = caller.post("/jobs", GREET, status=201)
    assert new["args"] == GREET["args"]


@pytest.mark.spec("N51")
def test_what_a_job_has_said_and_called(api: Api, shop: Duly, hire: Any):
    @shop.action
    def parent(ctx: Ctx) -> str:
        ctx.log("one")
        ctx.progress(0.5, "half")
        return "done"

    shop.functions.publish()
    made = api.post("/jobs", {"function": "parent"}, status=201)
    hire().work()

    job = api.get("/jobs/{id}", id=made["id"])
    assert (job["state"], job["result"]) == ("succeeded", "done")
    assert (job["progress"]["value"], job["progress"]["note"]) == (1, "half")
    lines = api.get("/jobs/{id}/logs", id=made["id"])
    assert [line["text"] for line in lines["items"]] == ["one"]
    assert api.get("/jobs/{id}/logs", id=made["id"], params={"after": 10_000})["items"] == []
    assert api.get("/jobs/{id}/children", id=made["id"]) == []
    assert api.error("POST", "/jobs/{id}/retry", id=made["id"], status=422)


def test_why_a_job_waits(api: Api, job: dict[str, Any]):
    why = api.get("/jobs/{id}/why", id=job["id"])

    assert why["job_id"] == job["id"]
    assert why["reasons"][0]["cause"] == "no_worker_has_it"


def test_many_at_once(api: Api, shop: Duly, job: dict[str, Any]):
    body = {"verb": "cancel", "function": "greet"}

    would = api.post("/jobs/bulk", body | {"dry_run": True}, status=200)
    assert would == {"job": None, "matched": 1, "sample": [job["id"]]}
    assert api.post("/jobs/bulk", body, status=202)["job"]["actor"] == "local"
    retry = {"verb": "retry", "function": "greet", "dead": True}
    assert api.post("/jobs/bulk", retry, status=202)["job"]["state"] == "pending"
    later = {"verb": "reschedule", "function": "greet", "run_after": 60}
    assert api.post("/jobs/bulk", later, status=202)["job"]["state"] == "pending"
    assert api.error("POST", "/jobs/bulk", {"verb": "cancel"}, status=422)
    assert api.error("POST", "/jobs/bulk", {"verb": "burn", "queue": "x"}, status=422)


@pytest.mark.parametrize(
    ("verb", "field", "value"),
    [
        ("cancel", "dead", True),
        ("reschedule", "dead", True),
        ("reschedule", "state", "pending"),
        ("cancel", "run_after", 0),
        ("retry", "run_after", 60),
        ("cancel", "run_at", "2030-01-01T00:00:00Z"),
        ("retry", "run_at", "2030-01-01T00:00:00Z"),
    ],
)
def test_a_verb_for_many_refuses_words_of_another(api: Api, verb: str, field: str, value: object):
    """Who meant dead letters only must not get all of them canceled."""
    body = {"verb": verb, "function": "greet", field: value}
    for dry_run in (True, False):
        error = api.error("POST", "/jobs/bulk", body | {"dry_run": dry_run}, status=422)
        assert error["field"] == field
    assert api.get("/jobs")["items"] == []


def test_what_is_done_to_many_is_written_down_once(api: Api, shop: Duly):
    body = {"verb": "cancel", "function": "greet"}
    first = api.post("/jobs/bulk", body, key="one", status=202)["job"]
    assert api.post("/jobs/bulk", body, key="one", status=200)["job"]["id"] == first["id"]
    (entry,) = shop.ready().audit_of(f"job:{first['id']}")
    assert (entry.action, entry.actor) == ("jobs.cancel", "local")
    assert json.loads(entry.detail or "")["function"] == "greet"


def test_for_an_owner_there_are_no_jobs_of_others(
    guarded: TestClient, shop: Duly, bearer: Callable[..., dict[str, Any]]
):
    anna, bob = (Api(guarded, bearer("operate", owner=name)) for name in ("anna", "bob"))
    hers = anna.post("/jobs", GREET, status=201)
    assert hers["owner"] == "anna"

    for method, path in (
        ("GET", ""),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("GET", "/children"),
        ("GET", "/logs"),
        ("GET", "/why"),
    ):
        error = bob.error(method, "/jobs/{id}" + path, id=hers["id"], status=404)
        assert error["code"] == "job_not_found"
    assert bob.get("/jobs")["items"] == []
    would = bob.post(
        "/jobs/bulk", {"verb": "cancel", "function": "greet", "dry_run": True}, status=200
    )
    assert would["matched"] == 0
    assert bob.error("POST", "/jobs", GREET | {"owner": "anna"}, status=403)
    assert anna.get("/jobs/{id}", id=hers["id"])["state"] == "pending"


# Functions ---------------------------------------------------------------------------------------


def test_functions_with_the_schema_of_their_arguments(api: Api):
    found = {function["name"]: function for function in api.get("/functions")}

    assert found.keys() == {"greet", "note", "secretly"}
    assert found["greet"]["arguments"]["required"] == ["name"]
    assert (found["note"]["kind"], found["secretly"]["internal"]) == ("mutation", True)
    assert api.get("/functions/{name}", name="greet") == found["greet"]
    for wrong in ("nobody", "duly.bulk"):
        error = api.error("GET", "/functions/{name}", name=wrong, status=404)
        assert error["code"] == "unknown_function"


def test_operators_decide_about_a_function(api: Api, shop: Duly):
    for verb, status in [
        ("pause", "paused"),
        ("resume", "active"),
        ("deprecate", "deprecated"),
        ("delete", "deleted"),
        ("restore", "active"),
    ]:
        changed = api.post("/functions/{name}/status", {"verb": verb, "note": "n"}, name="greet")
        assert changed["status"] == status
    api.post("/functions/{name}/status", {"verb": "delete"}, name="greet")
    error = api.error(
        "POST", "/functions/{name}/status", {"verb": "pause"}, name="greet", status=409
    )
    assert error["code"] == "wrong_status"
    actors = {entry.actor for entry in shop.ready().audit_of("function:greet")}
    assert actors == {"local"}


# Operations --------------------------------------------------------------------------------------


def test_queues_are_paused_and_limited(api: Api, shop: Duly):
    paused = api.post("/queues/{name}/pause", {"note": "full"}, name="mail")
    assert (paused["paused"]["by"], paused["paused"]["note"]) == ("local", "full")
    limited = api.put("/queues/{name}/limit", {"at_once": 3}, name="mail")
    assert limited["at_once"] == 3
    assert [queue["name"] for queue in api.get("/queues")] == ["default", "mail"]
    assert api.post("/queues/{name}/resume", name="mail")["paused"] is None
    assert api.put("/queues/{name}/limit", {"at_once": None}, name="mail")["at_once"] is None
    for wrong in ("*", "x" * 300):
        error = api.error("POST", "/queues/{name}/pause", {}, name=wrong, status=422)
        assert error["code"] == "invalid_option"
    assert api.get("/kill-switch")["paused"] is None
    assert api.error("PUT", "/queues/{name}/limit", {"at_once": 0}, name="mail", status=422)
    actions = [entry["action"] for entry in api.get("/audit")["items"]]
    assert actions == ["queue.limit", "queue.resume", "queue.limit", "queue.pause"]


def test_the_workers(api: Api, shop: Duly, hire: Any):
    assert api.get("/workers") == []
    hire()
    [found] = api.get("/workers")

    assert "greet" in found["functions"]
    assert found["slots"] >= 1


def test_the_doctor(api: Api):
    found = api.get("/doctor")
    assert not found["healthy"]
    [workers] = [each for each in found["findings"] if each["check"] == "workers"]
    assert (workers["level"], workers["hint"]) == ("wrong", "start one: `duly worker`")
    assert {"database", "ticker", "jobs"} <= {each["check"] for each in found["findings"]}


def test_the_kill_switch(api: Api):
    assert api.post("/kill-switch/pause", {"note": "fire"})["paused"]["note"] == "fire"
    assert api.get("/kill-switch")["paused"]["by"] == "local"
    assert api.post("/kill-switch/resume") == {"paused": None}
    assert len(api.get("/audit")["items"]) == 2


def test_the_audit_log_comes_in_pages(api: Api):
    for _ in range(3):
        api.post("/queues/{name}/pause", {}, name="mail")

    first = api.get("/audit", params={"limit": 2, "target": "queue:mail"})
    second = api.get("/audit", params={"before": first["next"]})

    assert len({entry["id"] for entry in first["items"] + second["items"]}) == 3
    assert api.get("/audit", params={"target": "queue:other"})["items"] == []
    assert api.error("GET", "/audit", params={"before": "x"}, status=422)["field"] == "before"


# Tokens ------------------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_revoked(api: Api, clock: ManualClock):
    until = datetime.fromtimestamp(clock.now() / 1000, UTC) + timedelta(days=1)
    body = {
        "name": "ci",
        "scopes": ["read", "enqueue"],
        "owner": "anna",
        "expires_at": until.isoformat(),
    }

    made = api.post("/tokens", body, status=201, key="k")
    again = api.post("/tokens", body, key="k")

    assert made["secret"].startswith("duly_")
    assert again == made | {"secret": None}
    token = api.get("/tokens/{id}", id=made["id"])
    assert (token["status"], token["created_by"]) == ("active", "local")
    assert api.post("/tokens/{id}/revoke", id=made["id"]) == {"revoked": True}
    assert api.post("/tokens/{id}/revoke", id=made["id"]) == {"revoked": False}
    assert api.get("/tokens/{id}", id=made["id"])["status"] == "revoked"
    [listed] = api.get("/tokens")["items"]
    assert "secret" not in listed
    for wrong in (NOBODY, "x"):
        assert api.error("GET", "/tokens/{id}", id=wrong, status=404)["code"] == "token_not_found"


@pytest.mark.parametrize(
    "changes",
    [
        {"scopes": []},
        {"scopes": ["everything"]},
        {"name": ""},
        {"name": "\u0000"},
        {"owner": ""},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "soon"},
    ],
)
def test_a_token_that_makes_no_sense(api: Api, changes: dict[str, Any]):
    api.error("POST", "/tokens", {"name": "ci", "scopes": ["read"]} | changes, status=422)
    assert api.get("/tokens")["items"] == []


def test_tokens_come_in_pages(api: Api):
    for number in range(3):
        api.post("/tokens", {"name": f"t{number}", "scopes": ["read"]}, status=201)

    first = api.get("/tokens", params={"limit": 2})
    second = api.get("/tokens", params={"after": first["next"]})

    assert [token["name"] for token in first["items"] + second["items"]] == ["t0", "t1", "t2"]
    assert api.error("GET", "/tokens", params={"after": "x"}, status=422)["field"] == "after"


def test_an_owners_admin_sees_the_tokens_of_that_owner(
    guarded: TestClient, bearer: Callable[..., dict[str, Any]]
):
    everybody, anna = Api(guarded, bearer("admin")), Api(guarded, bearer("admin", owner="anna"))
    his = everybody.post("/tokens", {"name": "b", "scopes": ["read"], "owner": "bob"}, status=201)

    assert anna.error("GET", "/tokens/{id}", id=his["id"], status=404)
    assert anna.error("POST", "/tokens/{id}/revoke", id=his["id"], status=404)
    assert {token["owner"] for token in anna.get("/tokens")["items"]} == {"anna"}
    made = anna.post("/tokens", {"name": "mine", "scopes": ["admin"]}, status=201)
    assert made["owner"] == "anna"
    for method, path in (("GET", "/audit"), ("GET", "/workers"), ("POST", "/kill-switch/resume")):
        assert anna.error(method, path, status=403)["code"] == "forbidden"
