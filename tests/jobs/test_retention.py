"""Retention of finished jobs, and expiry of waiting ones."""

from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from duly import Ctx, Duly, ErrorKind, Job, ManualClock, Retry, State, Tx
from duly.clock import from_ms
from duly.errors import InvalidOption, JobCanceled, JobNotFound
from duly.store.sqlite import store as sqlite_store
from tests.jobs.support import DAY, Database, Gate, Hire, on_sqlite, state_of, tidy


@pytest.fixture
def echo(app: Duly) -> Any:
    @app.action
    def echo(ctx: Ctx, text: str) -> str:
        return text

    return echo


def _exists(app: Duly, job: Job[Any]) -> bool:
    try:
        app.job(job.id)
    except JobNotFound:
        return False
    return True


@on_sqlite
@pytest.mark.parametrize(("took", "rest"), [(0.01, 0.03), (60, 0.1)])
def test_a_day_is_forgotten_in_turns_that_others_need_not_wait_long_for(
    app: Duly,
    db: Database,
    clock: ManualClock,
    echo: Any,
    hire: Hire,
    monkeypatch: Any,
    took: float,
    rest: float,
):
    store: Any = app.ready()
    app.run_many(echo.bind(str(n)) for n in range(100))
    hire().work()
    clock.advance(8 * DAY)
    left: list[int] = []
    write = store.write

    def count_after(work: Any) -> Any:
        answer = write(work)
        left.append(db.count("@history"))
        return answer

    rests: list[float] = []

    def write_meanwhile(seconds: float) -> None:
        rests.append(seconds)
        app.run(echo, "while nobody forgets anything")

    monkeypatch.setattr(store, "write", count_after)
    monkeypatch.setattr(sqlite_store, "os_sleep", write_meanwhile)
    monkeypatch.setattr(sqlite_store, "os_monotonic", partial(next, count(0.0, took)))
    now = clock.now()
    assert store.retain(now - int(7 * DAY * 1000), now - int(30 * DAY * 1000), now) == 100
    assert left == [70, 70, 40, 40, 10, 10, 0]
    assert rests == pytest.approx([rest] * 3)


@pytest.mark.spec("R92")
def test_a_finished_job_is_kept_seven_days_and_gone_after_eight(
    app: Duly, db: Database, clock: ManualClock, echo: Any, hire: Hire
):
    worker = hire()
    old = app.run(echo, "a secret")
    worker.work()
    clock.advance(DAY)
    new = app.run(echo, "newer")
    worker.work()

    clock.advance(6 * DAY - 0.001)
    tidy(app)
    assert app.job(old.id).result(0) == "a secret"

    clock.advance(DAY + 0.001)
    tidy(app)
    assert not _exists(app, old)
    assert _exists(app, new)
    assert [job.id for job in app.jobs()] == [new.id]
    assert db.scalar("SELECT count(*) FROM @all_jobs WHERE args LIKE '%secret%'") == 0
    with pytest.raises(JobNotFound):
        app.cancel(old)


@pytest.mark.spec("R92")
@pytest.mark.parametrize("hours", range(0, 24, 7))
def test_at_any_hour_of_the_day_seven_days_are_seven_days(
    app: Duly, clock: ManualClock, echo: Any, hire: Hire, hours: int
):
    worker = hire()
    clock.advance(hours * 3600)
    jobs = [app.run(echo, "old") for _ in range(3)]
    worker.work()
    for _ in range(8 * 4):
        clock.advance(DAY / 4)
        app.run(echo, "newer")
        worker.work()
        tidy(app)
        age = clock.now() - jobs[0].record.completed_at  # type: ignore[operator]
        if age < 7 * DAY * 1000:
            assert all(_exists(app, job) for job in jobs)

    assert not any(_exists(app, job) for job in jobs)


@pytest.mark.spec("N41")
def test_jobs_that_have_finished_by_a_clock_that_was_ahead_are_kept_once_it_is_right(
    app: Duly, clock: ManualClock, echo: Any, hire: Hire
):
    worker = hire()
    clock.jump(3 * DAY)
    jobs = [app.run(echo, "ahead") for _ in range(3)]
    worker.work()
    clock.jump(-3 * DAY)
    tidy(app)
    assert all(_exists(app, job) for job in jobs)


@pytest.mark.spec("R92")
def test_unfinished_jobs_are_never_collected(app: Duly, clock: ManualClock, echo: Any, hire: Hire):
    gate = Gate()

    @app.action
    def wait(ctx: Ctx) -> str:
        gate.pass_through()
        return "after all"

    worker = hire()
    running, pending = app.run(wait), app.run_after(1000 * DAY, echo, "in time")
    worker.start_due()
    gate.wait_for_one()
    for _ in range(10):
        clock.advance(100 * DAY - 1)
        worker.beat()
        tidy(app)
    assert (running.state, pending.state) == (State.RUNNING, State.PENDING)

    gate.open()
    clock.advance(10)
    worker.work()
    assert running.result(0) == "after all"
    assert pending.result(0) == "in time"


@pytest.mark.spec("R92")
def test_the_newest_finished_job_of_every_function_outlives_the_rest(
    app: Duly, db: Database, clock: ManualClock, echo: Any, hire: Hire
):
    @app.mutation
    def other(tx: Tx) -> None:
        raise ValueError("failed, but the newest")

    worker = hire()
    for text in ("first", "second", "third"):
        newest = app.run(echo, text)
        worker.work()
        clock.advance(1)
    newest_other = app.run(other)
    worker.work()
    for _ in range(20):
        clock.advance(20 * DAY)
        tidy(app)

    kept = app.job(newest.id)
    assert kept.result(0) == "third"
    assert kept.cancel() is False
    assert app.job(newest_other.id).state == State.FAILED
    assert [job.id for job in app.jobs()] == [newest_other.id, newest.id]
    assert [job.id for job in app.jobs(state="succeeded")] == [newest.id]

    # A newer one takes its place.
    newer = app.run(echo, "fourth")
    worker.work()
    tidy(app)
    assert not _exists(app, newest)
    assert _exists(app, newest_other)
    assert app.job(newer.id).result(0) == "fourth"


@pytest.mark.spec("R92")
def test_exhausted_jobs_are_kept_thirty_days(
    app: Duly, clock: ManualClock, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    @app.action(retry=Retry(attempts=2, delay=0, jitter=0))
    def flaky(ctx: Ctx, ok: bool) -> None:
        if not ok:
            raise ConnectionError

    worker = hire()
    exhausted = app.run(flaky, False)
    worker.work()
    assert exhausted.state == State.FAILED
    plain = app.run(flaky, True)
    worker.work()
    clock.advance(1)
    app.run(flaky, True)
    worker.work()

    for _ in range(29):
        clock.advance(DAY)
        tidy(app)
        assert _exists(app, exhausted)
    assert not _exists(app, plain)
    assert [job.id for job in app.jobs(state="failed")] == [exhausted.id]
    clock.advance(2 * DAY)
    tidy(app)
    assert not _exists(app, exhausted)


@pytest.mark.spec("R92")
def test_both_lengths_are_settings(url: str, app: Duly, clock: ManualClock, hire: Hire):
    @app.action
    def plain(ctx: Ctx) -> None: ...

    @app.action(retry=Retry(attempts=1))
    def fail(ctx: Ctx) -> None:
        raise ValueError

    worker = hire()
    jobs = [app.run(plain), app.run(fail)]
    worker.work()
    clock.advance(1)
    app.run(plain)
    app.run(fail)
    worker.work()
    settings = {"retention": timedelta(days=2), "exhausted": timedelta(days=4)}

    clock.advance(1.9 * DAY)
    tidy(app, **settings)
    assert [_exists(app, job) for job in jobs] == [True, True]
    clock.advance(1.1 * DAY)
    tidy(app, **settings)
    assert [_exists(app, job) for job in jobs] == [False, True]
    clock.advance(2 * DAY)
    tidy(app, **settings)
    assert [_exists(app, job) for job in jobs] == [False, False]


@pytest.mark.spec("R92")
@pytest.mark.parametrize("retention", [timedelta(0), timedelta(days=-1)])
def test_a_retention_that_is_no_length_of_time_is_refused(retention: timedelta):
    with pytest.raises(InvalidOption, match="retention"):
        Duly("sqlite:///:memory:", retention=retention)
    with pytest.raises(InvalidOption, match="retention"):
        Duly("sqlite:///:memory:", exhausted_retention=retention)


@pytest.mark.spec("R92")
def test_a_long_history_goes_in_batches_and_leaves_the_newest_of_each_function(
    app: Duly, db: Database, clock: ManualClock, echo: Any, hire: Hire
):
    @app.action
    def rare(ctx: Ctx) -> None: ...

    worker = hire(concurrency=300)
    seldom = app.run(rare)
    worker.work()
    app.run_many(echo.bind(str(n)) for n in range(1200))
    app.cancel_all(echo)
    assert db.count("@history") == 1201
    clock.advance(9 * DAY)
    tidy(app)

    assert {job.function for job in app.jobs()} == {"echo", "rare"}
    assert len(app.jobs()) == 2
    assert _exists(app, seldom)


@pytest.mark.spec("R92")
@pytest.mark.parametrize("days", [9, 15, 16, 17, 20, 23, 24, 32, 40])
def test_after_a_long_time_off_what_is_old_goes_at_once(
    app: Duly, clock: ManualClock, echo: Any, hire: Hire, days: int
):
    """No janitor has cleaned up, and new jobs have finished before one does."""
    worker = hire()
    old = [app.run(echo, str(n)) for n in range(5)]
    worker.work()
    clock.advance(days * DAY)
    new = [app.run(echo, str(n)) for n in range(5)]
    worker.work()
    tidy(app)

    assert [_exists(app, job) for job in old] == [False] * 5
    assert [_exists(app, job) for job in new] == [True] * 5


@pytest.mark.spec("R92", "R218")
def test_a_clock_that_was_wrong_removes_nothing_early(
    app: Duly, clock: ManualClock, echo: Any, hire: Hire
):
    worker = hire()
    app.run(echo, "old")
    worker.work()
    clock.jump(5 * DAY)
    ahead = app.run(echo, "by a clock that was ahead")
    worker.work()
    clock.jump(-5 * DAY)
    back = app.run(echo, "after it was set right")
    worker.work()
    app.run(echo, "newest")
    worker.work()

    clock.advance(8 * DAY)
    tidy(app)
    assert _exists(app, ahead)
    assert not _exists(app, back)


# Expiry


@pytest.mark.spec("N23", "N18")
def test_a_job_that_has_not_started_in_time_expires(
    app: Duly, db: Database, clock: ManualClock, echo: Any, hire: Hire
):
    job = app.run_after(60, echo.using(expires=30), "too late")
    in_time = app.run_after(60, echo.using(expires=timedelta(hours=1)), "in time")
    at_instant = app.run(echo.using(expires=from_ms(clock.now() + 90_000)), "by a datetime")
    app.queues.pause("default")
    clock.advance(89.999)
    tidy(app)
    assert [j.state for j in (job, in_time, at_instant)] == [State.PENDING] * 3
    clock.advance(0.001)
    tidy(app)
    app.queues.resume("default")
    hire().work()

    for expired in (job, at_instant):
        assert expired.state == State.CANCELED
        assert expired.error is not None
        assert expired.error.kind == ErrorKind.EXPIRED
        assert expired.completed_at == from_ms(clock.now())
        assert expired.canceled_by is None
        with pytest.raises(JobCanceled):
            expired.result(0)
    assert in_time.result(0) == "in time"


@pytest.mark.spec("N23")
def test_an_expired_job_does_not_start_even_before_anybody_has_noticed(
    app: Duly, clock: ManualClock, echo: Any, hire: Hire
):
    job = app.run(echo.using(expires=30), "too late")
    clock.advance(30)
    worker = hire()
    worker.work()
    assert state_of(job) == State.PENDING
    tidy(app)
    assert state_of(job) == State.CANCELED

    just_in_time = app.run(echo.using(expires=30), "just in time")
    clock.advance(29.999)
    worker.work()
    assert just_in_time.result(0) == "just in time"


@pytest.mark.spec("N23")
def test_a_job_that_has_started_does_not_expire(app: Duly, clock: ManualClock, hire: Hire):
    gate = Gate()

    @app.action(expires=30)
    def wait(ctx: Ctx) -> str:
        gate.pass_through()
        return "took its time"

    job = app.run(wait)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    clock.advance(3600)
    worker.beat()
    tidy(app)
    gate.open()
    worker.work()

    assert job.result(0) == "took its time"


@pytest.mark.spec("N23")
def test_many_jobs_expire_in_batches(app: Duly, db: Database, clock: ManualClock, echo: Any):
    app.run_many(echo.using(expires=1).bind("x") for _ in range(1100))
    clock.advance(1)
    tidy(app)

    assert db.count("@jobs") == 0
    assert db.scalar("SELECT count(*) FROM @history WHERE error_kind = 'expired'") == 1100


@pytest.mark.spec("N23")
def test_a_job_that_has_started_and_waits_for_its_retry_no_longer_expires(
    app: Duly, clock: ManualClock, hire: Hire
) -> None:
    @app.action(expires=30, retry=Retry(attempts=2, delay=60, jitter=0))
    def fails_once(ctx: Ctx) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    job = app.run(fails_once)
    worker = hire()
    worker.work()
    clock.advance(59)
    tidy(app)
    assert job.state == State.PENDING
    clock.advance(1)
    worker.work()
    assert job.result() == 2
