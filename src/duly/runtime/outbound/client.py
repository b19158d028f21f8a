"""Sends one POST: the host is looked up once and checked, and a deadline ends the request.

Built on the standard library: a client that follows redirects, reads proxies from the environment
or looks up hosts itself would have to be prevented from each of these.
"""

from __future__ import annotations

import io
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from duly.clock import os_monotonic
from duly.errors import AddressRefused, DeliveryFailed, InvalidOption
from duly.runtime.outbound.rules import Allow, read_address
from duly.runtime.outbound.url import Target, parse_url

if TYPE_CHECKING:
    import http.client

    from _typeshed import ReadableBuffer, WriteableBuffer

MAX_ANSWER = 64 * 1024
"""How much of an answer is kept; the rest is not read."""

Resolve = Callable[..., Sequence[Any]]
FoundAddress = tuple[int, Any]
"""An address family, and what a socket of it connects to."""

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x20-\x7e\t]*")
# Headers that say where a message ends and whom it is for are set by duly only.
_OURS = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "te", "trailer"),
        *("upgrade", "expect", "keep-alive", "proxy-connection", "proxy-authorization"),
        *("content-type", "accept-encoding"),
    }
)


class Answer(msgspec.Struct, frozen=True):
    """The response of an address."""

    status: int
    body: str
    """As text, of at most 64 KiB."""
    ms: int
    """How long it took."""
    retry_after: str | None = None
    """The `Retry-After` of the response, as sent."""


class Client:
    """Sends to public addresses, and to those that `allow` permits."""

    def __init__(
        self,
        allow: Allow | None = None,
        *,
        resolve: Resolve = socket.getaddrinfo,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.allow = allow or Allow()
        self.tls = tls
        self.resolve = resolve

    def check(self, url: str) -> Target:
        """Check an address without looking it up. Raises AddressRefused."""
        target = parse_url(url)
        self.allow.check_literal(target)
        return target

    def post(self, url: str, body: bytes, headers: Mapping[str, str], *, seconds: float) -> Answer:
        """POST JSON.

        Raises AddressRefused if it may not be sent, DeliveryFailed without a response.
        """
        began = os_monotonic()
        target = self.check(url)
        for name, value in headers.items():
            check_header(name, value)
        request = _Request(target, body, dict(headers), began + seconds)
        try:
            answer = self._exchange(request)
        except AddressRefused:
            raise
        except TimeoutError:
            raise DeliveryFailed(f"no response within {seconds:g} s") from None
        except (OSError, ValueError) as error:
            # Not a chain: the error may quote the request.
            raise DeliveryFailed(_reason(error)) from None
        ms = round((os_monotonic() - began) * 1000)
        return msgspec.structs.replace(answer, ms=ms)

    def _exchange(self, request: _Request) -> Answer:
        import http.client  # with the email package, which most processes do not need

        found = self._checked(request)
        raw = _connected(found, request)
        try:
            channel = _Channel(self._secured(raw, request), request)
        except BaseException:
            raw.close()
            raise
        connection = http.client.HTTPConnection(request.target.host, request.target.port)
        connection.sock = channel
        try:
            return _ask(connection, request)
        except http.client.HTTPException as error:
            raise DeliveryFailed(_reason(error)) from None
        finally:
            connection.close()
            channel.end()

    def _checked(self, request: _Request) -> list[FoundAddress]:
        """The addresses of the host, all of which may be sent to."""
        target = request.target
        if target.address is not None:
            family = socket.AF_INET if target.address.version == 4 else socket.AF_INET6
            return [(family, (str(target.address), target.port))]
        found: list[FoundAddress] = []
        for family, _, _, _, where in self._look_up(request):
            if family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if family == socket.AF_INET6 and len(where) > 3 and where[3]:
                raise AddressRefused(f"{target.host} resolves to an address with a zone")
            address = read_address(where[0])
            self.allow.check(target, address)
            found.append((family, (str(address), target.port)))
        if not found:
            raise DeliveryFailed(f"{target.host} has no address")
        return found

    def _look_up(self, request: _Request) -> Sequence[Any]:
        """Ask the resolver, which has its own timeouts, but for no longer than the time left."""
        target = request.target
        answers: list[Sequence[Any]] = []
        faults: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(self.resolve(target.host, target.port, type=socket.SOCK_STREAM))
            except Exception as error:
                faults.append(error)

        thread = threading.Thread(target=ask, name="duly-resolve", daemon=True)
        thread.start()
        thread.join(request.left())
        if faults:
            raise faults[0]
        if not answers:
            raise TimeoutError
        return answers[0]

    def _secured(self, raw: socket.socket, request: _Request) -> socket.socket:
        if request.target.scheme == "http":
            return raw
        context = self.tls or ssl.create_default_context()
        secured = context.wrap_socket(
            raw, server_hostname=request.target.host, do_handshake_on_connect=False
        )
        try:
            secured.settimeout(request.left())
            secured.do_handshake()
        except BaseException:
            # The raw socket is already detached.
            secured.close()
            raise
        return secured


class _Request:
    """The request to send, and its deadline."""

    def __init__(self, target: Target, body: bytes, headers: dict[str, str], until: float) -> None:
        self.target = target
        self.body = body
        self.headers = headers
        self._until = until

    def left(self) -> float:
        """How many seconds are left. Raises TimeoutError if there are none."""
        left = self._until - os_monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Channel:
    """A socket as http.client uses it, with one deadline for everything together."""

    def __init__(self, sock: socket.socket, request: _Request) -> None:
        self._sock = sock
        self._request = request

    def sendall(self, data: ReadableBuffer) -> None:
        left = memoryview(data).cast("B")
        while left:
            self._sock.settimeout(self._request.left())
            left = left[self._sock.send(left) :]

    def receive(self, into: WriteableBuffer) -> int:
        self._sock.settimeout(self._request.left())
        return self._sock.recv_into(into)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Stream(self))

    def close(self) -> None:
        """Called before the response is read; `end` comes after that."""

    def end(self) -> None:
        self._sock.close()


class _Stream(io.RawIOBase):
    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._channel.receive(buffer)


def _connected(found: Sequence[FoundAddress], request: _Request) -> socket.socket:
    """A connection to the first of the checked addresses that accepts one."""
    fault: OSError | None = None
    for tried, (family, where) in enumerate(found):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            # An address that does not answer leaves the others their share of the time.
            sock.settimeout(request.left() / (len(found) - tried))
            sock.connect(where)
        except OSError as error:
            sock.close()
            fault = error
        else:
            return sock
    assert fault is not None
    raise fault


def _ask(connection: http.client.HTTPConnection, request: _Request) -> Answer:
    target = request.target
    connection.putrequest("POST", target.path, skip_host=True)
    ours = {
        "Host": target.authority,
        "Content-Type": "application/json",
        "Content-Length": str(len(request.body)),
        "Connection": "close",
    }
    for name, value in (ours | request.headers).items():
        connection.putheader(name, value)
    connection.endheaders(request.body)
    answer = connection.getresponse()
    text = _some_of(answer).decode("utf-8", "replace").replace("\0", "�")
    return Answer(answer.status, text, 0, answer.headers.get("Retry-After"))


def _some_of(answer: http.client.HTTPResponse) -> bytes:
    """The first part of a body. The status has arrived, so an error here is not reported."""
    import http.client

    kept = bytearray()
    with suppress(OSError, http.client.HTTPException, ValueError):
        while len(kept) < MAX_ANSWER and (part := answer.read1(MAX_ANSWER - len(kept))):
            kept += part
    return bytes(kept)


def check_header(name: str, value: str) -> None:
    """Refuse values that would end a header and start something else. The value is not repeated."""
    if not _NAME.fullmatch(name):
        raise InvalidOption("headers", f"{name!r} is not a valid header name")
    if name.lower() in _OURS:
        raise InvalidOption("headers", f"{name} is set by duly")
    if not _VALUE.fullmatch(value):
        raise InvalidOption("headers", f"the value of {name} has non-ASCII characters")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate was not accepted: {error.verify_message}"
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return text[:500]
