"""Where do bodies run? Async actions on one event loop, sync ones and mutations in threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from duly.errors import StoreError
from duly.model.job import SystemFailed
from duly.runtime.execute import (
    Attempt,
    Committed,
    MutationRunner,
    TakenAway,
    run_action,
    run_async_action,
)
from duly.runtime.reports import speak_for
from duly.store.base import Store

log = logging.getLogger(__name__)

Ended = Callable[[Attempt], None]

CONNECT_AGAIN_SECONDS = 1.0


class Team(Protocol):
    """Runs attempts. Where `start_many` raises, it runs none of those."""

    def start_many(self, attempts: Sequence[Attempt]) -> None: ...


class AsyncTeam:
    """One event loop in a thread of its own, with a task for every async action that waits.

    A body that ends without having waited leaves its task to the next one: making a task takes
    longer than such a body.
    """

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[Attempt] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        if self._loop is None:
            self._loop = self._start_loop()
        self._loop.call_soon_threadsafe(self._take, attempts)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=self._run_loop, args=(loop,), name="duly-async", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._thread = thread
        return loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping:
            try:
                loop.run_forever()
            except BaseException:
                # SystemExit in a task that a body has made comes through to here.
                log.exception("the event loop of async actions goes on after an error")

    def _take(self, attempts: Sequence[Attempt]) -> None:
        self._queue.extend(attempts)
        if self._runner is None:
            self._run_queue()

    def _run_queue(self) -> None:
        """Let a new task run what is queued; comes again when that one waits or is done."""
        assert self._loop is not None
        self._runner = None
        if self._queue:
            self._runner = self._loop.create_task(self._run_in_turn(), context=Context())
            self._loop.call_soon(self._run_queue)

    async def _run_in_turn(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        # A body that has waited may be known to others by its task, and one that has changed its
        # context or was told to stop has left a mark on it: none of that is for the next body.
        while self._runner is task and self._queue and not task.cancelling():
            attempt = self._queue.popleft()
            context = speak_for(attempt)
            self._tasks[attempt] = task
            attempt.cancel_body = partial(self._cancel, attempt)
            await self._run(attempt)
            if copy_context() != context:
                break

    async def _run(self, attempt: Attempt) -> None:
        try:
            await run_async_action(attempt)
        finally:
            self._tasks.pop(attempt, None)
            self._ended(attempt)

    def _cancel(self, attempt: Attempt) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_task, attempt)

    def _cancel_task(self, attempt: Attempt) -> None:
        # Only here, where no body runs, is it sure that the task is still that of the attempt.
        if (task := self._tasks.get(attempt)) is not None:
            task.cancel()

    def stop(self) -> None:
        self._stopping = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1)
            if not self._thread.is_alive():
                self._loop.close()
            self._loop = None


class ThreadTeam:
    """Long-lived threads fed from one queue; a new one only when all others are busy."""

    def __init__(
        self, most: int, ended: Ended, run: Callable[[Attempt], None] = run_action
    ) -> None:
        self._most = most
        self._ended = ended
        self._run = run
        self._queue: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Attempts that were handed in and have not ended: whether a thread has taken one yet or
        # is about to makes no difference.
        self._unended = 0
        self._guard = threading.Lock()

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._queue.put(attempt)
        with self._guard:
            self._unended += len(attempts)
            try:
                while len(self._threads) < min(self._unended, self._most):
                    self._hire()
            except RuntimeError as error:
                log.error(
                    "%d actions share %d threads: %s", self._unended, len(self._threads), error
                )

    def _hire(self) -> None:
        name = f"duly-action-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        while (attempt := self._queue.get()) is not None:
            try:
                self._run(attempt)
            except BaseException:
                # A dead thread would be counted on: what comes next would wait for it for ever.
                log.exception("a thread goes on after an action that could not be ended in order")
            finally:
                self._have_ended(1)
                self._ended(attempt)

    def _have_ended(self, attempts: int) -> None:
        with self._guard:
            self._unended -= attempts

    def take_back(self) -> list[Attempt]:
        """Whatever no thread has taken yet."""
        taken = _drain(self._queue)
        self._have_ended(len(taken))
        return taken

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)


class MutationTeam:
    """A thread and a connection each for a few mutations at a time."""

    def __init__(
        self,
        store: Store,
        make_runner: Callable[[], MutationRunner],
        ended: Ended,
        settled: Callable[[Attempt, bool], None],
    ) -> None:
        self._store = store
        self._make_runner = make_runner
        self._ended = ended
        self._settled = settled
        self._queue: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unended = 0
        self._guard = threading.Lock()
        self._stopped = threading.Event()

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        with self._guard:
            self._hire_for(self._unended + len(attempts))
            self._unended += len(attempts)
        for attempt in attempts:
            self._queue.put(attempt)

    def _hire_for(self, mutations: int) -> None:
        try:
            while len(self._threads) < min(mutations, self._store.mutation_lanes):
                self._hire()
        except RuntimeError as error:
            if not self._threads:
                raise
            log.error("%d mutations share %d threads: %s", mutations, len(self._threads), error)

    def _hire(self) -> None:
        name = f"duly-mutation-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _have_ended(self, attempts: int) -> None:
        with self._guard:
            self._unended -= attempts

    def waiting(self) -> int:
        return self._queue.qsize()

    def _work(self) -> None:
        runner: MutationRunner | None = None
        while batch := self._next_batch():
            try:
                runner = runner or self._make_runner()
                self._run(runner, batch)
            except Exception as error:
                _try_again_later(batch, error)
            finally:
                self._have_ended(len(batch))
                for attempt in batch:
                    self._ended(attempt)
            if runner is None:
                # Meanwhile the threads that have a connection take what comes.
                self._stopped.wait(CONNECT_AGAIN_SECONDS)
        if runner is not None:
            runner.close()

    def _run(self, runner: MutationRunner, batch: Sequence[Attempt]) -> None:
        for attempt, end in runner.run(batch):
            if isinstance(end, Committed | TakenAway):
                self._settled(attempt, isinstance(end, Committed))
            else:
                attempt.resolve(end)

    def _next_batch(self) -> list[Attempt]:
        first = self._queue.get()
        if first is None:
            return []
        batch = [first]
        while len(batch) < self._store.mutation_group and self._may_share(batch[-1]):
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
            if following is None:
                self._queue.put(None)
                break
            batch.append(following)
        return batch

    def _may_share(self, attempt: Attempt) -> bool:
        return self._store.mutations_share or attempt.runnable.group

    def take_back(self) -> list[Attempt]:
        """Whatever no thread has taken yet."""
        taken = _drain(self._queue)
        self._have_ended(len(taken))
        return taken

    def stop(self) -> None:
        self._stopped.set()
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout: float) -> None:
        for thread in self._threads:
            thread.join(timeout)


def _try_again_later(batch: Sequence[Attempt], error: Exception) -> None:
    # A connection that is refused may be refused many times.
    with_traceback = not isinstance(error, StoreError)
    log.error("mutations could not be run, and wait: %s", error, exc_info=with_traceback)
    for attempt in batch:
        attempt.resolve(SystemFailed(f"could not be run: {error}"))


def _drain(queue: SimpleQueue[Any]) -> list[Attempt]:
    taken: list[Attempt] = []
    while True:
        try:
            attempt = queue.get_nowait()
        except Empty:
            return taken
        if attempt is not None:
            taken.append(attempt)
