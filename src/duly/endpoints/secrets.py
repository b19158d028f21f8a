"""Resolves secrets at use; rows and code only hold references to them."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from duly.errors import InvalidOption, SecretMissing

ENV, FILE = "env:", "file:"
_HINT = "give env:NAME or file:PATH"


def is_reference(text: str) -> bool:
    """Whether the text says where a secret is, instead of being one."""
    return text.startswith((ENV, FILE))


def check_reference(text: str, option: str = "secret") -> str:
    """The same text, if it is a reference; the refusal never shows what may be a secret."""
    if not is_reference(text):
        raise InvalidOption(option, "is no reference to a secret", _HINT)
    if not text.partition(":")[2].strip() or not text.isprintable():
        raise InvalidOption(option, "the reference names nothing", _HINT)
    return text


def resolve(text: str) -> bytes:
    """The secret behind a reference, as it is now: a new value counts without a restart.

    A file's last line break is no part of it. SecretMissing if there is none, or an empty one.
    """
    reference = check_reference(text)
    scheme, _, name = reference.partition(":")
    found = _variable(name) if f"{scheme}:" == ENV else _contents(name)
    if not found:
        raise SecretMissing(reference)
    return found


def value_of(text: str) -> bytes:
    """The secret behind a reference; of any other text, the text itself."""
    return resolve(text) if is_reference(text) else text.encode("utf-8", "surrogateescape")


def is_same(one: bytes, other: bytes) -> bool:
    """Compare in a time that depends neither on the contents nor on the lengths' being equal.

    Whatever proves who somebody is, is compared here and nowhere else.
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
