"""Sends wake-ups to other processes, at a limited rate."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from duly.clock import os_monotonic

log = logging.getLogger(__name__)

RING_EVERY = 0.005


class Bell:
    """Sends at most one NOTIFY every few milliseconds, from its own thread.

    A NOTIFY in every transaction would take a database-wide lock at every commit.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._rung_at = -RING_EVERY
        self._rung = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-bell", daemon=True)
        self._is_alone = False
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads
            self._is_alone = True

    def is_quiet(self) -> bool:
        """Whether the caller may notify instead, and then has to: it counts as rung."""
        now = os_monotonic()
        if self._rung.is_set() or now - self._rung_at < RING_EVERY:
            return False
        self._rung_at = now
        return True

    def ring(self) -> None:
        if self._is_alone:
            self._notify_safely()
        elif not self._rung.is_set():
            self._rung.set()

    def stop(self) -> None:
        """End the thread, so that it does not return a connection after the store was closed."""
        self._stopped.set()
        self._rung.set()
        if not self._is_alone:
            self._thread.join(2)

    def _run(self) -> None:
        while self._rung.wait() and not self._stopped.is_set():
            self._rung.clear()
            self._rung_at = os_monotonic()
            self._notify_safely()
            if self._stopped.wait(RING_EVERY):
                return

    def _notify_safely(self) -> None:
        try:
            self._notify()
        except Exception as error:
            log.debug("could not wake the workers: %s", error)
