"""Lets one process see what the bodies in another have done.

A few bytes of a file that both have mapped: how many bodies ran, and when the first one did; and a
list of times for the latency. Uses only the standard library, because peers use it too.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from pathlib import Path

_FIELDS = struct.Struct("=qq")


class Marks:
    """Written by bodies, read by the benchmark."""

    def __init__(self, path: Path) -> None:
        self._pings = path.with_suffix(".pings")
        self._file = open(path, "a+b")  # noqa: SIM115
        self._file.truncate(_FIELDS.size)
        self._memory = mmap.mmap(self._file.fileno(), _FIELDS.size)
        self._guard = threading.Lock()
        self._count = self.count
        self._first = self.first_at

    # The body's end

    def mark(self) -> None:
        """One body has run."""
        with self._guard:
            self._count += 1
            if self._count == 1:
                self._first = time.monotonic_ns()
            _FIELDS.pack_into(self._memory, 0, self._count, self._first)

    def ping(self, sent_at: int) -> None:
        """Record that a body has started which was enqueued at this monotonic instant."""
        took = time.monotonic_ns() - sent_at
        with open(self._pings, "a") as pings:
            pings.write(f"{took}\n")
        self.mark()

    # The reader's end

    @property
    def count(self) -> int:
        count: int = _FIELDS.unpack_from(self._memory)[0]
        return count

    @property
    def first_at(self) -> int:
        """The monotonic nanosecond of the first mark."""
        first: int = _FIELDS.unpack_from(self._memory)[1]
        return first

    def pings(self) -> list[float]:
        """How long each ping took, in milliseconds."""
        return [int(line) / 1e6 for line in self._pings.read_text().split()]

    def wait_for_pings(self, count: int, patience: float) -> None:
        """Return when this many pings have arrived, whatever other bodies have run."""
        until = time.monotonic() + patience
        while not self._pings.exists() or len(self.pings()) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"fewer than {count} pings arrived in {patience:g} s")
            time.sleep(0.002)

    def wait_for(self, count: int, patience: float) -> None:
        """Return when this many bodies have run."""
        until = time.monotonic() + patience
        while self.count < count:
            if time.monotonic() > until:
                raise TimeoutError(f"{self.count} of {count} jobs ran in {patience:g} s")
            time.sleep(0.002)

    def close(self) -> None:
        self._memory.close()
        self._file.close()
