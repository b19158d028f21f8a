"""Limits requests that wait for other services, so that they do not use up the server's threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated, TypeVar

import anyio.to_thread
from fastapi import Depends, Request

from duly.server.answers import Refused
from duly.server.state import served

T = TypeVar("T")

THREADS = 16
MAX_PER_SUBJECT = 8
"""The most requests that may wait for one gateway, which leaves room for the others."""
MAX_VIEWS = 64


class SlowRequests:
    """Threads for calls that may hang, separate from those that use the database."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(THREADS)
        self._waiting: Counter[str] = Counter()

    async def __call__(self, subject: str, ask: Callable[[], T], most: int = MAX_PER_SUBJECT) -> T:
        """The result of `ask`; 503 immediately if too many requests wait for the same subject."""
        if self._waiting[subject] >= most:
            raise Refused(
                503,
                "busy",
                "too many requests are already waiting for gateways",
                hint="try again later",
                headers={"Retry-After": "5"},
            )
        self._waiting[subject] += 1
        try:
            return await anyio.to_thread.run_sync(ask, limiter=self._threads)
        finally:
            self._waiting[subject] -= 1
            if not self._waiting[subject]:
                del self._waiting[subject]


async def _patience(request: Request) -> SlowRequests:
    """This server's instance; it belongs to the event loop that serves."""
    server = served(request)
    if server.patience is None:
        server.patience = SlowRequests()
    return server.patience


Waiting = Annotated[SlowRequests, Depends(_patience)]
