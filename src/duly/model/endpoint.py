"""Endpoints as they are stored."""

from __future__ import annotations

import msgspec


class EndpointRecord(msgspec.Struct, frozen=True):
    """One row of the endpoints table. The fields are in the order of the columns."""

    id: str
    owner: str
    name: str
    url: str
    secret: str | None
    """The secret reference, never the secret."""
    headers: str
    timeout_ms: int
    retry: str | None
    version: int
    created_at: int
    updated_at: int


class Dispatch(msgspec.Struct, frozen=True):
    """One attempt to send a request to an endpoint."""

    endpoint: str
    """Its name."""
    owner: str | None
    job_id: str
    schedule_id: str | None
    """The schedule whose tick it is, if any."""
    nominal: int | None
    """The nominal time of that tick, in milliseconds since 1970 UTC."""
    attempt: int
    """Starts at 1."""
    status: int
    """The HTTP status of the answer; 0 if there was none."""
    error: str | None
    """Why it did not succeed."""
    ms: int

    @property
    def delivered(self) -> bool:
        return 200 <= self.status < 300
