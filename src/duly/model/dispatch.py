"""The message with which an external schedule calls a function."""

from __future__ import annotations

from typing import Any

import msgspec


class DispatchMessage(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The body of `POST /api/v1/dispatch/{function}`. Headers can set all but `input`."""

    nominal_fire_time: int | str | None = None
    """Milliseconds since 1970 UTC, or ISO 8601 with a time zone."""
    idempotency_key: str | None = None
    schedule: str | None = None
    arguments: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="input")
    """The arguments, by name."""
