"""An address that jobs and schedules POST to, as it is stored."""

from __future__ import annotations

import msgspec


class EndpointRecord(msgspec.Struct, frozen=True):
    """One endpoint as it stands in the store. The order of the fields is that of the columns."""

    id: str
    owner: str
    name: str
    url: str
    secret: str | None
    """Where the secret is, never the secret."""
    headers: str
    timeout_ms: int
    retry: str | None
    version: int
    created_at: int
    updated_at: int
