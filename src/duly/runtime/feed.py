"""The live feed: tells every follower in this process what has changed in the store.

One thread reads changes for all followers in this process, and runs only while there are any. Each
change goes to all of them, once. A follower that cannot keep up, or that missed too much, is told
to reload the data itself (`Gap`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator

from duly.clock import os_monotonic
from duly.errors import StoreUnavailable
from duly.model.job import State
from duly.model.news import (
    AuditNews,
    Changes,
    Cursor,
    Gap,
    JobNews,
    News,
    NewsBatch,
    NewsFilter,
    NewsItem,
    TickNews,
)
from duly.runtime.watch import Listener
from duly.store.table import Store

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""Seconds between two looks, on a store that does not announce changes."""
MAX_LOOK_SECONDS = 1.0
"""The same on a store that does."""
MIN_LOOK_SECONDS = 0.05
AFTER_OUTAGE = 1.0
LIMIT = 5_000
MAX_WAITING = 2_000
"""A follower with more items than this waiting gets a gap instead."""
REMEMBERED_MS = 60_000


class Follower:
    """A follower of changes, in its own thread or on an event loop."""

    def __init__(self, wanted: NewsFilter, cursor: Cursor | None, ring: Callable[[], None]) -> None:
        self._cursor = cursor
        self.joined = False
        """Whether it has received everything between its cursor and now."""
        self.ended = False
        self._wanted = wanted
        self._ring = ring
        self._guard = threading.Lock()
        self._waiting: deque[NewsItem] = deque()
        self._shown: dict[object, int] = {}

    def let_in(self, here: Cursor, look: Callable[[Cursor], Changes]) -> None:
        """Send it what it missed since its cursor. A new follower starts here."""
        missed = None if self._cursor is None else look(self._cursor)
        self._cursor = self._cursor or here
        self.joined = True
        if missed is not None:
            self.tell(missed)
        # So that it immediately knows where to resume if it is disconnected.
        self._ring()

    def tell(self, changes: Changes) -> None:
        """Called by the looking thread."""
        before, after = self._cursor, changes.next
        if before is not None and not self.joined:
            # It will be sent this with everything that it missed.
            return
        news: list[News | Gap] = [each for each in changes.news if self._is_new(each, changes)]
        if not changes.whole:
            news.append(Gap())
        self._forget(after.since)
        # A follower disconnected within a look has to get the rest of it: only its last item moves
        # the cursor past it.
        last = len(news) - 1
        items = [NewsItem(each, after if n == last else before) for n, each in enumerate(news)]
        with self._guard:
            self._cursor = after
            self._waiting.extend(items)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.clear()
                self._waiting.append(NewsItem(Gap(), after))
        # A new follower that came while the others were let in has missed nothing either.
        comes, self.joined = not self.joined, True
        if items or comes:
            self._ring()

    def end(self) -> None:
        """No thread is looking any more."""
        self.ended = True
        self._ring()

    def _is_new(self, news: News, changes: Changes) -> bool:
        """Whether the follower wants it, and was not sent it when it joined."""
        if not self._wanted(news):
            return False
        key = key_of(news)
        if key in self._shown:
            return False
        self._shown[key] = changes.next.since
        return True

    def _forget(self, since: int) -> None:
        if len(self._shown) > MAX_WAITING:
            self._shown = {k: at for k, at in self._shown.items() if at > since - REMEMBERED_MS}

    def take(self) -> NewsBatch:
        with self._guard:
            batch = NewsBatch(list(self._waiting), self._cursor if self.joined else None)
            self._waiting.clear()
        return batch


def key_of(news: News) -> object:
    """The key under which looks return the same news again until it changes."""
    match news:
        case JobNews():
            return news.id, news.look.revision
        case TickNews():
            return news.schedule_id, news.kind, news.tick_at
        case AuditNews():
            return news.id


class SeenNews:
    """Tells new items from those that earlier looks have returned."""

    def __init__(self) -> None:
        self._at: dict[object, int] = {}
        self._live: dict[str, JobNews] = {}
        self._gone: list[JobNews] = []

    def new(self, changes: Changes) -> list[News]:
        """The items that no earlier look has returned."""
        found: list[News] = []
        live: dict[str, JobNews] = {}
        for news in changes.news:
            if isinstance(news, JobNews) and not news.state.is_terminal:
                # Stored and started in the same look, it is there twice: the later one counts.
                if news.id not in live or is_newer(news, live[news.id]):
                    live[news.id] = news
            elif (key := key_of(news)) not in self._at:
                self._at[key] = news.at
                found.append(news)
        found += [news for news in live.values() if self._says_more(news)]
        self._gone = [
            news for job_id, news in self._live.items() if job_id not in live and _runs(news)
        ]
        self._live = live
        self._at = {key: at for key, at in self._at.items() if at >= changes.next.since}
        return found

    @property
    def gone(self) -> list[JobNews]:
        """Jobs that were running at the last look but are not any more: ended, or given back."""
        return self._gone

    def _says_more(self, news: JobNews) -> bool:
        before = self._live.get(news.id)
        return before is None or is_newer(news, before)


def is_newer(news: JobNews, than: JobNews) -> bool:
    return news.look.revision > than.look.revision


def _runs(news: JobNews) -> bool:
    return news.state is State.RUNNING


class Feed:
    """The changes in an app's database. A forked child starts without followers."""

    def __init__(self, ready: Callable[[], Store], now: Callable[[], int]) -> None:
        self._ready = ready
        self._now = now
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._looker: _Looker | None = None
        self._warned = False

    @property
    def store(self) -> Store:
        return self._ready()

    def look(self, cursor: Cursor | None) -> Changes:
        """The changes since a cursor. Without one: no changes, and the cursor to start with."""
        store, now = self._ready(), self._now()
        if cursor is None:
            self._warn_once(store)
            return Changes([], store.newest(now), whole=True)
        return store.changes(cursor, now, LIMIT)

    def _warn_once(self, store: Store) -> None:
        if not self._warned and not store.sees_writers():
            self._warned = True
            log.warning(
                "live events: this role cannot see other roles' open transactions and misses "
                "changes that take more than 5 s to commit; GRANT pg_read_all_stats to it"
            )

    @contextlib.contextmanager
    def following(
        self, wanted: NewsFilter, cursor: Cursor | None, ring: Callable[[], None]
    ) -> Generator[Follower]:
        """Follow changes, starting after the cursor, or now."""
        follower = Follower(wanted, cursor, ring)
        looker = self._add(follower)
        try:
            yield follower
        finally:
            self._remove(looker, follower)

    async def follow(
        self, wanted: NewsFilter, cursor: Cursor | None, *, idle: float
    ) -> AsyncGenerator[NewsBatch]:
        """The same for async code: yields what is new, or that there was nothing for a while.

        It ends when the feed is closed.
        """
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            # On a closed loop nothing is waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(bell.set)

        with self.following(wanted, cursor, ring) as follower:
            while not follower.ended:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(idle):
                        await bell.wait()
                bell.clear()
                yield follower.take()

    def _add(self, follower: Follower) -> _Looker:
        with self._guard:
            if self._pid != os.getpid():
                self._pid, self._looker = os.getpid(), None
            if self._looker is None:
                self._looker = _Looker(self)
            self._looker.followers[follower] = None
            self._looker.start_or_wake()
            return self._looker

    def _remove(self, looker: _Looker, follower: Follower) -> None:
        with self._guard:
            looker.followers.pop(follower, None)
            if not looker.followers and self._looker is looker:
                self._looker = None
                looker.stop()

    def close(self) -> None:
        """End all followers. Later ones start again."""
        with self._guard:
            looker, self._looker = self._looker, None
            followers = [] if looker is None else list(looker.followers)
        if looker is not None and self._pid == os.getpid():
            looker.stop()
            for follower in followers:
                follower.end()
            looker.join(5)


class _Looker:
    """The looking thread. It ends with its last follower, and is not used again."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.followers: dict[Follower, None] = {}
        self._cursor: Cursor | None = None
        self._seen = SeenNews()
        self._gone: dict[str, JobNews] = {}
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duly-feed", daemon=True)
        self._listener = Listener(self._bell, self._stop, "live events")

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

    def _run(self) -> None:
        while not self._stop.is_set():
            self._bell.clear()
            until = os_monotonic() + self._pass_safely()
            # However many changes are announced, not each of them is worth a look.
            self._stop.wait(MIN_LOOK_SECONDS)
            self._bell.wait(max(0.0, until - os_monotonic()))
        self._listener.join(5)

    def _pass_safely(self) -> float:
        """Look once.

        Return the seconds until the next look, unless a change is announced before.
        """
        try:
            return self.one_pass()
        except StoreUnavailable as error:
            log.warning("live events: %s; trying again", error)
        except Exception:
            log.exception("live events")
        return AFTER_OUTAGE

    def one_pass(self) -> float:
        # Before followers are let in, so that changes meanwhile come after it.
        if self._cursor is None:
            self._cursor = self._feed.look(None).next
        for follower in [each for each in list(self.followers) if not each.joined]:
            follower.let_in(self._cursor, self._feed.look)
        changes = self._feed.look(self._cursor)
        self._cursor = changes.next
        news = self._seen.new(changes)
        self._gone |= {gone.id: gone for gone in self._seen.gone}
        try:
            news += self._given_back()
        finally:
            # Even if the store stops answering: no later look returns them as new.
            for follower in list(self.followers):
                follower.tell(changes._replace(news=news))
        return MAX_LOOK_SECONDS if self._listener.hears(self._feed.store) else LOOK_SECONDS

    def _given_back(self) -> list[News]:
        """Jobs that were running and are pending again; nothing else reports those."""
        if not self._gone:
            return []
        looks = self._feed.store.look(list(self._gone))
        gone, self._gone = self._gone, {}
        return [
            gone[look.job_id]._replace(
                state=look.state, token=look.token, attempt=look.attempt, reported=None
            )
            for look in looks
            if look.state is State.PENDING
        ]
