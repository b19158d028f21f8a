"""Claiming: which due jobs a worker gets, in which order, and that no other worker gets them."""

from __future__ import annotations

from functools import partial

from duly.errors import DulyError
from duly.model.job import CLAIM_BYTES, Hold, State
from duly.store.base import Lane
from duly.store.table import Store
from duly.testing.conformance.ground import (
    DAY,
    MIB,
    NO_JOB_ID,
    NOW,
    SECOND,
    Ground,
    again,
    at_the_same_time,
    refused,
)


class Claiming(Ground):
    def test_a_claim_makes_a_job_the_workers_own(self) -> None:
        [job_id] = self.enqueue(timeout_ms=5_000, args='{"a":1}')
        [claim] = self.claim(now=NOW + 7)

        assert (claim.id, claim.function, claim.args) == (job_id, "send", '{"a":1}')
        assert (claim.token, claim.attempt, claim.crashes) == (1, 1, 0)
        record = self.get(job_id)
        assert record.state == State.RUNNING
        assert (record.token, record.attempt) == (1, 1)
        assert (record.worker_id, record.started_at) == (self.worker, NOW + 7)
        assert record.scheduled_at == NOW

    def test_only_due_jobs_are_claimed(self) -> None:
        early, on_time, late = (self.enqueue_one(run_at=NOW + ms) for ms in (-1, 0, 1))
        assert self.claim_ids() == [early, on_time]
        assert self.claim_ids(now=NOW + 1) == [late]

    def test_claims_come_by_priority_then_due_time_then_id(self) -> None:
        low = self.enqueue(2, priority=0)
        late = self.enqueue_one(priority=9, run_at=NOW)
        high = self.enqueue(2, priority=9, run_at=NOW - SECOND)
        middle = self.enqueue_one(priority=5, run_at=NOW - 10 * SECOND)
        expected = [*high, late, middle, *low]
        assert self.claim_ids(4) == expected[:4]
        assert self.claim_ids() == expected[4:]

    def test_queues_are_served_in_the_order_of_the_request(self) -> None:
        b = self.enqueue_one(queue="b", priority=9)
        a = self.enqueue(2, queue="a", priority=0)
        c = self.enqueue_one(queue="c", priority=5)
        assert self.claim_ids(2, queues=["a", "b", "c"]) == a
        assert self.claim_ids(queues=["c", "b", "a"]) == [c, b]

    def test_every_priority_of_many_queues_is_reached(self) -> None:
        queues = [f"q{n:02d}" for n in range(12)]
        expected = [
            self.enqueue_one(queue=queue, priority=priority)
            for queue in queues
            for priority in range(9, -1, -1)
        ]
        assert self.claim_ids(1000, queues=queues) == expected

    def test_a_claim_takes_at_most_its_limit(self) -> None:
        ids = self.enqueue(2) + self.enqueue(3, queue="mail")
        assert self.claim_ids(4, queues=["default", "mail"]) == ids[:4]
        assert self.claim_ids(4, queues=["default", "mail"]) == ids[4:]

    def test_other_queues_and_functions_are_left_alone(self) -> None:
        wanted = self.enqueue_one()
        queue, function = self.enqueue_one(queue="mail"), self.enqueue_one(function="keep")
        assert self.claim_ids() == [wanted]
        assert self.claim_ids(queues=["mail"]) == [queue]
        assert self.claim_ids(functions=["send", "keep"]) == [function]

    def test_a_job_of_another_function_does_not_stand_in_the_way(self) -> None:
        self.enqueue(50, function="keep")
        wanted = self.enqueue_one(run_at=NOW)
        assert self.claim_ids(1) == [wanted]

    def test_nothing_is_claimed_where_nothing_is_listed(self) -> None:
        self.enqueue()
        assert self.claim(functions=[]) == []
        assert self.claim(queues=[]) == []
        assert self.claim(0) == []

    def test_a_paused_queue_is_not_claimed(self) -> None:
        paused, other = self.enqueue_one(queue="mail"), self.enqueue_one()
        self.store.pause_queue("mail", "anna", None, NOW)
        assert self.claim_ids(queues=["mail", "default"]) == [other]
        self.store.resume_queue("mail", None, NOW)
        assert self.claim_ids(queues=["mail", "default"]) == [paused]

    def test_an_expired_job_is_not_claimed(self) -> None:
        self.enqueue(expires_at=NOW)
        fresh = self.enqueue_one(expires_at=NOW + 1)
        assert self.claim_ids() == [fresh]

    def test_a_held_job_is_not_claimed(self) -> None:
        claim = self.claim_new()
        self.settle(again(claim, hold=Hold.SIGNATURE))
        assert self.claim() == []

    def test_a_claim_takes_at_most_eight_mebibytes_of_arguments(self) -> None:
        # Two bytes per character: transferred bytes count, not characters.
        args = '"' + "é" * (3 * MIB // 2 - 1) + '"'
        ids = self.enqueue(5, args=args)
        assert CLAIM_BYTES == 8 * MIB
        assert [self.claim_ids() for _ in range(3)] == [ids[:2], ids[2:4], ids[4:]]

    def test_one_job_is_claimed_however_large_it_is(self) -> None:
        ids = self.enqueue(2, args='"' + "x" * (9 * MIB) + '"')
        assert [self.claim_ids(), self.claim_ids()] == [ids[:1], ids[1:]]

    def test_the_limit_of_bytes_leaves_the_order_as_it_is(self) -> None:
        small = self.enqueue_one(priority=9)
        large = self.enqueue(2, priority=5, args='"' + "x" * (5 * MIB) + '"')
        last = self.enqueue_one(priority=0)
        assert self.claim_ids() == [small, large[0]]
        assert self.claim_ids() == [large[1], last]

    def test_a_claim_is_durable_when_it_returns(self) -> None:
        other = self.another_store()
        claim = self.claim_new()
        record = self.get(claim.id, other)
        assert (record.state, record.token) == (State.RUNNING, claim.token)

    def test_only_a_registered_worker_can_claim(self) -> None:
        job_id = self.enqueue_one()
        with refused(DulyError):
            self.claim(worker=NO_JOB_ID)
        assert self.state(job_id) == State.PENDING

    def test_the_token_is_odd_while_running_and_grows_with_every_change(self) -> None:
        claim = self.claim_new()
        tokens = [claim.token]
        for _ in range(3):
            self.settle(again(claim))
            tokens.append(self.get(claim.id).token)
            [claim] = self.claim()
            tokens.append(claim.token)
        assert tokens == [1, 2, 3, 4, 5, 6, 7]

    def test_an_attempt_is_counted_from_what_the_last_one_left(self) -> None:
        claim = self.claim_new()
        self.settle(again(claim, attempt=claim.attempt - 1))
        [claim] = self.claim()
        assert claim.attempt == 1
        self.settle(again(claim))
        assert self.claim()[0].attempt == 2

    def test_two_handles_never_claim_the_same_job(self) -> None:
        stores = [self.store, self.another_store()]
        ids = self.enqueue(600)
        worker = self.worker

        def claim_all(store: Store) -> list[str]:
            taken: list[str] = []
            while claimed := self.claim_ids(7, worker=worker, store=store):
                taken += claimed
            return taken

        calls = [partial(claim_all, store) for store in stores * 3]
        claimed = [job_id for taken in at_the_same_time(calls) for job_id in taken]
        assert sorted(claimed) == ids

    def test_a_job_that_must_run_alone_is_claimed_by_its_id_only(self) -> None:
        claim = self.claim_new()
        self.settle(again(claim, run_at=NOW + 5, hold=Hold.ALONE))
        assert self.claim(now=NOW + 5) == []
        assert list(self.store.due_alone(["send"], None, NOW + 4)) == []
        assert list(self.store.due_alone(["send"], None, NOW + 5)) == [claim.id]

        alone = self.register("send", alone=True)
        taken = self.store.claim_alone(claim.id, alone, ["send"], NOW + 5)
        assert taken is not None
        assert (taken.id, taken.token) == (claim.id, claim.token + 2)
        assert self.store.claim_alone(claim.id, alone, ["send"], NOW + 5) is None
        assert list(self.store.due_alone(["send"], None, NOW + 5)) == []

    def test_a_job_that_must_run_alone_is_for_those_who_know_its_function(self) -> None:
        claim = self.claim_new()
        self.settle(again(claim, hold=Hold.ALONE))
        alone = self.register("other", alone=True)
        assert list(self.store.due_alone(["other"], None, NOW)) == []
        assert self.store.claim_alone(claim.id, alone, ["other"], NOW) is None
        assert list(self.store.due_alone(["send"], ["another"], NOW)) == []
        assert list(self.store.due_alone(["send"], ["another", claim.queue], NOW)) == [claim.id]

    def test_an_ordinary_job_is_not_claimed_alone(self) -> None:
        job_id = self.enqueue_one()
        assert self.store.claim_alone(job_id, self.worker, ["send"], NOW) is None
        assert self.state(job_id) == State.PENDING

    def test_the_lanes_say_where_claimable_jobs_stand_and_since_when(self) -> None:
        assert list(self.store.lanes()) == []
        self.enqueue(3, queue="a", run_at=NOW - 5)
        self.enqueue(3, queue="a", run_at=NOW + 5)
        self.enqueue(queue="a", priority=9, run_at=NOW + 1)
        self.enqueue(queue="b", priority=0, run_at=NOW + DAY)
        self.enqueue(queue="", priority=0)
        running = self.claim_new(queue="c")
        held = self.claim_new(queue="d")
        self.settle(again(held, hold=Hold.KEY))
        assert running.queue == "c"
        assert sorted(self.store.lanes(), key=lambda lane: (lane.queue, lane.priority)) == [
            Lane("", 0, NOW),
            Lane("a", 5, NOW - 5),
            Lane("a", 9, NOW + 1),
            Lane("b", 0, NOW + DAY),
        ]
