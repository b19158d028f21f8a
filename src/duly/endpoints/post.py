"""The function that POSTs to an endpoint: one request per attempt, reported to observers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from duly.calls.context import Ctx
from duly.calls.kinds import Action
from duly.clock import from_ms, os_monotonic, to_ms
from duly.endpoints.secrets import is_reference, resolve
from duly.endpoints.signing import signed
from duly.endpoints.target import NAME, QUEUE
from duly.endpoints.views import Delivered, is_reserved
from duly.errors import DeliveryFailed, EndpointNotFound, NonRetryable, RetryAfter
from duly.functions.options import Options
from duly.model.endpoint import Dispatch, EndpointRecord
from duly.model.job import JobRecord, Trigger
from duly.runtime.outbound import Answer

if TYPE_CHECKING:
    from duly.core import Core

log = logging.getLogger(__name__)

MAX_QUOTED = 500
"""How many characters of a response an error quotes."""
RETRY_STATUSES = (408, 425, 429)
"""The 4xx statuses that mean: try again later."""
MIN_SCRUBBED = 6
"""Shorter text after a word is treated as ordinary words and is not hidden by itself."""
NO_HEADERS: dict[str, Any] = {}
MAX_REPEATS = 100


def post_function(core: Core) -> Action[..., Delivered]:
    """duly's own function that sends to endpoints."""

    def post(ctx: Ctx, body: Any = NO_HEADERS, *, endpoint: str, owner: str = "") -> Delivered:
        return _Sending(core, ctx, endpoint, owner).send(msgspec.json.encode(body))

    return Action(post, NAME, Options(queue=QUEUE))


class _Sending:
    """One attempt to send."""

    def __init__(self, core: Core, ctx: Ctx, name: str, owner: str) -> None:
        self._core = core
        self._ctx = ctx
        self._name = name
        self._owner = owner
        self._hidden: list[str] = []
        self._schedule_id: str | None = None
        self._nominal: int | None = None

    def send(self, body: bytes) -> Delivered:
        self._ctx.check()
        began = os_monotonic()
        try:
            answer = self._shown(self._attempt(body))
        except Exception as error:
            self._tell(0, _words(error), round((os_monotonic() - began) * 1000))
            raise
        fault = _fault(answer, self._core.clock.now())
        self._tell(answer.status, None if fault is None else str(fault), answer.ms)
        if fault is not None:
            raise fault
        return Delivered(answer.status, answer.body, answer.ms)

    def _attempt(self, body: bytes) -> Answer:
        message_id = self._message_id()
        record = self._core.ready().endpoint_named(self._owner, self._name)
        if record is None:
            raise NonRetryable(str(EndpointNotFound(self._name)))
        headers = self._headers(record, message_id, body)
        seconds = record.timeout_ms / 1000
        return self._core.client.post(record.url, body, headers, seconds=seconds)

    def _message_id(self) -> str:
        """The same id for every attempt, and for every job that retries this one."""
        first = self._first_job()
        if first is None:
            return self._ctx.job_id
        if first.trigger == Trigger.SCHEDULE and first.actor:
            self._schedule_id, self._nominal = first.actor, first.scheduled_at
            return f"{first.actor}:{first.scheduled_at}"
        return first.id

    def _first_job(self) -> JobRecord | None:
        store = self._core.ready()
        found = store.get(self._ctx.job_id)
        for _ in range(MAX_REPEATS):
            if found is None or found.retry_of is None:
                break
            before = store.get(found.retry_of)
            if before is None:
                break
            found = before
        return found

    def _headers(self, record: EndpointRecord, message_id: str, body: bytes) -> dict[str, str]:
        timestamp = self._core.clock.now() // 1000
        headers = {
            name: self._value(value)
            # Decode strictly: the request must not be sent without its headers.
            for name, value in msgspec.json.decode(record.headers, type=dict[str, str]).items()
            if not is_reserved(name)
        }
        headers |= {
            "Idempotency-Key": message_id,
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
        }
        if record.secret is not None:
            headers |= signed(resolve(record.secret), message_id, timestamp, body)
        if self._schedule_id is not None and self._nominal is not None:
            at = from_ms(self._nominal).isoformat(timespec="milliseconds")
            headers |= {
                "Duly-Schedule": self._schedule_id,
                "Duly-Nominal-Fire-Time": at.replace("+00:00", "Z"),
                "Duly-Nominal-Fire-Time-Ms": str(self._nominal),
            }
        return headers

    def _value(self, value: str) -> str:
        if not is_reference(value):
            return value
        secret = resolve(value).decode("latin-1")
        # A response may echo the secret without its scheme: "Bearer …".
        after_scheme = secret.partition(" ")[2].strip()
        self._hidden += [secret, after_scheme] if len(after_scheme) >= MIN_SCRUBBED else [secret]
        return secret

    def _shown(self, answer: Answer) -> Answer:
        """The response without any secrets that it echoes."""
        body = answer.body
        for secret in self._hidden:
            body = body.replace(secret, "[redacted]")
        return msgspec.structs.replace(answer, body=body)

    def _tell(self, status: int, error: str | None, ms: int) -> None:
        attempt = Dispatch(
            self._name,
            self._owner or None,
            self._ctx.job_id,
            self._schedule_id,
            self._nominal,
            self._ctx.attempt,
            status,
            error,
            ms,
        )
        if not attempt.delivered:
            log.warning("endpoint %s, attempt %d: %s", self._name, attempt.attempt, error)
        for observe in tuple(self._core.on_dispatch):
            try:
                observe(attempt)
            except Exception:
                log.exception("on_dispatch failed")


def _fault(answer: Answer, now: int) -> Exception | None:
    """The error for a response's status; None for a success."""
    status = answer.status
    if 200 <= status < 300:
        return None
    said = f"the endpoint responded with status {status}"
    if text := answer.body.strip()[:MAX_QUOTED]:
        said = f"{said}: {text}"
    if 300 <= status < 400:
        return NonRetryable(f"{said} (redirects are not followed)")
    if status < 500 and status not in RETRY_STATUSES:
        return NonRetryable(said)
    seconds = _seconds(answer.retry_after, now)
    return DeliveryFailed(said) if seconds is None else RetryAfter(seconds, said)


def _seconds(retry_after: str | None, now: int) -> float | None:
    """The wait that Retry-After asks for, which is in seconds or a date."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    from email.utils import parsedate_to_datetime  # slow to import, and seldom needed

    try:
        when = parsedate_to_datetime(text)
        return None if when.tzinfo is None else max(0.0, (to_ms(when) - now) / 1000)
    except (ValueError, OverflowError):
        return None


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
