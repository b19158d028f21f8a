"""Makes text from data safe to print on a terminal."""

from __future__ import annotations

import json
from typing import Any


def safe(text: str) -> str:
    """The text with control characters escaped, so that a terminal does not execute them."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


def safe_json(value: Any, *, indent: int | None = None) -> str:
    """Equivalent JSON with control characters escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if text.isprintable():
        return text
    return "".join(
        # Such characters occur only within strings, where JSON allows escapes.
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
        for character in text
    )
