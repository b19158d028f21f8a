"""Tracks which running bodies hold slots of limits, and releases those slots."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable

from duly.clock import Clock
from duly.model.job import Claim
from duly.runtime.outbox import OUTAGE
from duly.store.table import Store

log = logging.getLogger(__name__)

Slot = tuple[str, int]
"""An attempt that holds a slot: the id of its job and its token."""


class Slots:
    """The slots of a worker. Each is held from the claim until the body has really ended."""

    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._guard = threading.Lock()
        self._held: set[Slot] = set()
        self._ended: set[Slot] = set()
        self._doubtful = False

    @property
    def are_to_be_freed(self) -> bool:
        """Whether there are slots of bodies that have ended."""
        return bool(self._ended)

    def hold(self, claims: Iterable[Claim]) -> None:
        with self._guard:
            self._held.update((claim.id, claim.token) for claim in claims if claim.holds_slot)

    def body_ended(self, claim: Claim) -> None:
        if claim.holds_slot:
            with self._guard:
                self._ended.add((claim.id, claim.token))

    def release_ended(self) -> None:
        """Free the slots of bodies that have really ended, whatever the outcome of their jobs."""
        ended = self.ended()
        if not ended:
            return
        try:
            # Until this is durable they count as ended but not freed, even if the worker is
            # stopping.
            wakes = self._store.release_slots(ended, self._clock.now())
        except OUTAGE as error:
            log.warning("the store is not available: %s", error)
            return
        self.are_free(ended)
        if wakes:
            self._wake()
            self._store.ring()

    def ended(self) -> tuple[Slot, ...]:
        """Slots that a claim may free and hand over to waiting jobs."""
        with self._guard:
            return tuple(sorted(self._ended))

    def are_free(self, freed: Iterable[Slot]) -> None:
        """A claim has freed these slots, and that is durable."""
        with self._guard:
            self._held.difference_update(freed)
            self._ended.difference_update(freed)

    def counted_bodies(self) -> int:
        """How many bodies with slots have not ended, whether or not outcomes could be stored."""
        with self._guard:
            return len(self._held - self._ended)

    def doubt(self) -> None:
        """A claim has failed: the store may contain slots that this worker does not know of."""
        self._doubtful = True

    @contextlib.contextmanager
    def doubted_if_it_fails(self) -> Generator[None]:
        """If this fails, claimed jobs may never start, and their slots would never be freed."""
        try:
            yield
        except BaseException:
            self.doubt()
            raise

    def give_back_unknown(self, worker_id: str) -> None:
        """Free slots that are unknown here: a claim whose answer was lost may have taken them.

        Nothing may be claimed meanwhile. The job of such a slot may be gone already.
        """
        if not self._doubtful:
            return
        with self._guard:
            known = set(self._held)
        unknown = self._store.slots_of(worker_id) - known
        if unknown:
            self._store.release_slots(sorted(unknown), self._clock.now())
        self._doubtful = False

    def forget(self) -> None:
        """The slots no longer belong to this worker."""
        with self._guard:
            self._held.clear()
