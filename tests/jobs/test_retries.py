"""A failed job is retried if its function has a `Retry`, after the delay that it gives."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, ManualClock, NonRetryable, Retry, RetryAfter, State, Tx
from duly.errors import InvalidOption
from duly.model.job import Claim, ErrorKind, Finish, Raised, settle
from duly.model.retry import encode_retry
from tests.jobs.child import make_app, run_until_killed
from tests.jobs.support import Database, Gate, Hire, ManualWorker, prepare, state_of

FIVE = Retry(attempts=5)


def failed(attempt: int, retry: Retry | None = FIVE, **failure: Any) -> Any:
    """A job after its attempt has failed."""
    claim = Claim(
        id="id",
        token=1,
        attempt=attempt,
        crashes=0,
        system_retries=0,
        function="f",
        kind="action",
        queue="default",
        priority=5,
        run_at=0,
        timeout_ms=None,
        retry=encode_retry(retry),
        args="{}",
    )

    def at(chance: float) -> Any:
        return settle(claim, Raised(ErrorKind.USER, "boom", **failure), 0, chance)

    return at


@pytest.mark.spec("R174")
@pytest.mark.parametrize("attempt", [1, 2, 3, 4])
def test_the_default_delay_after_attempt_n_is_two_to_the_n_plus_up_to_a_second(attempt: int):
    end = failed(attempt)
    assert end(0.0).run_at == 1000 * 2**attempt
    assert end(0.999).run_at == 1000 * 2**attempt + 999


@pytest.mark.spec("R176")
def test_the_delay_is_capped_jitter_included():
    end = failed(20, Retry(attempts=50))
    assert (end(0.0).run_at, end(0.999).run_at) == (3_600_000, 3_600_000)
    almost = failed(1, Retry(attempts=5, delay=3599.5))
    assert almost(0.999).run_at == 3_600_000


@pytest.mark.spec("R175")
def test_the_fifth_failure_is_the_last(app: Duly, hire: Hire, clock: ManualClock):
    attempts = []

    @app.action(retry=FIVE)
    def fail(ctx: Ctx) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("boom")

    job = app.run(fail)
    worker = hire()
    for _ in range(10):
        worker.work()
        clock.advance(3600)
    assert attempts == [1, 2, 3, 4, 5]
    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.message == "ValueError: boom (after 5 attempts)"


@pytest.mark.spec("R177")
@pytest.mark.parametrize(("asked", "waits"), [(90, 90), (1e9, 3600), (0, 0), (-5, 0)])
def test_the_time_that_the_function_asks_for_is_honoured_within_the_cap(asked, waits):
    assert failed(1, after=asked)(0.5).run_at == waits * 1000


@pytest.mark.spec("R177")
def test_retry_after_in_a_body_puts_the_next_attempt_off(app: Duly, hire: Hire, clock: ManualClock):
    @app.action(retry=FIVE, retry_on=ConnectionError)
    async def call(ctx: AsyncCtx) -> str:
        if ctx.attempt == 1:
            raise RetryAfter(90)
        return "answered"

    job = app.run(call)
    worker = hire()
    worker.work()
    assert job.error is not None
    assert "retry after 90 s" in job.error.message
    clock.advance(89)
    worker.work()
    assert job.state == State.PENDING
    clock.advance(1)
    worker.work()
    assert job.result(0) == "answered"


@pytest.mark.spec("R177")
@pytest.mark.parametrize("given", ["soon", "nan", float("nan"), None, "Wed, 21 Oct 2026"])
def test_retry_after_takes_a_number_also_as_text_and_nothing_else(given):
    assert RetryAfter("120", "busy").seconds == 120
    assert str(RetryAfter("1.5")) == "retry after 1.5 s"
    with pytest.raises(InvalidOption, match="seconds: must be a number, not "):
        RetryAfter(given)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exception_that_nobody_understands_fails_its_job_and_nothing_else(
    app: Duly, hire: Hire, is_async: bool, caplog: pytest.LogCaptureFixture
):
    class Silent(RetryAfter):
        def __init__(self) -> None:
            """And has no seconds."""

    class Odd(RetryAfter):
        def __init__(self) -> None:
            super().__init__(1, "odd")
            self.seconds: Any = "soon"

    def body(which: str) -> str:
        if which != "good":
            raise Odd() if which == "odd" else Silent()
        return which

    @app.action(retry=Retry(attempts=2, delay=0, jitter=0))
    def act(ctx: Ctx, which: str) -> str:
        return body(which)

    @app.action(retry=Retry(attempts=2, delay=0, jitter=0))
    async def act_async(ctx: AsyncCtx, which: str) -> str:
        return body(which)

    worker = hire(concurrency=1)
    states: list[Any] = []
    for which in ("silent", "odd", "good"):
        job = app.run(act_async, which) if is_async else app.run(act, which)
        worker.work()
        states.append((job.state, job.attempt))
        if which == "odd":
            assert job.error is not None
            assert job.error.message == "Odd: odd"

    assert states == [(State.FAILED, 2), (State.FAILED, 1), (State.SUCCEEDED, 1)]
    assert "cannot be shown in full" in caplog.text
    assert "could not be processed; the job fails" in caplog.text


def test_retry_after_without_a_policy_is_a_failure(app: Duly, hire: Hire):
    @app.action
    def call(ctx: Ctx) -> None:
        raise RetryAfter(1)

    job = app.run(call)
    hire().work()
    assert job.state == State.FAILED


@pytest.mark.spec("R178")
def test_a_non_retryable_error_fails_at_once(app: Duly, hire: Hire, db: Database):
    class Declined(NonRetryable):
        pass

    @app.action(retry=FIVE)
    def pay(ctx: Ctx) -> None:
        raise Declined("no money")

    @app.mutation(retry=FIVE)
    def pay_here(tx: Tx) -> None:
        raise NonRetryable("no money")

    jobs = [app.run(pay), app.run(pay_here)]
    hire().work()
    for job in jobs:
        assert (job.state, job.attempt) == (State.FAILED, 1)
        assert job.error is not None
        assert "no money" in job.error.message
    assert db.execute("SELECT exhausted FROM @history") in ([(0,)] * 2, [(False,)] * 2)


def test_only_the_exceptions_that_were_named_are_worth_another_attempt(
    app: Duly, hire: Hire, clock: ManualClock
):
    @app.action(retry=FIVE, retry_on=(ConnectionError, TimeoutError))
    def call(ctx: Ctx, error: str) -> None:
        raise {"reset": ConnectionResetError, "value": ValueError}[error]

    reset, value = app.run(call, "reset"), app.run(call, "value")
    hire().work()
    assert (reset.state, value.state) == (State.PENDING, State.FAILED)


@pytest.mark.parametrize("wrong", ["ValueError", [1], [int]])
def test_retry_on_takes_classes_of_exceptions(app: Duly, wrong):
    with pytest.raises(InvalidOption, match="retry_on"):
        app.action(retry=FIVE, retry_on=wrong)


@pytest.mark.spec("R179")
def test_the_number_of_an_attempt_survives_a_crash_between_two(url: str, tmp_path: Path):
    marks = tmp_path / "marks"
    app = prepare(make_app(url, marks))
    job = app.run(app.function("fail_once"))
    run_until_killed(url, marks, "finish.committed:1")  # the first attempt has failed
    assert (state_of(job), job.attempt) == (State.PENDING, 1)

    later = make_app(url, marks, ManualClock(app.clock.now() + 3_600_000))
    worker = ManualWorker(later)
    worker.work()
    assert job.result(0) == 2
    assert marks.read_text().split() == ["attempt-1", "attempt-2"]
    worker.stop()
    for each in (app, later):
        each.close()


def test_an_attempt_that_a_stop_interrupts_is_given_back_and_not_counted(app: Duly, hire: Hire):
    gate = Gate()

    @app.action(retry=FIVE)
    def again(ctx: Ctx) -> int:
        gate.pass_through()
        return ctx.attempt

    @app.action
    def once(ctx: Ctx) -> None:
        gate.pass_through()

    jobs = [app.run(again), app.run(once)]
    app.start()
    gate.wait_for_one()
    gate.wait_for_one()
    app.stop(drain=0)
    assert [(job.state, job.attempt) for job in jobs] == [(State.PENDING, 0), (State.FAILED, 1)]
    gate.open()
    hire().work()
    assert jobs[0].result(0) == 1
    assert jobs[1].error is not None
    assert jobs[1].error.kind == ErrorKind.WORKER_LOST


@pytest.mark.spec("R174")
def test_jobs_wait_as_long_as_their_list_says(app: Duly, hire: Hire, clock: ManualClock):
    started: list[float] = []

    @app.action(retry=Retry(delay=[1, 10, 60], jitter=0))
    def fail(ctx: Ctx) -> None:
        started.append(clock.now() / 1000)
        raise ValueError("boom")

    app.run(fail)
    worker = hire()
    for _ in range(100):
        worker.work()
        clock.advance(1)
    assert [b - a for a, b in pairwise(started)] == [1, 10, 60]


def test_a_policy_from_before_a_field_was_renamed_still_allows_its_attempts(
    app: Duly, hire: Hire, db: Database, clock: ManualClock
):
    @app.action(retry=FIVE)
    def fails(ctx: Ctx) -> None:
        raise ValueError("on purpose")

    job, worker = app.run(fails), hire(concurrency=1)
    db.execute("UPDATE @jobs SET retry = ?", '{"attempts":2,"base":60.0}')
    worker.work()
    assert job.state is State.PENDING
    clock.advance(60)
    worker.work()
    assert (job.state, job.attempt) == (State.FAILED, 2)


def test_a_policy_that_is_used_up_is_exhausted():
    end = failed(5)(0.5)
    assert isinstance(end, Finish)
    assert end.exhausted
    assert not failed(5, final=True)(0.5).exhausted
    assert not failed(1, None)(0.5).exhausted


@pytest.mark.parametrize("text", ["not json", "[]", '{"attempts": "many"}', '{"attempts": -1}'])
def test_a_stored_policy_that_cannot_be_read_is_none(
    app: Duly, hire: Hire, db: Database, text: str
):
    @app.action(retry=FIVE)
    def fails(ctx: Ctx) -> None:
        raise ValueError("on purpose")

    job, worker = app.run(fails), hire(concurrency=1)
    db.execute("UPDATE @jobs SET retry = ?", text)
    worker.work()
    assert job.state is State.FAILED
