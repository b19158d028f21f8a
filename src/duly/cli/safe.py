"""Makes text from data safe to print on a terminal."""

from __future__ import annotations

import json
from typing import Any


def safe(text: str) -> str:
    """Without what a terminal would carry out: escape sequences are shown as they are written."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


def safe_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that reads the same, and does nothing to a terminal."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    if text.isprintable():
        return text
    return "".join(
        # Only texts hold such characters, so that they may be written by their numbers.
        character if character.isprintable() or character == "\n" else json.dumps(character)[1:-1]
        for character in text
    )
