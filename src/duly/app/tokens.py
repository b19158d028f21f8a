"""`app.tokens`: create, list, check and revoke API tokens."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.errors import InvalidOption, StoreError, TokenNotFound
from duly.functions.checks import check_text, id_for
from duly.functions.times import Instant, at, length_ms
from duly.model.access import Principal, Scope, TokenRecord, scopes_of, stored_scopes
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.zones import zone

log = logging.getLogger(__name__)

PREFIX = "duly_"
"""The prefix of all secrets, so that leak scanners can recognize them."""
SECRET_BYTES = 32
USE_NOTED_EVERY_MS = 60_000
NOTED_AT_ONCE = 2
MAX_LISTED = 1_000


class Token(msgspec.Struct, frozen=True):
    """A token as it was when it was read, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    owner: str | None
    created: datetime
    created_by: str | None
    expires: datetime | None
    last_used: datetime | None
    revoked: datetime | None
    revoked_by: str | None
    status: str
    """active, expired or revoked."""
    tz: str | None
    """The time zone in which the dashboard shows times to users of the token."""


class NewToken(msgspec.Struct, frozen=True):
    """A newly created token; its secret is only available here."""

    token: Token
    secret: str

    def __repr__(self) -> str:
        return f"<new token {self.token.name!r}>"


class Tokens:
    """The API tokens of an app's server. Only a digest of each is stored."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._noting: set[str] = set()

    def create(
        self,
        name: str,
        scopes: Collection[str] = (Scope.READ,),
        *,
        owner: str | None = None,
        expires: Instant | timedelta | None = None,
        tz: str | None = None,
        by: str | None = None,
        id: str | None = None,
    ) -> NewToken:
        """Create a token with some of the scopes read, enqueue, operate and admin.

        With an owner, it is limited to that owner's objects. `tz`: the zone in which the dashboard
        shows times, unless the user chooses another. `id`: the id of the new token.
        """
        refuse_inside_mutation("tokens.create")
        check_text("name", name)
        if owner is not None:
            check_text("owner", owner)
        if tz is not None:
            zone(tz)
        now = self._core.now()
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        record = TokenRecord(
            id=id_for(id, now),
            name=name,
            digest=digest_of(secret),
            scopes=" ".join(sorted(_checked(scopes))),
            owner=owner,
            created_at=now,
            created_by=by,
            expires_at=_expiry(expires, now),
            tz=tz,
        )
        if not self._core.ready().add_token(record, by, now):
            raise InvalidOption("id", "a token with that id already exists")
        return NewToken(_token(record, now), secret)

    def get(self, token_id: str) -> Token:
        """Return the token with that id; TokenNotFound if there is none."""
        record = self._core.ready().token(token_id)
        if record is None:
            raise TokenNotFound(token_id)
        return _token(record, self._core.now())

    def list(
        self, *, owner: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Token]:
        """Return tokens, oldest first; `after` is the last id on the previous page."""
        if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
            raise InvalidOption("limit", f"must be 1 to {MAX_LISTED:,}, not {limit!r}")
        now = self._core.now()
        return [_token(each, now) for each in self._core.ready().tokens(owner, after, limit)]

    def revoke(self, token_id: str, *, by: str | None = None) -> bool:
        """Revoke a token, so that it is no longer accepted; False if it was revoked already."""
        refuse_inside_mutation("tokens.revoke")
        self.get(token_id)
        return self._core.ready().revoke_token(token_id, by, self._core.now())

    def exist(self) -> bool:
        """Whether there is a usable token."""
        return self._core.ready().has_tokens(self._core.now())

    def check(self, secret: str) -> Principal | None:
        """Return the principal that this secret authenticates; None if it is not accepted.

        The secret is looked up by its digest, so the time this takes reveals nothing about it.
        """
        store, now = self._core.ready(), self._core.now()
        record = store.token_by_digest(digest_of(secret))
        if record is None or not record.is_live(now):
            return None
        if record.last_used_at is None or now - record.last_used_at >= USE_NOTED_EVERY_MS:
            self._note_use(record.id, now)
        name = f"{record.name} (token:{record.id})"
        return Principal(name, stored_scopes(record.scopes), record.owner, record.tz)

    def _note_use(self, token_id: str, now: int) -> None:
        """Record the use in the background: reads should not wait for writes or disk space."""
        # A use that is skipped here is recorded with the next request; few threads wait for a lock.
        if token_id not in self._noting and len(self._noting) < NOTED_AT_ONCE:
            self._noting.add(token_id)
            self._core.threads.start(partial(self._write_use, token_id, now))

    def _write_use(self, token_id: str, now: int) -> None:
        try:
            self._core.ready().use_token(token_id, now)
        except StoreError as error:
            log.warning("cannot record the last use of token %s now: %s", token_id, error)
        finally:
            self._noting.discard(token_id)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _checked(scopes: Collection[str]) -> frozenset[Scope]:
    try:
        return scopes_of([] if isinstance(scopes, str) else scopes)
    except (TypeError, ValueError):
        known = ", ".join(Scope)
        raise InvalidOption("scopes", f"give some of {known}, not {scopes!r}") from None


def _expiry(expires: Instant | timedelta | None, now: int) -> int | None:
    if expires is None:
        return None
    until = now + length_ms("expires", expires) if isinstance(expires, timedelta) else expires
    instant = at(until, now)
    if instant <= now:
        raise InvalidOption("expires", "must be in the future")
    return instant


def _token(record: TokenRecord, now: int) -> Token:
    status = "active" if record.is_live(now) else "revoked" if record.revoked_at else "expired"
    return Token(
        id=record.id,
        name=record.name,
        scopes=tuple(sorted(stored_scopes(record.scopes))),
        owner=record.owner,
        created=from_ms(record.created_at),
        created_by=record.created_by,
        expires=_time(record.expires_at),
        last_used=_time(record.last_used_at),
        revoked=_time(record.revoked_at),
        revoked_by=record.revoked_by,
        status=status,
        tz=record.tz,
    )


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)
