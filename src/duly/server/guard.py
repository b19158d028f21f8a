"""Checks every request before it is routed: host, origin, size and depth."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.endpoints.dispatch import MAX_BODY as MAX_CALL
from duly.server.answers import ErrorBody, unreadable
from duly.server.refusals import PageFor, no_page, refusal

MAX_BODY = 1 << 20
CALLS = ("/api/v1/jobs", "/api/v1/dispatch/")
"""Paths whose bodies hold job arguments and may be longer."""
MAX_DIGITS = 20
READ_SECONDS = 30.0
"""A body must arrive within this time."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

AMBIGUOUS_LENGTH = "ambiguous_length"

_HOST = re.compile(r"(\[[^]]*\]|[^:\[\]]*)(?::\d*)?")


class Guard:
    """Refuses requests that no legitimate client sends, and adds the security headers."""

    def __init__(
        self,
        inner: ASGIApp,
        hosts: Collection[str] | None,
        unread: Callable[[str], bool] = lambda path: False,
        page_for: PageFor = no_page,
    ) -> None:
        """`unread`: paths whose routes read the body themselves."""
        self._inner = inner
        self._unread = unread
        self._page_for = page_for
        self._hosts = None if hosts is None else frozenset(map(_name, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        send = _with_headers(send)
        headers = Headers(scope=scope)
        refused = self._refuse(scope, headers)
        if refused is None and scope["method"] not in SAFE and not self._unread(_path(scope)):
            most = MAX_CALL if _path(scope).startswith(CALLS) else MAX_BODY
            body, refused = await _read_in_time(headers, receive, most)
            receive = _replay(body, receive)
        if refused is not None:
            status, code, message = refused
            page = self._page_for(Request(scope), status, message)
            answer = page or refusal(status, ErrorBody(code=code, message=message))
            if code == AMBIGUOUS_LENGTH:
                answer.headers["Connection"] = "close"
            await answer(scope, receive, send)
            return
        await self._inner(scope, receive, send)

    def _refuse(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        if self._hosts is not None and _name(headers.get("host", "")) not in self._hosts:
            return 421, "wrong_host", "this server does not accept that host name"
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
            return 400, "bad_request", "a URL must not contain NUL characters"
        if "content-length" in headers and "transfer-encoding" in headers:
            # If a proxy trusts one of them and this server the other, they disagree on where the
            # next request starts (request smuggling).
            reason = "send Content-Length or Transfer-Encoding, not both"
            return 400, AMBIGUOUS_LENGTH, reason
        if scope["method"] not in SAFE and _is_foreign(headers):
            return 403, "cross_site", "requests from pages on other sites are refused"
        return None


def _path(scope: Scope) -> str:
    """The path below the mount path."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root else path


def _name(host: str) -> str:
    """The host without its port; an IPv6 address in brackets, as in a Host header."""
    host = host.strip().lower()
    found = _HOST.fullmatch(host)
    return found[1] if found else f"[{host}]"


def _is_foreign(headers: Headers) -> bool:
    """Whether the browser says that a page from another origin sends the request."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False
    return origin.partition("://")[2].lower() != headers.get("host", "").lower()


async def _read_in_time(
    headers: Headers, receive: Receive, most: int
) -> tuple[bytes, tuple[int, str, str] | None]:
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await _read(headers, receive, most)
    except TimeoutError:
        return b"", (408, "too_slow", f"the body did not arrive within {READ_SECONDS:g} seconds")


async def _read(
    headers: Headers, receive: Receive, most: int
) -> tuple[bytes, tuple[int, str, str] | None]:
    too_large = (413, "too_large", f"the body is larger than {most:,} bytes")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > MAX_DIGITS or int(declared) > most):
        return b"", too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"", (400, "disconnected", "the body is incomplete")
        body += message.get("body", b"")
        if len(body) > most:
            return b"", too_large
        if not message.get("more_body", False):
            break
    # Counting the brackets of a long body takes a while and must not block other requests.
    return await asyncio.to_thread(_checked, body) if len(body) > MAX_BODY else _checked(body)


def _checked(body: bytearray) -> tuple[bytes, tuple[int, str, str] | None]:
    refused = unreadable(body)
    return (b"", refused) if refused else (bytes(body), None)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that supplies the body again after it has been read."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if message["status"] == 408:
                # The rest of the request is not read.
                headers.setdefault("Connection", "close")
        await send(message)

    return sending
