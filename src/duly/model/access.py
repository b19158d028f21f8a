"""Scopes, principals and API tokens: who may do what through the server."""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

PARTS = ("dashboard", "api", "hooks", "health")
"""The parts of a server that can be enabled."""


class Scope(enum.StrEnum):
    """What a token or principal may do."""

    READ = "read"
    ENQUEUE = "enqueue"
    OPERATE = "operate"
    """What operators do to jobs, schedules, calendars, functions and queues; includes reading and
    calling."""
    ADMIN = "admin"
    """Everything, including tokens, endpoints and gateways."""


_IMPLIED = {
    Scope.READ: {Scope.READ},
    Scope.ENQUEUE: {Scope.ENQUEUE},
    Scope.OPERATE: {Scope.READ, Scope.ENQUEUE, Scope.OPERATE},
    Scope.ADMIN: set(Scope),
}


class Principal(msgspec.Struct, frozen=True):
    """Who makes a request: a name for the audit log, its scopes and, optionally, an owner."""

    name: str
    """Unique: repeatable requests are remembered by it."""
    scopes: frozenset[Scope]
    owner: str | None = None
    """Limits the principal to this owner's objects; None: no limit."""
    tz: str | None = None
    """The time zone in which times are shown, unless another is chosen."""

    def __post_init__(self) -> None:
        if self.owner == "":
            raise ValueError("an owner must not be empty; use None for no owner")

    def may(self, scope: Scope) -> bool:
        """Whether the principal has this scope, directly or through another one."""
        return any(scope in _IMPLIED[held] for held in self.scopes)

    def reading(self) -> Principal:
        """The same principal, limited to reading."""
        scopes = frozenset({Scope.READ}) if self.may(Scope.READ) else frozenset[Scope]()
        return msgspec.structs.replace(self, scopes=scopes)


def scopes_of(names: Collection[str]) -> frozenset[Scope]:
    """The scopes with these names; ValueError if a name is unknown or there are none."""
    scopes = frozenset(Scope(name) for name in names)
    if not scopes:
        raise ValueError("give at least one scope")
    return scopes


def stored_scopes(text: str) -> frozenset[Scope]:
    """The scopes of a stored token; unknown ones are ignored."""
    return frozenset(Scope(name) for name in text.split() if name in set(Scope))


class RequestClaim(msgspec.Struct, frozen=True):
    """What is stored about a repeatable request."""

    actor: str
    key: str
    fingerprint: str
    target: str
    """The id of the object that it creates."""
    expires_at: int
    done: bool = False
    """Whether that object was created."""


class TokenRecord(msgspec.Struct, frozen=True):
    """One row of the tokens table."""

    id: str
    name: str
    digest: str
    scopes: str
    owner: str | None
    created_at: int
    created_by: str | None = None
    expires_at: int | None = None
    last_used_at: int | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None
    tz: str | None = None

    def is_live(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)
