"""The REST API of a gateway: `cron` as a resource, behind a bearer secret.

GET    /cron?disabled=true&limit=100&after=…     POST   /cron
GET    /cron/{id}                                PATCH  /cron/{id}   (or POST)
POST   /cron/{id}/run                            DELETE /cron/{id}
GET    /healthz                                  no secret needed; terse
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from duly.endpoints.secrets import is_same, resolve
from duly.errors import (
    BadInput,
    CronExists,
    CronNotFound,
    DulyError,
    MissingExtra,
    SecretMissing,
    StoreError,
)
from duly.gateway.crons import CronChanges, NewCron

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise MissingExtra("server", "the API of a gateway") from error

if TYPE_CHECKING:
    from duly.gateway.runtime import Gateway

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

MAX_BODY = 64 << 10
LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]"}
SAFE_METHODS = {"GET", "HEAD", "DELETE"}
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Refused(Exception):
    """A refusal with a status and a message."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, hint: str = ""
    ) -> None:
        self.status = status
        self.error: dict[str, str | None] = {
            "code": code,
            "message": message,
            "field": field,
            "hint": hint or None,
        }


class RunRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: str = "force"


def make_app(gateway: Gateway) -> Starlette:
    """A gateway's API, which starts and stops the gateway."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        await run_in_threadpool(gateway.start)
        yield
        await run_in_threadpool(gateway.stop)

    api = Api(gateway)
    routes = [
        Route("/healthz", api.answer(api.health, is_open=True), methods=["GET"]),
        Route("/cron", api.answer(api.list), methods=["GET"]),
        Route("/cron", api.answer(api.add), methods=["POST"]),
        Route("/cron/{id}", api.answer(api.get), methods=["GET"]),
        Route("/cron/{id}", api.answer(api.update), methods=["PATCH", "POST"]),
        Route("/cron/{id}", api.answer(api.remove), methods=["DELETE"]),
        Route("/cron/{id}/run", api.answer(api.run), methods=["POST"]),
    ]
    handlers: dict[Any, Any] = {HTTPException: _no_route}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


class Api:
    """The routes: each reads its request and calls the verb of the same name."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def answer(self, endpoint: Endpoint, *, is_open: bool = False) -> Endpoint:
        """The route with authentication and one shape for all errors."""

        async def guarded(request: Request) -> Response:
            try:
                if not is_open:
                    self._admit(request)
                return await endpoint(request)
            except Refused as refused:
                return _error(refused)
            except DulyError as error:
                return _error(_refused(error))

        return guarded

    async def health(self, request: Request) -> Response:
        if self._gateway.is_stuck:
            return _json({"status": "stuck"}, 503)
        return _json({"status": "ok"})

    async def list(self, request: Request) -> Response:
        given = _query(request, {"disabled", "limit", "after"})
        page = await run_in_threadpool(
            self._gateway.cron_list,
            disabled=_flag("disabled", given.get("disabled", "false")),
            limit=_whole("limit", given.get("limit", "100")),
            after=given.get("after"),
        )
        return _json(page)

    async def get(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._gateway.cron_get, _id(request)))

    async def add(self, request: Request) -> Response:
        given = await _body(request, NewCron)
        return _json(await run_in_threadpool(self._gateway.add, given), 201)

    async def update(self, request: Request) -> Response:
        changes = await _body(request, CronChanges)
        return _json(await run_in_threadpool(self._gateway.change, _id(request), changes))

    async def run(self, request: Request) -> Response:
        given = await _body(request, RunRequest)
        return _json(await run_in_threadpool(self._gateway.cron_run, _id(request), given.mode))

    async def remove(self, request: Request) -> Response:
        return _json(await run_in_threadpool(self._gateway.cron_remove, _id(request)))

    # Authentication

    def _admit(self, request: Request) -> None:
        if self._gateway.secret is None:
            _only_from_here(request)
        elif not _is_bearer(request, _secret(self._gateway.secret)):
            raise Refused(401, "unauthorized", "the bearer secret is missing or wrong")
        if request.method not in SAFE_METHODS:
            _only_json(request)


def _secret(reference: str) -> bytes:
    try:
        return resolve(reference)
    except SecretMissing:
        raise Refused(503, "secret_missing", "the gateway cannot read its secret") from None


def _is_bearer(request: Request, secret: bytes) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    matches = is_same(given.strip().encode("latin-1"), secret)
    return scheme.lower() == "bearer" and matches


def _only_from_here(request: Request) -> None:
    """Without a secret, only accept requests from this machine, and none from web pages on it."""
    here = request.client is not None and is_loopback(request.client.host)
    # A page whose host name was rebound to this machine has that name in Host.
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if not here or name.lower() not in LOCAL_NAMES:
        raise Refused(
            403, "only_local", "without a secret this gateway only serves its own machine"
        )


def is_loopback(host: str) -> bool:
    """Whether it is a loopback address or the name localhost."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _only_json(request: Request) -> None:
    # For cross-site JSON, browsers send a preflight request first, which is refused.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "not_json", "send Content-Type: application/json")


# Requests ----------------------------------------------------------------------------------------


def _id(request: Request) -> str:
    found: str = request.path_params["id"]
    return found


async def _body(request: Request, kind: type[T]) -> T:
    text = b""
    try:
        async for chunk in request.stream():
            text += chunk
            if len(text) > MAX_BODY:
                raise Refused(413, "too_large", f"the body is larger than {MAX_BODY:,} bytes")
    except ClientDisconnect:
        raise Refused(400, "incomplete", "the body is incomplete") from None
    try:
        return msgspec.json.decode(text or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Refused(400, "invalid", str(error), _field_of(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Refused(400, "not_json", "the body is not JSON") from None


def _field_of(message: str) -> str | None:
    """The field in a msgspec message: "… unknown field `x`", "… - at `$.x`"."""
    for before in ("`$.", "field `"):
        _, found, rest = message.partition(before)
        if found:
            return rest.partition("`")[0]
    return None


def _query(request: Request, known: set[str]) -> Mapping[str, str]:
    for name in request.query_params:
        if name not in known:
            hint = f"known parameters: {', '.join(sorted(known))}"
            raise Refused(400, "invalid", f"unknown parameter {name!r}", name, hint)
    return request.query_params


def _flag(field: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise Refused(400, "invalid", f"{field}: write true or false", field)
    return text == "true"


def _whole(field: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Refused(400, "invalid", f"{field}: write a whole number", field)
    return int(text)


# Answers -----------------------------------------------------------------------------------------


def _json(value: object, status: int = 200) -> Response:
    content = msgspec.json.encode(value)
    return Response(content, status, headers=HEADERS, media_type="application/json")


def _error(refused: Refused) -> Response:
    answer = _json({"error": refused.error}, refused.status)
    if refused.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def _refused(error: DulyError) -> Refused:
    field, hint = getattr(error, "field", None), getattr(error, "hint", "")
    if isinstance(error, CronNotFound):
        return Refused(404, "cron_not_found", str(error))
    if isinstance(error, CronExists):
        return Refused(409, "cron_exists", str(error), field)
    if isinstance(error, BadInput):
        return Refused(400, "invalid", str(error), field or None, hint)
    if isinstance(error, StoreError):
        return Refused(503, "unavailable", "the gateway cannot reach its store")
    raise error


async def _no_route(request: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
    answer = _error(Refused(error.status_code, code, str(error.detail)))
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer
