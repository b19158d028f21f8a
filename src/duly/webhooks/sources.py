"""Sources: one class per way of signing requests.

Nothing here reads a clock, a store or an environment variable: secrets and time are arguments. For
any input, the result is a `Delivery` or the exception `Refused`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from duly.endpoints.secrets import is_reference, is_same
from duly.errors import InvalidOption

TOLERANCE_MS = 300_000
"""How far the signed time may differ from ours, in either direction."""
MAX_SIGNATURES = 32
"""More signatures in one header are not a key rotation but an attempt to keep us busy."""
DIGESTS: Mapping[str, Callable[[], Any]] = {
    "sha256": hashlib.sha256,
    "sha384": hashlib.sha384,
    "sha512": hashlib.sha512,
}

Encoding = Literal["hex", "base64"]
GivenHeaders = Mapping[str, str] | Iterable[tuple[str, str]]


class Refused(Exception):
    """A request is not accepted: 401, or 500 if no secret is configured."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True)
class Delivery:
    """The delivery data in a verified request's headers; None: the body may have it."""

    delivery_id: str | None
    type: str | None
    signed_at: str | None = None
    """The signed time, as it was sent."""


def pairs_of(headers: GivenHeaders) -> list[tuple[str, str]]:
    """The headers as pairs, whether given as a mapping or as pairs."""
    if isinstance(headers, Mapping):
        return list(cast("Mapping[str, str]", headers).items())
    return list(headers)


class Headers:
    """The headers of a request, by case-insensitive name."""

    def __init__(self, given: GivenHeaders) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs_of(given):
            self._values.setdefault(name.lower(), []).append(value)

    def get(self, name: str) -> str | None:
        """The header, if present and not empty; Refused if it is repeated, which is ambiguous."""
        found = self._values.get(name.lower(), [])
        if len(found) > 1:
            raise Refused(401, f"the header {name} was sent {len(found)} times")
        return found[0].strip() or None if found else None

    def ascii(self, name: str) -> bytes:
        """The value of a required header, which must be ASCII."""
        value = self.get(name)
        if value is None or not value.isascii():
            raise Refused(401, f"the header {name} is missing, or not ASCII")
        return value.encode()

    def joined(self) -> dict[str, str]:
        """All headers, with repeated values joined."""
        return {name: ", ".join(values) for name, values in self._values.items()}


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """The sender of a webhook and its current secrets: values, `env:NAME` or `file:PATH`.

    Give two secrets while one is being rotated; either of them verifies requests.
    """

    secrets: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.secrets, str):
            raise InvalidOption("secrets", "give a list of secrets, not one string")
        for secret in self.secrets:
            if not is_reference(secret) and secret and not self.keys([secret.encode()]):
                raise InvalidOption("secrets", "one of them is not a valid secret for this source")

    def verify(
        self, headers: GivenHeaders, body: bytes, secrets: Sequence[bytes], now_ms: int
    ) -> Delivery:
        """The delivery data of an authentic request; Refused if it is not authentic."""
        keys = self.keys(secrets)
        if not keys:
            raise Refused(500, "no secret is configured")
        return self._verify(Headers(headers), body, keys, now_ms)

    def keys(self, secrets: Sequence[bytes]) -> list[bytes]:
        """The keys for the secrets; empty secrets are ignored."""
        return [secret for secret in secrets if secret]

    @abstractmethod
    def _verify(
        self, headers: Headers, body: bytes, keys: Sequence[bytes], now_ms: int
    ) -> Delivery: ...

    def delivery_in(self, payload: Any) -> str | None:
        """The delivery id, if it is in the body."""
        return None

    def type_in(self, payload: Any) -> str | None:
        """The event type, if it is in the body."""
        return text_at(payload, "type")


# Senders -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GitHub(Source):
    """GitHub: `X-Hub-Signature-256`; the webhook's content type must be application/json."""

    def _verify(
        self, headers: Headers, body: bytes, keys: Sequence[bytes], now_ms: int
    ) -> Delivery:
        given = _after_prefix(headers.ascii("x-hub-signature-256"), b"sha256=")
        _require(_signatures(keys, body, "sha256", "hex"), [given])
        return Delivery(headers.get("x-github-delivery"), headers.get("x-github-event"))

    def type_in(self, payload: Any) -> str | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Atlassian(Source):
    """Jira and Confluence: `X-Hub-Signature`, with SHA-256 only."""

    def _verify(
        self, headers: Headers, body: bytes, keys: Sequence[bytes], now_ms: int
    ) -> Delivery:
        given = _after_prefix(headers.ascii("x-hub-signature"), b"sha256=")
        _require(_signatures(keys, body, "sha256", "hex"), [given])
        return Delivery(headers.get("x-atlassian-webhook-identifier"), headers.get("x-event-key"))

    def type_in(self, payload: Any) -> str | None:
        return text_at(payload, "webhookEvent") or text_at(payload, "event")


@dataclass(frozen=True, kw_only=True)
class Stripe(Source):
    """Stripe: `Stripe-Signature`; any matching v1 signature is accepted, v0 never is."""

    def _verify(
        self, headers: Headers, body: bytes, keys: Sequence[bytes], now_ms: int
    ) -> Delivery:
        parts = [
            part.strip().partition(b"=") for part in headers.ascii("stripe-signature").split(b",")
        ]
        times = [value for name, _, value in parts if name == b"t"]
        if len(times) != 1:
            raise Refused(401, "the signature must have exactly one timestamp")
        given = [value for name, _, value in parts if name == b"v1"]
        _require(_signatures(keys, times[0] + b"." + body, "sha256", "hex"), given)
        _check_time(times[0], now_ms)
        return Delivery(None, None, times[0].decode())

    def delivery_in(self, payload: Any) -> str | None:
        return text_at(payload, "id")


@dataclass(frozen=True, kw_only=True)
class StandardWebhooks(Source):
    """Senders that follow standardwebhooks.com; a secret is base64, after `whsec_` or alone."""

    _names: ClassVar[str] = "webhook"

    def keys(self, secrets: Sequence[bytes]) -> list[bytes]:
        keys: list[bytes] = []
        for secret in secrets:
            try:
                keys.append(base64.b64decode(secret.removeprefix(b"whsec_"), validate=True))
            except binascii.Error:
                continue
        return [key for key in keys if key]

    def _verify(
        self, headers: Headers, body: bytes, keys: Sequence[bytes], now_ms: int
    ) -> Delivery:
        message_id = headers.ascii(f"{self._names}-id")
        time = headers.ascii(f"{self._names}-timestamp")
        parts = [part.partition(b",") for part in headers.ascii(f"{self._names}-signature").split()]
        given = [value for version, _, value in parts if version == b"v1"]
        signed = message_id + b"." + time + b"." + body
        _require(_signatures(keys, signed, "sha256", "base64"), given)
        _check_time(time, now_ms)
        return Delivery(message_id.decode(), None)


@dataclass(frozen=True, kw_only=True)
class Svix(StandardWebhooks):
    """Svix, and services that send through it, such as Clerk."""

    _names: ClassVar[str] = "svix"


@dataclass(frozen=True, kw_only=True)
class HMAC(Source):
    """Any sender that signs the body with a shared secret.

    `header` holds the signature, after `prefix`. With a `timestamp` header, the signed message is
    `signed` with {timestamp} and {body} filled in.
    """

    header: str
    prefix: str = ""
    digest: str = "sha256"
    encoding: Encoding = "hex"
    timestamp: str | None = None
    signed: str = "{timestamp}.{body}"
    delivery_header: str | None = None
    type_header: str | None = None
    type_field: str = "type"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.header or not self.header.isascii():
            raise InvalidOption("header", "give the name of the header with the signature")
        if self.digest not in DIGESTS:
            raise InvalidOption("digest", f"give one of {', '.join(DIGESTS)}")
        if self.encoding not in ("hex", "base64"):
            raise InvalidOption("encoding", "give hex or base64")
        if self.timestamp and not {"{timestamp}", "{body}"} <= _placeholders(self.signed):
            raise InvalidOption("signed", "must have {timestamp} and {body} once each")

    def _verify(
        self, headers: Headers, body: bytes, keys: Sequence[bytes], now_ms: int
    ) -> Delivery:
        given = _after_prefix(headers.ascii(self.header), self.prefix.encode())
        time = headers.ascii(self.timestamp) if self.timestamp else None
        message = body if time is None else self._message(time, body)
        _require(_signatures(keys, message, self.digest, self.encoding), [given])
        if time is not None:
            _check_time(time, now_ms)
        return Delivery(
            headers.get(self.delivery_header) if self.delivery_header else None,
            headers.get(self.type_header) if self.type_header else None,
            None if time is None else time.decode(),
        )

    def _message(self, time: bytes, body: bytes) -> bytes:
        # Insert the body last, because it may contain the placeholder for the time.
        before, _, after = self.signed.encode().partition(b"{body}")
        before, after = (part.replace(b"{timestamp}", time) for part in (before, after))
        return before + body + after

    def type_in(self, payload: Any) -> str | None:
        return text_at(payload, self.type_field)


@dataclass(frozen=True, kw_only=True)
class Bearer(Source):
    """A sender that sends the secret itself: `Authorization: Bearer …`. For trusted networks."""

    delivery_header: str | None = None
    type_header: str | None = None
    type_field: str = "type"

    def _verify(
        self, headers: Headers, body: bytes, keys: Sequence[bytes], now_ms: int
    ) -> Delivery:
        scheme, _, token = headers.ascii("authorization").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Refused(401, "the header authorization has no bearer token")
        _require(list(keys), [token.strip()])
        return Delivery(
            headers.get(self.delivery_header) if self.delivery_header else None,
            headers.get(self.type_header) if self.type_header else None,
        )

    def type_in(self, payload: Any) -> str | None:
        return text_at(payload, self.type_field)


# Signatures --------------------------------------------------------------------------------------


def _signatures(
    keys: Sequence[bytes], message: bytes, digest: str, encoding: Encoding
) -> list[bytes]:
    """The message's expected signature under each key."""
    raw = [hmac.new(key, message, DIGESTS[digest]).digest() for key in keys]
    return [base64.b64encode(each) if encoding == "base64" else each.hex().encode() for each in raw]


def _require(expected: Sequence[bytes], given: Sequence[bytes]) -> None:
    """Refuse unless one of the given signatures is expected."""
    if len(given) > MAX_SIGNATURES:
        raise Refused(401, "too many signatures")
    # Compare every pair, so that the time does not reveal which one matched.
    if not sum(is_same(one, other) for one in expected for other in given):
        raise Refused(401, "no signature matches")


def _after_prefix(value: bytes, prefix: bytes) -> bytes:
    if not value.startswith(prefix):
        raise Refused(401, "the signature has the wrong prefix")
    return value[len(prefix) :]


def _check_time(text: bytes, now_ms: int) -> None:
    if not text.isdigit() or len(text) > 12:
        raise Refused(401, "the signed timestamp is not a number of seconds")
    if abs(now_ms - int(text) * 1000) > TOLERANCE_MS:
        raise Refused(401, "the signed timestamp is too far from the current time")


def _placeholders(template: str) -> set[str]:
    return {name for name in ("{timestamp}", "{body}") if template.count(name) == 1}


def text_at(payload: Any, name: str) -> str | None:
    """A field of an object, if it is text."""
    fields = cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}
    value = fields.get(name)
    return value if isinstance(value, str) and value else None
