"""Unique keys and limits: which job holds a key or slot, and until when."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from duly.ids import new_ids
from duly.model.audit import NewAuditEntry
from duly.model.job import Claim, Hold, KeyedJob, KeyEntry, State, TrackedJob
from duly.store.base import ClaimRequest
from duly.testing.conformance.ground import (
    NOW,
    Ground,
    again,
    at_the_same_time,
    judge_lost,
    new_job,
    succeeded,
)


class Keys(Ground):
    def keyed(self, **fields: Any) -> KeyedJob:
        values: dict[str, Any] = msgspec.structs.asdict(new_job()) | fields
        return KeyedJob(**values)

    def under(self, key: str, limits: str, **fields: Any) -> TrackedJob:
        values: dict[str, Any] = msgspec.structs.asdict(new_job(**fields))
        values |= {"limit_key": key, "limits": limits}
        return TrackedJob(**values)

    def store_under(self, key: str, limits: str, count: int = 1, **fields: Any) -> list[str]:
        jobs = [self.under(key, limits, id=each, **fields) for each in new_ids(NOW, count)]
        self.store.enqueue(jobs)
        return [job.id for job in jobs]

    def claim_limited(self, limit: int = 100, now: int = NOW, **how: Any) -> list[Claim]:
        store = how.get("store") or self.store
        worker = how.get("worker") or self.worker
        queues = tuple(how.get("queues", ("default",)))
        request = ClaimRequest(worker, queues, ("send",), limit, limited=True)
        return list(store.exchange([], request, now)[1])

    def held(self) -> int:
        return sum(jobs.count for jobs in self.store.held() if jobs.hold == Hold.KEY)

    def test_who_wanted_a_job_is_written_down_if_it_is_stored(self) -> None:
        first, second = (self.keyed(id=each, unique_key="k") for each in new_ids(NOW, 2))
        audit_entry = NewAuditEntry("endpoint.send", "endpoint:x", "ann", None, NOW)
        assert self.store.enqueue_audited([first], audit_entry) == {}
        assert self.store.enqueue_audited([second], audit_entry) == {second.id: first.id}
        assert len(self.store.audit_of(audit_entry.target)) == 1

    def test_a_job_whose_key_is_held_is_not_stored(self) -> None:
        for field in ("pending_key", "unique_key"):
            first, second = self.keyed(**{field: "k"}), self.keyed(**{field: "k"})
            assert self.store.enqueue([first]) == {}
            assert self.store.enqueue([second]) == {second.id: first.id}
            assert self.store.get(second.id) is None

    def test_a_pending_key_is_free_once_the_body_starts(self) -> None:
        first, second = self.keyed(pending_key="k"), self.keyed(pending_key="k")
        self.store.enqueue([first])
        (claim,) = self.claim()
        assert claim.holds_key
        assert self.store.enqueue([second]) == {second.id: first.id}
        assert self.store.start_bodies([(claim.id, claim.token)]) == {claim.id}
        assert self.store.enqueue([second]) == {}
        self.settle(again(claim))
        assert self.state(first.id) == State.PENDING

    def test_a_job_that_is_given_back_unstarted_has_its_pending_key(self) -> None:
        first, second = self.keyed(pending_key="k"), self.keyed(pending_key="k")
        self.store.enqueue([first])
        (claim,) = self.claim()
        self.settle(again(claim))
        assert self.store.enqueue([second]) == {second.id: first.id}
        assert self.store.start_bodies([(claim.id, claim.token)]) == set()

    def test_a_rescued_job_that_had_not_started_has_its_pending_key(self) -> None:
        first, second = (self.keyed(pending_key="k", kind="mutation") for _ in range(2))
        self.store.enqueue([first])
        dead = self.register("send")
        assert len(self.claim(worker=dead)) == 1
        self.store.rescue(dead, None, judge_lost, NOW)
        assert self.store.enqueue([second]) == {second.id: first.id}

    def test_a_debounced_call_takes_back_a_job_that_was_claimed_and_has_not_started(self) -> None:
        first = self.keyed(pending_key="k", debounced=True)
        later = self.keyed(pending_key="k", debounced=True, run_at=NOW + 5, args='{"a":1}')
        self.store.enqueue([first])
        (claim,) = self.claim()
        assert self.store.enqueue([later]) == {later.id: first.id}
        assert self.store.start_bodies([(claim.id, claim.token)]) == set()
        assert self.settle(succeeded(claim)) == set()
        record = self.get(first.id)
        assert (record.state, record.attempt, record.worker_id) == (State.PENDING, 0, None)
        assert (record.args, record.run_at) == ('{"a":1}', NOW + 5)
        (again,) = self.claim(now=NOW + 5)
        assert self.store.start_bodies([(again.id, again.token)]) == {again.id}

    def test_a_unique_key_is_free_once_the_job_has_ended(self) -> None:
        first, second, third = (self.keyed(unique_key="k") for _ in range(3))
        self.store.enqueue([first])
        (claim,) = self.claim()
        assert self.store.enqueue([second]) == {second.id: first.id}
        self.settle(succeeded(claim))
        assert self.store.enqueue([third]) == {}

    def test_an_entry_is_kept_until_its_time_whatever_becomes_of_the_job(self) -> None:
        def entry(until: int) -> tuple[KeyEntry, ...]:
            return (KeyEntry("period", "k", until),)

        first = self.keyed(entries=entry(NOW + 10))
        self.store.enqueue([first])
        self.store.cancel(first.id, "x", NOW)
        second = self.keyed(created_at=NOW + 9, entries=entry(NOW + 19))
        third = self.keyed(created_at=NOW + 10, entries=entry(NOW + 20))
        assert self.store.enqueue([second]) == {second.id: first.id}
        assert self.store.enqueue([third]) == {}
        assert self.store.forget_keys(NOW + 19) == 0
        assert self.store.forget_keys(NOW + 20) == 1

    def test_a_debounced_job_takes_over_arguments_and_time(self) -> None:
        first = self.keyed(pending_key="k", debounced=True)
        later = self.keyed(pending_key="k", debounced=True, run_at=NOW + 5, args='{"a":1}')
        self.store.enqueue([first])
        assert self.store.enqueue([later]) == {later.id: first.id}
        record = self.get(first.id)
        assert (record.args, record.run_at) == ('{"a":1}', NOW + 5)

    def test_of_many_at_once_one_holds_the_key(self) -> None:
        jobs = [self.keyed(unique_key="k") for _ in range(8)]
        stores = [self.store, self.another_store()]
        found = at_the_same_time([partial(stores[n % 2].enqueue, [j]) for n, j in enumerate(jobs)])
        stored = {job.id for job in jobs if self.store.get(job.id) is not None}
        assert len(stored) == 1
        assert {holder for each in found for holder in each.values()} == stored

    def test_a_limit_starts_only_so_many_and_holds_the_others(self) -> None:
        ids = self.store_under("k", "[2,null,null]", 5)
        claims = self.claim_limited()
        assert [claim.id for claim in claims] == ids[:2]
        assert all(claim.holds_slot for claim in claims)
        assert self.held() == 3
        assert self.claim_limited() == []
        assert list(self.store.lanes()) == []

    def test_slots_go_by_queue_then_priority_then_time(self) -> None:
        places = [("b", 0, NOW), ("a", 9, NOW), ("a", 5, NOW - 1), ("a", 5, NOW - 2)]
        jobs = [
            self.under("k", "[3,null,null]", queue=queue, priority=priority, run_at=run_at)
            for queue, priority, run_at in places
        ]
        self.store.enqueue(jobs)
        claims = self.claim_limited(queues=["b", "a"])
        assert [claim.id for claim in claims] == [jobs[0].id, jobs[1].id, jobs[3].id]

    def test_a_slot_outlives_its_job_and_is_freed_when_told(self) -> None:
        ids = self.store_under("k", "[1,null,null]", 3)
        (claim,) = self.claim_limited()
        self.settle(succeeded(claim))
        self.store.cancel(claim.id, "x", NOW)
        assert self.claim_limited() == []
        assert self.store.slots_of(self.worker) == {(claim.id, claim.token)}
        assert self.store.release_slots([(claim.id, claim.token)], NOW)
        assert not self.store.release_slots([(claim.id, claim.token)], NOW)
        assert self.held() == 1
        assert [claim.id for claim in self.claim_limited()] == [ids[1]]

    def test_an_earlier_attempt_keeps_its_slot(self) -> None:
        self.store_under("k", "[2,null,null]", 1)
        (first,) = self.claim_limited()
        self.settle(again(first))
        (second,) = self.claim_limited()
        both = {(first.id, first.token), (second.id, second.token)}
        assert self.store.slots_of(self.worker) == both
        self.store.release_slots([(first.id, first.token)], NOW)
        assert self.store.slots_of(self.worker) == {(second.id, second.token)}

    def test_a_dead_workers_slots_go_with_it(self) -> None:
        self.store_under("k", "[1,null,null]", 2)
        dead = self.register("send")
        assert len(self.claim_limited(worker=dead)) == 1
        assert self.claim_limited() == []
        self.store.rescue(dead, None, judge_lost, NOW)
        assert self.store.slots_of(dead) == set()
        assert len(self.claim_limited()) == 1

    def test_a_rate_moves_what_comes_too_early(self) -> None:
        ids = self.store_under("k", "[null,2,1000]", 4)
        claims = self.claim_limited()
        assert [claim.id for claim in claims] == ids[:2]
        assert not any(claim.holds_slot for claim in claims)
        assert self.get(ids[2]).run_at == NOW + 1000
        assert self.claim_limited(now=NOW + 999) == []
        later = self.claim_limited(now=NOW + 1000) + self.claim_limited(now=NOW + 1000)
        assert [claim.id for claim in later] == ids[2:]

    def test_claims_at_the_same_time_never_exceed_a_limit(self) -> None:
        self.store_under("k", "[3,null,null]", 30)
        stores = [self.store, self.another_store()]
        assert self.worker
        calls = [partial(self.claim_limited, 5, store=stores[n % 2]) for n in range(8)]
        assert sum(len(claims) for claims in at_the_same_time(calls)) == 3

    def test_whoever_waits_for_nothing_is_found(self) -> None:
        self.store_under("k", "[1,null,null]", 2)
        (claim,) = self.claim_limited()
        assert self.store.admit_waiters("", NOW) == ("", False)
        self.store.release_slots([(claim.id, claim.token)], NOW)
        assert self.held() == 0

    def test_a_queue_with_a_limit_runs_only_so_many(self) -> None:
        self.store.limit_queue("small", 2, None, NOW)
        ids = self.enqueue(3, queue="small")
        claims = self.claim_limited(queues=["small"])
        assert [claim.id for claim in claims] == ids[:2]
        assert self.claim_limited(queues=["small"]) == []
        assert self.held() == 0
        assert self.store.release_slots([(claims[0].id, claims[0].token)], NOW)
        assert [claim.id for claim in self.claim_limited(queues=["small"])] == [ids[2]]
        assert self.store.queue_limits() == {"small": 2}
        self.store.limit_queue("small", None, None, NOW)
        assert self.store.queue_limits() == {}

    def test_a_lane_says_whether_limits_must_be_looked_at(self) -> None:
        """Only for a store that does not claim limited jobs unless it is told to."""
        self.store_under("k", "[1,null,null]", 1)
        (lane,) = self.store.lanes()
        assert lane.limited or len(self.claim()) == 1
