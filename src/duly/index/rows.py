"""The protocol of a schedule index: one row per active schedule, and three verbs.

Every instant is integer milliseconds since 1970 UTC.
"""

# Without a type checker, callers may pass values that contradict the types.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from duly.errors import InvalidOption, InvalidTime
from duly.model import strict_json
from duly.model.trigger import Cron

LIMIT = 100
"""How many rows a claim takes by default."""
MAX_ROWS = 10_000

_LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class IndexRow:
    """The next due time of one schedule of one user.

    The expression is not checked before the row is due; a claim skips a row with a bad one.
    """

    user_id: str
    key: str
    cron: str
    timezone: str | None
    """A time zone name; None is UTC."""
    next_fire_at: int

    def __post_init__(self) -> None:
        require_text("user_id", self.user_id)
        require_text("key", self.key)
        require_text("cron", self.cron)
        if self.timezone is not None:
            require_text("timezone", self.timezone)
        require_instant("next_fire_at", self.next_fire_at)


class ScheduleIndex(Protocol):
    """Finds due schedules across all users, without reading every schedule."""

    async def upsert(self, row: IndexRow) -> None:
        """Write a row, replacing any row with the same user and key."""
        ...

    async def claim_due(self, now: int, limit: int = LIMIT) -> Sequence[IndexRow]:
        """Take due rows, longest overdue first, and advance them, atomically.

        Each row is returned as it was before, to only one caller; its new time is after `now`. A
        row with a bad expression or zone stays as it is and does not keep others from being
        claimed.
        """
        ...

    async def remove(self, user_id: str, key: str) -> None:
        """Remove the row, if it exists."""
        ...


def next_fire_after(row: IndexRow, after: int) -> int:
    """The first time after `after` at which the row's expression fires.

    Every index uses it to advance its rows. Raises `BadInput` if the expression or zone is bad.
    """
    tz = "UTC" if row.timezone is None else row.timezone
    cron = Cron(row.cron, tz, spread=f"{row.user_id}/{row.key}")
    fires_at = cron.next_after(after)
    if fires_at is None:
        raise InvalidTime(f"{row.cron!r} never fires after {after}")
    return fires_at


def require_text(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidOption(option, f"give text, not {value!r}")
    if wrong := strict_json.fault(str(value)):
        raise InvalidOption(option, wrong.reason)


def require_instant(option: str, value: object) -> None:
    if type(value) is not int or abs(value) > _LARGEST:
        raise InvalidTime(f"{option}: give integer milliseconds since 1970 UTC, not {value!r}")


def require_limit(limit: object) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_ROWS:
        raise InvalidOption("limit", f"give a whole number from 1 to {MAX_ROWS}, not {limit!r}")
