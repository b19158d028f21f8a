"""`duly serve`: where it binds, whom it lets in, what it serves, and how it ends."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest

from duly import Ctx, Duly, State
from duly.cli.serve import GRACE_SECONDS, bind
from tests.cli.conftest import Shop
from tests.cli.processes import Process, wait_until

JOBS = "/api/v1/jobs"
ENDS_WITHIN = 15.0


class Served:
    """A `duly serve` that listens, and a client of it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.address: str = wait_until(self._address, "it says where it listens")
        self.client = httpx2.Client(base_url=self.address, timeout=20, trust_env=False)
        wait_until(self._answers, f"it answers\n{process.errors()}")

    def _address(self) -> str:
        errors = self.process.errors()
        assert self.process.is_running or not errors, errors
        found = re.search(r"duly serve: http://(\S+):(\d+) ", errors)
        return f"http://{found[1].replace('0.0.0.0', '127.0.0.1')}:{found[2]}" if found else ""

    def _answers(self) -> bool:
        try:
            return self.client.get("/").status_code in (200, 303, 404, 421)
        except httpx2.TransportError:
            assert self.process.is_running, self.process.errors()
            return False

    def status(self, path: str, **given: Any) -> int:
        return self.client.get(path, **given).status_code

    def end(self) -> int:
        self.process.signal(signal.SIGTERM)
        return self.process.wait(ENDS_WITHIN)


Serve = Callable[..., Served]


@pytest.fixture
def start(shop: Shop) -> Callable[..., Process]:
    def run(*options: str, root: tuple[str, ...] = ()) -> Process:
        return shop.start(*root, "serve", *options)

    return run


@pytest.fixture
def serve(start: Callable[..., Process]) -> Iterator[Serve]:
    served: list[Served] = []

    def run(*options: str, **more: Any) -> Served:
        served.append(Served(start("--port=0", *options, **more)))
        return served[-1]

    yield run
    for each in served:
        each.client.close()


def said(process: Process, code: int) -> str:
    """The one line with which it has ended."""
    assert process.wait(ENDS_WITHIN) == code, process.errors()
    (line,) = process.errors().splitlines()
    assert line.startswith("duly: ")
    return line


def test_on_loopback_it_is_open_and_knows_the_functions_without_a_worker(shop, serve):
    served = serve()
    assert served.address.startswith("http://127.0.0.1:")
    assert "auth: open" in served.process.errors()

    names = [each["name"] for each in served.client.get("/api/v1/functions").json()]
    assert {"touch", "note", "fail"} <= set(names)
    made = served.client.post(JOBS, json={"function": "touch", "args": {"text": "a"}})
    assert made.status_code == 201
    assert shop.app.job(made.json()["id"]).state == State.PENDING, "it runs no jobs"
    for path in ("/healthz", "/readyz", "/metrics"):
        assert served.status(path) == 200
    assert "server" not in made.headers

    assert served.end() == 0
    assert "Traceback" not in served.process.errors()


def test_what_is_open_answers_only_for_names_of_loopback(serve):
    served = serve()
    port = served.address.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert served.status(JOBS, headers={"Host": f"{host}:{port}"}) == 200
    assert served.status(JOBS, headers={"Host": f"rebound.example:{port}"}) == 421


@pytest.mark.skipif(sys.platform == "darwin", reason="has one loopback address only")
def test_it_answers_for_the_loopback_address_it_binds_to(serve):
    served = serve("--host=127.0.0.7")
    assert served.address.startswith("http://127.0.0.7:")
    assert served.status(JOBS) == 200


def test_hosts_that_are_allowed_are_the_only_ones(serve):
    served = serve("--allow-host=ops.example")
    assert served.status(JOBS, headers={"Host": "ops.example"}) == 200
    assert served.status(JOBS) == 421


def test_a_token_is_asked_for_as_soon_as_there_is_one(shop, serve):
    token = shop.app.tokens.create("ci", ["read"])
    served = serve()
    held = {"Authorization": f"Bearer {token.secret}"}
    assert (served.status(JOBS), served.status(JOBS, headers=held)) == (401, 200)
    shop.app.tokens.revoke(token.token.id)
    assert served.status(JOBS, headers=held) == 401, "at once"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--only=api",),
        ("--only=hooks", "--only=api"),
        ("--auth=open",),
        ("--only=health", "--auth=open"),
        ("--auth=tokens",),
    ],
    ids=" ".join,
)
def test_beyond_loopback_it_refuses_to_start_without_tokens(start, options):
    line = said(start("--host=0.0.0.0", "--port=0", *options), 2)
    assert "requires authentication" in line


def test_a_part_that_there_is_not_is_refused(start):
    process = start("--only=cellar")
    assert process.wait(ENDS_WITHIN) == 2
    assert "is not one of 'dashboard', 'api', 'hooks', 'health'" in process.errors()


def test_the_dashboard_alone(serve):
    served = serve("--only=dashboard", "--read-only", "--root-path=/ops")
    page = served.client.get("/schedules")
    assert page.status_code == 200
    assert 'href="/ops/schedules"' in page.text
    assert "read-only" in page.text
    assert {served.status(path) for path in (JOBS, "/healthz", "/metrics")} == {404}


def test_open_to_all_is_refused_beyond_loopback_also_with_tokens(shop, start):
    shop.app.tokens.create("ci", ["read"])
    assert "requires authentication" in said(start("--host=0.0.0.0", "--port=0", "--auth=open"), 2)


def test_beyond_loopback_with_a_token_it_asks_for_it(shop, serve):
    held = {"Authorization": f"Bearer {shop.app.tokens.create('ci', ['read']).secret}"}
    served = serve("--host=0.0.0.0")
    assert (served.status(JOBS), served.status(JOBS, headers=held)) == (401, 200)
    assert (served.status("/healthz"), served.status("/metrics")) == (200, 401)
    assert served.status("/metrics", headers=held) == 200


def test_webhooks_may_bind_anywhere(serve):
    served = serve("--only=hooks", "--host=0.0.0.0")
    answer = served.client.post("/hooks/nobody", content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.json()["error"]["message"] == "there is no such webhook"
    for path in (JOBS, "/api/v1/openapi.json", "/healthz", "/metrics"):
        assert served.status(path) == 404


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        (("--only=api",), {JOBS, "/api/v1/openapi.json"}),
        (("--only=health",), {"/healthz"}),
        (("--only=health", "--open-metrics", "--host=0.0.0.0"), {"/healthz", "/metrics"}),
        (("--only=api", "--only=health"), {JOBS, "/api/v1/openapi.json", "/healthz"}),
    ],
    ids=["api", "health", "metrics", "both"],
)
def test_some_parts_only(serve, options, paths):
    served = serve(*options, *(["--auth=open"] if "--only=api" in options else []))
    every = [JOBS, "/api/v1/openapi.json", "/healthz", "/metrics"]
    assert {path for path in every if served.status(path) == 200} - paths <= {"/metrics"}
    assert all(served.status(path) == 200 for path in paths)
    if options == ("--only=health",):
        assert served.status("/metrics") == 401


def test_metrics_are_open_only_beside_nothing_else(start):
    assert "--only health" in said(start("--open-metrics"), 2)


def test_a_port_that_is_taken_is_one_line(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = said(start(f"--port={port}"), 1)
    assert f"cannot bind to 127.0.0.1:{port}" in line


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_small_responses_are_sent_at_once(host):
    async def accepted_without_delay(listener: socket.socket) -> bool:
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
            writer.close()

        async with await asyncio.start_server(accept, sock=listener):
            with socket.create_connection(listener.getsockname()[:2]):
                return await accepted

    with bind(host, 0) as listener:
        assert asyncio.run(accepted_without_delay(listener))


def test_a_request_with_two_lengths_ends_its_connection(serve):
    host, port = serve().address.removeprefix("http://").split(":")
    request = (
        f"POST {JOBS} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 5\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request.encode())
        heard = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert heard.startswith(b"HTTP/1.1 400")
    assert b"ambiguous_length" in heard
    assert heard.count(b"HTTP/1.1 ") == 1, "the second request is not answered"


def test_an_address_of_another_machine_is_one_line(start):
    line = said(start("--host=192.0.2.1", "--only=hooks"), 1)
    assert "cannot bind to 192.0.2.1" in line


def test_under_the_path_of_a_proxy_the_document_says_so(serve):
    served = serve("--root-path=/ops")
    document = served.client.get("/api/v1/openapi.json").json()
    assert document["servers"] == [{"url": "/ops"}]
    assert served.client.post(JOBS, json={"function": "touch", "args": {"text": "a"}}).is_success
    assert served.client.post("/hooks/none", content=b"x" * (2 << 20)).status_code == 404


def test_sigterm_ends_open_streams_at_once(shop, serve):
    served = serve()
    job = shop.app.run_after(3600, shop.app.functions["touch"], "a")
    get = served.client.stream
    with (
        get("GET", "/api/v1/events") as every,
        get("GET", "/api/v1/events", params={"job": job.id}) as of_job,
    ):
        # Kept: an iterator that nobody holds closes its stream.
        lines = [answer.iter_lines() for answer in (every, of_job)]
        for each in lines:
            next(each)
        began = time.monotonic()
        assert served.end() == 0
        assert time.monotonic() - began < GRACE_SECONDS, "it was not waited for them"
    assert "Traceback" not in served.process.errors()


def test_ctrl_c_is_no_error(serve):
    served = serve()
    served.process.signal_all(signal.SIGINT)
    assert served.process.wait(ENDS_WITHIN) == 0
    assert "Traceback" not in served.process.errors()


def test_with_a_worker_it_runs_jobs_and_lets_them_end(shop, serve):
    served = serve("--with-worker")
    body = {"function": "touch", "args": {"text": "a"}}
    made = served.client.post(JOBS, json=body).json()
    assert shop.app.job(made["id"]).result(timeout=60) == "a"

    body = {"function": "touch_when", "args": {"text": "b", "file": "go"}}
    made = served.client.post(JOBS, json=body).json()
    wait_until(lambda: shop.started() == ["a", "b"], "the job runs")
    served.process.signal(signal.SIGTERM)
    wait_until(lambda: _is_closed(served.address), "nobody is let in any more")
    shop.let_go("go")
    assert served.process.wait(ENDS_WITHIN) == 0
    assert shop.app.job(made["id"]).state == State.SUCCEEDED
    assert shop.db.count("@workers") == 0


def _is_closed(address: str) -> bool:
    host, _, port = address.removeprefix("http://").partition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1):
            return False
    except OSError:
        return True


def test_what_another_service_has_published_stays(shop, serve):
    """As with a worker: nothing is forced."""
    with closing(Duly(shop.url, name="other")) as other:

        @other.action
        def touch(ctx: Ctx, something: int) -> None: ...

        other.functions.publish()
        served = serve()
        known = {each["name"]: each for each in served.client.get("/api/v1/functions").json()}
    assert known["touch"]["app"] == "other"
    assert known["note"]["app"] == shop.app.name
