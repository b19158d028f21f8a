"""The inbox: received webhooks, and the state of each."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from duly.app import Duly
from duly.clock import to_ms
from duly.errors import WebhookEventNotFound
from duly.model.access import Principal
from duly.model.inbox import EventState
from duly.model.nesting import MAX_DEPTH, depth_of
from duly.server.answers import Ms, Shape, Time
from duly.server.api.common import Cursor, Limit, Page, is_foreign, owner_of
from duly.server.api.operation import Operations, Operator, Reader
from duly.webhooks import WebhookEvent

api = Operations("webhooks", "/webhooks")

MAX_TEXT = 65_536


class EventShape(Shape):
    id: str
    webhook: str
    delivery: str
    type: str | None
    entity: str | None
    owner: str | None
    state: EventState
    attempts: int
    error: str | None
    job_id: str | None
    received_at: Time
    received_at_ms: Ms


class WholeEventShape(EventShape):
    headers: dict[str, str]
    size: int
    payload: Any


class RetriedShape(Shape):
    retried: bool
    state: EventState
    job_id: str | None


@api.get("")
def find(
    app: Duly,
    who: Reader,
    webhook: str | None = None,
    state: EventState | None = None,
    owner: str | None = None,
    before: Cursor = None,
    limit: Limit = 100,
) -> Page[EventShape]:
    """List received webhooks, newest first, without their bodies.

    With a `state`, a page may have few or no events and still have a `next`, because only a limited
    number of events is searched per request.
    """
    found = app.webhooks.page(
        webhook=webhook,
        state=state,
        owner=owner_of(who, owner),
        before=before,
        limit=limit,
    )
    return Page(items=[_shape(event) for event in found.events], next=found.next)


@api.get("/{event_id}")
def get(app: Duly, who: Reader, event_id: str) -> WholeEventShape:
    """Get an event with its payload and its headers, except headers that hold secrets."""
    event = _visible(app, who, event_id)
    return WholeEventShape(
        **asdict(_shape(event)),
        headers=event.headers,
        size=len(event.body),
        payload=_payload(event),
    )


@api.post("/{event_id}/retry")
def retry(app: Duly, who: Operator, event_id: str) -> RetriedShape:
    """Process a failed event again. Any other event is left unchanged; the response says so."""
    done = app.webhooks.retry(_visible(app, who, event_id).id, by=who.name)
    return RetriedShape(retried=done.retried, state=done.state, job_id=done.job_id)


def _visible(app: Duly, who: Principal, event_id: str) -> WebhookEvent:
    event = app.webhooks.get(event_id)
    if is_foreign(who, event.owner):
        raise WebhookEventNotFound(event_id)
    return event


def _payload(event: WebhookEvent) -> Any:
    """The body as JSON, or as text if it is not JSON or could not be read as such."""
    try:
        if depth_of(event.body) <= MAX_DEPTH:
            return event.payload()
    except msgspec.DecodeError:
        pass
    return event.body[:MAX_TEXT].decode("utf-8", "replace")


def _shape(event: WebhookEvent) -> EventShape:
    return EventShape(
        id=event.id,
        webhook=event.webhook,
        delivery=event.delivery,
        type=event.type,
        entity=event.entity,
        owner=event.owner,
        state=event.state,
        attempts=event.attempts,
        error=event.error,
        job_id=event.job_id,
        received_at=event.received_at,
        received_at_ms=to_ms(event.received_at),
    )
