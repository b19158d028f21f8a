"""Functions beyond their code: their published form and their status.

active ⇄ paused        paused: jobs wait, ticks are skipped
active → deprecated    deprecated: pending jobs finish, callers are warned
any → deleted          deleted: pending jobs are canceled, new calls are refused
any → active           only by restore; registering the function again changes nothing
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

import msgspec

RESERVED = "duly."
"""Names with this prefix are reserved for duly's own functions and queues."""


def is_reserved(name: str) -> bool:
    return name.startswith(RESERVED)


class Status(StrEnum):
    """The status that an operator gives a function."""

    ACTIVE = "active"
    PAUSED = "paused"
    DEPRECATED = "deprecated"
    DELETED = "deleted"


CLOSED = (Status.PAUSED, Status.DELETED)
"""Jobs of functions with these statuses are not started."""

MAY_BECOME: dict[str, tuple[Status, ...]] = {
    "pause": (Status.ACTIVE, Status.PAUSED),
    "resume": (Status.PAUSED, Status.ACTIVE),
    "deprecate": (Status.ACTIVE, Status.PAUSED, Status.DEPRECATED),
    "delete": tuple(Status),
    "restore": tuple(Status),
}
"""The statuses from which each verb is allowed, so that no verb silently undoes another."""


class PublishedOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How jobs of the function run, unless a call has other options; times in milliseconds."""

    queue: str
    priority: int
    timeout: int | None = None
    expires: int | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()
    retry: str | None = None
    on_complete: str | None = None
    unique: dict[str, Any] | None = None
    limit: dict[str, Any] | None = None
    debounce: int | None = None


class Published(msgspec.Struct, frozen=True):
    """A function as its workers publish it."""

    name: str
    kind: str
    app: str
    schema: str
    options: str
    internal: bool
    alias_of: str | None

    def digest(self) -> str:
        """A digest that distinguishes versions of the description."""
        described = (self.kind, self.schema, self.options, self.internal, self.alias_of)
        text = msgspec.json.encode(described)
        return hashlib.sha256(text).hexdigest()[:16]


class FunctionInfo(msgspec.Struct, frozen=True):
    """A row of the functions table: what was published, and the status that operators set."""

    name: str
    kind: str
    app: str
    schema: str
    options: str
    internal: bool
    alias_of: str | None
    published_at: int
    status: Status
    status_by: str | None
    status_note: str | None
    status_at: int | None
    trigger: str = "manual"
    """"schedule" if at least one schedule calls it, under this or an older name."""
