"""The app that a server serves, and the state that belongs to that server alone.

Servers of the same parts share their routes, which cost far more to build than to call. A route
finds out for which of them a request came by looking here.
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
    """Those that no other app has."""
    patience: SlowRequests | None = None
    """Made by the first who needs it: it belongs to the event loop that serves."""


def served(request: HTTPConnection) -> ServerState:
    """What is served where this request has come in."""
    found: ServerState = request.scope[_KEY]
    return found


def root_of(request: HTTPConnection) -> str:
    """The prefix under which this is mounted; "" for none."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def serve(what: ServerState, routes: ASGIApp) -> ASGIApp:
    """These routes, for this app."""

    async def serving(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_KEY] = what
        await routes(scope, receive, send)

    return serving


class OwnRoutes(BaseRoute):
    """Stands among the shared routes for those that the app has of its own."""

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
