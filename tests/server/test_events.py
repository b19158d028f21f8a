"""Live events over real HTTP: what happens arrives, once, and no end is ever missed."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2
import psycopg
import pytest
import uvicorn

from duly import Ctx, Duly, ManualClock
from duly.errors import StoreUnavailable
from duly.ids import new_id
from duly.model.job import State
from duly.model.news import AuditNews, Changes, Cursor, Gap, JobNews, News, NewsItem, read_cursor
from duly.model.progress import Event, revision_of
from duly.runtime.feed import MAX_WAITING, Follower, SeenNews, _Looker
from duly.server import make_asgi
from duly.server.api import events
from tests.jobs.support import Hire, on_postgres, on_sqlite, wait_until

PATIENCE = 60.0


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
                    if line:
                        name, _, value = line.partition(": ")
                        fields[name] = value
                    else:
                        # As the standard has it: also without data the id is taken.
                        self.last_id = fields.get("id", self.last_id)
                        if "event" in fields:
                            self._put(fields)
                        if "retry" not in fields:
                            # That comes first, before anybody follows.
                            self._opened.set()
                        fields = {}
            except httpx2.TransportError:
                pass
            self._opened.set()

    def _put(self, fields: dict[str, str]) -> None:
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

    def start(app: Duly, auth: Any = "open") -> str:
        config = uvicorn.Config(
            make_asgi(app, auth=auth), port=0, log_config=None, timeout_graceful_shutdown=1
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


def test_one_who_has_seen_nothing_yet_can_come_back(
    shop: Duly, hire: Hire, clock: ManualClock, serve: Any
):
    address = serve(shop)
    with stream(address) as client:
        wait_until(lambda: client.last_id is not None, "an id without an event")
        first_id = client.last_id
        assert client.rest() == []
    job = shop.run(shop.functions["greet"], "ann")
    hire().work()
    clock.advance(3600)
    with stream(address, {"Last-Event-ID": str(first_id)}) as client:
        assert client.until(ended)[-1]["id"] == job.id


@on_sqlite
def test_a_store_that_is_away_within_a_pass_takes_no_news_with_it(
    shop: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    looker = _Looker(shop.core.feed)
    monkeypatch.setattr(looker._listener, "hears", lambda store: True)
    follower = Follower(lambda news: True, None, lambda: None)
    looker.followers[follower] = None

    @shop.action
    def watched(ctx: Ctx) -> None:
        looker.one_pass()

    def away(job_ids: object) -> None:
        raise StoreUnavailable("away")

    looker.one_pass()
    job = shop.run(watched)
    hire().work()
    with monkeypatch.context() as patched:
        patched.setattr(shop.store, "look", away)
        with pytest.raises(StoreUnavailable):
            looker.one_pass()
    looker.one_pass()

    told = [each.news for each in follower.take().items]
    assert [news.state for news in told if isinstance(news, JobNews)] == [
        State.RUNNING,
        State.SUCCEEDED,
    ]
    assert job.state == State.SUCCEEDED


def test_one_who_is_cut_off_within_a_look_gets_the_rest(shop: Duly, hire: Hire, clock: ManualClock):
    feed = shop.core.feed
    begin = feed.look(None).next
    jobs = shop.run_many(shop.functions["greet"].bind(name) for name in ("ann", "bob", "cy"))
    hire().work()
    clock.advance(3600)

    def shown_since(cursor: Cursor | None) -> list[NewsItem]:
        follower = Follower(lambda news: True, cursor, lambda: None)
        follower.let_in(begin, feed.look)
        return follower.take().items

    told = shown_since(begin)
    assert len(told) >= len(jobs)
    for place, cut_off in enumerate(told, 1):
        seen = told[:place] + shown_since(cut_off.cursor)
        assert ids([each.news for each in seen]) == {job.id for job in jobs}


def test_one_who_comes_back_is_told_nothing_before_it_was_let_in():
    missed, later = job("a", State.SUCCEEDED, 1), job("b", State.SUCCEEDED, 1)
    follower = Follower(lambda news: True, Cursor(1), lambda: None)
    follower.tell(look(later, since=9))
    assert follower.take() == ([], None)
    asked: list[Cursor] = []

    def since(cursor: Cursor) -> Changes:
        asked.append(cursor)
        return look(missed, later, since=9)

    follower.let_in(Cursor(8), since)
    assert asked == [Cursor(1)]
    assert follower.take() == ([NewsItem(missed, Cursor(1)), NewsItem(later, Cursor(9))], Cursor(9))
    # The next look of all followers begins before that, and finds it again.
    follower.tell(look(later, since=10))
    assert follower.take() == ([], Cursor(10))


def test_one_who_is_new_and_was_told_has_joined():
    """To let it in as well would cost a look for each of those who come at the same moment."""
    rung: list[bool] = []
    news = job("a", State.SUCCEEDED, 1)
    follower = Follower(lambda _: True, None, lambda: rung.append(True))
    follower.tell(look(since=9))
    assert (follower.joined, rung) == (True, [True])
    follower.tell(look(news, since=12))
    assert follower.take() == ([NewsItem(news, Cursor(12))], Cursor(12))


@on_sqlite
def test_where_retention_has_removed_what_was_seen_last_there_is_a_gap(
    shop: Duly, hire: Hire, url: str
):
    """The numbers of ended jobs that are gone are given again."""
    feed, greet, worker = shop.core.feed, shop.functions["greet"], hire()

    def run(count: int) -> None:
        shop.run_many(greet.bind(str(n)) for n in range(count))
        worker.work()

    def ended_in_order() -> list[str]:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw:
            return [row[0] for row in raw.execute("SELECT id FROM duly_history ORDER BY seq")]

    def remove(job_ids: list[str]) -> None:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as raw, raw:
            raw.executemany("DELETE FROM duly_history WHERE id = ?", [(each,) for each in job_ids])

    run(5)
    seen = feed.look(None).next
    remove(ended_in_order()[1:])
    assert not feed.look(seen).whole
    run(8)
    changes = feed.look(seen)
    assert not changes.whole
    # It goes on from there.
    after = feed.look(changes.next)
    assert (after.whole, ids(after.news)) == (True, set())
    # What is older than what was seen may go.
    _, first, second, *later = ended_in_order()
    remove([first])
    found = feed.look(Cursor(seen.since, second))
    assert (found.whole, ids(found.news)) == (True, set(later))


def test_what_operators_do_is_for_operators(shop: Duly, hire: Hire, serve: Any):
    made = {scope: shop.tokens.create(scope, [scope]) for scope in ("read", "operate")}
    address = serve(shop, auth="tokens")

    def opened(scope: str) -> Any:
        return stream(address, {"Authorization": f"Bearer {made[scope].secret}"})

    with opened("read") as reader, opened("operate") as operator:
        for each in (reader, operator):
            wait_until(lambda: each.last_id is not None, "that it is let in")  # noqa: B023
        shop.queues.pause("other", by="somebody")
        operator.until(lambda event: event["event"] == "change")
        shop.run(shop.functions["greet"], "ann")
        hire().work()
        assert {event["event"] for event in reader.until(ended)} == {"job"}


def test_an_id_that_makes_no_sense_is_a_gap(shop: Duly, serve: Any):
    with stream(serve(shop), {"Last-Event-ID": "what?"}) as client:
        assert client.until(lambda event: True) == [{"event": "gap"}]
        assert read_cursor(client.last_id or "") is not None


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
        looks = 0  # whoever joins may have looked once
        shop.run(shop.functions["greet"], "ann")
        for follower, bell in zip(followers, bells, strict=True):
            while not follower.take().items:
                assert bell.wait(PATIENCE)
                bell.clear()
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


def ids(news: Sequence[News | Gap]) -> set[str]:
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
            seen.extend(told.news for told in follower.take().items)
            return job.id in ids([each for each in seen if isinstance(each, JobNews)])

        wait_until(ended, "the end of the job")


def test_a_stream_ends_with_the_token_that_opened_it(
    shop: Duly, bearer: Any, monkeypatch: pytest.MonkeyPatch
):
    # By a timer of its own, not when there is something to say.
    monkeypatch.setattr("duly.server.live.CHECK_SECONDS", 0.05)
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


@on_postgres
def test_a_role_that_cannot_see_who_writes_is_told_so(
    shop: Duly, url: str, caplog: pytest.LogCaptureFixture
):
    role = f"web_{new_id(0)[-12:]}"
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(
            f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA duly TO {role};"
            f"GRANT SELECT ON ALL TABLES IN SCHEMA duly TO {role}"
        )
        try:
            for _ in range(2):
                with closing(Duly(_as(url, role))) as web:
                    for _ in range(2):
                        web.core.feed.look(None)
                owner.execute(f"GRANT pg_read_all_stats TO {role}")
            warned = [each for each in caplog.messages if "pg_read_all_stats" in each]
            assert len(warned) == 1
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _as(url: str, role: str) -> str:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}:x@{place}"))


# Pure --------------------------------------------------------------------------------------------


def job(job_id: str, state: State, token: int, at: int = 0) -> JobNews:
    return JobNews(job_id, "f", state, "q", None, 1, token, None, None, at, None, None, None)


def look(*news: News, since: int = 0) -> Changes:
    return Changes(list(news), Cursor(since), whole=True)


def test_what_was_seen_is_not_new():
    seen = SeenNews()
    running, done = job("a", State.RUNNING, 1), job("b", State.SUCCEEDED, 1, at=5)
    assert seen.new(look(running, done)) == [done, running]
    assert seen.new(look(running, done)) == []
    further = running._replace(value=0.5, reported=revision_of(1) + 1)
    assert seen.new(look(further, done)) == [further]
    # What no look shows again is forgotten.
    assert seen.new(look(further, since=6)) == []
    assert seen.new(look(further, done, since=6)) == [done]


def test_what_ran_and_is_gone_is_asked_for():
    seen = SeenNews()
    running = job("a", State.RUNNING, 1)
    seen.new(look(running))
    seen.new(look())
    assert seen.gone == [running]
    seen.new(look())
    assert seen.gone == []


def test_who_cannot_keep_up_gets_a_gap():
    follower = Follower(lambda news: True, None, lambda: None)
    flood = [AuditNews(str(n), 0, None, "x", "y") for n in range(MAX_WAITING + 1)]
    follower.tell(look(*flood))
    (told,) = follower.take().items
    assert isinstance(told.news, Gap)


def test_of_each_job_only_the_newest_waits_for_one_who_reads_slowly():
    """Also its end, and the end of all of them."""
    steps = 1_000

    async def watch(job_id: str) -> AsyncIterator[Event]:
        for step in range(steps):
            yield Event(job_id, State.RUNNING, 1, None, None, step)
        yield Event(job_id, State.SUCCEEDED, 1, None, None, steps)

    async def read() -> list[str]:
        app: Any = SimpleNamespace(aio=SimpleNamespace(watch=watch))
        return [text async for text in events._jobs(app, ["a", "b"])]

    _, *jobs, end = asyncio.run(read())
    assert [json.loads(text.splitlines()[1].removeprefix("data: "))["state"] for text in jobs] == [
        "succeeded"
    ] * 2
    assert end.startswith("event: end")


@pytest.mark.parametrize(
    "text", ["", "1", "-", "1-", "-1", "1-x", "1-1", "٣-0", "1" * 19 + "-0", "1--0"]
)
def test_what_is_no_cursor(text: str):
    assert read_cursor(text) is None


def test_a_cursor_comes_back_as_it_was():
    for cursor in (Cursor(12), Cursor(12, new_id(0))):
        assert read_cursor(str(cursor)) == cursor
