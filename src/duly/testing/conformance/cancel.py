"""Canceling jobs and what descends from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from duly.model.audit import NewAuditEntry
from duly.model.job import JobFilter, State
from duly.testing.conformance.ground import NO_JOB_ID, NOW, Ground, at_the_same_time, succeeded


class Canceling(Ground):
    def test_a_pending_job_is_canceled_and_never_starts(self) -> None:
        job_id = self.enqueue_one()
        assert self.store.cancel(job_id, "operator", NOW + 3) is True
        record = self.get(job_id)
        assert (record.state, record.canceled_by) == (State.CANCELED, "operator")
        assert (record.completed_at, record.started_at) == (NOW + 3, None)
        assert self.claim() == []

    def test_a_running_job_is_canceled_now_and_its_result_is_dropped(self) -> None:
        claim = self.claim_new()
        assert self.store.cancel(claim.id, "code:x", NOW) is True
        assert self.settle(succeeded(claim)) == set()
        record = self.get(claim.id)
        assert (record.state, record.canceled_by) == (State.CANCELED, "code:x")
        assert record.token == claim.token

    def test_a_finished_job_stays_as_it_is(self) -> None:
        job_id = self.finish_new()
        before = self.get(job_id)
        assert self.store.cancel(job_id, "operator", NOW + 1) is False
        assert self.get(job_id) == before

    def test_a_second_cancel_loses(self) -> None:
        job_id = self.enqueue_one()
        assert self.store.cancel(job_id, "first", NOW) is True
        assert self.store.cancel(job_id, "second", NOW) is False
        assert self.get(job_id).canceled_by == "first"

    def test_who_canceled_it_is_written_down_if_it_won(self) -> None:
        job_id = self.enqueue_one()
        audit_entry = NewAuditEntry("job.cancel", f"job:{job_id}", "ann", {"why": "x"}, NOW)
        assert self.store.cancel(NO_JOB_ID, "ann", NOW, audit_entry) is None
        assert self.store.audit_of(audit_entry.target) == []
        assert self.store.cancel(job_id, "ann", NOW, audit_entry) is True
        assert self.store.cancel(job_id, "ann", NOW, audit_entry) is False
        (entry,) = self.store.audit_of(audit_entry.target)
        assert (entry.action, entry.actor, entry.at) == ("job.cancel", "ann", NOW)

    def test_an_unknown_job_cannot_be_canceled(self) -> None:
        for unknown in (NO_JOB_ID, "", "no id", NO_JOB_ID.upper() + "x"):
            assert self.store.cancel(unknown, "operator", NOW) is None

    def test_everything_that_descends_through_unfinished_jobs_goes_along(self) -> None:
        top = self.claim_new()
        child = self.claim_new(parent_id=top.id)
        finished = self.finish_new(parent_id=top.id)
        grandchild = self.enqueue_one(parent_id=child.id)
        spared = self.enqueue_one(parent_id=finished)
        stranger = self.enqueue_one()

        assert self.store.cancel(top.id, "operator", NOW) is True
        records = {job_id: self.get(job_id) for job_id in (top.id, child.id, grandchild)}
        assert {record.state for record in records.values()} == {State.CANCELED}
        assert records[top.id].canceled_by == "operator"
        assert records[child.id].canceled_by == f"parent:{top.id}"
        assert records[grandchild].canceled_by == f"parent:{child.id}"
        assert self.state(finished) == State.SUCCEEDED
        assert self.claim_ids() == [spared, stranger]

    def test_a_finished_jobs_children_are_not_canceled(self) -> None:
        top = self.finish_new()
        child = self.enqueue_one(parent_id=top)
        assert self.store.cancel(top, "operator", NOW) is False
        assert self.state(child) == State.PENDING

    def test_cancel_and_finish_at_the_same_time_have_one_winner(self) -> None:
        other = self.another_store()
        for _ in range(12):
            claim = self.claim_new()
            cancel: Callable[[], object] = partial(other.cancel, claim.id, "operator", NOW)
            finish: Callable[[], object] = partial(self.settle, succeeded(claim))
            canceled, settled = at_the_same_time([cancel, finish])
            assert bool(canceled) is not bool(settled)
            assert self.state(claim.id) == (State.CANCELED if canceled else State.SUCCEEDED)

    def test_all_matching_jobs_are_canceled(self) -> None:
        in_range = self.enqueue(3, run_at=NOW + 5)
        running = self.claim_new()
        outside = [self.enqueue_one(run_at=NOW + 4), self.enqueue_one(run_at=NOW + 6)]
        other = self.enqueue_one(function="keep", run_at=NOW + 5)
        wanted = JobFilter(function="send", run_after=NOW + 5, run_before=NOW + 6)

        assert self.store.cancel_matching(wanted, "operator", NOW) == 3
        assert {self.state(job_id) for job_id in in_range} == {State.CANCELED}
        assert {self.state(job_id) for job_id in [*outside, other]} == {State.PENDING}
        assert self.store.cancel_matching(JobFilter(state=State.RUNNING), "operator", NOW) == 1
        assert self.state(running.id) == State.CANCELED
        assert self.store.cancel_matching(JobFilter(), "operator", NOW) == 3
        assert self.store.cancel_matching(JobFilter(), "operator", NOW) == 0

    def test_matching_jobs_are_canceled_however_many_they_are(self) -> None:
        self.enqueue(1201)
        assert self.store.cancel_matching(JobFilter(function="send"), "operator", NOW) == 1201
        assert self.claim() == []
