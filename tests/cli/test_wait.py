"""A command that starts while the database is down waits for it, and says so."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2
import psycopg
import pytest

from duly import Duly
from duly.cli import wait
from duly.cli.wait import wait_for_database
from duly.errors import NotMigrated, StoreRefused, StoreUnavailable
from duly.runtime.lifeline import Lifeline
from tests.cli.processes import Process, duly, environment, wait_until
from tests.cli.shop import make
from tests.jobs.support import Database

pytestmark = pytest.mark.postgres
WAITING = "waiting for the database"


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

    connections: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", port))) as listener:

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                far = socket.create_connection(target)
                connections.append(far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def through(port: int, url: str) -> str:
    return url.replace(f":{psycopg.conninfo.conninfo_to_dict(url)['port']}/", f":{port}/")


def says(process: Process, words: str) -> bool:
    return words in process.errors()


def is_alive(lifeline: Lifeline) -> bool:
    return lifeline.stuck() is None


def answers(address: str) -> bool:
    try:
        return httpx2.get(address, trust_env=False).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start(url: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> Process:
        env = environment(url, DULY_APP="tests.cli.shop:app", SHOP_FOLDER=str(tmp_path))
        started.append(Process(duly(*arguments), env, pass_fds=pass_fds))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.spec("N45")
def test_commands_that_start_before_their_database_wait_for_it(
    start: Callable[..., Process], postgres_url: str
):
    Duly(postgres_url, auto_migrate=True).ready()
    port = a_free_port()
    down = through(port, postgres_url)
    processes = [start(down, "ticker"), start(down, "serve", "--port", "0")]
    for process in processes:
        wait_until(partial(says, process, WAITING), "it says so at once")
        assert "waiting for the database for up to 300 s" in process.errors()

    with forwarded(port, postgres_url):
        for process in processes:
            wait_until(partial(says, process, "Ctrl-C stops"), "it has begun")
        address = re.search(r"http://\S+", processes[1].errors())
        assert address is not None
        wait_until(lambda: answers(f"{address[0]}/readyz"), "it serves")
        for process in processes:
            process.signal(signal.SIGTERM)
        assert [process.wait() for process in processes] == [0, 0]
    assert [process.errors().count(WAITING) for process in processes] == [1, 1]


@pytest.mark.spec("N45")
def test_the_processes_of_a_worker_wait_too(
    start: Callable[..., Process], postgres_url: str, tmp_path: Path
):
    """Both when they are started at first and when one takes the place of another."""
    app = make(postgres_url, tmp_path)
    app.migrate()
    port = a_free_port()
    worker = start(through(port, postgres_url), "worker", "--processes", "2", "--wait", "60")
    wait_until(partial(says, worker, WAITING), "it says so at once")

    def at_work() -> set[int]:
        return {each.pid for each in app.workers() if worker.started(each.pid)}

    with forwarded(port, postgres_url):
        wait_until(lambda: len(at_work()) == 2, "both work")
    for pid in at_work():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: worker.errors().count(WAITING) == 3, "two others wait")
    with forwarded(port, postgres_url):
        wait_until(lambda: len(at_work()) == 2, "the two others work")
        assert app.run(app.function("touch"), "x").result(timeout=60) == "x"
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert worker.errors().count("starting another") == 2
    app.close()


@pytest.mark.spec("N45")
def test_while_they_wait_processes_are_not_stuck_and_hear_a_signal(
    start: Callable[..., Process],
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    app = make(postgres_url, tmp_path)
    app.migrate()
    job = app.run(app.function("touch"), "x")
    with closing(Database(postgres_url)) as db:
        db.execute("UPDATE @jobs SET hold = 'alone', crashes = 2")
    port = a_free_port()
    down = through(port, postgres_url)
    watched = [Lifeline.create() for _ in range(2)]
    one_job, any_job = (
        start(down, "worker", *options, f"--child={file}", pass_fds=(file,))
        for options, (_, file) in zip(([f"--alone={job.id}"], []), watched, strict=True)
    )
    ticker = start(down, "ticker")
    for process in (one_job, any_job, ticker):
        wait_until(partial(says, process, WAITING), "it says so at once")
    monkeypatch.setattr("duly.runtime.lifeline.NO_PROGRESS", 0.1)
    for lifeline, _ in watched:
        wait_until(partial(is_alive, lifeline), "it shows that it lives")
    for process in (any_job, ticker):
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    with forwarded(port, postgres_url):
        assert one_job.wait() == 0
    assert job.result(timeout=0) == "x"
    for lifeline, file in watched:
        lifeline.close()
        os.close(file)
    app.close()


@pytest.mark.spec("N45")
def test_a_process_that_loses_the_database_while_it_starts_connects_again(
    start: Callable[..., Process], postgres_url: str, tmp_path: Path
):
    app = make(postgres_url, tmp_path)
    app.migrate()
    job = app.run(app.function("touch"), "x")
    with closing(Database(postgres_url)) as db:
        # Sequences are not rolled back.
        db.execute("CREATE SEQUENCE cuts")
        db.execute(
            """CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('cuts') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
                RETURN NEW; END $$"""
        )
        db.execute(
            "CREATE TRIGGER cut BEFORE INSERT ON @workers FOR EACH ROW EXECUTE FUNCTION cut()"
        )
    worker = start(postgres_url, "worker")

    assert job.result(timeout=30) == "x"
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert worker.errors().count(WAITING) == 1
    assert "starting another" not in worker.errors()
    app.close()


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
def test_a_database_that_answers_and_refuses_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, postgres_url: str
):
    monkeypatch.setattr(wait, "os_sleep", lambda _: pytest.fail("it waits"))
    server = postgres_url.rpartition("/")[0]
    with pytest.raises(StoreRefused, match="does not exist"):
        wait_for_database(Duly(f"{server}/nothing_of_that_name"), 60)
    with pytest.raises(NotMigrated):
        wait_for_database(Duly(postgres_url, schema="elsewhere"), 60)
