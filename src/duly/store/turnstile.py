"""Makes all writers of one SQLite file take turns, across processes.

SQLite's own busy handler sleeps and polls, so a lone writer starves beside a hot one. Here every
writer passes two locks: take *next*, take *write*, let *next* go. Whoever holds *next* is served
next, so nobody who keeps writing can overtake. Threads of a process pass two thread locks first,
then the process passes two file locks.

The user's own connections do not pass here, and only poll. For them a writer that follows others
without a break pauses for a moment every ten milliseconds, with the database unlocked. That is
luck, so every two seconds there is a gap as long as the longest pause between two polls: processes
that have been writing much stand back until it is over, a lone writer passes. While somebody is
seen to write past the turnstile, those processes leave the file alone for most of the time: the log
that SQLite writes ahead has then changed since the last one left.
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
# SQLite's busy handler looks again after 100 ms at the latest, and gives up after 5 s by default.
GAP_LENGTH_NS = 120_000_000
GAP_EVERY_NS = 2_000_000_000
BUSY_SHARE = 0.1
# For so long after a stranger has written, so many times as long as a turn has taken is left free:
# six polls of the busy handler within 33 ms find it so, all but one time in a hundred.
OUTSIDE_WRITER_NS = 1_000_000_000
FREE_SHARE = 1.5
_FORM = struct.Struct("=7q")


class _Stamps(NamedTuple):
    """What all processes know of the turns so far; only whoever has one looks and writes."""

    paused_at: int
    """When a writer last paused."""
    released_at: int
    unbroken_since: int
    """Since when there was no gap; a time that is still to come is the end of one."""
    held: int
    """How long the last turn has taken."""
    log: int
    """When the log was last written, as that turn ended."""
    log_of: int
    """Which turn that was: when it ended. An older duly leaves it as it was."""
    stranger_at: int
    """When somebody was last seen to have written without a turn."""


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
        """Wait for a turn. If this raises, whatever it is, `leave` makes sure that none is held."""
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
            self._breathe()
        except BaseException:
            self._let_go()
            raise
        self.begun()

    def begun(self) -> None:
        """From now on others wait; what a transaction has waited for itself is not counted."""
        self._entered_at = os_monotonic_ns()

    def leave(self, holder: object) -> None:
        """Let the next one in, if this holder has not done so.

        Ctrl-C can come before the first line of this, or between any two: it is called again then.
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
        self._let_go()

    def _written(self) -> int:
        """When the log was last written; nought if nothing is in it."""
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

    def _let_go(self) -> None:
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
        """Seconds to stand back for, if this process fills the time."""
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

    def _breathe(self) -> None:
        # Times after now are from before a restart of the machine.
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
        f"the database was locked by another writer for {WAIT_SECONDS:g} s; "
        "is a transaction left open, or a mutation too long?"
    )
