"""Shared memory by which a parent process detects that a worker process is stuck.

Parent and child share a few bytes of memory. The child writes the id of its worker, when it last
made progress and until when its current mutation may hold the database. The parent only reads, so
the child cannot hide being stuck, even if it holds the GIL forever.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from duly.clock import os_monotonic

NO_PROGRESS = 60.0
BODY_GRACE = 5.0
PROGRESS_SECONDS = 1.0

# Different threads of the child write these, so each has its own place: two times, and an id.
_PROGRESS_AT, _BODY_UNTIL = 0, 1
_WORKER_ID = 16
_SIZE = _WORKER_ID + 36


class Lifeline:
    """The child's end and the parent's end of the shared bytes."""

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, _SIZE)
        # Each is written in one piece. struct.pack_into would set the bytes to zero first, and a
        # parent that reads at that moment would kill a healthy child.
        self._times = memoryview(self._memory)[:_WORKER_ID].cast("d")
        self._guard = threading.Lock()
        self._until: dict[object, float] = {}

    @classmethod
    def create(cls) -> tuple[Lifeline, int]:
        """A new lifeline, and the file descriptor to hand to the child."""
        file = os.memfd_create("duly-lifeline") if hasattr(os, "memfd_create") else _temporary()
        try:
            os.ftruncate(file, _SIZE)
            lifeline = cls(file)
        except BaseException:
            os.close(file)
            raise
        lifeline.progress()
        return lifeline, file

    def worker_is(self, worker_id: str) -> None:
        self._memory[_WORKER_ID:_SIZE] = worker_id.encode()

    @property
    def worker_id(self) -> str | None:
        """The child's worker id; a host and process id could belong to another worker."""
        return self._memory[_WORKER_ID:_SIZE].strip(b"\0").decode() or None

    def progress(self) -> None:
        self._times[_PROGRESS_AT] = os_monotonic()

    @contextmanager
    def kept_alive(self) -> Generator[None]:
        """Within this block, which may take long, the child does not look stuck."""
        ended = threading.Event()

        def keep() -> None:
            while not ended.wait(PROGRESS_SECONDS):
                self.progress()

        thread = threading.Thread(target=keep, name="duly-lifeline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def body_began(self, body: object, seconds: float) -> None:
        with self._guard:
            self._until[body] = os_monotonic() + seconds
            self._write_until()

    def body_ended(self, body: object) -> None:
        with self._guard:
            self._until.pop(body, None)
            self._write_until()

    def _write_until(self) -> None:
        """The earliest time at which one of the running bodies is overdue."""
        self._times[_BODY_UNTIL] = min(self._until.values(), default=0.0)
        self.progress()

    def stuck(self) -> str | None:
        """Why the child has to be killed, if it has to."""
        now = os_monotonic()
        body_until = self._times[_BODY_UNTIL]
        if body_until and now > body_until + BODY_GRACE:
            return "a mutation holds its transaction past its time limit"
        if now > self._times[_PROGRESS_AT] + NO_PROGRESS:
            return f"it has made no progress for {NO_PROGRESS:g} s"
        return None

    def close(self) -> None:
        self._times.release()
        self._memory.close()


def _temporary() -> int:
    import tempfile

    file, path = tempfile.mkstemp(prefix="duly-")
    os.unlink(path)
    return file
