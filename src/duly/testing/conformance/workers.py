"""Workers: registration, heartbeats, crashes and rescue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from duly.errors import DulyError
from duly.ids import new_id
from duly.model.job import ErrorKind, Hold, Kind, Lost, Settlement, State
from duly.model.retry import Retry, encode_retry
from duly.store.base import WorkerInfo
from duly.store.table import Store
from duly.testing.conformance.ground import (
    DAY,
    NO_JOB_ID,
    NOW,
    Ground,
    again,
    at_the_same_time,
    judge_lost,
    judge_witnessed,
    refused,
    succeeded,
)


class Workers(Ground):
    def test_a_worker_is_listed_from_its_registration_to_its_end(self) -> None:
        info = WorkerInfo(new_id(NOW), "shop", "host", 42, ("a", "b"), ("f", "g"), 7, True, 0, NOW)
        self.store.register(info, NOW)
        assert list(self.store.workers()) == [info]
        any_queue = self.register("send")
        assert {worker.id: worker.queues for worker in self.store.workers()} == {
            info.id: ("a", "b"),
            any_queue: None,
        }
        self.store.deregister(info.id, NOW)
        assert [worker.id for worker in self.store.workers()] == [any_queue]

    def test_a_beat_answers_who_still_has_a_row(self) -> None:
        a, b = self.register("send"), self.register("send")
        assert self.store.beat([a, b, NO_JOB_ID]) == {a, b}
        assert self.store.beats().keys() == {a, b}
        self.store.deregister(a, NOW)
        assert self.store.beat([a]) == set()
        assert self.store.beats().keys() == {b}

    def test_a_living_worker_is_not_dead(self) -> None:
        other = self.another_store()
        worker = self.register("send")
        for store in (self.store, other):
            assert store.is_dead(worker) in (False, None)

    def test_the_holdings_are_the_jobs_a_worker_runs_with_their_tokens(self) -> None:
        self.enqueue(3)
        mine = self.claim(2)
        theirs = self.claim(worker=self.register("send"))
        assert self.store.holdings(self.worker) == {claim.id: claim.token for claim in mine}
        self.settle(succeeded(mine[0]), again(mine[1], run_at=NOW + DAY))
        assert self.store.holdings(self.worker) == {}
        assert len(theirs) == 1

    def test_rescue_settles_every_job_of_a_dead_worker_and_removes_its_row(self) -> None:
        self.enqueue(3)
        lost = self.claim(2)
        [spared] = self.claim(worker=self.register("send"))
        asked: list[str] = []

        def judge(job: Lost) -> Settlement:
            asked.append(job.id)
            return again(job, crashes=job.crashes + 1)

        assert self.store.rescue(self.worker, None, judge, NOW) == 2
        assert sorted(asked) == [claim.id for claim in lost]
        assert self.worker not in self.store.beats()
        assert self.settle(*(succeeded(claim) for claim in lost)) == set()
        for claim in lost:
            record = self.get(claim.id)
            assert (record.state, record.crashes) == (State.PENDING, 1)
        assert self.state(spared.id) == State.RUNNING

    def test_a_worker_is_rescued_once(self) -> None:
        claim = self.claim_new()
        assert self.store.rescue(self.worker, None, judge_lost, NOW) == 1
        before = self.get(claim.id)
        assert self.store.rescue(self.worker, None, judge_lost, NOW + 1) is None
        assert self.store.rescue(NO_JOB_ID, None, judge_lost, NOW) is None
        assert self.get(claim.id) == before

    def test_many_rescuers_at_once_settle_a_worker_once(self) -> None:
        stores = [self.store, self.another_store()]
        self.enqueue(40, kind=Kind.MUTATION)
        claims = self.claim()
        worker = self.worker

        def rescue(store: Store) -> int | None:
            return store.rescue(worker, None, judge_lost, NOW)

        answers = at_the_same_time([partial(rescue, store) for store in stores * 3])
        assert sorted(answers, key=lambda count: count or 0) == [None] * 5 + [40]
        assert {self.get(claim.id).crashes for claim in claims} == {1}

    def test_a_worker_that_has_beaten_since_is_not_rescued(self) -> None:
        claim = self.claim_new()
        seen = self.store.beats()[self.worker]
        assert self.store.rescue(self.worker, seen + 1, judge_lost, NOW) is None
        self.store.beat([self.worker])
        if self.store.beats()[self.worker] != seen:
            assert self.store.rescue(self.worker, seen, judge_lost, NOW) is None
        assert self.store.is_dead(self.worker) in (False, None)
        assert self.state(claim.id) == State.RUNNING
        beat = self.store.beats()[self.worker]
        assert self.store.rescue(self.worker, beat, judge_lost, NOW) == 1

    def test_a_rescue_that_fails_changes_nothing(self) -> None:
        self.enqueue(2)
        claims = self.claim()
        judged: list[str] = []

        def judge(job: Lost) -> Settlement:
            if judged:
                raise ZeroDivisionError
            judged.append(job.id)
            return judge_lost(job)

        with refused(ZeroDivisionError):
            self.store.rescue(self.worker, None, judge, NOW)
        assert self.store.holdings(self.worker) == {claim.id: claim.token for claim in claims}

    def test_a_lost_mutation_runs_again_without_counting_the_attempt(self) -> None:
        claim = self.claim_new(kind=Kind.MUTATION)
        self.store.rescue(self.worker, None, judge_lost, NOW)
        record = self.get(claim.id)
        assert (record.state, record.attempt, record.crashes) == (State.PENDING, 0, 1)
        assert record.run_at == NOW

    def test_a_lost_action_runs_again_only_if_it_asked_for_retries(self) -> None:
        plain = self.claim_new()
        retried = self.claim_new(retry=encode_retry(Retry(attempts=2)))
        used_up = self.claim_new(retry=encode_retry(Retry(attempts=1)))
        self.store.rescue(self.worker, None, judge_lost, NOW)
        for claim in (plain, used_up):
            record = self.get(claim.id)
            assert (record.state, record.error_kind) == (State.FAILED, ErrorKind.WORKER_LOST)
        record = self.get(retried.id)
        assert (record.state, record.attempt, record.crashes) == (State.PENDING, 1, 1)
        assert record.run_at > NOW

    def test_only_two_witnessed_crashes_in_a_process_of_its_own_convict_a_job(self) -> None:
        job_id = self.enqueue_one(kind=Kind.MUTATION)
        for _ in range(2):
            worker = self.register("send")
            assert self.claim_ids(worker=worker) == [job_id]
            self.store.rescue(worker, None, judge_lost, NOW)
        assert (self.state(job_id), self.get(job_id).hold) == (State.PENDING, Hold.ALONE)

        for judge, crashes in ((judge_lost, 2), (judge_witnessed, 3), (judge_lost, 3)):
            self._crash_alone(job_id, judge)
            record = self.get(job_id)
            assert (record.state, record.hold) == (State.PENDING, Hold.ALONE)
            assert (record.attempt, record.crashes) == (0, crashes)
        self._crash_alone(job_id, judge_witnessed)
        record = self.get(job_id)
        assert (record.state, record.error_kind) == (State.FAILED, ErrorKind.CRASH_LOOP)

    def _crash_alone(self, job_id: str, judge: Callable[[Lost], Settlement]) -> None:
        alone = self.register("send", alone=True)
        assert self.store.claim_alone(job_id, alone, ["send"], NOW) is not None
        assert self.store.rescue(alone, None, judge, NOW) == 1

    def test_a_rescued_worker_cannot_claim(self) -> None:
        worker, job_id = self.worker, self.enqueue_one()
        self.store.rescue(worker, None, judge_lost, NOW)
        with refused(DulyError):
            self.claim(worker=worker)
        assert self.state(job_id) == State.PENDING
