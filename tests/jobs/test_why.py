"""Why a job has not run: the reasons in order, as data and as a sentence."""

from typing import Any

import pytest

from duly import Ctx, Duly, JobNotFound, Limit, ManualClock, Retry, Tx
from duly.model.why import Cause
from tests.jobs.support import Database, Gate, Hire, tidy

pytestmark = pytest.mark.spec("N6")


def causes(app: Duly, job: Any) -> list[str]:
    return [reason.cause for reason in app.why(job).reasons]


@pytest.fixture
def send(app: Duly):
    @app.action(retry=Retry(attempts=3, delay=60, jitter=0))
    def send(ctx: Ctx, to: str = "ada") -> None:
        if to == "nobody":
            raise ValueError("no such person")

    return send


def test_nobody_is_there_to_run_it(app: Duly, send, hire: Hire):
    job = app.run(send)
    assert str(app.why(job)) == "send has not run yet: no worker is running."
    hire().work()
    assert str(app.why(job)) == "send is not waiting: it succeeded."


def test_no_worker_knows_its_function(app: Duly, send, hire: Hire, url: str):
    other = Duly(url, name="other", clock=app.clock)

    @other.action
    def something_else(ctx: Ctx) -> None: ...

    hire(other)
    job = app.run(send)
    tidy(app)
    why = app.why(job.id)
    assert [reason.cause for reason in why.reasons] == [Cause.NO_WORKER_HAS_IT]
    assert why.text == "send has not run yet: no worker has send (1 running)."
    other.close()


def test_it_is_not_due_yet_and_its_queue_is_paused(app: Duly, send, hire: Hire):
    hire()
    job = app.run_after(60, send)
    assert causes(app, job) == [Cause.NOT_DUE]
    assert app.why(job).reasons[0].until == app.clock.now() + 60_000
    app.queues.pause("default", by="ada", note="maintenance")
    assert causes(app, job) == [Cause.NOT_DUE, Cause.QUEUE_PAUSED]
    assert "queue 'default' is paused by ada (maintenance)" in app.why(job).text


def test_it_waits_for_its_next_attempt(app: Duly, send, hire: Hire, clock: ManualClock):
    job = app.run(send, "nobody")
    hire().work()
    why = app.why(job)
    assert [reason.cause for reason in why.reasons] == [Cause.RETRY_LATER]
    assert "attempt 1 failed (ValueError: no such person), the next is due at" in why.text


def test_its_function_is_paused(app: Duly, send, hire: Hire):
    hire()
    job = app.run(send)
    app.functions.pause(send, by="ada")
    assert causes(app, job) == [Cause.FUNCTION_PAUSED]
    tidy(app)
    assert str(app.why(job)) == "send has not run yet: its function is paused by ada."


def test_its_arguments_no_longer_fit(app: Duly, send, hire: Hire, url: str):
    job = app.run(send)
    newer = Duly(url, clock=app.clock)

    @newer.action(name="send")
    def send_two(ctx: Ctx, subject: str) -> None: ...

    hire(newer).work()
    assert causes(app, job) == [Cause.SIGNATURE]
    assert "stored argument 'subject' no longer fits: missing" in app.why(job).text
    newer.close()


def test_it_waits_for_other_jobs(app: Duly, send, hire: Hire):
    @app.action
    def done(ctx: Ctx, job_id: str) -> None: ...

    @app.mutation
    def all_done(tx: Tx, batch_id: str) -> None: ...

    hire()
    job = app.run_after(60, send.using(on_complete=done))
    batch = app.batch([send.bind(), send.bind()], on_complete=all_done)
    (hook,) = app.jobs(function=done)
    assert causes(app, hook) == [Cause.WAITS_FOR_JOBS]
    assert app.why(hook).reasons[0].jobs == (job.id,)
    assert str(app.why(batch.id)) == "all_done has not run yet: it is waiting for 2 jobs to end."


def test_every_worker_is_busy(app: Duly, hire: Hire):
    gate = Gate()

    @app.action
    def block(ctx: Ctx) -> None:
        gate.pass_through()

    first = app.run(block)
    worker = hire(concurrency=1)
    worker.start_due()
    gate.wait_for_one()
    second = app.run(block)
    assert causes(app, first) == [Cause.RUNNING]
    assert str(app.why(second)) == ("block has not run yet: all 1 worker threads are busy.")
    gate.open()
    worker.work()


def test_nobody_serves_its_queue(app: Duly, send, hire: Hire):
    hire(queues=["other"])
    assert causes(app, app.run(send)) == [Cause.QUEUE_NOT_SERVED]


def test_it_is_about_to_start(app: Duly, send, hire: Hire):
    hire()
    assert causes(app, app.run(send)) == [Cause.ABOUT_TO_START]


def test_a_job_that_is_not_there(app: Duly):
    with pytest.raises(JobNotFound):
        app.why("00000000-0000-7000-8000-000000000000")


def test_its_key_is_in_use(app: Duly, hire: Hire):
    gate = Gate()

    @app.action(limit=Limit("bank", at_once=1))
    def pay(ctx: Ctx) -> None:
        gate.pass_through()

    first, second = app.run(pay), app.run(pay)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    worker.start_due()
    why = app.why(second)
    assert [reason.cause for reason in why.reasons] == [Cause.KEY_IN_USE]
    assert why.text == f"pay has not run yet: its key 'bank' is in use by job {first.id}."
    gate.open()
    worker.work()


def test_a_slot_of_its_key_is_free_and_it_cannot_take_it(app: Duly, hire: Hire, db: Database):
    """The jobs that block it are named, and never jobs that do not run."""

    @app.action(limit=Limit("bank", at_once=1))
    def pay(ctx: Ctx) -> None: ...

    hire(queues=["default"])
    app.queues.pause("p", by="ada")
    paused, unserved = app.run(pay.using(queue="p")), app.run(pay.using(queue="u"))
    first, second = app.run(pay), app.run(pay)
    db.execute("UPDATE @jobs SET hold = 'key'")
    assert app.why(paused).text == "pay has not run yet: queue 'p' is paused by ada."
    assert causes(app, unserved) == [Cause.QUEUE_NOT_SERVED]
    assert causes(app, first) == [Cause.ABOUT_TO_START]
    why = app.why(second)
    assert [(r.cause, r.jobs) for r in why.reasons] == [(Cause.KEY_IN_USE, (first.id,))]
    assert why.text == (
        "pay has not run yet: its key 'bank' has a free slot, but"
        f" job {first.id} is ahead of it in line."
    )
    app.functions.pause(pay)
    assert causes(app, first) == [Cause.FUNCTION_PAUSED]


def test_it_waits_for_the_rate_of_its_limit(app: Duly, hire: Hire, clock: ManualClock):
    @app.action(limit=Limit(rate=1, per=10))
    def pay(ctx: Ctx) -> None: ...

    jobs = [app.run(pay) for _ in range(3)]
    hire().work()
    (reason,) = app.why(jobs[2]).reasons
    assert (reason.cause, reason.until) == (Cause.KEY_IN_USE, clock.now() + 10_000)
    assert reason.text.startswith("the rate of its limit allows the next job to start at ")
