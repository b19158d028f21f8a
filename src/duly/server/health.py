"""/healthz, /readyz and /metrics: for those who watch over the process."""

from __future__ import annotations

import threading

from fastapi import APIRouter, Request, Response

from duly.app import Duly
from duly.health import HealthReport
from duly.metrics import CONTENT_TYPE, metrics_text
from duly.server.answers import Answer, Shape
from duly.server.api.common import App
from duly.server.auth import Reader, ScopedRoute, everybodys
from duly.server.served import served

FRESH_SECONDS = 1.0
"""Everybody may ask whether it is ready; the database is asked no more often than this."""


class Ok(Shape):
    ok: bool


class Checks(Shape):
    database: bool
    tables: bool
    schedules: bool


class Ready(Shape):
    ready: bool
    checks: Checks


class Readiness:
    """Whether the app is ready, as of a moment ago."""

    def __init__(self, app: Duly) -> None:
        self._app = app
        self._guard = threading.Lock()
        self._seen: tuple[float, HealthReport] | None = None

    def look(self) -> HealthReport:
        with self._guard:
            now = self._app.clock.monotonic()
            if self._seen is None or now - self._seen[0] >= FRESH_SECONDS:
                self._seen = now, self._app.health(depths=False)
            return self._seen[1]


def health_router(*, metrics_open: bool) -> APIRouter:
    """The routes, with metrics for those who may read, or for everybody."""
    router = APIRouter(tags=["health"], route_class=ScopedRoute)

    @router.get("/healthz", name="alive")
    async def healthz() -> Ok:
        """Whether the process answers."""
        return Ok(ok=True)

    @router.get("/readyz", name="ready", response_model=Ready, responses={503: {"model": Ready}})
    def readyz(request: Request) -> Answer:
        """Whether the database can be used and due schedules are ticked; 503 if not."""
        report = served(request).readiness.look()
        checks = Checks(database=report.database, tables=report.schema, schedules=report.ticking)
        answer = Ready(ready=report.ready, checks=checks)
        return Answer(answer.model_dump(), 200 if report.ready else 503)

    text: dict[int | str, dict[str, object]] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
    }
    if metrics_open:

        @router.get("/metrics", name="metrics", response_class=Response, responses=text)
        def open_metrics(app: App) -> Response:
            """What is measured, as Prometheus reads it."""
            return Response(metrics_text(app.core), media_type=CONTENT_TYPE)

    else:

        @router.get("/metrics", name="metrics", response_class=Response, responses=text)
        def metrics(app: App, who: Reader) -> Response:
            """What is measured, as Prometheus reads it."""
            everybodys(who)
            return Response(metrics_text(app.core), media_type=CONTENT_TYPE)

    return router
