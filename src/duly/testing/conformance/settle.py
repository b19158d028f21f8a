"""Settling: how an attempt ends, and what the database itself refuses to store."""

from __future__ import annotations

from typing import Any

import msgspec

from duly.errors import DulyError
from duly.model.job import Ending, ErrorKind, Finish, Hold, Settlement, State, finished
from duly.store.base import ClaimRequest
from duly.testing.conformance.ground import (
    DAY,
    NO_JOB_ID,
    NOW,
    Ground,
    again,
    new_job,
    refused,
    succeeded,
)


class Settlements(Ground):
    def test_a_finished_job_keeps_what_it_was_and_gets_its_end(self) -> None:
        claim = self.claim_new(owner="anna", args='{"a":1}')
        assert self.settle(succeeded(claim, '{"b":2}'), now=NOW + 9) == {claim.id}
        record = self.get(claim.id)
        assert (record.state, record.result) == (State.SUCCEEDED, '{"b":2}')
        assert (record.completed_at, record.started_at) == (NOW + 9, NOW)
        assert (record.token, record.attempt, record.worker_id) == (1, 1, self.worker)
        assert (record.owner, record.args, record.scheduled_at) == ("anna", '{"a":1}', NOW)
        assert self.claim() == []

    def test_a_failed_job_carries_its_error(self) -> None:
        claim = self.claim_new()
        error: Ending = {
            "error_kind": ErrorKind.USER,
            "error_message": "no",
            "error_traceback": "at 1",
        }
        self.settle(finished(claim, State.FAILED, **error))
        record = self.get(claim.id)
        assert record.state == State.FAILED
        assert (record.error_kind, record.error_message) == ("user", "no")
        assert (record.error_traceback, record.result) == ("at 1", None)

    def test_a_retried_job_waits_again_and_nobody_owns_it(self) -> None:
        claim = self.claim_new(timeout_ms=1)
        error = {"error_kind": ErrorKind.USER, "error_message": "no", "error_traceback": "at 1"}
        counts = {"attempt": 4, "crashes": 2, "system_retries": 3}
        self.settle(again(claim, run_at=NOW + 50, hold=Hold.ALONE, **counts, **error))
        record = self.get(claim.id)
        assert (record.state, record.run_at, record.hold) == (State.PENDING, NOW + 50, "alone")
        assert (record.token, record.worker_id, record.started_at) == (2, None, None)
        assert (record.attempt, record.crashes, record.system_retries) == (4, 2, 3)
        assert (record.error_kind, record.error_message, record.error_traceback) == (
            "user",
            "no",
            "at 1",
        )
        assert record.scheduled_at == NOW
        assert self.store.time_out(NOW + DAY, lambda c: succeeded(c), NOW + DAY) == set()

    def test_only_the_token_of_the_running_attempt_can_settle_a_job(self) -> None:
        first = self.claim_new()
        self.settle(again(first))
        [second] = self.claim()
        assert self.settle(succeeded(first, '"late"')) == set()
        assert self.settle(again(first, run_at=NOW + DAY)) == set()
        assert self.get(first.id).token == second.token
        assert self.settle(succeeded(second, '"good"')) == {second.id}
        assert self.get(first.id).result == '"good"'

    def test_a_job_is_settled_once(self) -> None:
        claim = self.claim_new()
        assert self.settle(succeeded(claim, "1")) == {claim.id}
        assert self.settle(succeeded(claim, "2")) == set()
        assert self.settle(again(claim)) == set()
        assert (self.get(claim.id).result, self.claim()) == ("1", [])

    def test_a_stale_settlement_leaves_the_others_of_its_batch_alone(self) -> None:
        self.enqueue(9)
        claims = self.claim()
        for stale in (claims[1], claims[4]):
            self.store.cancel(stale.id, "operator", NOW)
        batch: list[Settlement] = [succeeded(claim) for claim in claims[:6]]
        batch += [again(claim) for claim in claims[6:]]
        batch.append(Finish(id=NO_JOB_ID, token=1, state=State.SUCCEEDED))
        batch.append(msgspec.structs.replace(again(claims[8]), token=claims[8].token + 2))

        expected = {claim.id for claim in claims} - {claims[1].id, claims[4].id}
        assert self.settle(*batch) == expected
        states = [self.state(claim.id) for claim in claims]
        assert states == [
            State.SUCCEEDED,
            State.CANCELED,
            State.SUCCEEDED,
            State.SUCCEEDED,
            State.CANCELED,
            State.SUCCEEDED,
            State.PENDING,
            State.PENDING,
            State.PENDING,
        ]

    def test_settling_and_claiming_are_one_exchange(self) -> None:
        self.enqueue(4)
        a, b = self.claim(2)
        request = ClaimRequest(self.worker, ("default",), ("send",), 10)
        settled, claims = self.store.exchange([succeeded(a), again(b)], request, NOW)
        assert settled == {a.id, b.id}
        assert len(claims) == 3
        assert b.id in {claim.id for claim in claims}
        assert a.id not in {claim.id for claim in claims}

    def test_an_exchange_of_nothing_does_nothing(self) -> None:
        self.enqueue()
        settled, claims = self.store.exchange([], None, NOW)
        assert (set(settled), list(claims)) == (set(), [])

    def test_a_settlement_that_cannot_be_stored_leaves_its_whole_batch_undone(self) -> None:
        self.enqueue(3)
        claims = self.claim()
        batch = [succeeded(claim) for claim in claims]
        batch[1] = msgspec.structs.replace(batch[1], state="done")
        with refused(DulyError):
            self.settle(*batch)
        assert [self.state(claim.id) for claim in claims] == [State.RUNNING] * 3

    def test_a_job_that_does_not_run_cannot_be_finished(self) -> None:
        job_id = self.enqueue_one()
        assert not self.settles(Finish(id=job_id, token=0, state=State.SUCCEEDED))
        assert not self.settles(again(self.get(job_id)))
        assert (self.state(job_id), self.get(job_id).token) == (State.PENDING, 0)

    def settles(self, settlement: Settlement) -> bool:
        try:
            return bool(self.settle(settlement))
        except DulyError:
            return False

    def test_a_large_batch_is_settled_whole(self) -> None:
        self.enqueue(1500)
        claims = self.claim(1500)
        assert len(self.settle(*(succeeded(claim) for claim in claims))) == 1500


class Guards(Ground):
    """The database itself refuses invalid rows, whatever writes them."""

    def tamper(self, statement: str, *parameters: Any) -> None:
        with self.store.transaction() as tx:
            tx.execute(statement, parameters)

    def test_a_finished_job_cannot_be_changed(self) -> None:
        job_id = self.finish_new()
        history = self.table("history")
        with refused():
            self.tamper(f"UPDATE {history} SET state = 'failed' WHERE id = ?", job_id)
        assert self.state(job_id) == State.SUCCEEDED

    def test_a_job_cannot_run_without_a_worker(self) -> None:
        job_id = self.enqueue_one()
        jobs = self.table("jobs")
        with refused():
            self.tamper(f"UPDATE {jobs} SET state = 'running', token = 1 WHERE id = ?", job_id)
        change = f"UPDATE {jobs} SET state = 'running', token = 1, worker_id = ? WHERE id = ?"
        with refused():
            self.tamper(change, NO_JOB_ID, job_id)
        self.tamper(change, self.worker, job_id)
        assert self.state(job_id) == State.RUNNING

    def test_a_running_job_has_an_odd_token_and_a_pending_one_an_even_one(self) -> None:
        running, pending = self.claim_new(), self.enqueue_one()
        change = f"UPDATE {self.table('jobs')} SET token = ? WHERE id = ?"
        with refused():
            self.tamper(change, 2, running.id)
        with refused():
            self.tamper(change, 1, pending)
        assert (self.get(running.id).token, self.get(pending).token) == (1, 0)

    def test_a_pending_job_belongs_to_no_worker(self) -> None:
        job_id = self.enqueue_one()
        change = f"UPDATE {self.table('jobs')} SET worker_id = ? WHERE id = ?"
        with refused():
            self.tamper(change, self.worker, job_id)
        assert self.get(job_id).worker_id is None

    def test_a_worker_with_running_jobs_cannot_be_removed(self) -> None:
        claim = self.claim_new()
        with refused(DulyError):
            self.store.deregister(self.worker, NOW)
        assert [worker.id for worker in self.store.workers()] == [self.worker]
        assert self.state(claim.id) == State.RUNNING

    def test_values_outside_their_range_are_not_stored(self) -> None:
        for wrong in ({"priority": 10}, {"priority": -1}, {"kind": "wish"}):
            job = new_job(**wrong)
            with refused(DulyError):
                self.store.enqueue([job])
            assert self.store.get(job.id) is None
