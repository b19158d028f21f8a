"""Runs bodies: async actions on one event loop, sync actions and mutations in threads."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from duly.clock import os_monotonic
from duly.errors import Canceled, StoreError
from duly.model.job import SystemFailed
from duly.runtime.execute import (
    Attempt,
    Committed,
    MutationRunner,
    TakenAway,
    run_action,
    run_async_action,
)
from duly.runtime.home import Home
from duly.runtime.reports import context_of, speak_for
from duly.store.table import Store

log = logging.getLogger(__name__)

Ended = Callable[[Attempt], None]

CONNECT_AGAIN_SECONDS = 1.0

# How often the loop turns for canceled bodies before it stops without them.
ENDING_TURNS = 20

QUICK_SECONDS = 0.001
# For each thread, how many attempts may wait in the queue while bodies are quick.
AHEAD = 9
STUCK_SECONDS = 0.1
# As for actions: a canceled body cleans up, and canceling it again would interrupt that.
CANCEL_AGAIN_SECONDS = 5.0


class Team(Protocol):
    """Runs attempts. If `start_many` raises, none of them runs."""

    def start_many(self, attempts: Sequence[Attempt]) -> None: ...


class AsyncTeam:
    """One event loop in its own thread; async actions and the bodies of async mutations are tasks
    on it.

    Creating a task takes longer than a body that never waits. So bodies share a task, one after the
    other. Once a body has waited or left a trace, later attempts of its function get their own
    tasks.
    """

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}
        # Only used in the loop's own thread.
        self._sharing: deque[Attempt] = deque()
        self._shared: asyncio.Task[None] | None = None
        self._sharer: Attempt | None = None
        self._apart: set[str] = set()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._guard = threading.Lock()
        self._bodies: set[_LoopBody] = set()

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        with self._guard:
            loop = self._started()
        loop.call_soon_threadsafe(self._take, attempts)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop, and wait for its end."""
        with self._guard:
            loop = self._started()
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = self._start_loop()
        return self._loop

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
                # SystemExit in a task that a body has created ends up here.
                log.exception("the event loop of async actions continues after an error")
        # Whatever has not ended will never do so.
        with self._guard:
            for body in self._bodies:
                body.abandon()

    def _take(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if attempt.claim.function in self._apart:
                self._begin(attempt, _new_task(self._run(attempt), context_of(attempt)))
            else:
                self._sharing.append(attempt)
        if self._sharing and self._shared is None:
            self._shared = _new_task(self._run_in_turn(), Context())
            asyncio.get_running_loop().call_soon(self._go_on)

    def _begin(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        self._tasks[attempt] = task
        attempt.cancel_body = partial(self._cancel, attempt)

    async def _run_in_turn(self) -> None:
        task = self._shared
        assert task is not None
        untouched = _traces(task)
        while self._sharing and self._shared is task:
            self._sharer = attempt = self._sharing.popleft()
            context = speak_for(attempt)
            self._begin(attempt, task)
            await self._run(attempt)
            if copy_context() != context or _traces(task) != untouched:
                self._apart.add(attempt.claim.function)
                return

    def _go_on(self) -> None:
        """The shared task waits or is done: the attempts after its last body need another."""
        if self._shared and self._sharer and not self._shared.done():
            self._apart.add(self._sharer.claim.function)
        self._shared = self._sharer = None
        behind = list(self._sharing)
        self._sharing.clear()
        self._take(behind)

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
        # Only here, where no body runs, is it certain that the task is still that of the attempt.
        if (task := self._tasks.get(attempt)) is not None and attempt.may_disturb():
            task.cancel()

    def serve(self, attempt: Attempt, coroutine: Coroutine[Any, Any, Any], home: Home) -> Any:
        """Run a mutation's body on the loop, and the statements that it submits in this thread."""
        body = _LoopBody(coroutine)
        with self._guard:
            if self._stopping:
                coroutine.close()
                raise _stopped()
            loop = self._started()
            self._bodies.add(body)
        try:
            # A loop that has closed meanwhile has abandoned the body.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(body.begin)
            self._let_cancel(attempt, body, loop)
            home.serve_until(body.end)
            return body.end.result()
        finally:
            with self._guard:
                self._bodies.discard(body)

    def _let_cancel(
        self, attempt: Attempt, body: _LoopBody, loop: asyncio.AbstractEventLoop
    ) -> None:
        interrupt = attempt.cancel_body

        def cancel() -> None:
            # On a closed loop nothing is running.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(body.cancel)
            if interrupt is not None:
                interrupt()

        attempt.cancel_body = cancel
        if attempt.canceled:
            cancel()

    def stop(self) -> None:
        self._stopping = True
        if self._loop is not None and self._thread is not None:
            # Later: attempts handed over before have started by then, and can end.
            self._loop.call_soon_threadsafe(self._stop_soon, self._loop, ENDING_TURNS)
            self._thread.join(1)
            if not self._thread.is_alive():
                self._loop.close()
            self._loop = None

    def _stop_soon(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        """A body that was canceled ends after some turns: first its branches, then itself."""
        if turns and (self._tasks or turns == ENDING_TURNS):
            loop.call_soon(self._stop_soon, loop, turns - 1)
        else:
            loop.stop()


class _LoopBody:
    """The body of a mutation, for whose end a thread waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.end: Future[Any] = Future()
        self._coroutine = coroutine
        self._context = copy_context()
        self._task: asyncio.Task[None] | None = None
        self._cancel_at = 0.0

    def begin(self) -> None:
        self._task = _new_task(self._run(), self._context)
        self._task.add_done_callback(self._without_beginning)

    def _without_beginning(self, _: asyncio.Task[None]) -> None:
        """A task that is canceled before its first step runs nothing at all."""
        if not self.end.done():
            self._coroutine.close()
            self._fail(asyncio.CancelledError())

    async def _run(self) -> None:
        try:
            value = await self._coroutine
        except BaseException as error:
            self._fail(error)
        else:
            self.end.set_result(value)

    def cancel(self) -> None:
        now = os_monotonic()
        if self._task is not None and now >= self._cancel_at:
            self._cancel_at = now + CANCEL_AGAIN_SECONDS
            self._task.cancel()

    def abandon(self) -> None:
        """The loop has stopped, so the body does not continue."""
        if self._task is None:
            self._coroutine.close()
        self._fail(_stopped())

    def _fail(self, error: BaseException) -> None:
        if not self.end.done():
            self.end.set_exception(error)


def _stopped() -> Canceled:
    return Canceled("the worker has stopped; the transaction is rolled back")


def _new_task(coroutine: Coroutine[Any, Any, None], context: Context) -> asyncio.Task[None]:
    # Not `create_task`: a body may have given the loop a factory that starts tasks immediately.
    return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), context=context)


def _traces(task: asyncio.Task[None]) -> tuple[object, ...]:
    """What a body can leave on its task, for others to find or to affect the next body."""
    return (
        sys.getrefcount(task),
        weakref.getweakrefcount(task),
        task.get_name(),
        task.cancelling(),
        getattr(task, "_must_cancel", False),
    )


class ThreadTeam:
    """Long-lived threads fed from one queue. A new one is started only when all others are busy.

    While bodies are quick, more attempts are accepted than there are threads, as a claim takes
    longer than many such bodies. Those that wait too long because bodies have become slow are taken
    back.
    """

    def __init__(
        self,
        most: int,
        ahead: int,
        ended: Ended,
        run: Callable[[Attempt], None] = run_action,
    ) -> None:
        self._most = most
        self._ahead = min(ahead, AHEAD * most)
        self._ended = ended
        self._run = run
        self._queue: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Attempts that were handed in and have not ended, whether or not a thread has taken them.
        self._unended = 0
        # How long a body takes: the average of the latest ones.
        self._seconds = 1.0
        self._taken_at = os_monotonic()
        self._guard = threading.Lock()

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        if self._queue.empty():
            self._taken_at = os_monotonic()
        for attempt in attempts:
            self._queue.put(attempt)
        with self._guard:
            self._unended += len(attempts)
            try:
                while len(self._threads) < min(self._unended, self._most):
                    self._hire()
            except RuntimeError as error:
                log.error(
                    "cannot start another thread; %d actions share %d: %s",
                    self._unended,
                    len(self._threads),
                    error,
                )

    @property
    def busy(self) -> int:
        """How many attempts have not ended."""
        return self._unended

    @property
    def free(self) -> int:
        """How many more can start now, or very soon."""
        ahead = self._ahead if self._seconds < QUICK_SECONDS else 0
        return max(0, self._most + ahead - self._unended)

    def until_stuck(self) -> float | None:
        """Seconds until the waiting attempts should be taken back; None if none wait."""
        if self._queue.empty():
            return None
        return max(0.0, self._taken_at + STUCK_SECONDS - os_monotonic())

    def _hire(self) -> None:
        name = f"duly-action-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        while (attempt := self._queue.get()) is not None:
            began = self._taken_at = os_monotonic()
            try:
                self._run(attempt)
            except BaseException:
                # A dead thread would still be counted, and later attempts would wait for it
                # forever.
                log.exception("a thread continues after an action that did not end cleanly")
            finally:
                self._have_ended(1, os_monotonic() - began)
                self._ended(attempt)

    def _have_ended(self, attempts: int, seconds: float) -> None:
        with self._guard:
            self._unended -= attempts
            self._seconds += (seconds - self._seconds) / 16

    def take_back(self) -> list[Attempt]:
        """Attempts that no thread has taken yet."""
        taken = _drain(self._queue)
        if taken:
            self._have_ended(len(taken), STUCK_SECONDS)
        return taken

    def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)


class MutationTeam:
    """Runs a few mutations at a time, each in a thread with its own connection."""

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
            log.error(
                "cannot start another thread; %d mutations share %d: %s",
                mutations,
                len(self._threads),
                error,
            )

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
                # Meanwhile the threads that have a connection take new attempts.
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
        """Attempts that no thread has taken yet."""
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
    # A refused connection may be refused many times.
    with_traceback = not isinstance(error, StoreError)
    log.error(
        "mutations could not be run, and will be tried again: %s", error, exc_info=with_traceback
    )
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
