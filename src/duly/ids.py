"""Generates ids: UUIDv7 strings that sort in the order in which a process created them.

    48 bits of milliseconds | version | 12 bits of counter | variant | 62 random bits

Time and counter form one number that only increases: to the given millisecond when that is ahead,
otherwise by one. So ids stay in order when the clock stands still or goes back, and a full counter
carries into the milliseconds. The random bits keep processes apart.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import uuid
from random import Random

# Twice as fast as an f-string, which formats each part separately.
_TEMPLATE = "%08x-%04x-7%03x-%04x-%012x"

FIRST_ID = "00000000-0000-0000-0000-000000000000"
"""Sorts before every id."""

_is_canonical = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch


class _Source:
    """The last stamp issued in this process, and its random bits."""

    def __init__(self) -> None:
        self._last = 0
        self.reset()

    def reset(self) -> None:
        """Start again in a forked child, where the thread that holds the lock may not exist."""
        self._lock = threading.Lock()
        self.bits = Random(os.urandom(32)).getrandbits

    def take(self, now_ms: int, count: int) -> int:
        """Reserve `count` successive stamps and return the first."""
        first = now_ms << 12
        with self._lock:
            if first <= self._last:
                first = self._last + 1
            self._last = first + count - 1
        return first


def _format(stamp: int, bits: int) -> str:
    # The variant is the bits 10 above the 62 random ones.
    return _TEMPLATE % (
        stamp >> 28,
        stamp >> 12 & 0xFFFF,
        stamp & 0xFFF,
        bits >> 48 | 0x8000,
        bits & 0xFFFFFFFFFFFF,
    )


_source = _Source()

if sys.platform != "win32":
    os.register_at_fork(after_in_child=_source.reset)


def new_id(now_ms: int) -> str:
    """A new id, greater than every id that this process generated before."""
    return _format(_source.take(now_ms, 1), _source.bits(62))


def new_ids(now_ms: int, n: int) -> list[str]:
    """`n` new ids in ascending order."""
    first = _source.take(now_ms, n)
    return [_format(stamp, _source.bits(62)) for stamp in range(first, first + n)]


def derived_id(of: str, name: str) -> str:
    """The id of something that belongs to another: always the same for the same name."""
    return str(uuid.uuid5(uuid.UUID(of), name))


def go_past(known: str) -> None:
    """Make every id that this process generates from now on greater than the given one."""
    _source.take(int(known[:8] + known[9:13], 16) + 1, 1)


def is_id(text: str) -> bool:
    """Whether the text is a UUID as duly writes it: lower case, with hyphens."""
    return _is_canonical(text) is not None
