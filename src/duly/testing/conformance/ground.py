"""The base of the suite: what it needs from a store, and the helpers of its tests."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from duly.ids import new_id, new_ids
from duly.model.job import (
    Again,
    Claim,
    Finish,
    JobRecord,
    Kind,
    Lost,
    NewJob,
    Settlement,
    State,
    finished,
    settle_lost,
)
from duly.store.base import ClaimRequest, WorkerInfo
from duly.store.table import Store

NOW = 1_767_225_600_000
SECOND = 1_000
DAY = 86_400_000
WEEK = 7 * DAY
MONTH = 30 * DAY
MIB = 1 << 20
PATIENCE = 20.0
NO_JOB_ID = "00000000-0000-7000-8000-000000000000"

T = TypeVar("T")


@contextmanager
def refused(kind: type[Exception] = Exception) -> Generator[None]:
    """The block must raise this kind of error."""
    try:
        yield
    except AssertionError:
        raise
    except kind:
        return
    raise AssertionError("this should have been refused")


def new_job(**fields: Any) -> NewJob:
    """A job that is due at NOW, except for the given fields."""
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
    return finished(claim, State.SUCCEEDED, result=result)


def again(claim: Claim | Lost | JobRecord, **fields: Any) -> Again:
    values: dict[str, Any] = {
        "run_at": NOW,
        "attempt": claim.attempt,
        "crashes": claim.crashes,
        "system_retries": claim.system_retries,
    }
    return Again(id=claim.id, token=claim.token, **values | fields)


def judge_lost(lost: Lost) -> Settlement:
    return settle_lost(lost, NOW, 0.0)


def judge_witnessed(lost: Lost) -> Settlement:
    """The worker that started the process of a single job saw it die, and survived."""
    return settle_lost(lost, NOW, 0.0, witnessed=True)


def at_the_same_time(calls: Sequence[Callable[[], T]], patience: float = PATIENCE) -> list[T]:
    """Run all calls, each in its own thread, started together; returns their results in order."""
    ready = threading.Barrier(len(calls))

    def start(call: Callable[[], T]) -> T:
        ready.wait(PATIENCE)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(patience) for future in [pool.submit(start, c) for c in calls]]


class Ground:
    """The methods that a subclass provides, and the helpers of the tests."""

    # To override

    def make_store(self) -> Store:
        """An empty, migrated store."""
        raise NotImplementedError("override make_store()")

    def reopen(self, store: Store) -> Store:
        """Another Store for the same database, as another process would open it."""
        raise unittest.SkipTest("override reopen() to test two stores for the same database")

    def make_empty_store(self) -> Store:
        """A store that was never migrated."""
        raise unittest.SkipTest("override make_empty_store() to test a store without tables")

    def table(self, name: str) -> str:
        """The SQL name of the table `jobs`, `history` or `meta`."""
        raise unittest.SkipTest("override table() to test what the database itself refuses")

    # Helpers

    _store: Store | None = None
    _worker: str | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = self._open(self.make_store())
        return self._store

    def another_store(self) -> Store:
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
        """A new worker that has these functions."""
        worker_id = new_id(NOW)
        info = WorkerInfo(worker_id, "app", "host", 1, None, functions, 10, alone, 0, NOW)
        (store or self.store).register(info, NOW)
        return worker_id

    @property
    def worker(self) -> str:
        """A worker that has `send` and `keep`."""
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
