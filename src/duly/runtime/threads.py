"""The threads in which duly waits for the database on behalf of async code.

They are not those of the loop's default executor: there are few of those, and the program's other
work there would wait behind duly's writes. Reads have their own threads, since they never wait for
a lock that writers hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from duly.runtime.home import Home

T = TypeVar("T")

CALLS = 32
"""Concurrent writes. More of them share one commit."""
READS = 4
TRANSACTIONS = 16
"""Concurrent transactions in one event loop. Each has a thread and a connection."""


Outcome = tuple[Any, BaseException | None]
"""The returned value, or the exception."""
AnswerAll = Callable[[list[Any]], list[Outcome]]
_Question = tuple[Any, asyncio.Future[Any]]
MakeExecutor = Callable[[int, str], Executor]


class Threads:
    """The threads of one app, created when needed, and again after a fork."""

    def __init__(
        self,
        make: MakeExecutor = ThreadPoolExecutor,
        transactions: int | None = None,
        here: Callable[[], Home] = Home,
    ) -> None:
        self._make = make
        self.here = here
        """Return what does the work of other threads in the calling one."""
        self._transactions = transactions
        self._by_process: dict[int, _Pools] = {}

    async def call(self, work: Callable[[], T]) -> T:
        """Run work that may wait for a lock. If canceled, it may have happened or not."""
        return await asyncio.wrap_future(submit(self._pools.calls, work))

    async def read(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(submit(self._pools.reads, work))

    async def look(self, work: Callable[[], T]) -> T:
        """Do a short read, together with all others requested in the same iteration of the loop.

        Waiting for a job means frequent reads: many waiters must not cost one thread switch each.
        """
        answer: T = await self._gathered(lambda: self._pools.reads, outcomes_of, work)
        return answer

    async def join(self, answer_all: AnswerAll, question: object) -> Any:
        """Run work that may wait for a lock, once for all calls in an iteration of the loop."""
        return await self._gathered(lambda: self._pools.calls, answer_all, question)

    def _gathered(
        self, pool: Callable[[], Executor], answer_all: AnswerAll, question: object
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        asked = self._pools.asked_in(loop, answer_all)
        answer: asyncio.Future[Any] = loop.create_future()
        asked.append((question, answer))
        if len(asked) == 1:
            loop.call_soon(self._ask_all, pool, answer_all, asked, loop)
        return answer

    def _ask_all(
        self,
        pool: Callable[[], Executor],
        answer_all: AnswerAll,
        asked: list[_Question],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        questions = [question for question in asked if not question[1].done()]
        asked.clear()
        if not questions:
            return
        try:
            # Looked up only now: the pool may have been closed since the calls.
            pool().submit(_answer_all, answer_all, questions, loop)
        except Exception as error:
            _deliver(questions, [(None, error)] * len(questions))

    def start(self, work: Callable[[], object]) -> None:
        """Run it as soon as possible, without waiting for it."""
        submit(self._pools.reads, work)

    async def seat(self) -> Callable[[], None]:
        """Wait until another transaction may be opened. Call the result to release its place."""
        loop = asyncio.get_running_loop()
        seats = self._pools.seats_of(loop)
        await seats.acquire()

        def release() -> None:
            # On a closed loop nothing is waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(seats.release)

        return release

    def for_transaction(self) -> Executor:
        """One thread, for one transaction from start to end."""
        return self._make(1, "duly-transaction")

    def close(self) -> None:
        """Wait for work in progress, then end the threads. Later calls get new ones."""
        pools = self._by_process.pop(os.getpid(), None)
        if pools is not None:
            pools.calls.shutdown()
            pools.reads.shutdown()

    @property
    def _pools(self) -> _Pools:
        # No lock, because a fork could leave it held: of two pools created at once one is dropped
        # unused.
        pid = os.getpid()
        return self._by_process.get(pid) or self._by_process.setdefault(
            pid, _Pools(self._make, min(self._transactions or TRANSACTIONS, TRANSACTIONS))
        )


class _Pools:
    def __init__(self, make: MakeExecutor, transactions: int) -> None:
        self.calls = make(CALLS, "duly-call")
        self.reads = make(READS, "duly-read")
        self._transactions = transactions
        self._seats: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._asked: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[AnswerAll, list[_Question]]
        ] = weakref.WeakKeyDictionary()

    def asked_in(self, loop: asyncio.AbstractEventLoop, answer_all: AnswerAll) -> list[_Question]:
        return self._asked.setdefault(loop, {}).setdefault(answer_all, [])

    def seats_of(self, loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
        return self._seats.setdefault(loop, asyncio.Semaphore(self._transactions))


def submit(executor: Executor, work: Callable[[], T]) -> Future[T]:
    """Start the work in a thread, with the caller's context variables."""
    return executor.submit(contextvars.copy_context().run, _guard, work)


def _guard(work: Callable[[], T]) -> T:
    try:
        return work()
    except StopIteration as error:
        # A future cannot carry it: the awaiting caller would wait forever.
        raise RuntimeError("the call raised StopIteration") from error


def _answer_all(
    answer_all: AnswerAll, questions: list[_Question], loop: asyncio.AbstractEventLoop
) -> None:
    answers: list[Outcome]
    try:
        answers = answer_all([question for question, _ in questions])
    except BaseException as error:
        answers = [(None, error) for _ in questions]
    # On a closed loop nothing is waiting.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_deliver, questions, answers)


def outcomes_of(works: list[Callable[[], Any]]) -> list[Outcome]:
    """The outcome of each; an error in one does not affect the others."""
    return [_outcome(work) for work in works]


def _outcome(work: Callable[[], Any]) -> Outcome:
    try:
        return _guard(work), None
    except BaseException as error:
        return None, error


def _deliver(questions: list[_Question], answers: list[Outcome]) -> None:
    for (_, answer), (value, error) in zip(questions, answers, strict=True):
        if answer.done():
            continue
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)


async def to_the_end(future: asyncio.Future[T]) -> T:
    """Wait for the future even if this task is canceled meanwhile; then raise the cancellation."""
    canceled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            canceled = error
    if canceled is not None:
        raise canceled from future.exception()
    return future.result()
