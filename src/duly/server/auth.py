"""Authentication and scopes: API tokens, or the application that mounts the server."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool

from duly.app import Duly
from duly.app.tokens import PREFIX
from duly.errors import InvalidOption
from duly.model.access import Principal, Scope
from duly.server.answers import Refused
from duly.server.api.operation import check_scope
from duly.server.state import root_of, served

Callback: TypeAlias = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
Auth: TypeAlias = Literal["tokens", "open"] | Callback

SESSION = "duly_session"
"""The cookie that holds the token of a logged-in browser."""
LOCAL_PRINCIPAL = Principal("local", frozenset(Scope))
"""The principal of every request to a server without authentication (loopback only)."""
NEXT = "{next}"
"""Stands for the requested page in the URL of the application's login page."""
_LOGIN = re.compile(r"(/(?![/\\])|https://[A-Za-z0-9\[])[!-~]*")
_BEARER = HTTPBearer(auto_error=False, description="An API token from `app.tokens.create`.")


def cookie_name(request: Request, name: str) -> str:
    """The name of a cookie under this mount path.

    A browser also sends the cookies of `/` to `/two`, so only their names keep two servers on one
    host apart.
    """
    root = root_of(request)
    return f"{name}_{sha256(root.encode()).hexdigest()[:8]}" if root else name


def cookie_of(request: Request, name: str) -> str:
    """The value of a duly cookie; "" if it is not set."""
    return request.cookies.get(cookie_name(request, name), "")


class Authenticator:
    """Finds the principal of a request."""

    def __init__(
        self, app: Duly, auth: Auth, *, login: str | None = None, read_only: bool = False
    ) -> None:
        """`login`: the application's own login page. `read_only`: every principal may only read."""
        if not callable(auth) and auth not in ("tokens", "open"):
            raise InvalidOption("auth", f'give "tokens", "open" or a function, not {auth!r}')
        if login is not None:
            _check_login(login, auth)
        self.login = login
        self._app = app
        self._auth = auth
        self._read_only = read_only

    @property
    def takes_tokens(self) -> bool:
        return self._auth != "open"

    async def who(self, request: Request) -> Principal:
        """The principal of a request; Refused with 401 if there is none."""
        principal = await self._find(request)
        if principal is None:
            raise Refused(
                401,
                "unauthorized",
                "a valid token is required",
                hint="send Authorization: Bearer …; create a token with app.tokens.create",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return principal.reading() if self._read_only else principal

    async def _find(self, request: Request) -> Principal | None:
        if self._auth == "open":
            return LOCAL_PRINCIPAL
        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        shown = secret.strip() if kind.lower() == "bearer" else ""
        # Any other kind of bearer token is left to the surrounding application.
        if callable(self._auth) and not shown.startswith(PREFIX):
            found = await _call(self._auth, request)
            if found is not None:
                return found
            shown = ""
        shown = shown or cookie_of(request, SESSION)
        return await run_in_threadpool(self._app.tokens.check, shown) if shown else None


def _check_login(login: object, auth: Auth) -> None:
    if not callable(auth):
        raise InvalidOption("login", "also give auth=, a function that recognizes your users")
    if not isinstance(login, str) or not _LOGIN.fullmatch(login):
        message = f"give a path such as /login?next={NEXT}, or an https:// URL, not {login!r}"
        raise InvalidOption("login", message)
    page, _, query = login.partition("?")
    # In a path it could name another host: "/{next}" becomes "//jobs".
    if re.search("[{}]", page + query.replace(NEXT, "")):
        message = f"the only placeholder is {NEXT}, after the question mark; not as in {login!r}"
        raise InvalidOption("login", message)


async def _call(callback: Callback, request: Request) -> Principal | None:
    if inspect.iscoroutinefunction(callback):
        found = await callback(request)
    else:
        # It may query a database, and other requests must not wait for that.
        found = await run_in_threadpool(callback, request)
        if inspect.isawaitable(found):
            found = await found
    # Without a type checker, callers may pass values that contradict the types.
    if found is not None and not isinstance(found, Principal):  # pyright: ignore
        raise TypeError(f"auth returned {found!r}; it must return a Principal or None")
    return found


def _app(request: Request) -> Duly:
    return served(request).app


App = Annotated[Duly, Depends(_app)]


def authenticator_of(request: Request) -> Authenticator:
    return served(request).authenticator


async def _principal(request: Request, _: Annotated[Any, Depends(_BEARER)]) -> Principal:
    return await authenticator_of(request).who(request)


@cache
def needs(scope: Scope) -> Callable[..., Awaitable[Principal]]:
    """A dependency that provides the principal, if it has the scope."""

    async def allowed(principal: Annotated[Principal, Depends(_principal)]) -> Principal:
        return check_scope(principal, scope)

    allowed.scope = scope  # type: ignore[attr-defined]
    return allowed


Reader = Annotated[Principal, Depends(needs(Scope.READ))]
Caller = Annotated[Principal, Depends(needs(Scope.ENQUEUE))]
Operator = Annotated[Principal, Depends(needs(Scope.OPERATE))]
Admin = Annotated[Principal, Depends(needs(Scope.ADMIN))]


class ScopedRoute(APIRoute):
    """A route that states its required scope in the OpenAPI document."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if scope := next(_scopes(self.dependant), None):
            self.openapi_extra = {"x-scope": str(scope)} | (self.openapi_extra or {})


def _scopes(dependant: Dependant) -> Iterator[Scope]:
    for inner in dependant.dependencies:
        if scope := getattr(inner.call, "scope", None):
            yield scope
        yield from _scopes(inner)
