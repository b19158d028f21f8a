"""How does every ended attempt reach the store, whatever happens on the way?"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from duly.errors import StoreFull, StoreMissing, StoreReadOnly, StoreUnavailable
from duly.model.job import ErrorKind, Finish, Settlement, State

log = logging.getLogger(__name__)

BATCH = 1000
# The store's own trouble, whatever is written: wait for its end, and blame no row.
OUTAGE = (StoreUnavailable, StoreFull, StoreReadOnly, StoreMissing)
Write = Callable[[Sequence[Settlement]], set[str]]


class Outbox:
    """Settlements wait here until they are durable or were refused by the fence."""

    def __init__(self) -> None:
        self._waiting: deque[Settlement] = deque()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)

    def take(self) -> list[Settlement]:
        with self._guard:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]

    def put_back(self, settlements: Sequence[Settlement]) -> None:
        self._waiting.extendleft(reversed(settlements))

    def store(self, settlements: Sequence[Settlement], write: Write) -> set[str]:
        """Write a batch that failed as a whole: in halves, so that one bad row travels alone.

        A row that cannot be stored becomes a failure that can. If the store goes away meanwhile,
        whatever is not written is put back.
        """
        settled: set[str] = set()
        parts = [list(settlements)]
        while parts:
            part = parts.pop()
            try:
                settled |= write(part)
            except OUTAGE:
                for rest in [part, *parts]:
                    self.put_back(rest)
                return settled
            except Exception as error:
                parts += _split(part, error)
        return settled


def _split(part: list[Settlement], error: Exception) -> list[list[Settlement]]:
    if len(part) > 1:
        middle = len(part) // 2
        return [part[:middle], part[middle:]]
    (settlement,) = part
    # Only what happened: PostgreSQL goes on with the whole row, arguments and all.
    first_line = str(error).partition("\n")[0]
    log.error("the end of job %s cannot be stored: %s", settlement.id, first_line)
    return [[_unstorable(settlement)]] if not _is_last_resort(settlement) else []


def _unstorable(settlement: Settlement) -> Finish:
    return Finish(
        settlement.id,
        settlement.token,
        State.FAILED,
        error_kind=ErrorKind.UNSTORABLE_RESULT,
        error_message="the database refused to store how this job ended",
    )


def _is_last_resort(settlement: Settlement) -> bool:
    """If even this cannot be stored, the janitor or a rescue will find the row."""
    return settlement == _unstorable(settlement)
