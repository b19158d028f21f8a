"""Group commit: writes that wait at the same time share one commit.

A caller writes immediately, in its own thread, if no other write is in progress. Callers that
arrive meanwhile wait; the first of them then writes for all of them. Each returns only when its own
write is durable, and an error in one write never affects another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from duly.errors import StoreUnavailable

W = TypeVar("W")
T = TypeVar("T")


class Ticket(Generic[W]):
    """One caller's write, and later its answer."""

    __slots__ = ("_signal", "answered", "error", "followers", "leads", "successor", "value", "work")

    def __init__(self, work: W) -> None:
        self.work = work
        self.value: Any = None
        self.error: BaseException | None = None
        self.leads = False
        # Used by leaders: the tickets it writes, whether they have their answers, and who leads
        # next.
        self.followers: list[Ticket[W]] = []
        self.answered = False
        self.successor: Ticket[W] | None = None
        self._signal = threading.Lock()
        self._signal.acquire()

    def wait(self) -> None:
        self._signal.acquire()

    def wake(self) -> None:
        """Wake the caller. Waking it twice is harmless: it does not wait again."""
        if self._signal.locked():
            self._signal.release()

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class GroupCommit(Generic[W]):
    """Runs `commit(tickets)` for the writes that have gathered, at most one batch at a time."""

    def __init__(self, commit: Callable[[list[Ticket[W]]], None], most: int = 1000) -> None:
        self._commit = commit
        self._most = most
        self._waiting: list[Ticket[W]] = []
        self._guard = threading.Lock()
        self._busy = False

    def write(self, work: W) -> Any:
        ticket = Ticket(work)
        try:
            with self._guard:
                if self._busy:
                    self._waiting.append(ticket)
                else:
                    self._busy = ticket.leads = True
            if not ticket.leads:
                ticket.wait()
            if ticket.leads:
                self._lead(ticket)
        except BaseException:
            # Ctrl-C in the main thread, at any moment: no other caller may be left waiting for this
            # one.
            self._leave(ticket)
            raise
        return ticket.answer()

    def _lead(self, own: Ticket[W]) -> None:
        self._gather(own)
        batch = [own, *own.followers]
        try:
            self._commit(batch)
        except Exception as error:
            for ticket in batch:
                ticket.error = error
        own.answered = True
        self._leave(own)

    def _gather(self, own: Ticket[W]) -> None:
        most = self._most - 1
        with self._guard:
            # Ctrl-C can only interrupt at a call. Written like this, each ticket stays in exactly
            # one list.
            own.followers, self._waiting = self._waiting[:most], self._waiting[most:]

    def _leave(self, ticket: Ticket[W]) -> None:
        """Hand over, and wake every caller that waits for this one. Called again if interrupted."""
        with self._guard:
            if ticket.leads:
                self._hand_over(ticket)
            elif ticket in self._waiting:
                self._waiting.remove(ticket)
        if ticket.successor is not None:
            ticket.successor.wake()
            # A caller that keeps an error must not keep every later ticket alive.
            ticket.successor = None
        for follower in ticket.followers:
            if not ticket.answered:
                follower.error = StoreUnavailable("the write was interrupted; it may have happened")
            follower.wake()

    def _hand_over(self, ticket: Ticket[W]) -> None:
        # Nothing is called here either.
        if self._waiting:
            ticket.successor, *self._waiting = self._waiting
            ticket.successor.leads = True
        else:
            self._busy = False
        ticket.leads = False
