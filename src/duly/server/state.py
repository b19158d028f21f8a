"""The app that a server serves, and that server's own state.

Servers with the same parts share their routes, which take much longer to build than to call. A
route finds out here which server a request is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.server.auth import Authenticator
    from duly.server.health import Readiness
    from duly.server.slow_requests import SlowRequests

_KEY = "duly.served"
_FOUND = "duly.route"


@dataclass(eq=False, slots=True)
class ServerState:
    app: Duly
    authenticator: Authenticator
    readiness: Readiness
    routes: list[Route]
    """The routes that only this app has."""
    patience: SlowRequests | None = None
    """Created on first use: it belongs to the event loop that serves."""


def served(request: HTTPConnection) -> ServerState:
    """The state of the server that received this request."""
    found: ServerState = request.scope[_KEY]
    return found


def root_of(request: HTTPConnection) -> str:
    """The prefix under which the server is mounted; "" for none."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def serve(what: ServerState, routes: ASGIApp) -> ASGIApp:
    """The routes, with this server's state in the scope of each request."""

    async def serving(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_KEY] = what
        await routes(scope, receive, send)

    return serving


class OwnRoutes(BaseRoute):
    """A placeholder in the shared routes for the app's own routes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        best: tuple[Match, Scope] = Match.NONE, {}
        what: ServerState = scope[_KEY]
        for route in what.routes:
            match, child = route.matches(scope)
            if match.value > best[0].value:
                best = match, {**child, _FOUND: route}
        return best

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route: Route = scope[_FOUND]
        await route.handle(scope, receive, send)
