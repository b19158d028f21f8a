"""What a run may still ask for outlives retention as long as the run does."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duly import Ctx, Duly, StepFailed, WorkflowCtx
from duly.testing import advance, drain
from tests.jobs.support import Database, tidy

pytestmark = pytest.mark.spec("N108")
MONTH = timedelta(days=40)


def test_ended_children_are_kept_until_their_run_has_ended(app: Duly, db: Database):
    @app.action
    def child(ctx: Ctx, n: int) -> int:
        if n == 3:
            raise ValueError("three")
        return n

    @app.action
    def unrelated(ctx: Ctx) -> None: ...

    @app.workflow
    def order(ctx: WorkflowCtx) -> list[str]:
        jobs = ctx.run_many(child.bind(n) for n in range(5))
        ctx.sleep(MONTH)
        found: list[str] = []
        for job in jobs:
            try:
                found.append(str(ctx.wait(job)))
            except StepFailed as error:
                found.append(error.message)
        return found

    job = app.run(order)
    drain(app, raises=False)
    for _ in range(3):
        app.run(unrelated)
        app.run(child, 7)
    drain(app)
    for _ in range(4):
        app.core.clock.advance(10 * 86_400)  # type: ignore[attr-defined]
        tidy(app)
    assert len(app.jobs(function=unrelated)) == 1
    drain(app)
    assert job.result() == ["0", "1", "2", "ValueError: three", "4"]
    # Now they go like others; one is the newest of its function.
    advance(app, timedelta(days=100))
    tidy(app)
    assert len(app.jobs(function=child)) <= 1
    assert db.scalar("SELECT count(*) FROM @steps WHERE name = 'child'") == 0


def test_an_idempotency_key_belongs_to_a_run_until_it_has_ended(app: Duly, db: Database):
    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        ctx.sleep(MONTH)

    keyed = order.using(idempotency_key="k")
    job = app.run(keyed)
    drain(app)
    for _ in range(3):
        app.core.clock.advance(86_400 * 2)  # type: ignore[attr-defined]
        assert app.run(keyed).id == job.id
        tidy(app)
    assert db.scalar("SELECT count(*) FROM @keys") == 1
    advance(app, MONTH)
    assert job.state == "succeeded"
    tidy(app)
    assert app.run(keyed).id != job.id


def test_records_and_events_are_forgotten_with_their_run(app: Duly, db: Database):
    @app.workflow
    def order(ctx: WorkflowCtx) -> None:
        ctx.wait_for("n")

    jobs = [app.run(order) for _ in range(2)]
    for job in jobs:
        app.send(job, "n", 1)
        app.send(job, "n", 2)
    drain(app)
    advance(app, MONTH)
    tidy(app)
    # The newest job of a function is kept.
    for table in ("@steps", "@events"):
        assert db.scalar(f"SELECT count(DISTINCT job_id) FROM {table}") == 1
    assert db.scalar("SELECT count(*) FROM @watches") == 0
