"""Live events over real HTTP: what happens arrives, once, and no end is ever missed."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any

import httpx2
import psycopg
import pytest
import uvicorn

from duly import Duly, ManualClock
from duly.feed import MOST_WAITING, Follower, Seen
from duly.model.job import State
from duly.model.news import AuditNews, Changes, Cursor, JobNews, News, read_cursor
from duly.model.progress import revision_of
from duly.server import make_asgi
from tests.jobs.support import Hire, on_postgres, wait_until

PATIENCE = 20.0


class Stream:
    """A client that reads events in a thread of its own."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.events: Queue[dict[str, Any]] = Queue()
        self.last_id: str | None = None
        self._client = httpx2.Client(timeout=httpx2.Timeout(PATIENCE, read=None))
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, headers or {}), daemon=True)
        self._thread.start()
        assert self._opened.wait(PATIENCE)

    def _read(self, url: str, headers: dict[str, str]) -> None:
        with self._client.stream("GET", url, headers=headers) as answer:
            self.status = answer.status_code
            fields: dict[str, str] = {}
            self._response = answer
            try:
                for line in answer.iter_lines():
                    self._opened.set()
                    if line:
                        name, _, value = line.partition(": ")
                        fields[name] = value
                    elif "event" in fields:
                        self._put(fields)
                        fields = {}
                    else:
                        fields = {}
            except httpx2.TransportError:
                pass
            self._opened.set()

    def _put(self, fields: dict[str, str]) -> None:
        self.last_id = fields.get("id", self.last_id)
        self.events.put({"event": fields["event"], **json.loads(fields["data"])})

    def until(self, holds: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
        """Everything up to the first event that fits."""
        seen: list[dict[str, Any]] = []
        while not seen or not holds(seen[-1]):
            try:
                seen.append(self.events.get(timeout=PATIENCE))
            except Empty:
                pytest.fail(f"it did not come; so far {seen}")
        return seen

    def rest(self) -> list[dict[str, Any]]:
        return [self.events.get_nowait() for _ in range(self.events.qsize())]

    def close(self) -> None:
        self._client.close()
        # A read that blocks ends with the connection.
        self._response.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Duly], str]]:
    """A real server in a thread; its address."""
    servers: list[uvicorn.Server] = []

    def start(app: Duly) -> str:
        config = uvicorn.Config(
            make_asgi(app, auth="open"), port=0, log_config=None, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        servers.append(server)
        threading.Thread(target=server.run, daemon=True).start()
        wait_until(lambda: server.started, "the server")
        port = server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/api/v1/events"

    yield start
    for server in servers:
        server.should_exit = True


@contextmanager
def stream(url: str, headers: dict[str, str] | None = None) -> Iterator[Stream]:
    opened = Stream(url, headers)
    try:
        yield opened
    finally:
        opened.close()


def ended(event: dict[str, Any]) -> bool:
    return bool(event["event"] == "job" and event["state"] == "succeeded")


def test_a_job_is_followed_from_its_call_to_its_end(shop: Duly, hire: Hire, serve: Any):
    address = serve(shop)
    with stream(address) as client:
        job = shop.run(shop.functions["greet"], "ann")
        created = client.until(lambda event: event["event"] == "job")
        assert created[-1]["state"] == "pending"
        assert created[-1]["id"] == job.id
        hire().work()
        events = client.until(ended)
        assert events[-1]["id"] == job.id
        assert events[-1]["function"] == "greet"


def test_whoever_comes_back_gets_the_ends_that_it_missed(shop: Duly, hire: Hire, serve: Any):
    address = serve(shop)
    worker = hire()
    with stream(address) as client:
        shop.run(shop.functions["greet"], "ann")
        worker.work()
        client.until(ended)
        last_id = client.last_id
    assert last_id is not None
    missed = shop.run_many(shop.functions["greet"].bind(name) for name in ("bob", "cy", "di"))
    worker.work()
    with stream(address, {"Last-Event-ID": last_id}) as client:
        waiting = {job.id for job in missed}

        def arrived(event: dict[str, Any]) -> bool:
            if ended(event):
                waiting.discard(event["id"])
            return not waiting

        client.until(arrived)


def test_an_id_that_makes_no_sense_is_a_gap(shop: Duly, serve: Any):
    with stream(serve(shop), {"Last-Event-ID": "what?"}) as client:
        assert client.until(lambda event: True) == [{"event": "gap"}]


def test_a_named_job_says_where_it_stands_and_how_it_ends(shop: Duly, hire: Hire, serve: Any):
    address = serve(shop)
    job = shop.run(shop.functions["greet"], "ann")
    with stream(f"{address}?job={job.id}") as client:
        assert client.until(lambda event: True)[0]["state"] == "pending"
        hire().work()
        assert ended(client.until(ended)[-1])
        client.until(lambda event: event["event"] == "end")
    # One who asks when it is over is told so at once.
    with stream(f"{address}?job={job.id}") as client:
        assert [event["event"] for event in client.until(lambda e: e["event"] == "end")] == [
            "job",
            "end",
        ]


def test_an_owner_is_told_of_no_others(shop: Duly, hire: Hire, serve: Any):
    address = serve(shop)
    greet = shop.functions["greet"]
    with stream(f"{address}?owner=ann") as client:
        shop.run(greet.using(owner="bob"), "bob")
        mine = shop.run(greet.using(owner="ann"), "ann")
        shop.queues.pause("other", by="somebody")
        hire().work()
        events = client.until(ended)
        assert {event["id"] for event in events + client.rest()} == {mine.id}


def test_ticks_and_what_operators_do_are_told(shop: Duly, clock: ManualClock, serve: Any):
    from tests.schedules.support import tick_all

    address = serve(shop)
    with stream(address) as client:
        schedule = shop.schedules.create(
            "often", shop.functions["greet"].bind("ann"), every=3600, by="ann"
        )
        change = client.until(lambda event: event["event"] == "change")[-1]
        assert change["target"] == f"schedule:{schedule.id}"
        assert change["actor"] == "ann"
        clock.advance(3600)
        tick_all(shop)
        tick = client.until(lambda event: event["event"] == "tick")[-1]
        assert (tick["schedule_id"], tick["outcome"]) == (schedule.id, "dispatched")


def test_two_hundred_followers_cost_one_look(shop: Duly, hire: Hire, monkeypatch: Any):
    looks = 0
    changes = type(shop.store).changes

    def counted(self: Any, *args: Any) -> Changes:
        nonlocal looks
        looks += 1
        return changes(self, *args)

    monkeypatch.setattr(type(shop.store), "changes", counted)
    bells = [threading.Event() for _ in range(200)]
    feed = shop.core.feed
    with_all = [feed.following(lambda news: True, None, bell.set) for bell in bells]
    before = threading.active_count()
    followers = [each.__enter__() for each in with_all]
    try:
        shop.run(shop.functions["greet"], "ann")
        for bell in bells:
            assert bell.wait(PATIENCE)
        assert all(len(follower.take()) >= 1 for follower in followers)
        assert threading.active_count() <= before + 2
        assert looks < 100
    finally:
        for each in with_all:
            each.__exit__(None, None, None)


@on_postgres
def test_an_end_that_commits_late_is_not_missed(
    shop: Duly, url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """Its time is older than ends that were seen long before it."""
    monkeypatch.setattr("duly.store.feed.SLACK_MS", 50)
    feed = shop.core.feed
    late = shop.run(shop.functions["greet"], "late")
    early = shop.run(shop.functions["greet"], "early")
    first = feed.look(None).next
    with psycopg.connect(url) as other:
        other.execute("DELETE FROM duly.jobs WHERE id = %s", [late.id])
        insert = """INSERT INTO duly.history (bucket, id, function, kind, queue, priority, state,
            token, attempt, crashes, system_retries, created_at, scheduled_at, run_at,
            completed_at, args) VALUES ((%(now)s / 86400000) %% 16, %(id)s, 'greet', 'action',
            'default', 5, 'succeeded', 1, 1, 0, 0, 1, 1, 1, %(now)s, '{}')"""
        other.execute(insert, {"now": clock.now(), "id": late.id})
        # Time passes by its clock and ours, while others end and are seen.
        other.execute("SELECT pg_sleep(0.3)")
        clock.advance(0.3)
        shop.cancel(early)
        seen = feed.look(first)
        assert early.id in ids(seen.news)
        assert late.id not in ids(seen.news)
        for _ in range(3):
            seen = feed.look(seen.next)
        other.commit()
    assert late.id in ids(feed.look(seen.next).news)


def ids(news: list[News]) -> set[str]:
    """Of jobs that have ended."""
    return {each.id for each in news if isinstance(each, JobNews) and each.state.is_terminal}


def test_what_ends_while_somebody_is_let_in_is_told(
    shop: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    feed = shop.core.feed
    job = shop.run(shop.functions["greet"], "ann")
    worker = hire()
    look, asked = feed.look, 0

    def looking(cursor: Cursor | None) -> Changes:
        nonlocal asked
        changes = look(cursor)
        asked += cursor is not None
        if asked == 1:  # the one who comes back has just been shown what happened meanwhile
            asked += 1
            worker.work()
        return changes

    cursor = look(None).next
    monkeypatch.setattr(feed, "look", looking)
    bell = threading.Event()
    with feed.following(lambda news: True, cursor, bell.set) as follower:
        seen: list[Any] = []

        def ended() -> bool:
            seen.extend(told.news for told in follower.take())
            return job.id in ids([each for each in seen if isinstance(each, JobNews)])

        wait_until(ended, "the end of the job")


def test_a_stream_ends_with_the_token_that_opened_it(
    shop: Duly, bearer: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.server.events.HEARTBEAT_SECONDS", 0.05)
    made = shop.tokens.create("mine", ["read"])
    headers = {"Authorization": f"Bearer {made.secret}"}
    config = uvicorn.Config(make_asgi(shop), port=0, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, daemon=True).start()
    wait_until(lambda: server.started, "the server")
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/api/v1/events"
    try:
        with httpx2.Client(timeout=PATIENCE) as client:
            with client.stream("GET", url, headers=headers) as answer:
                assert answer.status_code == 200
                lines = answer.iter_lines()
                next(lines)
                shop.tokens.revoke(made.token.id)
                assert list(lines)[-1] == ""  # the server has ended it
            assert client.get(url, headers=headers).status_code == 401
    finally:
        server.should_exit = True


# Pure --------------------------------------------------------------------------------------------


def job(job_id: str, state: State, token: int, at: int = 0) -> JobNews:
    return JobNews(job_id, "f", state, "q", None, 1, token, None, None, at, None, None, None)


def look(*news: News, since: int = 0) -> Changes:
    return Changes(list(news), Cursor(since), whole=True)


def test_what_was_seen_is_not_new():
    seen = Seen()
    running, done = job("a", State.RUNNING, 1), job("b", State.SUCCEEDED, 1, at=5)
    assert seen.new(look(running, done)) == [done, running]
    assert seen.new(look(running, done)) == []
    further = running._replace(value=0.5, reported=revision_of(1) + 1)
    assert seen.new(look(further, done)) == [further]
    # What no look shows again is forgotten.
    assert seen.new(look(further, since=6)) == []
    assert seen.new(look(further, done, since=6)) == [done]


def test_what_ran_and_is_gone_is_asked_for():
    seen = Seen()
    running = job("a", State.RUNNING, 1)
    seen.new(look(running))
    seen.new(look())
    assert seen.gone == [running]
    seen.new(look())
    assert seen.gone == []


def test_who_cannot_keep_up_gets_a_gap():
    follower = Follower(lambda news: True, None, lambda: None)
    flood = [AuditNews(str(n), 0, None, "x", "y") for n in range(MOST_WAITING + 1)]
    follower.tell(look(*flood))
    (told,) = follower.take()
    assert type(told.news).__name__ == "Gap"


@pytest.mark.parametrize("text", ["", "1", "-", "1-", "-1", "1-x", "٣-1", "1" * 19 + "-1", "1--1"])
def test_what_is_no_cursor(text: str):
    assert read_cursor(text) is None


def test_a_cursor_comes_back_as_it_was():
    assert read_cursor(str(Cursor(12, 3))) == Cursor(12, 3)
