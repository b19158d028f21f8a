"""Shared memory by which a parent process sees that a worker process is stuck.

A few bytes of memory that both share: the child writes the id of its worker, when it last made
progress and until when its current mutation may hold the database; the parent only reads, so
nothing that the child does, not even holding the interpreter's lock for ever, can hide it.
"""

from __future__ import annotations

import mmap
import os
import threading

from duly.clock import os_monotonic

NO_PROGRESS = 60.0
BODY_GRACE = 5.0

# Written by different threads of the child, so each has a place of its own: two times, and an id.
_PROGRESS_AT, _BODY_UNTIL = 0, 1
_WORKER_ID = 16
_SIZE = _WORKER_ID + 36


class Lifeline:
    """The child's end and the parent's end of the shared bytes."""

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, _SIZE)
        # Each is written in one piece. struct.pack_into would set the bytes to zero first, and a
        # parent that looks just then would kill a child that is well.
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
        """Under which id the child works; a host and a process id could be somebody else's."""
        return self._memory[_WORKER_ID:_SIZE].strip(b"\0").decode() or None

    def progress(self) -> None:
        self._times[_PROGRESS_AT] = os_monotonic()

    def body_began(self, body: object, seconds: float) -> None:
        with self._guard:
            self._until[body] = os_monotonic() + seconds
            self._write_until()

    def body_ended(self, body: object) -> None:
        with self._guard:
            self._until.pop(body, None)
            self._write_until()

    def _write_until(self) -> None:
        """The first of the running bodies that would be overdue."""
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
