"""Inbox events: received webhooks, and the state of each."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

from duly.model.job import State

MAX_TEXT = 500


class EventState(StrEnum):
    """What became of a received webhook: what became of its job."""

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
    """One row of the inbox; a list has it without the body."""

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
    """Where the job of an event stands."""

    state: State
    attempt: int
    error: str | None
    canceled_by: str | None


class FoundEvent(msgspec.Struct, frozen=True):
    """A row of the inbox with its job; one without was filtered."""

    record: InboxRecord
    job: JobOfEvent | None

    @property
    def state(self) -> EventState:
        return EventState.FILTERED if self.job is None else _OF_JOB[self.job.state]

    @property
    def error(self) -> str | None:
        """Why it failed, or why its last attempt did."""
        if self.job is None:
            return None
        if self.job.state == State.CANCELED and self.job.error is None:
            return f"canceled by {self.job.canceled_by}"
        return self.job.error


class InboxFilter(msgspec.Struct, frozen=True):
    """Which events a list is about; None means any."""

    webhook: str | None = None
    owner: str | None = None
    state: EventState | None = None
    before_id: str | None = None
    limit: int = 100


class EventPage(msgspec.Struct, frozen=True):
    """Part of a list; `next` asks for what comes after it, None at the end.

    It may hold few, or nothing, and yet have a next one: of one state only so many events are
    looked at for a page.
    """

    events: list[FoundEvent]
    next: str | None


def line_of(webhook: str, entity: str) -> str:
    """The batch to which the jobs of an entity belong; they run one after the other."""
    digest = hashlib.sha256(f"{webhook}\0{entity}".encode()).hexdigest()
    # Version 8, for ids of one's own making.
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def storable(text: str) -> str:
    """What a sender says as both databases take it; long texts by their digest."""
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if len(clean) <= MAX_TEXT:
        return clean
    return f"sha256:{hashlib.sha256(clean.encode()).hexdigest()}"
