"""Real servers on loopback, and the shop of tests/cli whose jobs they run."""

import json
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import Shop
from tests.cli.processes import Process, environment

PATIENCE = 60.0


@pytest.fixture
def postgres_url(migrated_postgres: str) -> str:
    """The DSN of a migrated database."""
    return migrated_postgres


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(url, tmp_path)
    yield shop
    shop.close()


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
