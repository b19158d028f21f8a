"""How do all writers of one SQLite file, in all processes, take turns?

SQLite's own busy handler sleeps and polls, so a lone writer starves beside a hot one. Here every
writer passes two locks: take *next*, take *write*, let *next* go. Whoever holds *next* is served
next, so nobody who keeps writing can overtake. Threads of a process pass two thread locks first,
then the process passes two file locks.

The user's own connections do not pass here. For them, a writer that follows others without a
break pauses for a moment every ten milliseconds, with the database unlocked.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from pathlib import Path

from duly.clock import os_monotonic, os_monotonic_ns, os_sleep
from duly.errors import StoreUnavailable

PATIENCE = 10.0
UNBROKEN_NS = 10_000_000
BREATH = 0.001
_STAMPS = struct.Struct("=qq")


class Turnstile:
    """A lock over all threads of all processes that write one file."""

    def __init__(self, folder: Path) -> None:
        self._next = threading.Lock()
        self._write = threading.Lock()
        self._next_file = open_private(folder / "next")
        self._write_file = open_private(folder / "write")
        os.ftruncate(self._write_file, _STAMPS.size)
        self._stamps = mmap.mmap(self._write_file, _STAMPS.size)

    def __enter__(self) -> None:
        until = os_monotonic() + PATIENCE
        _lock(self._next, until)
        try:
            _lock(self._write, until)
        finally:
            self._next.release()
        try:
            self._pass_files(until)
        except BaseException:
            self._write.release()
            raise
        self._breathe()

    def __exit__(self, *exception: object) -> None:
        paused_at, _ = _STAMPS.unpack_from(self._stamps)
        _STAMPS.pack_into(self._stamps, 0, paused_at, os_monotonic_ns())
        fcntl.flock(self._write_file, fcntl.LOCK_UN)
        self._write.release()

    def _pass_files(self, until: float) -> None:
        _lock_file(self._next_file, until)
        try:
            _lock_file(self._write_file, until)
        finally:
            fcntl.flock(self._next_file, fcntl.LOCK_UN)

    def _breathe(self) -> None:
        paused_at, released_at = _STAMPS.unpack_from(self._stamps)
        now = os_monotonic_ns()
        if now - released_at > BREATH * 1e9:
            _STAMPS.pack_into(self._stamps, 0, now, released_at)
        elif now - paused_at > UNBROKEN_NS:
            os_sleep(BREATH)
            _STAMPS.pack_into(self._stamps, 0, os_monotonic_ns(), released_at)

    def close(self) -> None:
        self._stamps.close()
        os.close(self._next_file)
        os.close(self._write_file)


def open_private(path: Path) -> int:
    """Open a lock file of duly's own, readable by nobody else, not inherited by programs."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(lock: threading.Lock, until: float) -> None:
    if not lock.acquire(timeout=max(0.0, until - os_monotonic())):
        raise _too_long()


def _lock_file(file: int, until: float) -> None:
    """flock has no time limit, so poll: first at once, then ever less often."""
    pause = 0.00005
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if os_monotonic() > until:
                raise _too_long() from None
            os_sleep(pause)
            pause = min(pause * 1.5, 0.001)


def _too_long() -> StoreUnavailable:
    return StoreUnavailable(
        f"the database was locked by another writer for {PATIENCE:g} s; "
        "is a transaction left open, or a mutation too long?"
    )
