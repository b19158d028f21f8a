"""The API of an app in this process: no socket, and whoever started the command may do all."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Generator, Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

from duly.app import Duly
from duly.cli.api import Api, Reply, refusal
from duly.errors import MissingExtra
from duly.model.access import Principal, Scope


class Local(Api):
    """Asks an app's ASGI application, on an event loop of its own."""

    def __init__(self, app: Duly) -> None:
        if find_spec("fastapi") is None:
            raise MissingExtra("server", "operating an app from the command line")
        app.ready()
        me = Principal(user(), frozenset(Scope))
        self.where = f"app {app.name!r}"
        self._app = app
        self._asgi = app.asgi(auth=lambda _: me, only={"api"})
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_unless_interrupted)

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        return self._loop.run_until_complete(self._whole(method, target, headers, body))

    def stream(self, target: str) -> Generator[bytes]:
        answer = _Answer(self._asgi, _scope("GET", target, {}), b"")
        wait = self._loop.run_until_complete
        try:
            if wait(answer.begin(self._loop)) >= 400:
                raise refusal(Reply(answer.status, wait(answer.rest())), self.where)
            rest = b""
            while chunk := wait(answer.chunk()):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line + b"\n" for line in lines)
        finally:
            wait(answer.end())

    def close(self) -> None:
        self._loop.run_until_complete(self._give_up())
        self._loop.close()
        self._app.close()

    async def _give_up(self) -> None:
        """End what Ctrl-C has left."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _whole(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        answer = _Answer(self._asgi, _scope(method, target, headers), body)
        try:
            await answer.begin(self._loop)
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

    async def begin(self, loop: asyncio.AbstractEventLoop) -> int:
        self._task = loop.create_task(self._asgi(self._scope, self._receive, self._send))
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


def _unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ctrl-C stays in the task that it has hit as well; it is no news there."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


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
