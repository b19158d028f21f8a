"""The states of a job, and what can be read in each."""

from datetime import timedelta
from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, ErrorKind, Kind, ManualClock, Retry, State, Tx
from duly.clock import from_ms
from duly.errors import JobCanceled, JobFailed, ResultTimeout
from duly.model.job import LEGAL
from tests.jobs.support import Database, Gate, Hire, ManualWorker


@pytest.mark.spec("R71")
def test_the_legal_changes_are_these():
    assert {(a.value, b.value) for a, b in LEGAL} == {
        ("pending", "running"),
        ("pending", "canceled"),
        ("running", "pending"),
        ("running", "succeeded"),
        ("running", "failed"),
        ("running", "canceled"),
    }


@pytest.mark.spec("R71")
def test_a_job_passes_from_pending_through_running_to_its_end(app: Duly, hire: Hire):
    gate = Gate()

    @app.action
    def wait(ctx: Ctx) -> str:
        gate.pass_through()
        return "done"

    job = app.run(wait)
    worker = hire()
    seen = [job.state]
    worker.start_due()
    gate.wait_for_one()
    seen.append(job.state)
    gate.open()
    worker.work()
    seen.append(job.state)

    assert seen == [State.PENDING, State.RUNNING, State.SUCCEEDED]


@pytest.mark.spec("R71")
def test_a_retry_is_pending_again_with_a_later_time(
    app: Duly, clock: ManualClock, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.runtime.outcomes.random.random", lambda: 0.0)

    @app.action(retry=Retry(attempts=2, delay=10))
    def flaky(ctx: Ctx) -> int:
        if ctx.attempt == 1:
            raise ConnectionError("try again")
        return ctx.attempt

    job = app.run(flaky)
    start = job.run_at
    worker = hire()
    worker.work()
    assert job.state == State.PENDING
    assert job.run_at == start + timedelta(seconds=10)
    assert job.scheduled_at == start
    assert job.attempt == 1
    assert job.error is not None
    assert job.error.message == "ConnectionError: try again"
    assert job.completed_at is None

    clock.advance(10)
    worker.work()
    assert job.result(0) == 2
    assert job.error is None
    assert job.scheduled_at == start


@pytest.mark.spec("R71")
def test_no_other_state_or_change_can_be_stored(app: Duly, db: Database, hire: Hire):
    """The database itself refuses, whichever program asks."""

    @app.action
    def wave(ctx: Ctx) -> None: ...

    done, pending = app.run(wave), app.run_after(60, wave)
    hire().work()

    for change in (
        "UPDATE @jobs SET state = 'succeeded'",
        "UPDATE @jobs SET state = 'paused'",
        "UPDATE @jobs SET state = 'running'",
        "UPDATE @jobs SET token = 1",
        "UPDATE @jobs SET state = 'running', token = 1",
        "UPDATE @jobs SET state = 'running', token = 1,"
        " worker_id = '00000000-0000-7000-8000-000000000000'",
        "UPDATE @history SET state = 'failed'",
        "UPDATE @history SET completed_at = 0",
        "UPDATE @history SET result = '1'",
    ):
        with pytest.raises(Exception, match=r"(?i)constraint|duly:"):
            db.execute(change)

    assert done.state == State.SUCCEEDED
    assert pending.state == State.PENDING


@pytest.mark.spec("R71")
def test_only_what_was_running_can_be_stored_as_succeeded_or_failed(
    app: Duly, db: Database, hire: Hire
):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    app.run_after(60, wave)
    columns = (
        "id, function, kind, queue, priority, token, attempt, crashes, system_retries, created_at,"
        " scheduled_at, run_at, args"
    )
    bucket, value = ("", "") if db.is_sqlite else (", bucket", ", 0")
    for state in ("succeeded", "failed", "pending", "running", "done"):
        with pytest.raises(Exception, match=r"(?i)constraint"):
            db.execute(
                f"INSERT INTO @history ({columns}, completed_at, state{bucket})"
                f" SELECT {columns}, 1, '{state}'{value} FROM @jobs"
            )

    assert db.count("@history") == 0


@pytest.mark.spec("R72")
def test_a_running_function_sees_its_own_job_as_running(app: Duly, hire: Hire):
    seen: dict[str, Any] = {}

    @app.mutation
    def in_mutation(tx: Tx) -> None:
        assert tx.job_id is not None
        seen["mutation"] = tx.job(tx.job_id).state

    @app.action
    def in_action(ctx: Ctx) -> None:
        seen["action"] = ctx.job(ctx.job_id).state

    @app.action
    async def in_async_action(ctx: AsyncCtx) -> None:
        seen["async"] = await (await ctx.job(ctx.job_id)).state()

    for function in (in_mutation, in_action, in_async_action):
        app.run(function)
    hire().work()

    assert seen == dict.fromkeys(("mutation", "action", "async"), State.RUNNING)


@pytest.mark.spec("R73")
def test_completion_is_set_only_at_the_end_and_the_scheduled_time_never_changes(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action(retry=Retry(attempts=2))
    def work(ctx: Ctx) -> None:
        gate.pass_through()
        if ctx.attempt == 1:
            raise KeyError("once")

    job = app.run_after(5, work)
    scheduled = job.scheduled_at
    worker = hire()
    assert (job.started_at, job.completed_at) == (None, None)
    clock.advance(7)
    worker.start_due()
    gate.wait_for_one()
    assert (job.started_at, job.completed_at) == (scheduled + timedelta(seconds=2), None)
    gate.open()
    worker.work()
    assert (job.state, job.started_at, job.completed_at) == (State.PENDING, None, None)
    clock.advance(3600)
    worker.work()

    assert job.completed_at == from_ms(clock.now())
    assert app.job(job.id).scheduled_at == scheduled


@pytest.mark.spec("R73", "R83")
def test_a_canceled_job_is_complete(app: Duly, clock: ManualClock):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    job = app.run_after(60, wave)
    clock.advance(1)
    job.cancel()

    assert job.completed_at == from_ms(clock.now())
    assert job.started_at is None


@pytest.mark.spec("R74", "N18")
def test_a_failed_job_carries_its_error(app: Duly, hire: Hire):
    @app.action
    def explode(ctx: Ctx) -> None:
        raise ValueError("the fuse was short")

    job = app.run(explode)
    hire().work()

    assert job.error is not None
    assert job.error.kind == ErrorKind.USER
    assert job.error.message == "ValueError: the fuse was short"
    assert job.error.traceback is not None
    assert "in explode" in job.error.traceback
    with pytest.raises(JobFailed, match="the fuse was short") as raised:
        job.result()
    assert (raised.value.kind, raised.value.job_id) == ("user", job.id)


@pytest.mark.spec("R74", "N36")
def test_an_error_text_is_made_storable(app: Duly, hire: Hire):
    stored = {
        "a\0b": "ValueError: a\\0b",
        "half \ud83d a pair": "ValueError: half \\ud83d a pair",
        "whole 😀 character": "ValueError: whole 😀 character",
        "": "ValueError",
        "x" * 1_000_000: "ValueError: " + "x" * (4_000 - len("ValueError: ") - 1) + "…",
    }

    @app.mutation
    def mutate(tx: Tx, n: int) -> None:
        raise ValueError(list(stored)[n])

    @app.action
    def act(ctx: Ctx, n: int) -> None:
        raise ValueError(list(stored)[n])

    jobs = [app.run(function, n) for function in (mutate, act) for n in range(len(stored))]
    hire(concurrency=20).work()

    for job, message in zip(jobs, [*stored.values()] * 2, strict=True):
        assert job.state == State.FAILED
        assert job.error is not None
        assert (job.error.kind, job.error.message) == (ErrorKind.USER, message)
        assert job.error.traceback is not None
        assert len(job.error.traceback) <= 16_000


@pytest.mark.spec("R74")
def test_an_exception_that_cannot_be_shown_still_fails_the_job(app: Duly, hire: Hire):
    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    @app.action
    def act(ctx: Ctx) -> None:
        raise Shy

    @app.mutation
    def mutate(tx: Tx) -> None:
        raise Shy

    jobs = [app.run(act), app.run(mutate)]
    hire().work()

    for job in jobs:
        assert job.error is not None
        assert job.error.message.startswith("Shy: ")


@pytest.mark.spec("R74")
@pytest.mark.parametrize("way_out", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_way_out_of_a_body_escapes_the_worker(
    app: Duly, db: Database, hire: Hire, way_out: type[BaseException]
):
    @app.action
    def act(ctx: Ctx) -> None:
        raise way_out("leaving")

    @app.mutation
    def mutate(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        raise way_out("leaving")

    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))

    worker = hire()
    first = [app.run(note, "1"), app.run(mutate), app.run(act), app.run(note, "2")]
    worker.work()
    alone = app.run(mutate)
    worker.work()
    last = app.run(note, "3")
    worker.work()

    assert [job.state for job in first] == ["succeeded", "failed", "failed", "succeeded"]
    assert alone.state == State.FAILED
    assert last.state == State.SUCCEEDED
    assert db.notes() == ["1", "2", "3"]


# Reading


def test_a_job_tells_everything_about_itself(app: Duly, clock: ManualClock, hire: Hire):
    @app.action(queue="mail", priority=7, owner="ada", tags=["a", "b"], timeout=30)
    def send(ctx: Ctx, to: str) -> None: ...

    job = app.run(send, "bob")
    hire().work()
    record = app.job(job.id).record

    assert record.function == job.function == "send"
    assert record.kind == Kind.ACTION
    assert (record.queue, record.priority, record.owner) == ("mail", 7, "ada")
    assert record.tags == '["a","b"]'
    assert record.args == '{"to":"bob"}'
    assert record.timeout_ms == 30_000
    assert record.attempt == job.attempt == 1
    assert record.worker_id is not None


def test_results_wait_fail_and_cancel_with_their_own_errors(app: Duly, hire: Hire):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    pending = app.run_after(60, wave)
    canceled = app.run_after(60, wave)
    canceled.cancel()

    with pytest.raises(ResultTimeout, match=r"is still pending after 0\.01 s"):
        pending.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        pending.result(timeout=0)
    with pytest.raises(JobCanceled, match="canceled by operator"):
        canceled.result()


def test_lists_come_newest_first_in_pages_across_live_and_finished(app: Duly, hire: Hire):
    @app.action
    def one(ctx: Ctx) -> None: ...

    @app.action(owner="ada", queue="other")
    def two(ctx: Ctx) -> None: ...

    first = [app.run(function) for function in (one, two, one, two)]
    hire().work()
    jobs = first + [app.run(function) for function in (one, two, one, two)]
    newest_first = [job.id for job in reversed(jobs)]

    pages: list[list[str]] = []
    before = None
    while page := app.jobs(before=before, limit=3):
        pages.append([job.id for job in page])
        before = page[-1].id
    assert [len(page) for page in pages] == [3, 3, 2]
    assert [job_id for page in pages for job_id in page] == newest_first

    twos = newest_first[0::2]
    assert [j.id for j in app.jobs(function=two)] == twos
    assert [j.id for j in app.jobs(function="two")] == twos
    assert [j.id for j in app.jobs(owner="ada")] == twos
    assert [j.id for j in app.jobs(queue="other")] == twos
    assert [j.id for j in app.jobs(state=State.PENDING)] == newest_first[:4]
    assert [j.id for j in app.jobs(state="succeeded", function=two)] == twos[2:]
    assert app.jobs(function="nobody") == []


def test_handles_of_one_job_are_equal(app: Duly):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    job = app.run(wave)

    assert app.job(job.id) == job
    assert len({job, app.job(job.id)}) == 1
    assert app.run(wave) != job


def test_a_job_stored_as_the_other_kind_is_held_until_the_code_fits_again(
    url: str, clock: ManualClock
) -> None:
    before, after = Duly(url, clock=clock), Duly(url, clock=clock)
    before.migrate()

    @before.mutation(name="send")
    def send_once(tx: Tx) -> None: ...

    @after.action(name="send")
    def send_maybe(ctx: Ctx) -> None: ...

    job = before.run(send_once)
    worker = ManualWorker(after)
    worker.work()
    assert (job.state, job.record.hold, job.attempt) == (State.PENDING, "signature", 0)
    worker.stop()

    fitting = ManualWorker(before)
    fitting.work()
    assert job.state == State.SUCCEEDED
    fitting.stop()
    before.close()
    after.close()
