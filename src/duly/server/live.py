"""Streams of live events, which end when the client is no longer allowed to read them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable
from typing import Any

from fastapi import Request
from starlette.responses import StreamingResponse

from duly.errors import StoreError
from duly.model.access import Principal
from duly.server.answers import Refused
from duly.server.api.events import stopped
from duly.server.auth import authenticator_of

log = logging.getLogger(__name__)

CHECK_SECONDS = 15.0
"""For at most this long, a client that has lost its access still receives events."""


def streamed(
    request: Request, who: Principal, stream: AsyncGenerator[str], media: str
) -> StreamingResponse:
    headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    return StreamingResponse(
        _while_allowed(stream, request, who), media_type=media, headers=headers
    )


async def _while_allowed(
    stream: AsyncGenerator[str], request: Request, who: Principal
) -> AsyncGenerator[str]:
    """The stream, while its request would still be accepted for the same principal."""
    refused = asyncio.ensure_future(_refused(request, who))
    try:
        async with contextlib.aclosing(stream) as texts:
            while (text := await _unless(refused, anext(texts, None))) is not None:
                yield text
    finally:
        await stopped(refused)


async def _unless(refused: asyncio.Future[None], text: Awaitable[str | None]) -> str | None:
    coming = asyncio.ensure_future(text)
    either: set[asyncio.Future[Any]] = {coming, refused}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return None if refused.done() else coming.result()
    finally:
        await stopped(coming)


async def _refused(request: Request, who: Principal) -> None:
    """Returns when the stream's request would no longer be accepted."""
    authenticator = authenticator_of(request)
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            if await authenticator.who(request) != who:
                return
        except Refused:
            return
        except StoreError as error:
            # Without a database there are no events either.
            log.warning("live events: %s; checking access again", error)
