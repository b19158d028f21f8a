"""A beat: each claimed row is POSTed once, and every attempt is seen."""

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from duly.errors import InvalidOption, MissingExtra
from duly.index import Dispatch, IndexRow, SyncScheduleIndex, TickHandler
from duly.testing import ManualClock
from duly.testing.index_conformance import HOUR, MINUTE, NOW, row
from tests.index.support import on_sqlite
from tests.jobs.support import wait_until


class Receiver(ThreadingHTTPServer):
    """An HTTP server that answers as the path says, and keeps what it got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.free = threading.Event()
        self.count = threading.Lock()
        self.inside = self.most_inside = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no matter."""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        receiver = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with receiver.count:
            receiver.got.append((self.path, dict(self.headers), body))
            receiver.inside += 1
            receiver.most_inside = max(receiver.most_inside, receiver.inside)
        try:
            self.answer(self.path.strip("/"))
        finally:
            with receiver.count:
                receiver.inside -= 1

    def answer(self, path: str) -> None:
        if path == "hang":
            self.server.free.wait(20)
        if path == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(int(path) if path.isdigit() else 200)
        if path == "endless":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while not self.server.free.wait(0.01):
                self.wfile.write(b"1\r\nx\r\n")
            return
        if path == "302":
            self.send_header("Location", self.server.url("200"))
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        serving = threading.Thread(target=receiver.serve_forever, args=[0.01])
        serving.start()
        yield receiver
        receiver.free.set()
        receiver.shutdown()
        serving.join()


def path_of(receiver: Receiver):
    """Each row is sent to the path that its key names."""
    return lambda row: receiver.url(row.key.rpartition("/")[2])


def add(index, *keys: str) -> None:
    for key in keys:
        SyncScheduleIndex(index).upsert(row(key))


def beat(handler: TickHandler, now: int = NOW) -> list[Dispatch]:
    return asyncio.run(asyncio.wait_for(handler(now), 20))


@pytest.mark.spec("R213")
def test_each_due_row_is_posted_once_and_advanced(place, index, receiver):
    given = row("a/ü", NOW - MINUTE, user_id="zoë", timezone="Asia/Tokyo")
    SyncScheduleIndex(index).upsert(given)
    headers = {"Authorization": "Bearer x"}
    handler = TickHandler(index, receiver.url("200"), headers=headers)
    assert beat(handler) == [Dispatch(given, 200)]
    assert beat(handler) == []
    [(_, headers, body)] = receiver.got
    assert body == {
        "schedule": "zo%C3%AB/a%2F%C3%BC",
        "nominalFireTime": NOW - MINUTE,
        "input": {"user_id": "zoë", "key": "a/ü"},
    }
    assert headers["Authorization"] == "Bearer x"
    # The same for every copy of this fire, and for no other.
    assert headers["Idempotency-Key"] == f"zo%C3%AB/a%2F%C3%BC/{NOW - MINUTE}"
    assert place.times() == {"a/ü": NOW + HOUR}


@pytest.mark.spec("R213")
def test_every_attempt_is_seen_with_its_status_and_none_is_repeated(
    place, index, receiver, warnings
):
    seen: list[Dispatch] = []
    keys = ["200", "204", "302", "404", "500", "503", "drop"]
    add(index, *keys)
    handler = TickHandler(index, path_of(receiver), on_dispatch=seen.append)
    done = beat(handler)
    statuses = {attempt.row.key: attempt.status for attempt in seen}
    assert statuses == {key: int(key) if key.isdigit() else 0 for key in keys}
    assert len(seen) == len(done) == len(receiver.got) == len(keys)
    assert [attempt.row.key for attempt in done if attempt.delivered] == ["200", "204"]
    assert len(warnings) == 5
    assert any("'503' of 'anna'" in text and "status 503" in text for text in warnings)

    assert beat(handler) == []
    assert len(receiver.got) == len(keys)
    assert set(place.times().values()) == {NOW + HOUR}


@pytest.mark.spec("R213")
def test_no_answer_is_status_zero(index, warnings):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        add(index, "a")
        seen: list[Dispatch] = []
        beat(TickHandler(index, url, on_dispatch=seen.append))
    [attempt] = seen
    assert attempt.status == 0
    assert attempt.error is not None
    assert "ConnectError" in attempt.error
    assert not attempt.delivered
    assert "was not delivered and is dropped: ConnectError" in warnings[0]


@pytest.mark.spec("R213")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("address", ["nonsense", "ftp://x/", lambda row: 1 / 0])
def test_an_address_that_makes_no_sense_is_status_zero(index, address):
    add(index, "a", "b")
    assert [attempt.status for attempt in beat(TickHandler(index, address))] == [0, 0]


@pytest.mark.spec("R213")
@on_sqlite
def test_an_attempt_has_a_time_limit_and_holds_up_no_other(index, receiver):
    add(index, "200", "hang", "endless")
    done = beat(TickHandler(index, path_of(receiver), timeout=0.5))
    assert {a.row.key: (a.status, a.error) for a in done} == {
        "200": (200, None),
        "hang": (0, "no response within 0.5 s"),
        "endless": (200, None),  # it had answered
    }


@on_sqlite
def test_so_many_requests_are_made_at_once_and_no_more(index, receiver):
    add(index, *(f"{number}/hang" for number in range(12)))
    handler = TickHandler(index, path_of(receiver), at_once=4, limit=6)

    async def main():
        beating = asyncio.ensure_future(handler(NOW))
        while receiver.inside < 4:
            await asyncio.sleep(0.001)
        receiver.free.set()
        assert len(await beating) == 12

    asyncio.run(asyncio.wait_for(main(), 20))
    assert receiver.most_inside == 4


def test_a_beat_goes_on_until_nothing_is_due(place, index, receiver):
    add(index, "bad")
    place.ask("UPDATE schedule_index SET cron = 'nonsense'")
    add(index, *(f"{number}/200" for number in range(25)))
    assert len(beat(TickHandler(index, path_of(receiver), limit=10))) == 25


@on_sqlite
def test_a_beat_without_a_time_is_now(index, receiver):
    add(index, "200")
    clock = ManualClock(NOW - 1)
    handler = TickHandler(index, receiver.url("200"), clock=clock)
    assert asyncio.run(handler()) == []
    clock.advance(1)
    assert len(asyncio.run(handler())) == 1


# Observers ---------------------------------------------------------------------------------------


@pytest.mark.spec("R214")
def test_an_observer_that_raises_changes_nothing_for_the_others(place, index, receiver, warnings):
    seen: list[tuple[str, str]] = []

    def breaks(attempt: Dispatch) -> None:
        seen.append(("breaks", attempt.row.key))
        raise ZeroDivisionError

    async def breaks_later(attempt: Dispatch) -> None:
        await asyncio.sleep(0)
        raise LookupError

    async def sees(attempt: Dispatch) -> None:
        await asyncio.sleep(0)
        seen.append(("sees", attempt.row.key))

    keys = ["200", "500", "a/200"]
    add(index, *keys)
    observers = [breaks, breaks_later, sees]
    done = beat(TickHandler(index, path_of(receiver), on_dispatch=observers, at_once=1))
    assert sorted(attempt.row.key for attempt in done) == sorted(keys)
    assert sorted(seen) == sorted((who, key) for who in ("breaks", "sees") for key in keys)
    assert warnings.count("on_dispatch failed") == 2 * len(keys)
    assert len(receiver.got) == len(keys)


@pytest.mark.spec("R213")
@on_sqlite
def test_a_beat_that_is_canceled_reports_what_it_has_claimed(index, receiver):
    seen: list[Dispatch] = []
    add(index, *(f"{number}/hang" for number in range(5)))
    handler = TickHandler(index, path_of(receiver), on_dispatch=seen.append, at_once=2)

    async def main():
        beating = asyncio.ensure_future(handler(NOW))
        while receiver.inside < 2:
            await asyncio.sleep(0.001)
        beating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beating

    asyncio.run(asyncio.wait_for(main(), 20))
    assert sorted(attempt.row.key[0] for attempt in seen) == list("01234")
    assert {attempt.status for attempt in seen} == {0}
    words = sorted(attempt.error or "" for attempt in seen)
    assert (
        words == ["canceled before it was sent"] * 3 + ["canceled before there was a response"] * 2
    )
    wait_until(lambda: len(receiver.got) == 2, "two were sent")


@pytest.mark.spec("R213")
@on_sqlite
def test_what_is_canceled_before_it_could_begin_is_reported_too(index):
    class Sudden:
        """Everything is canceled as soon as the claim is made, as at the end of a program."""

        async def claim_due(self, now: int, limit: int = 100) -> Sequence[IndexRow]:
            rest = asyncio.get_running_loop()
            rest.call_soon(lambda: [task.cancel() for task in asyncio.all_tasks()])
            return SyncScheduleIndex(index).claim_due(now, limit)

        upsert = remove = None

    seen: list[Dispatch] = []
    add(index, "a", "b")
    handler = TickHandler(cast(Any, Sudden()), "http://127.0.0.1/", on_dispatch=seen.append)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(handler(NOW))
    assert [(a.row.key, a.status, a.error) for a in seen] == [
        ("a", 0, "canceled before it was sent"),
        ("b", 0, "canceled before it was sent"),
    ]


# Options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"timeout": 0}, {"at_once": 0}, {"limit": 0}])
@on_sqlite
def test_an_option_that_makes_no_sense_is_refused(index, option):
    with pytest.raises(InvalidOption, match=next(iter(option))):
        TickHandler(index, "http://x", **option)


@on_sqlite
def test_without_httpx_the_message_says_what_to_install(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtra, match=r'pip install "duly\[http\]"'):
        TickHandler(index, "http://x")
