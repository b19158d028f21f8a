"""Each step happens once, and the run continues from what it has recorded."""

from __future__ import annotations

from datetime import timedelta

from duly import Ctx, Duly, Tx, WorkflowCtx
from duly.testing import advance, drain
from tests.jobs.support import Database

DAY = timedelta(days=1)


def test_a_run_continues_behind_what_it_has_recorded(app: Duly, db: Database):
    done: list[str] = []

    @app.action
    def charge(ctx: Ctx, order: int) -> str:
        done.append(f"charge {order}")
        return f"p{order}"

    @app.mutation
    def mark(tx: Tx, order: int, payment: str) -> int:
        done.append("mark")
        tx.execute("INSERT INTO notes (text) VALUES (?)", (payment,))
        tx.run(tell, order)
        return order + 1

    @app.action
    def tell(ctx: Ctx, order: int) -> None:
        done.append("tell")

    @app.workflow
    def checkout(ctx: WorkflowCtx, order: int) -> str:
        payment = ctx.step(charge, order)
        marked = ctx.step(mark, order, payment)
        ctx.sleep(DAY)
        a, b = ctx.gather(charge.bind(1), mark.bind(2, "x"))
        job = ctx.run(charge, 7)
        result = ctx.wait(job)
        index, event = ctx.first(ctx.event("packed"), ctx.timer(3600))
        decision = ctx.approval("Release it?", timeout=100)
        return f"{payment} {marked} {a} {b} {result} {index} {event} {bool(decision)}"

    job = app.run(checkout, 5)
    drain(app)
    assert (job.state, done) == ("pending", ["charge 5", "mark", "tell"])
    advance(app, DAY)
    assert done[3:] == ["charge 1", "mark", "tell", "charge 7"]
    app.send(job, "packed", {"t": 1})
    drain(app)
    app.approve(job)
    drain(app)
    assert job.result() == "p5 6 p1 3 p7 0 {'t': 1} True"
    assert job.attempt == 1
    assert sorted(db.notes()) == ["p5", "x"]
