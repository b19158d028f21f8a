"""Functions beyond their code: their published form and their status.

active ⇄ paused        paused: jobs wait, ticks skip
active → deprecated    deprecated: pending jobs finish, callers are warned
any → deleted          deleted: pending jobs are canceled, nothing more is accepted
any → active           by restore only; code that registers it again changes nothing
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

import msgspec

RESERVED = "duly."
"""Names that begin so are for functions and queues of duly's own."""


def is_reserved(name: str) -> bool:
    return name.startswith(RESERVED)


class Status(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DEPRECATED = "deprecated"
    DELETED = "deleted"


CLOSED = (Status.PAUSED, Status.DELETED)
"""No job of such a function is started."""

MAY_BECOME: dict[str, tuple[Status, ...]] = {
    "pause": (Status.ACTIVE, Status.PAUSED),
    "resume": (Status.PAUSED, Status.ACTIVE),
    "deprecate": (Status.ACTIVE, Status.PAUSED, Status.DEPRECATED),
    "delete": tuple(Status),
    "restore": tuple(Status),
}
"""From which status a verb may lead to its own: none silently undoes another one."""


class PublishedOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How jobs of the function are run unless a call says otherwise; times in milliseconds."""

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
    """A function as its workers describe it to everybody else."""

    name: str
    kind: str
    app: str
    schema: str
    options: str
    internal: bool
    alias_of: str | None

    def digest(self) -> str:
        """What tells one description from another."""
        described = (self.kind, self.schema, self.options, self.internal, self.alias_of)
        text = msgspec.json.encode(described)
        return hashlib.sha256(text).hexdigest()[:16]


class FunctionInfo(msgspec.Struct, frozen=True):
    """A row of the functions table: what was published, and what operators decided."""

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
    """"schedule" as long as at least one schedule calls it, under this or an older name."""
