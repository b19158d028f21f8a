"""Upkeep: expiry, time limits, holds and retention."""

from __future__ import annotations

from typing import Any

import msgspec

from duly.ids import new_id
from duly.model.job import (
    Claim,
    ErrorKind,
    Hold,
    JobFilter,
    Settlement,
    State,
    TrackedJob,
    finished,
)
from duly.model.queue import QueuePause
from duly.testing.conformance.ground import (
    DAY,
    MONTH,
    NOW,
    WEEK,
    Ground,
    again,
    new_job,
    succeeded,
)


def _tracked(function: str = "send", **more: Any) -> TrackedJob:
    return TrackedJob(**msgspec.structs.asdict(new_job(function=function)), **more)


class Upkeep(Ground):
    def test_a_job_past_its_deadline_is_settled(self) -> None:
        overdue = self.claim_new(timeout_ms=10)
        in_time, unlimited = self.claim_new(timeout_ms=11), self.claim_new()
        waiting = self.enqueue_one(timeout_ms=1)
        seen: list[Claim] = []

        def judge(claim: Claim) -> Settlement:
            seen.append(claim)
            return finished(claim, State.FAILED, error_kind=ErrorKind.TIMEOUT)

        assert self.store.time_out(NOW + 9, judge, NOW + 9) == set()
        assert self.store.time_out(NOW + 10, lambda _: None, NOW + 10) == set()
        assert self.store.time_out(NOW + 10, judge, NOW + 10) == {overdue.id}
        assert seen == [overdue]
        assert self.settle(succeeded(overdue)) == set()
        record = self.get(overdue.id)
        assert (record.state, record.error_kind) == (State.FAILED, ErrorKind.TIMEOUT)
        assert {self.state(claim.id) for claim in (in_time, unlimited)} == {State.RUNNING}
        assert self.state(waiting) == State.PENDING

    def test_a_job_that_was_not_started_in_time_expires(self) -> None:
        running = self.claim_new(expires_at=NOW + 1)
        expired = self.enqueue(3, expires_at=NOW + 5, run_at=NOW + 2)
        later, never = self.enqueue_one(expires_at=NOW + 6), self.enqueue_one()
        assert self.store.expire(NOW + 4) == 0
        assert self.store.expire(NOW + 5) == 3
        assert self.store.expire(NOW + 5) == 0
        for job_id in expired:
            record = self.get(job_id)
            assert (record.state, record.error_kind) == (State.CANCELED, ErrorKind.EXPIRED)
            assert record.completed_at == NOW + 5
        assert self.state(running.id) == State.RUNNING
        assert {self.state(job_id) for job_id in (later, never)} == {State.PENDING}

    def test_jobs_expire_however_many_they_are(self) -> None:
        self.enqueue(1100, expires_at=NOW)
        counts = [self.store.expire(NOW) for _ in range(4)]
        assert sum(counts) == 1100
        assert counts[-1] == 0

    def test_a_due_job_of_a_function_that_no_worker_lists_is_held(self) -> None:
        self.register("send")
        unknown = self.enqueue(3, function="gone", run_at=NOW - 5)
        known, future = self.enqueue_one(), self.enqueue_one(function="gone", run_at=NOW + 1)
        assert self.store.hold_unknown(NOW) == 3
        assert self.store.hold_unknown(NOW) == 0
        assert {self.get(job_id).hold for job_id in unknown} == {Hold.FUNCTION}
        assert (self.get(known).hold, self.get(future).hold) == (None, None)
        [held] = self.store.held()
        assert (held.hold, held.function, held.count) == ("function", "gone", 3)
        assert held.oldest_run_at == NOW - 5
        assert self.claim_ids(functions=["send", "gone"]) == [known]

    def test_jobs_that_were_held_for_want_of_a_worker_are_freed_by_one(self) -> None:
        first = self.enqueue_one(function="gone")
        assert self.store.hold_unknown(NOW) == 1
        assert self.store.release_known() == 0
        self.register("gone")
        assert self.get(first).hold is None
        assert list(self.store.held()) == []

    def test_a_job_that_was_held_while_its_worker_registered_is_freed_later(self) -> None:
        held = self.claim_new()
        self.settle(again(held, hold=Hold.FUNCTION))
        assert self.get(held.id).hold == Hold.FUNCTION
        assert self.store.release_known() == 1
        assert self.get(held.id).hold is None

    def test_a_hook_that_waits_for_no_job_any_more_is_freed(self) -> None:
        stuck = [self._hook(function=function) for function in ("keep", "send")]
        of_job, of_batch = self._hook(), self._hook()
        waited_for = [{"hook_id": of_job}, {"batch_id": of_batch}]
        self.store.enqueue([_tracked(**fields) for fields in waited_for])
        in_line = self._hook(batch_id=new_id(NOW))

        assert self.store.free_hooks(()) == ((), 2)
        assert self.store.free_hooks(()) == ((), 0)
        assert {self.get(job_id).hold for job_id in stuck} == {None}
        assert {self.get(job_id).hold for job_id in (of_job, of_batch, in_line)} == {Hold.BATCH}

    def test_hooks_are_looked_at_some_at_a_time(self) -> None:
        functions = ["keep"] * 130 + ["send"] * 90
        stuck = [self._hook(function=function) for function in functions]
        after, freed = self.store.free_hooks(())
        assert (after, freed) == (("keep", stuck[99]), 100)
        after, freed = self.store.free_hooks(after)
        assert (after, freed) == (("send", stuck[199]), 100)
        assert self.store.free_hooks(after) == ((), 20)

    def _hook(self, **fields: Any) -> str:
        job = _tracked(hold=Hold.BATCH, **fields)
        self.store.enqueue([job])
        return job.id

    def test_a_new_worker_frees_jobs_that_did_not_fit_the_old_code(self) -> None:
        misfit, other = self.claim_new(), self.claim_new(function="keep")
        self.settle(again(misfit, hold=Hold.SIGNATURE), again(other, hold=Hold.SIGNATURE))
        self.register("send")
        assert self.get(misfit.id).hold is None
        assert self.get(other.id).hold == Hold.SIGNATURE

    def test_a_paused_queue_is_listed_with_who_and_why(self) -> None:
        self.store.pause_queue("mail", "anna", "too many", NOW)
        self.store.pause_queue("b", None, None, NOW)
        self.store.pause_queue("mail", "bob", "still", NOW + 1)
        assert sorted(self.store.paused_queues(), key=lambda queue: queue.name) == [
            QueuePause("b", NOW, None, None),
            QueuePause("mail", NOW + 1, "bob", "still"),
        ]
        for name in ("mail", "b", "never paused"):
            self.store.resume_queue(name, None, NOW)
        assert list(self.store.paused_queues()) == []


class Retention(Ground):
    def retain(self, now: int) -> None:
        for _ in range(50):
            if not self.store.retain(now - WEEK, now - MONTH, now):
                return
        raise AssertionError("retain() never says that nothing is left")

    def test_results_are_kept_for_seven_days_and_not_for_eight(self) -> None:
        job_id = self.finish_new(now=NOW + 5)
        last = self.finish_new(now=NOW + 6)
        self.retain(NOW + 5 + WEEK)
        assert self.store.get(job_id) is not None
        self.retain(NOW + 5 + WEEK + DAY)
        assert self.store.get(job_id) is None
        assert self.store.get(last) is not None

    def test_results_go_however_long_nobody_cleaned_up(self) -> None:
        for days in (9, 12, 14, 15, 16, 17, 20, 24, 31, 40):
            old = self.finish_new()
            self.finish_new()
            self.retain(NOW + days * DAY)
            assert self.store.get(old) is None, f"still there after {days} days"

    def test_a_job_that_finished_past_midnight_survives_a_cleaner_before_midnight(self) -> None:
        midnight = NOW - NOW % DAY + DAY
        job_id = self.finish_new(now=midnight + 1)
        self.finish_new(now=midnight + 1)
        self.retain(midnight - 1)
        assert self.store.get(job_id) is not None

    def test_the_newest_finished_job_of_every_function_outlives_retention(self) -> None:
        old, newest = self.finish_new(), self.finish_new(now=NOW + 1)
        only = self.finish_new(function="keep")
        before = [self.get(newest), self.get(only)]
        for days in (8, 30, 300):
            self.retain(NOW + days * DAY)
            assert self.store.get(old) is None
            assert [self.get(newest), self.get(only)] == before
        found = self.store.find(JobFilter(state=State.SUCCEEDED))
        assert sorted(record.id for record in found) == sorted([newest, only])

        successor = self.finish_new(now=NOW + 300 * DAY)
        self.retain(NOW + 301 * DAY)
        assert self.store.get(newest) is None
        assert (self.state(successor), self.state(only)) == (State.SUCCEEDED, State.SUCCEEDED)

    def test_exhausted_jobs_outlive_retention_for_a_time_of_their_own(self) -> None:
        claim = self.claim_new()
        self.settle(finished(claim, State.FAILED, error_kind="user", exhausted=True))
        self.finish_new(now=NOW + 1)
        self.retain(NOW + 29 * DAY)
        assert self.state(claim.id) == State.FAILED
        self.retain(NOW + MONTH + DAY)
        assert self.store.get(claim.id) is None

    def test_unfinished_jobs_are_never_collected(self) -> None:
        running, pending = self.claim_new(), self.enqueue_one()
        self.retain(NOW + 400 * DAY)
        assert (self.state(running.id), self.state(pending)) == (State.RUNNING, State.PENDING)

    def test_a_great_many_results_go_too(self) -> None:
        self.enqueue(1300)
        claims = self.claim(1300)
        self.settle(*(succeeded(claim) for claim in claims))
        self.finish_new(now=NOW + 20 * DAY)
        self.retain(NOW + 20 * DAY)
        assert len(self.store.find(JobFilter(limit=2000))) == 1
