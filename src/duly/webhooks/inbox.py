"""Receives webhooks: verifies them, stores each with its job, and responds immediately."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from duly.calls.replay import REMEMBERED_MS, again, why_not
from duly.calls.verbs import MAX_LISTED
from duly.clock import from_ms
from duly.endpoints.secrets import value_of
from duly.errors import (
    FunctionDeleted,
    InvalidOption,
    SecretMissing,
    StoreError,
    WebhookEventNotFound,
)
from duly.functions.function import Call, Function
from duly.functions.new_job import new_jobs, tracked
from duly.ids import is_id, new_id
from duly.model.function import Status
from duly.model.inbox import EventState, FoundEvent, InboxFilter, InboxRecord, JobOfEvent, storable
from duly.model.job import JobRecord, NewJob, State, TrackedJob, Trigger
from duly.model.measure import WEBHOOKS
from duly.model.nesting import MAX_DEPTH, depth_of
from duly.model.stored_values import read
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.webhooks.declaration import RETRY, Webhook, declare
from duly.webhooks.sources import Delivery, GivenHeaders, Headers, Refused, pairs_of

if TYPE_CHECKING:
    from duly.core import Core

log = logging.getLogger(__name__)
T = TypeVar("T")

NEVER_STORED = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that may hold other services' secrets."""
NOT_BEGUN = JobOfEvent(State.PENDING, 0, None, None)
TELLING = re.compile(r"token|secret|password|apikey|-key$|^key$|^x-auth")


class Received(msgspec.Struct, frozen=True):
    """The response to the sender."""

    status: int
    outcome: str
    """stored, filtered or duplicate; or why it was refused."""
    event_id: str | None = None

    @property
    def accepted(self) -> bool:
        return self.status == 200


class Retried(msgspec.Struct, frozen=True):
    """The result of `retry`: the event is processed again, or it was left in its current state."""

    retried: bool
    state: EventState
    job_id: str | None


class WebhookEvent:
    """A received webhook at the time it was read."""

    def __init__(self, found: FoundEvent, load: Callable[[], bytes]) -> None:
        self._found = found
        self._record = found.record
        self._load = load
        self._body = found.record.body

    def __repr__(self) -> str:
        return f"<webhook event {self.id} of {self.webhook}, {self.state}>"

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def webhook(self) -> str:
        """The name of the webhook."""
        return self._record.webhook

    @property
    def delivery(self) -> str:
        """The sender's id for this delivery. Without one, the SHA-256 of the body and the signed
        timestamp, if there is one."""
        return self._record.delivery

    @property
    def type(self) -> str | None:
        return self._record.type

    @property
    def entity(self) -> str | None:
        """The entity of the event: events of one entity are processed one after the other."""
        return self._record.entity

    @property
    def owner(self) -> str | None:
        return self._record.owner

    @property
    def headers(self) -> dict[str, str]:
        """The headers by lower-case name, without headers that hold secrets."""
        return read(self._record.headers, dict[str, str], {})

    @property
    def body(self) -> bytes:
        """The body, exactly as it was sent."""
        if self._body is None:
            self._body = self._load()
        return self._body

    def payload(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def state(self) -> EventState:
        return self._found.state

    @property
    def attempts(self) -> int:
        """How many times processing was started."""
        return 0 if self._found.job is None else self._found.job.attempt

    @property
    def error(self) -> str | None:
        """Why processing failed, or why the last attempt did."""
        return self._found.error

    @property
    def received_at(self) -> datetime:
        return from_ms(self._record.received_at)

    @property
    def job_id(self) -> str | None:
        """The job that processes the event; None if the event was filtered out."""
        return self._record.job_id


class WebhookPage(NamedTuple):
    """Part of the inbox, and the cursor of the next part; None at the end."""

    events: list[WebhookEvent]
    next: str | None


class Webhooks:
    """The declared webhooks of an app, by name, and the inbox of received events."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._declared: dict[str, Webhook] = {}
        self._telling = False

    def __repr__(self) -> str:
        return f"<webhooks {', '.join(self._declared)}>"

    @property
    def declared(self) -> Mapping[str, Webhook]:
        """The webhooks declared in this process."""
        return dict(self._declared)

    def add(self, webhook: Webhook) -> Webhook:
        """The same as `app.webhook`."""
        checked = declare(self._core, webhook)
        for other in self._declared.values():
            if other.name == webhook.name:
                raise InvalidOption("name", f"webhook {webhook.name!r} already exists")
            if webhook.path is not None and other.path == webhook.path:
                raise InvalidOption("path", f"webhook {other.name!r} already has {webhook.path!r}")
        self._declared[webhook.name] = checked
        return checked

    # Receiving

    def receive(self, name: str, headers: GivenHeaders, body: bytes) -> Received:
        """Verify and store one request, enqueue its job, and return the response.

        A request is stored only if the status is 200. StoreError if the database cannot be
        reached: the sender should try again.
        """
        refuse_inside_mutation("webhooks.receive")
        webhook = self._declared.get(name)
        if webhook is None:
            return Received(404, "there is no such webhook")
        try:
            received = self.counted(name, self._judged(webhook, headers, body))
        except StoreError:
            self.counted(name, Received(503, "try again later"))
            raise
        if not self._telling:
            self._telling = True
            self._core.threads.start(self._tell_counts)
        return received

    def _tell_counts(self) -> None:
        """Runs in the background: the event is stored, and its sender does not wait for a lock."""
        try:
            self._core.tell_counts_in_time()
        finally:
            self._telling = False

    def counted(self, name: str, received: Received) -> Received:
        """Count the outcome of a request, even one whose body did not arrive completely."""
        self._core.counts.add(WEBHOOKS, name, _verdict(received))
        return received

    def _judged(self, webhook: Webhook, headers: GivenHeaders, body: bytes) -> Received:
        if len(body) > webhook.max_bytes:
            return Received(413, "the body is too large")
        try:
            return self._receive(webhook, pairs_of(headers), body)
        except Refused as verdict:
            log.info("webhook %s refused: %s", webhook.name, verdict.reason)
            return Received(verdict.status, _answer_text(verdict))

    def _receive(
        self, webhook: Webhook, headers: Sequence[tuple[str, str]], body: bytes
    ) -> Received:
        secrets = _live(webhook)
        now = self._core.clock.now()
        delivery = webhook.source.verify(headers, body, secrets, now)
        if depth_of(body) > MAX_DEPTH:
            raise Refused(400, f"JSON may be nested at most {MAX_DEPTH} levels deep")
        try:
            payload = msgspec.json.decode(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON") from None
        source = webhook.source
        delivery_id = delivery.delivery_id or source.delivery_in(payload)
        type_ = delivery.type or source.type_in(payload)
        record = InboxRecord(
            id=new_id(now),
            webhook=webhook.name,
            delivery=storable(delivery_id or _identity(delivery, body)),
            type=None if type_ is None else storable(type_),
            entity=None,
            owner=webhook.owner,
            headers=_shown(Headers(headers), secrets),
            received_at=now,
            job_id=None,
            body=body,
        )
        return self._store(webhook, record, now)

    def _store(self, webhook: Webhook, record: InboxRecord, now: int) -> Received:
        event = WebhookEvent(FoundEvent(record, NOT_BEGUN), lambda: record.body or b"")
        function = webhook.function_for(record.type)
        if function is None or not _ask(webhook, "filter", lambda: webhook.wants(event), True):
            stored = self._core.ready().receive_webhook(record, None)
            return Received(200, "filtered" if stored.new else "duplicate", stored.event_id)
        entity = _ask(webhook, "entity", lambda: webhook.entity_of(event), None)
        if entity:
            record = msgspec.structs.replace(record, entity=storable(str(entity)))
        try:
            call = self._call(function, record.id)
        except FunctionDeleted:
            return Received(503, "the webhook's function was deleted")
        stored = self._core.ready().receive_webhook(record, lambda: self._jobs(call, webhook, now))
        if stored.new:
            self._core.wake()
        return Received(200, "stored" if stored.new else "duplicate", stored.event_id)

    def _call(self, function: Function[..., Any], event_id: str) -> Call[Any]:
        if self._core.functions.status_of(function.name) == Status.DELETED:
            raise FunctionDeleted(function.name)
        if function.options.retry is None:
            function = function.using(retry=RETRY)
        args = function.signature.encode((), {"event_id": event_id})
        return self._core.functions.admitted(Call(function, args))

    def _jobs(self, call: Call[Any], webhook: Webhook, now: int) -> list[NewJob]:
        first, *hooks = new_jobs(call, now, now, None, self._core.settings.idempotency_ms)
        more: dict[str, Any] = {"trigger": Trigger.WEBHOOK, "actor": webhook.name}
        if webhook.owner is not None:
            more["owner"] = webhook.owner
        return [tracked(first, **more), *hooks]

    # The inbox

    def get(self, event_id: str) -> WebhookEvent:
        """The received webhook with this id; WebhookEventNotFound if there is none."""
        found = self._core.ready().event(event_id)
        if found is None:
            raise WebhookEventNotFound(event_id)
        return self._event(found)

    def list(
        self,
        *,
        webhook: str | None = None,
        state: EventState | str | None = None,
        owner: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[WebhookEvent]:
        """Received webhooks, newest first; `before` is the last id on the previous page."""
        found: list[WebhookEvent] = []
        left = limit
        while True:
            page = self.page(webhook=webhook, state=state, owner=owner, before=before, limit=left)
            found += page.events
            left, before = limit - len(found), page.next
            if not left or before is None:
                return found

    def page(
        self,
        *,
        webhook: str | None = None,
        state: EventState | str | None = None,
        owner: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> WebhookPage:
        """One page, returned quickly: it may have fewer than `limit` events and still a next page.

        `before` is the `next` value of the previous page.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
            raise InvalidOption("limit", f"must be 1 to {MAX_LISTED:,}, not {limit!r}")
        if before is not None and not is_id(before):
            raise InvalidOption("before", f"{before!r} is not an event id")
        page = self._core.ready().events(InboxFilter(webhook, owner, _state(state), before, limit))
        return WebhookPage([self._event(found) for found in page.events], page.next)

    def retry(self, event_id: str, *, by: str | None = None) -> Retried:
        """Process a failed event again. Any other event is left unchanged; the result says so."""
        refuse_inside_mutation("webhooks.retry")
        store, now = self._core.ready(), self._core.now()

        def make(record: JobRecord, hooks: Mapping[str, JobRecord | None]) -> list[TrackedJob]:
            fault = why_not(self._core, record)
            if fault is not None:
                raise fault
            return again(self._core, record, hooks, now)

        job_id = store.retry_event(event_id, make, now + REMEMBERED_MS, by, now)
        event = self.get(event_id)
        if job_id is not None:
            self._core.wake()
        return Retried(job_id is not None, event.state, event.job_id)

    def _event(self, found: FoundEvent) -> WebhookEvent:
        return WebhookEvent(found, lambda: self.get(found.record.id).body)


def _identity(delivery: Delivery, body: bytes) -> str:
    """The identity of a delivery without an id."""
    digest = hashlib.sha256(body).hexdigest()
    return digest if delivery.signed_at is None else f"{digest}@{delivery.signed_at}"


def _state(state: EventState | str | None) -> EventState | None:
    try:
        return None if state is None else EventState(state)
    except ValueError:
        raise InvalidOption("state", f"{state!r} is not one of {', '.join(EventState)}") from None


def _verdict(received: Received) -> str:
    """The outcome of a request as a metric label with few values."""
    if received.accepted:
        return received.outcome
    if received.status == 401:
        return "unverified"
    return "invalid" if received.status in (400, 408, 413) else "unavailable"


def _answer_text(verdict: Refused) -> str:
    """The message for the sender; why a signature is wrong is only logged."""
    return "the request could not be verified" if verdict.status == 401 else verdict.reason


def _live(webhook: Webhook) -> list[bytes]:
    """The secrets that can be resolved now."""
    found: list[bytes] = []
    for secret in webhook.source.secrets:
        try:
            found.append(value_of(secret))
        except SecretMissing as missing:
            log.warning("webhook %s: %s", webhook.name, missing)
    return found


def _shown(headers: Headers, secrets: Sequence[bytes]) -> str:
    """The headers to store, without headers that hold secrets."""
    texts = [secret.decode("utf-8", "replace") for secret in secrets if secret]
    kept = {
        name.encode("utf-8", "replace").decode(): value.encode("utf-8", "replace").decode()
        for name, value in headers.joined().items()
        if name not in NEVER_STORED
        and not TELLING.search(name)
        and not any(text in value for text in texts)
    }
    return msgspec.json.encode(kept).decode()


def _ask(webhook: Webhook, option: str, ask: Callable[[], T], otherwise: T) -> T:
    """Call the user's code; a body that it does not expect must not lose the event."""
    try:
        return ask()
    except Exception:
        log.exception("webhook %s: its %s raised; using %r", webhook.name, option, otherwise)
        return otherwise
