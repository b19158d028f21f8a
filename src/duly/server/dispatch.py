"""`POST /api/v1/dispatch/{function}`: an external schedule calls a function here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duly.app import operations
from duly.endpoints.dispatch import MAX_BODY, DispatchAnswer

if TYPE_CHECKING:
    from duly.app import Duly

PATH = "/api/v1/dispatch/{function:path}"


_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
_ACCEPTED: dict[str, Any] = {
    "type": "object",
    "required": ["jobId", "duplicate"],
    "properties": {"jobId": {"type": "string"}, "duplicate": {"type": "boolean"}},
}
# The route has its own authentication and order of checks, so it is documented by hand.
DOCUMENTED_PATH = "/api/v1/dispatch/{function}"
DOCUMENT: dict[str, Any] = {
    "post": {
        "tags": ["dispatch"],
        "operationId": "dispatch",
        "summary": "Dispatch",
        "description": "Call a function for a tick of an external schedule. The bearer secret is "
        "one of `app.dispatch.secrets`, not an API token.",
        "security": [{"HTTPBearer": []}],
        "parameters": [
            {"name": "function", "in": "path", "required": True, "schema": {"type": "string"}}
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["nominalFireTime"],
                        "properties": {
                            "nominalFireTime": {
                                "anyOf": [
                                    {"type": "string", "format": "date-time"},
                                    {"type": "integer"},
                                ]
                            },
                            "idempotencyKey": {"type": "string"},
                            "schedule": {"type": "string"},
                            "input": {"type": "object"},
                        },
                    }
                }
            },
        },
        "responses": {
            "202": {
                "description": "The job was stored.",
                "content": {"application/json": {"schema": _ACCEPTED}},
            },
            "200": {
                "description": "The job was already stored.",
                "content": {"application/json": {"schema": _ACCEPTED}},
            },
            "default": {"description": "The request failed; the body says why.", "content": _ERROR},
        },
    }
}


def dispatch_route(app: Duly, path: str = PATH) -> Route:
    """The route for a Starlette app; `app.dispatch.secrets` authenticates callers."""
    receiver = app.dispatch

    async def dispatch(request: Request) -> Response:
        # Requests that are not authenticated stop here.
        refusal = receiver.check(request.headers)
        if refusal is not None:
            return _response(refusal)
        body = await _some_of(request)
        name: str = request.path_params["function"]
        receive = partial(receiver.receive, name, dict(request.headers), body)
        return _response(await operations.in_thread(app, receive))

    return Route(path, dispatch, methods=["POST"], name="dispatch")


async def _some_of(request: Request) -> bytes:
    """The body, or enough of it to see that it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            break
    return bytes(body)


def _response(answer: DispatchAnswer) -> JSONResponse:
    headers = {"Cache-Control": "no-store"}
    if answer.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(answer.body, answer.status, headers)
