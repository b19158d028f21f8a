"""What is called when jobs have ended, exactly once, however they ended."""

from contextlib import suppress
from datetime import timedelta

import pytest

from duly import Ctx, Duly, Kind, ManualClock, Retry, State, Tx
from duly.errors import (
    InvalidArgument,
    InvalidOption,
    NotCommittedYet,
    ResultTimeout,
    UnknownFunction,
)
from tests.jobs.support import Database, Hire, rescue_the_dead, tidy
from tests.levels import at_every_level

calls: list[tuple[str, str]] = []


@pytest.fixture
def shop(app: Duly) -> Duly:
    calls.clear()

    @app.action
    def done(ctx: Ctx, job_id: str) -> None:
        calls.append((ctx.job(job_id).function, ctx.job(job_id).state))

    @app.action(on_complete=done)
    def work(ctx: Ctx, how: str = "well") -> None:
        if how != "well":
            raise ValueError(how)

    @app.mutation(on_complete=done)
    def change(tx: Tx) -> None: ...

    @app.mutation
    def all_done(tx: Tx, batch_id: str) -> None:
        progress = app.core.store.batch_counts(batch_id)
        calls.append(("all_done", str(sorted(progress.items()))))

    return app


# One job


@pytest.mark.spec("R181")
@at_every_level
def test_the_hook_is_called_once_on_success_failure_and_cancel(shop: Duly, hire: Hire):
    shop.run(shop.function("work"))
    shop.run(shop.function("work"), "badly")
    shop.run(shop.function("change"))
    shop.run_after(60, shop.function("work")).cancel()
    worker = hire()
    worker.work()
    worker.work()
    assert sorted(calls) == [
        ("change", "succeeded"),
        ("work", "canceled"),
        ("work", "failed"),
        ("work", "succeeded"),
    ]


@pytest.mark.spec("R181")
def test_the_hook_waits_for_the_last_attempt(shop: Duly, hire: Hire, clock: ManualClock):
    work = shop.function("work").using(retry=Retry(attempts=2, delay=60, jitter=0))
    shop.run(work, "badly")
    worker = hire()
    worker.work()
    assert calls == []
    clock.advance(60)
    worker.work()
    assert calls == [("work", "failed")]


@pytest.mark.spec("R181")
@at_every_level
def test_the_hook_of_a_job_that_died_with_its_worker_is_called(shop: Duly, hire: Hire):
    shop.run(shop.function("work"))
    dying, observer = hire(), hire()
    dying.claim_only()
    dying.die()
    rescue_the_dead(observer)
    observer.work()
    assert calls == [("work", "failed")]


@pytest.mark.spec("R181")
def test_the_hook_of_a_job_that_expires_is_called(shop: Duly, hire: Hire, clock: ManualClock):
    shop.queues.pause("slow")
    shop.run(shop.function("work").using(queue="slow", expires=5))
    clock.advance(6)
    tidy(shop)
    hire().work()
    assert calls == [("work", "canceled")]


@pytest.mark.spec("R181", "N21")
def test_a_hook_that_may_expire_is_called_however_long_it_has_waited(
    shop: Duly, hire: Hire, clock: ManualClock
):
    done, all_done = (shop.function(name).using(expires=60) for name in ("done", "all_done"))
    shop.run_after(3600, shop.function("work").using(on_complete=done))
    shop.batch([shop.function("change").using(queue="slow").bind()], on_complete=all_done)
    shop.queues.pause("slow")
    clock.advance(7200)
    tidy(shop)
    shop.queues.resume("slow")
    hire().work()
    assert ("work", "succeeded") in calls
    assert ("all_done", "[('succeeded', 1)]") in calls


def test_the_hook_and_its_job_are_stored_together_or_not(shop: Duly, db: Database):
    def roll_back() -> None:
        with shop.transaction() as tx:
            tx.run(shop.function("work"))
            assert len(tx.jobs()) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roll_back()
    assert db.count("@jobs") == 0


def test_a_hook_that_fails_is_a_failed_job_like_any_other(shop: Duly, hire: Hire):
    @shop.action
    def broken(ctx: Ctx, job_id: str) -> None:
        raise ValueError("in the hook")

    job = shop.run(shop.function("change").using(on_complete=broken))
    hire().work()
    assert job.state == State.SUCCEEDED
    (failed,) = shop.jobs(state="failed")
    assert failed.function == "broken"


def test_a_hook_must_be_a_function_that_takes_the_id(shop: Duly, db: Database):
    @shop.action
    def takes_nothing(ctx: Ctx) -> None: ...

    with pytest.raises(InvalidArgument, match="job_id"):
        shop.run(shop.function("change").using(on_complete=takes_nothing))
    with pytest.raises(InvalidOption, match="on_complete"):
        shop.function("change").using(on_complete="done")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="batch_id"):
        shop.batch([], on_complete=shop.function("done"))
    assert db.count("@jobs") == 0


def test_a_hook_of_another_app_is_unknown(shop: Duly, url: str):
    other = Duly(url)

    @other.action
    def elsewhere(ctx: Ctx, job_id: str) -> None: ...

    with pytest.raises(UnknownFunction):
        shop.run(shop.function("change").using(on_complete=elsewhere))
    other.close()


def test_a_service_without_the_code_gets_the_hook_too(
    shop: Duly, hire: Hire, url: str, clock: ManualClock
):
    worker = hire()
    other = Duly(url, name="other", clock=clock)
    job = other.run(other.function("change"))
    assert job.record.kind == Kind.MUTATION
    worker.work()
    assert calls == [("change", "succeeded")]
    other.close()


# Batches


@pytest.mark.spec("N21")
@at_every_level
def test_the_hook_of_a_batch_is_called_once_when_the_last_member_has_ended(
    shop: Duly, hire: Hire, clock: ManualClock
):
    work = shop.function("work").using(on_complete=None)
    later = work.using(retry=Retry(attempts=2, delay=60, jitter=0))
    batch = shop.batch(
        [work.bind(), work.bind("badly"), later.bind("badly"), work.bind()],
        on_complete=shop.function("all_done"),
    )
    assert (batch.progress().total, batch.progress().value) == (4, 0.0)
    list(batch.jobs())[-1].cancel()
    worker = hire()
    worker.work()
    progress = batch.progress()
    assert (progress.succeeded, progress.failed, progress.canceled) == (1, 1, 1)
    assert (progress.pending, progress.value, progress.done) == (1, 0.75, False)
    assert calls == []
    clock.advance(60)
    worker.work()
    assert batch.progress().done
    assert calls == [("all_done", "[('canceled', 1), ('failed', 2), ('succeeded', 1)]")]


@pytest.mark.spec("N21")
def test_an_empty_batch_is_complete_at_once(shop: Duly, hire: Hire):
    batch = shop.batch([], on_complete=shop.function("all_done"))
    hire().work()
    assert calls == [("all_done", "[]")]
    assert (batch.progress().total, batch.progress().value) == (0, 1.0)


@pytest.mark.spec("N21")
@at_every_level
def test_a_canceled_batch_is_complete(shop: Duly, hire: Hire):
    work = shop.function("work")
    batch = shop.batch([work.bind()] * 3, on_complete=shop.function("all_done"))
    assert batch.cancel() == 3
    hire().work()
    assert ("all_done", "[('canceled', 3)]") in calls
    assert len(calls) == 4, "each member has a hook of its own"


def test_a_batch_in_a_mutation_commits_with_it(shop: Duly, hire: Hire):
    work = shop.function("work").using(on_complete=None)

    @shop.mutation
    def fan_out(tx: Tx, well: bool) -> str:
        batch = tx.batch([work.bind()] * 2, on_complete=shop.function("all_done"))
        if not well:
            raise ValueError("rolled back")
        return batch.id

    shop.run(fan_out, False)
    job = shop.run(fan_out, True)
    hire().work()
    assert calls == [("all_done", "[('succeeded', 2)]")]
    assert shop.batch_of(job.result(0)).wait(0).succeeded == 2


def test_the_members_of_a_batch_that_is_rolled_back_are_not_done(shop: Duly):
    work = shop.function("work")
    with suppress(ZeroDivisionError), shop.transaction() as tx:
        batch = tx.batch([work.bind()])
        raise ZeroDivisionError
    for verb in (batch.progress, batch.jobs, batch.cancel, lambda: batch.wait(0)):
        with pytest.raises(NotCommittedYet):
            verb()


def test_the_keys_of_a_batch_are_remembered_as_long_as_others(
    url: str, shop: Duly, clock: ManualClock
):
    forgetful = Duly(url, clock=clock, idempotency=timedelta(minutes=1))

    @forgetful.action
    def work(ctx: Ctx) -> None: ...

    once = work.using(idempotency_key="k")
    forgetful.batch([once.bind()])
    assert forgetful.run(once).existed
    clock.advance(61)
    assert not forgetful.run(once).existed
    forgetful.close()


def test_waiting_for_a_batch_has_a_limit(shop: Duly):
    batch = shop.batch([shop.function("work").bind()])
    with pytest.raises(ResultTimeout):
        batch.wait(0)


@pytest.mark.spec("N21")
@at_every_level
def test_members_that_end_at_the_same_moment_call_the_hook_once(shop: Duly, hire: Hire):
    work = shop.function("change").using(on_complete=None)
    shop.batch([work.bind()] * 60, on_complete=shop.function("all_done"))
    shop.start(concurrency=30)
    try:
        hire(concurrency=30).work()
        from tests.jobs.support import wait_until

        wait_until(lambda: calls, "the hook")
    finally:
        shop.stop()
    assert calls == [("all_done", "[('succeeded', 60)]")]
