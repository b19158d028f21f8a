"""`POST /api/v1/dispatch/{function}`: others' schedules call functions here, once per fire."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, Retry, Tx, Unique
from duly.endpoints.dispatch import MAX_BODY, REMEMBERED_MS
from duly.errors import InvalidOption, StoreUnavailable
from duly.index import IndexRow, PostgresScheduleIndex, SqliteScheduleIndex, TickHandler
from duly.server import make_asgi
from duly.testing import advance
from tests.jobs.support import tidy
from tests.server.listening import serving

SECRET, OTHER = "canary-dispatch-1", "canary-dispatch-2"
KNOCK = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture(autouse=True)
def lets_in(shop: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH", SECRET)
    monkeypatch.setenv("DISPATCH_NEXT", OTHER)
    shop.dispatch.secrets = ["env:DISPATCH", "env:DISPATCH_NEXT"]


def say(app: Duly, key: str | None = "k", **more: Any) -> bytes:
    message = {"nominalFireTime": app.clock.now(), "input": {"name": "ada"}, **more}
    if key is not None:
        message.setdefault("idempotencyKey", key)
    return json.dumps(message).encode()


def receive(app: Duly, body: bytes | None = None, function: str = "greet", headers=KNOCK):
    return app.dispatch.receive(function, headers, say(app) if body is None else body)


def code(answer: Any) -> str:
    return str(answer.body["error"]["code"])


@pytest.mark.spec("R215")
def test_a_call_is_a_job_and_the_same_call_again_is_that_job(shop, clock, hire):
    first = receive(shop)
    again = receive(shop)
    assert (first.status, first.body["duplicate"]) == (202, False)
    assert (again.status, again.body) == (200, {"jobId": first.body["jobId"], "duplicate": True})
    hire().work()
    job = shop.job(first.body["jobId"])
    assert job.result() == "hello, ada"
    assert len(shop.jobs()) == 1
    record = shop.store.get(job.id)
    assert (record.trigger, record.scheduled_at) == ("api", clock.now())
    assert receive(shop).status == 200, "also when it has ended"


@pytest.mark.spec("R215")
def test_the_answers_over_http_are_those_of_the_contract(shop):
    client = TestClient(make_asgi(shop))
    path = "/api/v1/dispatch/greet"
    assert client.post(path, content=say(shop), headers=KNOCK).status_code == 202
    again = client.post(path, content=say(shop), headers=KNOCK)
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert client.post(path, content=b"{", headers=KNOCK).status_code == 400
    stranger = client.post(path, content=say(shop))
    assert stranger.status_code == 401
    assert stranger.headers["www-authenticate"] == "Bearer"
    assert client.post("/api/v1/dispatch/no", content=say(shop), headers=KNOCK).status_code == 404
    largest = say(shop, "large", input={"name": "x" * (8 * 1024 * 1024 - len('{"name":""}'))})
    taken = client.post(path, content=largest, headers=KNOCK)
    assert (taken.status_code, len(shop.job(taken.json()["jobId"]).record.args)) == (202, 8 << 20)
    jobs = len(shop.jobs())
    over = client.post(path, content=largest.replace(b"xx", b"xxx", 1), headers=KNOCK)
    assert (over.status_code, "8,388,609 bytes" in over.text) == (400, True)
    large = client.post(path, content=b" " * (MAX_BODY + 1), headers=KNOCK)
    assert (large.status_code, len(shop.jobs())) == (413, jobs)
    assert code(receive(shop, b" " * (MAX_BODY + 1))) == "too_large", "also without this server"
    shop.dispatch.secrets = []
    assert client.post(path, content=say(shop), headers=KNOCK).status_code == 503


@pytest.mark.spec("R215")
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}x"],
)
def test_a_stranger_learns_nothing(shop, authorization):
    receive(shop)
    headers = {} if authorization is None else {"Authorization": authorization}
    answers = [
        receive(shop, headers=headers),  # what has come before
        receive(shop, say(shop, "new"), headers=headers),
        receive(shop, b"nonsense", headers=headers),
        receive(shop, function="unknown", headers=headers),
        receive(shop, function="secretly", headers=headers),
        receive(shop, b" " * (MAX_BODY + 1), headers=headers),
    ]
    assert {answer.status for answer in answers} == {401}
    assert len({json.dumps(answer.body) for answer in answers}) == 1
    assert len(shop.jobs()) == 1


def test_either_of_two_secrets_lets_in_and_none_means_nobody(shop, monkeypatch):
    other = {"authorization": f"bearer {OTHER}"}
    assert receive(shop, say(shop, "a"), headers=other).status == 202
    shop.dispatch.secrets = ["env:DISPATCH_NEXT"]
    assert receive(shop, say(shop, "b")).status == 401
    monkeypatch.delenv("DISPATCH_NEXT")
    answer = receive(shop, say(shop, "c"), headers=other)
    assert (answer.status, code(answer)) == (503, "not_configured")
    for wrong in (SECRET, [SECRET], "env:DISPATCH"):
        with pytest.raises(InvalidOption, match="secrets") as refusal:
            shop.dispatch.secrets = wrong
        assert SECRET not in str(refusal.value)


@pytest.mark.spec("R216")
def test_twenty_at_the_same_time_are_one_job(shop):
    body = say(shop, None, schedule="nightly")
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: receive(shop, body), range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [202]
    assert len({answer.body["jobId"] for answer in answers}) == 1
    assert len(shop.jobs()) == 1


@pytest.mark.spec("R216")
def test_a_fire_that_is_repeated_after_a_restart_runs_once(shop, url, clock, hire):
    body = say(shop, "one", schedule="nightly")
    first = receive(shop, body)
    hire().work()
    shop.close()
    other = Duly(url, clock=clock)
    other.dispatch.secrets = ["env:DISPATCH"]
    try:
        # By its schedule and time, whatever else it says; and later than jobs are kept.
        clock.advance(20 * 86_400)
        tidy(other)
        repeated = other.dispatch.receive(
            "greet",
            KNOCK,
            json.dumps(
                {
                    "nominalFireTime": clock.now() - 20 * 86_400_000,
                    "idempotencyKey": "two",
                    "schedule": "nightly",
                    "input": {"name": "eve"},
                }
            ).encode(),
        )
    finally:
        other.close()
    assert (repeated.status, repeated.body["jobId"]) == (200, first.body["jobId"])


@pytest.mark.spec("R216")
def test_a_fire_that_nobody_remembers_any_more_is_refused(shop, clock):
    body = say(shop, None, schedule="nightly")
    receive(shop, body)
    clock.advance(REMEMBERED_MS / 1000)
    tidy(shop)
    answer = receive(shop, body)
    assert (answer.status, answer.body["error"]["field"]) == (400, "nominalFireTime")


def test_other_times_keys_and_functions_are_other_calls(shop):
    now = shop.clock.now()
    bodies = [
        say(shop, None, schedule="nightly"),
        say(shop, None, schedule="nightly", nominalFireTime=now + 1),
        say(shop, None, schedule="hourly"),
        say(shop, "nightly"),
    ]
    assert [receive(shop, body).status for body in bodies] == [202] * 4
    note = say(shop, "nightly", input={"text": "x"})
    assert receive(shop, note, "note").status == 202
    iso = say(shop, None, schedule="nightly", nominalFireTime="2026-01-01T01:00:00+01:00")
    assert receive(shop, iso).status == 200, "the same instant"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"nominalFireTime": None}, "nominalFireTime"),
        ({"nominalFireTime": "tomorrow"}, "nominalFireTime"),
        ({"nominalFireTime": "2026-01-01T00:00:00"}, None),
        ({"nominalFireTime": 10**18}, None),
        ({"nominalFireTime": 0}, None),
        ({"nominalFireTime": True}, None),
        ({"idempotencyKey": None}, "idempotencyKey"),
        ({"idempotencyKey": 5}, None),
        ({"idempotencyKey": "x" * 10_000}, None),
        ({"idempotencyKey": "a\nb"}, None),
        ({"input": [1]}, None),
        ({"input": {}}, None),
        ({"input": {"name": "a", "more": 1}}, None),
    ],
)
def test_bad_input_is_400_and_makes_nothing(shop, change, field):
    answer = receive(shop, say(shop, **change))
    assert (answer.status, code(answer)) == (400, "bad_input")
    if field is not None:
        assert answer.body["error"]["field"] == field
    assert answer.body["error"]["field"] != ""
    assert shop.jobs() == []


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"\xff", b"[" * 100_000, b'{"a":', b'"x"', b"\x00"]
)
def test_a_body_that_is_no_message_is_400(shop, body):
    assert receive(shop, body).status == 400
    assert shop.jobs() == []


@pytest.mark.spec("R215")
def test_functions_that_may_not_be_called(shop):
    for name in ("unknown", "secretly", "duly.post", "duly.alert", ""):
        answer = receive(shop, say(shop), name)
        assert (answer.status, code(answer)) == (404, "not_found")
    shop.functions.deprecate("greet")
    assert receive(shop).status == 409
    shop.functions.delete("greet")
    assert receive(shop).status == 410
    shop.functions.restore("greet")
    assert receive(shop).status == 202
    shop.functions.pause("greet")
    assert receive(shop, say(shop, "later")).status == 202


def test_an_internal_function_of_another_service_is_unknown_too(shop, url, clock):
    other = Duly(url, clock=clock)
    other.dispatch.secrets = ["env:DISPATCH"]
    try:
        assert other.dispatch.receive("secretly", KNOCK, say(shop)).status == 404
        assert other.dispatch.receive("greet", KNOCK, say(shop)).status == 202
    finally:
        other.close()


@pytest.mark.spec("R215")
def test_a_store_that_cannot_be_reached_is_503(shop, monkeypatch):
    def lost(*_: object) -> None:
        raise StoreUnavailable("the database is at canary.internal")

    monkeypatch.setattr(shop.core, "insert", lost)
    answer = receive(shop)
    assert (answer.status, code(answer)) == (503, "store_unavailable")
    assert "canary" not in json.dumps(answer.body)


@pytest.mark.spec("R213", "R215", "R216")
def test_a_beat_of_an_index_calls_functions_over_http(shop, url, clock, hire):
    """Both ends, over a socket: what TickHandler sends is what the dispatch route takes."""
    calls: list[tuple[str, str]] = []

    @shop.action
    def digest(ctx: Ctx, user_id: str, key: str) -> None:
        calls.append((user_id, key))

    index_type = SqliteScheduleIndex if url.startswith("sqlite") else PostgresScheduleIndex
    index = index_type(url.removeprefix("sqlite:///"))
    # Names longer than any key of duly's, too, that differ only at the end.
    schedules = [("anna", "schedules/digest"), ("zoë", "ü" * 300), ("zoë", "ü" * 299 + "/")]

    async def beat(url: str, headers: dict[str, str] = KNOCK, **options: Any) -> list[int]:
        for user, key in schedules:
            await index.upsert(IndexRow(user, key, "0 * * * *", None, clock.now() - 1000))
        handler = TickHandler(index, url, headers=headers, clock=clock, **options)
        return [attempt.status for attempt in await handler()]

    try:
        with serving(make_asgi(shop)) as address:
            route = f"{address}/api/v1/dispatch"
            assert asyncio.run(beat(f"{route}/digest")) == [202] * 3
            assert asyncio.run(beat(f"{route}/digest")) == [200] * 3, "the same fires again"
            # The same fires of another function are other calls.
            greeting = asyncio.run(beat(f"{route}/greet", input=lambda row: {"name": row.user_id}))
            assert greeting == [202] * 3
            assert asyncio.run(beat(f"{route}/greet")) == [400] * 3, "arguments that do not fit"
            assert asyncio.run(beat(f"{route}/digest", {})) == [401] * 3
    finally:
        index.close()
    hire().work()
    assert sorted(calls) == sorted(schedules)
    assert sorted(job.result() for job in shop.jobs(function="greet")) == [
        *("hello, anna", "hello, zoë", "hello, zoë")
    ]


@pytest.mark.spec("R215", "R216")
def test_a_schedule_of_one_app_calls_a_function_of_another(shop, clock, hire, monkeypatch):
    """An endpoint on one side, the route on the other; a delivery that is repeated is one job."""
    monkeypatch.setenv("SHOP_AUTH", f"Bearer {SECRET}")
    sender = Duly("sqlite:///:memory:", clock=clock)
    sender.endpoints.allow = ["127.0.0.1"]
    served, answers = make_asgi(shop), []

    async def forgetful(scope, receive, send):
        """The first answer is lost on its way."""

        async def pass_on(event):
            if event["type"] == "http.response.start":
                answers.append(event["status"])
                event["status"] = 500 if len(answers) == 1 else event["status"]
            await send(event)

        await served(scope, receive, pass_on)

    try:
        with serving(forgetful) as address:
            sender.endpoints.create(
                "shop",
                f"{address}/api/v1/dispatch/greet",
                headers={"Authorization": "env:SHOP_AUTH"},
                retry=Retry(attempts=3, delay=1, factor=1, jitter=0),
            )
            sender.schedules.create(
                "hourly", sender.endpoint("shop").bind({"input": {"name": "ada"}}), cron="0 * * * *"
            )
            advance(sender, 3600 + 60, raises=False)
    finally:
        sender.close()
    assert answers == [202, 200]
    [job] = shop.jobs()
    hire().work()
    assert job.result() == "hello, ada"


def test_a_function_with_keys_and_a_hook_of_its_own_keeps_them(shop, hire):
    ended: list[str] = []

    @shop.action
    def told(ctx: Ctx, job_id: str) -> None:
        ended.append(job_id)

    @shop.mutation(unique=Unique(), on_complete=told)
    def close_books(tx: Tx) -> None: ...

    first = receive(shop, say(shop, "a", input={}), "close_books")
    second = receive(shop, say(shop, "b", input={}), "close_books")
    assert (first.status, second.status) == (202, 202)
    assert second.body == first.body == {"jobId": first.body["jobId"], "duplicate": False}
    hire().work()
    assert ended == [first.body["jobId"]]
    for key in ("a", "b"):
        again = receive(shop, say(shop, key, input={}), "close_books")
        assert (again.status, again.body) == (200, {**first.body, "duplicate": True})


def test_a_debounced_function_waits_for_other_calls(shop, clock):
    @shop.action(debounce=30)
    def save(ctx: Ctx, text: str) -> None: ...

    def call(text: str) -> Any:
        later = clock.now() + 5_000
        body = say(shop, text, input={"text": text}, nominalFireTime=later)
        return receive(shop, body, "save")

    first, second = call("a"), call("ab")
    assert (second.status, second.body) == (202, first.body)
    record = shop.store.get(first.body["jobId"])
    assert (record.run_at, json.loads(record.args)) == (clock.now() + 30_000, {"text": "ab"})
    clock.advance(10)
    repeated = call("a")
    assert (repeated.status, repeated.body["duplicate"]) == (200, True)
    assert shop.store.get(first.body["jobId"]) == record
