"""Requests that are repeated, and keys of functions, where several owners use one server."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Ctx, Duly, Limit, ManualClock, Unique
from duly.errors import InvalidOption, StoreUnavailable
from duly.ids import new_id
from duly.server import make_asgi
from tests.jobs.support import Database, Gate, Hire
from tests.schedules.support import tick_all
from tests.server.contract import Api

GREET = {"function": "greet", "args": {"name": "ann"}}
HOURLY = {"key": "hourly", **GREET, "every": "1h"}
Bearer = Callable[..., dict[str, Any]]


@pytest.fixture
def api(client: TestClient) -> Api:
    return Api(client)


@pytest.fixture
def ann(guarded: TestClient, bearer: Bearer) -> Api:
    return Api(guarded, bearer("admin", owner="ann"))


@pytest.fixture
def bob(guarded: TestClient, bearer: Bearer) -> Api:
    return Api(guarded, bearer("admin", owner="bob"))


# Requests that are repeated ----------------------------------------------------------------------

MADE = [
    ("/schedules", HOURLY),
    ("/calendars", {"name": "feast", "kind": "skip_dates", "dates": ["2026-12-24"]}),
    ("/endpoints", {"name": "crm", "url": "https://example.com/in"}),
]


GATEWAY = {"name": "edge", "url": "http://127.0.0.1:9"}


@pytest.mark.parametrize(("path", "body"), MADE)
def test_what_was_removed_is_not_made_again(api: Api, path: str, body: dict[str, Any]):
    made = api.post(path, body, key="one", status=201)
    assert api.post(path, body, key="one")["id"] == made["id"]
    api.delete(path + "/{id}", id=made["id"], status=204)

    error = api.error("POST", path, body, key="one", status=409)

    assert error["code"] == "already_done"
    assert api.get(path + "/{id}", id=made["id"], status=404)
    # Under another key it is another request.
    assert api.post(path, body, key="two", status=201)["id"] != made["id"]


def test_a_job_that_was_removed_is_not_run_again(api: Api, shop: Duly, hire: Hire, db: Database):
    api.post("/jobs", GREET, key="one", status=201)
    hire().work()
    db.execute("DELETE FROM @history")

    error = api.error("POST", "/jobs", GREET, key="one", status=409)

    assert error["code"] == "already_done"
    assert not shop.jobs()


def test_a_request_whose_end_was_not_remembered_is_found_by_what_it_made(
    api: Api, shop: Duly, monkeypatch: pytest.MonkeyPatch
):
    def away(claim: object) -> None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(shop.ready(), "request_done", away)
        made = api.post("/schedules", HOURLY, key="one", status=201)
    assert api.post("/schedules", HOURLY, key="one")["id"] == made["id"]
    # From then on it is known.
    api.delete("/schedules/{id}", id=made["id"], status=204)
    assert api.error("POST", "/schedules", HOURLY, key="one", status=409)


@pytest.mark.parametrize(
    ("path", "wrong", "right", "status"),
    [
        ("/jobs", {"function": "greet", "args": {}}, GREET, 422),
        ("/jobs", GREET | {"function": "nobody"}, GREET, 404),
        ("/jobs", GREET | {"run_after": 1e13}, GREET, 422),
        ("/schedules", HOURLY | {"every": "1000000000s"}, HOURLY, 422),
        ("/schedules", HOURLY | {"function": "nobody"}, HOURLY, 404),
        ("/schedules", HOURLY | {"key": "taken"}, HOURLY, 409),
    ],
)
def test_a_request_that_was_refused_leaves_its_key_to_another(
    api: Api, path: str, wrong: dict[str, Any], right: dict[str, Any], status: int
):
    api.post("/schedules", HOURLY | {"key": "taken"}, status=201)
    for _ in range(2):
        assert api.error("POST", path, wrong, key="one", status=status)

    made = api.post(path, right, key="one", status=201)

    assert api.post(path, right, key="one")["id"] == made["id"]


def test_what_went_wrong_here_keeps_the_key(
    client: TestClient, api: Api, shop: Duly, monkeypatch: pytest.MonkeyPatch
):
    def away(*given: object, **more: object) -> None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(shop.ready(), "enqueue", away)
        assert api.error("POST", "/jobs", GREET, key="one", status=503)

    other = GREET | {"args": {"name": "bob"}}
    assert api.error("POST", "/jobs", other, key="one", status=422)["code"] == (
        "idempotency_mismatch"
    )
    assert api.post("/jobs", GREET, key="one", status=201)


def test_a_schedule_is_run_once_under_a_key(api: Api, shop: Duly, clock: ManualClock, db: Database):
    made = api.post("/schedules", HOURLY | {"overlap": "allow"}, status=201)

    def run(key: str | None = None, body: Any = None) -> dict[str, Any]:
        tick: dict[str, Any] = api.post("/schedules/{id}/run", body or {}, id=made["id"], key=key)
        return tick

    first = run("one")
    clock.advance(5)
    assert run("one") == first
    shop.pause()
    skipped = run("two")
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "kill_switch")
    shop.resume()
    # It was answered, so it is not tried again.
    assert run("two") == skipped
    other = {"inputs": {"name": "bob"}}
    error = api.error("POST", "/schedules/{id}/run", other, id=made["id"], key="one", status=422)
    assert error["code"] == "idempotency_mismatch"
    assert len({first["job_id"], run("three", other)["job_id"], run()["job_id"]}) == 3
    assert len(api.get("/schedules/{id}/ticks", id=made["id"])["items"]) == 4
    trail = api.get("/schedules/{id}/audit", id=made["id"])["items"]
    assert [entry["action"] for entry in trail].count("schedule.run") == 4

    db.execute("DELETE FROM @ticks")
    error = api.error("POST", "/schedules/{id}/run", {}, id=made["id"], key="one", status=409)
    assert error["code"] == "already_done"


def test_a_run_of_which_nobody_knows_is_made_once(
    api: Api, shop: Duly, monkeypatch: pytest.MonkeyPatch
):
    made = api.post("/schedules", HOURLY, status=201)
    path = "/schedules/{id}/run"

    def away(*given: object, **more: object) -> None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(shop.ready(), "run_schedule", away)
        assert api.error("POST", path, {}, id=made["id"], key="one", status=503)
    with monkeypatch.context() as patch:
        patch.setattr(shop.ready(), "request_done", away)
        tick = api.post(path, {}, id=made["id"], key="one")

    assert api.post(path, {}, id=made["id"], key="one") == tick
    assert len(api.get("/schedules/{id}/ticks", id=made["id"])["items"]) == 1


def test_the_same_run_asked_for_at_once_is_one(shop: Duly):
    made = shop.schedules.create("hourly", shop.functions["greet"].bind("ann"), every=3600)
    run_id = new_id(shop.clock.now())

    def run(_: int) -> str | None:
        return shop.schedules.run(made, id=run_id).job_id

    with ThreadPoolExecutor(4) as threads:
        jobs = set(threads.map(run, range(8)))

    assert len(jobs) == len(shop.schedules.ticks(made)) == 1


def test_what_is_made_gets_the_id_that_was_chosen_for_it(shop: Duly):
    greet = shop.functions["greet"].bind("ann")
    makers: list[Callable[[str], Any]] = [
        lambda id: shop.schedules.create("s", greet, every=3600, id=id),
        lambda id: shop.calendars.create("c", "skip_dates", id=id),
        lambda id: shop.endpoints.create("e", "https://example.org", id=id),
        lambda id: shop.gateways.add("g", "https://example.org", id=id),
        lambda id: shop.tokens.create("t", id=id).token,
    ]
    for make in makers:
        refuses_other_ids(make)
        chosen = new_id(shop.clock.now())
        assert make(chosen).id == chosen
    refuses_other_ids(lambda id: shop.schedules.run("s", id=id))
    refuses_other_ids(lambda id: shop.gateways.cron_add("g", "h", {"kind": "cron"}, id=id))


def refuses_other_ids(make: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidOption, match="id: must be an id as duly generates them"):
        make("mine")


@pytest.mark.parametrize(("path", "body"), [*MADE, ("/gateways", GATEWAY)])
def test_a_name_that_is_taken_is_409(api: Api, path: str, body: dict[str, Any]):
    api.post(path, body, status=201)
    error = api.error("POST", path, body, status=409)
    assert error["code"].endswith("_exists")
    assert error["field"] in ("key", "name")


def test_a_repeat_may_come_by_another_prefix(api: Api, shop: Duly):
    made = api.post("/jobs", GREET, key="one", status=201)
    around = FastAPI()
    around.mount("/ops", make_asgi(shop, auth="open"))

    with TestClient(around) as outside:
        key = {"Idempotency-Key": "one"}
        again = outside.post("/ops/api/v1/jobs", json=GREET, headers=key)

    assert (again.status_code, again.json()["id"]) == (200, made["id"])


# Keys of functions -------------------------------------------------------------------------------

KEYED: dict[str, dict[str, Any]] = {
    "pending": {"unique": Unique(lambda text: "one")},
    "unfinished": {"unique": Unique("one", scope="unfinished")},
    "period": {"unique": Unique("one", period=60)},
    "debounced": {"debounce": 60},
}


@pytest.mark.parametrize("kind", KEYED)
def test_an_owner_never_meets_the_job_of_another(ann: Api, bob: Api, shop: Duly, kind: str):
    @shop.action(**KEYED[kind])
    def index(ctx: Ctx, text: str) -> None: ...

    shop.functions.publish()

    def call(api: Api, text: str, status: int) -> dict[str, Any]:
        body = {"function": "index", "args": {"text": text}}
        made: dict[str, Any] = api.post("/jobs", body, status=status)
        return made

    bobs = call(bob, "of bob", 201)
    anns = call(ann, "of ann", 201)

    assert (anns["owner"], anns["args"]) == ("ann", {"text": "of ann"})
    assert bob.get("/jobs/{id}", id=bobs["id"])["args"] == {"text": "of bob"}
    # Each meets what is there of their own.
    assert call(ann, "again", 200)["id"] == anns["id"]
    assert call(bob, "again", 200)["id"] == bobs["id"]


def test_a_schedule_of_an_owner_never_meets_the_job_of_another(
    ann: Api, bob: Api, shop: Duly, clock: ManualClock
):
    @shop.action(debounce=7200)
    def index(ctx: Ctx, text: str) -> None: ...

    shop.functions.publish()
    bobs = bob.post("/jobs", {"function": "index", "args": {"text": "of bob"}}, status=201)
    call = {"function": "index", "args": {"text": "of ann"}}
    hourly = {"key": "hourly", **call, "every": "1h", "overlap": "allow"}
    made = ann.post("/schedules", hourly, status=201)

    clock.advance(3600)
    tick_all(shop)
    run = ann.post("/schedules/{id}/run", {}, id=made["id"])

    ticks = ann.get("/schedules/{id}/ticks", id=made["id"])["items"]
    assert {tick["job_id"] for tick in ticks} == {run["job_id"]} != {bobs["id"]}
    assert ann.get("/jobs/{id}", id=run["job_id"])["args"] == {"text": "of ann"}
    assert bob.get("/jobs/{id}", id=bobs["id"])["args"] == {"text": "of bob"}


def test_why_names_no_job_of_another(ann: Api, bob: Api, shop: Duly, hire: Hire):
    gate = Gate()

    @shop.action(limit=Limit("crm", at_once=1))
    def sync(ctx: Ctx) -> None:
        gate.pass_through()

    worker = hire()
    call = {"function": "sync", "args": {}}
    holder = bob.post("/jobs", call, status=201)["id"]
    waiting = {each: each.post("/jobs", call, status=201)["id"] for each in (ann, bob)}
    worker.start_due()
    gate.wait_for_one()
    worker.start_due()
    try:
        said = {each: each.get("/jobs/{id}/why", id=job) for each, job in waiting.items()}
    finally:
        gate.open()
        worker.work()

    assert [reason["cause"] for reason in said[ann]["reasons"]] == ["key_in_use"]
    assert holder not in str(said[ann])
    assert said[ann]["reasons"][0]["jobs"] == []
    assert said[bob]["reasons"][0]["jobs"] == [holder]


def test_canceling_says_nothing_of_what_follows(ann: Api, shop: Duly, hire: Hire):
    @shop.action
    def child(ctx: Ctx) -> None: ...

    gate = Gate()

    @shop.action
    def parent(ctx: Ctx) -> None:
        ctx.run_after(3600, child.using(owner="bob"))
        gate.pass_through()

    worker = hire()
    job = shop.run(parent.using(owner="ann"))
    worker.start_due()
    gate.wait_for_one()
    try:
        [bobs] = shop.job(job.id).children()
        assert ann.get("/jobs/{id}/children", id=job.id) == []
        assert ann.post("/jobs/{id}/cancel", id=job.id) == {"canceled": True}
    finally:
        gate.open()
        worker.work()

    assert str(shop.job(bobs.id).state) == "canceled"
    assert bobs.id not in str(ann.get("/jobs/{id}", id=job.id))
    assert ann.get("/jobs/{id}", id=bobs.id, status=404)


def test_queues_of_dulys_own_are_not_for_others(api: Api):
    for path, body in (("/jobs", GREET), ("/schedules", HOURLY)):
        error = api.error("POST", path, body | {"options": {"queue": "duly.bulk"}}, status=422)
        assert error["field"] == "options.queue"
    assert api.post("/jobs", GREET | {"options": {"queue": "dulyish"}}, status=201)
