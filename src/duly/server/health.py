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
"""Everybody may ask whether it is ready; the database is asked no more often than this."""
ANSWER_SECONDS = 2.0
"""A database that has not answered by then hangs."""
HANGING_REPORT = HealthReport(
    False, False, ticking=False, warnings=("no database: it does not answer",)
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
    """Looks for everybody who asks, one look at a time, in a thread of its own.

    A database that hangs holds that thread, and keeps nobody else waiting.
    """

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._guard = threading.Lock()
        self._began_at = 0.0
        self._coming: Future[T] | None = None

    async def __call__(self) -> T:
        """What the next look gives, or the one under way; TimeoutError if that takes long."""
        with self._guard:
            coming = self._coming
            if coming is None or coming.done():
                coming = self._coming = self._begin()
            left = self._began_at + ANSWER_SECONDS - os_monotonic()
        async with asyncio.timeout(max(left, 0)):
            return await asyncio.wrap_future(coming)

    def _begin(self) -> Future[T]:
        coming: Future[T] = Future()
        # Nobody who stops waiting stops it.
        coming.set_running_or_notify_cancel()
        self._began_at = os_monotonic()

        def look() -> None:
            try:
                coming.set_result(self._look())
            except BaseException as error:
                coming.set_exception(error)

        # Not of a pool, whose threads would keep a process with a database that hangs from ending.
        threading.Thread(target=look, name="duly-health", daemon=True).start()
        return coming


class Readiness:
    """Whether the app is ready, as of a moment ago, and what it measures."""

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
        """What is measured, as Prometheus reads it."""
        try:
            return await self._measured()
        except TimeoutError:
            return down_text()


async def _metrics(request: Request) -> Response:
    text = await served(request).readiness.measures()
    return Response(text, media_type=CONTENT_TYPE)


async def _answering(request: Request) -> None:
    """Before anything asks the database who it is that asks, and hangs with it."""
    if not (await served(request).readiness.look()).database:
        message = "the database does not answer"
        raise Refused(503, "unavailable", message, headers={"Retry-After": "5"})


def health_router(*, metrics_open: bool) -> APIRouter:
    """The routes, with metrics for those who may read, or for everybody."""
    router = APIRouter(tags=["health"], route_class=ScopedRoute)

    readiness = model_of(Ready)

    @router.get("/healthz", name="alive", response_model=model_of(Ok))
    async def healthz() -> Answer:
        """Whether the process answers."""
        return Answer(Ok(ok=True))

    @router.get(
        "/readyz", name="ready", response_model=readiness, responses={503: {"model": readiness}}
    )
    async def readyz(request: Request) -> Answer:
        """Whether the database can be used and due schedules are ticked; 503 if not."""
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
            """What is measured, as Prometheus reads it."""
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
            """What is measured, as Prometheus reads it."""
            require_all_owners(who)
            return await _metrics(request)

    return router
