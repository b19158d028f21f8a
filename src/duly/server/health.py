"""/healthz, /readyz and /metrics, for probes and monitoring."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from fastapi import APIRouter, Depends, Request, Response

from duly.app import Duly, operations
from duly.clock import os_monotonic
from duly.observe.health import HealthReport
from duly.observe.metrics import CONTENT_TYPE, down_text
from duly.server.answers import Refused, Shape
from duly.server.api.operation import require_all_owners
from duly.server.auth import Reader, ScopedRoute
from duly.server.refusals import Answer
from duly.server.routes import model_of
from duly.server.state import served

T = TypeVar("T")

FRESH_SECONDS = 1.0
"""Readiness needs no token, so the database is checked at most this often."""
ANSWER_SECONDS = 2.0
"""A database that takes longer is considered hung."""
HANGING_REPORT = HealthReport(
    False, False, ticking=False, warnings=("the database does not respond",)
)


class Ok(Shape):
    ok: bool


class Checks(Shape):
    database: bool
    tables: bool
    schedules: bool


class Ready(Shape):
    ready: bool
    checks: Checks


class SharedLook(Generic[T]):
    """Shares one look at a time, in its own thread, between all requests that wait for it.

    A database that hangs blocks only that thread, and no other requests.
    """

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._guard = threading.Lock()
        self._began_at = 0.0
        self._coming: Future[T] | None = None

    async def __call__(self) -> T:
        """The result of the current or next look; TimeoutError if it takes too long."""
        with self._guard:
            coming = self._coming
            if coming is None or coming.done():
                coming = self._coming = self._begin()
            left = self._began_at + ANSWER_SECONDS - os_monotonic()
        async with asyncio.timeout(max(left, 0)):
            return await asyncio.wrap_future(coming)

    def _begin(self) -> Future[T]:
        coming: Future[T] = Future()
        # A request that stops waiting does not cancel the look.
        coming.set_running_or_notify_cancel()
        self._began_at = os_monotonic()

        def look() -> None:
            try:
                coming.set_result(self._look())
            except BaseException as error:
                coming.set_exception(error)

        # Not a pool thread, which would keep the process from exiting while the database hangs.
        threading.Thread(target=look, name="duly-health", daemon=True).start()
        return coming


class Readiness:
    """Whether the app is ready, cached for a moment, and its metrics."""

    def __init__(self, app: Duly) -> None:
        self._app = app
        self._lookout = SharedLook(lambda: app.health(depths=False))
        self._measured = SharedLook(lambda: operations.metrics_text(app))
        self._seen: tuple[float, HealthReport] | None = None

    async def look(self) -> HealthReport:
        now = self._app.clock.monotonic()
        if self._seen is not None and now - self._seen[0] < FRESH_SECONDS:
            return self._seen[1]
        try:
            report = await self._lookout()
        except TimeoutError:
            return HANGING_REPORT
        self._seen = now, report
        return report

    async def measures(self) -> str:
        """The metrics in Prometheus text format."""
        try:
            return await self._measured()
        except TimeoutError:
            return down_text()


async def _metrics(request: Request) -> Response:
    text = await served(request).readiness.measures()
    return Response(text, media_type=CONTENT_TYPE)


async def _answering(request: Request) -> None:
    """Check the database first, because authentication would hang with it."""
    if not (await served(request).readiness.look()).database:
        message = "the database does not respond"
        raise Refused(503, "unavailable", message, headers={"Retry-After": "5"})


def health_router(*, metrics_open: bool) -> APIRouter:
    """The health routes; `metrics_open` serves metrics without a token."""
    router = APIRouter(tags=["health"], route_class=ScopedRoute)

    readiness = model_of(Ready)

    @router.get("/healthz", name="alive", response_model=model_of(Ok))
    async def healthz() -> Answer:
        """Check that the process responds."""
        return Answer(Ok(ok=True))

    @router.get(
        "/readyz", name="ready", response_model=readiness, responses={503: {"model": readiness}}
    )
    async def readyz(request: Request) -> Answer:
        """Check that the database works and due ticks are being processed; 503 if not."""
        report = await served(request).readiness.look()
        checks = Checks(database=report.database, tables=report.schema, schedules=report.ticking)
        answer = Ready(ready=report.ready, checks=checks)
        return Answer(answer, 200 if report.ready else 503)

    text: dict[int | str, dict[str, object]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
    }
    if metrics_open:

        @router.get("/metrics", name="metrics", response_class=Response, responses=text)
        async def open_metrics(request: Request) -> Response:
            """The metrics in Prometheus text format."""
            return await _metrics(request)

    else:

        @router.get(
            "/metrics",
            name="metrics",
            response_class=Response,
            responses=text,
            dependencies=[Depends(_answering)],
        )
        async def metrics(request: Request, who: Reader) -> Response:
            """The metrics in Prometheus text format."""
            require_all_owners(who)
            return await _metrics(request)

    return router
