"""Runs work in one thread, whichever thread asks for it.

The connection of a mutation belongs to its worker's thread, and that of a test to the test's, while
async code runs in another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Home(Executor):
    """Runs its own thread's work immediately, and that of other threads when it serves them."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._asked: SimpleQueue[_Task | None] = SimpleQueue()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        task = _Task(lambda: fn(*args, **kwargs))
        if threading.get_ident() == self._thread:
            task.do()
        else:
            self._asked.put(task)
        return task.done

    def serve_until(self, end: Future[Any]) -> None:
        """Do the work that other threads submit, until the future has ended."""
        end.add_done_callback(lambda _: self._asked.put(None))
        try:
            while (task := self._asked.get()) is not None:
                task.do()
        except BaseException:
            self._refuse_until(end)
            raise

    def _refuse_until(self, end: Future[Any]) -> None:
        """This thread was interrupted: threads that still submit work must not wait forever."""
        while not end.done():
            try:
                task = self._asked.get(timeout=0.05)
            except Empty:
                continue
            if task is not None:
                task.done.cancel()


class _Task:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self.done: Future[Any] = Future()

    def do(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)
