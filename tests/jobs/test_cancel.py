"""Canceling: which jobs can be canceled, and what happens to their descendants."""

import asyncio
import threading
from typing import Any

import pytest

from duly import AsyncCtx, AsyncJob, Ctx, Duly, Job, ManualClock, Retry, State, Tx, Unique, fault
from duly.clock import from_ms
from duly.errors import Canceled, CannotCancelSelf, InvalidOption, JobCanceled, JobNotFound
from duly.ids import new_id
from tests.jobs.support import PATIENCE, Database, Gate, Hire, in_thread
from tests.levels import at_every_level


@pytest.fixture
def note(app: Duly) -> Any:
    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))

    return note


@pytest.mark.spec("R83")
def test_a_canceled_pending_job_never_runs(
    app: Duly, db: Database, clock: ManualClock, note: Any, hire: Hire
):
    due, later = app.run(note, "due"), app.run_after(60, note, "later")
    clock.advance(1)
    assert due.cancel() is True
    assert app.cancel(later.id) is True
    clock.advance(3600)
    hire().work()

    for job in (due, later):
        assert job.state == State.CANCELED
        assert job.completed_at == from_ms(clock.now() - 3_600_000)
        assert job.started_at is None
        with pytest.raises(JobCanceled):
            job.result(0)
    assert db.notes() == []


@pytest.mark.spec("R83")
def test_a_job_that_waits_for_its_retry_can_be_canceled(app: Duly, clock: ManualClock, hire: Hire):
    bodies: list[int] = []

    @app.action(retry=Retry(attempts=9))
    def flaky(ctx: Ctx) -> None:
        bodies.append(ctx.attempt)
        raise ConnectionError

    job = app.run(flaky)
    worker = hire()
    worker.work()
    assert job.cancel() is True
    clock.advance(3600)
    worker.work()

    assert job.state == State.CANCELED
    assert bodies == [1]


@pytest.mark.spec("R84")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_canceled_running_action_is_canceled_now_and_its_result_dropped(
    app: Duly, clock: ManualClock, hire: Hire, is_async: bool
):
    gate = Gate()
    went_on: list[bool] = []

    @app.action(name="sync")
    def act(ctx: Ctx) -> str:
        gate.pass_through()
        went_on.append(True)
        return "dropped"

    @app.action(name="async")
    async def act_async(ctx: AsyncCtx) -> str:
        gate.pass_through()
        went_on.append(True)
        return "dropped"

    job = app.run(act_async) if is_async else app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    clock.advance(1)
    assert job.cancel() is True
    assert job.state == State.CANCELED
    gate.open()
    clock.advance(1)
    worker.work()

    assert went_on == [True]
    assert job.state == State.CANCELED
    assert job.completed_at == from_ms(clock.now() - 1000)
    assert job.record.result is None
    assert worker.worker.idle


@pytest.mark.spec("R84")
def test_a_canceled_action_that_fails_stays_canceled(app: Duly, hire: Hire):
    gate = Gate()

    @app.action(retry=Retry(attempts=5))
    def act(ctx: Ctx) -> None:
        gate.pass_through()
        raise ValueError("dropped as well")

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    job.cancel()
    gate.open()
    worker.work()

    assert job.state == State.CANCELED
    assert job.error is None


@pytest.mark.spec("R84")
def test_the_body_of_a_canceled_action_is_told_with_the_next_beat(app: Duly, hire: Hire):
    gate = Gate()
    seen: list[Any] = []

    @app.action
    def act(ctx: Ctx) -> None:
        seen.append(ctx.canceled)
        gate.pass_through()
        seen.append(ctx.canceled)
        ctx.check()

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    job.cancel()
    worker.beat()
    gate.open()
    worker.work()

    assert seen == [False, True]
    assert job.state == State.CANCELED


@pytest.mark.spec("R84", "R85", "R173", "N18")
@pytest.mark.parametrize("how", ["canceled, not told", "canceled", "timed out"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_canceled_action_continues_to_run_and_what_it_schedules_does_not(
    app: Duly, db: Database, clock: ManualClock, note: Any, hire: Hire, is_async: bool, how: str
):
    gate = Gate()
    steps: list[str] = []
    children: list[Job[Any] | AsyncJob[Any]] = []
    other = app.run_after(60, note, "of another")

    @app.action(name="sync", timeout=5)
    def act(ctx: Ctx) -> None:
        gate.pass_through()
        steps.append("goes on")
        children.append(ctx.run(note, "one"))
        children.append(ctx.run_after(60, note, "later"))
        children.append(ctx.run_at(clock.now() + 1, note, "then"))
        children.extend(ctx.run_many([note.bind("a"), note.bind("b")]))
        children.append(ctx.run(note.using(unique=Unique("k")), "unique"))
        batch = ctx.batch([note.bind("c"), note.bind("d")], on_complete=after)
        children.extend(batch.jobs())
        assert ctx.job(other.id).state == State.PENDING
        assert other.id in {job.id for job in ctx.jobs()}
        assert ctx.cancel(other) is True
        ctx.cost(1)
        ctx.log("still here")
        with pytest.raises(Canceled):
            ctx.call(note, "called")
        if how != "canceled, not told":
            for stop in (ctx.check, lambda: ctx.progress(0.5)):
                with pytest.raises(Canceled):
                    stop()
        steps.append("cleans up")

    @app.action(name="async", timeout=5)
    async def act_async(ctx: AsyncCtx) -> None:
        gate.pass_through()
        steps.append("goes on")
        children.append(await ctx.run(note, "one"))
        children.append(await ctx.run_after(60, note, "later"))
        children.append(await ctx.run_at(clock.now() + 1, note, "then"))
        children.extend(await ctx.run_many([note.bind("a"), note.bind("b")]))
        children.append(await ctx.run(note.using(unique=Unique("k")), "unique"))
        batch = await ctx.batch([note.bind("c"), note.bind("d")], on_complete=after)
        children.extend(app.job(job.id) for job in app.jobs() if job.record.batch_id == batch.id)
        assert (await ctx.job(other.id)).id == other.id
        assert other.id in {job.id for job in await ctx.jobs()}
        assert await ctx.cancel(other) is True
        await ctx.cost(1)
        ctx.log("still here")
        with pytest.raises(Canceled):
            await ctx.call(note, "called")
        if how != "canceled, not told":
            with pytest.raises(Canceled):
                ctx.check()
            with pytest.raises(Canceled):
                await ctx.progress(0.5)
        steps.append("cleans up")
        if how == "timed out":
            # Only here, where it awaits something else, is it interrupted.
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE)
            steps.append("interrupted")
        else:
            await asyncio.sleep(0)

    @app.action
    def after(ctx: Ctx, batch_id: str) -> None:
        steps.append("the batch's hook")

    job = app.run(act_async if is_async else act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    if how == "timed out":
        clock.advance(5)
        worker.watch()
        worker.settle()
    else:
        job.cancel()
    if how == "canceled":
        worker.beat()
    gate.open()
    worker.wait_for_bodies()
    clock.advance(120)
    worker.work()

    expected = ["goes on", "cleans up"]
    if is_async and how == "timed out":
        expected.append("interrupted")
    assert steps == expected
    assert job.state == (State.FAILED if how == "timed out" else State.CANCELED)
    records = [app.job(child.id).record for child in children]
    assert len(records) == 8
    assert {record.state for record in records} == {State.CANCELED}
    assert {record.canceled_by for record in records} == {f"parent:{job.id}"}
    assert all(record.completed_at is not None for record in records)
    assert not any(child.existed for child in children)
    assert db.notes() == []


@pytest.mark.spec("R85")
def test_a_cancel_waits_for_a_child_that_is_just_being_inserted(app: Duly, note: Any, hire: Hire):
    canceled = threading.Event()

    @app.action
    def act(ctx: Ctx) -> None:
        ctx.run_after(60, note, "child")

    def cancel() -> None:
        job.cancel()
        canceled.set()

    def cancel_before_the_commit(point: str) -> None:
        if point == "child.inserted":
            threading.Thread(target=cancel, daemon=True).start()
            assert not canceled.wait(0.1)

    job = app.run(act)
    worker = hire()
    with fault.inject(cancel_before_the_commit):
        worker.start_due()
        worker.wait_for_bodies()
    assert canceled.wait(10)
    worker.work()

    assert job.state == State.CANCELED
    assert [child.state for child in job.children()] == [State.CANCELED]


@pytest.mark.spec("R85")
@at_every_level
def test_a_child_shares_its_parents_fate_however_insert_and_cancel_meet(
    app: Duly, note: Any, hire: Hire
):
    started = threading.Semaphore(0)

    @app.action
    def act(ctx: Ctx) -> None:
        started.release()
        ctx.run_after(60, note, "child")

    def cancel_as_soon_as_started() -> None:
        for job in jobs:
            assert started.acquire(timeout=60)
            job.cancel()

    jobs = [app.run(act) for _ in range(20)]
    worker = hire(concurrency=20)
    with in_thread(cancel_as_soon_as_started) as done:
        worker.work()
        done()
    worker.work()

    for job in jobs:
        fate = State.CANCELED if job.state == State.CANCELED else State.PENDING
        assert {child.state for child in job.children()} <= {fate}
        assert job.state == State.CANCELED or len(job.children()) == 1


@pytest.mark.spec("R86", "N18")
@at_every_level
def test_a_cancel_reaches_unfinished_descendants(app: Duly, clock: ManualClock, hire: Hire):
    @app.mutation
    def leaf(tx: Tx) -> None: ...

    @app.mutation
    def branch(tx: Tx, delay: float) -> None:
        tx.run_after(0, leaf)
        tx.run_after(delay, leaf)

    @app.action
    def root(ctx: Ctx) -> None:
        ctx.run(branch, 3600)
        ctx.run_after(3600, branch, 0)
        gate.pass_through()

    gate = Gate()
    bystander = app.run_after(3600, leaf)
    job = app.run(root)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    worker.start_due()
    wait_for_branch = job.children()[-1]
    wait_for_branch.result(timeout=60)
    worker.start_due()
    finished_leaf = wait_for_branch.children()[-1]
    finished_leaf.result(timeout=60)

    # root runs; one branch is finished, its leaf waits; the other branch waits.
    waiting_branch, finished_branch = job.children()
    waiting_leaf, _ = finished_branch.children()
    assert job.cancel() is True
    gate.open()
    worker.work()

    assert job.state == State.CANCELED
    assert waiting_branch.state == State.CANCELED
    assert waiting_branch.canceled_by == f"parent:{job.id}"
    assert finished_branch.state == State.SUCCEEDED
    assert finished_leaf.state == State.SUCCEEDED
    # Reached through unfinished jobs only: the finished branch shields its leaf.
    assert waiting_leaf.state == State.PENDING
    assert bystander.state == State.PENDING


@pytest.mark.spec("R86")
def test_a_cancel_goes_down_many_generations(app: Duly, hire: Hire):
    started = threading.Semaphore(0)
    gate = Gate()

    @app.action
    def nest(ctx: Ctx, depth: int) -> None:
        if depth:
            ctx.run(nest, depth - 1)
        started.release()
        gate.pass_through()

    top = app.run(nest, 6)
    worker = hire()
    for _ in range(7):
        worker.start_due()
        gate.wait_for_one()
    family = app.jobs(function=nest)
    assert len(family) == 7
    assert top.cancel() is True
    gate.open()
    worker.work()

    assert {job.state for job in family} == {State.CANCELED}
    assert [job.canceled_by for job in reversed(family)] == ["operator"] + [
        f"parent:{job.id}" for job in reversed(family[1:])
    ]


@pytest.mark.spec("R87")
def test_a_finished_job_cannot_be_canceled(app: Duly, db: Database, note: Any, hire: Hire):
    @app.action
    def explode(ctx: Ctx) -> None:
        raise ValueError

    jobs: list[Job[Any]] = [app.run(note, "done"), app.run(explode), app.run_after(60, note, "x")]
    hire().work()
    jobs[2].cancel()
    before = db.snapshot()

    for job in jobs:
        assert job.cancel() is False
        assert app.cancel(job.id) is False
    assert db.snapshot() == before


@pytest.mark.spec("R87")
def test_an_unknown_job_cannot_be_canceled(app: Duly):
    for unknown in (new_id(0), "", "nonsense", "\0", "ü" * 36, 36 * "0"):
        with pytest.raises(JobNotFound) as raised:
            app.cancel(unknown)
        assert raised.value.job_id == unknown
        with pytest.raises(LookupError):
            app.job(unknown)


@pytest.mark.spec("R88")
def test_a_cancel_in_a_rolled_back_mutation_never_happened(
    app: Duly, db: Database, clock: ManualClock, note: Any, hire: Hire
):
    @app.mutation
    def regret(tx: Tx) -> None:
        assert tx.cancel(target.id) is True
        assert tx.cancel(target.id) is False
        assert tx.job(target.id).state == State.CANCELED
        raise ValueError("no, leave it")

    target = app.run_after(60, note, "still here")
    app.run(regret)
    worker = hire()
    worker.work()
    assert target.state == State.PENDING

    clock.advance(60)
    worker.work()
    assert db.notes() == ["still here"]


@pytest.mark.spec("R88", "N18")
@at_every_level
def test_a_cancel_in_a_mutation_commits_with_it(app: Duly, note: Any, hire: Hire):
    @app.mutation
    def cancel(tx: Tx) -> bool:
        tx.execute("INSERT INTO notes VALUES ('canceled it')")
        return tx.cancel(target)

    target = app.run_after(60, note, "x")
    job = app.run(cancel)
    hire().work()

    assert job.result(0) is True
    assert target.state == State.CANCELED
    assert target.canceled_by == f"job:{job.id}"


@pytest.mark.spec("R89")
@at_every_level
def test_of_cancel_and_the_end_of_an_action_exactly_one_wins(app: Duly, hire: Hire):
    @app.action
    def act(ctx: Ctx, n: int) -> int:
        return n

    jobs = [app.run(act, n) for n in range(40)]
    worker = hire(concurrency=4)
    with in_thread(lambda: [app.cancel(job) for job in reversed(jobs)]) as cancel_all:
        worker.work()
        won = cancel_all()
    worker.work()

    for n, (job, was_canceled) in enumerate(zip(jobs, reversed(won), strict=True)):
        assert job.state == (State.CANCELED if was_canceled else State.SUCCEEDED)
        assert job.record.result == (None if was_canceled else str(n))


@pytest.mark.spec("R89")
def test_of_two_cancels_exactly_one_wins(app: Duly, note: Any):
    jobs = [app.run_after(60, note, "x") for _ in range(20)]
    with (
        in_thread(lambda: [app.cancel(job) for job in jobs]) as forwards,
        in_thread(lambda: [app.cancel(job) for job in reversed(jobs)]) as backwards,
    ):
        answers = zip(forwards(), reversed(backwards()), strict=True)

    assert [one != other for one, other in answers] == [True] * 20


@pytest.mark.spec("R89")
@at_every_level
def test_cancels_that_cross_in_one_family_do_not_lock_each_other(app: Duly, hire: Hire):
    """One comes from above and one from below; on PostgreSQL both lock rows."""
    gate = Gate()

    @app.action
    def parent(ctx: Ctx) -> None:
        for _ in range(20):
            ctx.run_after(60, leaf)
        gate.pass_through()

    @app.action
    def leaf(ctx: Ctx) -> None: ...

    job = app.run(parent)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    leaves = app.jobs(function=leaf)
    with (
        in_thread(lambda: [app.cancel(one) for one in leaves]) as from_below,
        in_thread(job.cancel) as from_above,
    ):
        assert from_above() is True
        won = from_below()
    gate.open()
    worker.work()

    assert job.state == State.CANCELED
    for one, own in zip(leaves, won, strict=True):
        assert one.state == State.CANCELED
        assert one.canceled_by == ("operator" if own else f"parent:{job.id}")


@pytest.mark.spec("R90")
@pytest.mark.parametrize("swallow", [False, True])
def test_a_mutation_cannot_cancel_itself(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, swallow: bool
):
    raised: list[Exception] = []

    @app.mutation
    def suicide(tx: Tx) -> str:
        tx.execute("INSERT INTO notes VALUES ('written')")
        assert tx.job_id is not None
        try:
            tx.cancel(tx.job_id)
        except CannotCancelSelf as error:
            raised.append(error)
            if not swallow:
                raise
        return "went on"

    job = app.run_after(60, suicide)
    clock.advance(60)
    hire().work()

    assert len(raised) == 1
    if swallow:
        assert (job.result(0), db.notes()) == ("went on", ["written"])
    else:
        assert (job.state, db.notes()) == (State.FAILED, [])


@pytest.mark.spec("R90")
@pytest.mark.parametrize("swallow", [False, True])
def test_a_mutation_cannot_cancel_itself_through_its_parent(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, swallow: bool
):
    gate = Gate()
    bodies: list[str] = []

    @app.mutation
    def patricide(tx: Tx) -> None:
        bodies.append("body")
        tx.execute("INSERT INTO notes VALUES ('never')")
        try:
            tx.cancel(parent)
        except CannotCancelSelf:
            if not swallow:
                raise

    @app.action
    def act(ctx: Ctx) -> str:
        ctx.run(patricide)
        gate.pass_through()
        return "unharmed"

    parent = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    worker.start_due()
    (child,) = parent.children()
    worker.wait_for(child)
    gate.open()
    worker.work()
    clock.advance(3600)
    worker.work()

    assert child.state == State.FAILED
    assert child.error is not None
    assert child.error.message.startswith(CannotCancelSelf.__name__)
    assert parent.result(0) == "unharmed"
    assert bodies == ["body"]
    assert db.notes() == []


def test_an_action_may_cancel_itself(app: Duly, hire: Hire):
    @app.action
    def act(ctx: Ctx) -> str:
        assert ctx.cancel(ctx.job_id) is True
        return "dropped"

    job = app.run(act)
    hire().work()

    assert job.state == State.CANCELED
    assert job.canceled_by == f"job:{job.id}"


@pytest.mark.spec("N18")
def test_canceled_by_says_who_it_was(app: Duly, note: Any, hire: Hire):
    @app.mutation
    def through_tx(tx: Tx) -> None:
        tx.cancel(targets[1])

    @app.action
    def through_ctx(ctx: Ctx) -> None:
        ctx.cancel(targets[2])
        ctx.call(through_call)

    @app.mutation
    def through_call(tx: Tx) -> None:
        tx.cancel(targets[3])

    @app.action
    async def through_async(ctx: AsyncCtx) -> None:
        assert await ctx.cancel(targets[4]) is True

    targets = [app.run_after(60, note, "x") for _ in range(6)]
    targets[0].cancel()
    jobs = [app.run(through_tx), app.run(through_ctx), app.run(through_async)]
    with app.transaction() as tx:
        tx.cancel(targets[5])
    hire().work()

    by_tx, by_ctx, by_async = (f"job:{job.id}" for job in jobs)
    assert [target.canceled_by for target in targets] == [
        "operator",
        by_tx,
        by_ctx,
        by_ctx,
        by_async,
        "operator",
    ]


# Many at once


@pytest.mark.spec("R91")
def test_cancel_all_takes_a_function_and_a_range_of_time(app: Duly, clock: ManualClock, note: Any):
    @app.action
    def other(ctx: Ctx) -> None: ...

    times = [clock.now() + 1000 * n for n in range(10)]
    jobs = [app.run_at(when, note, "x") for when in times]
    others = [app.run_at(when, other) for when in times]

    # The start belongs to the range, the end does not.
    assert app.cancel_all(note, after=times[3], before=from_ms(times[6])) == 3
    assert [n for n, job in enumerate(jobs) if job.state == State.CANCELED] == [3, 4, 5]
    assert {job.state for job in others} == {State.PENDING}
    assert {jobs[n].canceled_by for n in (3, 4, 5)} == {"operator"}

    assert app.cancel_all("note", before=times[1]) == 1
    assert app.cancel_all(note, after=times[9]) == 1
    assert app.cancel_all(note, after=times[3], before=times[6]) == 0
    assert app.cancel_all(note) == 5
    assert app.cancel_all(note) == 0
    assert {job.state for job in others} == {State.PENDING}


@pytest.mark.spec("R91")
def test_cancel_all_takes_a_queue_and_an_owner(app: Duly, note: Any):
    mine = [app.run_after(60, note.using(owner="ada", queue="mail"), "x") for _ in range(3)]
    theirs = [app.run_after(60, note.using(owner="bob", queue="mail"), "x") for _ in range(2)]

    assert app.cancel_all(owner="ada") == 3
    assert app.cancel_all(queue="mail") == 2
    assert {job.state for job in mine + theirs} == {State.CANCELED}


@pytest.mark.spec("R91", "N14")
def test_cancel_all_works_in_batches_that_hold_no_lock_in_between(
    app: Duly, db: Database, note: Any
):
    app.run_many(note.bind("x") for _ in range(1203))
    kept = app.run_after(60, note.using(owner="ada"), "x")
    batches: list[int] = []

    def look(point: str) -> None:
        if point == "cancel.moved":
            batches.append(db.count("@history"))

    with fault.inject(look):
        assert app.cancel_all(note, before=kept.record.run_at) == 1203

    # What each batch found committed by the ones before it.
    assert batches == [0, 500, 1000]
    assert db.count("@history") == 1203
    assert kept.state == State.PENDING


@pytest.mark.spec("R91")
def test_cancel_all_also_reaches_running_actions_and_descendants(app: Duly, hire: Hire):
    gate = Gate()

    @app.action
    def leaf(ctx: Ctx) -> None: ...

    @app.action
    def act(ctx: Ctx) -> None:
        ctx.run_after(3600, leaf)
        gate.pass_through()

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    assert app.cancel_all(act) == 2
    gate.open()
    worker.work()

    assert job.state == State.CANCELED
    assert [child.state for child in job.children()] == [State.CANCELED]


def test_cancel_all_must_be_told_which_jobs(app: Duly) -> None:
    with pytest.raises(InvalidOption, match="give at least one of function"):
        app.cancel_all()
