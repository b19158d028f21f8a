"""The schedule index for code without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from duly.index.claims import DatabaseIndex
from duly.index.rows import LIMIT, IndexRow, ScheduleIndex

T = TypeVar("T")


class SyncScheduleIndex:
    """The verbs of any schedule index, without `await`.

    A third-party index runs on an event loop that this adapter keeps in a thread.
    """

    def __init__(self, index: ScheduleIndex) -> None:
        self._index = index
        self._loop = LoopThread()

    def upsert(self, row: IndexRow) -> None:
        """Write a row, replacing any row with the same user and key."""
        if isinstance(self._index, DatabaseIndex):
            self._index.upsert_now(row)
        else:
            self._loop.run(self._index.upsert(row))

    def claim_due(self, now: int, limit: int = LIMIT) -> Sequence[IndexRow]:
        """Take due rows, longest overdue first, and advance them, atomically."""
        if isinstance(self._index, DatabaseIndex):
            return self._index.claim_now(now, limit)
        return self._loop.run(self._index.claim_due(now, limit))

    def remove(self, user_id: str, key: str) -> None:
        """Remove the row, if it exists."""
        if isinstance(self._index, DatabaseIndex):
            self._index.remove_now(user_id, key)
        else:
            self._loop.run(self._index.remove(user_id, key))

    def close(self) -> None:
        """Stop the event loop, if there is one; the index itself stays open."""
        self._loop.close()


class LoopThread:
    """An event loop in a thread, started on demand and restarted after a fork."""

    def __init__(self) -> None:
        self._by_process: dict[int, asyncio.AbstractEventLoop] = {}
        self._starting = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running()).result()

    def close(self) -> None:
        loop = self._by_process.pop(os.getpid(), None)
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if os.getpid() not in self._by_process:
                loop = self._by_process[os.getpid()] = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=[loop], name="duly-index", daemon=True).start()
            return self._by_process[os.getpid()]


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_others())
    finally:
        loop.close()


async def _cancel_others() -> None:
    """Another thread that waits for one of them would otherwise wait forever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
