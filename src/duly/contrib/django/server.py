"""Mounts duly's server in a Django project, for users who are logged in to Django."""

# Django comes without types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from duly.errors import InvalidOption
from duly.model.access import Principal, Scope

if TYPE_CHECKING:
    from duly.app.duly import ASGIApp


def staff(user: Any) -> Principal | None:
    """Staff may do everything, other users nothing."""
    return Principal(user.get_username(), frozenset({Scope.ADMIN})) if user.is_staff else None


def asgi(
    application: ASGIApp,
    *,
    prefix: str = "/ops",
    access: Callable[[Any], Principal | None] = staff,
    login_url: str | None = None,
    **options: Any,
) -> ASGIApp:
    """Return an ASGI application that serves duly under `prefix`, and Django everywhere else.

    `application`: the result of `get_asgi_application()`. `access`: a function that receives a user
    who is logged in to Django and returns what they may do: a `duly.server.Principal`, or None for
    nothing. By default staff may do everything. `login_url`: the page to which other browsers are
    redirected, as a URL or the name of a view; by default `settings.LOGIN_URL`. `options`: the
    remaining options of `app.asgi`.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise InvalidOption("prefix", f"give a path such as /ops, not {prefix!r}")
    from django.apps import apps
    from django.core.exceptions import ImproperlyConfigured

    from duly.contrib.django import app

    if not apps.is_installed("django.contrib.auth"):
        message = "duly.contrib.django.asgi needs 'django.contrib.auth' in INSTALLED_APPS"
        raise ImproperlyConfigured(message)
    server = app.asgi(auth=_auth(access), login=_login(login_url), **options)
    return _mounted(application, prefix, server)


def _auth(access: Callable[[Any], Principal | None]) -> Callable[[Any], Principal | None]:
    from django.conf import settings

    from duly.contrib.django.project import close_old_connections

    def who(request: Any) -> Principal | None:
        close_old_connections()
        try:
            user = _user_of(request.cookies.get(settings.SESSION_COOKIE_NAME))
            if user is None:
                return None
            # Without a principal, a user who is logged in already would be asked to log in.
            return access(user) or Principal(user.get_username(), frozenset())
        finally:
            close_old_connections()

    return who


class _Session(dict[str, Any]):
    """A copy of a session, which the lookup of its user cannot change."""

    def cycle_key(self) -> None: ...

    def flush(self) -> None: ...


def _user_of(session_key: str | None) -> Any:
    from django.conf import settings
    from django.contrib import auth

    if not session_key:
        return None
    engine: Any = importlib.import_module(settings.SESSION_ENGINE)
    session = _Session(engine.SessionStore(session_key).items())
    user: Any = auth.get_user(SimpleNamespace(session=session))
    return user if user.is_authenticated else None


def _login(url: str | None) -> str:
    from django.conf import settings
    from django.contrib.auth import REDIRECT_FIELD_NAME
    from django.shortcuts import resolve_url

    page: str = resolve_url(url or settings.LOGIN_URL)
    return f"{page}{'&' if '?' in page else '?'}{REDIRECT_FIELD_NAME}={{next}}"


def _mounted(django: ASGIApp, prefix: str, server: ASGIApp) -> ASGIApp:
    from starlette.responses import RedirectResponse

    async def application(scope: Any, receive: Any, send: Any) -> None:
        root = scope.get("root_path", "")
        path = scope.get("path", "").removeprefix(root)
        if scope["type"] == "http" and path == prefix:
            await RedirectResponse(f"{root}{prefix}/")(scope, receive, send)
        elif scope["type"] == "http" and path.startswith(f"{prefix}/"):
            mounted = {"root_path": root + prefix, "path": root + path}
            await server({**scope, **mounted}, receive, send)
        else:
            await django(scope, receive, send)

    return application
