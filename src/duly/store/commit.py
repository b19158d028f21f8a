"""How do writes that wait at the same moment share one commit?

A caller that finds nobody writing writes at once, in its own thread. Callers that arrive meanwhile
wait; the first of them then writes for all. Each returns only when its own write is durable, and an
error of one never reaches another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from duly.errors import StoreUnavailable

W = TypeVar("W")
T = TypeVar("T")


class Ticket(Generic[W]):
    """One caller's write, and later its answer."""

    __slots__ = ("_signal", "error", "leads", "value", "work")

    def __init__(self, work: W) -> None:
        self.work = work
        self.value: Any = None
        self.error: BaseException | None = None
        self.leads = False
        self._signal = threading.Lock()
        self._signal.acquire()

    def wait(self) -> None:
        self._signal.acquire()

    def wake(self) -> None:
        self._signal.release()

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class GroupCommit(Generic[W]):
    """Runs `commit(tickets)` for whatever has gathered; at most one batch at a time."""

    def __init__(self, commit: Callable[[list[Ticket[W]]], None], most: int = 1000) -> None:
        self._commit = commit
        self._most = most
        self._waiting: deque[Ticket[W]] = deque()
        self._guard = threading.Lock()
        self._busy = False

    def write(self, work: W) -> Any:
        ticket = Ticket(work)
        with self._guard:
            leads, self._busy = not self._busy, True
            if not leads:
                self._waiting.append(ticket)
        if not leads:
            self._wait(ticket)
            leads = ticket.leads
        if leads:
            self._lead(ticket)
        return ticket.answer()

    def _wait(self, ticket: Ticket[W]) -> None:
        try:
            ticket.wait()
        except BaseException:
            # Ctrl-C in the main thread: nobody may wait for this caller to lead.
            with self._guard:
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
            if ticket.leads:
                self._hand_over()
            raise

    def _lead(self, own: Ticket[W]) -> None:
        batch = [own, *self._gathered()]
        try:
            self._commit(batch)
        except Exception as error:
            for ticket in batch:
                ticket.error = error
        except BaseException as interruption:
            own.error = interruption
            for ticket in batch[1:]:
                ticket.error = StoreUnavailable("the write was interrupted; it may have happened")
        self._hand_over()
        for ticket in batch[1:]:
            ticket.wake()

    def _gathered(self) -> list[Ticket[W]]:
        with self._guard:
            count = min(len(self._waiting), self._most - 1)
            return [self._waiting.popleft() for _ in range(count)]

    def _hand_over(self) -> None:
        with self._guard:
            if not self._waiting:
                self._busy = False
                return
            following = self._waiting.popleft()
            following.leads = True
        following.wake()
