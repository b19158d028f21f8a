"""Reports: the progress and log lines of running jobs."""

from __future__ import annotations

from duly.model.job import Claim, State
from duly.model.progress import MAX_ATTEMPTS, LogEntry, Look, ProgressReport, revision_of, seq_of
from duly.testing.conformance.ground import (
    DAY,
    MONTH,
    NO_JOB_ID,
    NOW,
    SECOND,
    WEEK,
    Ground,
    again,
    succeeded,
)


class Reports(Ground):
    """What running jobs report, and how it is read."""

    def report(self, claim: Claim, number: int, value: float, note: str | None = None) -> None:
        revision = revision_of(claim.token, number)
        report = ProgressReport(claim.id, claim.token, revision, value, note, NOW)
        self.store.report([report], [])

    def look(self, job_id: str) -> Look:
        (look,) = self.store.look([job_id])
        return look

    def test_a_look_shows_where_jobs_stand(self) -> None:
        pending, ended = self.enqueue_one(run_at=NOW + SECOND), self.finish_new()
        running = self.claim_new()
        looks = {look.job_id: look for look in self.store.look([pending, running.id, ended])}
        assert looks[pending] == Look(pending, State.PENDING, 0, 0, None, None, None, None)
        assert looks[running.id] == Look(running.id, State.RUNNING, 1, 1, None, None, None, None)
        assert looks[ended] == Look(ended, State.SUCCEEDED, 1, 1, None, None, None, None)

    def test_who_is_not_in_the_store_is_not_in_the_look(self) -> None:
        job_id = self.enqueue_one()
        assert [look.job_id for look in self.store.look([NO_JOB_ID, job_id, "no id"])] == [job_id]
        assert list(self.store.look([])) == []

    def test_progress_is_seen_while_running_and_after_the_end(self) -> None:
        claim = self.claim_new()
        self.report(claim, 1, 0.25, "first")
        self.report(claim, 2, 0.5, "sec\u00f6nd")
        look = self.look(claim.id)
        assert (look.value, look.note, look.updated_at) == (0.5, "sec\u00f6nd", NOW)
        assert look.revision == revision_of(claim.token, 2)
        self.settle(succeeded(claim))
        after = self.look(claim.id)
        assert (after.state, after.value, after.note) == (State.SUCCEEDED, 0.5, "sec\u00f6nd")
        assert after.revision > look.revision

    def test_of_two_reports_the_later_one_stays_in_whatever_order_they_come(self) -> None:
        claim = self.claim_new()
        self.report(claim, 2, 0.5)
        self.report(claim, 1, 0.25)
        assert self.look(claim.id).value == 0.5

    def test_only_the_attempt_that_runs_is_heard(self) -> None:
        first = self.claim_new()
        self.settle(again(first))
        self.report(first, 7, 0.9)
        (second,) = self.claim()
        self.report(first, 8, 0.9)
        assert self.look(first.id).reported is None
        self.report(second, 1, 0.1)
        self.report(first, 9, 0.9)
        assert self.look(first.id).value == 0.1

    def test_nobody_hears_of_a_job_that_is_missing_or_has_ended(self) -> None:
        claim = self.claim_new()
        self.settle(succeeded(claim))
        self.report(claim, 1, 0.5)
        assert self.look(claim.id).reported is None
        lost = ProgressReport(NO_JOB_ID, 1, revision_of(1, 1), 0.5, None, NOW)
        self.store.report([lost], [])
        assert list(self.store.look([NO_JOB_ID])) == []

    def test_many_reports_are_written_together(self) -> None:
        self.enqueue(50)
        claims = self.claim()
        reports = [
            ProgressReport(c.id, c.token, revision_of(c.token, 1), 0.5, None, NOW) for c in claims
        ]
        lines = [LogEntry(c.id, seq_of(c.token, 1), NOW, "info", "line") for c in claims]
        self.store.report(reports, lines)
        assert [look.value for look in self.store.look([c.id for c in claims])] == [0.5] * 50
        assert [self.store.logs(c.id, 0) for c in claims] == [[line] for line in lines]

    def test_log_lines_are_kept_in_order_and_once(self) -> None:
        claim = self.claim_new()
        lines = [
            LogEntry(claim.id, seq_of(claim.token, n), NOW + n, "info", str(n)) for n in (1, 2, 3)
        ]
        self.store.report([], lines[:2])
        self.store.report([], lines)
        assert list(self.store.logs(claim.id, 0)) == lines
        assert list(self.store.logs(claim.id, lines[1].seq)) == lines[2:]
        assert list(self.store.logs(NO_JOB_ID, 0)) == []

    def test_lines_of_early_attempts_make_room(self) -> None:
        claim = self.claim_new()
        tokens = [2 * n + 1 for n in range(MAX_ATTEMPTS + 2)]
        for token in tokens:
            line = LogEntry(claim.id, seq_of(token, 1), NOW, "info", str(token))
            self.store.report([], [line])
        kept = [line.line for line in self.store.logs(claim.id, 0)]
        assert kept == [str(token) for token in tokens[2:]]

    def test_what_a_job_said_goes_with_it_and_not_before(self) -> None:
        jobs = [self.claim_new(function="send") for _ in range(2)]
        waiting = self.claim_new(function="keep")
        for claim in [*jobs, waiting]:
            self.report(claim, 1, 0.5)
            line = LogEntry(claim.id, seq_of(claim.token, 1), NOW, "info", "line")
            self.store.report([], [line])
        for place, claim in enumerate(jobs):
            self.settle(succeeded(claim), now=NOW + place)
        late = NOW + 9 * DAY
        while self.store.retain(late - WEEK, late - MONTH, late):
            pass
        gone, newest = (claim.id for claim in jobs)
        assert self.store.get(gone) is None
        assert list(self.store.logs(gone, 0)) == []
        assert len(self.store.logs(newest, 0)) == 1
        assert len(self.store.logs(waiting.id, 0)) == 1
        assert self.look(waiting.id).value == self.look(newest).value == 0.5
