"""Writes the records of workflows: what several runs have done shares one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from duly.model.workflow import Put
from duly.runtime.threads import Outcome
from duly.store.commit import GroupCommit, Ticket
from duly.store.table import Store

Puts = Sequence[Put]
"""What one run records at a time."""


class Records:
    """The records of the runs in one process."""

    def __init__(self, ready: Callable[[], Store]) -> None:
        self._ready = ready
        self.running: set[object] = set()
        """The runs of async workflows whose code is in progress."""
        self.forget()

    def forget(self) -> None:
        """In a forked child: the thread that is writing does not exist there."""
        self.running.clear()
        self._group: GroupCommit[Puts] = GroupCommit(self._put_tickets)

    def put(self, puts: Puts) -> bool:
        """Write records in the calling thread, with those of other threads. False if refused."""
        stored: bool = self._group.write(puts)
        return stored

    def _put_tickets(self, tickets: list[Ticket[Puts]]) -> None:
        outcomes = self.put_each([ticket.work for ticket in tickets])
        for ticket, (value, error) in zip(tickets, outcomes, strict=True):
            ticket.value, ticket.error = value, error

    def put_each(self, batches: list[Puts]) -> list[Outcome]:
        """Write those of several runs in one commit; one by one if that fails."""
        every = [put for puts in batches for put in puts]
        try:
            stored = self._ready().put_steps(every)
        except Exception as error:
            if len(batches) == 1:
                return [(None, error)]
            return [self.put_each([puts])[0] for puts in batches]
        return [(all(put.where in stored for put in puts), None) for puts in batches]
