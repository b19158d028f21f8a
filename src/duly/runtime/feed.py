"""The live feed: tells every follower in this process what has changed in the store.

One thread looks for everybody in this process who follows what happens, and only while somebody
does. What it finds goes to all of them; what it has shown before does not. A follower that cannot
keep up, or that missed too much, is told to look at the things themselves (`Gap`).
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
"""Between two looks where nothing tells of a change."""
MAX_LOOK_SECONDS = 1.0
"""The same where something does."""
MIN_LOOK_SECONDS = 0.05
AFTER_OUTAGE = 1.0
LIMIT = 5_000
MAX_WAITING = 2_000
"""A follower for whom more is waiting than that gets a gap instead."""
REMEMBERED_MS = 60_000


class Follower:
    """One who looks on, from a thread of its own or an event loop."""

    def __init__(self, wanted: NewsFilter, cursor: Cursor | None, ring: Callable[[], None]) -> None:
        self._cursor = cursor
        self.joined = False
        """Whether it has seen what happened between its cursor and now."""
        self.ended = False
        self._wanted = wanted
        self._ring = ring
        self._guard = threading.Lock()
        self._waiting: deque[NewsItem] = deque()
        self._shown: dict[object, int] = {}

    def let_in(self, here: Cursor, look: Callable[[Cursor], Changes]) -> None:
        """Show it what happened since it was here last; one who is new begins here."""
        missed = None if self._cursor is None else look(self._cursor)
        self._cursor = self._cursor or here
        self.joined = True
        if missed is not None:
            self.tell(missed)
        # So that it knows at once from where to go on, should it be cut off.
        self._ring()

    def tell(self, changes: Changes) -> None:
        """From the thread that looks."""
        before, after = self._cursor, changes.next
        if before is not None and not self.joined:
            # It will be shown this with all that it missed.
            return
        news: list[News | Gap] = [each for each in changes.news if self._is_new(each, changes)]
        if not changes.whole:
            news.append(Gap())
        self._forget(after.since)
        # One who was cut off within a look has to see the rest of it: only its end is past it.
        last = len(news) - 1
        items = [NewsItem(each, after if n == last else before) for n, each in enumerate(news)]
        with self._guard:
            self._cursor = after
            self._waiting.extend(items)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.clear()
                self._waiting.append(NewsItem(Gap(), after))
        # One who is new, and came while the others were let in, has missed nothing either.
        comes, self.joined = not self.joined, True
        if items or comes:
            self._ring()

    def end(self) -> None:
        """There is nobody any more who looks."""
        self.ended = True
        self._ring()

    def _is_new(self, news: News, changes: Changes) -> bool:
        """Whether it is wanted, and was not shown when the follower joined."""
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
    """What a look shows again as long as nothing is new about it."""
    match news:
        case JobNews():
            return news.id, news.look.revision
        case TickNews():
            return news.schedule_id, news.kind, news.tick_at
        case AuditNews():
            return news.id


class SeenNews:
    """Tells what looks have shown before from what is new."""

    def __init__(self) -> None:
        self._at: dict[object, int] = {}
        self._live: dict[str, JobNews] = {}
        self._gone: list[JobNews] = []

    def new(self, changes: Changes) -> list[News]:
        """What no look before has shown."""
        found: list[News] = []
        live: dict[str, JobNews] = {}
        for news in changes.news:
            if isinstance(news, JobNews) and not news.state.is_terminal:
                # Stored and started in the same look, it comes twice: the later one counts.
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
        """What ran at the last look but one and does not any more: ended, or given back."""
        return self._gone

    def _says_more(self, news: JobNews) -> bool:
        before = self._live.get(news.id)
        return before is None or is_newer(news, before)


def is_newer(news: JobNews, than: JobNews) -> bool:
    return news.look.revision > than.look.revision


def _runs(news: JobNews) -> bool:
    return news.state is State.RUNNING


class Feed:
    """What happens on an app's database; in a forked child nobody follows it yet."""

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
        """What has changed since; without a cursor, nothing, and where one begins."""
        store, now = self._ready(), self._now()
        if cursor is None:
            self._warn_once(store)
            return Changes([], store.newest(now), whole=True)
        return store.changes(cursor, now, LIMIT)

    def _warn_once(self, store: Store) -> None:
        if not self._warned and not store.sees_writers():
            self._warned = True
            log.warning(
                "live events: this role does not see how long others write, and misses what "
                "they commit after more than 5 s; GRANT pg_read_all_stats to it"
            )

    @contextlib.contextmanager
    def following(
        self, wanted: NewsFilter, cursor: Cursor | None, ring: Callable[[], None]
    ) -> Generator[Follower]:
        """Follow what happens, beginning after the cursor, or now."""
        follower = Follower(wanted, cursor, ring)
        looker = self._add(follower)
        try:
            yield follower
        finally:
            self._remove(looker, follower)

    async def follow(
        self, wanted: NewsFilter, cursor: Cursor | None, *, idle: float
    ) -> AsyncGenerator[NewsBatch]:
        """The same for async code: what is new, or that nothing was for a while.

        It ends when the feed is closed.
        """
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            # A closed loop has nobody who waits.
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
        """Let everybody go who follows; whoever comes later begins anew."""
        with self._guard:
            looker, self._looker = self._looker, None
            followers = [] if looker is None else list(looker.followers)
        if looker is not None and self._pid == os.getpid():
            looker.stop()
            for follower in followers:
                follower.end()
            looker.join(5)


class _Looker:
    """The thread that looks. It ends with its last follower, and is not used again."""

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
            # However many changes are told, not each of them is worth a look.
            self._stop.wait(MIN_LOOK_SECONDS)
            self._bell.wait(max(0.0, until - os_monotonic()))
        self._listener.join(5)

    def _pass_safely(self) -> float:
        """Look once; the seconds until the next look, if nothing is told before."""
        try:
            return self.one_pass()
        except StoreUnavailable as error:
            log.warning("live events: %s; trying again", error)
        except Exception:
            log.exception("live events")
        return AFTER_OUTAGE

    def one_pass(self) -> float:
        # Before anybody is let in: what happens while that is done comes after it.
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
            # Also if the store gives no answer any more: no later look shows them as new.
            for follower in list(self.followers):
                follower.tell(changes._replace(news=news))
        return MAX_LOOK_SECONDS if self._listener.hears(self._feed.store) else LOOK_SECONDS

    def _given_back(self) -> list[News]:
        """Jobs that ran and wait again; nothing else tells of those."""
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
