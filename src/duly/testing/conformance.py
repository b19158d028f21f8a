"""What must every store do? Each test is a sentence of the contract in `duly.store.base`.

Run it on a store of your own with pytest:

    from duly.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def make_store(self):
            store = MyStore(...)      # nothing in it
            store.migrate(now=0)
            return store

        def reopen(self, store):      # another handle on the same data, as another process has it
            return MyStore(...)

`make_empty_store` and `table` make a few more tests possible; what is not overridden is skipped.
The suite asks for no package but duly, takes all times as given, and closes every store it used.
"""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from duly.clock import os_monotonic, os_sleep
from duly.errors import DulyError, StoreError, StoreTooNew, TransactionEnded
from duly.ids import new_id, new_ids
from duly.model.function import FunctionInfo, Published, Status
from duly.model.job import (
    Again,
    Claim,
    ErrorKind,
    Finish,
    Hold,
    JobFilter,
    JobRecord,
    KeyedJob,
    KeyEntry,
    Kind,
    Lost,
    NewJob,
    Settlement,
    State,
    TrackedJob,
    settle_lost,
)
from duly.model.progress import (
    MAX_ATTEMPTS,
    LogEntry,
    Look,
    ProgressReport,
    revision_of,
    seq_of,
)
from duly.model.retry import Retry, encode_retry
from duly.store.base import (
    CLAIM_BYTES,
    CancelJobs,
    Change,
    ClaimRequest,
    Lane,
    MoveJobs,
    MutationLane,
    QueuePause,
    RepeatJobs,
    Store,
    WorkerInfo,
)

NOW = 1_767_225_600_000
SECOND = 1_000
DAY = 86_400_000
WEEK = 7 * DAY
MONTH = 30 * DAY
MIB = 1 << 20
PATIENCE = 20.0
NOBODY = "00000000-0000-7000-8000-000000000000"

T = TypeVar("T")


@contextmanager
def refused(kind: type[Exception] = Exception) -> Generator[None]:
    """The block must raise such an error."""
    try:
        yield
    except AssertionError:
        raise
    except kind:
        return
    raise AssertionError("this should have been refused")


def new_job(**fields: Any) -> NewJob:
    """A job that is due at NOW, but for what is given."""
    values: dict[str, Any] = {
        "id": new_id(NOW),
        "function": "send",
        "kind": Kind.ACTION,
        "queue": "default",
        "priority": 5,
        "created_at": NOW,
        "scheduled_at": NOW,
        "run_at": NOW,
        "expires_at": None,
        "timeout_ms": None,
        "retry": None,
        "args": "{}",
        "parent_id": None,
        "owner": None,
        "tags": None,
    }
    return NewJob(**values | fields)


def succeeded(claim: Claim, result: str | None = None) -> Finish:
    return Finish(claim.id, claim.token, State.SUCCEEDED, result)


def again(claim: Claim, **fields: Any) -> Again:
    values: dict[str, Any] = {
        "run_at": NOW,
        "attempt": claim.attempt,
        "crashes": claim.crashes,
        "system_retries": claim.system_retries,
    }
    return Again(claim.id, claim.token, **values | fields)


def judge_lost(lost: Lost, alone: bool) -> Settlement:
    return settle_lost(lost, NOW, 0.0, alone)


class _Ground:
    """What a subclass provides, and the words that the tests are written in."""

    # To be overridden

    def make_store(self) -> Store:
        """A store with nothing in it, migrated."""
        raise NotImplementedError("override make_store()")

    def reopen(self, store: Store) -> Store:
        """Another handle on the same data, as another process would open it."""
        raise unittest.SkipTest("override reopen() to test two handles on the same data")

    def make_empty_store(self) -> Store:
        """A store that was never migrated."""
        raise unittest.SkipTest("override make_empty_store() to test a store without tables")

    def table(self, name: str) -> str:
        """How SQL calls the table of `jobs`, `history` or `meta`."""
        raise unittest.SkipTest("override table() to test what the database itself refuses")

    # Words

    _store: Store | None = None
    _worker: str | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = self._open(self.make_store())
        return self._store

    def another_handle(self) -> Store:
        return self._open(self.reopen(self.store))

    def teardown_method(self) -> None:
        for store in reversed(self._used()):
            store.close()

    def _open(self, store: Store) -> Store:
        self._used().append(store)
        store.open(NOW)
        return store

    def _used(self) -> list[Store]:
        used: list[Store] = self.__dict__.setdefault("_stores", [])
        return used

    def register(self, *functions: str, alone: bool = False, store: Store | None = None) -> str:
        """A new worker that lists these functions."""
        worker_id = new_id(NOW)
        info = WorkerInfo(worker_id, "app", "host", 1, None, functions, 10, alone, 0, NOW)
        (store or self.store).register(info, NOW)
        return worker_id

    @property
    def worker(self) -> str:
        """A worker that lists `send` and `keep`."""
        if self._worker is None:
            self._worker = self.register("send", "keep")
        return self._worker

    def enqueue(self, count: int = 1, **fields: Any) -> list[str]:
        jobs = [new_job(id=job_id, **fields) for job_id in new_ids(NOW, count)]
        self.store.enqueue(jobs)
        return [job.id for job in jobs]

    def enqueue_one(self, **fields: Any) -> str:
        return self.enqueue(**fields)[0]

    def claim(
        self,
        limit: int = 100,
        *,
        now: int = NOW,
        queues: Sequence[str] = ("default",),
        functions: Sequence[str] = ("send",),
        worker: str | None = None,
        store: Store | None = None,
    ) -> list[Claim]:
        request = ClaimRequest(worker or self.worker, tuple(queues), tuple(functions), limit)
        _, claims = (store or self.store).exchange([], request, now)
        return list(claims)

    def claim_ids(self, limit: int = 100, **how: Any) -> list[str]:
        return [claim.id for claim in self.claim(limit, **how)]

    def claim_new(self, **fields: Any) -> Claim:
        """A new job, running."""
        job_id = self.enqueue_one(**fields)
        claims = self.claim(queues=[fields.get("queue", "default")], functions=["send", "keep"])
        return next(claim for claim in claims if claim.id == job_id)

    def settle(self, *settlements: Settlement, now: int = NOW) -> set[str]:
        settled, _ = self.store.exchange(settlements, None, now)
        return settled

    def finish_new(self, now: int = NOW, **fields: Any) -> str:
        """A new job that has succeeded."""
        claim = self.claim_new(**fields)
        assert self.settle(succeeded(claim), now=now) == {claim.id}
        return claim.id

    def get(self, job_id: str, store: Store | None = None) -> JobRecord:
        record = (store or self.store).get(job_id)
        assert record is not None, f"job {job_id} is not in the store"
        return record

    def state(self, job_id: str, store: Store | None = None) -> State:
        return self.get(job_id, store).state

    def create_user_table(self) -> None:
        with self.store.transaction() as tx:
            tx.execute("CREATE TABLE notes (n INTEGER UNIQUE)")

    def user_rows(self) -> list[int]:
        with self.store.transaction() as tx:
            return [row[0] for row in tx.execute("SELECT n FROM notes ORDER BY n")]


def at_the_same_time(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run all of them, each in a thread, started together; the answers in their order."""
    ready = threading.Barrier(len(calls))

    def start(call: Callable[[], T]) -> T:
        ready.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(start, c) for c in calls]]


class _Enqueue(_Ground):
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
            parent_id=NOBODY,
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

    def test_another_handle_sees_a_job_as_soon_as_enqueue_returns(self) -> None:
        other = self.another_handle()
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


class _Claim(_Ground):
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
        self.store.resume_queue("mail")
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
        # Two bytes a character: what counts is what travels, not what is read.
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
        other = self.another_handle()
        claim = self.claim_new()
        record = self.get(claim.id, other)
        assert (record.state, record.token) == (State.RUNNING, claim.token)

    def test_only_a_registered_worker_can_claim(self) -> None:
        job_id = self.enqueue_one()
        with refused(DulyError):
            self.claim(worker=NOBODY)
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
        handles = [self.store, self.another_handle()]
        ids = self.enqueue(600)
        worker = self.worker

        def claim_all(store: Store) -> list[str]:
            taken: list[str] = []
            while claimed := self.claim_ids(7, worker=worker, store=store):
                taken += claimed
            return taken

        calls = [partial(claim_all, handle) for handle in handles * 3]
        claimed = [job_id for taken in at_the_same_time(calls) for job_id in taken]
        assert sorted(claimed) == ids

    def test_a_job_that_must_run_alone_is_claimed_by_its_id_only(self) -> None:
        claim = self.claim_new()
        self.settle(again(claim, run_at=NOW + 5, hold=Hold.ALONE))
        assert self.claim(now=NOW + 5) == []
        assert list(self.store.due_alone(NOW + 4)) == []
        assert list(self.store.due_alone(NOW + 5)) == [claim.id]

        alone = self.register("send", alone=True)
        taken = self.store.claim_alone(claim.id, alone, NOW + 5)
        assert taken is not None
        assert (taken.id, taken.token) == (claim.id, claim.token + 2)
        assert self.store.claim_alone(claim.id, alone, NOW + 5) is None
        assert list(self.store.due_alone(NOW + 5)) == []

    def test_an_ordinary_job_is_not_claimed_alone(self) -> None:
        job_id = self.enqueue_one()
        assert self.store.claim_alone(job_id, self.worker, NOW) is None
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


class _Settle(_Ground):
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
        self.settle(Finish(claim.id, claim.token, State.FAILED, None, ErrorKind.USER, "no", "at 1"))
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
        assert self.store.time_out(NOW + DAY, lambda c: succeeded(c), NOW + DAY) == 0

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
        batch.append(Finish(NOBODY, 1, State.SUCCEEDED))
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
        assert not self.settles(Finish(job_id, 0, State.SUCCEEDED))
        assert not self.settles(Again(job_id, 0, NOW, 0, 0, 0))
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


class _Guards(_Ground):
    """The database itself refuses what must not be, whoever asks."""

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
            self.tamper(change, NOBODY, job_id)
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
            self.store.deregister(self.worker)
        assert [worker.id for worker in self.store.workers()] == [self.worker]
        assert self.state(claim.id) == State.RUNNING

    def test_values_outside_their_range_are_not_stored(self) -> None:
        for wrong in ({"priority": 10}, {"priority": -1}, {"kind": "wish"}):
            job = new_job(**wrong)
            with refused(DulyError):
                self.store.enqueue([job])
            assert self.store.get(job.id) is None


class _Cancel(_Ground):
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

    def test_an_unknown_job_cannot_be_canceled(self) -> None:
        for unknown in (NOBODY, "", "no id", NOBODY.upper() + "x"):
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
        other = self.another_handle()
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


class _Transactions(_Ground):
    def test_what_is_done_in_a_transaction_happens_together(self) -> None:
        self.create_user_table()
        job, doomed = new_job(), self.enqueue_one()
        with self.store.transaction() as tx:
            tx.execute("INSERT INTO notes VALUES (?)", (1,))
            tx.insert_jobs([job])
            assert tx.cancel(doomed, "code", NOW) is True
        assert self.user_rows() == [1]
        assert self.state(job.id) == State.PENDING
        assert self.state(doomed) == State.CANCELED

    def test_a_transaction_that_raises_leaves_nothing_behind(self) -> None:
        self.create_user_table()
        job, spared = new_job(), self.enqueue_one()
        with refused(ZeroDivisionError), self.store.transaction() as tx:
            tx.execute("INSERT INTO notes VALUES (1)")
            tx.insert_jobs([job])
            tx.cancel(spared, "code", NOW)
            raise ZeroDivisionError
        assert self.user_rows() == []
        assert self.store.get(job.id) is None
        assert self.state(spared) == State.PENDING

    def test_a_savepoint_that_raises_takes_only_its_own_work_back(self) -> None:
        self.create_user_table()
        kept, dropped, last = new_job(), new_job(), new_job()
        with self.store.transaction() as tx:
            tx.insert_jobs([kept])
            with refused(ZeroDivisionError), tx.savepoint():
                tx.insert_jobs([dropped])
                with tx.savepoint():
                    tx.execute("INSERT INTO notes VALUES (1)")
                raise ZeroDivisionError
            with refused(), tx.savepoint():
                tx.execute("SELECT * FROM no_such_table")
            with tx.savepoint():
                tx.insert_jobs([last])
        assert self.user_rows() == []
        assert self.store.get(dropped.id) is None
        assert (self.state(kept.id), self.state(last.id)) == (State.PENDING, State.PENDING)

    def test_a_transaction_sees_its_own_work_and_nobody_else_does(self) -> None:
        other = self.another_handle()
        job, old = new_job(function="keep"), self.enqueue_one()
        with self.store.transaction() as tx:
            tx.insert_jobs([job])
            tx.cancel(old, "code", NOW)
            seen, gone = tx.get(job.id), tx.get(old)
            assert seen is not None
            assert seen.state == State.PENDING
            assert gone is not None
            assert gone.state == State.CANCELED
            assert [found.id for found in tx.find(JobFilter(function="keep"))] == [job.id]
            assert other.get(job.id) is None
            assert self.state(old, other) == State.PENDING
        assert self.state(job.id, other) == State.PENDING

    def test_a_refused_job_undoes_the_whole_transaction(self) -> None:
        stored, new = self.enqueue_one(), new_job()
        with refused(), self.store.transaction() as tx:
            tx.insert_jobs([new])
            tx.insert_jobs([new_job(id=stored)])
        assert self.store.get(new.id) is None

    def test_statements_take_question_marks_and_answer_rows(self) -> None:
        self.create_user_table()
        with self.store.transaction() as tx:
            assert tx.execute("INSERT INTO notes VALUES (?), (?)", (1, 2)).rowcount == 2
            rows = tx.execute("SELECT n, '?' FROM notes WHERE n > ? ORDER BY n", (0,))
            assert rows.all() == [(1, "?"), (2, "?")]
            assert tx.execute("SELECT count(*) FROM notes").scalar() == 2
            assert tx.execute("SELECT n FROM notes WHERE n > 9").first() is None
            with refused(LookupError):
                tx.execute("SELECT n FROM notes").one()

    def test_a_running_job_is_locked_by_its_token(self) -> None:
        claim = self.claim_new()
        with self.store.transaction() as tx:
            assert tx.lock_running(claim.id, claim.token) is True
            assert tx.lock_running(claim.id, claim.token + 1) is False
            assert tx.lock_running(NOBODY, 1) is False

    def test_a_transaction_cannot_be_ended_from_inside(self) -> None:
        job = new_job()
        with refused(), self.store.transaction() as tx:
            tx.execute("ROLLBACK")
            tx.insert_jobs([job])
        assert self.store.get(job.id) is None
        self.enqueue()


class _Mutations(_Ground):
    """begin → (enter → body → finish → leave | undo)* → commit | rollback."""

    @contextmanager
    def lane(self) -> Generator[MutationLane]:
        self.create_user_table()
        lane = self.store.mutation_lane()
        try:
            yield lane
        finally:
            lane.close()

    def running(self, count: int) -> list[Claim]:
        self.enqueue(count, kind=Kind.MUTATION)
        return self.claim(count)

    def test_the_bodys_writes_and_its_success_are_one_commit(self) -> None:
        [claim], child = self.running(1), new_job()
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            lane.tx.insert_jobs([child])
            assert lane.finish(claim, '"ok"', NOW + 4) is True
            lane.leave()
            assert (self.state(claim.id), self.store.get(child.id)) == (State.RUNNING, None)
            lane.commit()
        record = self.get(claim.id)
        assert (record.state, record.result) == (State.SUCCEEDED, '"ok"')
        assert record.completed_at == NOW + 4
        assert self.user_rows() == [1]
        assert self.state(child.id) == State.PENDING

    def test_a_rolled_back_body_leaves_nothing_and_its_job_runs_on(self) -> None:
        [claim], child = self.running(1), new_job()
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            lane.tx.insert_jobs([child])
            assert lane.finish(claim, None, NOW) is True
            lane.rollback()
        assert (self.state(claim.id), self.store.get(child.id)) == (State.RUNNING, None)
        assert self.user_rows() == []
        assert self.settle(again(claim)) == {claim.id}

    def test_a_body_whose_job_was_taken_away_cannot_finish(self) -> None:
        canceled, given_back = self.running(2)
        self.store.cancel(canceled.id, "operator", NOW)
        self.settle(again(given_back))
        with self.lane() as lane:
            for claim in (canceled, given_back):
                lane.begin(False)
                lane.enter()
                lane.tx.execute("INSERT INTO notes VALUES (1)")
                assert lane.finish(claim, None, NOW) is False
                lane.rollback()
        assert self.user_rows() == []
        assert self.state(canceled.id) == State.CANCELED
        assert self.state(given_back.id) == State.PENDING

    def test_members_of_a_shared_transaction_are_undone_alone(self) -> None:
        first, second, third = self.running(3)
        with self.lane() as lane:
            lane.begin(True)
            for claim, n in ((first, 1), (second, 2), (third, 3)):
                lane.enter()
                lane.tx.execute("INSERT INTO notes VALUES (?)", (n,))
                assert lane.finish(claim, None, NOW)
                if claim is second:
                    assert lane.undo() is True
                else:
                    lane.leave()
            lane.commit()
        states = [self.state(claim.id) for claim in (first, second, third)]
        assert states == [State.SUCCEEDED, State.RUNNING, State.SUCCEEDED]
        assert self.user_rows() == [1, 3]

    def test_a_failed_statement_of_one_member_leaves_the_others_alone(self) -> None:
        first, second = self.running(2)
        with self.lane() as lane:
            lane.begin(True)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            with refused():
                lane.tx.execute("INSERT INTO notes VALUES (1)")
            assert lane.undo() is True
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (2)")
            assert lane.finish(second, None, NOW)
            lane.leave()
            lane.commit()
        assert (self.state(first.id), self.state(second.id)) == (State.RUNNING, State.SUCCEEDED)
        assert self.user_rows() == [2]

    def test_alone_in_its_transaction_a_member_cannot_be_undone(self) -> None:
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            assert lane.undo() is False
            lane.rollback()
        assert self.user_rows() == []

    def test_a_body_that_ends_the_transaction_does_not_finish(self) -> None:
        [claim] = self.running(1)
        with self.lane() as lane:
            for ending in ("ROLLBACK", "COMMIT"):
                lane.begin(False)
                lane.enter()
                if self.ends(lane, ending):
                    with refused():
                        lane.tx.execute("INSERT INTO notes VALUES (1)")
                    with refused(TransactionEnded):
                        lane.finish(claim, None, NOW)
                lane.rollback()
                lane.renew()
        assert self.state(claim.id) == State.RUNNING
        assert self.user_rows() == []

    def ends(self, lane: MutationLane, statement: str) -> bool:
        """Whether the statement was let through, to end the transaction."""
        try:
            lane.tx.execute(statement)
        except Exception:
            return False
        return True

    def test_a_lane_is_used_again_and_again(self) -> None:
        claims = self.running(3)
        with self.lane() as lane:
            for n, claim in enumerate(claims):
                lane.begin(False)
                lane.enter()
                lane.tx.execute("INSERT INTO notes VALUES (?)", (n,))
                assert lane.finish(claim, None, NOW)
                lane.leave()
                lane.commit()
                lane.renew()
        assert self.user_rows() == [0, 1, 2]
        assert {self.state(claim.id) for claim in claims} == {State.SUCCEEDED}

    def test_a_statement_that_runs_too_long_is_stopped_from_outside(self) -> None:
        endless = (
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
            " SELECT max(n) FROM c WHERE n < 0"
        )
        over = threading.Event()
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()

            def stop() -> None:
                while not over.wait(0.05):
                    lane.interrupt()

            thread = threading.Thread(target=stop)
            thread.start()
            try:
                with refused():
                    lane.tx.execute(endless)
            finally:
                over.set()
                thread.join()
            lane.rollback()
        self.enqueue()

    def test_a_bodys_own_error_is_no_fault_of_the_system(self) -> None:
        with self.lane() as lane:
            for error in (ValueError("x"), ZeroDivisionError()):
                assert not lane.is_conflict(error)
                assert not lane.is_system(error)


class _Workers(_Ground):
    def test_a_worker_is_listed_from_its_registration_to_its_end(self) -> None:
        info = WorkerInfo(new_id(NOW), "shop", "host", 42, ("a", "b"), ("f", "g"), 7, True, 0, NOW)
        self.store.register(info, NOW)
        assert list(self.store.workers()) == [info]
        any_queue = self.register("send")
        assert {worker.id: worker.queues for worker in self.store.workers()} == {
            info.id: ("a", "b"),
            any_queue: None,
        }
        self.store.deregister(info.id)
        assert [worker.id for worker in self.store.workers()] == [any_queue]

    def test_a_beat_answers_who_still_has_a_row(self) -> None:
        a, b = self.register("send"), self.register("send")
        assert self.store.beat([a, b, NOBODY]) == {a, b}
        assert self.store.beats().keys() == {a, b}
        self.store.deregister(a)
        assert self.store.beat([a]) == set()
        assert self.store.beats().keys() == {b}

    def test_a_living_worker_is_not_dead(self) -> None:
        other = self.another_handle()
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
        asked: list[tuple[str, bool]] = []

        def judge(job: Lost, alone: bool) -> Settlement:
            asked.append((job.id, alone))
            return Again(job.id, job.token, NOW, job.attempt, job.crashes + 1, job.system_retries)

        assert self.store.rescue(self.worker, None, judge, NOW) == 2
        assert sorted(asked) == [(claim.id, False) for claim in lost]
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
        assert self.store.rescue(NOBODY, None, judge_lost, NOW) is None
        assert self.get(claim.id) == before

    def test_many_rescuers_at_once_settle_a_worker_once(self) -> None:
        handles = [self.store, self.another_handle()]
        self.enqueue(40, kind=Kind.MUTATION)
        claims = self.claim()
        worker = self.worker

        def rescue(store: Store) -> int | None:
            return store.rescue(worker, None, judge_lost, NOW)

        answers = at_the_same_time([partial(rescue, handle) for handle in handles * 3])
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

        def judge(job: Lost, alone: bool) -> Settlement:
            if judged:
                raise ZeroDivisionError
            judged.append(job.id)
            return judge_lost(job, alone)

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

    def test_only_a_crash_in_a_process_of_its_own_convicts_a_job(self) -> None:
        job_id = self.enqueue_one(kind=Kind.MUTATION)
        for _ in range(2):
            worker = self.register("send")
            assert self.claim_ids(worker=worker) == [job_id]
            self.store.rescue(worker, None, judge_lost, NOW)
        assert (self.state(job_id), self.get(job_id).hold) == (State.PENDING, Hold.ALONE)

        alone = self.register("send", alone=True)
        assert self.store.claim_alone(job_id, alone, NOW) is not None
        assert self.store.rescue(alone, None, judge_lost, NOW) == 1
        record = self.get(job_id)
        assert (record.state, record.error_kind) == (State.FAILED, ErrorKind.CRASH_LOOP)

    def test_a_rescued_worker_cannot_claim(self) -> None:
        worker, job_id = self.worker, self.enqueue_one()
        self.store.rescue(worker, None, judge_lost, NOW)
        with refused(DulyError):
            self.claim(worker=worker)
        assert self.state(job_id) == State.PENDING


class _Upkeep(_Ground):
    def test_a_job_past_its_deadline_is_settled(self) -> None:
        overdue = self.claim_new(timeout_ms=10)
        in_time, unlimited = self.claim_new(timeout_ms=11), self.claim_new()
        waiting = self.enqueue_one(timeout_ms=1)
        seen: list[Claim] = []

        def judge(claim: Claim) -> Settlement:
            seen.append(claim)
            return Finish(claim.id, claim.token, State.FAILED, error_kind=ErrorKind.TIMEOUT)

        assert self.store.time_out(NOW + 9, judge, NOW + 9) == 0
        assert self.store.time_out(NOW + 10, judge, NOW + 10) == 1
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
            self.store.resume_queue(name)
        assert list(self.store.paused_queues()) == []


def published(name: str = "send", **fields: Any) -> Published:
    """A function as a worker describes it."""
    values: dict[str, Any] = {
        "name": name,
        "kind": Kind.ACTION,
        "app": "shop",
        "schema": "{}",
        "options": "{}",
        "internal": False,
        "alias_of": None,
    }
    return Published(**values | fields)


class _Functions(_Ground):
    def set_status(self, name: str, status: Status) -> None:
        how: Any = {"by": "ada", "note": "why", "now": NOW + 1}
        assert self.store.set_status(name, status, tuple(Status), **how)

    def function(self, name: str) -> FunctionInfo:
        info = self.store.function(name)
        assert info is not None
        return info

    def test_what_is_published_can_be_read_by_everybody(self) -> None:
        self.store.publish([published("b", internal=True), published("a", schema='{"x":1}')], NOW)
        other = self.another_handle()
        assert [info.name for info in other.functions()] == ["a", "b"]
        info = other.function("b")
        assert info is not None
        assert (info.kind, info.app, info.internal) == ("action", "shop", True)
        assert (info.status, info.published_at) == (Status.ACTIVE, NOW)
        assert self.function("a").schema == '{"x":1}'
        assert other.function("c") is None

    def test_publishing_again_changes_the_description_and_not_the_status(self) -> None:
        self.store.publish([published()], NOW)
        self.set_status("send", Status.DELETED)
        self.store.publish([published(schema='{"new":1}')], NOW + 2)
        info = self.function("send")
        assert (info.schema, info.published_at) == ('{"new":1}', NOW + 2)
        assert (info.status, info.status_by, info.status_note) == (Status.DELETED, "ada", "why")
        assert info.status_at == NOW + 1

    def test_what_was_replaced_does_not_come_back_by_itself(self) -> None:
        old, new = published(), published(schema='{"new":1}')
        for description in (old, new, old):
            self.store.publish([description], NOW)
        assert self.function("send").schema == '{"new":1}'
        self.store.publish([old], NOW, force=True)
        assert self.function("send").schema == "{}"

    def test_what_another_app_has_published_is_left_alone(self) -> None:
        self.store.publish([published()], NOW)
        other = published(app="other", schema='{"other":1}')
        self.store.publish([other], NOW)
        assert (self.function("send").app, self.function("send").schema) == ("shop", "{}")
        self.store.publish([other], NOW, force=True)
        assert (self.function("send").app, self.function("send").schema) == ("other", '{"other":1}')

    def test_a_status_is_changed_only_from_an_allowed_one(self) -> None:
        self.store.publish([published()], NOW)
        self.set_status("send", Status.DELETED)
        how: Any = {"by": None, "note": None, "now": NOW}
        assert not self.store.set_status("send", Status.PAUSED, (Status.ACTIVE,), **how)
        assert self.function("send").status == Status.DELETED
        assert not self.store.set_status("nobody", Status.PAUSED, (Status.ACTIVE,), **how)

    def test_an_alias_follows_the_status_of_its_function(self) -> None:
        self.store.publish([published()], NOW)
        self.set_status("send", Status.PAUSED)
        self.store.publish([published("old", alias_of="send"), published()], NOW)
        assert self.store.statuses() == {"send": Status.PAUSED, "old": Status.PAUSED}
        self.set_status("send", Status.ACTIVE)
        assert self.store.statuses() == {}

    def test_workers_that_publish_at_the_same_time_do_not_disturb_each_other(self) -> None:
        functions = [published(f"f{n}") for n in range(20)]
        handles = [self.store, self.another_handle(), self.another_handle()]
        orders = [functions, functions[::-1], functions[10:] + functions[:10]]
        at_the_same_time(
            [partial(h.publish, order, NOW) for h, order in zip(handles, orders, strict=True)]
        )
        assert len(self.store.functions()) == 20

    def test_no_job_of_a_paused_or_deleted_function_is_claimed(self) -> None:
        self.store.publish([published(name) for name in ("a", "b", "c", "d")], NOW)
        jobs = {name: self.enqueue_one(function=name) for name in ("a", "b", "c", "d")}
        self.set_status("a", Status.PAUSED)
        self.set_status("b", Status.DELETED)
        self.set_status("c", Status.DEPRECATED)
        claimed = self.claim_ids(functions=["a", "b", "c", "d"])
        assert sorted(claimed) == sorted([jobs["c"], jobs["d"]])
        self.set_status("a", Status.ACTIVE)
        assert self.claim_ids(functions=["a", "b", "c", "d"]) == [jobs["a"]]

    def test_a_job_that_runs_alone_waits_for_its_function_too(self) -> None:
        held = self.claim_new()
        self.settle(again(held, hold=Hold.ALONE))
        self.store.publish([published()], NOW)
        self.set_status("send", Status.PAUSED)
        alone = self.register("send", alone=True)
        assert list(self.store.due_alone(NOW)) == []
        assert self.store.claim_alone(held.id, alone, NOW) is None
        self.set_status("send", Status.ACTIVE)
        assert list(self.store.due_alone(NOW)) == [held.id]

    def test_due_jobs_of_a_paused_function_are_held_and_freed(self) -> None:
        self.register("send", "keep")
        self.store.publish([published(), published("keep")], NOW)
        waiting, later = self.enqueue(2), self.enqueue_one(run_at=NOW + 1)
        beside = self.enqueue_one(function="keep")
        self.set_status("send", Status.PAUSED)
        assert self.store.hold_unknown(NOW) == 2
        assert {self.get(job_id).hold for job_id in waiting} == {Hold.PAUSED}
        assert (self.get(later).hold, self.get(beside).hold) == (None, None)
        assert self.store.release_known() == 0
        self.set_status("send", Status.ACTIVE)
        assert self.store.release_known() == 2
        assert {self.get(job_id).hold for job_id in waiting} == {None}

    def test_a_due_job_of_a_deleted_function_is_canceled(self) -> None:
        self.register("send")
        self.store.publish([published()], NOW)
        late = self.enqueue_one()
        self.set_status("send", Status.DELETED)
        assert self.store.hold_unknown(NOW) == 1
        record = self.get(late)
        assert (record.state, record.canceled_by) == (State.CANCELED, "operator")

    def test_a_worker_that_learns_a_function_frees_its_jobs(self) -> None:
        worker = self.register("send")
        unknown = self.enqueue_one(function="new")
        assert self.store.hold_unknown(NOW) == 1
        self.store.relist(worker, ["send", "new"])
        assert self.get(unknown).hold is None
        [info] = self.store.workers()
        assert sorted(info.functions) == ["new", "send"]


class _Retention(_Ground):
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
        self.settle(Finish(claim.id, claim.token, State.FAILED, error_kind="user", exhausted=True))
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


class _Reading(_Ground):
    def test_an_unknown_job_is_not_found(self) -> None:
        for unknown in (NOBODY, "", "no id"):
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


class _Reports(_Ground):
    """What running jobs say of themselves, and how everybody looks at them."""

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
        assert [look.job_id for look in self.store.look([NOBODY, job_id, "no id"])] == [job_id]
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
        lost = ProgressReport(NOBODY, 1, revision_of(1, 1), 0.5, None, NOW)
        self.store.report([lost], [])
        assert list(self.store.look([NOBODY])) == []

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
        assert list(self.store.logs(NOBODY, 0)) == []

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


class _Bulk(_Ground):
    """One page of many jobs, and how far the one that does it has come."""

    def finish_canceled(self, count: int, **fields: Any) -> list[str]:
        ids = self.enqueue(count, **fields)
        for job_id in ids:
            assert self.store.cancel(job_id, "x", NOW)
        return ids

    def start_bulk(self) -> tuple[str, int]:
        """A job that runs, to be fenced by."""
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
        assert self.store.live_ids(filter, NOBODY) == ids[:2]
        assert self.store.live_ids(filter, ids[1]) == ids[2:4]
        early = JobFilter(before_id=ids[2])
        assert self.store.live_ids(early, ids[0]) == [ids[1]]
        assert self.store.count(early, live=True) == 2
        assert self.store.count(JobFilter(), live=True) == 8, "none of duly's own"
        canceled = JobFilter(state=State.CANCELED, limit=2)
        assert self.store.count(canceled, live=False) == 3
        pages = [self.store.finished(canceled, after) for after in (NOBODY, ended[1], ended[2])]
        assert [[record.id for record in page] for page in pages] == [ended[:2], ended[2:], []]

    def test_what_retention_has_kept_is_among_the_finished(self) -> None:
        claim = self.claim_new()
        self.settle(Finish(claim.id, claim.token, State.FAILED, exhausted=True))
        while self.store.retain(NOW + WEEK, NOW - MONTH, NOW + 2 * WEEK):
            pass
        (recent,) = self.finish_canceled(1)
        for filter, expected in (
            (JobFilter(exhausted=True), [claim.id]),
            (JobFilter(function="send"), [claim.id, recent]),
        ):
            assert [r.id for r in self.store.finished(filter, NOBODY)] == expected
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
        self.settle(Again(*running, NOW, 1, 0, 0))
        (claim,) = self.claim(queues=["own"], functions=["keep"])
        assert claim.args == '{"changed":0}'


class _Waking(_Ground):
    def test_a_watcher_is_woken_by_another_handles_work(self) -> None:
        other = self.another_handle()
        bell, stop = threading.Event(), threading.Event()
        watcher = threading.Thread(target=self.store.watch, args=(bell, stop))
        watcher.start()
        try:
            give_up_at = os_monotonic() + PATIENCE
            os_sleep(0.1)
            bell.clear()
            while not bell.is_set():
                assert os_monotonic() < give_up_at, "the bell was never set"
                other.enqueue([new_job()])
                other.ring()
                bell.wait(1)
        finally:
            stop.set()
            watcher.join(PATIENCE)
        assert not watcher.is_alive()


class _Schema(_Ground):
    def test_migrating_again_does_nothing(self) -> None:
        job_id = self.enqueue_one()
        assert list(self.store.migrate(NOW)) == []
        assert list(self.store.pending_migrations()) == []
        assert self.store.migration_script(NOW) == ""
        self.store.open(NOW)
        assert self.state(job_id) == State.PENDING

    def test_a_store_without_tables_is_refused(self) -> None:
        empty = self.make_empty_store()
        try:
            with refused(StoreError):
                empty.open(NOW)
            assert list(empty.pending_migrations())
            assert empty.migration_script(NOW)
        finally:
            empty.close()

    def test_a_store_that_needs_newer_code_is_refused(self) -> None:
        meta = self.table("meta")
        with self.store.transaction() as tx:
            tx.execute(f"UPDATE {meta} SET value = '999' WHERE key = 'min_code'")
        with refused(StoreTooNew):
            self.another_handle()

    def test_a_closed_store_can_be_opened_again(self) -> None:
        handle = self.another_handle()
        job_id = self.enqueue_one()
        handle.close()
        handle.open(NOW)
        assert self.state(job_id, handle) == State.PENDING


class _Keys(_Ground):
    """Unique keys and limits: who holds what, and until when."""

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

    def test_a_job_whose_key_is_held_is_not_stored(self) -> None:
        for field in ("pending_key", "unique_key"):
            first, second = self.keyed(**{field: "k"}), self.keyed(**{field: "k"})
            assert self.store.enqueue([first]) == {}
            assert self.store.enqueue([second]) == {second.id: first.id}
            assert self.store.get(second.id) is None

    def test_a_pending_key_is_free_once_the_job_was_claimed(self) -> None:
        first, second = self.keyed(pending_key="k"), self.keyed(pending_key="k")
        self.store.enqueue([first])
        (claim,) = self.claim()
        assert self.store.enqueue([second]) == {}
        self.settle(again(claim))
        assert self.state(first.id) == State.PENDING

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
        handles = [self.store, self.another_handle()]
        found = at_the_same_time([partial(handles[n % 2].enqueue, [j]) for n, j in enumerate(jobs)])
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
        handles = [self.store, self.another_handle()]
        assert self.worker
        calls = [partial(self.claim_limited, 5, store=handles[n % 2]) for n in range(8)]
        assert sum(len(claims) for claims in at_the_same_time(calls)) == 3

    def test_whoever_waits_for_nothing_is_found(self) -> None:
        self.store_under("k", "[1,null,null]", 2)
        (claim,) = self.claim_limited()
        assert self.store.admit_waiters("", NOW) == ("", False)
        self.store.release_slots([(claim.id, claim.token)], NOW)
        assert self.held() == 0

    def test_a_queue_with_a_limit_runs_only_so_many(self) -> None:
        self.store.limit_queue("small", 2)
        ids = self.enqueue(3, queue="small")
        claims = self.claim_limited(queues=["small"])
        assert [claim.id for claim in claims] == ids[:2]
        assert self.claim_limited(queues=["small"]) == []
        assert self.held() == 0
        assert self.store.release_slots([(claims[0].id, claims[0].token)], NOW)
        assert [claim.id for claim in self.claim_limited(queues=["small"])] == [ids[2]]
        assert self.store.queue_limits() == {"small": 2}
        self.store.limit_queue("small", None)
        assert self.store.queue_limits() == {}

    def test_a_lane_says_whether_limits_must_be_looked_at(self) -> None:
        """Only for a store that leaves limited jobs alone unless it is asked for them."""
        self.store_under("k", "[1,null,null]", 1)
        (lane,) = self.store.lanes()
        assert lane.limited or len(self.claim()) == 1


class StoreConformance(
    _Enqueue,
    _Keys,
    _Claim,
    _Settle,
    _Guards,
    _Cancel,
    _Transactions,
    _Mutations,
    _Workers,
    _Upkeep,
    _Functions,
    _Retention,
    _Reading,
    _Reports,
    _Bulk,
    _Waking,
    _Schema,
):
    """The published suite: override `make_store`, and `reopen` if you can."""
