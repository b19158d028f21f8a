"""Real servers on loopback, and the shop of tests/cli whose jobs they run."""

import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import psycopg
import pytest

from duly import Duly
from tests.cli.conftest import shop
from tests.cli.processes import Process, environment
from tests.postgres import fresh_database

__all__ = ["shop"]

PATIENCE = 30.0


@pytest.fixture(scope="session")
def migrated_database(postgres_server: str) -> Iterator[str]:
    """A PostgreSQL database with duly's tables and no others, to be copied."""
    with fresh_database(postgres_server) as url:
        app = Duly(url)
        app.migrate()
        app.close()
        yield url.rpartition("/")[2]


@pytest.fixture
def postgres_url(postgres_server: str, migrated_database: str) -> Iterator[str]:
    """The DSN of a migrated database that only this test has: a copy takes half the time."""
    name = f"test_{uuid4().hex[:16]}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {migrated_database}")
        yield f"{postgres_server.rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Server:
    """A web server in processes of its own; a request waits until one of them answers."""

    def __init__(self, listener: socket.socket, process: Process) -> None:
        self.process = process
        self._port: int = listener.getsockname()[1]

    def ask(self, path: str, body: Any = None) -> Any:
        """GET, or POST of a body; the JSON of the answer."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(f"http://127.0.0.1:{self._port}{path}", content, headers)
        with urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def stop(self) -> int:
        self.process.signal(signal.SIGTERM)
        return self.process.wait()


Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server on a socket that is open already: no port to guess, nothing to wait for."""
    with ExitStack() as stack:

        def start(
            make_command: Callable[[int], list[str]], env: dict[str, str], cwd: Path
        ) -> Server:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
            fd = listener.fileno()
            process = Process(make_command(fd), environment(**env), cwd=cwd, pass_fds=(fd,))
            stack.callback(process.close)
            return Server(listener, process)

        yield start
