"""The HTTP API as commands call it, over the network or in this process.

Every command except those that start processes is written once, against the API. It therefore does
the same for a local app and for a remote server, follows the same rules and prints the same JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from duly.errors import DulyError

BASE = "/api/v1"
PAGE = 200
UNEXPECTED_JSON = "the JSON it sent is not of the expected form"


class ApiError(DulyError):
    """The API refused a request; `hint` says what to do."""

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.hint = status, code, hint


class Reply(NamedTuple):
    """An unparsed response."""

    status: int
    body: bytes


class Event(NamedTuple):
    """A live event: job, tick, change or gap."""

    name: str
    data: Any


class Api(ABC):
    """The requests that commands make.

    `path` has a `{}` for each of `names`, which may be any text: `get("/jobs/{}/logs", job_id)`.
    """

    where: str
    """The server or app that answers, for messages."""

    @abstractmethod
    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a request and return the response."""

    @abstractmethod
    def stream(self, target: str) -> Generator[bytes]:
        """The lines of a streaming response."""

    def get(self, path: str, *names: str, **query: Any) -> Any:
        return self._demand(dict, self._ask("GET", _target(path, names, query)))

    def items(self, path: str, *names: str, **query: Any) -> list[Any]:
        """The items of a list that is not paged."""
        found: list[Any] = self._demand(list, self._ask("GET", _target(path, names, query)))
        return found

    def post(self, path: str, *names: str, body: Any = None, key: str | None = None) -> Any:
        return self._ask("POST", _target(path, names), body, key)

    def patch(self, path: str, *names: str, body: Any) -> Any:
        return self._ask("PATCH", _target(path, names), body)

    def put(self, path: str, *names: str, body: Any) -> Any:
        return self._ask("PUT", _target(path, names), body)

    def delete(self, path: str, *names: str) -> Any:
        return self._ask("DELETE", _target(path, names))

    def text(self, path: str, **query: Any) -> str:
        """A response that is not JSON."""
        return self._sent("GET", _target(path, (), query), {}, b"").decode()

    def pages(
        self, path: str, *names: str, most: int | None = None, cursor: str = "after", **query: Any
    ) -> Iterator[Any]:
        """The items of all pages of a list, up to `most`.

        `cursor` is the query parameter that asks for the next page.
        """
        left = most
        following: str | None = None
        while left is None or left > 0:
            limit = PAGE if left is None else min(left, PAGE)
            more = {} if following is None else {cursor: following}
            page: dict[str, Any] = self.get(path, *names, **query, **more, limit=limit)
            if not {"items", "next"} <= page.keys():
                raise stranger(self.where, UNEXPECTED_JSON)
            yield from page["items"]
            following = page["next"]
            if following is None:
                return
            left = None if left is None else left - len(page["items"])

    def events(self, **query: Any) -> Generator[Event]:
        """Live events, until the caller stops iterating."""
        return read_events(self.stream(_target("/events", (), query)), self.where)

    def _ask(self, method: str, target: str, body: Any = None, key: str | None = None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        content = b"" if body is None else msgspec.json.encode(body)
        if body is not None:
            headers["Content-Type"] = "application/json"
        answer = self._sent(method, target, headers, content)
        return decoded(answer, self.where) if answer else None

    def _demand(self, kind: type[Any], answer: Any) -> Any:
        if not isinstance(answer, kind):
            raise stranger(self.where, UNEXPECTED_JSON)
        return answer

    def _sent(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        reply = self.send(method, target, headers, body)
        if reply.status >= 400:
            raise refusal(reply, self.where)
        return reply.body


def decoded(text: bytes | str, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise stranger(where, "the response is not JSON") from error


def refusal(reply: Reply, where: str) -> ApiError:
    """The error in the response to a refused request."""
    try:
        error = msgspec.json.decode(reply.body)["error"]
        message, code, hint = str(error["message"]), str(error["code"]), error["hint"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return stranger(where, f"status {reply.status} without an error message", reply.status)
    said = hint if isinstance(hint, str) else None
    return ApiError(message, status=reply.status, code=code, hint=said)


def stranger(where: str, how: str, status: int = 0) -> ApiError:
    """The error for a response that does not come from duly."""
    return ApiError(
        f"{where} does not look like a duly server: {how}",
        status=status,
        hint="set --url to the address of `duly serve`, including any path prefix",
    )


def read_events(lines: Generator[bytes], where: str) -> Generator[Event]:
    """Parse server-sent events."""
    name, data = "message", ""
    try:
        for line in lines:
            field, _, value = line.decode().rstrip("\r\n").partition(":")
            if field == "event":
                name = value.strip()
            elif field == "data":
                data += value.strip()
            elif not field and not value and data:
                yield Event(name, decoded(data, where))
                name, data = "message", ""
    finally:
        lines.close()


def _target(path: str, names: tuple[str, ...], query: Mapping[str, Any] | None = None) -> str:
    filled = path.format(*(quote(name, safe="") for name in names))
    given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
    return f"{BASE}{filled}?{urlencode(given, doseq=True)}" if given else f"{BASE}{filled}"


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
