"""Live events: the changes that followers of a store see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from duly.ids import is_id
from duly.model.job import State
from duly.model.progress import Look


class Cursor(NamedTuple):
    """A position in the feed; changes after it may be seen twice, but are never missed."""

    since: int
    """No change before this one is unseen."""
    ended: str = ""
    """If the store keeps ended jobs in order, the last one that was seen."""

    def __str__(self) -> str:
        return f"{self.since}-{self.ended or 0}"


def read_cursor(text: str) -> Cursor | None:
    """Parse a cursor; None if the text is not one."""
    since, _, ended = text.partition("-")
    if not _is_number(since) or not (ended == "0" or is_id(ended)):
        return None
    return Cursor(int(since), "" if ended == "0" else ended)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


class JobNews(NamedTuple):
    """A job that was stored, has started, reported progress or has ended."""

    id: str
    function: str
    state: State
    queue: str
    owner: str | None
    attempt: int
    token: int
    trigger: str | None
    actor: str | None
    at: int
    value: float | None
    note: str | None
    reported: int | None

    @property
    def look(self) -> Look:
        said = (self.value, self.note, self.reported)
        return Look(self.id, self.state, self.token, self.attempt, *said, updated_at=None)


class TickNews(NamedTuple):
    """A tick that was decided."""

    schedule_id: str
    kind: str
    tick_at: int
    outcome: str
    reason: str | None
    job_id: str | None
    at: int
    owner: str | None
    key: str | None


class AuditNews(NamedTuple):
    """An action of an operator."""

    id: str
    at: int
    actor: str | None
    action: str
    target: str


News = JobNews | TickNews | AuditNews


class Changes(NamedTuple):
    """The changes found by one read, and the cursor for the next."""

    news: list[News]
    next: Cursor
    whole: bool
    """Whether these are all changes; if not, the follower must read the objects themselves."""


class Gap(NamedTuple):
    """Some changes were left out; the follower must read the objects themselves."""


class NewsItem(NamedTuple):
    """One change, and the cursor after it."""

    news: News | Gap
    cursor: Cursor | None


class NewsBatch(NamedTuple):
    """New changes for a follower, and the cursor after them."""

    items: list[NewsItem]
    cursor: Cursor | None
    """None before the follower was admitted."""


NewsFilter = Callable[[News], bool]
