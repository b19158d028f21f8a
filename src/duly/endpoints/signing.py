"""Signs requests according to Standard Webhooks, so that the receiver can verify them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from duly.errors import InvalidOption

PREFIX = b"whsec_"


def key_of(secret: bytes) -> bytes:
    """The key for a secret, which is base64, optionally prefixed with `whsec_`."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise InvalidOption("secret", "must be whsec_ followed by base64, as in Standard Webhooks")
    return key


def signed(secret: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a signed message."""
    content = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(key_of(secret), content, hashlib.sha256).digest()
    return {"webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}
