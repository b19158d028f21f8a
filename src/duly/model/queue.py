"""The status that operators give a queue."""

from __future__ import annotations

import msgspec


class QueuePause(msgspec.Struct, frozen=True):
    name: str
    paused_at: int
    paused_by: str | None
    note: str | None
