"""Registered gateways: their address, and their last answer or failure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

MAX_ERROR = 1_000
NOTE_EVERY_MS = 10_000
"""An unchanged answer is written at most this often."""


class GatewayRecord(msgspec.Struct, frozen=True):
    """One row of the gateways table. The fields are in the order of the columns."""

    id: str
    owner: str
    name: str
    url: str
    secret: str | None
    version: int
    created_at: int
    updated_at: int
    crons: str | None = None
    seen_at: int | None = None
    error: str | None = None
    stale_since: int | None = None


def answered(record: GatewayRecord, crons: str, now: int) -> GatewayRecord:
    """The gateway after an answer with its crons."""
    return replace(record, crons=crons, seen_at=now, error=None, stale_since=None)


def silent(record: GatewayRecord, error: str, now: int) -> GatewayRecord:
    """The gateway after a failed request; its last answer is kept."""
    since = now if record.stale_since is None else record.stale_since
    return replace(record, error=error[:MAX_ERROR], stale_since=since)


def worth_noting(before: GatewayRecord, after: GatewayRecord) -> bool:
    """Whether an answer must be stored: it is new, or the stored one is old."""
    if replace(before, seen_at=after.seen_at) != after:
        return True
    return (after.seen_at or 0) - (before.seen_at or 0) >= NOTE_EVERY_MS
