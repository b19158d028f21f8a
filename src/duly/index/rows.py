"""The schedule index as a protocol: one row per active schedule, and three verbs.

Every instant is integer milliseconds since 1970 UTC.
"""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from duly.errors import InvalidOption, InvalidTime
from duly.model import strict_json
from duly.model.trigger import Cron

LIMIT = 100
"""So many rows does one claim take, unless it says otherwise."""
MAX_ROWS = 10_000

_LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class IndexRow:
    """When one schedule of one user is due next.

    The expression is not looked at before the row is due: a claim leaves a bad one alone.
    """

    user_id: str
    key: str
    cron: str
    timezone: str | None
    """The name of a zone; None is UTC."""
    next_fire_at: int

    def __post_init__(self) -> None:
        require_text("user_id", self.user_id)
        require_text("key", self.key)
        require_text("cron", self.cron)
        if self.timezone is not None:
            require_text("timezone", self.timezone)
        require_instant("next_fire_at", self.next_fire_at)


class ScheduleIndex(Protocol):
    """Finds what is due, across all users, without looking at every schedule."""

    async def upsert(self, row: IndexRow) -> None:
        """Write the row, in place of the one that this user and key may have."""
        ...

    async def claim_due(self, now: int, limit: int = LIMIT) -> Sequence[IndexRow]:
        """Take the rows that are due, the longest due first, and advance them, atomically.

        Each is returned as it was, to one caller only; its new time is later than `now`. A row
        whose expression or zone is bad stays as it is, and keeps no other from being claimed.
        """
        ...

    async def remove(self, user_id: str, key: str) -> None:
        """Remove the row, if there is one."""
        ...


def next_fire_after(row: IndexRow, after: int) -> int:
    """The first time later than `after` at which the row's expression fires.

    Any index advances its rows with it. Raises `BadInput` where the expression or zone is bad.
    """
    tz = "UTC" if row.timezone is None else row.timezone
    cron = Cron(row.cron, tz, spread=f"{row.user_id}/{row.key}")
    fires_at = cron.next_after(after)
    if fires_at is None:
        raise InvalidTime(f"{row.cron!r} does not fire any more after {after}")
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
