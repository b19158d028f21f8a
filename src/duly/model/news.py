"""Live events: the changes that followers of a store see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from duly.ids import is_id
from duly.model.job import State
from duly.model.progress import Look


class Cursor(NamedTuple):
    """Up to where one has seen everything; what comes after may be seen twice, never missed."""

    since: int
    """No change is older that one has not seen."""
    ended: str = ""
    """Where a store keeps ended jobs in order, the last one that one has seen."""

    def __str__(self) -> str:
        return f"{self.since}-{self.ended or 0}"


def read_cursor(text: str) -> Cursor | None:
    """The cursor that was written like that; None for any other text."""
    since, _, ended = text.partition("-")
    if not _is_number(since) or not (ended == "0" or is_id(ended)):
        return None
    return Cursor(int(since), "" if ended == "0" else ended)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


class JobNews(NamedTuple):
    """A job that was stored, has started, says how far it is, or has ended."""

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
    """Something that an operator did."""

    id: str
    at: int
    actor: str | None
    action: str
    target: str


News = JobNews | TickNews | AuditNews


class Changes(NamedTuple):
    """What a look has shown, and where the next one begins."""

    news: list[News]
    next: Cursor
    whole: bool
    """Whether that is everything; where it is not, one has to look at the things themselves."""


class Gap(NamedTuple):
    """Something was left out: look at the things themselves."""


class NewsItem(NamedTuple):
    """One piece of news, and from where one goes on who has seen it."""

    news: News | Gap
    cursor: Cursor | None


class NewsBatch(NamedTuple):
    """What is new for a follower, and from where one goes on who has seen all of it."""

    items: list[NewsItem]
    cursor: Cursor | None
    """None before it was let in."""


NewsFilter = Callable[[News], bool]
