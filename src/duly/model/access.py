"""Scopes, principals and API tokens: who may do what through the server."""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec

PARTS = ("dashboard", "api", "hooks", "health")
"""What a server serves, all of it or some."""


class Scope(enum.StrEnum):
    """What a token allows."""

    READ = "read"
    ENQUEUE = "enqueue"
    OPERATE = "operate"
    """Everything that operators do to jobs, schedules, calendars, functions and queues; reading
    and calling too."""
    ADMIN = "admin"
    """Everything, also tokens, endpoints and gateways."""


_IMPLIED = {
    Scope.READ: {Scope.READ},
    Scope.ENQUEUE: {Scope.ENQUEUE},
    Scope.OPERATE: {Scope.READ, Scope.ENQUEUE, Scope.OPERATE},
    Scope.ADMIN: set(Scope),
}


class Principal(msgspec.Struct, frozen=True):
    """Who asks: a name for the audit log, what is allowed, and whose things it is about."""

    name: str
    """Unique: requests that may be repeated are remembered for it."""
    scopes: frozenset[Scope]
    owner: str | None = None
    """Sees and changes only what is this owner's; None: everything."""
    tz: str | None = None
    """In which zone times are shown, unless another is chosen."""

    def __post_init__(self) -> None:
        if self.owner == "":
            raise ValueError("an owner has a name; None stands for everybody")

    def may(self, scope: Scope) -> bool:
        return any(scope in _IMPLIED[held] for held in self.scopes)

    def reading(self) -> Principal:
        """The same one, who may look and nothing else."""
        scopes = frozenset({Scope.READ}) if self.may(Scope.READ) else frozenset[Scope]()
        return msgspec.structs.replace(self, scopes=scopes)


def scopes_of(names: Collection[str]) -> frozenset[Scope]:
    """The scopes of these names; ValueError if one has no such name, or if there is none."""
    scopes = frozenset(Scope(name) for name in names)
    if not scopes:
        raise ValueError("no scope is given")
    return scopes


def stored_scopes(text: str) -> frozenset[Scope]:
    """The scopes of a stored token; those that nobody knows allow nothing."""
    return frozenset(Scope(name) for name in text.split() if name in set(Scope))


class RequestClaim(msgspec.Struct, frozen=True):
    """What is remembered of a request that may be repeated."""

    actor: str
    key: str
    fingerprint: str
    target: str
    """The id of what it makes."""
    expires_at: int
    done: bool = False
    """Whether that was made."""


class TokenRecord(msgspec.Struct, frozen=True):
    """One row of the tokens."""

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
