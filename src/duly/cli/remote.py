"""The API of a remote server, with a token."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Generator, Mapping
from urllib.parse import SplitResult, urlsplit

from duly.cli.api import Api, ApiError, Reply, refusal
from duly.errors import InvalidOption, without_password

TIMEOUT = 30.0
QUIET = 45.0
"""The server sends something on every stream at least every 15 seconds."""
HINT = "check that `duly serve` is running and that --url is its address"


class Remote(Api):
    """Opens a connection for each request: a command makes only a few."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = _checked(url)
        self.where = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {_printable(token)}"

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        connection = self._connect(TIMEOUT)
        try:
            answer = self._answer(connection, method, target, headers, body)
            return Reply(answer.status, self._read(answer))
        finally:
            connection.close()

    def stream(self, target: str) -> Generator[bytes]:
        connection = self._connect(QUIET)
        try:
            answer = self._answer(connection, "GET", target, {}, b"")
            if answer.status >= 400:
                raise refusal(Reply(answer.status, self._read(answer)), self.where)
            while line := self._line(answer):
                yield line
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _answer(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> http.client.HTTPResponse:
        try:
            every = {**self._headers, **headers}
            connection.request(method, self._prefix + target, body or None, every)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise self._unreachable(error) from error
        if 300 <= answer.status < 400:
            to = answer.getheader("Location", "elsewhere")
            raise ApiError(f"{self.where} redirects to {to}", hint="set --url to that address")
        return answer

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _line(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.readline()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ApiError:
        if isinstance(error, TimeoutError):
            reason = "it did not respond in time"
        elif isinstance(error, socket.gaierror):
            reason = f"there is no host {self._host!r}"
        elif isinstance(error, UnicodeError | http.client.InvalidURL):
            reason = "that is not a valid address"
        elif isinstance(error, ssl.SSLError):
            reason = f"TLS failed: {error.reason or error}"
        else:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ApiError(f"cannot reach {self.where}: {reason}", hint=HINT)


def _checked(url: str) -> SplitResult:
    hint = "give a server's address, such as http://127.0.0.1:8484"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidOption(
            "--url", f"{without_password(url)!r} is not a valid address; {hint}"
        ) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidOption("--url", f"{without_password(url)!r} is not a server's address; {hint}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidOption("--url", f"may only contain a scheme, host, port and path; {hint}")
    return parts


def _printable(token: str) -> str:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidOption("--token", "is not a token; create one with `duly tokens create`")
    return token
