"""Queries many gateways at the same time, with one deadline."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from duly.clock import os_monotonic

K = TypeVar("K")
T = TypeVar("T")

Answer = tuple[T | None, BaseException | None]
Answers = queue.SimpleQueue[tuple[K, Answer[T]]]


class AskAll(Generic[K, T]):
    """One thread per pending query; callers with the same query share its answer.

    So a gateway that hangs is not queried over and over.
    """

    def __init__(self, ask: Callable[[K], T]) -> None:
        self._ask = ask
        self._under_way: dict[K, list[Answers[K, T]]] = {}
        self._guard = threading.Lock()

    def __call__(self, subjects: Iterable[K], seconds: float) -> dict[K, Answer[T]]:
        """The answers and errors that arrive in time; subjects without an answer are missing."""
        answers: Answers[K, T] = queue.SimpleQueue()
        asked = dict.fromkeys(subjects)
        for subject in asked:
            self._start(subject, answers)
        give_up_at = os_monotonic() + seconds
        found: dict[K, Answer[T]] = {}
        while len(found) < len(asked):
            try:
                subject, answer = answers.get(timeout=max(0.0, give_up_at - os_monotonic()))
            except queue.Empty:
                break
            found[subject] = answer
        return found

    def _start(self, subject: K, answers: Answers[K, T]) -> None:
        with self._guard:
            waiting = self._under_way.setdefault(subject, [])
            waiting.append(answers)
            if len(waiting) > 1:
                return
        # A daemon thread, so that a gateway that never answers does not keep the process alive.
        thread = threading.Thread(target=self._run, args=(subject,), name="duly-ask", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left
            self._end(subject, (None, error))

    def _run(self, subject: K) -> None:
        try:
            answer: Answer[T] = (self._ask(subject), None)
        except BaseException as error:
            answer = (None, error)
        self._end(subject, answer)

    def _end(self, subject: K, answer: Answer[T]) -> None:
        with self._guard:
            waiting = self._under_way.pop(subject)
        for answers in waiting:
            answers.put((subject, answer))
