"""A loop calls `one_pass() -> delay`: do the pending work, and return when to run again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from duly.clock import Clock
from duly.errors import StoreUnavailable
from duly.store.base import become_own_loop

log = logging.getLogger(__name__)

AFTER_ERROR = 1.0


class Bells(threading.Event):
    """One bell that rings several others."""

    def __init__(self, *bells: threading.Event) -> None:
        super().__init__()
        self._bells = bells

    def set(self) -> None:
        for bell in self._bells:
            # Setting an event takes a lock; checking it first is free.
            if not bell.is_set():
                bell.set()


class Loop:
    """Calls one_pass in a thread until stopped; `wake` cuts the delay short."""

    def __init__(self, name: str, one_pass: Callable[[], float], clock: Clock) -> None:
        self._name = name
        self._one_pass = one_pass
        self._clock = clock
        self.bell = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"duly-{self._name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        # Setting an event takes a lock; checking it first is free, and most wake-ups come in
        # bursts.
        if not self.bell.is_set():
            self.bell.set()

    def stop(self) -> None:
        """Make the loop end after its current pass."""
        self._stopping = True
        self.bell.set()

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        become_own_loop()
        while not self._stopping:
            self.bell.clear()
            delay = self._pass_safely()
            if delay > 0 and not self._stopping:
                self._clock.wait(self.bell, delay)

    def _pass_safely(self) -> float:
        try:
            return self._one_pass()
        except StoreUnavailable as error:
            log.warning("%s: %s; trying again", self._name, error)
        except Exception:
            log.exception("%s: a pass failed; trying again", self._name)
        return AFTER_ERROR
