"""Does a process that lives long take more and more memory?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Memory:
    """How much a process has in memory, sampled now and then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[int] = []

    @contextmanager
    def sampled(self, every: float) -> Iterator[None]:
        over = threading.Event()

        def sample() -> None:
            while not over.wait(every):
                # In pages: only the ratio is asked for. There is no such file if it has died.
                with suppress(FileNotFoundError, IndexError):
                    pages = Path(f"/proc/{self._pid}/statm").read_text().split()[1]
                    self._samples.append(int(pages))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def growth(self) -> float:
        """From the second quarter of the time to the last, as a part."""
        quarter = len(self._samples) // 4
        if not quarter:
            return 0.0
        early, late = self._samples[quarter : 2 * quarter], self._samples[-quarter:]
        return sum(late) / len(late) / (sum(early) / len(early)) - 1
