"""Gateways as other processes: managed over the bridge, and seen beside an app's schedules."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from duly import Cron, Ctx, Duly, every
from duly.errors import (
    GatewayExists,
    GatewayNotFound,
    GatewayRefused,
    GatewayUnavailable,
    InvalidOption,
    SecretMissing,
    UnknownZone,
    UseTx,
)
from duly.gateway import AsyncBridgeClient, BridgeClient, Gateways
from duly.gateway.ask_all import AskAll
from duly.observe.view import as_data
from duly.server import make_asgi
from duly.server.slow_requests import MAX_PER_SUBJECT, THREADS
from tests.jobs.support import PATIENCE, ManualWorker, on_sqlite, wait_until
from tests.schedules.support import tick_all

ROOT = Path(__file__).resolve().parents[2]
SECRET = "canary-9e21"
FAR = every(hours=1)


class Process:
    """`duly gateways serve`, on a port of its own."""

    def __init__(self, folder: Path, *, port: int = 0, secret: str | None = SECRET) -> None:
        self.folder = folder
        environment = {k: v for k, v in os.environ.items() if k != "GATEWAY_SECRET"}
        environment |= {"GATEWAY_FOLDER": str(folder)}
        environment |= {} if secret is None else {"GATEWAY_SECRET": secret}
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "duly", "gateways", "serve"),
                *("tests.server.gateway_process:gateway", "--port", str(port)),
            ],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self.said: list[str] = []
        """What it has written to stderr."""
        self.port = self._heard_port(self._process.stderr)
        self.url = f"http://127.0.0.1:{self.port}"
        # Nobody may fill the pipe.
        self._reader = threading.Thread(target=self.said.extend, args=(self._process.stderr,))
        self._reader.start()

    def _heard_port(self, lines: Iterable[str]) -> int:
        for line in lines:
            self.said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+); Ctrl-C stops", line):
                return int(found[1])
        raise AssertionError(f"the gateway did not start: {self.said}")

    def end(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stderr is not None
        self._process.stderr.close()

    @property
    def running(self) -> bool:
        return self._process.poll() is None


Serve = Callable[..., Process]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("GATEWAY_SECRET", SECRET)
    started: list[Process] = []

    def start(**options: Any) -> Process:
        started.append(Process(tmp_path, **options))
        return started[-1]

    yield start
    for process in started:
        if process.running:
            process.end(signal.SIGKILL)


def client(process: Process) -> BridgeClient:
    return BridgeClient(process.url, "env:GATEWAY_SECRET")


# Two processes and the bridge between them -------------------------------------------------------


@pytest.mark.spec("R43", "R44", "R45", "R46", "R47", "R48", "R49")
def test_a_gateway_is_managed_from_another_process(serve, tmp_path):
    process = serve()
    with client(process) as bridge:
        made = bridge.cron_add("touch", FAR, payload={"name": "seen"})
        off = bridge.cron_add("touch", FAR, name="off", payload={"name": "x"}, enabled=False)
        assert bridge.cron_list().crons == (made,)
        assert bridge.cron_list(disabled=True).crons == (made, off)
        assert bridge.cron_list(disabled=True, limit=1).after == made.id

        assert bridge.cron_run(made.id, "due").reason == "not-due"
        assert bridge.cron_run(made.id).ran
        wait_until(lambda: (tmp_path / "seen").exists())
        wait_until(lambda: bridge.cron_list().crons[0].last_status == "ok")

        renamed = bridge.cron_update(made.id, name="other")
        assert renamed.next_at == made.next_at
        moved = bridge.cron_update(made.id, schedule=Cron("0 9 * * *", tz="Europe/Istanbul"))
        assert moved.next_at != made.next_at
        assert moved.tz == "Europe/Istanbul"

        failing = bridge.cron_add("fail", every(seconds=1))
        wait_until(lambda: _cron(bridge, failing.id).last_status == "error")
        failed = _cron(bridge, failing.id)
        assert failed.last_error == "ValueError: no capacity"
        assert failed.next_at - failed.last_run_at >= timedelta(seconds=30)

        soon = datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=0.3)
        once = bridge.cron_add(
            "touch", {"kind": "at", "at": soon.isoformat()}, name="once", payload={"name": "once"}
        )
        wait_until(lambda: _cron(bridge, once.id).last_status == "ok")
        assert not _cron(bridge, once.id).enabled

        assert bridge.cron_remove(made.id).removed
        assert not bridge.cron_remove(made.id).removed
    process.end()
    assert SECRET not in "".join(process.said)


def _cron(bridge: BridgeClient, cron_id: str) -> Any:
    return next(c for c in bridge.cron_list(disabled=True, limit=200).crons if c.id == cron_id)


@pytest.mark.spec("R46", "R50")
def test_a_gateway_killed_while_a_cron_runs_does_not_run_it_again(serve, tmp_path):
    first = serve()
    with client(first) as bridge:
        made = bridge.cron_add("hang", FAR, payload={"name": "ran"})
        assert bridge.cron_run(made.id).ran
        wait_until(lambda: (tmp_path / "ran").exists())
        assert bridge.cron_run(made.id).reason == "already-running"
        assert bridge.cron_list().crons[0].running_at is not None
    first.end(signal.SIGKILL)

    second = serve()
    with client(second) as bridge:
        [after] = bridge.cron_list().crons
        assert (after.running_at, after.last_status) == (None, "interrupted")
        assert after.next_at is not None
        assert (tmp_path / "ran").read_text() == "x"
        assert bridge.cron_run(made.id).ran
        wait_until(lambda: (tmp_path / "ran").read_text() == "xx")


def test_crons_survive_a_stop(serve):
    first = serve()
    with client(first) as bridge:
        made = bridge.cron_add("touch", FAR, payload={"name": "x"})
    first.end()
    second = serve()
    with client(second) as bridge:
        assert bridge.cron_list().crons == (made,)


def test_the_bridge_can_be_awaited(serve):
    process = serve()

    async def manage() -> None:
        async with AsyncBridgeClient(process.url, "env:GATEWAY_SECRET") as bridge:
            made = await bridge.cron_add("touch", FAR, payload={"name": "x"})
            await bridge.cron_update(made.id, enabled=False)
            assert (await bridge.cron_list()).crons == ()
            assert (await bridge.cron_run(made.id)).ran
            assert (await bridge.cron_remove(made.id)).removed
            with pytest.raises(GatewayRefused):
                await bridge.cron_run(made.id)

    asyncio.run(manage())


def test_what_a_gateway_refuses_is_said_with_its_words(serve, monkeypatch):
    process = serve()
    with client(process) as bridge:
        with pytest.raises(GatewayRefused) as refused:
            bridge.cron_add("tuch", FAR)
        assert (refused.value.status, refused.value.field) == (400, "handler")
        assert refused.value.hint == "did you mean 'touch'?"
        with pytest.raises(GatewayRefused) as refused:
            bridge.cron_update("nobody", enabled=False)
        assert (refused.value.status, refused.value.code) == (404, "cron_not_found")
        monkeypatch.setenv("GATEWAY_SECRET", "wrong")
        with pytest.raises(GatewayRefused) as refused:
            bridge.cron_list()
        assert refused.value.status == 401
        monkeypatch.delenv("GATEWAY_SECRET")
        with pytest.raises(SecretMissing):
            bridge.cron_list()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example"])
def test_without_a_secret_it_binds_to_nothing_but_loopback(tmp_path, host):
    environment = {k: v for k, v in os.environ.items() if k != "GATEWAY_SECRET"}
    command = [sys.executable, "-m", "duly", "gateways", "serve"]
    ended = subprocess.run(
        [*command, "tests.server.gateway_process:gateway", "--host", host],
        cwd=ROOT,
        env=environment | {"GATEWAY_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ended.returncode == 2
    assert "without a secret" in ended.stderr


def test_a_second_gateway_on_the_same_file_does_not_start(serve, tmp_path):
    serve()
    command = [sys.executable, "-m", "duly", "gateways", "serve"]
    ended = subprocess.run(
        [*command, "tests.server.gateway_process:gateway", "--port", "0"],
        cwd=ROOT,
        env=os.environ | {"GATEWAY_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert ended.returncode == 1
    assert "another process runs a gateway" in ended.stderr


# The bridge and those who are no gateways --------------------------------------------------------


@contextmanager
def answering(answer: bytes | None, *, drips: int = 0) -> Iterator[str]:
    """Somebody who says this to everybody, and then so much, bit by bit; None: nothing at all."""
    over = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if answer is None:
                over.wait(PATIENCE)
                return
            self.request.recv(65536)
            with contextlib.suppress(OSError):
                self.request.sendall(answer)
                for _ in range(drips):
                    if over.wait(0.02):
                        break
                    self.request.sendall(b"x")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        http("200 OK", b"<html>"),
        http("200 OK", b'{"crons": 5}'),
        http("200 OK", b"[" * 100_000),
        http("200 OK", b"x", "Content-Encoding: gzip"),
        http("500 Oh", b"{}"),
        http("302 Found", b"", "Location: http://127.0.0.1:1/cron"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 10,
    ],
    ids=range(9),
)
def test_whatever_is_no_answer_is_unavailable(answer):
    with answering(answer) as url, BridgeClient(url) as bridge, pytest.raises(GatewayUnavailable):
        bridge.cron_list()


def test_a_refusal_that_makes_no_sense_is_a_refusal():
    with (
        answering(http("403 No", b"<html>")) as url,
        BridgeClient(url) as bridge,
        pytest.raises(GatewayRefused) as refused,
    ):
        bridge.cron_list()
    assert refused.value.status == 403


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_answer_that_drips_ends_with_the_time_limit(begun: bytes):
    async def ask() -> None:
        async with AsyncBridgeClient(url, timeout=0.2) as bridge:
            await bridge.cron_list()

    with answering(begun, drips=100) as url:
        began = time.monotonic()
        with BridgeClient(url, timeout=0.2) as bridge:
            for _ in range(2):
                with pytest.raises(GatewayUnavailable, match=r"no complete response within 0\.2 s"):
                    bridge.cron_list()
        with pytest.raises(GatewayUnavailable, match=r"no complete response within 0\.2 s"):
            asyncio.run(ask())
        assert time.monotonic() - began < 10


def test_silence_ends_with_the_time_limit():
    with (
        answering(None) as url,
        BridgeClient(url, timeout=0.1) as bridge,
        pytest.raises(GatewayUnavailable, match=r"0\.1 s"),
    ):
        bridge.cron_list()


def test_a_secret_that_no_header_can_hold_is_not_shown(monkeypatch):
    monkeypatch.setenv("BROKEN", "canary\r\nX-Evil: 1")
    with (
        BridgeClient("http://127.0.0.1:9", "env:BROKEN") as bridge,
        pytest.raises(GatewayUnavailable) as failed,
    ):
        bridge.cron_list()
    assert "canary" not in str(failed.value)


BAD_URLS = [
    "",
    "edge",
    "ftp://edge",
    "http://",
    "http://user:pass@edge",
    "http://edge:99999",
    "http://edge/?x=1",
    "http://edge/#x",
    "http://ed ge",
    "http://edge\r\nX: 1",
    "http://[::1",
    "http://edge/" + "x" * 3000,
    None,
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_address_that_makes_no_sense_is_refused(url):
    with pytest.raises(InvalidOption):
        BridgeClient(url)


@pytest.mark.parametrize("cron_id", ["", ".", ".."])
def test_an_id_cannot_lead_elsewhere(cron_id):
    with BridgeClient("http://127.0.0.1:9") as bridge, pytest.raises(InvalidOption):
        bridge.cron_remove(cron_id)


@on_sqlite
@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]"]
)
def test_a_link_local_address_needs_a_flag(app, host):
    with pytest.raises(InvalidOption, match="link-local"):
        app.gateways.add("edge", f"http://{host}:8700")
    assert app.gateways.list() == []
    assert app.gateways.add("edge", f"http://{host}:8700", link_local=True).name == "edge"


@on_sqlite
@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe", "169.254.43518"])
def test_an_address_in_other_numbers_is_refused(app, host):
    with pytest.raises(InvalidOption, match="four decimal numbers"):
        app.gateways.add("edge", f"http://{host}:8700")


# Registered gateways, on both stores -------------------------------------------------------------


def test_gateways_are_registered_by_name_and_owner(app):
    made = app.gateways.add("edge", "http://10.0.0.5:8700/", secret="env:EDGE", by="ops")
    hers = app.gateways.of("anna").add("edge", "https://edge.internal")

    assert app.gateways.get("edge") == app.gateways.get(made.id) == made
    assert (made.url, made.secret, made.owner) == ("http://10.0.0.5:8700", "env:EDGE", None)
    assert app.gateways.list() == [made, hers]
    assert app.gateways.of("anna").list() == [hers]
    with pytest.raises(GatewayExists):
        app.gateways.add("edge", "http://other")
    with pytest.raises(GatewayNotFound):
        app.gateways.of("anna").get(made.id)
    assert app.gateways.of("anna").remove(made.id) is False
    assert app.gateways.remove("edge", by="ops") is True
    assert app.gateways.remove("edge") is False


def test_a_registered_gateway_has_references_and_not_secrets(app):
    with pytest.raises(InvalidOption) as refused:
        app.gateways.add("edge", "http://edge", secret="hunter2")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidOption):
        app.gateways.add("edge", "http://me:hunter2@edge")
    assert app.gateways.list() == []


def test_inside_a_mutation_gateways_stay_out(app):
    with app.transaction(), pytest.raises(UseTx):
        app.gateways.add("edge", "http://edge")
    app.gateways.add("edge", "http://localhost:1")
    began = time.monotonic()
    with app.transaction():
        assert app.gateways.crons("edge").stale
        assert app.gateways.look()[0].stale
    assert time.monotonic() - began < 5, "it waits for its own lock"
    assert not app.gateways.get("edge").stale


def test_what_is_done_to_crons_is_passed_on_and_written_down(app, serve):
    process = serve()
    gateway = app.gateways.add("edge", process.url, secret="env:GATEWAY_SECRET", by="anna")
    made = app.gateways.cron_add("edge", "touch", FAR, payload={"name": "x"}, by="anna")
    app.gateways.cron_update("edge", made.id, enabled=False, by="bob")
    assert app.gateways.crons("edge").crons[0].enabled is False
    assert app.gateways.cron_run("edge", made.id, by="carl").ran
    assert app.gateways.cron_remove("edge", made.id, by="dora").removed
    with pytest.raises(GatewayRefused):
        app.gateways.cron_run("edge", made.id, by="emil")
    process.end()
    with pytest.raises(GatewayUnavailable):
        app.gateways.cron_run("edge", made.id, by="finn")

    trail = app.store.audit_of(f"gateway:{gateway.id}")
    assert [(each.actor, each.action) for each in reversed(trail)] == [
        ("anna", "gateway.create"),
        ("anna", "gateway.cron_add"),
        ("bob", "gateway.cron_update"),
        ("carl", "gateway.cron_run"),
        ("dora", "gateway.cron_remove"),
        ("emil", "gateway.cron_run"),
        ("finn", "gateway.cron_run"),
    ]
    outcomes = [re.search(r'"outcome":"(\w+)"', each.detail or "") for each in reversed(trail)]
    found = [match[1] for match in outcomes if match]
    assert found == ["done"] * 4 + ["refused", "unknown"]
    assert SECRET not in str(trail)


def test_the_verbs_can_be_awaited(app, serve):
    process = serve()

    async def manage() -> None:
        gateways = app.aio.gateways
        await gateways.add("edge", process.url, secret="env:GATEWAY_SECRET")
        made = await gateways.cron_add("edge", "touch", FAR, payload={"name": "x"})
        await gateways.cron_update("edge", made.id, name="y")
        assert (await gateways.cron_run("edge", made.id, "due")).reason == "not-due"
        assert [cron.name for cron in (await gateways.crons("edge")).crons] == ["y"]
        assert len((await app.aio.observe.schedules()).crons) == 1
        assert (await gateways.cron_remove("edge", made.id)).removed
        assert [each.name for each in await gateways.list()] == ["edge"]
        assert (await gateways.get("edge")).name == "edge"
        assert await gateways.remove("edge")

    asyncio.run(manage())


# The view across ---------------------------------------------------------------------------------


@pytest.fixture
def digest(app: Duly) -> Any:
    @app.action
    def send_digest(ctx: Ctx, topic: str = "all") -> None: ...

    return send_digest


@pytest.mark.spec("R51")
def test_the_view_has_schedules_and_crons_in_six_columns(app, clock, serve, digest, hire):
    process = serve()
    app.schedules.create("daily", digest.bind("tech"), cron="0 9 * * 1-5", tz="Europe/Istanbul")
    app.schedules.create("often", digest, every=timedelta(minutes=5), enabled=False)
    app.gateways.add("edge", process.url, secret="env:GATEWAY_SECRET")
    app.gateways.cron_add("edge", "touch", every(minutes=10), payload={"name": "x"})

    page = app.observe.schedules(tz="America/New_York")

    daily, often, touch = page.rows
    assert (daily.resource, daily.key, daily.source) == ("send_digest", "daily", "schedule")
    assert (daily.type, daily.expression, daily.tz) == ("cron", "0 9 * * 1-5", "Europe/Istanbul")
    assert "09:00" in daily.words
    assert daily.status == "enabled"
    assert daily.next_run.isoformat() == "2026-01-01T01:00:00-05:00"
    assert (daily.last_run, daily.last_status) == (None, None)
    assert (often.type, often.expression, often.words) == ("interval", "300000", "Every 5 minutes")
    assert (often.tz, often.status, often.next_run) == ("", "disabled", None)
    assert (touch.resource, touch.source) == ("edge/touch", "gateway")
    assert (touch.type, touch.words, touch.tz) == ("interval", "Every 10 minutes", "")
    assert (touch.status, touch.stale_since) == ("enabled", None)
    assert str(touch.next_run.tzinfo) == "America/New_York"

    clock.advance(6 * 3600)
    tick_all(app)
    worker: ManualWorker = hire()
    before = app.observe.schedules().schedules[0]
    assert before.last_run == datetime(2026, 1, 1, 6, 0, tzinfo=UTC)
    assert before.last_status == "pending"
    worker.work()
    assert app.observe.schedules().schedules[0].last_status == "succeeded"

    assert (touch.last_run, touch.last_status) == (None, None)
    app.gateways.cron_run("edge", touch.id)
    wait_until(lambda: app.observe.schedules().crons[0].last_status == "ok")
    [ran] = app.observe.schedules(tz="America/New_York").crons
    told = app.gateways.crons("edge").crons[0].last_run_at
    assert ran.last_run == told is not None
    assert str(ran.last_run.tzinfo) == "America/New_York"


@pytest.mark.spec("R52")
def test_a_gateway_that_cannot_be_reached_is_stale_and_stops_nothing(app, clock, serve, digest):
    process = serve()
    app.schedules.create("daily", digest, cron="0 9 * * *")
    app.gateways.add("edge", process.url, secret="env:GATEWAY_SECRET")
    app.gateways.add("never", "http://127.0.0.1:9")
    app.gateways.cron_add("edge", "touch", FAR, payload={"name": "x"})
    fresh = app.observe.schedules()
    assert [row.resource for row in fresh.rows] == ["send_digest", "edge/touch"]
    process.end(signal.SIGKILL)
    clock.advance(60)
    gone_at = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)

    page = app.observe.schedules()
    clock.advance(60)
    later = app.observe.schedules()

    assert [row.resource for row in page.rows] == ["send_digest", "edge/touch"]
    edge, never = page.gateways
    assert edge.seen == datetime(2026, 1, 1, tzinfo=UTC)
    assert (edge.stale_since, never.seen) == (gone_at, None)
    assert "is not available" in (edge.error or "")
    assert page.crons[0].stale_since == gone_at
    assert later.gateways[0].stale_since == gone_at
    assert app.gateways.get("edge").stale

    serve(port=process.port)
    assert app.observe.schedules().gateways[0].stale_since is None


@pytest.mark.spec("R52")
def test_all_gateways_are_asked_at_the_same_time(app, serve):
    process = serve()
    with answering(None) as silent:
        for n in range(20):
            app.gateways.add(f"silent{n}", silent)
        app.gateways.add("edge", process.url, secret="env:GATEWAY_SECRET")

        def answered(wait: float) -> set[str]:
            page = app.observe.schedules(wait=wait)
            return {g.name for g in page.gateways if g.stale_since is None}

        answered(wait=0.01)

        assert asking() >= 20
        # A slow machine gives the one that answers more than one look.
        wait_until(lambda: answered(wait=0.5) == {"edge"}, "only the one that answers is fresh")
        before = asking()
        app.observe.schedules(wait=0.01)
        # Whoever has not answered yet is not asked again.
        assert asking() <= before + 1


def asking() -> int:
    """How many threads wait for the answer of a gateway."""
    return [thread.name for thread in threading.enumerate()].count("duly-ask")


def test_who_looks_meanwhile_gets_the_same_answer():
    asked, answer = threading.Semaphore(0), threading.Event()
    questions: list[str] = []

    def ask(subject: str) -> str:
        questions.append(subject)
        asked.release()
        assert answer.wait(PATIENCE)
        return f"{subject} answers"

    ask_all = AskAll(ask)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask_all, ["edge"], PATIENCE)
        assert asked.acquire(timeout=PATIENCE)
        second = threads.submit(ask_all, ["edge", "core"], PATIENCE)
        assert asked.acquire(timeout=PATIENCE)
        answer.set()
        assert first.result() == {"edge": ("edge answers", None)}
        assert set(second.result()) == {"edge", "core"}
    assert sorted(questions) == ["core", "edge"]
    assert ask_all(["edge"], PATIENCE) == {"edge": ("edge answers", None)}


def test_the_view_comes_in_pages_and_asks_gateways_with_the_first(app, digest):
    for n in range(5):
        app.schedules.create(f"s{n}", digest, cron="0 9 * * *")
    app.gateways.add("never", "http://127.0.0.1:9")

    first = app.observe.schedules(limit=2)
    second = app.observe.schedules(limit=2, after=first.after)
    third = app.observe.schedules(limit=2, after=second.after)

    pages = [first, second, third]
    assert [row.key for page in pages for row in page.schedules] == [f"s{n}" for n in range(5)]
    assert [len(page.gateways) for page in pages] == [1, 0, 0]
    assert third.after is None


def test_a_page_is_data_too(app, digest):
    app.schedules.create("daily", digest, cron="0 9 * * *")
    app.gateways.add("never", "http://127.0.0.1:9")

    data = json.loads(json.dumps(as_data(app.observe.schedules(tz="Europe/Istanbul"))))

    assert data["rows"][0]["next_run"] == "2026-01-01T12:00:00+03:00"
    assert data["gateways"][0]["stale_since"] == "2026-01-01T00:00:00Z"
    assert data["after"] is None


def test_an_owner_sees_only_what_is_theirs(app, digest):
    app.schedules.of("anna").create("hers", digest, cron="0 9 * * *")
    app.schedules.create("all", digest, cron="0 9 * * *")
    app.gateways.of("anna").add("hers", "http://127.0.0.1:9")
    app.gateways.add("all", "http://127.0.0.1:9")

    page = app.observe.schedules(owner="anna")

    assert [row.key for row in page.rows] == ["hers"]
    assert [gateway.name for gateway in page.gateways] == ["hers"]


@pytest.mark.parametrize("given", [{"limit": 0}, {"limit": 1001}, {"after": "x"}])
def test_a_view_that_makes_no_sense_is_refused(app, given):
    with pytest.raises(InvalidOption):
        app.observe.schedules(**given)
    with pytest.raises(UnknownZone):
        app.observe.schedules(tz="Nowhere/Land")


def test_a_gateway_that_says_nonsense_is_shown_without_it(app):
    body = (
        b'{"crons": [{"id": "1", "name": "odd", "handler": "h", "schedule": {"kind": "moon"},'
        b' "enabled": true, "payload": {}, "created_at": "2026-01-01T00:00:00Z",'
        b' "updated_at": "2026-01-01T00:00:00Z", "new_field": 1}], "after": null}'
    )
    with answering(http("200 OK", body)) as url:
        app.gateways.add("odd", url)
        [row] = app.observe.schedules().rows

    assert (row.resource, row.type, row.words) == ("odd/odd", "", "")
    assert "its schedule cannot be read" in row.error


SAID: dict[str, Any] = {
    "id": "c1",
    "name": "odd",
    "handler": "h",
    "enabled": True,
    "payload": {},
    "schedule": {"kind": "every", "every_ms": 60_000},
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    "nonsense",
    [
        {"schedule": {}},
        {"schedule": {"kind": "cron", "cron": 5}},
        {"schedule": {"kind": "every", "every_ms": "x"}},
        {"schedule": {"kind": "at", "at": 10**18}},
        {"schedule": {"kind": "cron", "cron": "* * * * *", "tz": ["a"]}},
        {"schedule": {"kind": "cron", "cron": "H * * * *", "spread": 5}},
        {"next_at": "0001-01-01T00:00:00Z"},
        {"last_run_at": "9999-12-31T23:59:59-14:00"},
        {"created_at": "0001-01-01T00:00:00+14:00"},
        {"next_at": "2026-01-01T00:00:00"},
        {"last_duration_ms": 10**18, "consecutive_errors": -(10**18)},
        {"payload": {"a": json.loads("[" * 300 + "]" * 300)}},
        {"payload": {"a": 10**30}},
        {"payload": {"a": "x" * 100_000}},
        {"id": "\ud800"},
        {"id": ""},
        {"name": "a\0b"},
        {"handler": "x" * 1_000},
        {"last_status": "\0", "last_error": "\0\x1b[31m"},
    ],
    ids=range(19),
)
def test_a_gateway_that_says_nonsense_breaks_no_view(app, client, digest, nonsense):
    app.schedules.create("fine", digest, every=3600)
    said = json.dumps({"crons": [SAID | nonsense, SAID | {"id": "c2"}]}).encode()
    with answering(http("200 OK", said)) as url:
        gateway = app.gateways.add("odd", url)
        path = f"/api/v1/gateways/{gateway.id}"
        view = "/api/v1/observe/schedules?tz=America/New_York"
        answers = [client.get(each) for each in (f"{path}/crons", view, path, "/api/v1/gateways")]
        assert [answer.status_code for answer in answers] == [200] * 4
        rows = answers[1].json()["rows"]
        assert rows[0]["key"] == "fine"
        # What it says beside that is shown, unless its answer cannot be read at all.
        found = answers[2].json()
        assert found["stale"] or found["crons"][-1]["id"] == "c2"
        for cron in found["crons"][:-1]:
            assert (cron["unreadable"] is not None) == ("schedule" in nonsense)
            assert type(cron["last_duration_ms"]) is not str
        assert "\\u0000" not in answers[1].text
        assert app.gateways.get("odd").id == gateway.id


@pytest.mark.parametrize("status", ["200 OK", "404 No"])
def test_the_words_of_a_gateway_can_be_stored(app, client, status):
    said = {"error": {"code": "\0", "message": "\0" * 5_000, "field": "\0", "hint": "\0"}}
    with answering(http(status, json.dumps(said).encode())) as url:
        gateway = app.gateways.add("odd", url)
        found = client.get(f"/api/v1/gateways/{gateway.id}/crons")
        assert (found.status_code, found.json()["stale"]) == (200, True)
        refused = client.post(f"/api/v1/gateways/{gateway.id}/crons/x/run")
        assert refused.status_code == (404 if status.startswith("404") else 502)
        assert "\\u0000" not in refused.text


# Over HTTP ---------------------------------------------------------------------------------------


def test_only_those_without_an_owner_register_gateways_and_the_owner_uses_them(
    app, guarded, bearer, serve, monkeypatch
):
    process, ann = serve(), bearer("admin", owner="ann")
    body = {"name": "edge", "url": process.url, "secret": "env:GATEWAY_SECRET"}
    for refused in (body, body | {"owner": "ann"}, {"name": "edge", "url": process.url}):
        assert guarded.post("/api/v1/gateways", json=refused, headers=ann).status_code == 403
    everybody = bearer("admin")
    made = guarded.post("/api/v1/gateways", json=body | {"owner": "ann"}, headers=everybody)
    path = f"/api/v1/gateways/{made.json()['id']}"
    found = guarded.get(f"{path}/crons", headers=ann).json()
    assert (found["stale"], found["owner"]) == (False, "ann")
    # Where it is, and where its secret is, is for those who run it.
    assert (found["url"], found["secret"]) == (None, None)
    (seen,) = guarded.get("/api/v1/observe/schedules", headers=ann).json()["gateways"]
    assert seen["url"] is None
    shown = guarded.get(path, headers=everybody).json()
    assert (shown["url"], shown["secret"]) == (process.url, "env:GATEWAY_SECRET")
    # Made once under a key, also where the answer was lost on the way.
    cron = {"handler": "touch", "schedule": {"kind": "every", "every_ms": 60_000}}
    cron |= {"payload": {"name": "x"}}
    add = partial(guarded.post, f"{path}/crons", json=cron)
    keyed = ann | {"Idempotency-Key": "one"}
    with monkeypatch.context() as patch:
        patch.setattr(Gateways, "_pass_on", lost_on_the_way(Gateways._pass_on))
        patch.setattr(Gateways, "find_cron", lambda *given: None)
        assert add(headers=keyed).status_code == 502
    first, again = add(headers=keyed), add(headers=keyed)
    assert (first.status_code, again.status_code) == (200, 200)
    assert (
        first.json()
        == again.json()
        == guarded.get(f"{path}/crons", headers=ann).json()["crons"].pop()
    )
    for key in ({}, {"Idempotency-Key": "two"}):
        taken = add(headers=ann | key)
        assert (taken.status_code, taken.json()["error"]["field"]) == (409, "name")
    changed = guarded.patch(f"{path}/crons/nobody", json={"enabled": True}, headers=ann)
    assert (changed.status_code, changed.json()["error"]["code"]) == (404, "gateway_refused")
    guarded.delete(f"{path}/crons/{first.json()['id']}", headers=ann)
    gone = add(headers=keyed)
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "already_done")
    assert add(headers=ann | {"Idempotency-Key": "two"}).status_code == 201
    assert guarded.delete(path, headers=ann).status_code == 403
    assert guarded.delete(path, headers=everybody).status_code == 204


def lost_on_the_way(ask: Callable[..., Any]) -> Callable[..., Any]:
    """What is asked is done, and nobody hears of it."""

    def asked(*given: Any) -> None:
        ask(*given)
        raise GatewayUnavailable("http://edge", "the answer was lost")

    return asked


def test_an_owner_is_told_no_more_than_that_a_gateway_cannot_be_reached(
    app, guarded, bearer, monkeypatch
):
    monkeypatch.delenv("GATEWAY_SECRET", raising=False)
    ann = bearer("admin", owner="ann")
    app.gateways.of("ann").add("closed", "http://127.0.0.1:9/")
    app.gateways.of("ann").add("secret", "http://127.0.0.1:9/", secret="env:GATEWAY_SECRET")
    with answering(http("500 Oh", b"canary")) as url:
        app.gateways.of("ann").add("other", url)
        views = [guarded.get("/api/v1/observe/schedules", headers=ann).json()["gateways"]]
    for each in app.gateways.list():
        path = f"/api/v1/gateways/{each.id}"
        asked = guarded.get(f"{path}/crons", headers=ann).json()
        views.append([asked, guarded.get(path, headers=ann).json()])
        verb = guarded.post(f"{path}/crons/x/run", headers=ann)
        assert verb.status_code == 502
        assert verb.json()["error"]["message"] == "the gateway cannot be reached"
        told = guarded.get(path, headers=bearer("read")).json()["error"]
        assert told not in (None, "cannot be reached")
    assert {shown["error"] for view in views for shown in view} == {"cannot be reached"}


@contextmanager
def hanging() -> Iterator[tuple[str, list[object]]]:
    """Somebody who takes every question and answers none; and who has asked."""
    over, asked = threading.Event(), []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(self.client_address)
            over.wait(PATIENCE)

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 200

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            over.set()
            server.shutdown()
            thread.join()


@on_sqlite
def test_gateways_that_hang_hold_up_nobody_else(shop, bearer):
    headers = bearer("admin")

    async def scenario() -> None:
        transport = httpx2.ASGITransport(app=make_asgi(shop))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            with hanging() as (url, asked):
                ids = [shop.gateways.add(f"edge {n}", url).id for n in range(10)]

                def run(gateway_id: str) -> Any:
                    path = f"/api/v1/gateways/{gateway_id}/crons/x/run"
                    return client.post(path, headers=headers, timeout=None)

                tasks = [asyncio.create_task(run(each)) for each in ids * MAX_PER_SUBJECT]
                async with asyncio.timeout(PATIENCE):
                    while len(asked) < THREADS:
                        await asyncio.sleep(0.01)
                for path in ("/readyz", "/api/v1/jobs", "/api/v1/gateways"):
                    assert (await client.get(path, headers=headers)).status_code == 200
                busy = await run(ids[0])
                assert (busy.status_code, busy.json()["error"]["code"]) == (503, "busy")
                assert "retry-after" in busy.headers
                assert len(tasks) == 80
                assert not any(task.done() for task in tasks)
            assert {(await task).status_code for task in tasks} == {502}
            assert (await run(ids[0])).status_code == 502

    asyncio.run(scenario())
