"""Resolves secrets when they are used; rows and code hold only references to them."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from duly.errors import InvalidOption, SecretMissing

ENV, FILE = "env:", "file:"
_HINT = "give env:NAME or file:PATH"


def is_reference(text: str) -> bool:
    """Whether the text is a reference to a secret rather than a secret."""
    return text.startswith((ENV, FILE))


def check_reference(text: str, option: str = "secret") -> str:
    """The same text, if it is a reference; the error never shows it, as it may be a secret."""
    if not is_reference(text):
        raise InvalidOption(option, "is not a reference to a secret", _HINT)
    if not text.partition(":")[2].strip() or not text.isprintable():
        raise InvalidOption(option, "the reference has no name or path", _HINT)
    return text


def resolve(text: str) -> bytes:
    """The current secret behind a reference: a new value takes effect without a restart.

    A line break at the end of a file is ignored. SecretMissing if the secret is missing or empty.
    """
    reference = check_reference(text)
    scheme, _, name = reference.partition(":")
    found = _variable(name) if f"{scheme}:" == ENV else _contents(name)
    if not found:
        raise SecretMissing(reference)
    return found


def value_of(text: str) -> bytes:
    """The secret behind a reference, or the text itself if it is not a reference."""
    return resolve(text) if is_reference(text) else text.encode("utf-8", "surrogateescape")


def is_same(one: bytes, other: bytes) -> bool:
    """Compare in a time that depends neither on the contents nor on whether the lengths match.

    All credentials are compared here and nowhere else.
    """
    first, second = hashlib.sha256(one).digest(), hashlib.sha256(other).digest()
    return hmac.compare_digest(first, second)


def _variable(name: str) -> bytes:
    return os.fsencode(os.environ.get(name, ""))


def _contents(path: str) -> bytes:
    try:
        return Path(path).read_bytes().rstrip(b"\r\n")
    except OSError:
        return b""
