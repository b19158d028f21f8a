"""The whole server as one ASGI application, standalone or mounted under any path."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

import duly
from duly.app import Duly
from duly.errors import InvalidOption
from duly.model.access import PARTS
from duly.server import api as routes
from duly.server import events, hooks
from duly.server.answers import Answer, ErrorAnswer, install_errors
from duly.server.auth import Auth, Doorman
from duly.server.dispatch import DOCUMENT, DOCUMENTED_PATH, dispatch_route
from duly.server.guard import Guard
from duly.server.health import health_router


def make_asgi(
    app: Duly,
    *,
    auth: Auth = "tokens",
    only: Collection[str] | None = None,
    hosts: Collection[str] | None = None,
    metrics_open: bool = False,
) -> ASGIApp:
    """An ASGI application with the server's parts.

    `auth`: "tokens", or a function that is given the request and gives a `Principal` or None for
    those who show no token, or "open" for everybody. `only`: some of api, hooks and health.
    `hosts`: the names that it answers for; None: any. `metrics_open`: show metrics also to those
    who show no token.
    """
    parts = _parts(only)
    server = FastAPI(
        title="duly",
        version=duly.__version__,
        openapi_url="/api/v1/openapi.json" if "api" in parts else None,
        docs_url=None,
        redoc_url=None,
        default_response_class=Answer,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
    )
    server.state.duly = app
    server.state.doorman = Doorman(app, auth)
    install_errors(server)
    if "api" in parts:
        for router in (*routes.ROUTERS, events.router):
            server.include_router(router, prefix="/api/v1", responses=_ERRORS)
        server.router.routes.append(dispatch_route(app))
    _complete_document(server)
    if "health" in parts:
        server.include_router(health_router(app, metrics_open=metrics_open), responses=_ERRORS)
    if "hooks" in parts:
        server.router.routes.extend(hooks.routes(app))
    return Guard(server, hosts, unread=hooks.paths(app))


_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {"model": ErrorAnswer, "description": "It could not be done; says why."}
}


def _complete_document(server: FastAPI) -> None:
    """Say what FastAPI cannot know: errors are JSON also where answers are not; one more route."""
    describe = server.openapi

    def described() -> dict[str, Any]:
        document = describe()
        document["paths"].setdefault(DOCUMENTED_PATH, DOCUMENT)
        error = {"$ref": "#/components/schemas/ErrorAnswer"}
        for operations in document["paths"].values():
            for operation in operations.values():
                default = operation["responses"].get("default")
                if default is not None:
                    default["content"] = {"application/json": {"schema": error}}
        return document

    server.openapi = described  # type: ignore[method-assign]


def _parts(only: Collection[str] | None) -> frozenset[str]:
    parts = frozenset(PARTS if only is None else only)
    if not parts or parts - set(PARTS):
        raise InvalidOption("only", f"give some of {', '.join(PARTS)}, not {only!r}")
    return parts


def _operation_id(route: APIRoute) -> str:
    """jobs_create rather than create_api_v1_jobs_post: the names of a client's methods."""
    return f"{route.tags[0]}_{route.name}" if route.tags else route.name
