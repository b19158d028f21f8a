"""The app's API in this process: no socket, and the user of the command may do everything."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Coroutine, Generator, Mapping
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import unquote

from duly.app import Duly
from duly.cli.api import Api, Reply, refusal
from duly.errors import MissingExtra
from duly.model.access import Principal, Scope

T = TypeVar("T")


class Local(Api):
    """Asks an app's ASGI application, on an event loop of its own.

    Ctrl-C cancels what is waited for, and is raised when that has ended.
    """

    def __init__(self, app: Duly) -> None:
        if find_spec("fastapi") is None:
            raise MissingExtra("server", "operating an app from the command line")
        app.ready()
        me = Principal(user(), frozenset(Scope))
        self.where = f"app {app.name!r}"
        self._app = app
        self._asgi = app.asgi(auth=lambda _: me, only={"api"})
        self._runner = asyncio.Runner()

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        return self._wait(self._whole(method, target, headers, body))

    def stream(self, target: str) -> Generator[bytes]:
        answer = _Answer(self._asgi, _scope("GET", target, {}), b"")
        wait = self._wait
        try:
            if wait(answer.begin()) >= 400:
                raise refusal(Reply(answer.status, wait(answer.rest())), self.where)
            rest = b""
            while chunk := wait(answer.chunk()):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line + b"\n" for line in lines)
        finally:
            wait(answer.end())

    def close(self) -> None:
        self._runner.close()
        self._app.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except (KeyboardInterrupt, asyncio.CancelledError):
            # It may have come when the work was done: what stops the loop then has yet to happen,
            # and would stop the next one. Before it had begun, the runner forgets why it was ended.
            loop = self._runner.get_loop()
            loop.call_soon(loop.stop)
            loop.run_forever()
            raise KeyboardInterrupt from None

    async def _whole(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        answer = _Answer(self._asgi, _scope(method, target, headers), body)
        try:
            await answer.begin()
            return Reply(answer.status, await answer.rest())
        finally:
            await answer.end()


class _Answer:
    """One exchange with an ASGI application."""

    def __init__(self, asgi: Any, scope: dict[str, Any], body: bytes) -> None:
        self._asgi, self._scope, self._body = asgi, scope, body
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._asked = False
        self._over = False
        self._task: asyncio.Future[None] | None = None
        self.status = 0

    async def begin(self) -> int:
        self._task = asyncio.create_task(self._asgi(self._scope, self._receive, self._send))
        self._task.add_done_callback(lambda _: self._sent.put_nowait({"type": "over"}))
        message = await self._sent.get()
        if message["type"] == "over":
            self._task.result()
        self.status = message["status"]
        return self.status

    async def chunk(self) -> bytes:
        """The next part of the body; empty at its end."""
        while not self._over:
            message = await self._sent.get()
            self._over = message["type"] == "over" or not message.get("more_body")
            if part := message.get("body"):
                return bytes(part)
        return b""

    async def rest(self) -> bytes:
        parts: list[bytes] = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    async def end(self) -> None:
        """Tell the application that nobody listens any more, and wait for its end."""
        self._gone.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self._sent.put_nowait(message)


def user() -> str:
    """Who the audit log names: the one who is logged in here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _scope(method: str, target: str, headers: Mapping[str, str]) -> dict[str, Any]:
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
    }
