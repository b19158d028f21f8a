"""How does a parent process see that a worker process is stuck?

A few bytes of memory that both share: the child writes when it last made progress and until when
its current mutation may hold the database; the parent only reads, so nothing that the child does,
not even holding the interpreter's lock for ever, can hide it.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading

from duly.clock import os_monotonic

NO_PROGRESS = 60.0
BODY_GRACE = 5.0
_FIELDS = struct.Struct("=dd")


class Lifeline:
    """The child's end and the parent's end of the shared bytes."""

    def __init__(self, file: int) -> None:
        self._memory = mmap.mmap(file, _FIELDS.size)
        self._guard = threading.Lock()
        self._until: dict[object, float] = {}

    @classmethod
    def create(cls) -> tuple[Lifeline, int]:
        """A new lifeline, and the file descriptor to hand to the child."""
        file = os.memfd_create("duly-lifeline") if hasattr(os, "memfd_create") else _temporary()
        os.ftruncate(file, _FIELDS.size)
        lifeline = cls(file)
        lifeline.progress()
        return lifeline, file

    def progress(self) -> None:
        _, body_until = _FIELDS.unpack_from(self._memory)
        _FIELDS.pack_into(self._memory, 0, os_monotonic(), body_until)

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
        first = min(self._until.values(), default=0.0)
        _FIELDS.pack_into(self._memory, 0, os_monotonic(), first)

    def stuck(self) -> str | None:
        """Why the child has to be killed, if it has to."""
        now = os_monotonic()
        progress_at, body_until = _FIELDS.unpack_from(self._memory)
        if body_until and now > body_until + BODY_GRACE:
            return "a mutation holds its transaction past its time limit"
        if now > progress_at + NO_PROGRESS:
            return f"it has made no progress for {NO_PROGRESS:g} s"
        return None

    def close(self) -> None:
        self._memory.close()


def _temporary() -> int:
    import tempfile

    file, path = tempfile.mkstemp(prefix="duly-")
    os.unlink(path)
    return file
