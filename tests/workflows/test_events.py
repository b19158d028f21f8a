"""Events: kept until they are read, in order, once, and with the sender's data."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from duly import AsyncWorkflowCtx, Ctx, Duly, Tx, WaitTimeout, WorkflowCtx, WorkflowEnded, errors
from duly.testing import advance, drain
from tests.jobs.support import Database, Gate, Hire, Undo, undone

pytestmark = pytest.mark.spec("N100")
DAY = timedelta(days=1)


class Parcel(msgspec.Struct):
    tracking: str


@pytest.fixture
def order(app: Duly) -> Any:
    @app.workflow
    def order(ctx: WorkflowCtx, count: int = 1) -> list[Any]:
        return [ctx.wait_for("n") for _ in range(count)]

    return order


def test_an_event_that_comes_before_the_wait_is_kept(app: Duly, order: Any):
    job = app.run(order, 3)
    for n in (1, 2):
        app.send(job, "n", n)
    app.send(job, "other", "nobody asks")
    drain(app)
    assert job.state == "pending"
    app.send(job, "n", 3)
    drain(app)
    assert job.result() == [1, 2, 3]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_event_between_look_and_wait_is_not_lost(app: Duly, hire: Hire, is_async: bool):
    """The run has looked, and found nothing; it suspends after the event has come."""
    gate = Gate()

    def hold() -> None:
        gate.pass_through()

    if is_async:

        @app.workflow(name="order")
        async def order(ctx: AsyncWorkflowCtx) -> int:
            try:
                return await ctx.wait_for("n", int)
            finally:
                await asyncio.to_thread(hold)

    else:

        @app.workflow(name="order")
        def order(ctx: WorkflowCtx) -> int:
            try:
                return ctx.wait_for("n", int)
            finally:
                hold()

    job: Any = app.run(order)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    app.send(job, "n", 5)
    gate.open()
    worker.work()
    assert job.result() == 5


def test_a_repeated_key_sends_once_and_is_answered_after_the_end_too(app: Duly, order: Any):
    job = app.run(order, 2)
    for n in (1, 2):
        app.send(job, "n", n, once="first")
    drain(app)
    assert job.state == "pending"
    app.send(job, "n", 3)
    drain(app)
    assert job.result() == [1, 3]
    app.send(job, "n", 4, once="first")
    with pytest.raises(WorkflowEnded, match="succeeded") as caught:
        app.send(job, "n", 4, once="second")
    assert (caught.value.job_id, caught.value.state) == (job.id, "succeeded")
    with app.transaction() as tx, pytest.raises(WorkflowEnded):
        tx.send(job, "n", 4)


def test_a_canceled_run_reads_no_more_events(app: Duly, order: Any):
    job = app.run(order)
    drain(app)
    app.cancel(job)
    with pytest.raises(WorkflowEnded, match="canceled"):
        app.send(job, "n", 4)


def test_events_go_to_runs_of_workflows_only(app: Duly):
    @app.action
    def ok(ctx: Ctx) -> None: ...

    with pytest.raises(errors.NotAWorkflow, match="ok"):
        app.send(app.run(ok), "n")
    with pytest.raises(errors.JobNotFound):
        app.send("00000000-0000-7000-8000-000000000000", "n")


def test_only_so_many_events_are_kept(app: Duly, order: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("duly.store.workflows.MAX_UNREAD_EVENTS", 3)
    job = app.run(order, 5)
    for n in range(3):
        app.send(job, "n", n, once=str(n))
    with pytest.raises(errors.TooManyEvents, match="3 unread events"):
        app.send(job, "n", 3)
    # A repeat is no other event.
    app.send(job, "n", 2, once="2")
    drain(app)
    app.send(job, "n", 3)
    app.send(job, "n", 4)
    drain(app)
    assert job.result() == [0, 1, 2, 3, 4]


def test_a_refused_event_leaves_a_transaction_usable(
    app: Duly, order: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.store.workflows.MAX_UNREAD_EVENTS", 1)
    job = app.run(order, 2)
    with app.transaction() as tx:
        tx.send(job, "n", 1)
        with pytest.raises(errors.TooManyEvents):
            tx.send(job, "n", 2)
        tx.execute("INSERT INTO notes (text) VALUES ('x')")
    drain(app)
    app.send(job, "n", 3)
    drain(app)
    assert job.result() == [1, 3]


# In transactions ---------------------------------------------------------------------------------


def test_an_event_commits_or_rolls_back_with_its_transaction(app: Duly, order: Any, db: Database):
    job = app.run(order, 2)
    with undone(), app.transaction() as tx:
        tx.send(job, "n", "lost", once="key")
        raise Undo
    with app.transaction() as tx:
        tx.execute("INSERT INTO notes (text) VALUES ('kept')")
        tx.send(job, "n", "kept", once="key")

    @app.mutation
    def fails(tx: Tx) -> None:
        tx.send(job, "n", "from a failed mutation")
        raise ValueError

    app.run(fails)
    drain(app, raises=False)
    assert job.state == "pending"
    app.send(job, "n", "last")
    drain(app)
    assert job.result() == ["kept", "last"]


def test_starting_and_sending_is_one_transaction(app: Duly, order: Any):
    with app.transaction() as tx:
        job = tx.run(order)
        tx.send(job, "n", 1)
    drain(app)
    assert app.job(job.id).result() == [1]


@pytest.mark.parametrize("commits", [True, False])
def test_an_event_is_sent_through_a_handle(app: Duly, order: Any, db: Database, commits: bool):
    job = app.run(order)
    drain(app)
    path = db._url.removeprefix("sqlite:///")
    handle: Any = sqlite3.connect(path) if db.is_sqlite else psycopg.connect(db._url)
    with closing(handle):
        if db.is_sqlite:
            handle.execute("BEGIN")
        app.on(handle).send(job, "n", 7, once="k")
        app.on(handle).send(job, "n", 8, once="k")
        handle.commit() if commits else handle.rollback()
    drain(app)
    assert job.state == ("succeeded" if commits else "pending")
    if commits:
        assert job.result() == [7]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_event_is_sent_through_sqlalchemy(app: Duly, order: Any, db: Database, is_async: bool):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from sqlalchemy.orm import Session

    job = app.run(order)
    drain(app)
    names = ("sqlite", "sqlite+aiosqlite") if db.is_sqlite else ("postgresql", None)
    if is_async:
        driver = names[1] or "postgresql+asyncpg"
        url = db._url.replace("postgresql://", f"{driver}://").replace("sqlite:", f"{driver}:")

        async def send() -> None:
            engine = create_async_engine(url)
            async with AsyncSession(engine) as session, session.begin():
                await app.on(session).send(job, "n", 7)
            await engine.dispose()

        asyncio.run(send())
    else:
        url = db._url.replace("postgresql://", "postgresql+psycopg://")
        engine = sqlalchemy.create_engine(url)
        with Session(engine) as session, session.begin():
            app.on(session).send(job, "n", 7)
        engine.dispose()
    drain(app)
    assert job.result() == [7]


def test_an_async_sender_is_the_same(app: Duly, order: Any):
    job = app.run(order, 2)

    async def send() -> None:
        await app.aio.send(job.id, "n", 1)
        async with app.aio.transaction() as tx:
            await tx.send(job.id, "n", 2)

    asyncio.run(send())
    drain(app)
    assert job.result() == [1, 2]


def test_steps_send_events_once(app: Duly, order: Any):
    other = app.run(order, 3)

    @app.mutation
    def mutation(tx: Tx) -> None:
        tx.send(other, "n", "mutation")

    @app.action
    def action(ctx: Ctx) -> None:
        ctx.send(other, "n", "action")

    @app.workflow
    def sender(ctx: WorkflowCtx) -> None:
        ctx.step(mutation)
        ctx.step(action)
        ctx.send(other, "n", "workflow")
        ctx.sleep(DAY)

    app.run(sender)
    advance(app, DAY)
    assert other.result() == ["mutation", "action", "workflow"]
    sent = app.core.ready().events_of(other.id, 10)
    assert all((event.sent_by or "").startswith("job:") for event in sent)


# Times and types ---------------------------------------------------------------------------------


def test_an_event_in_time_wins_even_if_nobody_looked_until_later(app: Duly):
    @app.workflow
    def order(ctx: WorkflowCtx) -> list[Any]:
        first = ctx.wait_for("a", timeout=60, default="none")
        return [first, ctx.wait_for("b", timeout=60, default="none")]

    job = app.run(order)
    drain(app)
    app.queues.pause("default")
    advance(app, 60)
    app.send(job, "a", "at the last moment")
    advance(app, 1)
    app.queues.resume("default")
    drain(app)
    app.queues.pause("default")
    advance(app, 61)
    app.send(job, "b", "too late")
    app.queues.resume("default")
    drain(app)
    assert job.result() == ["at the last moment", "none"]


def test_a_timeout_raises_without_a_default(app: Duly):
    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        try:
            ctx.wait_for("never", timeout=5)
        except WaitTimeout as error:
            ctx.sleep(DAY)
            return f"{error} {isinstance(error, TimeoutError)}"
        return "event"

    job = app.run(order)
    advance(app, 5)
    advance(app, DAY)
    assert job.result() == "timed out while waiting for event 'never' True"


def test_declared_names_and_payloads_are_refused_at_the_sender(app: Duly):
    @app.workflow(events={"packed": Parcel})
    def order(ctx: WorkflowCtx) -> str:
        parcel = ctx.wait_for("packed")
        assert isinstance(parcel, Parcel)
        return parcel.tracking

    job = app.run(order)
    with pytest.raises(errors.InvalidOption, match="packed"):
        app.send(job, "pakced", Parcel("x"))
    for wrong in (7, {"tracking": 7}, None):
        with pytest.raises(Exception, match=r"payload|packed"):
            app.send(job, "packed", wrong)
    app.send(job, "packed", Parcel("t1"))
    drain(app)
    assert job.result() == "t1"


def test_a_workflow_that_waits_for_what_it_does_not_declare_is_held(app: Duly):
    @app.workflow(events={"packed": Parcel})
    def order(ctx: WorkflowCtx) -> None:
        ctx.wait_for("pakced")

    job = app.run(order)
    drain(app, raises=False)
    assert job.record.hold == "error"
    assert "did you mean 'packed'" in (job.record.error_message or "")


def test_a_payload_of_another_type_holds_the_run_until_the_code_fits(app: Duly):
    kind: Any = int

    @app.workflow
    def order(ctx: WorkflowCtx) -> Any:
        return ctx.wait_for("n", kind)

    job = app.run(order)
    app.send(job, "n", "text")
    drain(app, raises=False)
    assert job.record.hold == "error"
    kind = str
    app.core.ready().resume_run(job.id)
    drain(app)
    assert job.result() == "text"


@pytest.mark.parametrize("name", ["", "x" * 201, 5, "a\nb"])
def test_bad_names_are_refused(app: Duly, order: Any, name: Any):
    job = app.run(order)
    with pytest.raises(errors.InvalidOption):
        app.send(job, name)
