"""The whole server as one ASGI application, standalone or mounted under any path."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import duly
from duly.app import Duly
from duly.errors import InvalidOption
from duly.model.access import PARTS
from duly.server import hooks
from duly.server.answers import ErrorAnswer
from duly.server.api import all_operations
from duly.server.auth import Auth, Authenticator
from duly.server.dispatch import DOCUMENT, DOCUMENTED_PATH, dispatch_route
from duly.server.guard import Guard
from duly.server.health import Readiness, health_router
from duly.server.refusals import Answer, PageFor, install_errors, no_page
from duly.server.routes import model_of, router_of
from duly.server.state import OwnRoutes, ServerState, serve


def make_asgi(
    app: Duly,
    *,
    auth: Auth = "tokens",
    login: str | None = None,
    only: Collection[str] | None = None,
    hosts: Collection[str] | None = None,
    metrics_open: bool = False,
    read_only: bool = False,
) -> ASGIApp:
    """An ASGI application with the server's parts.

    `auth`: "tokens"; or "open" to let every request in; or a function for requests without a token,
    which receives the request and returns a `Principal` or None. `login`: the application's login
    page, to which browsers without a session are redirected, such as "/login?next={next}". `only`:
    some of dashboard, api, hooks and health. `hosts`: the host names that it answers for; None:
    any. `metrics_open`: serve metrics without a token too. `read_only`: requests may only read;
    webhooks and dispatches are not accepted.
    """
    parts = _parts(only)
    authenticator = Authenticator(app, auth, login=login, read_only=read_only)
    own = [] if read_only else _own_routes(app, parts)
    what = ServerState(app, authenticator, Readiness(app), own)
    inner = serve(what, _routes(parts, metrics_open))
    return Guard(inner, hosts, unread=hooks.paths(app), page_for=_page_for(parts))


# Parts are loaded on demand, because building their routes takes FastAPI half a second.


def _page_for(parts: frozenset[str]) -> PageFor:
    if "dashboard" not in parts:
        return no_page
    from duly.server.dashboard.pages import page_for

    return page_for


def _own_routes(app: Duly, parts: frozenset[str]) -> list[Route]:
    dispatched = [dispatch_route(app)] if "api" in parts else []
    return [*dispatched, *(hooks.routes(app) if "hooks" in parts else [])]


@cache
def _routes(parts: frozenset[str], metrics_open: bool) -> FastAPI:
    """The routes of these parts, shared by every server in the process."""
    server = FastAPI(
        title="duly",
        version=duly.__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        default_response_class=Answer,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
    )
    install_errors(server, _page_for(parts))
    if "api" in parts:
        for operations in all_operations():
            router = router_of(operations)
            server.include_router(router, prefix="/api/v1", responses=_ERRORS)
        server.router.routes.append(_document_route(server))
    if "health" in parts:
        server.include_router(health_router(metrics_open=metrics_open), responses=_ERRORS)
    server.router.routes.append(OwnRoutes())
    if "dashboard" in parts:
        from duly.server import dashboard

        # Last, so that webhooks with their own path take precedence.
        server.include_router(dashboard.router, include_in_schema=False)
    return server


_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "model": model_of(ErrorAnswer),
        "description": "The request failed; the body says why.",
    }
}


def _document_route(server: FastAPI) -> Route:
    """The OpenAPI document, with the path under which the client reached the server."""

    @cache
    def described() -> dict[str, Any]:
        return _completed(server.openapi())

    async def document(request: Request) -> Response:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        return JSONResponse(described() | ({"servers": [{"url": root}]} if root else {}))

    return Route("/api/v1/openapi.json", document)


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    """Add what FastAPI does not know: one more route, and that errors are always JSON."""
    document["paths"][DOCUMENTED_PATH] = DOCUMENT
    error = {"$ref": "#/components/schemas/ErrorAnswer"}
    for operations in document["paths"].values():
        for operation in operations.values():
            default = operation["responses"].get("default")
            if default is not None:
                default["content"] = {"application/json": {"schema": error}}
    return document


def _parts(only: Collection[str] | None) -> frozenset[str]:
    parts = frozenset(PARTS if only is None else only)
    if not parts or parts - set(PARTS):
        raise InvalidOption("only", f"give one or more of {', '.join(PARTS)}, not {only!r}")
    return parts


def _operation_id(route: APIRoute) -> str:
    """The name of the method in a generated client: jobs_create, not create_api_v1_jobs_post."""
    return f"{route.tags[0]}_{route.name}" if route.tags else route.name
