"""What is known of a function beyond its code: its published form, and its status.

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

from duly.errors import WrongStatus


class Status(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    DEPRECATED = "deprecated"
    DELETED = "deleted"


CLOSED = (Status.PAUSED, Status.DELETED)
"""No job of such a function is started."""

_FROM = {
    Status.PAUSED: {Status.ACTIVE, Status.PAUSED},
    Status.DEPRECATED: {Status.ACTIVE, Status.PAUSED, Status.DEPRECATED},
    Status.DELETED: set(Status),
}


def check_change(name: str, current: Status, wanted: Status) -> None:
    """Refuse a change that would silently undo another one."""
    if wanted in _FROM and current not in _FROM[wanted]:
        raise WrongStatus(name, current, wanted)


def check_resume(name: str, current: Status) -> None:
    if current not in (Status.PAUSED, Status.ACTIVE):
        raise WrongStatus(name, current, Status.ACTIVE)


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
        text = msgspec.json.encode((self.kind, self.schema, self.options, self.internal))
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
