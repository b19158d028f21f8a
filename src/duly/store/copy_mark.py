"""The mark that a store carries while it is copied, and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from duly.errors import StoreMoved

MARK, REFUSED, COPIED = "copy", "refused", "copied"
"""Keys of the meta table: the mark, what writers are told, and which copy the store came from."""
PREFIX = "duly: this store "
"""How what writers are told begins."""


class Stage(StrEnum):
    """How far a copy is, seen from one of its stores."""

    DRAINING = "draining"
    """The source: what runs may end, nothing starts."""
    CLOSED = "closed"
    """The source: nothing is written; it can be opened again."""
    MOVED = "moved"
    """The source: nothing is written, ever again."""
    FILLING = "filling"
    """The target, until it is opened."""


class Position(msgspec.Struct, frozen=True):
    """How far a table is copied: so many rows, up to this key."""

    rows: int = 0
    after: tuple[str | int, ...] | None = None
    whole: bool = False


class Mark(msgspec.Struct, frozen=True):
    """What is being done with a store, kept in the store itself."""

    copy_id: str
    stage: Stage
    other: str
    """The id of the store at the other end."""
    where: str
    """The same for people."""
    paused: bool = False
    """Whether everything was paused for the draining."""
    tables: Mapping[str, Position] = {}
    """Of the target."""

    @property
    def message(self) -> str:
        """What whoever wants to write is told, as the database says it."""
        return f"duly: {self.says('this store')}"

    def says(self, subject: str) -> str:
        return f"{subject} {_MESSAGES[self.stage].format(where=self.where)}"

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


_MESSAGES = {
    Stage.DRAINING: "is being copied to {where}; no schedule ticks, or can be changed, until that"
    " is done",
    Stage.CLOSED: "is being copied to {where}; wait until that is done, or give it up with"
    " `duly copy --abort`",
    Stage.MOVED: "was moved to {where}; use it there",
    Stage.FILLING: "is being filled from {where}, and cannot be used before that is done",
}


def mark_of(meta: Mapping[str, str]) -> Mark | None:
    return read_mark(meta[MARK]) if MARK in meta else None


def read_mark(text: str) -> Mark:
    return msgspec.json.decode(text, type=Mark)


def refuse_moved(meta: Mapping[str, str]) -> None:
    """Refuse a store that must not be used now, or not any more."""
    mark = mark_of(meta)
    if mark is not None and mark.stage != Stage.DRAINING:
        raise StoreMoved(mark.says("this store"))
