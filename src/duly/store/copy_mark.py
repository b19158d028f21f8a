"""The mark that a store carries while it is copied, and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from duly.errors import StoreMoved

MARK, REFUSED, COPIED = "copy", "refused", "copied"
"""Keys of the meta table: the mark, the message for writers, and which copy filled the store."""
PREFIX = "duly: this store "
"""How the message for writers starts."""


class Stage(StrEnum):
    """How far a copy is, seen from one of its stores."""

    DRAINING = "draining"
    """The source: running jobs may finish, nothing starts."""
    CLOSED = "closed"
    """The source: nothing can be written; it can be reopened."""
    MOVED = "moved"
    """The source: permanently read-only."""
    FILLING = "filling"
    """The target, until it is opened."""


class Position(msgspec.Struct, frozen=True):
    """How far a table is copied: the number of rows, and the last key."""

    rows: int = 0
    after: tuple[str | int, ...] | None = None
    whole: bool = False


class Mark(msgspec.Struct, frozen=True):
    """The state of a copy, stored in each of its stores."""

    copy_id: str
    stage: Stage
    other: str
    """The id of the store at the other end."""
    where: str
    """The same, as text for people."""
    paused: bool = False
    """Whether the copy paused everything in order to drain the store."""
    tables: Mapping[str, Position] = {}
    """Set on the target."""

    @property
    def message(self) -> str:
        """The error message that the database gives to writers."""
        return f"duly: {self.says('this store')}"

    def says(self, subject: str) -> str:
        return f"{subject} {_MESSAGES[self.stage].format(where=self.where)}"

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


_MESSAGES = {
    Stage.DRAINING: "is being copied to {where}; schedules do not run and cannot be changed until"
    " that is done",
    Stage.CLOSED: "is being copied to {where}; wait until that is done, or abort it with"
    " `duly copy --abort`",
    Stage.MOVED: "was moved to {where}; use it there",
    Stage.FILLING: "is being filled from {where} and cannot be used until that is done",
}


def mark_of(meta: Mapping[str, str]) -> Mark | None:
    return read_mark(meta[MARK]) if MARK in meta else None


def read_mark(text: str) -> Mark:
    return msgspec.json.decode(text, type=Mark)


def refuse_moved(meta: Mapping[str, str]) -> None:
    """Refuse a store that must not be used now, or that has moved permanently."""
    mark = mark_of(meta)
    if mark is not None and mark.stage != Stage.DRAINING:
        raise StoreMoved(mark.says("this store"))
