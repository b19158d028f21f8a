"""Ask many gateways at the same time, and wait for none longer than for all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from duly.clock import os_monotonic

K = TypeVar("K")
T = TypeVar("T")

Answer = tuple[T | None, BaseException | None]


class AskAll(Generic[K, T]):
    """One thread per question that is under way; a question that hangs is not asked again."""

    def __init__(self, ask: Callable[[K], T]) -> None:
        self._ask = ask
        self._under_way: set[K] = set()
        self._guard = threading.Lock()

    def __call__(self, subjects: Iterable[K], seconds: float) -> dict[K, Answer[T]]:
        """The answers and errors that have come by then; who is silent is missing."""
        answers: queue.SimpleQueue[tuple[K, Answer[T]]] = queue.SimpleQueue()
        started = [subject for subject in subjects if self._start(subject, answers)]
        give_up_at = os_monotonic() + seconds
        found: dict[K, Answer[T]] = {}
        while len(found) < len(started):
            try:
                subject, answer = answers.get(timeout=max(0.0, give_up_at - os_monotonic()))
            except queue.Empty:
                break
            found[subject] = answer
        return found

    def _start(self, subject: K, answers: queue.SimpleQueue[tuple[K, Answer[T]]]) -> bool:
        with self._guard:
            if subject in self._under_way:
                return False
            self._under_way.add(subject)
        # Daemonic: whoever never answers must not keep the process.
        thread = threading.Thread(target=self._run, args=(subject, answers), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left
            self._end(subject)
            answers.put((subject, (None, error)))
        return True

    def _run(self, subject: K, answers: queue.SimpleQueue[tuple[K, Answer[T]]]) -> None:
        answer: Answer[T]
        try:
            answer = (self._ask(subject), None)
        except BaseException as error:
            answer = (None, error)
        self._end(subject)
        answers.put((subject, answer))

    def _end(self, subject: K) -> None:
        with self._guard:
            self._under_way.discard(subject)
