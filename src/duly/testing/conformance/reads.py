"""Reading: finding, counting and listing jobs."""

from __future__ import annotations

from duly.model.job import JobFilter, State
from duly.testing.conformance.ground import DAY, NO_JOB_ID, NOW, Ground, succeeded


class Reads(Ground):
    def test_an_unknown_job_is_not_found(self) -> None:
        for unknown in (NO_JOB_ID, "", "no id"):
            assert self.store.get(unknown) is None

    def test_jobs_are_listed_newest_first_whatever_became_of_them(self) -> None:
        finished = self.finish_new()
        running, canceled, pending = self.claim_new(), self.enqueue_one(), self.enqueue_one()
        self.store.cancel(canceled, "operator", NOW)
        found = self.store.find(JobFilter())
        assert [record.id for record in found] == [pending, canceled, running.id, finished]

    def test_pages_follow_each_other_without_gap_or_repetition(self) -> None:
        ids = self.enqueue(25)
        self.settle(*(succeeded(claim) for claim in self.claim()[5:15]))
        seen: list[str] = []
        page = self.store.find(JobFilter(limit=4))
        while page:
            seen += [record.id for record in page]
            page = self.store.find(JobFilter(limit=4, before_id=seen[-1]))
        assert seen == ids[::-1]

    def test_a_filter_leaves_only_what_matches(self) -> None:
        parent = self.claim_new()
        wanted = {
            "function": self.enqueue_one(function="keep"),
            "queue": self.enqueue_one(queue="mail"),
            "owner": self.enqueue_one(owner="anna"),
            "parent_id": self.enqueue_one(parent_id=parent.id),
            "run_after": self.enqueue_one(run_at=NOW + 9),
            "run_before": self.enqueue_one(run_at=NOW - 9),
            "state": parent.id,
        }
        filters = {
            "function": JobFilter(function="keep"),
            "queue": JobFilter(queue="mail"),
            "owner": JobFilter(owner="anna"),
            "parent_id": JobFilter(parent_id=parent.id),
            "run_after": JobFilter(run_after=NOW + 9),
            "run_before": JobFilter(run_before=NOW - 8),
            "state": JobFilter(state=State.RUNNING),
        }
        found = {
            name: [record.id for record in self.store.find(filter)]
            for name, filter in filters.items()
        }
        assert found == {name: [job_id] for name, job_id in wanted.items()}

    def test_finished_jobs_are_filtered_alike(self) -> None:
        parent = self.enqueue_one(run_at=NOW + DAY)
        done = self.finish_new(function="keep", owner="anna", parent_id=parent)
        other = self.finish_new()
        filters = [
            JobFilter(state=State.SUCCEEDED, function="keep"),
            JobFilter(state=State.SUCCEEDED, owner="anna"),
            JobFilter(parent_id=parent),
            JobFilter(state=State.SUCCEEDED, before_id=other, limit=1),
        ]
        for filter in filters:
            assert [record.id for record in self.store.find(filter)] == [done]
        assert list(self.store.find(JobFilter(state=State.FAILED))) == []
