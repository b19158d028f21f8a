"""An application with its own login, around the dashboard."""

from html import escape

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from duly import Duly
from duly.model.access import Scope
from duly.server import Principal


def hosting(app: Duly) -> Starlette:
    inner = app.asgi(auth=_who, login="/login?next={next}")
    routes = [Route("/login", _form), Route("/login", _log_in, methods=["POST"])]
    return Starlette(routes=[*routes, Mount("/ops", inner)])


def _who(request: Request) -> Principal | None:
    user = request.cookies.get("user")
    return None if user is None else Principal(user, frozenset({Scope.READ}))


def _form(request: Request) -> Response:
    action = f"/login?{request.url.query}"
    return HTMLResponse(
        f"<form method=post action='{escape(action)}'><button>Log in as Ada</button></form>"
    )


def _log_in(request: Request) -> Response:
    answer = RedirectResponse(request.query_params["next"], 303)
    answer.set_cookie("user", "ada")
    return answer
