"""A worker dies between any two statements of a run, and another one continues it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duly import AsyncCtx, AsyncTx, AsyncWorkflowCtx, Ctx, Duly, Retry, StepFailed, Tx, WorkflowCtx
from duly.functions.function import Function
from tests.jobs.support import Database, Gate, Hire, in_thread, on_postgres
from tests.workflows.support import shape_of, start_until, stopped_at, take_over

Make = Callable[[Duly, list[str]], Function[[], str]]


def sync_order(app: Duly, done: list[str]) -> Function[[], str]:
    @app.action
    def once(ctx: Ctx, n: int) -> int:
        done.append(f"once {n}")
        return n

    @app.action(retry=Retry(attempts=2))
    def often(ctx: Ctx, n: int) -> int:
        done.append(f"often {n}")
        return n

    @app.mutation
    def note(tx: Tx, text: str) -> int:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
        tx.run(told, text)
        return 1

    @app.action(queue="other")
    def told(ctx: Ctx, text: str) -> None: ...

    def failing(ctx: WorkflowCtx, n: int) -> str:
        try:
            return str(ctx.step(once, n))
        except StepFailed as error:
            return str(error.kind)

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        a = failing(ctx, 1)
        b = ctx.step(note, "n1")
        c = ctx.step(often, 2)
        job = ctx.run(told, "child")
        ctx.send(ctx.job_id, "self", 5)
        event = ctx.wait_for("self")
        d, e = ctx.gather(note.bind("n2"), ctx.branch(failing, 3))
        ctx.cancel(job)
        return f"{a} {b} {c} {event} {d} {e}"

    return order


def async_order(app: Duly, done: list[str]) -> Function[[], str]:
    @app.action
    async def once(ctx: AsyncCtx, n: int) -> int:
        done.append(f"once {n}")
        return n

    @app.action(retry=Retry(attempts=2))
    async def often(ctx: AsyncCtx, n: int) -> int:
        done.append(f"often {n}")
        return n

    @app.mutation
    async def note(tx: AsyncTx, text: str) -> int:
        await tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
        await tx.run(told, text)
        return 1

    @app.action(queue="other")
    def told(ctx: Ctx, text: str) -> None: ...

    async def failing(ctx: AsyncWorkflowCtx, n: int) -> str:
        try:
            return str(await ctx.step(once, n))
        except StepFailed as error:
            return str(error.kind)

    @app.workflow
    async def order(ctx: AsyncWorkflowCtx) -> str:
        a = await failing(ctx, 1)
        b = await ctx.step(note, "n1")
        c = await ctx.step(often, 2)
        job = await ctx.run(told, "child")
        await ctx.send(ctx.job_id, "self", 5)
        event = await ctx.wait_for("self")
        d, e = await ctx.gather(note.bind("n2"), ctx.branch(failing, 3))
        await ctx.cancel(job)
        return f"{a} {b} {c} {event} {d} {e}"

    return order


# Each with the passes that the run makes.
POINTS = [
    *[("workflow.step_starting", nth) for nth in range(1, 6)],
    *[("workflow.step_committed", nth) for nth in (1, 2)],
    *[("workflow.step_returned", nth) for nth in (1, 2, 3)],
    *[("workflow.recorded", nth) for nth in range(1, 6)],
    ("action.returned", 1),
]


@pytest.mark.spec("N96")
@pytest.mark.parametrize("make", [sync_order, async_order])
@pytest.mark.parametrize(("point", "nth"), POINTS)
def test_a_run_continues_where_its_worker_died(
    app: Duly, hire: Hire, db: Database, make: Make, point: str, nth: int
):
    done: list[str] = []
    job = app.run(make(app, done))
    first = hire(queues=["default"])
    with stopped_at(point, nth) as stop:
        start_until(first, stop)
        first.die()
        second = hire(queues=["default"])
        for _ in range(10):
            second.beat()
        second.work()
        result = job.result()
        assert result is not None
        a, b, c, event, d, e = result.split()
        token = job.record.token
        history = shape_of(app, job)
    # The first worker goes on where it stood, and changes nothing.
    first.wait_for_bodies()
    first.settle()
    assert (job.result(), job.record.token, shape_of(app, job)) == (result, token, history)
    assert (b, c, event, d) == ("1", "2", "5", "1")
    assert a in ("1", "worker_lost")
    assert e in ("3", "worker_lost")
    assert db.notes() == ["n1", "n2"]
    # The two that the mutations have enqueued; the run has canceled its own.
    assert db.scalar("SELECT count(*) FROM @jobs") == 2
    for text in ("once 1", "once 3"):
        assert done.count(text) <= 1
    assert done.count("often 2") in (1, 2)
    # What has succeeded for the workflow has happened.
    assert (a == "1") <= ("once 1" in done)
    assert (e == "3") <= ("once 3" in done)


@pytest.mark.spec("N96")
def test_an_action_whose_worker_died_fails_and_does_not_run_again(app: Duly, hire: Hire):
    done: list[str] = []

    @app.action
    def charge(ctx: Ctx) -> None:
        done.append("charged")

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            ctx.step(charge)
        except StepFailed as error:
            return f"{error.name} {error.kind}: {error.message}"
        return "charged"

    job = app.run(order)
    worker = hire()
    with stopped_at("workflow.step_returned") as stop:
        start_until(worker, stop)
        take_over(hire, worker).work()
        message = "charge worker_lost: the worker died or stopped while the step was running"
        assert job.result() == message
    assert done == ["charged"]


@on_postgres
@pytest.mark.spec("N97")
@pytest.mark.parametrize("first_commits", ["stale", "rescuer"])
def test_of_two_workers_with_an_open_step_one_commits(
    app: Duly, hire: Hire, db: Database, first_commits: str
):
    """The stale worker's transaction is open while the run is rescued and continued elsewhere."""
    gates = [Gate(), Gate()]
    runs: list[int] = []

    @app.mutation
    def note(tx: Tx) -> int:
        number = len(runs)
        runs.append(number)
        tx.execute("INSERT INTO notes (text) VALUES (?)", (f"by {number}",))
        gates[number].pass_through()
        return number

    @app.workflow
    def order(ctx: WorkflowCtx) -> int:
        return ctx.step(note)

    job = app.run(order)
    stale = hire()
    stale.start_due()
    gates[0].wait_for_one()
    rescuer = take_over(hire, stale)
    rescuer.start_due()
    gates[1].wait_for_one()
    order_of = [0, 1] if first_commits == "stale" else [1, 0]
    workers = [stale, rescuer]
    for number in order_of:
        gates[number].open()
        workers[number].wait_for_bodies()
    stale.settle()
    rescuer.work()
    # The rescue has taken the run away before either could commit.
    assert db.notes() == ["by 1"]
    assert job.result() == 1


@on_postgres
@pytest.mark.spec("N97")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stale_step_cannot_commit_at_any_default_isolation_level(
    app: Duly, hire: Hire, db: Database, level: str
):
    name = db.scalar("SELECT current_database()")
    db.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
    app.close()
    gate = Gate()
    runs: list[int] = []

    @app.mutation
    def note(tx: Tx) -> int:
        runs.append(1)
        tx.execute("INSERT INTO notes (text) VALUES (?)", (f"by {len(runs)}",))
        if len(runs) == 1:
            gate.pass_through()
        return len(runs)

    @app.workflow
    def order(ctx: WorkflowCtx) -> int:
        return ctx.step(note)

    job = app.run(order)
    stale = hire()
    stale.start_due()
    gate.wait_for_one()
    rescuer = take_over(hire, stale)
    with in_thread(rescuer.work):
        pass
    gate.open()
    stale.wait_for_bodies()
    rescuer.work()
    assert db.notes() == ["by 2"]
    assert job.result() == 2
    db.execute(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')
