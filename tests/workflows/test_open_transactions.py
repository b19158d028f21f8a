"""A sender's transaction stays open beside a step, the end of a run, or a rescue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from duly import Ctx, Duly, Job, Tx, WorkflowCtx
from tests.jobs.support import Database, Gate, Hire, on_postgres, rescue_the_dead
from tests.workflows.support import take_over

pytestmark = [on_postgres, pytest.mark.spec("N104")]


@contextmanager
def sending(app: Duly, db: Database, job: Job[Any], name: str = "late") -> Iterator[None]:
    """A transaction that has sent an event to the run, and commits at the end of the block."""
    with closing(psycopg.connect(db._url)) as connection:
        app.on(connection).send(job, name, 1)
        yield
        connection.commit()


def test_steps_go_on_beside_it_and_the_end_waits_for_it(app: Duly, db: Database, hire: Hire):
    gate = Gate()

    @app.action
    def arrive(ctx: Ctx) -> None:
        gate.pass_through()

    @app.mutation
    def note(tx: Tx) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('x')")

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        ctx.step(arrive)
        ctx.step(note)
        return "done"

    @app.action
    def other(ctx: Ctx) -> str:
        return "other"

    job = app.run(order)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    with sending(app, db, job):
        gate.open()
        worker.wait_for_bodies()
        assert db.notes() == ["x"]
        worker.settle()
        # Nothing else waits for it.
        unrelated = app.run(other)
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
        assert (unrelated.result(), job.state) == ("other", "running")
    app.core.clock.advance(2)  # type: ignore[attr-defined]
    worker.wait_for(job)
    assert job.result() == "done"


def test_the_end_of_a_child_waits_and_nothing_else_does(app: Duly, db: Database, hire: Hire):
    gate = Gate()

    @app.action(queue="child")
    def child(ctx: Ctx) -> int:
        gate.pass_through()
        return 5

    @app.workflow
    def order(ctx: WorkflowCtx) -> int | None:
        return ctx.wait(ctx.run(child))

    @app.action
    def other(ctx: Ctx) -> str:
        return "other"

    job = app.run(order)
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    worker.settle()
    worker.start_due()
    gate.wait_for_one()
    with sending(app, db, job):
        gate.open()
        worker.wait_for_bodies()
        worker.settle()
        unrelated = app.run(other)
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
        assert unrelated.result() == "other"
    app.core.clock.advance(2)  # type: ignore[attr-defined]
    worker.work()
    worker.wait_for(job)
    assert job.result() == 5


def test_the_other_jobs_of_a_dead_worker_are_rescued_meanwhile(app: Duly, db: Database, hire: Hire):
    gate = Gate()
    done: list[str] = []

    @app.mutation
    def arrive(tx: Tx) -> None:
        if len(done) < 2:
            done.append("arrived")
            gate.pass_through()

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        ctx.step(arrive)
        return "done"

    locked, free = app.run(order), app.run(order)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    gate.wait_for_one()
    with sending(app, db, locked):
        other = take_over(hire, worker)
        other.work()
        assert (free.result(), locked.state) == ("done", "running")
    rescue_the_dead(other)
    other.work()
    assert locked.result() == "done"
    assert db.scalar("SELECT count(*) FROM @workers") == 1
    gate.open()
