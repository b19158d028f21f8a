"""Inbox events: received webhooks, and the state of each."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

from duly.model.job import State

MAX_TEXT = 500


class EventState(StrEnum):
    """The state of a received webhook, which follows that of its job."""

    PENDING = "pending"
    PROCESSING = "processing"
    PROCESSED = "processed"
    FAILED = "failed"
    FILTERED = "filtered"


_OF_JOB = {
    State.PENDING: EventState.PENDING,
    State.RUNNING: EventState.PROCESSING,
    State.SUCCEEDED: EventState.PROCESSED,
    State.FAILED: EventState.FAILED,
    State.CANCELED: EventState.FAILED,
}


class InboxRecord(msgspec.Struct, frozen=True):
    """One row of the inbox; lists have it without the body."""

    id: str
    webhook: str
    delivery: str
    type: str | None
    entity: str | None
    owner: str | None
    headers: str
    received_at: int
    job_id: str | None
    body: bytes | None = None


class JobOfEvent(msgspec.Struct, frozen=True):
    """The state of an event's job."""

    state: State
    attempt: int
    error: str | None
    canceled_by: str | None


class FoundEvent(msgspec.Struct, frozen=True):
    """A row of the inbox with its job; an event without a job was filtered."""

    record: InboxRecord
    job: JobOfEvent | None

    @property
    def state(self) -> EventState:
        return EventState.FILTERED if self.job is None else _OF_JOB[self.job.state]

    @property
    def error(self) -> str | None:
        """Why its job, or its last attempt, failed."""
        if self.job is None:
            return None
        if self.job.state == State.CANCELED and self.job.error is None:
            return f"canceled by {self.job.canceled_by}"
        return self.job.error


class InboxFilter(msgspec.Struct, frozen=True):
    """Filters for a list of events; None means any."""

    webhook: str | None = None
    owner: str | None = None
    state: EventState | None = None
    before_id: str | None = None
    limit: int = 100


class EventPage(msgspec.Struct, frozen=True):
    """One page of a list; `next` requests the following page, and is None at the end.

    A page may have few events, or none, and still have a `next`: when filtering by state, only a
    limited number of events is examined for each page.
    """

    events: list[FoundEvent]
    next: str | None


def line_of(webhook: str, entity: str) -> str:
    """The batch of an entity's jobs, which run one after the other."""
    digest = hashlib.sha256(f"{webhook}\0{entity}".encode()).hexdigest()
    # Version 8, for custom ids.
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def storable(text: str) -> str:
    """A sender's text in a form that both databases accept; long text as its digest."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if len(clean) <= MAX_TEXT:
        return clean
    return f"sha256:{hashlib.sha256(clean.encode()).hexdigest()}"
