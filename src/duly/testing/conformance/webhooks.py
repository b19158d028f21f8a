"""Received webhooks: each once, with its job, and in order of arrival per entity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from duly.ids import new_id
from duly.model.inbox import EventState, InboxFilter, InboxRecord
from duly.model.job import Hold, JobRecord, NewJob, State, TrackedJob, Trigger
from duly.store.inbox import StoredEvent
from duly.testing.conformance.ground import (
    MONTH,
    NO_JOB_ID,
    NOW,
    WEEK,
    Ground,
    at_the_same_time,
    new_job,
    refused,
    succeeded,
)


def delivered(delivery: str, entity: str | None = None, *, owner: str | None = None) -> InboxRecord:
    return InboxRecord(
        new_id(NOW), "github", delivery, "push", entity, owner, "{}", NOW, None, b"\0\xffbody"
    )


def jobs_of_event() -> Sequence[NewJob]:
    return [TrackedJob(**msgspec.structs.asdict(new_job()), trigger=Trigger.WEBHOOK)]


def repeated(record: JobRecord, hooks: Mapping[str, JobRecord | None]) -> Sequence[TrackedJob]:
    assert not hooks
    job = TrackedJob(
        **msgspec.structs.asdict(new_job()),
        trigger=record.trigger,
        batch_id=record.batch_id,
        retry_of=record.id,
    )
    return [job]


class Webhooks(Ground):
    def arrive(self, delivery: str, entity: str | None = None) -> StoredEvent:
        return self.store.receive_webhook(delivered(delivery, entity), jobs_of_event)

    def arrive_at_once(
        self, deliveries: Sequence[str], entity: str | None = None
    ) -> list[StoredEvent]:
        assert self.claim() == []  # the store is open before there are threads
        return at_the_same_time([partial(self.arrive, each, entity) for each in deliveries])

    def job_of(self, stored: StoredEvent) -> str:
        found = self.store.event(stored.event_id)
        assert found is not None
        assert found.record.job_id is not None
        return found.record.job_id

    def event_state(self, stored: StoredEvent) -> EventState:
        found = self.store.event(stored.event_id)
        assert found is not None
        return found.state

    def test_a_webhook_is_stored_with_its_job(self) -> None:
        stored = self.arrive("one")
        assert stored.new is True
        found = self.store.event(stored.event_id)
        assert found is not None
        assert (found.record.body, found.record.delivery) == (b"\0\xffbody", "one")
        assert found.state == EventState.PENDING
        (claim,) = self.claim()
        assert claim.id == found.record.job_id
        assert self.event_state(stored) == EventState.PROCESSING
        self.settle(succeeded(claim))
        assert self.event_state(stored) == EventState.PROCESSED

    def test_if_its_job_cannot_be_made_there_is_no_webhook(self) -> None:
        def fail() -> Sequence[NewJob]:
            raise RuntimeError("no")

        with refused(RuntimeError):
            self.store.receive_webhook(delivered("one"), fail)
        assert self.store.events(InboxFilter()).events == []

    def test_a_delivery_is_stored_once_also_at_the_same_time(self) -> None:
        answers = self.arrive_at_once(["same"] * 8)
        assert sum(answer.new for answer in answers) == 1
        assert len({answer.event_id for answer in answers}) == 1
        assert len(self.claim()) == 1

    def test_what_was_filtered_has_no_job(self) -> None:
        stored = self.store.receive_webhook(delivered("one"), None)
        assert self.event_state(stored) == EventState.FILTERED
        assert self.claim() == []
        assert self.store.receive_webhook(delivered("one"), None) == (stored.event_id, False)

    def test_the_inbox_is_listed_newest_first_without_bodies(self) -> None:
        ids = [self.arrive(str(number)).event_id for number in range(3)]
        other = self.store.receive_webhook(delivered("3", owner="ann"), None).event_id

        def listed(filter: InboxFilter) -> list[str]:
            return [found.record.id for found in self.store.events(filter).events]

        assert listed(InboxFilter()) == [other, *reversed(ids)]
        assert listed(InboxFilter(limit=2, before_id=ids[2])) == [ids[1], ids[0]]
        assert listed(InboxFilter(owner="ann")) == [other]
        assert listed(InboxFilter(webhook="stripe")) == []
        assert listed(InboxFilter(state=EventState.PENDING, limit=1)) == [ids[2]]
        assert {found.record.body for found in self.store.events(InboxFilter()).events} == {None}

    def test_jobs_of_one_entity_start_one_after_the_other(self) -> None:
        first, second, third = (self.job_of(self.arrive(d, "7")) for d in "123")
        other = self.job_of(self.arrive("4", "8"))
        claims = self.claim()
        assert sorted(claim.id for claim in claims) == sorted([first, other])
        assert self.claim() == []
        self.settle(*map(succeeded, claims))
        assert self.claim_ids() == [second]
        assert self.get(third).hold == Hold.BATCH

    def test_one_that_is_canceled_while_it_waits_lets_nobody_pass(self) -> None:
        first, second, third = (self.job_of(self.arrive(d, "7")) for d in "123")
        self.store.cancel(second, "operator", NOW)
        assert self.claim_ids() == [first]
        self.store.cancel(first, "operator", NOW)
        assert self.claim_ids() == [third]

    def test_arrivals_at_the_same_time_stand_in_one_line(self) -> None:
        self.arrive_at_once("12345678", "7")
        for _ in range(8):
            (claim,) = self.claim()
            self.settle(succeeded(claim))
        assert self.claim() == []

    def test_only_what_failed_is_run_again_at_the_end_of_its_line(self) -> None:
        first, second = self.arrive("1", "7"), self.arrive("2", "7")
        assert self.store.retry_event(first.event_id, repeated, NOW + MONTH, "ann", NOW) is None
        self.store.cancel(self.job_of(first), "operator", NOW)
        assert self.event_state(first) == EventState.FAILED

        again = self.store.retry_event(first.event_id, repeated, NOW + MONTH, "ann", NOW)

        assert again == self.job_of(first)
        assert self.store.retry_event(first.event_id, repeated, NOW + MONTH, "ann", NOW) is None
        assert self.claim_ids() == [self.job_of(second)]
        assert self.state(self.job_of(first)) == State.PENDING
        (entry,) = self.store.audit_of(f"webhook:{first.event_id}")
        assert (entry.action, entry.actor) == ("webhook.retry", "ann")
        assert self.store.retry_event(NO_JOB_ID, repeated, NOW + MONTH, None, NOW) is None

    def test_old_webhooks_go_when_their_job_has_gone(self) -> None:
        waiting = self.arrive("1")
        filtered = self.store.receive_webhook(delivered("2"), None)
        assert self.store.retain_events("", NOW) == ("", 0)
        assert self.store.retain_events("", NOW + WEEK) == ("", 1)
        assert self.store.event(filtered.event_id) is None
        assert self.event_state(waiting) == EventState.PENDING
