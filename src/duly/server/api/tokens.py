"""API tokens: create, list and revoke them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from duly.app import Duly
from duly.app.tokens import NewToken, Token
from duly.errors import TokenNotFound
from duly.model.access import Scope
from duly.server.answers import Instant, Shape, Time
from duly.server.api.common import Cursor, Limit, Page, check_cursor, is_foreign, owner_of, page
from duly.server.api.operation import Admin, Operations
from duly.server.api.repeatable import Repeatable

api = Operations("tokens", "/tokens")


class TokenShape(Shape):
    id: str
    name: str
    scopes: list[Scope]
    owner: str | None
    status: str
    created_at: Time
    created_by: str | None
    expires_at: Time | None
    last_used_at: Time | None
    revoked_at: Time | None
    revoked_by: str | None
    tz: str | None


class NewTokenShape(TokenShape):
    secret: Annotated[
        str | None, Meta(description="Shown only once: null if the request is repeated.")
    ]


class NewTokenBody(Shape):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    scopes: Annotated[list[Scope], Meta(min_length=1)]
    owner: str | None = None
    expires_at: Instant | None = None
    tz: Annotated[
        str | None, Meta(description="The time zone of the dashboard for this token.")
    ] = None


class Revoked(Shape):
    revoked: bool


@api.post("", status=201, again=NewTokenShape)
def create(app: Duly, who: Admin, once: Repeatable, body: NewTokenBody) -> NewTokenShape:
    """Create a token. Only this response contains its secret."""
    owner = owner_of(who, body.owner)

    def make(token_id: str | None) -> NewToken | Token:
        return app.tokens.create(
            body.name,
            [str(scope) for scope in body.scopes],
            owner=owner,
            expires=body.expires_at,
            tz=body.tz,
            by=who.name,
            id=token_id,
        )

    made = once.make(who, body, make, app.tokens.get)
    if isinstance(made, NewToken):
        return NewTokenShape(**asdict(_shape(made.token)), secret=made.secret)
    return NewTokenShape(**asdict(_shape(made)), secret=None)


@api.get("")
def find(
    app: Duly,
    who: Admin,
    owner: str | None = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[TokenShape]:
    """List tokens, oldest first."""
    check_cursor("after", after)
    tokens = app.tokens.list(owner=owner_of(who, owner), after=after, limit=limit + 1)
    return page([_shape(token) for token in tokens], limit, lambda token: token.id)


@api.get("/{token_id}")
def get(app: Duly, who: Admin, token_id: str) -> TokenShape:
    return _shape(_visible(app, who, token_id))


@api.post("/{token_id}/revoke")
def revoke(app: Duly, who: Admin, token_id: str) -> Revoked:
    """Revoke a token; `revoked` is false if it was already revoked."""
    return Revoked(revoked=app.tokens.revoke(_visible(app, who, token_id).id, by=who.name))


def _visible(app: Duly, who: Admin, token_id: str) -> Token:
    token = app.tokens.get(token_id)
    if is_foreign(who, token.owner):
        raise TokenNotFound(token_id)
    return token


def _shape(token: Token) -> TokenShape:
    return TokenShape(
        id=token.id,
        name=token.name,
        scopes=[Scope(scope) for scope in token.scopes],
        owner=token.owner,
        status=token.status,
        created_at=token.created,
        created_by=token.created_by,
        expires_at=token.expires,
        last_used_at=token.last_used,
        revoked_at=token.revoked,
        revoked_by=token.revoked_by,
        tz=token.tz,
    )
