"""The members of a batch: all of them, in the order of the calls, and those that are retried."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from duly import (
    Batch,
    BatchNotFound,
    Ctx,
    Duly,
    JobCanceled,
    JobFailed,
    ManualClock,
    Retry,
    State,
    Tx,
    Unique,
)
from duly.calls import batches
from duly.errors import InvalidOption, NotCommittedYet, ResultTimeout, WouldWaitForItself
from duly.ids import new_id
from duly.testing.conformance.ground import at_the_same_time
from tests.callers.test_aio import play
from tests.jobs.support import DAY, Database, Hire, tidy

broken: set[int] = set()
hooks: list[str] = []
jobs_done: list[str] = []


@pytest.fixture
def shop(app: Duly) -> Duly:
    broken.clear()
    hooks.clear()
    jobs_done.clear()

    @app.action(retry=Retry(attempts=1))
    def double(ctx: Ctx, n: int) -> int:
        if n in broken:
            raise ValueError(n)
        return 2 * n

    @app.mutation
    def add_up(tx: Tx, batch_id: str) -> list[Any]:
        hooks.append(batch_id)
        found = app.batch_of(batch_id).results(return_exceptions=True)
        return [None if isinstance(each, Exception) else each for each in found]

    @app.action
    def after_job(ctx: Ctx, job_id: str) -> None:
        jobs_done.append(job_id)

    return app


def numbers(batch: Batch, state: State | str | None = None) -> list[int]:
    return [job.arguments["n"] for job in batch.jobs(state)]


def of(shop: Duly, *values: int, hook: bool = True) -> Batch:
    double = shop.function("double")
    return shop.batch(
        map(double.bind, values), on_complete=shop.function("add_up") if hook else None
    )


# Members


@pytest.mark.spec("N53")
def test_every_member_is_found_in_the_order_of_the_calls(
    shop: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batches, "PAGE", 3)
    broken.add(6)
    batch = of(shop, *range(10, 0, -1))
    assert numbers(batch) == list(range(10, 0, -1))
    next(batch.jobs()).cancel()
    hire(concurrency=3).work()
    assert numbers(batch) == list(range(10, 0, -1))
    assert numbers(batch, "succeeded") == [9, 8, 7, 5, 4, 3, 2, 1]
    assert (numbers(batch, State.FAILED), numbers(batch, "canceled")) == ([6], [10])
    assert numbers(batch, "pending") == []
    with pytest.raises(InvalidOption, match="must be one of"):
        batch.jobs("lost")
    found = list(batch.results(return_exceptions=True))
    assert isinstance(found[0], JobCanceled)
    assert isinstance(found[4], JobFailed)
    assert found[1:4] + found[5:] == [18, 16, 14, 10, 8, 6, 4, 2]
    assert shop.job(batch.id).result(0) == [None, 18, 16, 14, None, 10, 8, 6, 4, 2]


@pytest.mark.spec("N53")
def test_members_beyond_the_first_page_are_found(shop: Duly):
    batch = of(shop, *range(2_500))
    assert numbers(batch) == list(range(2_500))


@pytest.mark.spec("N53")
def test_results_raise_at_the_first_member_that_has_not_succeeded(shop: Duly, hire: Hire):
    broken.add(2)
    batch = of(shop, 1, 2, 3, hook=False)
    with pytest.raises(ResultTimeout):
        next(batch.results(timeout=0))
    hire().work()
    results = batch.results()
    assert next(results) == 2
    with pytest.raises(JobFailed, match="2"):
        next(results)


def test_a_long_result_is_read_whole(shop: Duly, hire: Hire):
    @shop.action
    def long(ctx: Ctx, n: int) -> str:
        return "x" * 20_000

    batch = shop.batch([long.bind(1)])
    hire().work()
    assert list(batch.results()) == ["x" * 20_000]


@pytest.mark.spec("N53")
def test_an_unknown_batch_is_an_error(shop: Duly, hire: Hire):
    alone = shop.run(shop.function("double"), 1)
    for unknown in (new_id(0), "report", alone.id):
        with pytest.raises(BatchNotFound, match="there is no batch"):
            shop.batch_of(unknown)
    assert issubclass(BatchNotFound, LookupError)
    empty = of(shop)
    hire().work()
    assert shop.batch_of(empty.id).progress().total == 0, "its hook is known"
    assert hooks == [empty.id]
    assert shop.batch_of(of(shop, 1, hook=False).id).progress().total == 1


@pytest.mark.spec("N54")
def test_calls_that_find_existing_jobs_are_named(shop: Duly, hire: Hire):
    once = shop.function("double").using(unique=Unique())
    there = shop.run(once, 1)
    mixed = shop.batch([once.bind(1), once.bind(2)], on_complete=shop.function("add_up"))
    assert (mixed.existing, numbers(mixed)) == ((there,), [2])
    all_there = shop.batch([once.bind(1), once.bind(2)], on_complete=shop.function("add_up"))
    assert [job.id for job in all_there.existing] == [there.id, *[j.id for j in mixed.jobs()]]
    assert all_there.progress().total == 0
    shop.queues.pause("default")
    assert shop.batch_of(mixed.id).existing == ()
    shop.queues.resume("default")
    hire().work()
    assert sorted(hooks) == sorted([mixed.id, all_there.id])


# Retries


Retrying = Callable[[Duly, Batch], object]
WAYS: dict[str, Retrying] = {
    "batch.retry": lambda shop, batch: batch.retry(),
    "app.retry": lambda shop, batch: [shop.retry(job) for job in batch.jobs("failed")],
    "retry_dead": lambda shop, batch: shop.retry_dead(),
    "bulk.retry": lambda shop, batch: shop.bulk.retry(batch=batch),
}


@pytest.mark.spec("N55")
@pytest.mark.parametrize("way", WAYS)
def test_a_retry_takes_the_place_of_the_failed_member(shop: Duly, hire: Hire, way: str):
    broken.update((2, 3))
    batch = of(shop, 1, 2, 3, 4)
    worker = hire()
    worker.work()
    assert (batch.progress().failed, batch.progress().all_succeeded) == (2, False)
    broken.remove(2)
    WAYS[way](shop, batch)
    if way != "bulk.retry":
        progress = batch.progress()
        assert (progress.pending, progress.failed, progress.total) == (2, 0, 4)
        assert not progress.done
    worker.work()
    assert numbers(batch) == [1, 2, 3, 4]
    assert numbers(batch, "succeeded") == [1, 2, 4]
    assert numbers(batch, "failed") == [3]
    # And a retry of the retry.
    broken.clear()
    WAYS[way](shop, batch)
    worker.work()
    assert list(batch.results()) == [2, 4, 6, 8]
    progress = batch.progress()
    assert (progress.succeeded, progress.total, progress.all_succeeded) == (4, 4, True)
    assert [job.batch_id for job in batch.jobs()] == [batch.id] * 4
    assert hooks == [batch.id], "once"


@pytest.mark.spec("N55")
def test_batch_retry_is_for_failed_and_canceled_members(shop: Duly, hire: Hire, monkeypatch: Any):
    monkeypatch.setattr(batches, "PAGE", 2)
    broken.update((1, 2, 3))
    batch = of(shop, *range(6), hook=False)
    list(batch.jobs())[5].cancel()
    worker = hire()
    worker.work()
    broken.clear()
    assert len(batch.retry("canceled").jobs) == 1
    assert (batch.progress().failed, batch.progress().pending) == (3, 1)
    next(batch.jobs("pending")).cancel()
    done = batch.retry()
    assert (len(done.jobs), done.repeated, done.refused) == (4, (), {})
    assert batch.retry().jobs == ()
    worker.work()
    assert list(batch.results()) == [0, 2, 4, 6, 8, 10]
    with pytest.raises(InvalidOption, match="failed or canceled"):
        batch.retry("succeeded")


@pytest.mark.spec("N55")
def test_a_retry_before_the_hook_has_started_delays_it(shop: Duly, hire: Hire):
    broken.add(1)
    add_up = shop.function("add_up").using(queue="later")
    shop.queues.pause("later")
    batch = shop.batch([shop.function("double").bind(n) for n in (1, 2)], on_complete=add_up)
    worker = hire()
    worker.work()
    assert shop.job(batch.id).record.hold is None, "it is free to start"
    shop.queues.pause("default")
    broken.clear()
    batch.retry()
    shop.queues.resume("later")
    worker.work()
    assert (hooks, shop.job(batch.id).record.hold) == ([], "batch")
    shop.queues.resume("default")
    worker.work()
    assert shop.job(batch.id).result(0) == [2, 4]
    assert hooks == [batch.id]


@pytest.mark.spec("N55")
def test_the_hook_waits_for_a_retry_that_is_stored_while_the_last_member_ends(
    shop: Duly, hire: Hire
):
    broken.add(1)
    late = shop.function("double").using(queue="late")
    shop.queues.pause("late")
    worker = hire()
    for _ in range(20):
        batch = shop.batch(
            [shop.function("double").bind(1), late.bind(2)], on_complete=shop.function("add_up")
        )
        worker.work()
        [last] = batch.jobs("pending")
        shop.queues.pause("default")
        both: list[Callable[[], object]] = [partial(batch.retry, "failed"), last.cancel]
        at_the_same_time(both)
        assert shop.job(batch.id).record.hold == "batch"
        broken.clear()
        shop.queues.resume("default")
        worker.work()
        assert shop.job(batch.id).result(0) == [2, None]
        broken.add(1)


@pytest.mark.spec("N55")
def test_a_retry_after_the_hook_does_not_call_it_again(shop: Duly, hire: Hire):
    broken.add(1)
    batch = of(shop, 1, 2)
    worker = hire()
    worker.work()
    assert shop.job(batch.id).result(0) == [None, 4]
    broken.clear()
    batch.retry()
    worker.work()
    assert hooks == [batch.id]
    again = shop.run(shop.function("add_up"), batch_id=batch.id)
    worker.work()
    assert again.result(0) == [2, 4]


@pytest.mark.spec("N55")
def test_a_retry_stays_a_member_when_retention_has_removed_the_first_try(
    shop: Duly, hire: Hire, clock: ManualClock
):
    broken.add(1)
    batch = of(shop, 1, 2, hook=False)
    worker = hire()
    worker.work()
    clock.advance(6 * DAY)
    broken.clear()
    batch.retry()
    worker.work()
    clock.advance(3 * DAY)
    tidy(shop)
    assert numbers(batch) == [1]
    assert batch.progress().total == 1


@pytest.mark.spec("N56")
@pytest.mark.parametrize("way", ["app.retry", "retry_dead", "bulk.retry"])
def test_a_retry_has_the_hook_of_the_failed_job(shop: Duly, hire: Hire, way: str):
    broken.add(1)
    hook = shop.function("after_job").using(priority=7)
    job = shop.run(shop.function("double").using(on_complete=hook), 1)
    plain = shop.run(shop.function("double"), 1)
    worker = hire()
    worker.work()
    assert jobs_done == [job.id]
    broken.clear()
    if way == "app.retry":
        shop.retry(job)
        shop.retry(plain)
    elif way == "retry_dead":
        shop.retry_dead()
    else:
        shop.bulk.retry(everything=True)
        worker.work()
    retried = shop.retry(job).id
    worker.work()
    assert jobs_done == [job.id, retried]
    assert {each.record.priority for each in shop.jobs(function="after_job")} == {7}


@pytest.mark.spec("N56")
def test_a_dead_letter_whose_hook_was_removed_gets_what_its_function_has(
    shop: Duly, hire: Hire, clock: ManualClock
):
    @shop.action(on_complete=shop.function("after_job"), retry=Retry(attempts=1))
    def work(ctx: Ctx) -> None:
        if broken:
            raise ValueError

    broken.add(1)
    job = shop.run(work)
    worker = hire()
    worker.work()
    clock.advance(8 * DAY)
    other = shop.run(work)
    worker.work()
    tidy(shop)
    assert len(shop.jobs(function="after_job")) == 1, "the newest one"
    assert job.state == "failed"
    broken.clear()
    again = shop.retry(job)
    worker.work()
    assert jobs_done == [job.id, other.id, again.id]


def test_a_member_is_retried_once_however_often(shop: Duly, hire: Hire, db: Database):
    broken.add(1)
    batch = of(shop, 1, hook=False)
    hire().work()
    [failed] = batch.jobs("failed")
    assert shop.retry(failed) == shop.retry(failed)
    assert batch.progress().total == 1
    assert numbers(batch) == [1]


# In a transaction


@pytest.mark.spec("N57")
def test_a_mutation_may_read_the_results_of_ended_jobs(shop: Duly, hire: Hire):
    ended = shop.run(shop.function("double"), 4)
    batch = of(shop, 1, hook=False)
    worker = hire()
    worker.work()

    @shop.mutation
    def read(tx: Tx) -> list[int]:
        batch.wait()
        return [ended.result(), tx.job(ended.id).result(), *batch.results()]

    job = shop.run(read)
    worker.work()
    assert job.result(0) == [8, 8, 2]
    unfinished = shop.run(shop.function("double"), 5)
    waiting = of(shop, 1, hook=False)
    with shop.transaction():
        assert ended.result() == 8
        for wait in (unfinished.result, waiting.wait, lambda: next(waiting.results())):
            with pytest.raises(WouldWaitForItself):
                wait()


def test_an_uncommitted_batch_is_not_read(shop: Duly):
    with shop.transaction() as tx:
        batch = tx.batch([shop.function("double").bind(1)])
        for verb in (batch.jobs, batch.results):
            with pytest.raises(NotCommittedYet):
                verb()
    assert numbers(batch) == [1]


# Async


@pytest.mark.spec("N53", "N55")
def test_an_async_batch_has_the_same_verbs(shop: Duly, hire: Hire, monkeypatch: Any):
    monkeypatch.setattr(batches, "PAGE", 2)
    play(_use_async_batch(shop, hire))


async def _use_async_batch(shop: Duly, hire: Hire) -> None:
    broken.add(3)
    double = shop.function("double")
    made = await shop.aio.batch(map(double.bind, (5, 4, 3, 2, 1)))
    batch = await shop.aio.batch_of(made.id)
    assert (batch == made, made.existing) == (True, ())
    with pytest.raises(ResultTimeout):
        await batch.wait(0)
    hire().work()
    assert (await batch.wait()).failed == 1
    assert [await job.state() async for job in batch.jobs("failed")] == ["failed"]
    with pytest.raises(JobFailed):
        _ = [each async for each in batch.results()]
    found = [each async for each in batch.results(return_exceptions=True)]
    assert [each for each in found if isinstance(each, int)] == [10, 8, 4, 2]
    broken.clear()
    assert len((await batch.retry()).jobs) == 1
    assert (await batch.progress()).pending == 1
    hire().work()
    assert [each async for each in batch.results(timeout=5)] == [10, 8, 6, 4, 2]
    with pytest.raises(BatchNotFound):
        await shop.aio.batch_of(new_id(0))
    with pytest.raises(InvalidOption):
        _ = [job async for job in batch.jobs("lost")]
