"""Waking: a waiting process hears of another store's work."""

from __future__ import annotations

import threading

from duly.clock import os_monotonic, os_sleep
from duly.testing.conformance.ground import PATIENCE, Ground, new_job


class Waking(Ground):
    def test_a_watcher_is_woken_by_another_stores_work(self) -> None:
        other = self.another_store()
        bell, stop = threading.Event(), threading.Event()
        watcher = threading.Thread(target=self.store.watch, args=(bell, stop))
        watcher.start()
        try:
            give_up_at = os_monotonic() + PATIENCE
            os_sleep(0.1)
            bell.clear()
            while not bell.is_set():
                assert os_monotonic() < give_up_at, "the bell was never set"
                other.enqueue([new_job()])
                other.ring()
                bell.wait(1)
        finally:
            stop.set()
            watcher.join(PATIENCE)
        assert not watcher.is_alive()
