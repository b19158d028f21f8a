"""A job that is enqueued in a transaction commits or rolls back with it."""

import time
from pathlib import Path
from typing import Any

import pytest

from duly import Batch, Ctx, Duly, FunctionStatus, Job, ManualClock, State, Tx
from duly.errors import (
    JobNotFound,
    TransactionEnded,
    UseTx,
    WouldWaitForItself,
)
from tests.jobs.support import (
    Database,
    Gate,
    Hire,
    Undo,
    enforce_foreign_keys,
    make_conflict,
    state_of,
    undone,
)


@pytest.fixture
def note(app: Duly) -> Any:
    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))

    return note


@pytest.mark.spec("R57")
def test_a_new_job_is_readable_in_its_own_transaction(app: Duly, note: Any, hire: Hire):
    seen: list[Any] = []

    @app.mutation
    def plan(tx: Tx) -> None:
        job = tx.run_after(60, note, "later")
        seen.append((tx.job(job.id).state, job.state, [j.id for j in tx.jobs(function=note)]))
        seen.append(job.id)

    app.run(plan)
    hire().work()

    job_id = seen[1]
    assert seen[0] == (State.PENDING, State.PENDING, [job_id])
    assert app.job(job_id).state == State.PENDING


@pytest.mark.spec("R58")
def test_a_mutation_that_commits_leaves_its_job(
    app: Duly, db: Database, clock: ManualClock, note: Any, hire: Hire
):
    @app.mutation
    def plan(tx: Tx) -> str:
        return tx.run_after(60, note, "child").id

    worker = hire()
    parent = app.run(plan)
    worker.work()
    child = app.job(parent.result(0))
    assert state_of(child) == State.PENDING
    assert child.parent_id == parent.id
    assert parent.children() == [child]

    clock.advance(60)
    worker.work()
    assert child.state == State.SUCCEEDED
    assert db.notes() == ["child"]


@pytest.mark.spec("R59")
def test_a_mutation_that_raises_after_scheduling_leaves_no_job(
    app: Duly, db: Database, note: Any, hire: Hire
):
    scheduled: list[str] = []

    @app.mutation
    def plan(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('half')")
        scheduled.append(tx.run(note, "child").id)
        raise RuntimeError("no")

    parent = app.run(plan)
    hire().work()

    assert parent.state == State.FAILED
    assert db.notes() == []
    assert db.count("@jobs") == 0
    with pytest.raises(JobNotFound):
        app.job(scheduled[0])


@pytest.mark.spec("R60")
def test_a_mutation_repeated_after_a_conflict_leaves_one_job(
    app: Duly, db: Database, clock: ManualClock, note: Any, hire: Hire, tmp_path: Path
):
    bodies: list[int] = []

    @app.mutation
    def plan(tx: Tx) -> None:
        tx.run(note, "child")
        bodies.append(tx.attempt)
        if len(bodies) < 3:
            make_conflict(db, tx, tmp_path)

    parent = app.run(plan)
    worker = hire()
    for _ in range(3):
        worker.work()
        clock.advance(60)

    assert parent.state == State.SUCCEEDED
    assert bodies == [1, 1, 1]
    assert len(parent.children()) == 1
    assert db.notes() == ["child"]


@pytest.mark.spec("R61")
def test_a_rolled_back_savepoint_takes_only_its_own_jobs(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.mutation
    def plan(tx: Tx) -> None:
        tx.run(note, "1 before")
        with undone(), tx.savepoint():
            tx.execute("INSERT INTO notes VALUES ('never')")
            tx.run(note, "2 inside")
            with tx.savepoint():
                tx.run(note, "3 kept inside what is rolled back")
            raise Undo
        with tx.savepoint():
            tx.run(note, "4 kept")
            with undone(), tx.savepoint():
                tx.run(note, "5 inner")
                raise Undo
            tx.run(note, "6 after the inner one")
        tx.run(note, "7 after")

    app.run(plan)
    hire().work()

    assert db.notes() == ["1 before", "4 kept", "6 after the inner one", "7 after"]


@pytest.mark.spec("R61")
def test_a_failed_statement_inside_a_savepoint_spares_the_rest(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.mutation
    def plan(tx: Tx) -> None:
        tx.run(note, "kept")
        try:
            with tx.savepoint():
                tx.run(note, "gone")
                tx.execute("INSERT INTO no_such_table VALUES (1)")
        except Exception:
            tx.execute("INSERT INTO notes VALUES ('went on')")

    job = app.run(plan)
    hire().work()

    assert job.error is None
    assert db.notes() == ["kept", "went on"]


@pytest.mark.spec("R62")
def test_no_worker_sees_an_uncommitted_job(app: Duly, db: Database, note: Any, hire: Hire):
    worker = hire()
    with app.transaction() as tx:
        job = tx.run(note, "now")
        worker.work()
        assert db.count("@jobs") == 0
        assert app.jobs() == []
        with pytest.raises(JobNotFound):
            app.job(job.id)
        assert tx.job(job.id).state == State.PENDING

    worker.work()
    assert job.state == State.SUCCEEDED


@pytest.mark.spec("R62")
def test_the_job_of_an_unfinished_mutation_does_not_start(
    app: Duly, db: Database, note: Any, hire: Hire
):
    gate = Gate()

    @app.mutation
    def plan(tx: Tx) -> None:
        tx.run(note, "child")
        gate.pass_through()

    parent = app.run(plan)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    assert db.count("@jobs") == 1
    assert parent.state == State.RUNNING
    gate.open()
    worker.work()

    assert db.notes() == ["child"]


# A transaction of the user's


@pytest.mark.spec("R58", "R59")
def test_jobs_of_a_user_transaction_commit_or_vanish_with_its_data(
    app: Duly, db: Database, note: Any, hire: Hire
):
    worker = hire()
    with app.transaction() as tx:
        tx.execute("INSERT INTO notes VALUES ('kept')")
        kept = tx.run(note, "job kept")
    with undone(), app.transaction() as tx:
        tx.execute("INSERT INTO notes VALUES ('lost')")
        lost = tx.run(note, "job lost")
        raise Undo
    worker.work()

    assert db.notes() == ["job kept", "kept"]
    assert kept.state == State.SUCCEEDED
    assert kept.parent_id is None
    with pytest.raises(JobNotFound):
        _ = lost.state


def test_a_cancel_in_a_rolled_back_user_transaction_never_happened(
    app: Duly, note: Any, hire: Hire
):
    job = app.run(note, "still here")
    with undone(), app.transaction() as tx:
        assert tx.cancel(job) is True
        assert tx.job(job.id).state == State.CANCELED
        assert job.state == State.PENDING
        raise Undo
    hire().work()

    assert job.state == State.SUCCEEDED


def test_a_failed_commit_leaves_nothing(
    app: Duly, db: Database, note: Any, monkeypatch: pytest.MonkeyPatch
):
    enforce_foreign_keys(app, monkeypatch)
    db.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    db.execute(
        "CREATE TABLE children (parent integer REFERENCES parents (id)"
        " DEFERRABLE INITIALLY DEFERRED)"
    )
    with pytest.raises(Exception, match=r"(?i)foreign key"), app.transaction() as tx:  # noqa: PT012
        tx.run(note, "never")
        tx.execute("INSERT INTO children VALUES (99)")

    assert db.count("@jobs") == 0
    assert db.count("children") == 0
    app.run(note, "the app goes on as before")
    assert db.count("@jobs") == 1


def test_two_transactions_of_one_thread_are_refused_inside_each_other(app: Duly):
    with app.transaction(), pytest.raises(UseTx), app.transaction():
        pass


def test_a_transaction_rolls_back_on_any_way_out(app: Duly, db: Database, note: Any):
    for way_out in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(way_out), app.transaction() as tx:  # noqa: PT012
            tx.run(note, "never")
            raise way_out
    assert db.count("@jobs") == 0
    with app.transaction() as tx:
        tx.run(note, "works")
    assert db.count("@jobs") == 1


def test_a_tx_kept_after_its_end_can_do_nothing(app: Duly, db: Database, note: Any, hire: Hire):
    kept: list[Tx] = []

    @app.mutation
    def succeed(tx: Tx) -> None:
        kept.append(tx)

    @app.mutation
    def fail(tx: Tx) -> None:
        kept.append(tx)
        raise KeyError("no")

    app.run(succeed)
    app.run(fail)
    hire().work()
    with app.transaction() as tx:
        kept.append(tx)
    with undone(), app.transaction() as tx:
        kept.append(tx)
        raise Undo

    assert len(kept) >= 4
    for tx in kept:
        with pytest.raises(TransactionEnded):
            tx.execute("INSERT INTO notes VALUES ('stray')")
        with pytest.raises(TransactionEnded):
            tx.run(note, "stray")
        with pytest.raises(TransactionEnded):
            tx.jobs()
        with pytest.raises(TransactionEnded), tx.savepoint():
            pass
    assert db.notes() == []
    assert db.count("@jobs") == 0


def test_the_handle_of_a_vanished_job_says_so(app: Duly, note: Any, hire: Hire):
    handles: list[Job[Any]] = []

    @app.mutation
    def plan(tx: Tx) -> None:
        handles.append(tx.run(note, "x"))
        raise KeyError("no")

    app.run(plan)
    hire().work()

    with pytest.raises(JobNotFound):
        _ = handles[0].state


# Inside a mutation only `tx` touches the store


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda app, note, job: app.run(note, "x"),
        lambda app, note, job: app.run_after(1, note, "x"),
        lambda app, note, job: app.run_at(app.clock.now(), note, "x"),
        lambda app, note, job: app.run_many([note.bind("x")]),
        lambda app, note, job: app.cancel(job),
        lambda app, note, job: job.cancel(),
        lambda app, note, job: app.cancel_all(note),
        lambda app, note, job: app.transaction().__enter__(),
        lambda app, note, job: app.queues.pause("default"),
        lambda app, note, job: app.queues.resume("default"),
        lambda app, note, job: Batch(app.core, job.id).cancel(),
        lambda app, note, job: Batch(app.core, job.id).retry(),
        lambda app, note, job: app.functions.publish(),
    ],
    ids=[
        *("run", "after", "at", "many", "cancel", "job.cancel", "cancel_all", "transaction"),
        *("pause", "resume", "batch", "retry", "publish"),
    ],
)
def test_the_app_refuses_to_write_inside_a_mutation(
    app: Duly, db: Database, clock: ManualClock, note: Any, hire: Hire, forbidden: Any
):
    refused: list[Exception] = []

    @app.mutation
    def plan(tx: Tx) -> None:
        try:
            forbidden(app, note, other)
        except UseTx as error:
            refused.append(error)
            raise

    other = app.run_after(60, note, "x")
    job = app.run(plan)
    clock.jump(1)
    hire().work()

    assert len(refused) == 1
    assert job.state == State.FAILED
    assert other.state == State.PENDING
    assert db.count("@jobs") == 1
    assert app.queues.paused() == []


def test_inside_a_transaction_what_is_read_is_not_published(
    app: Duly, db: Database, clock: ManualClock, note: Any
):
    began = time.monotonic()
    with app.transaction():
        info = app.functions.info(note)
        assert app.functions.status(note) == FunctionStatus.ACTIVE
    assert time.monotonic() - began < 5, "it waits for its own lock"
    assert db.count("@functions") == 0
    assert app.functions.info(note) == info


def test_a_mutation_cannot_wait_for_a_job(app: Duly, note: Any, hire: Hire):
    @app.mutation
    def wait_for_other(tx: Tx) -> None:
        other.result(timeout=5)

    @app.mutation
    def wait_for_child(tx: Tx) -> None:
        tx.run(note, "child").result(timeout=5)

    other = app.run_after(60, note, "x")
    jobs = [app.run(wait_for_other), app.run(wait_for_child)]
    hire().work()

    for job in jobs:
        assert job.error is not None
        assert job.error.message.startswith(WouldWaitForItself.__name__)
    with app.transaction(), pytest.raises(WouldWaitForItself):
        other.result(timeout=5)


def test_an_action_may_not_use_its_ctx_inside_the_mutation_it_calls(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.action
    def act(ctx: Ctx) -> None:
        @app.mutation
        def inner(tx: Tx) -> None:
            ctx.run(note, "would wait for the lock that this body holds")

        ctx.call(inner)

    job = app.run(act)
    hire().work()

    assert job.error is not None
    assert job.error.message.startswith(UseTx.__name__)
    assert db.count("@jobs") == 0
