"""Who did what to what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

ROW = "row"
"""Where the detail of a removal has the row that was removed. It may hold what `Redact` hides."""


class AuditEntry(NamedTuple):
    """Who did what to what, and when."""

    id: str
    at: int
    actor: str | None
    action: str
    target: str
    detail: str | None


class NewAuditEntry(NamedTuple):
    """Who does what to what: written down in the transaction in which it is done."""

    action: str
    target: str
    actor: str | None
    detail: Mapping[str, Any] | None
    at: int
