"""Checks that a long-lived process does not use more and more memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median


class Memory:
    """How much memory a process uses, sampled now and then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[int] = []

    @contextmanager
    def sampled(self, every: float) -> Iterator[None]:
        over = threading.Event()

        def sample() -> None:
            while not over.wait(every):
                # The file does not exist if the process has died.
                with suppress(FileNotFoundError, ProcessLookupError, ValueError):
                    self._samples.append(own_pages(Path(f"/proc/{self._pid}/statm").read_text()))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def growth(self) -> float:
        return growth(self._samples)


def own_pages(statm: str) -> int:
    """Without pages of files: those of a database in memory grow with the database."""
    _, resident, shared, *_ = map(int, statm.split())
    return resident - shared


def growth(samples: Sequence[int]) -> float:
    """Growth from the third quarter of the time to the last, as a share.

    The first half is for warming up: the first failure of each kind loads more code into memory.
    """
    quarter = len(samples) // 4
    if not quarter:
        return 0.0
    return median(samples[-quarter:]) / median(samples[-2 * quarter : -quarter]) - 1
