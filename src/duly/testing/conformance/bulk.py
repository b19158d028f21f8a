"""Bulk: many jobs changed, a page at a time."""

from __future__ import annotations

from typing import Any

import msgspec

from duly.model.job import Again, JobFilter, State, TrackedJob, finished
from duly.store.base import CancelJobs, Change, MoveJobs, RepeatJobs
from duly.testing.conformance.ground import (
    DAY,
    MONTH,
    NO_JOB_ID,
    NOW,
    SECOND,
    WEEK,
    Ground,
    new_job,
    refused,
)


class Bulk(Ground):
    """One page of many jobs, and the checkpoint of the job that changes them."""

    def finish_canceled(self, count: int, **fields: Any) -> list[str]:
        ids = self.enqueue(count, **fields)
        for job_id in ids:
            assert self.store.cancel(job_id, "x", NOW)
        return ids

    def start_bulk(self) -> tuple[str, int]:
        """A running job, to fence the changes."""
        claim = self.claim_new(function="keep", queue="own")
        return claim.id, claim.token

    def change(self, running: tuple[str, int], change: Change) -> int | None:
        return self.store.change_page(running, change, lambda n: f'{{"changed":{n}}}', NOW)

    def test_matching_jobs_come_oldest_first_page_by_page(self) -> None:
        ids = self.enqueue(5)
        self.enqueue(2, owner="bob")
        self.enqueue(2, function="duly.bulk")
        self.enqueue(1, function="DULY.bulk")
        ended = self.finish_canceled(3)
        filter = JobFilter(function="send", queue="default", limit=2)
        assert self.store.count(filter, live=True) == 7
        assert self.store.live_ids(filter, NO_JOB_ID) == ids[:2]
        assert self.store.live_ids(filter, ids[1]) == ids[2:4]
        early = JobFilter(before_id=ids[2])
        assert self.store.live_ids(early, ids[0]) == [ids[1]]
        assert self.store.count(early, live=True) == 2
        assert self.store.count(JobFilter(), live=True) == 8, "no internal jobs"
        canceled = JobFilter(state=State.CANCELED, limit=2)
        assert self.store.count(canceled, live=False) == 3
        pages = [self.store.finished(canceled, after) for after in (NO_JOB_ID, ended[1], ended[2])]
        assert [[record.id for record in page] for page in pages] == [ended[:2], ended[2:], []]

    def test_what_retention_has_kept_is_among_the_finished(self) -> None:
        claim = self.claim_new()
        self.settle(finished(claim, State.FAILED, exhausted=True))
        while self.store.retain(NOW + WEEK, NOW - MONTH, NOW + 2 * WEEK):
            pass
        (recent,) = self.finish_canceled(1)
        for filter, expected in (
            (JobFilter(exhausted=True), [claim.id]),
            (JobFilter(function="send"), [claim.id, recent]),
        ):
            assert [r.id for r in self.store.finished(filter, NO_JOB_ID)] == expected
            assert self.store.count(filter, live=False) == len(expected)

    def test_a_page_is_canceled_together_with_its_checkpoint(self) -> None:
        running = self.start_bulk()
        ids = self.enqueue(3)
        (claim,) = self.claim(1)
        child = self.enqueue_one(parent_id=ids[1])
        self.store.cancel(ids[2], "x", NOW)
        assert self.change(running, CancelJobs(ids, "me", only_pending=True)) == 1
        assert [self.state(i) for i in (claim.id, ids[1], child)] == [
            State.RUNNING,
            State.CANCELED,
            State.CANCELED,
        ]
        assert (self.get(ids[1]).canceled_by, self.get(ids[2]).canceled_by) == ("me", "x")
        assert self.get(running[0]).args == '{"changed":1}'
        assert self.change(running, CancelJobs(ids, "me", only_pending=False)) == 1
        assert self.state(claim.id) == State.CANCELED

    def test_pending_jobs_are_moved_and_nothing_else_of_them(self) -> None:
        running = self.start_bulk()
        ids = self.enqueue(2, expires_at=NOW + SECOND)
        (claim,) = self.claim(1)
        assert self.change(running, MoveJobs(ids, NOW + DAY)) == 1
        moved, started = self.get(ids[1]), self.get(claim.id)
        assert (moved.run_at, moved.expires_at) == (NOW + DAY, NOW + DAY + SECOND)
        assert (moved.scheduled_at, moved.token, moved.state) == (NOW, 0, State.PENDING)
        assert (started.run_at, started.expires_at) == (NOW, NOW + SECOND)
        assert self.change(running, MoveJobs(ids, NOW + DAY)) == 1, "again, to the same end"
        assert self.get(ids[1]) == moved
        assert self.claim(now=NOW + DAY - 1) == []
        assert self.claim_ids(now=NOW + DAY) == [ids[1]]

    def test_a_page_of_jobs_is_repeated_once(self) -> None:
        running = self.start_bulk()
        first, second = self.finish_canceled(2)

        def repeats(*originals: str) -> RepeatJobs:
            plain = [(msgspec.structs.asdict(new_job()), each) for each in originals]
            jobs = [TrackedJob(**fields, retry_of=each) for fields, each in plain]
            return RepeatJobs(jobs, NOW + MONTH)

        assert self.change(running, repeats(first)) == 1
        assert self.change(running, repeats(first, second)) == 1
        found = self.store.find(JobFilter(state=State.PENDING))
        assert sorted(str(job.retry_of) for job in found) == sorted([first, second])

    def test_nothing_is_changed_for_a_job_that_was_taken_away(self) -> None:
        job_id, token = self.start_bulk()
        (waiting,) = self.enqueue(1)
        change = CancelJobs([waiting], "me", only_pending=False)
        assert self.change((job_id, token + 2), change) is None
        assert self.get(job_id).args == "{}"
        self.store.cancel(job_id, "x", NOW)
        assert self.change((job_id, token), change) is None
        assert self.state(waiting) == State.PENDING

    def test_a_page_whose_checkpoint_fails_leaves_no_trace(self) -> None:
        running = self.start_bulk()
        (waiting,) = self.enqueue(1)
        change = CancelJobs([waiting], "me", only_pending=False)

        def fail(changed: int) -> str:
            raise RuntimeError("no")

        with refused(RuntimeError):
            self.store.change_page(running, change, fail, NOW)
        assert self.state(waiting) == State.PENDING

    def test_the_next_attempt_gets_the_checkpoint(self) -> None:
        running = self.start_bulk()
        self.change(running, MoveJobs([], NOW))
        job_id, token = running
        self.settle(
            Again(id=job_id, token=token, run_at=NOW, attempt=1, crashes=0, system_retries=0)
        )
        (claim,) = self.claim(queues=["own"], functions=["keep"])
        assert claim.args == '{"changed":0}'
