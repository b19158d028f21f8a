"""Makes all writers of one SQLite file take turns, across processes.

SQLite's own busy handler sleeps and polls, so an occasional writer starves next to a busy one. Here
every writer passes two locks: take *next*, take *write*, release *next*. The holder of *next* is
served next, so a process that keeps writing cannot overtake. Threads of a process pass two thread
locks first, then the process passes two file locks.

The user's own connections do not go through the turnstile; they only poll. For their sake, writers
that follow each other without a break pause briefly every ten milliseconds, with the database
unlocked. Whether a poll falls into such a pause is luck. So every two seconds there is a gap as
long as the longest interval between two polls: processes that have been writing a lot wait until it
is over, an occasional writer passes. After a write outside the turnstile is detected, those
processes leave the file alone most of the time. It is detected because the write-ahead log has
changed since the last turn ended.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

from duly.clock import os_monotonic, os_monotonic_ns, os_sleep
from duly.errors import StoreUnavailable

WAIT_SECONDS = 10.0
MAX_UNBROKEN_NS = 10_000_000
PAUSE_NS = 1_000_000
# SQLite's busy handler polls at least every 100 ms, and gives up after 5 s by default.
GAP_LENGTH_NS = 120_000_000
GAP_EVERY_NS = 2_000_000_000
BUSY_SHARE = 0.1
# For this long after a write outside the turnstile, this many times the length of a turn is left
# free: among six polls of the busy handler within 33 ms at least one succeeds, 99 times in a
# hundred.
OUTSIDE_WRITER_NS = 1_000_000_000
FREE_SHARE = 1.5
_FORM = struct.Struct("=7q")


class _Stamps(NamedTuple):
    """Shared by all processes: data about the turns so far.

    Only the holder of a turn reads and writes it.
    """

    paused_at: int
    """When a writer last paused."""
    released_at: int
    unbroken_since: int
    """Since when there was no gap; a time in the future is the end of a gap."""
    held: int
    """How long the last turn took."""
    log: int
    """When the log was last written, at the end of that turn."""
    log_of: int
    """Which turn that was: when it ended. An older version of duly does not update it."""
    stranger_at: int
    """When a write without a turn was last detected."""


class Turnstile:
    """A lock over all threads of all processes that write one file."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._log = log
        self._next = threading.Lock()
        self._write = threading.Lock()
        self._next_file = open_private(folder / "next")
        self._write_file = open_private(folder / "write")
        os.ftruncate(self._write_file, _FORM.size)
        self._memory = mmap.mmap(self._write_file, _FORM.size)
        self._entered_at = self._counted_from = os_monotonic_ns()
        self._held_ns = 0
        self._holder: object = None

    def __enter__(self) -> None:
        self.enter(self)

    def __exit__(self, *exception: object) -> None:
        self.leave(self)

    def enter(self, holder: object) -> None:
        """Wait for a turn. If this raises anything, `leave` makes sure that no turn is held."""
        until = os_monotonic() + WAIT_SECONDS
        _lock(self._next, until)
        try:
            _lock(self._write, until)
            self._holder = holder
        finally:
            self._next.release()
        try:
            self._pass_files(until)
            while seconds := self._gap_to_leave():
                fcntl.flock(self._write_file, fcntl.LOCK_UN)
                os_sleep(seconds)
                self._pass_files(until)
            self._pause_if_due()
        except BaseException:
            self._release()
            raise
        self.begun()

    def begun(self) -> None:
        """Others wait from now on. The time that a transaction has waited itself is not counted."""
        self._entered_at = os_monotonic_ns()

    def leave(self, holder: object) -> None:
        """Let the next writer in, if this holder has not done so already.

        Ctrl-C can come before the first line of this, or between any two lines: then it is called
        again.
        """
        if self._holder is not holder:
            return
        now = os_monotonic_ns()
        self._held_ns += now - self._entered_at
        stamps = self._stamps()
        if now - stamps.unbroken_since > GAP_EVERY_NS:
            stamps = stamps._replace(unbroken_since=now + GAP_LENGTH_NS)
        held = now - self._entered_at
        self._stamp(stamps._replace(released_at=now, held=held, log=self._written(), log_of=now))
        self._release()

    def _written(self) -> int:
        """When the log was last written; 0 if it is empty."""
        try:
            log = os.stat(self._log)
        except OSError:
            return 0
        return log.st_mtime_ns if log.st_size else 0

    def _stranger_has_written(self, stamps: _Stamps) -> bool:
        """Whether the log has changed since the last turn, if that is known."""
        known = stamps.log if stamps.log_of == stamps.released_at else 0
        return known != 0 and self._written() not in (0, known)

    def _stamps(self) -> _Stamps:
        return _Stamps(*_FORM.unpack_from(self._memory))

    def _stamp(self, stamps: _Stamps) -> None:
        _FORM.pack_into(self._memory, 0, *stamps)

    def _release(self) -> None:
        fcntl.flock(self._write_file, fcntl.LOCK_UN)
        self._holder = None
        self._write.release()

    def _pass_files(self, until: float) -> None:
        try:
            _lock_file(self._next_file, until)
            _lock_file(self._write_file, until)
        finally:
            fcntl.flock(self._next_file, fcntl.LOCK_UN)

    def _gap_to_leave(self) -> float:
        """How many seconds to stand back, if this process has been writing a lot."""
        stamps = self._stamps()
        now = os_monotonic_ns()
        if self._stranger_has_written(stamps):
            stamps = stamps._replace(stranger_at=stamps.released_at)
            self._stamp(stamps)
        much = self._held_ns > BUSY_SHARE * (now - self._counted_from)
        if now < stamps.unbroken_since <= now + GAP_LENGTH_NS:
            return (stamps.unbroken_since - now) / 1e9 if much else 0.0
        if self._counted_from < stamps.unbroken_since:
            self._counted_from, self._held_ns = now, 0
        if not much or not 0 < stamps.stranger_at <= stamps.released_at <= now:
            return 0.0
        if now - stamps.stranger_at > OUTSIDE_WRITER_NS:
            return 0.0
        room = FREE_SHARE * min(stamps.held, GAP_LENGTH_NS) - (now - stamps.released_at)
        return max(0.0, room) / 1e9

    def _pause_if_due(self) -> None:
        # Times in the future are from before a restart of the machine.
        now = os_monotonic_ns()
        stamps = self._stamps()
        if (
            not 0 <= now - stamps.released_at <= GAP_LENGTH_NS
            or stamps.unbroken_since > now + GAP_LENGTH_NS
        ):
            stamps = stamps._replace(unbroken_since=now)
        if not 0 <= now - stamps.released_at <= PAUSE_NS or stamps.paused_at > now:
            stamps = stamps._replace(paused_at=now)
        elif now - stamps.paused_at > MAX_UNBROKEN_NS:
            os_sleep(PAUSE_NS / 1e9)
            stamps = stamps._replace(paused_at=os_monotonic_ns())
        self._stamp(stamps)

    def close(self) -> None:
        self._memory.close()
        os.close(self._next_file)
        os.close(self._write_file)


def open_private(path: Path) -> int:
    """Open one of duly's lock files, readable only by its owner and not inherited by programs."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _lock(lock: threading.Lock, until: float) -> None:
    if not lock.acquire(timeout=max(0.0, until - os_monotonic())):
        raise _too_long()


def _lock_file(file: int, until: float) -> None:
    """flock has no timeout, so poll, at increasing intervals."""
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
        f"the database was locked by another writer for {WAIT_SECONDS:g} s; "
        "is a transaction left open, or a mutation too long?"
    )
