"""A command that starts while the database is down waits for it, and says so."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from duly import Duly
from duly.cli import wait
from duly.cli.wait import wait_for_database
from duly.errors import NotMigrated, StoreRefused, StoreUnavailable
from tests.cli.processes import Process, duly, environment, wait_until

pytestmark = pytest.mark.postgres


def a_free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def forwarded(port: int, url: str) -> Iterator[None]:
    """What connects to the port reaches the database."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    target = (str(given["host"]), int(str(given["port"])))

    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, sink):
                each.close()

    with closing(socket.create_server(("127.0.0.1", port))) as listener:

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection(target)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def through(port: int, url: str) -> str:
    return url.replace(f":{psycopg.conninfo.conninfo_to_dict(url)['port']}/", f":{port}/")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(url: str, *arguments: str) -> Process:
        env = environment(url, DULY_APP="tests.cli.shop:app", SHOP_FOLDER=str(tmp_path))
        started.append(Process(duly(*arguments), env))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.spec("N45")
@pytest.mark.parametrize("command", ["worker", "ticker"])
def test_a_command_that_starts_before_its_database_waits_for_it(
    command: str, start: Callable[..., Process], postgres_url: str
):
    Duly(postgres_url, auto_migrate=True).ready()
    port = a_free_port()
    process = start(through(port, postgres_url), command, "--wait", "60")
    wait_until(lambda: "waiting for the database" in process.errors(), "it says so at once")

    with forwarded(port, postgres_url):
        wait_until(lambda: "Ctrl-C stops" in process.errors(), "it has begun")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert process.errors().count("waiting for the database") == 1


@pytest.mark.spec("N45")
def test_a_command_gives_up_when_its_time_is_over(start: Callable[..., Process], postgres_url: str):
    down = through(a_free_port(), postgres_url)
    at_once, later = start(down, "worker", "--wait", "0"), start(down, "worker", "--wait", "0.5")

    assert (at_once.wait(), later.wait()) == (1, 1)
    assert "waiting" not in at_once.errors()
    assert "waiting" in later.errors()
    for each in (at_once, later):
        assert "cannot connect to PostgreSQL" in each.errors()


@pytest.mark.spec("N45")
def test_it_says_so_every_thirty_seconds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    now, lives = 0.0, 0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def live() -> None:
        nonlocal lives
        lives += 1

    monkeypatch.setattr(wait, "os_monotonic", lambda: now)
    monkeypatch.setattr(wait, "os_sleep", sleep)
    app = Duly(f"postgresql://nobody@127.0.0.1:{a_free_port()}/nothing")
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        wait_for_database(app, 100, lives=live)

    said = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    assert [text.rpartition("up to ")[2] for text in said] == ["100 s", "70 s", "40 s", "10 s"]
    # A child whose parent watches it shows that it is not stuck.
    assert lives == 101
    wait_for_database(app, 100, is_over=lambda: True)


@pytest.mark.spec("N45")
def test_a_database_that_answers_and_refuses_is_not_waited_for(postgres_url: str):
    server = postgres_url.rpartition("/")[0]
    with pytest.raises(StoreRefused, match="does not exist"):
        wait_for_database(Duly(f"{server}/nothing_of_that_name"), 60)
    with pytest.raises(NotMigrated):
        wait_for_database(Duly(postgres_url, schema="elsewhere"), 60)
