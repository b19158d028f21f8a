"""The app's API in this process: without a server, and with every scope.

Operations are called as plain functions (`duly.server.api.operation`), so no web framework is
loaded and, except for streams, no event loop.
"""

from __future__ import annotations

import getpass
from collections.abc import Generator, Mapping
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin
from urllib.parse import parse_qs, unquote

import msgspec

from duly.app import Duly
from duly.cli.api import BASE, Api, Reply, refusal
from duly.model.access import Principal, Scope
from duly.server.answers import (
    ErrorAnswer,
    Refused,
    Shape,
    encoded,
    error_of,
    misfit,
    unreadable,
)
from duly.server.api import MODULES, operations_of
from duly.server.api.operation import Operation, Stream, Text, header_of, kind_of, scope_of
from duly.server.api.repeatable import KEY, Repeatable

if TYPE_CHECKING:
    import asyncio


class Request(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def operation(self) -> tuple[Operation, dict[str, str]]:
        """The operation for this request, and the parameters in its path."""
        path = [unquote(part) for part in self.path.removeprefix(f"{BASE}/").split("/")]
        for operation in operations_of(path[0]) if path[0] in MODULES else ():
            if (named := operation.match(self.method, path)) is not None:
                return operation, named
        raise Refused(404, "not_found", "Not Found")


class Local(Api):
    """Calls an app's operations directly."""

    def __init__(self, app: Duly) -> None:
        app.ready()
        self.where = f"app {app.name!r}"
        self._app = app
        self._me = Principal(user(), frozenset(Scope))

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        try:
            status, answer = self._answer(Request(method, target, headers, body))
        except Exception as error:
            return _refused(error)
        if answer is None:
            return Reply(status, b"")
        return Reply(
            status, answer.content.encode() if isinstance(answer, Text) else encoded(answer)
        )

    def stream(self, target: str) -> Generator[bytes]:
        import asyncio

        try:
            _, stream = self._answer(Request("GET", target, {}, b""))
        except Exception as error:
            raise refusal(_refused(error), self.where) from error
        with asyncio.Runner() as runner:
            try:
                while (text := _wait(runner, stream)) is not None:
                    yield from text.encode().splitlines(keepends=True)
            finally:
                runner.run(stream.aclose())

    def close(self) -> None:
        self._app.close()

    def _answer(self, request: Request) -> tuple[int, Any]:
        """Find the operation, convert its arguments and call it."""
        operation, named = request.operation()
        query = parse_qs(request.target.partition("?")[2], keep_blank_values=True)
        once = Repeatable(
            self._app, f"{request.method} {unquote(request.path)}", request.headers.get(KEY)
        )
        given: dict[str, Any] = {}
        for parameter, hint in operation.parameters:
            kind, name = kind_of(hint), parameter.name
            if kind is Duly:
                given[name] = self._app
            elif scope_of(hint) is not None:
                given[name] = self._me
            elif kind is Repeatable:
                given[name] = once
            elif name in named:
                given[name] = named[name]
            elif isinstance(kind, type) and issubclass(kind, Shape):
                given[name] = _body(request.body, kind, parameter)
            elif header_of(hint) is None and name in query:
                values = query[name] if _is_list(kind) else query[name][-1]
                given[name] = _converted(values, hint, name)
            elif parameter.default is Parameter.empty:
                raise Refused(422, "invalid", f"{name}: Field required", field=name)
        answer = operation.function(**given)
        return 200 if once.made_before else operation.status, answer


def _body(body: bytes, kind: type[Shape], parameter: Parameter) -> Any:
    if not body and parameter.default is not Parameter.empty:
        return parameter.default
    if (fault := unreadable(body)) is not None:
        raise Refused(*fault)
    return _converted(msgspec.json.decode(body or b"{}"), kind)


def _converted(value: Any, hint: Any, name: str = "") -> Any:
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, name) from None


def _is_list(kind: Any) -> bool:
    kinds = (kind, *get_args(kind))
    return any(get_origin(kind_of(each)) is list for each in kinds)


def _refused(error: Exception) -> Reply:
    said = error_of(error)
    if said is None:
        raise error
    return Reply(said.status, encoded(ErrorAnswer(said.body)))


def _wait(runner: asyncio.Runner, stream: Stream) -> str | None:
    """The next part of a stream. Ctrl-C cancels the wait and is raised after it has ended."""
    import asyncio

    async def following() -> str | None:
        return await anext(stream, None)

    try:
        return runner.run(following())
    except (KeyboardInterrupt, asyncio.CancelledError):
        # If it came when the work was already done, the loop's stop callback is still pending and
        # would stop the next run. If it came before the work had started, the runner has created
        # the task but not run it. Run the loop until both are settled.
        loop = runner.get_loop()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.call_soon(loop.stop)
        loop.run_forever()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        raise KeyboardInterrupt from None


def user() -> str:
    """The name for the audit log: the logged-in user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
