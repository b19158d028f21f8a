"""Many processes on one store: nothing is taken twice, and a crash leaves nothing half done."""

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly.ids import new_ids
from duly.model.job import JobFilter, State
from duly.store.base import ClaimRequest, WorkerInfo
from duly.store.postgres import PostgresStore
from duly.store.sqlite import SqliteStore
from duly.testing.conformance.ground import NOW, new_job
from tests.jobs.support import wait_until
from tests.store.processes import hear, run_together, start

JOBS = 2_000
WORKER = "11111111-1111-7111-8111-111111111111"

CLAIM_ALL = """
from duly.store.base import ClaimRequest, WorkerInfo
from duly.ids import new_id

store = open_store(sys.argv[2])
store.open(NOW)
worker = new_id(NOW)
store.register(WorkerInfo(worker, "a", "h", 1, None, ("send",), 1, False, 0, NOW), NOW)


def claim():
    _, claims = store.exchange([], ClaimRequest(worker, ("default",), ("send",), 13), NOW)
    return [claim.id for claim in claims]


claimed = claim()
ready()  # and so whoever is first does not get everything
while more := claim():
    claimed += more
assert store.holdings(worker).keys() == set(claimed)
print(*claimed)
store.close()
"""

DIE_IN_A_TRANSACTION = """
import os, signal

store = open_store(sys.argv[1])
store.open(NOW)
with store.transaction() as tx:
    assert tx.cancel(sys.argv[2], "x", NOW)
    print("canceled", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        store: Any = SqliteStore(tmp_path / "duly.db")
        store.url = f"sqlite:///{tmp_path}/duly.db"
        store.migrate(NOW)
    else:
        store = PostgresStore(request.getfixturevalue("migrated_postgres"))
        store.url = request.getfixturevalue("migrated_postgres")
    store.open(NOW)
    yield store
    store.close()


def claim(store: Any, limit: int = 100) -> list[str]:
    _, claims = store.exchange([], ClaimRequest(WORKER, ("default",), ("send",), limit), NOW)
    return [claim.id for claim in claims]


def register(store: Any) -> None:
    store.register(WorkerInfo(WORKER, "a", "h", 1, None, ("send",), 1, False, 0, NOW), NOW)


def test_eight_processes_claim_two_thousand_jobs_each_exactly_once(store):
    ids = new_ids(NOW, JOBS)
    store.enqueue([new_job(id=job_id) for job_id in ids])
    outputs = run_together(CLAIM_ALL, store.url, count=8)
    claimed = [job_id for output in outputs for job_id in output.split()]
    assert len(claimed) == JOBS
    assert sorted(claimed) == ids
    assert all(output.strip() for output in outputs)
    assert len(store.find(JobFilter(state=State.RUNNING, limit=JOBS))) == JOBS


def test_a_process_that_dies_in_a_transaction_leaves_everything_as_it_was(store):
    [job_id] = new_ids(NOW, 1)
    store.enqueue([new_job(id=job_id)])
    process = start(DIE_IN_A_TRANSACTION, store.url, job_id)
    assert hear(process) == "canceled"
    process.communicate(timeout=30)
    assert process.returncode == -9
    assert store.get(job_id).state == State.PENDING
    register(store)
    # PostgreSQL notices a moment later that its client is dead, and only then unlocks the row.
    wait_until(lambda: claim(store) == [job_id], "that its lock is gone")


def test_sqlite_locks_when_the_transaction_begins(tmp_path):
    """Not at the first write: a transaction that has read would then fail to upgrade its lock."""
    store = SqliteStore(tmp_path / "duly.db")
    store.migrate(NOW)
    store.open(NOW)
    other = sqlite3.connect(store.path, timeout=0, isolation_level=None)
    with store.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()
    store.close()


def test_postgres_skips_what_another_claimer_has_locked(migrated_postgres):
    # A claim that waits instead fails soon.
    store = PostgresStore(f"{migrated_postgres}?options=-c%20lock_timeout%3D100ms")
    ids = new_ids(NOW, 10)
    store.enqueue([new_job(id=job_id) for job_id in ids])
    register(store)
    with psycopg.connect(migrated_postgres) as other:
        other.execute("SELECT 1 FROM duly.jobs WHERE id = ANY(%s::uuid[]) FOR UPDATE", [ids[:4]])
        assert claim(store, 3) == ids[4:7]
        assert claim(store) == ids[7:]
    assert claim(store) == ids[:4]
    store.close()


def test_a_store_may_be_closed_while_others_are_woken(migrated_postgres):
    class Closing(PostgresStore):
        """As if closed by another thread once the caller has checked whether there is a bell."""

        looked = 0
        kept: Any = None

        @property
        def _bell(self) -> Any:
            self.looked += 1
            bell = self.kept
            if self.looked == 2:
                self.kept = None
            return bell

        @_bell.setter
        def _bell(self, bell: Any) -> None:
            self.kept = bell

    store = Closing(migrated_postgres)
    store.ring()
    bell = store.kept
    store.looked = 1
    store.ring()
    assert store.kept is None
    bell.stop()
    store.close()
