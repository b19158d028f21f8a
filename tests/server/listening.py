"""Real HTTP servers on loopback: one that answers as it is told, and any ASGI application."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import uvicorn


class Heard(NamedTuple):
    path: str
    headers: dict[str, str]
    """By their names in small letters."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, reply: Callable[[Heard], Reply]) -> None:
        self.heard: list[Heard] = []
        self.connections = 0
        self.reply = reply
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in"

    def get_request(self) -> Any:
        request = super().get_request()
        self.connections += 1
        return request

    def handle_error(self, *_: object) -> None:
        """Whoever asked may have gone."""


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        heard = Heard(self.path, headers, body)
        self.server.heard.append(heard)
        reply = self.server.reply(heard)
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def listening(*replies: Reply | int) -> Iterator[Listener]:
    """Answer with these in turn, and with the last one for ever; 200 without any."""
    given = [Reply(each) if isinstance(each, int) else each for each in replies] or [Reply()]

    def reply(_: Heard) -> Reply:
        return given.pop(0) if len(given) > 1 else given[0]

    with Listener(reply) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield listener
        finally:
            listener.shutdown()
            thread.join()


@contextmanager
def serving(asgi: Any) -> Iterator[str]:
    """The address at which an ASGI application is served."""
    config = uvicorn.Config(asgi, log_config=None, timeout_graceful_shutdown=1, lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
