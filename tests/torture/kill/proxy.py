"""A PostgreSQL connection that can be cut, frozen, slow, or lose the answer to one statement.

The proxy listens on the loopback and passes bytes on in both directions. It reads what clients say
just far enough to know which statement they run.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

REMEMBERED = 10
READY = b"Z\x00\x00\x00\x05"
NEGOTIATIONS = (80877103, 80877104)
"""SSLRequest and GSSENCRequest: asked before the real start, in the same untyped form."""


class Proxy:
    """Stands between clients and one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        userinfo = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{userinfo}@{host}:{port}"))
        self._guard = threading.Lock()
        self._links: set[_Link] = set()
        self._is_up = True
        self.delay = 0.0
        """Seconds by which everything is late, in each direction."""
        self._flowing = threading.Event()
        self._flowing.set()
        self._to_lose: list[Loss] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._guard:
                if not self._is_up:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # there is no server just now
                    client.close()
                    continue
                self._links.add(_Link(self, client, server))

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        with self._guard:
            self._is_up = False
            links, self._links = self._links, set()
        for link in links:
            link.close()

    def restore(self) -> None:
        with self._guard:
            self._is_up = True

    def freeze(self) -> None:
        """Pass nothing on, and say nothing: as if the network had gone."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def wait_for_flow(self) -> None:
        self._flowing.wait()
        if self.delay:
            time.sleep(self.delay)

    def lose(
        self,
        part: str,
        *,
        after: str = "",
        arrives: bool = True,
        before_cut: Callable[[], object] | None = None,
    ) -> Loss:
        """Cut the client that runs a statement with this text, right after it was done.

        `after`: only where a statement with that text ran before. `arrives` False: the statement
        is not done, the server never sees it. `before_cut` is called while the client waits.
        """
        loss = Loss(part.encode(), after.encode(), arrives, before_cut)
        with self._guard:
            self._to_lose.append(loss)
        return loss

    def loss_at(self, statement: bytes, earlier: Sequence[bytes]) -> Loss | None:
        with self._guard:
            for loss in self._to_lose:
                if loss.part in statement and any(loss.after in text for text in earlier):
                    self._to_lose.remove(loss)
                    return loss
        return None

    def forget(self, link: _Link) -> None:
        with self._guard:
            self._links.discard(link)

    def close(self) -> None:
        self._listener.close()
        self.thaw()
        self.cut()


class Loss:
    """One statement whose answer, or which itself, gets lost."""

    def __init__(
        self, part: bytes, after: bytes, arrives: bool, before_cut: Callable[[], object] | None
    ) -> None:
        self.part = part
        self.after = after
        self.arrives = arrives
        self.before_cut = before_cut
        self.happened = threading.Event()


class _Link:
    """One client's connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._statements = _Statements()
        self._earlier: list[bytes] = []
        self._loss: Loss | None = None
        threading.Thread(target=self._to_server, daemon=True).start()
        threading.Thread(target=self._to_client, daemon=True).start()

    def _to_server(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(65536):
                self._proxy.wait_for_flow()
                self._look_at(data)
                if self._loss and not self._loss.arrives:
                    self._loss.happened.set()
                    break
                self._server.sendall(data)
        self._proxy.forget(self)
        self.close()

    def _look_at(self, data: bytes) -> None:
        for text in self._statements.run_by(data):
            self._earlier = [*self._earlier[-REMEMBERED:], text]
            self._loss = self._loss or self._proxy.loss_at(text, self._earlier)

    def _to_client(self) -> None:
        with suppress(OSError):
            answer = b""
            while data := self._server.recv(65536):
                self._proxy.wait_for_flow()
                if self._loss is None:
                    self._client.sendall(data)
                    continue
                answer += data
                if answer[-6:-1] == READY:
                    self._lose(self._loss)
                    break
        self.close()

    def _lose(self, loss: Loss) -> None:
        loss.happened.set()
        if loss.before_cut:
            loss.before_cut()

    def close(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class _Statements:
    """Which statements does a client run, by their text, prepared or not?"""

    def __init__(self) -> None:
        self._rest = b""
        self._started = False
        self._prepared: dict[bytes, bytes] = {}

    def run_by(self, data: bytes) -> list[bytes]:
        self._rest += data
        found = []
        while message := self._next():
            kind, body = message
            if kind == b"Q":
                found.append(body)
            elif kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text
            elif kind == b"B":
                _, name, _ = body.split(b"\0", 2)
                found.append(self._prepared.get(name, b""))
        return found

    def _next(self) -> tuple[bytes, bytes] | None:
        """The next whole message: its type and its body."""
        typed = int(self._started)
        if len(self._rest) < typed + 4:
            return None
        (length,) = struct.unpack_from("!I", self._rest, typed)
        end = typed + length
        if len(self._rest) < end:
            return None
        kind, body = self._rest[:typed], self._rest[typed + 4 : end]
        self._rest = self._rest[end:]
        if not self._started:
            (code,) = struct.unpack_from("!I", body)
            self._started = code not in NEGOTIATIONS
        return kind, body
