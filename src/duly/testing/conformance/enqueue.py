"""Enqueuing: jobs are stored as given, all of a call or none, and children of running jobs."""

from __future__ import annotations

from functools import partial

import msgspec

from duly.errors import DulyError
from duly.model.job import JobFilter, Kind, NewJob, State
from duly.model.retry import Retry, encode_retry
from duly.testing.conformance.ground import (
    NO_JOB_ID,
    NOW,
    SECOND,
    Ground,
    again,
    at_the_same_time,
    new_job,
    refused,
)


class Enqueuing(Ground):
    def test_a_job_is_stored_as_it_was_given(self) -> None:
        given = new_job(
            function="keep",
            kind=Kind.MUTATION,
            queue="mail",
            priority=7,
            created_at=NOW - 3,
            scheduled_at=NOW - 2,
            run_at=NOW - 1,
            expires_at=NOW + SECOND,
            timeout_ms=60_000,
            retry=encode_retry(Retry(attempts=3)),
            args='{"text":"naïve \\u0000 \U0001f600"}',
            parent_id=NO_JOB_ID,
            owner="anna",
            tags='["a"]',
        )
        self.store.enqueue([given])

        stored = msgspec.structs.asdict(self.get(given.id))
        assert {name: stored[name] for name in NewJob.__struct_fields__} == (
            msgspec.structs.asdict(given)
        )
        assert stored["state"] == State.PENDING
        assert (stored["token"], stored["attempt"], stored["crashes"]) == (0, 0, 0)

    def test_nothing_can_be_enqueued(self) -> None:
        self.store.enqueue([])
        assert list(self.store.find(JobFilter())) == []

    def test_all_jobs_of_a_call_are_stored_or_none(self) -> None:
        stored = self.enqueue_one()
        new = [new_job(), new_job(id=stored), new_job()]
        with refused(DulyError):
            self.store.enqueue(new)
        assert [record.id for record in self.store.find(JobFilter())] == [stored]

    def test_a_thousand_jobs_of_one_call_are_stored(self) -> None:
        ids = self.enqueue(1000)
        found = self.store.find(JobFilter(limit=2000))
        assert sorted(record.id for record in found) == ids

    def test_a_refused_job_harms_no_other_that_is_enqueued_at_the_same_time(self) -> None:
        taken = self.enqueue_one()
        jobs = [[new_job()] for _ in range(24)]
        jobs[5] = jobs[17] = [new_job(id=taken)]

        def attempt(given: list[NewJob]) -> bool:
            try:
                self.store.enqueue(given)
            except DulyError:
                return False
            return True

        answers = at_the_same_time([partial(attempt, given) for given in jobs])
        assert [i for i, stored in enumerate(answers) if not stored] == [5, 17]
        assert all(self.store.get(given[0].id) for given in jobs)

    def test_another_store_sees_a_job_as_soon_as_enqueue_returns(self) -> None:
        other = self.another_store()
        assert self.state(self.enqueue_one(), other) == State.PENDING

    def test_a_child_of_a_running_job_is_stored(self) -> None:
        parent = self.claim_new()
        child = new_job(parent_id=parent.id)
        fence = (parent.id, parent.token)
        assert self.store.enqueue_child(fence, [child], "code", NOW) is not None
        assert self.state(child.id) == State.PENDING

    def test_a_child_of_a_job_that_was_taken_away_is_stored_canceled(self) -> None:
        parent = self.claim_new()
        self.store.cancel(parent.id, "operator", NOW)
        children = [new_job(parent_id=parent.id), new_job(parent_id=parent.id)]
        fence = (parent.id, parent.token)
        by = f"parent:{parent.id}"
        assert self.store.enqueue_child(fence, children, by, NOW + 1) is None
        for child in children:
            record = self.get(child.id)
            assert record.state == State.CANCELED
            assert record.completed_at == NOW + 1
            assert record.canceled_by == f"parent:{parent.id}"
        assert self.claim() == []

    def test_a_child_of_an_earlier_attempt_is_stored_canceled(self) -> None:
        first = self.claim_new()
        self.settle(again(first))
        [second] = self.claim()
        assert second.id == first.id
        late, good = new_job(parent_id=first.id), new_job(parent_id=first.id)
        assert self.store.enqueue_child((first.id, first.token), [late], "x", NOW) is None
        fence = (second.id, second.token)
        assert self.store.enqueue_child(fence, [good], "x", NOW) is not None
        assert (self.state(late.id), self.state(good.id)) == (State.CANCELED, State.PENDING)
