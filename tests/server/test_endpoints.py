"""Endpoints: addresses as data, and jobs and schedules that POST to them."""

import asyncio
import datetime as dt
import socket
from email.utils import format_datetime

import pytest
from standardwebhooks import Webhook

from duly import Duly, ManualClock, Retry, State
from duly.clock import from_ms
from duly.endpoints import Delivered, Dispatch
from duly.errors import (
    EndpointExists,
    EndpointNotFound,
    InvalidOption,
    JobFailed,
    StaleVersion,
)
from duly.testing import advance
from tests.jobs.support import Database
from tests.server.listening import Reply, listening

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CANARY = "canary-Zm9vYmFyYmF6"


@pytest.fixture(autouse=True)
def sends_to_loopback(app: Duly, monkeypatch: pytest.MonkeyPatch) -> None:
    app.endpoints.allow = ["127.0.0.1"]
    monkeypatch.setenv("BILLING_SECRET", SECRET)
    monkeypatch.setenv("BILLING_AUTH", f"Bearer {CANARY}")


@pytest.fixture
def told(app: Duly) -> list[Dispatch]:
    """What an observer was told."""
    told: list[Dispatch] = []
    app.endpoints.on_dispatch(told.append)
    return told


def failure(job) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        job.result()
    return failed.value


# As data -----------------------------------------------------------------------------------------


def test_an_endpoint_is_made_read_changed_and_removed_and_each_is_audited(app, clock):
    made = app.endpoints.create(
        "billing",
        "https://billing.example/hook",
        secret="env:BILLING_SECRET",
        headers={"X-Shop": "7", "Authorization": "env:BILLING_AUTH"},
        timeout=dt.timedelta(seconds=3),
        retry=Retry(attempts=4),
        by="ada",
    )
    assert app.endpoints.get("billing") == app.endpoints.get(made.id) == made
    assert (made.timeout, made.retry, made.owner) == (3.0, Retry(attempts=4), None)
    clock.advance(1)
    changed = app.endpoints.update(
        "billing", url="https://other.example/", retry=None, version=1, by="eve"
    )
    assert (changed.url, changed.retry, changed.version) == ("https://other.example/", None, 2)
    assert changed.headers == made.headers
    assert changed.updated > made.updated == made.created
    app.endpoints.remove("billing", by="bob")
    with pytest.raises(EndpointNotFound):
        app.endpoints.get("billing")
    entries = app.store.audit_of(f"endpoint:{made.id}")
    assert [(entry.actor, entry.action) for entry in entries] == [
        ("bob", "endpoint.remove"),
        ("eve", "endpoint.update"),
        ("ada", "endpoint.create"),
    ]
    assert "other.example" in (entries[1].detail or "")


def test_a_name_is_unique_for_its_owner_and_owners_see_their_own(app):
    app.endpoints.create("billing", "https://a.example/")
    mine = app.endpoints.create("billing", "https://b.example/", owner="ada")
    with pytest.raises(EndpointExists):
        app.endpoints.create("billing", "https://c.example/")
    other = app.endpoints.of("eve")
    assert other.list() == []
    for use in (other.get, other.remove):
        with pytest.raises(EndpointNotFound):
            use(mine.id)
    with pytest.raises(EndpointNotFound):
        other.update(mine.id, url="https://evil.example/")
    assert app.endpoints.of("ada").get("billing") == mine
    assert [e.owner for e in app.endpoints.list()] == [None, "ada"]
    assert app.endpoints.list(limit=1, after=app.endpoints.list(limit=1)[0].id) == [mine]
    app.endpoints.of("ada").create("second", "https://d.example/")
    with pytest.raises(EndpointExists):
        app.endpoints.of("ada").update("second", name="billing")
    assert app.endpoints.of("ada").update("second", name="third").name == "third"


def test_an_old_version_changes_nothing(app):
    app.endpoints.create("billing", "https://a.example/")
    app.endpoints.update("billing", timeout=5, version=1)
    with pytest.raises(StaleVersion):
        app.endpoints.update("billing", timeout=6, version=1)
    assert app.endpoints.get("billing").timeout == 5
    assert app.endpoints.update("billing", timeout=5).version == 2


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("url", {"url": "http://10.0.0.1/"}),
        ("url", {"url": "http://localhost/"}),
        ("url", {"url": "http://2130706433/"}),
        ("url", {"url": "ftp://example.com/"}),
        ("url", {"url": "https://user:secret@example.com/"}),
        ("url", {"url": 5}),
        ("secret", {"secret": SECRET}),
        ("secret", {"secret": "env:"}),
        ("headers", {"headers": {"X-A": "b\r\nc"}}),
        ("headers", {"headers": {"Host": "inside"}}),
        ("headers", {"headers": {"webhook-id": "x"}}),
        ("headers", {"headers": {"Webhook-Signature": "x"}}),
        ("headers", {"headers": {"IDEMPOTENCY-KEY": "x"}}),
        ("headers", {"headers": {"Duly-Schedule": "x"}}),
        ("headers", {"headers": {"Authorization": f"Bearer {CANARY}"}}),
        ("headers", {"headers": {"X-A": "1", "x-a": "2"}}),
        ("headers", {"headers": "X-A: 1"}),
        ("headers", {"headers": {"X-A": 1}}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": 601}),
        ("timeout", {"timeout": "long"}),
        ("retry", {"retry": 3}),
        ("name", {"name": ""}),
        ("name", {"name": "0190163d-8694-739b-aea5-966c26f8ad91"}),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(app, field, given):
    app.endpoints.allow = []
    app.endpoints.create("billing", "https://a.example/")
    with pytest.raises(InvalidOption, match=field) as refusal:
        app.endpoints.create(**{"name": "other", "url": "https://b.example/", **given})
    with pytest.raises(InvalidOption, match=field):
        app.endpoints.update("billing", **given)
    assert CANARY not in str(refusal.value)
    assert SECRET not in str(refusal.value)
    assert len(app.endpoints.list()) == 1


# Jobs --------------------------------------------------------------------------------------------


def test_a_row_that_names_reserved_headers_overrides_none_of_them(app, db, hire):
    with listening() as listener:
        app.endpoints.create("billing", listener.url, headers={"X-Shop": "7"})
        stored = '{"X-Shop":"7","Webhook-ID":"x","idempotency-KEY":"x","Duly-Schedule":"x"}'
        db.execute("UPDATE @endpoints SET headers = ?", stored)
        job = app.run(app.endpoint("billing"), {})
        hire().work()
    headers = listener.heard[0].headers
    assert headers["idempotency-key"] == headers["webhook-id"] == job.id
    assert headers["x-shop"] == "7"
    assert "duly-schedule" not in headers


def test_a_job_posts_its_body_and_its_result_is_the_answer(app, clock, hire, told):
    with listening(Reply(201, b'{"ok":true}')) as listener:
        app.endpoints.create(
            "billing",
            listener.url,
            secret="env:BILLING_SECRET",
            headers={"X-Shop": "7", "Authorization": "env:BILLING_AUTH"},
        )
        job = app.run(app.endpoint("billing"), {"invoice": 7, "größe": [1, None]})
        hire(queues=["nothing"]).work()
    result = job.result()
    assert isinstance(result, Delivered)
    assert (result.status, result.body) == (201, '{"ok":true}')
    assert result.ms >= 0
    [heard] = listener.heard
    assert heard.json == {"invoice": 7, "größe": [1, None]}
    headers = heard.headers
    assert headers["idempotency-key"] == headers["webhook-id"] == job.id
    assert headers["webhook-timestamp"] == str(clock.now() // 1000)
    assert (headers["x-shop"], headers["authorization"]) == ("7", f"Bearer {CANARY}")
    assert "duly-schedule" not in headers
    [attempt] = told
    assert attempt.delivered
    assert (attempt.endpoint, attempt.job_id, attempt.schedule_id) == ("billing", job.id, None)
    assert (attempt.attempt, attempt.status, attempt.error) == (1, 201, None)


def test_the_signature_is_that_of_standard_webhooks(url, monkeypatch, hire, app):
    app.clock.jump(dt.datetime.now(dt.UTC).timestamp() - app.clock.now() / 1000)
    with listening() as listener:
        app.endpoints.create("billing", listener.url, secret="env:BILLING_SECRET")
        app.run(app.endpoint("billing"), {"invoice": 7})
        hire().work()
    [heard] = listener.heard
    assert Webhook(SECRET).verify(heard.body, heard.headers) == {"invoice": 7}
    with pytest.raises(Exception, match="matching signature"):
        Webhook(SECRET).verify(heard.body + b" ", heard.headers)


def test_without_a_secret_nothing_is_signed_and_without_a_body_it_is_empty(app, hire):
    with listening() as listener:
        app.endpoints.create("billing", listener.url)
        app.run(app.endpoint("billing"))
        app.run(app.endpoint("billing"), None)
        hire().work()
    assert sorted(heard.body for heard in listener.heard) == [b"null", b"{}"]
    assert all("webhook-signature" not in heard.headers for heard in listener.heard)


def test_every_way_to_call_a_function_calls_an_endpoint(app, clock, hire):
    with listening() as listener:
        app.endpoints.create("billing", listener.url, owner="ada")
        target = app.endpoint("billing", "ada")
        jobs = [
            app.run_after(5, target, "after"),
            app.run_at(clock.now() + 6_000, target, "at"),
            *app.run_many([target.bind("many")]),
        ]
        with app.transaction() as tx:
            jobs.append(tx.run(target.using(priority=9), "tx"))
        assert {job.id for job in app.jobs(owner="ada")} == {job.id for job in jobs}
        worker = hire()
        worker.work()
        assert sorted(heard.json for heard in listener.heard) == ["many", "tx"]
        clock.advance(6)
        worker.work()
    assert sorted(heard.json for heard in listener.heard) == ["after", "at", "many", "tx"]


async def call_async(app: Duly) -> str:
    return (await app.aio.run(app.endpoint("billing"), 1)).id


def test_async_code_calls_an_endpoint(app, hire):
    with listening() as listener:
        app.endpoints.create("billing", listener.url)
        job_id = asyncio.run(call_async(app))
        hire().work()
    assert app.job(job_id).result().status == 200
    assert len(listener.heard) == 1


def test_an_endpoint_that_is_not_there_is_refused_where_it_is_called(app):
    with pytest.raises(EndpointNotFound, match="billing"):
        app.run(app.endpoint("billing"), {})
    with pytest.raises(EndpointNotFound):
        app.schedules.create("nightly", app.endpoint("billing"), cron="0 3 * * *")


def test_a_waiting_job_goes_where_the_endpoint_leads_by_then(app, hire, told):
    with listening() as old, listening() as new:
        app.endpoints.create("billing", old.url)
        job = app.run(app.endpoint("billing"), {})
        app.endpoints.update("billing", url=new.url)
        worker = hire()
        worker.work()
        assert (old.connections, len(new.heard)) == (0, 1)
        assert job.result().status == 200
        gone = app.run(app.endpoint("billing"), {})
        app.endpoints.remove("billing")
        worker.work()
    assert "no endpoint 'billing'" in failure(gone).message
    assert [attempt.status for attempt in told] == [200, 0]


# What becomes of an attempt ----------------------------------------------------------------------


@pytest.mark.spec("R213")
@pytest.mark.parametrize("status", [301, 400, 404, 410, 429, 500, 503])
def test_without_a_retry_policy_a_failure_is_told_logged_and_final(app, hire, told, caplog, status):
    with listening(Reply(status, b"no such invoice")) as listener:
        app.endpoints.create("billing", listener.url)
        job = app.run(app.endpoint("billing"), {})
        hire().work()
        app.clock.advance(86_400)
        hire().work()
    assert f"the endpoint responded with status {status}: no such invoice" in failure(job).message
    assert len(listener.heard) == 1
    [attempt] = told
    assert (attempt.status, attempt.attempt, attempt.delivered) == (status, 1, False)
    assert f"responded with status {status}" in (attempt.error or "")
    assert "endpoint billing, attempt 1" in caplog.text


@pytest.mark.spec("R213")
def test_a_transport_error_is_told_as_status_0(app, hire, told):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    app.endpoints.create("billing", f"http://127.0.0.1:{port}/")
    job = app.run(app.endpoint("billing"), {})
    hire().work()
    assert "ConnectionRefusedError" in failure(job).message
    [attempt] = told
    assert attempt.status == 0
    assert "ConnectionRefusedError" in (attempt.error or "")


def test_an_address_that_has_moved_inside_is_refused_when_it_is_sent_to(app, hire, told):
    app.endpoints.allow = []
    app.core.client.resolve = lambda host, port, **_: [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
    ]
    with listening() as listener:
        app.endpoints.create(
            "billing", f"http://billing.example:{listener.port}/", retry=Retry(attempts=5)
        )
        job = app.run(app.endpoint("billing"), {})
        hire().work()
        app.clock.advance(86_400)
        hire().work()
        assert listener.connections == 0
    assert "not a public address" in failure(job).message
    assert [attempt.status for attempt in told] == [0]


@pytest.mark.spec("R213")
def test_a_retry_policy_sends_again_under_the_same_key_and_every_attempt_is_told(
    app, clock, hire, told
):
    with listening(500, 429, 200) as listener:
        app.endpoints.create("billing", listener.url, retry=Retry(attempts=5, jitter=0))
        job = app.run(app.endpoint("billing"), {})
        worker = hire()
        for _ in range(3):
            worker.work()
            clock.advance(60)
    assert job.result().status == 200
    assert {heard.headers["webhook-id"] for heard in listener.heard} == {job.id}
    assert len({heard.headers["webhook-timestamp"] for heard in listener.heard}) == 3
    assert [(a.attempt, a.status) for a in told] == [(1, 500), (2, 429), (3, 200)]


@pytest.mark.parametrize("status", [302, 400, 401, 404, 422])
def test_what_says_that_it_is_our_fault_is_not_tried_again(app, clock, hire, status):
    with listening(status) as listener:
        app.endpoints.create("billing", listener.url, retry=Retry(attempts=5))
        job = app.run(app.endpoint("billing"), {})
        hire().work()
        clock.advance(86_400)
        hire().work()
    assert f"responded with status {status}" in failure(job).message
    assert len(listener.heard) == 1


@pytest.mark.parametrize("text", [f"Fri, 01 Jan {10**20} 00:00:00 GMT", "never", "-1", "9" * 400])
def test_a_retry_after_that_makes_no_sense_is_not_heeded(app, clock, hire, told, text):
    with listening(Reply(503, b"", (("Retry-After", text),)), 200) as listener:
        retry = Retry(attempts=2, delay=1, jitter=0)
        app.endpoints.create("billing", listener.url, retry=retry)
        job = app.run(app.endpoint("billing"), {})
        worker = hire()
        worker.work()
        assert job.state == State.PENDING
        clock.advance(1)
        worker.work()
    assert [each.status for each in told] == [503, 200]
    assert job.result().status == 200


@pytest.mark.parametrize("form", ["seconds", "date", "too long"])
def test_an_endpoint_may_say_when_it_wants_to_be_asked_again(app, clock, hire, form):
    text = {
        "seconds": "90",
        "date": format_datetime(from_ms(clock.now() + 90_000), usegmt=True),
        "too long": "99999999",
    }[form]
    with listening(Reply(503, b"", (("Retry-After", text),)), 200) as listener:
        retry = Retry(attempts=2, delay=1, jitter=0, cap=90 if form == "too long" else 3600)
        app.endpoints.create("billing", listener.url, retry=retry)
        job = app.run(app.endpoint("billing"), {})
        worker = hire()
        worker.work()
        clock.advance(89)
        worker.work()
        assert len(listener.heard) == 1
        clock.advance(1)
        worker.work()
    assert job.result().status == 200


@pytest.mark.spec("R214")
def test_an_observer_that_raises_stops_nobody(app, hire, caplog):
    told: list[Dispatch] = []

    @app.endpoints.on_dispatch
    def broken(_: Dispatch) -> None:
        raise RuntimeError("broken observer")

    app.endpoints.on_dispatch(told.append)
    with listening() as listener:
        app.endpoints.create("billing", listener.url)
        job = app.run(app.endpoint("billing"), {})
        hire().work()
    assert job.result().status == 200
    assert [attempt.status for attempt in told] == [200]
    assert "broken observer" in caplog.text


def test_a_job_that_is_run_again_by_hand_keeps_its_key(app, hire):
    with listening(500, 200) as listener:
        app.endpoints.create("billing", listener.url)
        job = app.run(app.endpoint("billing"), {})
        hire().work()
        again = app.retry(job)
        hire().work()
    assert again.result().status == 200
    assert [heard.headers["webhook-id"] for heard in listener.heard] == [job.id, job.id]


@pytest.mark.parametrize("scheme", ["Bearer ", ""], ids=["whole", "without its scheme"])
def test_no_secret_is_stored_logged_or_shown(app, hire, db: Database, told, caplog, scheme):
    def echo(heard):
        shown = heard.headers["authorization"].removeprefix("Bearer ")
        return Reply(500, f"{scheme}{shown} is not valid".encode())

    with listening() as listener:
        listener.reply = echo
        made = app.endpoints.create(
            "billing",
            listener.url,
            secret="env:BILLING_SECRET",
            headers={"Authorization": "env:BILLING_AUTH"},
        )
        job = app.run(app.endpoint("billing"), {})
        hire().work()
    rows = [db.execute(f"SELECT * FROM @{table}") for table in ("endpoints", "history", "audit")]
    text = f"{rows} {failure(job)} {failure(job).traceback} {told} {caplog.text} {made!r}"
    assert listener.heard[0].headers["authorization"] == f"Bearer {CANARY}"
    assert CANARY not in text
    assert SECRET not in text
    assert "[redacted]" in text


def test_a_secret_that_is_missing_or_no_key_sends_nothing(app, hire, monkeypatch):
    monkeypatch.setenv("NOT_BASE64", "nonsense!")
    with listening() as listener:
        for name in ("NOWHERE", "NOT_BASE64"):
            app.endpoints.create(name, listener.url, secret=f"env:{name}")
        jobs = [app.run(app.endpoint(name), {}) for name in ("NOWHERE", "NOT_BASE64")]
        hire().work()
        assert listener.connections == 0
    assert "NOWHERE" in failure(jobs[0]).message
    assert "Standard Webhooks" in failure(jobs[1]).message
    assert "nonsense!" not in failure(jobs[1]).message


# Schedules ---------------------------------------------------------------------------------------


@pytest.mark.spec("R213")
def test_a_schedule_posts_its_nominal_time_and_a_key_of_the_tick(app, clock: ManualClock, told):
    with listening() as listener:
        app.endpoints.create("billing", listener.url)
        schedule = app.schedules.create(
            "hourly", app.endpoint("billing").bind({"what": "close"}), cron="0 * * * *"
        )
        began = clock.now()
        advance(app, 2 * 3600)
    nominal = [began + 3_600_000, began + 7_200_000]
    headers = [heard.headers for heard in listener.heard]
    assert [heard.json for heard in listener.heard] == [{"what": "close"}] * 2
    assert [h["duly-nominal-fire-time-ms"] for h in headers] == [str(n) for n in nominal]
    assert headers[0]["duly-nominal-fire-time"] == "2026-01-01T01:00:00.000Z"
    assert {h["duly-schedule"] for h in headers} == {schedule.id}
    assert [h["idempotency-key"] for h in headers] == [f"{schedule.id}:{n}" for n in nominal]
    assert [(a.schedule_id, a.nominal) for a in told] == [(schedule.id, n) for n in nominal]


def test_a_schedule_follows_its_endpoint(app, clock, told):
    with listening(500) as listener:
        app.endpoints.create("billing", listener.url)
        app.schedules.create("hourly", app.endpoint("billing"), cron="0 * * * *")
        advance(app, 3600, raises=False)
        assert [a.attempt for a in told] == [1]
        # From now on it is tried again, and later the endpoint is gone.
        app.endpoints.update("billing", retry=Retry(attempts=2, delay=1, jitter=0))
        advance(app, 3600, raises=False)
        advance(app, 60, raises=False)
        assert [a.attempt for a in told] == [1, 1, 2]
        changed = app.schedules.update("hourly", cron="30 * * * *")
        assert changed.function == "duly.post"
        app.endpoints.remove("billing")
        advance(app, 3600, raises=False)
    assert told[-1].status == 0
    assert "no endpoint" in (told[-1].error or "")
    assert app.schedules.get("hourly").status == "enabled"


def test_a_rotation_takes_bodies_in_turn(app):
    with listening() as listener:
        app.endpoints.create("billing", listener.url)
        app.schedules.create(
            "hourly",
            app.endpoint("billing"),
            cron="0 * * * *",
            rotation=[{"body": "a"}, {"body": "b"}],
        )
        advance(app, 3 * 3600)
    assert [heard.json for heard in listener.heard] == ["a", "b", "a"]


def test_code_declares_a_schedule_of_an_endpoint_without_touching_the_database(app, told):
    app.schedule("hourly", app.endpoint("billing").bind({"a": 1}), cron="0 * * * *")
    with listening() as listener:
        app.endpoints.create("billing", listener.url)
        app.schedules.apply()
        advance(app, 3600)
    assert [heard.json for heard in listener.heard] == [{"a": 1}]
    assert [a.status for a in told] == [200]


def test_functions_of_dulys_own_are_called_by_nobody_by_name(app):
    with pytest.raises(LookupError):
        app.function("duly.post")
    assert "duly.post" not in app.functions


# Over HTTP ---------------------------------------------------------------------------------------

V1 = "/api/v1"
PUBLIC = {"name": "out", "url": "https://example.com/x"}


@pytest.mark.parametrize(
    "reference",
    [
        {"secret": "env:BILLING_SECRET"},
        {"secret": "file:/etc/hostname"},
        {"headers": {"Authorization": "env:BILLING_AUTH"}},
        {"headers": {"X-Leak": "file:/etc/hostname"}},
    ],
)
def test_a_token_of_an_owner_gives_no_references_to_secrets(guarded, bearer, reference):
    ann, everybody = bearer("admin", owner="ann"), bearer("admin")
    refused = guarded.post(f"{V1}/endpoints", json=PUBLIC | reference, headers=ann)
    assert refused.status_code == 403
    plain = guarded.post(f"{V1}/endpoints", json=PUBLIC, headers=ann).json()
    change = {"version": 1, **reference}
    path = f"{V1}/endpoints/{plain['id']}"
    assert guarded.patch(path, json=change, headers=ann).status_code == 403
    assert guarded.patch(path, json=change, headers=everybody).status_code == 200

    # Where what others gave is sent to is not for her to say either.
    there = {"version": 2, "url": "https://evil.example/"}
    assert guarded.patch(path, json=there, headers=ann).status_code == 403
    assert guarded.patch(path, json=there | {"version": 1}, headers=ann).status_code == 409
    slower = guarded.patch(path, json={"version": 2, "timeout": 20}, headers=ann)
    assert slower.status_code == 200
    without = {"version": 3, "url": "https://her.example/", "secret": None, "headers": {}}
    assert guarded.patch(path, json=without, headers=ann).status_code == 200


def test_an_endpoint_made_for_an_owner_is_used_by_that_owner(app, guarded, bearer, hire):
    ann = bearer("admin", owner="ann")
    with listening() as listener:
        body = {
            "name": "billing",
            "url": listener.url,
            "owner": "ann",
            "headers": {"Authorization": "env:BILLING_AUTH"},
        }
        made = guarded.post(f"{V1}/endpoints", json=body, headers=bearer("admin")).json()
        sent = guarded.post(f"{V1}/endpoints/{made['id']}/send", json={"body": 1}, headers=ann)
        assert (sent.status_code, sent.json()["owner"]) == (202, "ann")
        hire().work()
        assert listener.heard[0].headers["authorization"] == f"Bearer {CANARY}"


@pytest.mark.parametrize("timeout", [0, 601, 3600])
def test_the_document_says_how_long_an_attempt_may_take(client, timeout):
    refused = client.post(f"{V1}/endpoints", json=PUBLIC | {"timeout": timeout})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "timeout")
    document = client.get(f"{V1}/openapi.json").json()["components"]["schemas"]
    assert document["NewEndpointBody"]["properties"]["timeout"]["maximum"] == 600
    assert client.post(f"{V1}/endpoints", json=PUBLIC | {"timeout": 600}).status_code == 201


def test_a_page_is_asked_for_by_the_next_of_another(app, client):
    refused = client.get(f"{V1}/endpoints", params={"after": "zz"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "after")
    with pytest.raises(InvalidOption):
        app.endpoints.list(after="zz")


def test_what_is_sent_under_a_key_is_sent_once(app, guarded, bearer, hire):
    headers = bearer("admin")
    with listening() as listener:
        made = app.endpoints.create("billing", listener.url)
        other = app.endpoints.create("other", listener.url)
        path = f"{V1}/endpoints/{made.id}/send"
        keyed = headers | {"Idempotency-Key": "k1"}
        first = guarded.post(path, json={"body": 1}, headers=keyed)
        again = guarded.post(path, json={"body": 1}, headers=keyed)
        assert (first.status_code, again.status_code) == (202, 200)
        assert first.json()["id"] == again.json()["id"]
        assert first.json()["trigger"] == "api"
        assert first.json()["actor"].startswith("test")
        for different in ((path, {"body": 2}), (f"{V1}/endpoints/{other.id}/send", {"body": 1})):
            answer = guarded.post(different[0], json=different[1], headers=keyed)
            assert answer.json()["error"]["code"] == "idempotency_mismatch"
        hire().work()
        assert [heard.json for heard in listener.heard] == [1]
    audited = app.store.audit_of(f"endpoint:{made.id}")
    assert [entry.action for entry in audited].count("endpoint.send") == 1


def test_a_job_over_http_posts_to_an_endpoint(app, guarded, bearer, hire):
    ann = bearer("operate", owner="ann")
    with listening() as listener:
        app.endpoints.of("ann").create("billing", listener.url, retry=Retry(attempts=3))
        foreign = app.endpoints.of("bob").create("his", listener.url)
        app.endpoints.create("shared", listener.url)
        body = {"endpoint": "billing", "args": {"body": {"id": 7}}}
        keyed = ann | {"Idempotency-Key": "k"}
        made = guarded.post(f"{V1}/jobs", json=body, headers=keyed)
        assert (made.status_code, made.json()["owner"]) == (201, "ann")
        assert guarded.post(f"{V1}/jobs", json=body, headers=keyed).json() == made.json()
        assert app.job(made.json()["id"]).record.retry is not None
        for name in (foreign.id, "his", "shared", "none"):
            refused = guarded.post(f"{V1}/jobs", json={"endpoint": name}, headers=ann)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                404,
                "endpoint_not_found",
            )
        by_id = guarded.post(f"{V1}/jobs", json={"endpoint": foreign.id}, headers=bearer("operate"))
        assert (by_id.status_code, by_id.json()["owner"]) == (201, "bob")
        hire().work()
        heard = sorted(heard.body for heard in listener.heard)
        assert heard == [b'{"id":7}', b"{}"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "function"),
        ({"function": "greet", "endpoint": "billing"}, "function"),
        ({"endpoint": "billing", "args": {"endpoint": "other"}}, "args"),
        ({"endpoint": "billing", "args": {"owner": "bob", "body": 1}}, "args"),
    ],
)
def test_a_call_over_http_is_of_one_function_or_one_endpoint(app, client, given, field):
    app.endpoints.create("billing", "https://example.com/x")
    for path, more in (("jobs", {}), ("schedules", {"key": "k", "every": "1h"})):
        refused = client.post(f"{V1}/{path}", json={**more, **given})
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)


def test_a_schedule_over_http_posts_to_an_endpoint(app, clock, guarded, bearer):
    ann, bob = bearer("operate", owner="ann"), bearer("operate", owner="bob")
    with listening() as listener:
        app.endpoints.of("ann").create("billing", listener.url)
        app.endpoints.of("ann").create("second", listener.url)
        app.endpoints.of("bob").create("his", listener.url)
        new = {"key": "k", "every": "1h", "endpoint": "billing", "args": {"body": 1}}
        assert guarded.post(f"{V1}/schedules", json=new, headers=bob).status_code == 404
        made = guarded.post(f"{V1}/schedules", json=new, headers=ann).json()
        path = f"{V1}/schedules/{made['id']}"
        assert made["args"] == {"body": 1, "endpoint": "billing", "owner": "ann"}

        def change(**changes):
            nonlocal made
            answer = guarded.patch(path, json={"version": made["version"], **changes}, headers=ann)
            made = answer.json() if answer.status_code == 200 else made
            return answer

        assert change(endpoint="his").status_code == 404
        assert change(endpoint="second", function="greet").status_code == 422
        advance(app, 3600)
        change(args={"body": 2})
        advance(app, 3600)
        change(options={"priority": 9})
        change(endpoint="second", args={"body": 3}, note="elsewhere")
        assert made["args"] == {"body": 3, "endpoint": "second", "owner": "ann"}
        advance(app, 3600)
        inputs = {"inputs": {"body": 4, "endpoint": "his", "owner": "bob"}}
        assert guarded.post(f"{path}/run", json=inputs, headers=ann).status_code == 200
        rotation = {"rotation": [{"body": 5}]}
        made = guarded.put(f"{path}/rotation", json=rotation, headers=ann).json()
        advance(app, 3600)
        assert [heard.json for heard in listener.heard] == [1, 2, 3, 4, 5]
        change(function="greet", args={"name": "ann"}, rotation=None)
        assert (made["function"], made["args"]["name"]) == ("greet", "ann")


def test_what_a_schedule_sends_to_an_endpoint_of_others_is_not_for_its_owner_to_say(
    app, guarded, bearer
):
    ann = bearer("operate", owner="ann")
    app.endpoints.create("shared", "https://example.com/x")
    call = app.endpoint("shared").bind(1)
    made = app.schedules.of("ann").create("k", call, every=3600)
    path = f"{V1}/schedules/{made.id}"
    asked = [
        guarded.post(f"{path}/run", json={"inputs": {"body": 2}}, headers=ann),
        guarded.put(f"{path}/rotation", json={"rotation": [{"body": 2}]}, headers=ann),
        guarded.patch(path, json={"version": 1, "args": {"body": 2}}, headers=ann),
        guarded.patch(path, json={"version": 1, "rotation": [{"body": 2}]}, headers=ann),
        guarded.patch(path, json={"version": 1, "options": {"priority": 1}}, headers=ann),
    ]
    assert [answer.status_code for answer in asked] == [404] * 5
    assert guarded.post(f"{path}/run", headers=ann).status_code == 200


def test_a_retry_policy_over_http_takes_each_form_of_delay_and_jitter(app, guarded, bearer):
    admin = bearer("admin")

    def create(name: str, **retry: object):
        body = {"name": name, "url": "https://billing.example/", "retry": retry}
        return guarded.post(f"{V1}/endpoints", json=body, headers=admin)

    defaults = {"attempts": 5, "delay": 2.0, "factor": 2.0, "cap": 3600.0, "jitter": 1.0}
    assert create("a").json()["retry"] == defaults
    given = {"attempts": 4, "delay": [1.0, 10.0, 60.0], "factor": 2.0, "cap": 90.0, "jitter": "20%"}
    made = create("b", delay=[1, 10, 60], cap=90, jitter="20%")
    assert made.json()["retry"] == given
    assert app.endpoints.get("b").retry == Retry(delay=[1, 10, 60], cap=90, jitter="20%")
    path = f"{V1}/endpoints/{made.json()['id']}"
    again = guarded.patch(path, json={"version": 1, "retry": given}, headers=admin)
    assert again.json()["retry"] == given
    for wrong, reason in (
        ({"delay": [1, 10], "attempts": 5}, "2 delays make 3 attempts, not 5"),
        ({"jitter": "much"}, "a percentage like"),
        ({"factor": 0}, "factor"),
        ({"base": 2}, "base"),
    ):
        refused = create("c", **wrong)
        assert refused.status_code == 422
        assert reason in refused.text
