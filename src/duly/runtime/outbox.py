"""Writes the settlements of ended attempts to the store, despite errors and outages."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from duly.errors import StoreFull, StoreMissing, StoreReadOnly, StoreUnavailable
from duly.model.job import ErrorKind, Finish, Settlement, State
from duly.store.base import is_refusal_of_a_row

log = logging.getLogger(__name__)

BATCH = 1000
# Problems of the store itself, whatever is written: wait until they are over, and blame no row.
OUTAGE = (StoreUnavailable, StoreFull, StoreReadOnly, StoreMissing)
Write = Callable[[Sequence[Settlement]], set[str]]


class Outbox:
    """Settlements wait here until they are durable or were refused by the fence."""

    def __init__(self) -> None:
        self._waiting: deque[Settlement] = deque()
        self._guard = threading.Lock()
        self._aside: list[tuple[float, Settlement]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)

    def take(self) -> list[Settlement]:
        with self._guard:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]

    def put_back(self, settlements: Sequence[Settlement]) -> None:
        self._waiting.extendleft(reversed(settlements))

    def put_aside(self, settlements: Sequence[Settlement], until: float) -> None:
        """Keep these back until a monotonic instant, so that the others do not wait for them."""
        self._aside += [(until, settlement) for settlement in settlements]

    def bring_back(self, now: float) -> None:
        """Put settlements back in line whose time has come."""
        if self._aside:
            due = [settlement for until, settlement in self._aside if until <= now]
            self._aside = [(until, settlement) for until, settlement in self._aside if until > now]
            self.put_back(due)

    def store(self, settlements: Sequence[Settlement], write: Write) -> set[str]:
        """Write a batch that failed as a whole, in halves, to isolate a bad row.

        A row that cannot be stored becomes a failure that can. No other error is blamed on a row:
        whatever could not be written is put back, to be tried later.
        """
        settled: set[str] = set()
        has_written = False
        parts = [list(settlements)]
        while parts:
            part = parts.pop()
            try:
                settled |= write(part)
                has_written = True
            except OUTAGE:
                self._put_all_back([*parts, part])
                return settled
            except Exception as error:
                if len(part) > 1:
                    parts += _halves(part)
                elif _is_about_a_row(error):
                    parts += _instead(part[0], error)
                else:
                    reason = _first_line(error)
                    log.warning("the outcome of job %s waits to be stored: %s", part[0].id, reason)
                    # After the others, which it must not hold up if it is the row after all.
                    self.put(part[0])
                    if not has_written:
                        self._put_all_back(parts)
                        return settled
        return settled

    def _put_all_back(self, parts: Sequence[Sequence[Settlement]]) -> None:
        """Put all parts back. The last one ends up first in line."""
        for part in parts:
            self.put_back(part)


def _is_about_a_row(error: Exception) -> bool:
    """Refused by the database, or by its driver before the database has seen it."""
    return isinstance(error, ValueError | TypeError | OverflowError) or is_refusal_of_a_row(error)


def _halves(part: list[Settlement]) -> list[list[Settlement]]:
    """The first half last, so that it is written first."""
    middle = len(part) // 2
    return [part[middle:], part[:middle]]


def _instead(settlement: Settlement, error: Exception) -> list[list[Settlement]]:
    log.error("the outcome of job %s cannot be stored: %s", settlement.id, _first_line(error))
    return [[_unstorable(settlement)]] if not _is_last_resort(settlement) else []


def _first_line(error: Exception) -> str:
    """Only what happened: PostgreSQL continues with the whole row, arguments included."""
    return str(error).partition("\n")[0]


def _unstorable(settlement: Settlement) -> Finish:
    return Finish(
        id=settlement.id,
        token=settlement.token,
        state=State.FAILED,
        error_kind=ErrorKind.UNSTORABLE_RESULT,
        error_message="the database refused to store the outcome of this job",
    )


def _is_last_resort(settlement: Settlement) -> bool:
    """If even this cannot be stored, the janitor or a rescue will find the row."""
    return settlement == _unstorable(settlement)
