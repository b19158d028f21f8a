"""Login, logout, and the preferences stored in the browser."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from duly.server.answers import Refused
from duly.server.auth import SESSION, App, authenticator_of
from duly.server.dashboard.pages import (
    THEME,
    THEMES,
    TZ,
    YEAR_SECONDS,
    PageRoute,
    Sent,
    forget_cookie,
    redirect,
    render_bare,
    set_cookie,
)
from duly.zones import zone

router = APIRouter(route_class=PageRoute)

DAY_SECONDS = 86_400


@router.get("/login")
async def login(request: Request, next: Annotated[str, Query()] = "/") -> Response:
    if not authenticator_of(request).takes_tokens:
        return redirect(request, next)
    return render_bare(request, "login.html", next=next, error=None)


@router.post("/login")
async def log_in(request: Request, app: App, form: Sent) -> Response:
    """Log in with a token. The cookie holds the token itself: the database has only its digest,
    so nothing stored there can open a session. Revoking the token ends the session."""
    secret = form.text("token")
    found = await run_in_threadpool(app.tokens.check, secret) if secret else None
    if found is None:
        error = "This token is not valid, or it was revoked or has expired."
        return render_bare(request, "login.html", 401, next=form.text("next"), error=error)
    answer = redirect(request, form.text("next"))
    set_cookie(request, answer, SESSION, secret, seconds=DAY_SECONDS)
    return answer


@router.post("/logout")
async def log_out(request: Request, form: Sent) -> Response:
    answer = redirect(request, "/login")
    forget_cookie(request, answer, SESSION)
    return answer


@router.post("/preferences")
async def preferences(request: Request, form: Sent) -> Response:
    """Set the time zone and the theme for this browser."""
    answer = redirect(request, form.text("back"))
    if (tz := form.given("tz")) is not None:
        zone(tz)
        set_cookie(request, answer, TZ, tz, seconds=YEAR_SECONDS, readable=True)
    if (theme := form.given("theme")) is not None:
        if theme not in THEMES:
            raise Refused(422, "invalid", f"theme: give one of {', '.join(THEMES)}")
        set_cookie(request, answer, THEME, theme, seconds=YEAR_SECONDS, readable=True)
    return answer
