"""API tokens: create, list and revoke them."""

from __future__ import annotations

from secrets import token_urlsafe
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from duly.clock import to_ms
from duly.errors import DulyError
from duly.model.access import Scope
from duly.server.answers import Refused
from duly.server.api import tokens as api
from duly.server.auth import Admin
from duly.server.dashboard.exports import Format, export, pages
from duly.server.dashboard.forms import body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect, render
from duly.server.dashboard.views.edit import instant

FIELDS = ("name", "owner", "expires_at", "tz")

router = APIRouter(route_class=PageRoute)

PAGE = 50
FILE_PAGE = 200
SCOPES = {
    Scope.READ: "view everything",
    Scope.ENQUEUE: "call functions",
    Scope.OPERATE: "view, call, and all operator actions",
    Scope.ADMIN: "everything, including tokens, endpoints and gateways",
}


@router.get("/tokens")
def tokens(viewer: Viewing, who: Admin, after: str | None = None) -> Response:
    return _page(viewer, after)


def _page(viewer: Viewer, after: str | None = None, status: int = 200, **more: Any) -> Response:
    given = {"made": None, "error": None, "values": dict.fromkeys(FIELDS, "")}
    return render(
        viewer,
        "tokens.html",
        status,
        page=api.find(viewer.app, viewer.who, after=after, limit=PAGE),
        scopes=SCOPES,
        after=after,
        ms=to_ms,
        once=token_urlsafe(16),
        **given | {"marked": [Scope.READ]} | more,
    )


@router.get("/tokens.{format}")
def tokens_file(viewer: Viewing, who: Admin, format: Format) -> Response:
    """The same list as a file."""
    rows, complete = pages(lambda cursor: api.find(viewer.app, who, after=cursor, limit=FILE_PAGE))
    return export(rows, "tokens", format, complete=complete)


@router.post("/tokens")
def create(viewer: Viewing, who: Admin, form: Sent) -> Response:
    """Create a token and show its secret in this response, the only place where it appears.

    Reloading that page sends the same form again, which does not create another token.
    """
    try:
        body = body_of(
            api.NewTokenBody,
            name=form.text("name"),
            scopes=form.all("scope"),
            owner=form.given("owner"),
            expires_at=instant(form, "expires_at", viewer.zone),
            tz=form.given("tz"),
        )
        made = api.create(viewer.app, who, once(viewer, form.given("once")), body)
    except (DulyError, Refused) as error:
        values = {name: form.text(name) for name in FIELDS}
        marked = form.all("scope")
        return _page(viewer, status=422, error=str(error), values=values, marked=marked)
    if made.secret is None:
        text = f"{made.name} already exists; its secret was shown when it was created"
        return redirect(viewer.request, "/tokens", text, "failed")
    return _page(viewer, status=201, made=made)


@router.post("/tokens/{token_id}/revoke")
def revoke(request: Request, viewer: Viewing, who: Admin, token_id: str, form: Sent) -> Response:
    done = api.revoke(viewer.app, who, token_id)
    text = "Token revoked" if done.revoked else "The token was already revoked"
    return redirect(request, "/tokens", text, "done" if done.revoked else "failed")
