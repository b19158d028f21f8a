"""The endpoint values that users read, and the report for each attempt."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping

import msgspec

from duly.clock import from_ms
from duly.model.endpoint import Dispatch, EndpointRecord
from duly.model.retry import Retry, decode_retry
from duly.model.stored_values import read


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint at the time it was read."""

    id: str
    name: str
    owner: str | None
    url: str
    secret: str | None
    """The secret reference: `env:NAME` or `file:PATH`."""
    headers: Mapping[str, str]
    timeout: float
    """Seconds for one attempt, from the DNS lookup to the end of the response."""
    retry: Retry | None
    """None: a single attempt."""
    version: int
    created: dt.datetime
    updated: dt.datetime


class Delivered(msgspec.Struct, frozen=True):
    """The result of a job that was sent to an endpoint."""

    status: int
    body: str
    """The first 64 KiB of the response as text."""
    ms: int
    """The duration in milliseconds."""


Observer = Callable[[Dispatch], object]


def as_endpoint(record: EndpointRecord) -> Endpoint:
    return Endpoint(
        record.id,
        record.name,
        record.owner or None,
        record.url,
        record.secret,
        headers_of(record),
        record.timeout_ms / 1000,
        decode_retry(record.retry),
        record.version,
        from_ms(record.created_at),
        from_ms(record.updated_at),
    )


_RESERVED = ("webhook-", "duly-", "idempotency-key")


def is_reserved(header: str) -> bool:
    """Whether duly sets this header itself."""
    return header.lower().startswith(_RESERVED)


def headers_of(record: EndpointRecord) -> dict[str, str]:
    return read(record.headers, dict[str, str], {})
