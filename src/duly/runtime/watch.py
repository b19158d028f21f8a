"""Watches jobs, and tells subscribers about their changes.

One thread looks for everything that this process watches, in one statement for all jobs, and runs
only while there are watchers. It compares each job with what its watcher was shown last: states in
between may be merged, but the newest is never missed, and a lost connection loses no watcher.

If the store announces every change (SQLite), the thread looks when it does. PostgreSQL does not: a
NOTIFY with every change would take a lock that all commits of the server share. There it looks ten
times a second, which costs a few index probes per job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator

from duly.clock import os_monotonic
from duly.errors import JobNotFound, StoreUnavailable
from duly.model.progress import Event, Look, event_of
from duly.store.table import Store

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""Seconds between two looks, on a store that does not announce changes."""
MAX_LOOK_SECONDS = 1.0
"""The same on a store that does."""
MIN_LOOK_SECONDS = 0.02
AFTER_OUTAGE = 0.5


class Subscription:
    """Watches one job, and has what is new since it was last shown something."""

    def __init__(self, job_id: str, ring: Callable[[], None]) -> None:
        self.job_id = job_id
        self._ring = ring
        self._shown = -1
        self._guard = threading.Lock()
        self._news: Event | Exception | None = None

    def tell(self, look: Look) -> None:
        """Called by the looking thread."""
        if look.revision > self._shown:
            self._shown = look.revision
            self._put(event_of(look))

    def fail(self, error: Exception) -> None:
        self._put(error)

    def take(self) -> Event | None:
        """What is new, if anything. Raises the error if there was one."""
        with self._guard:
            news, self._news = self._news, None
        if isinstance(news, Exception):
            raise news
        return news

    def _put(self, news: Event | Exception) -> None:
        with self._guard:
            self._news = news
        self._ring()


class Watchers:
    """The job watchers of one app. A forked child starts without any."""

    def __init__(self, ready: Callable[[], Store]) -> None:
        self._ready = ready
        self._by_process: dict[int, _Desk] = {}

    def watch(self, job_id: str, timeout: float | None) -> Generator[Event]:
        """Every newer state, until the last one or the timeout."""
        bell = threading.Event()
        until = None if timeout is None else os_monotonic() + timeout
        with self._subscribed(job_id, bell.set) as subscription:
            while bell.wait(_left(until)):
                bell.clear()
                event = subscription.take()
                if event is not None:
                    yield event
                    if event.state.is_terminal:
                        return

    async def watch_async(self, job_id: str, timeout: float | None) -> AsyncGenerator[Event]:
        """The same for async code, without a waiting thread."""
        loop = asyncio.get_running_loop()
        bell = asyncio.Event()
        until = None if timeout is None else os_monotonic() + timeout

        def ring() -> None:
            # On a closed loop nothing is waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(bell.set)

        with self._subscribed(job_id, ring) as subscription:
            while await _rung(bell, until):
                bell.clear()
                event = subscription.take()
                if event is not None:
                    yield event
                    if event.state.is_terminal:
                        return

    @contextlib.contextmanager
    def _subscribed(self, job_id: str, ring: Callable[[], None]) -> Generator[Subscription]:
        subscription = Subscription(job_id, ring)
        desk = self._desk
        watcher = desk.add(subscription)
        try:
            yield subscription
        finally:
            desk.remove(watcher, subscription)

    @property
    def _desk(self) -> _Desk:
        # No lock, because a fork could leave it held: of two desks created at once one is never
        # used.
        pid = os.getpid()
        return self._by_process.get(pid) or self._by_process.setdefault(pid, _Desk(self._ready))

    def close(self) -> None:
        """End every watch. Later ones start again."""
        desk = self._by_process.pop(os.getpid(), None)
        if desk is not None:
            desk.close()


class _Desk:
    """Keeps a watcher as long as there are subscriptions."""

    def __init__(self, ready: Callable[[], Store]) -> None:
        self._ready = ready
        # An abandoned generator is closed wherever the garbage collector happens to run.
        self._guard = threading.RLock()
        self._watcher: _Watcher | None = None
        self._ended: list[_Watcher] = []

    def add(self, subscription: Subscription) -> _Watcher:
        with self._guard:
            watcher = self._watcher
            if watcher is None:
                watcher = self._watcher = _Watcher(self._ready)
            watcher.subscriptions[subscription] = None
        watcher.start_or_wake()
        return watcher

    def remove(self, watcher: _Watcher, subscription: Subscription) -> None:
        with self._guard:
            watcher.subscriptions.pop(subscription, None)
            if not watcher.subscriptions and self._watcher is watcher:
                self._watcher = None
                watcher.stop()
                self._ended = [ended for ended in self._ended if ended.is_alive] + [watcher]

    def close(self) -> None:
        with self._guard:
            watcher, self._watcher = self._watcher, None
            ended = [*self._ended, *([watcher] if watcher else [])]
        if watcher is not None:
            watcher.stop()
            watcher.fail_all(StoreUnavailable("the app was closed; watch again"))
        # None of them may return a connection after the store was closed.
        for each in ended:
            each.join(5)


class Listener:
    """A thread that rings a bell at every change, if the store announces changes."""

    def __init__(self, bell: threading.Event, stop: threading.Event, what: str) -> None:
        self._bell = bell
        self._stop = stop
        self._what = what
        self._thread: threading.Thread | None = None

    def hears(self, store: Store) -> bool:
        """Whether the bell rings at every change. Starts the thread for that if necessary."""
        if not store.tells_changes:
            return False
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._listen, args=(store,), name="duly-listener", daemon=True
            )
            self._thread.start()
        return True

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _listen(self, store: Store) -> None:
        try:
            store.watch(self._bell, self._stop)
        except Exception as error:
            log.warning("%s: %s; checking once a second", self._what, error)


class _Watcher:
    """The looking thread. It ends with its last subscription, and is not used again."""

    def __init__(self, ready: Callable[[], Store]) -> None:
        self._ready = ready
        self.subscriptions: dict[Subscription, None] = {}
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-watcher", daemon=True)
        self._listener = Listener(self._bell, self._stop, "watching jobs")

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start_or_wake(self) -> None:
        self._bell.set()
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._bell.set()

    def join(self, seconds: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def fail_all(self, error: Exception) -> None:
        for subscription in list(self.subscriptions):
            subscription.fail(error)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._bell.clear()
            self._wait(self._pass_safely())
        self._listener.join(5)

    def _wait(self, seconds: float) -> None:
        # However many changes are announced, not each of them is worth a look.
        self._stop.wait(MIN_LOOK_SECONDS)
        self._bell.wait(seconds - MIN_LOOK_SECONDS)

    def _pass_safely(self) -> float:
        """Look once.

        Return the seconds until the next look, unless a change is announced before.
        """
        try:
            store = self._ready()
            self._look(store)
        except StoreUnavailable as error:
            log.warning("watching jobs: %s; trying again", error)
            return AFTER_OUTAGE
        except Exception as error:
            # Waiting would not help.
            self.fail_all(error)
            return AFTER_OUTAGE
        return MAX_LOOK_SECONDS if self._listener.hears(store) else LOOK_SECONDS

    def _look(self, store: Store) -> None:
        watching = list(self.subscriptions)
        ids = {subscription.job_id for subscription in watching}
        found = {look.job_id: look for look in store.look(ids)}
        for subscription in watching:
            look = found.get(subscription.job_id)
            if look is not None:
                subscription.tell(look)
            else:
                subscription.fail(JobNotFound(subscription.job_id))


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - os_monotonic(), 0)


async def _rung(bell: asyncio.Event, until: float | None) -> bool:
    try:
        async with asyncio.timeout(_left(until)):
            return await bell.wait()
    except TimeoutError:
        return False
