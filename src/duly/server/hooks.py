"""The webhook routes: read the raw body up to its limit, and respond tersely."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duly.app import operations
from duly.errors import StoreError
from duly.server.guard import READ_SECONDS
from duly.webhooks import Received

if TYPE_CHECKING:
    from duly.app import Duly

log = logging.getLogger(__name__)

CODES = {
    400: "bad_request",
    401: "unauthorized",
    404: "not_found",
    408: "too_slow",
    413: "too_large",
    500: "not_configured",
    503: "unavailable",
}


def routes(app: Duly) -> list[Route]:
    """`POST /hooks/{name}`, and the own paths of the webhooks declared so far."""

    def own(name: str) -> Callable[[Request], object]:
        async def receive(request: Request) -> Response:
            return await _receive(app, name, request)

        return receive

    async def by_name(request: Request) -> Response:
        name: str = request.path_params["name"]
        webhook = app.webhooks.declared.get(name)
        if webhook is not None and webhook.path is not None:
            return _answer(Received(404, "there is no such webhook"))
        return await _receive(app, name, request)

    paths = [
        Route(webhook.path, own(webhook.name), methods=["POST"])
        for webhook in app.webhooks.declared.values()
        if webhook.path is not None
    ]
    return [*paths, Route("/hooks/{name}", by_name, methods=["POST"])]


def paths(app: Duly) -> Callable[[str], bool]:
    """A test for the paths of webhooks, which read their bodies themselves."""

    def is_hook(path: str) -> bool:
        own = (webhook.path for webhook in app.webhooks.declared.values())
        return path.startswith("/hooks/") or path in own

    return is_hook


async def _receive(app: Duly, name: str, request: Request) -> Response:
    webhook = app.webhooks.declared.get(name)
    if webhook is None:
        return _answer(Received(404, "there is no such webhook"))
    body = await _body(request, webhook.max_bytes)
    if isinstance(body, Received):
        return _answer(app.webhooks.counted(name, body))
    headers = [
        (key.decode("latin-1"), value.decode("latin-1")) for key, value in request.headers.raw
    ]
    receive = partial(app.webhooks.receive, name, headers, body)
    try:
        received = await operations.in_thread(app, receive)
    except StoreError as error:
        log.warning("webhook %s cannot be stored: %s", name, error)
        received = Received(503, "try again later")
    return _answer(received)


async def _body(request: Request, most: int) -> bytes | Received:
    """The body, or the response that says why it could not be read."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            body = await _read(request, most)
    except ClientDisconnect:
        return Received(400, "the body did not arrive")
    except TimeoutError:
        return Received(408, "the body did not arrive in time")
    return Received(413, "the body is too large") if body is None else body


async def _read(request: Request, most: int) -> bytes | None:
    """The body; None as soon as it exceeds the limit, whatever length was declared."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def _answer(received: Received) -> Response:
    if received.accepted:
        return JSONResponse({"outcome": received.outcome, "event": received.event_id})
    error = {
        "code": CODES[received.status],
        "message": received.outcome,
        "field": None,
        "hint": None,
    }
    headers = {"Retry-After": "30"} if received.status == 503 else None
    return JSONResponse({"error": error}, received.status, headers)
