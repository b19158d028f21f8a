"""Rows of jobs that another PostgreSQL transaction has locked delay only those jobs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duly import Ctx, Duly, Job, ManualClock, State
from tests.jobs.support import Database, Gate, Hire, rescue_the_dead, state_of


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@contextmanager
def locked(db: Database, job: Job[Any]) -> Iterator[None]:
    """A job whose row is locked by a transaction that does not end."""
    other = db.connect()
    with other.transaction():
        # A statement that waits for it fails the test instead of hanging.
        other.execute("SET LOCAL idle_in_transaction_session_timeout = '30s'")
        other.execute("SELECT 1 FROM duly.jobs WHERE id = %s FOR SHARE", (job.id,))
        yield


def test_a_locked_job_of_a_dead_worker_stops_no_other_worker(app: Duly, db: Database, hire: Hire):
    @app.action
    def act(ctx: Ctx) -> None: ...

    lost = [app.run(act), app.run(act)]
    for _ in lost:
        dead = hire(concurrency=1)
        dead.claim_only()
        dead.die()
    worker = hire()
    with locked(db, lost[0]):
        rescue_the_dead(worker)
        job = app.run(act)
        worker.work()
        assert job.state == State.SUCCEEDED
        assert [j.state for j in lost] == [State.RUNNING, State.FAILED], "each has its turn"

    worker.beat()
    assert lost[0].state == State.FAILED


@pytest.mark.parametrize("many", [1, 20], ids=["one statement", "a transaction"])
def test_the_end_of_a_locked_job_keeps_no_other_job_from_ending(
    app: Duly, clock: ManualClock, db: Database, hire: Hire, many: int
):
    gate = Gate()

    @app.action
    def act(ctx: Ctx, waits: bool) -> None:
        if waits:
            gate.pass_through()

    held = app.run(act, True)
    worker = hire(concurrency=30)
    worker.start_due()
    gate.wait_for_one()
    with locked(db, held):
        gate.open()
        others = [app.run(act, False) for _ in range(many)]
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
        assert {job.state for job in others} == {State.SUCCEEDED}

        clock.advance(0.5)
        later = app.run(act, False)
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
        assert (later.state, held.state) == (State.SUCCEEDED, State.RUNNING)

    worker.settle()
    assert held.state == State.RUNNING, "the others wait for it once in a while, not each time"
    clock.advance(1)
    worker.settle()
    assert state_of(held) == State.SUCCEEDED
