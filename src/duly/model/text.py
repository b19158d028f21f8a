"""Checks that text can be stored in every database."""

from __future__ import annotations


def storable(text: str, limit: int = 16_000) -> str:
    """Text that every database accepts: no NUL, no lone surrogates, not too long."""
    clean = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
