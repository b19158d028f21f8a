"""Webhooks in: verified, stored with their job in one transaction, processed in order."""

import asyncio
import hmac
import json
import logging
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from duly import Ctx, Duly, ManualClock, Retry, Tx, Unique, fault, ids
from duly.errors import (
    InvalidFunction,
    InvalidOption,
    StoreUnavailable,
    UnknownFunction,
    UseTx,
    WebhookEventNotFound,
)
from duly.observe.metrics import metrics_text
from duly.server import make_asgi
from duly.server.hooks import routes
from duly.webhooks import (
    HMAC,
    Atlassian,
    Bearer,
    EventState,
    GitHub,
    StandardWebhooks,
    Stripe,
    WebhookEvent,
)
from tests.jobs.support import (
    Database,
    Hire,
    on_sqlite,
    rescue_the_dead,
    tidy,
    wait_until,
)
from tests.server.hooked import BODY, SECRET, receive_in_a_process, send, signed, wire


class Log:
    """What the functions of a test have seen, in order; and which of it shall fail."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.broken: set[str] = set()
        self.gates: dict[str, threading.Event] = {}

    def process(self, event: WebhookEvent) -> None:
        self.seen.append(event.delivery)
        gate = self.gates.get(event.delivery)
        if gate is not None:
            assert gate.wait(20)
        if event.delivery in self.broken:
            raise ValueError(f"cannot process {event.delivery}")


@pytest.fixture
def seen() -> Log:
    return Log()


@pytest.fixture
def hooks(app: Duly, seen: Log) -> Duly:
    """An app with one webhook, whose events about one issue are processed in order."""

    @app.action
    def process(ctx: Ctx, event_id: str) -> None:
        seen.process(app.webhooks.get(event_id))

    @app.mutation
    def pushed(tx: Tx, event_id: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (event_id,))

    app.webhook(
        "github",
        source=GitHub(secrets=[SECRET]),
        process=process,
        routes={"push": pushed},
        filter=lambda event: event.type != "ping",
        entity="/issue/id",
    )
    return app


def about(issue: int, number: int = 0) -> bytes:
    return json.dumps({"issue": {"id": issue}, "n": number}).encode()


def issue(app: Duly, delivery: str, id_: int = 7) -> str:
    """An event about an issue; its id."""
    received = send(app, about(id_), delivery, "issues")
    assert received.status == 200
    assert received.event_id is not None
    return received.event_id


def states(app: Duly) -> dict[str, str]:
    return {event.delivery: str(event.state) for event in app.webhooks.list()}


# Receiving


@pytest.mark.spec("R182", "R183")
def test_a_wrong_signature_is_401_before_anything_is_parsed_or_stored(hooks: Duly, db: Database):
    for headers in ({}, signed(b"other", "d-1"), signed(b"{", "d-1", secret="wrong")):
        received = hooks.webhooks.receive("github", headers, b"{")
        assert (received.status, received.event_id) == (401, None)
    assert (db.count("@inbox"), db.count("@jobs")) == (0, 0)


@pytest.mark.spec("R182")
def test_the_bytes_are_verified_as_they_came_and_stored_so(hooks: Duly):
    body = b'{ "a":\t1e2, "b": "\\u00e9\xc3\xa9" }\r\n'
    event = hooks.webhooks.get(send(hooks, body).event_id or "")
    assert event.body == body
    assert event.payload() == {"a": 100.0, "b": "éé"}
    assert (event.type, event.delivery, event.webhook) == ("push", "d-1", "github")


@pytest.mark.spec("R184")
@pytest.mark.parametrize("secrets", [[], [""], ["env:DULY_TEST_NO_SUCH_SECRET"]])
def test_without_a_secret_it_is_500_and_nothing_is_accepted(
    app: Duly, db: Database, secrets: list[str]
):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    app.webhook("github", source=GitHub(secrets=secrets), process=process)
    assert app.webhooks.receive("github", signed(BODY, "d", secret=""), BODY).status == 500
    assert db.count("@inbox") == 0


@pytest.mark.spec("R193")
def test_a_secret_is_rotated_without_a_restart(app: Duly, monkeypatch: pytest.MonkeyPatch):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    source = GitHub(secrets=["env:HOOK_OLD", "env:HOOK_NEW"])
    app.webhook("github", source=source, process=process)
    monkeypatch.setenv("HOOK_OLD", "old")

    def status(delivery: str, secret: str) -> int:
        return app.webhooks.receive("github", signed(BODY, delivery, secret=secret), BODY).status

    assert (status("1", "old"), status("2", "new")) == (200, 401)
    monkeypatch.setenv("HOOK_NEW", "new")
    assert (status("3", "old"), status("4", "new")) == (200, 200)
    monkeypatch.delenv("HOOK_OLD")
    assert (status("5", "old"), status("6", "new")) == (401, 200)


@pytest.mark.spec("R186")
def test_it_is_stored_pending_and_200_though_the_processor_is_slow(
    hooks: Duly, hire: Hire, seen: Log
):
    gate = seen.gates["slow"] = threading.Event()
    event_id = issue(hooks, "slow")
    assert hooks.webhooks.get(event_id).state == EventState.PENDING
    worker = hire()
    worker.start_due()
    wait_until(lambda: seen.seen == ["slow"])
    assert hooks.webhooks.get(event_id).state == EventState.PROCESSING
    assert send(hooks, about(8), "second", "issues").status == 200
    gate.set()
    worker.work()
    assert states(hooks) == {"slow": "processed", "second": "processed"}


@pytest.mark.spec("R186")
def test_200_though_the_processor_fails(hooks: Duly, hire: Hire, seen: Log):
    seen.broken = {"one", "two"}
    event_id = issue(hooks, "one", 1)
    worker = hire()
    worker.work()
    event = hooks.webhooks.get(event_id)
    assert (event.state, event.attempts) == (EventState.PENDING, 1)
    assert "cannot process one" in str(event.error)
    assert send(hooks, about(2), "two", "issues").status == 200


@pytest.mark.spec("R187")
@pytest.mark.parametrize(("point", "stored"), [("webhook.stored", 0), ("webhook.committed", 1)])
def test_a_kill_leaves_event_and_job_or_neither(
    url: str, app: Duly, db: Database, point: str, stored: int
):
    assert receive_in_a_process(url, point) == -signal.SIGKILL
    assert (db.count("@inbox"), db.count("@jobs")) == (stored, stored)
    wire(app)
    assert send(app).outcome == ("duplicate" if stored else "stored")
    assert (db.count("@inbox"), db.count("@jobs")) == (1, 1)


@pytest.mark.spec("R187")
def test_an_error_after_the_event_takes_the_event_back(hooks: Duly, db: Database):
    def fail(point: str) -> None:
        if point == "enqueue.inserted":
            raise ZeroDivisionError

    with fault.inject(fail), pytest.raises(ZeroDivisionError):
        send(hooks)
    assert (db.count("@inbox"), db.count("@jobs")) == (0, 0)


@pytest.mark.spec("R188")
def test_the_same_delivery_twice_is_one_event(hooks: Duly, hire: Hire, db: Database):
    first, second = send(hooks), send(hooks)
    assert (first.outcome, second.outcome) == ("stored", "duplicate")
    assert first.event_id == second.event_id
    hire().work()
    assert send(hooks).status == 200
    assert (len(db.notes()), db.count("@inbox")) == (1, 1)


@pytest.mark.spec("R188")
@pytest.mark.parametrize("type_", ["push", "ping", "issues"])
def test_twenty_at_once_are_one_event(hooks: Duly, db: Database, type_: str):
    barrier = threading.Barrier(20)

    def deliver(_: int) -> tuple[int, str | None]:
        barrier.wait()
        received = send(hooks, about(7), "same", type_)
        return received.status, received.event_id

    with ThreadPoolExecutor(20) as pool:
        answers = set(pool.map(deliver, range(20)))
    assert len(answers) == 1
    assert answers.pop()[0] == 200
    assert (db.count("@inbox"), db.count("@jobs")) == (1, 0 if type_ == "ping" else 1)


@pytest.mark.spec("R188")
def test_two_webhooks_may_have_the_same_delivery_id(hooks: Duly, db: Database):
    hooks.webhook("two", source=GitHub(secrets=[SECRET]), process=hooks.function("pushed"))
    send(hooks)
    assert hooks.webhooks.receive("two", signed(BODY, "d-1"), BODY).outcome == "stored"
    assert db.count("@inbox") == 2


def test_without_an_id_of_its_own_the_body_is_the_delivery(app: Duly):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    app.webhook("own", source=Bearer(secrets=["s"]), process=process)
    headers = {"Authorization": "Bearer s"}
    outcomes = [app.webhooks.receive("own", headers, body).outcome for body in (b"1", b"1", b"2")]
    assert outcomes == ["stored", "duplicate", "stored"]


def test_without_an_id_the_time_that_was_signed_tells_equal_bodies_apart(
    app: Duly, clock: ManualClock
):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    source = HMAC(secrets=["s"], header="x-sig", timestamp="x-time", delivery_header="x-id")
    app.webhook("own", source=source, process=process)

    def send_at(seconds: int, **more: str) -> str:
        time = str(clock.now() // 1000 + seconds)
        digest = hmac.new(b"s", f"{time}.{{}}".encode(), "sha256").hexdigest()
        headers = {"x-sig": digest, "x-time": time, **more}
        return app.webhooks.receive("own", headers, b"{}").outcome

    assert [send_at(seconds) for seconds in (0, 0, 60)] == ["stored", "duplicate", "stored"]
    # With an id that alone counts: a sender that tries again signs anew.
    again = [send_at(seconds, **{"x-id": "d-1"}) for seconds in (0, 60)]
    assert again == ["stored", "duplicate"]


def test_a_body_is_nested_at_most_so_deep_that_everybody_can_read_it(hooks: Duly, db: Database):
    def nested(depth: int) -> bytes:
        return b"[" * depth + b"]" * depth

    deepest = send(hooks, nested(64))
    assert deepest.status == 200
    for depth in (65, 300, 900):
        assert send(hooks, nested(depth), f"d-{depth}").status == 400
    assert db.count("@inbox") == 1
    with TestClient(make_asgi(hooks, auth="open")) as client:
        shown = client.get(f"/api/v1/webhooks/{deepest.event_id}")
        assert (shown.status_code, shown.json()["size"]) == (200, 128)
        # Whoever stored it.
        db.execute("UPDATE @inbox SET body = ?", nested(500))
        shown = client.get(f"/api/v1/webhooks/{deepest.event_id}")
        assert (shown.status_code, shown.json()["payload"]) == (200, nested(500).decode())


@pytest.mark.spec("R189")
@pytest.mark.parametrize(
    "body", [b"", b"{", b"a=1", b'{"a":NaN}', b"\xff\xfe", b'"\xff"', b"[" * 100_000, b"{}{}"]
)
def test_a_valid_signature_over_bad_json_is_400(hooks: Duly, db: Database, body: bytes):
    assert send(hooks, body).status == 400
    assert db.count("@inbox") == 0


@pytest.mark.spec("R190")
def test_an_irrelevant_type_is_filtered(hooks: Duly, db: Database, hire: Hire):
    received = send(hooks, type_="ping")
    assert (received.status, received.outcome) == (200, "filtered")
    event = hooks.webhooks.get(received.event_id or "")
    assert (event.state, event.job_id, event.attempts, event.error) == ("filtered", None, 0, None)
    assert db.count("@jobs") == 0
    assert hooks.webhooks.retry(event.id).retried is False


@pytest.mark.spec("R190")
def test_types_may_be_listed_and_types_without_a_function_are_filtered(app: Duly):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    source = GitHub(secrets=[SECRET])
    app.webhook("github", source=source, process=process, filter={"push", "issues"})
    app.webhook("routed", source=source, routes={"push": process})
    for name in ("github", "routed"):
        for type_ in ("push", "star"):
            headers = signed(BODY, type_, type_)
            outcome = app.webhooks.receive(name, headers, BODY).outcome
            assert outcome == ("stored" if type_ == "push" else "filtered")


@pytest.mark.spec("R190")
def test_a_processed_event_is_not_run_again(hooks: Duly, hire: Hire, seen: Log):
    event_id = issue(hooks, "one")
    assert hooks.webhooks.retry(event_id).state == EventState.PENDING
    hire().work()
    retried = hooks.webhooks.retry(event_id, by="ann")
    assert (retried.retried, retried.state) == (False, EventState.PROCESSED)
    hire().work()
    assert seen.seen == ["one"]


def test_the_type_decides_which_function_runs(hooks: Duly, hire: Hire, db: Database, seen: Log):
    pushed = send(hooks, delivery="p", type_="push").event_id
    issue(hooks, "i")
    hire().work()
    assert (db.notes(), seen.seen) == ([pushed], ["i"])


@pytest.mark.spec("R192")
def test_an_oversized_body_is_413(app: Duly, db: Database):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process, max_bytes=10)
    assert send(app, b'"12345678"').status == 200
    assert send(app, b'"123456789"', "d-2").status == 413
    assert app.webhooks.receive("github", {}, b"x" * 11).status == 413
    assert db.count("@inbox") == 1


def test_an_unknown_name_is_404(hooks: Duly):
    assert hooks.webhooks.receive("gitlab", {}, b"x" * 2_000_000).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"\\u0000","type":"a\\u0000b"}',
        b'{"id":7,"type":{"a":1}}',
        json.dumps({"id": "i" * 5_000, "type": "t" * 5_000}).encode(),
        b"[1,2]",
        '{"id":"\\ud83d\\ude00","type":"é"}'.encode(),
    ],
)
def test_whatever_an_authentic_sender_says_is_stored(app: Duly, body: bytes):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    class Odd(Bearer):
        def delivery_in(self, payload: Any) -> str | None:
            return (
                payload.get("id") if isinstance(payload, dict) and payload.get("id") != 7 else None
            )

    app.webhook("odd", source=Odd(secrets=["s"]), process=process, entity="/id")
    headers = [("Authorization", "Bearer s"), ("X-Odd", "\udc80\0é"), ("X-Odd", "2")]
    received = app.webhooks.receive("odd", headers, body)
    assert received.status == 200
    assert app.webhooks.get(received.event_id or "").body == body
    assert app.webhooks.receive("odd", headers, body).outcome == "duplicate"


def test_code_of_the_users_that_raises_loses_no_event(
    app: Duly, hire: Hire, db: Database, caplog: pytest.LogCaptureFixture
):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (event_id,))

    app.webhook(
        "github",
        source=GitHub(secrets=[SECRET]),
        process=process,
        filter=lambda event: event.payload()["missing"],
        entity=lambda event: event.payload()["missing"],
    )
    with caplog.at_level(logging.ERROR):
        assert send(app).outcome == "stored"
    hire().work()
    assert len(db.notes()) == 1
    assert "filter raised" in caplog.text


def test_a_deleted_function_is_503_until_it_is_restored(hooks: Duly, db: Database):
    hooks.functions.delete("pushed")
    assert send(hooks).status == 503
    assert db.count("@inbox") == 0
    hooks.functions.restore("pushed")
    assert send(hooks).status == 200


def test_a_deleted_hook_is_503_too(app: Duly):
    @app.action
    def done(ctx: Ctx, job_id: str) -> None: ...

    @app.action(on_complete=done)
    def process(ctx: Ctx, event_id: str) -> None: ...

    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process)
    app.functions.delete("done")
    assert send(app).status == 503


def test_secrets_are_found_in_no_row(hooks: Duly, url: str, db: Database):
    headers = signed(BODY, "d-1") | {
        "Authorization": "Bearer canary",
        "Cookie": "canary",
        "X-Api-Key": "canary",
        "X-Functions-Key": "canary",
        "X-Auth": "canary",
        "X-Authentication": "canary",
        "X-Odd": f"has {SECRET} in it",
        "X-Fine": "fine",
        "X-Keyword": "fine",
    }
    event_id = hooks.webhooks.receive("github", headers, BODY).event_id or ""
    kept = hooks.webhooks.get(event_id).headers
    assert kept["x-fine"] == kept["x-keyword"] == "fine"
    assert "x-github-event" in kept
    rows = db.execute("SELECT * FROM @inbox") + db.execute("SELECT * FROM @jobs")
    assert "canary" not in str(rows)


def test_receiving_inside_a_mutation_is_refused(hooks: Duly):
    with hooks.transaction(), pytest.raises(UseTx):
        send(hooks)


# Failing, and trying again


@pytest.mark.spec("R186")
def test_five_attempts_with_backoff_of_at_most_an_hour_then_a_dead_letter(
    hooks: Duly, hire: Hire, seen: Log, clock: ManualClock
):
    seen.broken = {"bad"}
    event_id = issue(hooks, "bad")
    worker = hire()
    for attempt in range(1, 6):
        worker.work()
        assert len(seen.seen) == attempt
        clock.advance(3600)
    worker.work()
    event = hooks.webhooks.get(event_id)
    assert (event.state, event.attempts, len(seen.seen)) == (EventState.FAILED, 5, 5)
    assert [job.id for job in hooks.dead()] == [event.job_id]
    assert [e.id for e in hooks.webhooks.list(state="failed")] == [event_id]


def test_a_function_with_a_retry_policy_keeps_it(app: Duly):
    @app.action(retry=Retry(attempts=2, delay=0))
    def process(ctx: Ctx, event_id: str) -> None: ...

    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process)
    event = app.webhooks.get(send(app).event_id or "")
    assert '"attempts":2' in str(app.core.ready().get(event.job_id or "").retry)  # type: ignore[union-attr]


def fail_for_good(app: Duly, hire: Hire, clock: ManualClock) -> None:
    worker = hire()
    for _ in range(5):
        worker.work()
        clock.advance(3600)
    worker.stop()


def test_a_failed_event_is_retried_by_hand_and_audited(
    hooks: Duly, hire: Hire, seen: Log, clock: ManualClock
):
    seen.broken = {"bad"}
    event_id = issue(hooks, "bad")
    fail_for_good(hooks, hire, clock)
    seen.broken.clear()
    first = hooks.webhooks.get(event_id).job_id

    retried = hooks.webhooks.retry(event_id, by="ann")

    assert (retried.retried, retried.state) == (True, EventState.PENDING)
    assert retried.job_id != first
    assert hooks.webhooks.retry(event_id).retried is False
    (entry,) = hooks.core.ready().audit_of(f"webhook:{event_id}")
    assert (entry.actor, entry.action) == ("ann", "webhook.retry")
    hire().work()
    assert hooks.webhooks.get(event_id).state == EventState.PROCESSED
    assert len(seen.seen) == 6


def test_a_dead_letter_that_is_retried_as_a_job_is_the_events_job(
    hooks: Duly, hire: Hire, seen: Log, clock: ManualClock
):
    seen.broken = {"bad"}
    event_id = issue(hooks, "bad")
    fail_for_good(hooks, hire, clock)
    seen.broken.clear()
    job = hooks.retry(hooks.webhooks.get(event_id).job_id or "")
    assert hooks.webhooks.get(event_id).job_id == job.id
    hire().work()
    assert hooks.webhooks.get(event_id).state == EventState.PROCESSED


def test_a_canceled_event_has_failed_and_can_be_retried(hooks: Duly, hire: Hire, seen: Log):
    event_id = issue(hooks, "one")
    hooks.cancel(hooks.webhooks.get(event_id).job_id or "")
    event = hooks.webhooks.get(event_id)
    assert (event.state, event.error) == (EventState.FAILED, "canceled by operator")
    assert hooks.webhooks.retry(event_id).retried is True
    hire().work()
    assert seen.seen == ["one"]


def test_ten_retries_at_once_are_one(hooks: Duly, db: Database):
    event_id = issue(hooks, "one")
    hooks.cancel(hooks.webhooks.get(event_id).job_id or "")
    with ThreadPoolExecutor(10) as pool:
        done = list(pool.map(lambda _: hooks.webhooks.retry(event_id), range(10)))
    assert db.count("@jobs") == 1
    assert sum(each.retried for each in done) == 1
    assert len({each.job_id for each in done}) == 1
    assert len(hooks.store.audit_of(f"webhook:{event_id}")) == 1


def test_an_unknown_event_is_not_found(hooks: Duly):
    for event_id in ("nonsense", "01a1dff3-6249-7000-bd9d-5bda273fdbfe"):
        with pytest.raises(WebhookEventNotFound):
            hooks.webhooks.get(event_id)
        with pytest.raises(WebhookEventNotFound):
            hooks.webhooks.retry(event_id)


# Order


@pytest.mark.spec("R191")
def test_events_about_the_same_are_processed_in_the_order_of_arrival(
    hooks: Duly, hire: Hire, seen: Log
):
    gate = seen.gates["1"] = threading.Event()
    for number in range(1, 6):
        issue(hooks, str(number))
    issue(hooks, "else", 8)
    worker = hire()
    worker.start_due()
    wait_until(lambda: len(seen.seen) == 2)
    worker.start_due()
    assert sorted(seen.seen) == ["1", "else"]
    gate.set()
    worker.work()
    assert [delivery for delivery in seen.seen if delivery != "else"] == ["1", "2", "3", "4", "5"]
    assert set(states(hooks).values()) == {"processed"}


@pytest.mark.spec("R191")
def test_the_next_one_waits_while_the_first_is_retried_and_goes_on_when_it_has_failed(
    hooks: Duly, hire: Hire, seen: Log, clock: ManualClock
):
    seen.broken = {"1"}
    issue(hooks, "1")
    second = issue(hooks, "2")
    worker = hire()
    for attempt in range(1, 6):
        worker.work()
        assert seen.seen == ["1"] * attempt + (["2"] if attempt == 5 else [])
        clock.advance(3600)
    assert hooks.webhooks.get(second).state == EventState.PROCESSED


@pytest.mark.spec("R191")
def test_who_waits_says_for_whom(hooks: Duly):
    first = hooks.webhooks.get(issue(hooks, "1"))
    second = hooks.webhooks.get(issue(hooks, "2"))
    assert str(first.job_id) in str(hooks.why(second.job_id or ""))


@pytest.mark.spec("R191")
def test_canceling_one_that_waits_frees_nobody_before_their_turn(
    hooks: Duly, hire: Hire, seen: Log
):
    gate = seen.gates["1"] = threading.Event()
    _, second, _ = (issue(hooks, str(number)) for number in (1, 2, 3))
    worker = hire()
    worker.start_due()
    hooks.cancel(hooks.webhooks.get(second).job_id or "")
    worker.start_due()
    issue(hooks, "4")
    worker.start_due()
    wait_until(lambda: seen.seen)
    assert seen.seen == ["1"]
    gate.set()
    worker.work()
    assert seen.seen == ["1", "3", "4"]


@pytest.mark.spec("R191")
def test_canceling_the_first_lets_the_next_one_go(hooks: Duly, hire: Hire, seen: Log):
    first = issue(hooks, "1")
    issue(hooks, "2")
    issue(hooks, "3")
    hooks.cancel(hooks.webhooks.get(first).job_id or "")
    hire().work()
    assert seen.seen == ["2", "3"]


@pytest.mark.spec("R191")
def test_canceling_all_leaves_a_line_that_works(hooks: Duly, hire: Hire, seen: Log):
    for number in range(5):
        issue(hooks, str(number))
    assert hooks.cancel_all("process") == 5
    issue(hooks, "5")
    issue(hooks, "6")
    hire().work()
    assert seen.seen == ["5", "6"]


@pytest.mark.spec("R191")
def test_a_worker_that_dies_keeps_the_line(hooks: Duly, hire: Hire, seen: Log, clock: ManualClock):
    issue(hooks, "1")
    issue(hooks, "2")
    dying, observer = hire(), hire()
    dying.claim_only()
    dying.die()
    rescue_the_dead(observer)
    observer.work()
    assert seen.seen == []
    clock.advance(3600)
    observer.work()
    assert seen.seen == ["1", "2"]


@pytest.mark.spec("R191")
def test_a_retry_goes_to_the_end_of_the_line(
    hooks: Duly, hire: Hire, seen: Log, clock: ManualClock, db: Database
):
    seen.broken = {"1"}
    first = issue(hooks, "1")
    fail_for_good(hooks, hire, clock)
    seen.broken, seen.seen = set(), []
    gate = seen.gates["2"] = threading.Event()
    issue(hooks, "2")
    worker = hire()
    worker.start_due()
    hooks.webhooks.retry(first)
    issue(hooks, "3")
    assert db.scalar("SELECT count(*) FROM @jobs WHERE hold = 'batch'") == 2
    worker.start_due()
    wait_until(lambda: seen.seen)
    assert seen.seen == ["2"]
    gate.set()
    worker.work()
    assert seen.seen == ["2", "1", "3"]


@pytest.mark.spec("R191")
def test_a_hook_of_the_function_does_not_break_the_line(app: Duly, hire: Hire):
    seen: list[str] = []

    @app.action
    def done(ctx: Ctx, job_id: str) -> None:
        seen.append("done")

    @app.action(on_complete=done)
    def process(ctx: Ctx, event_id: str) -> None:
        seen.append(app.webhooks.get(event_id).delivery)

    source = GitHub(secrets=[SECRET])
    app.webhook("github", source=source, process=process, entity="/issue/id")
    for number in range(3):
        issue(app, str(number))
    hire().work()
    assert [each for each in seen if each != "done"] == ["0", "1", "2"]
    assert seen.count("done") == 3


@pytest.mark.spec("R191")
def test_the_order_holds_over_processes_whose_clocks_differ(
    hooks: Duly, hire: Hire, seen: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    for number in range(4):
        # Another process, which has made no ids yet, and whose clock is behind.
        monkeypatch.setattr("duly.ids._source", ids._Source())
        issue(hooks, str(number))
        clock.jump(-5)
    clock.advance(20)
    hire().work()
    assert seen.seen == ["0", "1", "2", "3"]


@pytest.mark.spec("R191")
def test_arrivals_at_the_same_time_stand_in_one_line(
    hooks: Duly, hire: Hire, seen: Log, db: Database
):
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda number: issue(hooks, str(number)), range(30)))
    held = db.scalar("SELECT count(*) FROM @jobs WHERE hold = 'batch'")
    assert held == 29
    hire().work()
    jobs = [event.job_id or "" for event in hooks.webhooks.list(limit=100)]
    assert len(seen.seen) == 30
    ran = sorted((hooks.job(job_id).started_at, job_id) for job_id in jobs)
    assert [job_id for _, job_id in ran] == sorted(jobs)


@pytest.mark.spec("R191")
def test_nobody_is_left_waiting_when_ends_cancels_and_arrivals_meet(
    hooks: Duly, hire: Hire, seen: Log, db: Database
):
    worker = hire()
    stop = threading.Event()

    def arrive(number: int) -> None:
        for turn in range(15):
            event_id = issue(hooks, f"{number}-{turn}", number % 2)
            if turn % 3 == 2:
                hooks.cancel(hooks.webhooks.get(event_id).job_id or "")

    def keep_working() -> None:
        while not stop.is_set():
            worker.start_due()
            worker.settle()

    working = threading.Thread(target=keep_working)
    working.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(arrive, range(4)))
    stop.set()
    working.join()
    worker.work()
    assert db.count("@jobs") == 0
    assert set(states(hooks).values()) <= {"processed", "failed"}


@pytest.mark.spec("R191")
def test_an_arrival_waits_for_another_that_is_not_committed(hooks: Duly, db: Database):
    reached = threading.Event()
    arrived = threading.Event()

    def meet(point: str) -> None:
        if point == "webhook.stored" and threading.current_thread().name == "first":
            reached.set()
            arrived.wait(0.3)

    with fault.inject(meet):
        first = threading.Thread(target=issue, args=(hooks, "1"), name="first")
        first.start()
        assert reached.wait(20)
        issue(hooks, "2")
        arrived.set()
        first.join()
    assert db.scalar("SELECT count(*) FROM @jobs WHERE hold = 'batch'") == 1


@pytest.mark.spec("R191")
def test_an_arrival_waits_for_an_end_that_is_not_committed(hooks: Duly, hire: Hire, seen: Log):
    """The first is deleted, and not committed: the second must not wait for it for ever."""
    first = issue(hooks, "1")
    arrived = threading.Event()
    reached = threading.Event()

    def meet(point: str) -> None:
        if point == "cancel.moved" and threading.current_thread().name == "canceling":
            reached.set()
            arrived.wait(0.3)

    def cancel() -> None:
        hooks.cancel(hooks.webhooks.get(first).job_id or "")

    with fault.inject(meet):
        canceling = threading.Thread(target=cancel, name="canceling")
        canceling.start()
        assert reached.wait(20)
        second = issue(hooks, "2")
        arrived.set()
        canceling.join()
    job = hooks.core.ready().get(hooks.webhooks.get(second).job_id or "")
    assert job is not None
    assert job.hold is None


# The inbox


def test_the_inbox_is_read_in_pages(hooks: Duly, clock: ManualClock):
    for number in range(7):
        send(hooks, delivery=str(number), type_="ping" if number % 2 else "push")
        clock.advance(1)
    listed = hooks.webhooks.list
    page = listed(limit=3)
    assert [event.delivery for event in page] == ["6", "5", "4"]
    assert [e.delivery for e in listed(limit=3, before=page[-1].id)] == ["3", "2", "1"]
    assert [e.delivery for e in listed(state="filtered", limit=2)] == ["5", "3"]
    assert [e.delivery for e in listed(state="pending")] == ["6", "4", "2", "0"]
    assert listed(webhook="other") == []
    assert listed(owner="ann") == []
    assert page[0].body == BODY
    assert page[0].received_at > page[1].received_at
    for wrong in ({"state": "odd"}, {"before": "x"}, {"limit": 0}):
        with pytest.raises(InvalidOption):
            listed(**wrong)


def test_a_filter_by_state_finds_what_lies_pages_away(hooks: Duly, monkeypatch):
    """Few are found at once; of many one page looks only so far, and the next one goes on."""
    for number in range(2):
        send(hooks, delivery=f"filtered {number}", type_="ping")
    for number in range(9):
        send(hooks, delivery=str(number))
    both = ["filtered 1", "filtered 0"]
    monkeypatch.setattr("duly.store.inbox.PAGES", 0)
    page = hooks.webhooks.page(state="filtered", limit=1)
    assert [e.delivery for e in page.events] == both[:1]
    page = hooks.webhooks.page(state="filtered", limit=1, before=page.next)
    assert ([e.delivery for e in page.events], page.next) == (both[1:], None)
    for name, value in {"MAX_LOOKED_UP": 1, "PAGE": 3, "PAGES": 2}.items():
        monkeypatch.setattr(f"duly.store.inbox.{name}", value)
    page = hooks.webhooks.page(state="filtered")
    assert page.events == []
    assert page.next == hooks.webhooks.list()[5].id
    page = hooks.webhooks.page(state="filtered", before=page.next)
    assert ([e.delivery for e in page.events], page.next) == (both, None)
    assert [e.delivery for e in hooks.webhooks.list(state="filtered")] == both
    assert [e.delivery for e in hooks.webhooks.list(state="filtered", limit=1)] == both[:1]
    with TestClient(make_asgi(hooks, auth="open")) as client:
        answer = client.get("/api/v1/webhooks?state=filtered").json()
        assert (answer["items"], answer["next"] is None) == ([], False)
        shown = client.get("/webhooks?state=filtered").text
        assert "No matches among the newest events" in shown
        assert f"before={answer['next']}" in shown
        older = client.get(f"/webhooks?state=filtered&before={answer['next']}").text
        assert all(delivery in older for delivery in both)


def test_every_state_is_found_whoever_has_called_the_job(app: Duly, hire: Hire, clock: ManualClock):
    """An event that finds a job under its key has that one, though nobody sent it."""

    @app.action(unique=Unique("one"))
    def process(ctx: Ctx, event_id: str) -> None:
        running.extend(of("processing"))

    running: list[str] = []
    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process)
    job = app.run(process, "by hand")
    clock.advance(1)
    sent = send(app).event_id

    def of(state: str) -> list[str]:
        return [event.id for event in app.webhooks.list(state=state)]

    assert app.webhooks.list()[0].job_id == job.id
    assert of("pending") == [sent]
    job.cancel()
    other = send(app, delivery="other").event_id
    assert (of("pending"), of("failed")) == ([other], [sent])
    hire().work()
    assert running == of("processed") == [other]
    assert of("pending") == of("processing") == []


def test_an_event_that_has_the_job_of_another_is_retried(app: Duly, hire: Hire):
    fails = [True, True]

    @app.action(unique=Unique("one"))
    def process(ctx: Ctx, event_id: str) -> None:
        if fails:
            raise ValueError(fails.pop())

    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process)
    app.run(process, "by hand")
    events = [send(app, delivery=name).event_id or "" for name in ("a", "b")]
    states: list[list[str]] = []
    worker = hire()
    for _ in range(3):
        worker.work()
        states.append([str(app.webhooks.get(event).state) for event in events])
        assert {app.webhooks.retry(event).job_id for event in events} == {app.jobs()[0].id}

    assert states == [["failed"] * 2, ["failed"] * 2, ["processed"] * 2]
    assert len(app.jobs()) == 3


def test_the_owner_of_a_webhook_owns_its_events_and_jobs(app: Duly):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process, owner="ann")
    event_id = send(app).event_id
    assert [event.id for event in app.webhooks.list(owner="ann")] == [event_id]
    (job,) = app.jobs(owner="ann")
    record = app.core.ready().get(job.id)
    assert record is not None
    assert (record.trigger, record.actor) == ("webhook", "github")


def test_events_go_with_their_jobs_and_filtered_ones_with_time(
    hooks: Duly, hire: Hire, clock: ManualClock, db: Database
):
    send(hooks, delivery="ping", type_="ping")
    for number in range(3):
        send(hooks, delivery=str(number))
    issue(hooks, "waits", 1)
    hooks.queues.pause("default")
    hooks.queues.resume("default")
    worker = hire()
    worker.work()
    hooks.functions.pause("process")
    late = issue(hooks, "late", 1)
    tidy(hooks)
    assert db.count("@inbox") == 6
    clock.advance(timedelta(days=8).total_seconds())
    send(hooks, delivery="new", type_="ping")
    for _ in range(3):
        tidy(hooks)
        clock.advance(61)
    kept = {event.delivery for event in hooks.webhooks.list()}
    # The newest job of each function stays, and so does what is unfinished.
    assert kept == {"2", "waits", "late", "new"}
    assert hooks.webhooks.get(late).state == EventState.PENDING
    assert db.count("@inbox") == 4


def test_retention_goes_on_where_it_stopped(hooks: Duly, clock: ManualClock, monkeypatch):
    for number in range(5):
        send(hooks, delivery=str(number), type_="ping")
    store = hooks.core.ready()
    clock.advance(10)
    assert store.retain_events("", clock.now() - 20_000) == ("", 0)
    monkeypatch.setattr("duly.store.inbox.PAGE", 3)
    after, gone = store.retain_events("", clock.now())
    assert gone == 3
    assert store.retain_events(after, clock.now()) == ("", 2)


# Declarations


def test_a_declaration_is_checked_at_once(app: Duly):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    @app.mutation
    def wrong(tx: Tx, other: str) -> None: ...

    @app.mutation
    def no_text(tx: Tx, event_id: int) -> None: ...

    @app.mutation
    def needs_more(tx: Tx, event_id: str, more: str) -> None: ...

    other = Duly("sqlite:///:memory:")

    @other.mutation
    def elsewhere(tx: Tx, event_id: str) -> None: ...

    source = GitHub(secrets=["s"])
    cases: list[tuple[type[Exception], dict[str, Any]]] = [
        (InvalidFunction, {"process": wrong}),
        (InvalidFunction, {"process": no_text}),
        (InvalidFunction, {"process": needs_more}),
        (InvalidFunction, {"process": process, "routes": {"a": wrong}}),
        (InvalidFunction, {"process": print}),
        (UnknownFunction, {"process": elsewhere}),
        (InvalidOption, {}),
        (InvalidOption, {"process": process, "source": "github"}),
        (InvalidOption, {"process": process, "path": "github"}),
        (InvalidOption, {"process": process, "path": "/a/{b}"}),
        (InvalidOption, {"process": process, "entity": "issue"}),
        (InvalidOption, {"process": process, "filter": "push"}),
        (InvalidOption, {"process": process, "max_bytes": 0}),
        (InvalidOption, {"process": process, "owner": ""}),
    ]
    for error, options in cases:
        with pytest.raises(error):
            app.webhook("github", **{"source": source, **options})
    for name in ("", "a/b", "a b", "-a", "é"):
        with pytest.raises(InvalidOption, match="name"):
            app.webhook(name, source=source, process=process)
    app.webhook("github", source=source, process=process, path="/own")
    with pytest.raises(InvalidOption, match="already"):
        app.webhook("github", source=source, process=process)
    with pytest.raises(InvalidOption, match="already"):
        app.webhook("two", source=source, process=process, path="/own")
    assert list(app.webhooks.declared) == ["github"]


@pytest.mark.parametrize(
    ("pointer", "entity"),
    [
        ("/a/b", "7"),
        ("/list/1", "two"),
        ("/list/9", None),
        ("/list/x", None),
        ("/x~1y/z~0", "odd"),
        ("/a", None),
        ("/none/b", None),
        ("/true", None),
        ("/empty", None),
    ],
)
def test_a_json_pointer_leads_to_the_entity(app: Duly, pointer: str, entity: str | None):
    @app.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process, entity=pointer)
    payload = {
        "a": {"b": 7},
        "list": ["one", "two"],
        "x/y": {"z~": "odd"},
        "true": True,
        "empty": "",
    }
    event_id = send(app, json.dumps(payload).encode()).event_id or ""
    assert app.webhooks.get(event_id).entity == entity


@pytest.mark.parametrize(
    ("source", "body", "type_", "delivery"),
    [
        (Stripe(), {"id": "evt_1", "type": "invoice.paid"}, "invoice.paid", "evt_1"),
        (StandardWebhooks(), {"type": "user.created"}, "user.created", None),
        (Atlassian(), {"webhookEvent": "jira:issue_created"}, "jira:issue_created", None),
        (Atlassian(), {"event": "page_created"}, "page_created", None),
        (GitHub(), {"type": "x"}, None, None),
        (Bearer(type_field="kind"), {"kind": "k"}, "k", None),
        (Stripe(), ["evt_1"], None, None),
    ],
)
def test_where_a_body_says_its_type_and_id(source: Any, body: Any, type_: Any, delivery: Any):
    assert (source.type_in(body), source.delivery_in(body)) == (type_, delivery)


# HTTP


@pytest.fixture
def client(hooks: Duly) -> Iterator[TestClient]:
    hooks.webhook(
        "stripe",
        source=Bearer(secrets=["s"]),
        process=hooks.function("process"),
        path="/api/webhooks/stripe",
        max_bytes=1000,
    )
    with TestClient(Starlette(routes=routes(hooks))) as client:
        yield client


@pytest.mark.spec("R186", "R192")
def test_over_http(client: TestClient, hooks: Duly):
    answer = client.post("/hooks/github", content=BODY, headers=signed(BODY, "d-1"))
    assert (answer.status_code, answer.json()["outcome"]) == (200, "stored")
    assert hooks.webhooks.get(answer.json()["event"]).body == BODY
    assert client.post("/hooks/github", content=BODY).status_code == 401
    bad = client.post("/hooks/github", content=b"{", headers=signed(b"{", "d-2"))
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "bad_request")
    assert client.post("/hooks/nobody", content=BODY).status_code == 404
    assert client.get("/hooks/github").status_code == 405
    big = b"x" * (1 << 20) + b"x"
    assert client.post("/hooks/github", content=big, headers=signed(big, "b")).status_code == 413


def test_a_webhook_may_have_a_path_of_its_own(client: TestClient):
    headers = {"Authorization": "Bearer s"}
    assert client.post("/api/webhooks/stripe", content=b"1", headers=headers).status_code == 200
    assert client.post("/hooks/stripe", content=b"1", headers=headers).status_code == 404


@pytest.mark.spec("R192")
def test_a_body_is_read_only_up_to_its_limit(client: TestClient):
    read, answered = 0, []

    async def endless() -> dict[str, Any]:
        nonlocal read
        read += 100
        assert read <= 1100
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def answer(message: Any) -> None:
        answered.append(message.get("status"))

    path = "/api/webhooks/stripe"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}

    async def ask() -> None:
        await client.app(scope, endless, answer)

    asyncio.run(ask())
    assert (answered[0], read) == (413, 1100)


@pytest.mark.spec("R183")
def test_nothing_malformed_is_a_server_error(client: TestClient):
    for headers in (
        [(b"X-Hub-Signature-256", b"sha256=\xff\xfe")],
        [(b"X-Hub-Signature-256", b"sha256=")],
        [(b"X-Hub-Signature-256", b"sha256=aa"), (b"X-Hub-Signature-256", b"sha256=bb")],
        [(b"X-GitHub-Delivery", b"\xff")],
    ):
        for body in (b"", b"\xff" * 10, BODY):
            assert client.post("/hooks/github", content=body, headers=headers).status_code == 401


def test_what_becomes_of_requests_is_counted(client: TestClient, hooks: Duly, monkeypatch):
    for body, headers in (
        (BODY, signed(BODY, "d-1")),
        (BODY, signed(BODY, "d-1")),
        (BODY, {}),
        (b"{", signed(b"{", "d-2")),
        (BODY, signed(BODY, "d-3") | {"X-GitHub-Event": "ping"}),
    ):
        client.post("/hooks/github", content=body, headers=headers)
    client.post("/hooks/nobody", content=BODY)
    too_large = b"x" * (hooks.webhooks.declared["github"].max_bytes + 1)
    assert client.post("/hooks/github", content=too_large).status_code == 413

    def away(*given: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(hooks.core.store, "receive_webhook", away)
        client.post("/hooks/github", content=BODY, headers=signed(BODY, "d-4"))
    lines = [each for each in metrics_text(hooks.core).splitlines() if "duly_webhooks" in each]
    assert {line for line in lines if line[0] != "#"} == {
        f'duly_webhooks_total{{webhook="github",verdict="{verdict}"}} {count}'
        for verdict, count in (
            *(("stored", 1), ("duplicate", 1), ("filtered", 1)),
            *(("unverified", 1), ("invalid", 2), ("unavailable", 1)),
        )
    }


@on_sqlite
def test_what_was_counted_keeps_no_sender_waiting(
    client: TestClient, hooks: Duly, monkeypatch: pytest.MonkeyPatch
):
    asked, answered = threading.Event(), threading.Event()
    waited: list[bool] = []

    def add_counts(counts: object) -> None:
        asked.set()
        waited.append(answered.wait(2))

    monkeypatch.setattr(hooks.core.store, "add_counts", add_counts)
    answer = client.post("/hooks/github", content=BODY, headers=signed(BODY, "d-1"))
    assert asked.wait(20)
    answered.set()
    wait_until(lambda: waited)
    assert (answer.status_code, waited) == (200, [True])


def test_a_database_that_is_away_is_503(client: TestClient, hooks: Duly, monkeypatch):
    def fail(*args: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(hooks.core.store, "receive_webhook", fail)
    answer = client.post("/hooks/github", content=BODY, headers=signed(BODY, "d-1"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
