"""Audit entries: who did what to what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ROW = "row"
"""The key under which a removal's detail has the removed row, possibly with redacted values."""


class AuditEntry(NamedTuple):
    """Who did what to what, and when."""

    id: str
    at: int
    actor: str | None
    action: str
    target: str
    detail: str | None


class NewAuditEntry(NamedTuple):
    """A new audit entry; it is written in the transaction of the change."""

    action: str
    target: str
    actor: str | None
    detail: Mapping[str, Any] | None
    at: int
