"""What a job reports about itself: its progress and its log lines."""

import asyncio
import logging
import math
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import pytest

from duly import (
    AsyncCtx,
    Canceled,
    Ctx,
    Duly,
    LogLine,
    ManualClock,
    Progress,
    Redact,
    Retry,
    State,
    Tx,
)
from duly.clock import from_ms
from duly.errors import InvalidOption, JobNotFound, StoreUnavailable
from duly.model.progress import (
    MAX_ATTEMPTS,
    MAX_LINE,
    MAX_LINES,
    MAX_NOTE,
    ProgressReport,
    revision_of,
)
from duly.runtime.reports import Reports
from duly.testing import ctx as made_ctx
from duly.testing import drain
from tests.jobs.support import (
    DAY,
    PATIENCE,
    Database,
    Gate,
    Hire,
    rescue_the_dead,
    state_of,
    tidy,
    wait_until,
)

users_log = logging.getLogger("shop.orders")
NOBODY = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def _log_everything() -> Iterator[None]:
    users_log.setLevel(logging.DEBUG)
    yield
    users_log.setLevel(logging.NOTSET)


@pytest.fixture
def writes(app: Duly, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reports of progress went into each write."""
    sizes: list[int] = []
    report = app.store.report

    def counted(progress: Any, lines: Any, workflows: Any) -> None:
        sizes.append(len(progress))
        report(progress, lines, workflows)

    monkeypatch.setattr(app.store, "report", counted)
    return sizes


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


# Progress ----------------------------------------------------------------------------------------


def test_progress_is_seen_by_everybody(app: Duly, hire: Hire, clock: ManualClock):
    gate = Gate()

    @app.action
    def work(ctx: Ctx) -> None:
        ctx.progress(0.5, "half")
        gate.pass_through()

    job = app.run(work)
    assert job.progress is None
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    worker.worker._reports.one_pass()

    assert job.progress == Progress(0.5, "half", from_ms(clock.now()))
    gate.open()
    worker.work()
    assert job.progress == Progress(1, "half", from_ms(clock.now()))


def test_the_last_value_is_there_when_the_job_has_ended(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None:
        for step in range(100):
            ctx.progress(step / 100)
        ctx.progress(1, "done")

    job = app.run(work)
    hire().work()

    assert job.state == State.SUCCEEDED
    assert job.progress is not None
    assert (job.progress.value, job.progress.note) == (1.0, "done")


@pytest.mark.spec("N51")
def test_progress_ends_at_one_when_the_job_succeeds(app: Duly, hire: Hire):
    @app.action
    def count(ctx: Ctx, until: int) -> None:
        for step in range(until):
            ctx.progress(step / until, f"step {step}")

    @app.action(retry=Retry(attempts=2, delay=0, jitter=0))
    def reports_only_at_first(ctx: Ctx) -> None:
        if ctx.attempt == 1:
            ctx.progress(0.3)
            raise ValueError("again")

    job, silent, retried = app.run(count, 4), app.run(count, 0), app.run(reports_only_at_first)
    worker = hire()
    worker.work()
    worker.work()

    assert {each.state for each in (job, silent, retried)} == {State.SUCCEEDED}
    assert job.progress is not None
    assert (job.progress.value, job.progress.note) == (1, "step 3")
    [*_, last] = job.watch(timeout=30)
    assert (last.state, last.progress, last.note) == ("succeeded", 1, "step 3")
    assert silent.progress is None, "a job that does not use it has none"
    assert retried.progress is None


def test_the_last_value_of_a_failed_job_is_there_too(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None:
        ctx.progress(0.7)
        raise ValueError("no")

    job = app.run(work)
    hire().work()

    assert job.state == State.FAILED
    assert job.progress is not None
    assert job.progress.value == 0.7


def test_a_thousand_updates_cost_one_write(app: Duly, hire: Hire, writes: list[int]):
    @app.action
    def work(ctx: Ctx) -> None:
        for step in range(1000):
            ctx.progress(step / 1000, str(step))

    jobs = [app.run(work) for _ in range(3)]
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    worker.work()

    assert writes == [3]
    assert [job.progress.note for job in jobs if job.progress] == ["999"] * 3


def test_a_process_writes_at_most_four_times_a_second(
    app: Duly, clock: ManualClock, hire: Hire, writes: list[int]
):
    gate, go_on = Gate(), threading.Semaphore(0)
    said = threading.Semaphore(0)

    @app.action
    def work(ctx: Ctx) -> None:
        for step in range(100):
            go_on.acquire()
            ctx.progress(step / 100)
            said.release()
        gate.pass_through()

    app.run(work)
    worker = hire()
    reports = worker.worker._reports
    worker.start_due()
    for _ in range(100):
        go_on.release()
        said.acquire()
        reports.one_pass()
        clock.advance(0.01)

    assert writes == [1, 1, 1, 1]
    gate.open()
    worker.work()


def test_the_end_of_a_job_writes_nothing_for_the_others(app: Duly, hire: Hire, writes: list[int]):
    gate = Gate()

    @app.action
    def long(ctx: Ctx) -> None:
        ctx.progress(0.1)
        gate.pass_through()

    @app.action
    def short(ctx: Ctx) -> None: ...

    app.run(long)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    for _ in range(5):
        job = app.run(short)
        worker.start_due()
        worker.wait_for(job)

    assert writes == []
    gate.open()
    worker.work()
    assert writes == [1]


def test_nothing_is_written_for_jobs_that_say_nothing(app: Duly, hire: Hire, writes: list[int]):
    @app.action
    def work(ctx: Ctx) -> None: ...

    app.run(work)
    hire().work()

    assert writes == []


def test_an_async_action_awaits_its_progress(app: Duly, hire: Hire):
    @app.action
    async def work(ctx: AsyncCtx) -> None:
        await ctx.progress(0.25, "a quarter")
        ctx.log("from a task")

    job = app.run(work)
    hire().work()

    async def look() -> tuple[Progress | None, list[LogLine]]:
        found = await app.aio.job(job.id)
        return await found.progress(), await found.logs()

    progress, lines = asyncio.run(look())
    assert progress is not None
    assert (progress.value, progress.note) == (1, "a quarter")
    assert texts(lines) == ["from a task"]


@pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf, "0.5", None, True])
def test_progress_is_a_number_from_0_to_1(app: Duly, value: Any):
    with pytest.raises(InvalidOption, match="progress"):
        made_ctx(app).progress(value)


def test_a_note_is_text(app: Duly):
    note: Any = 7
    with pytest.raises(InvalidOption, match="note"):
        made_ctx(app).progress(0.5, note)
    with pytest.raises(InvalidOption, match="log"):
        made_ctx(app).log(note)
    with pytest.raises(InvalidOption, match="level"):
        made_ctx(app).log("text", level="loud")


def test_progress_raises_once_the_job_was_canceled(app: Duly, hire: Hire):
    gate, raised = Gate(), threading.Event()

    @app.action
    def work(ctx: Ctx) -> None:
        ctx.progress(0.5)
        gate.pass_through()
        try:
            ctx.progress(0.6)
        except Canceled:
            raised.set()
            raise

    job = app.run(work)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    worker.worker._reports.flush()
    assert job.cancel()
    worker.beat()
    gate.open()
    worker.work()

    assert raised.is_set()
    assert job.progress is not None
    assert job.progress.value == 0.5


def test_a_stale_attempt_never_overwrites_a_newer_one(app: Duly, hire: Hire):
    """A worker that was taken for dead continues, and reports progress."""
    gate = Gate()

    @app.action(retry=Retry(attempts=2, delay=0, jitter=0))
    def work(ctx: Ctx) -> None:
        if ctx.attempt == 1:
            gate.pass_through()
            ctx._running.progress(0.9, "late")
        else:
            ctx.progress(0.1, "second")

    job = app.run(work)
    first, second = hire(), hire()
    first.start_due()
    gate.wait_for_one()
    first.fall_silent()
    rescue_the_dead(second)
    second.work()
    gate.open()
    first.wait_for_bodies()
    first.worker._reports.flush()
    first.die()

    assert job.progress is not None
    assert (job.progress.value, job.progress.note) == (1, "second")


def test_a_new_attempt_begins_without_progress(app: Duly, hire: Hire, clock: ManualClock):
    gate = Gate()

    @app.action(retry=Retry(attempts=2, delay=0, jitter=0))
    def work(ctx: Ctx) -> None:
        if ctx.attempt == 1:
            ctx.progress(0.9)
            raise ValueError("once")
        gate.pass_through()

    job = app.run(work)
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    worker.settle()
    assert (job.state, job.progress and job.progress.value) == (State.PENDING, 0.9)
    clock.advance(2)
    worker.start_due()
    gate.wait_for_one()

    assert (state_of(job), job.progress) == (State.RUNNING, None)
    gate.open()
    worker.work()


@pytest.mark.spec("R166")
def test_an_update_of_a_missing_job_does_nothing(
    app: Duly, hire: Hire, clock: ManualClock, db: Database, writes: list[int]
):
    """A worker that was taken for dead continues after its job was failed and removed."""
    gate = Gate()
    passed: list[str] = []

    @app.action
    def work(ctx: Ctx, late: bool) -> None:
        if late:
            gate.pass_through()
            ctx.progress(0.5, "late")
            passed.append(ctx.job_id)

    silent, living = hire(), hire()
    job = app.run(work, True)
    silent.start_due()
    gate.wait_for_one()
    silent.fall_silent()
    rescue_the_dead(living)
    clock.advance(1)
    newest = app.run(work, False)  # which is kept in its place
    living.work()
    clock.advance(9 * DAY)
    tidy(app)
    with pytest.raises(JobNotFound):
        app.job(job.id)
    before = db.snapshot()

    gate.open()
    silent.wait_for_bodies()
    silent.settle()

    assert (passed, writes) == ([job.id], [1])
    assert db.snapshot() == before
    assert db.count("@progress") == 0
    with pytest.raises(JobNotFound):
        app.job(job.id)
    assert [each.id for each in app.jobs()] == [newest.id]


@pytest.mark.spec("R166", "R167")
def test_an_update_of_a_finished_job_does_nothing(app: Duly, hire: Hire, db: Database):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    hire().work()
    token = job.record.token

    app.store.report([ProgressReport(job.id, token, revision_of(token, 1), 0.5, None, 0)], [])

    assert job.progress is None
    assert db.count("@progress") == 0


def test_progress_waits_for_the_end_of_an_outage(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    @app.action
    def work(ctx: Ctx) -> None:
        ctx.progress(0.5)
        ctx.log("kept")

    job = app.run(work)
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    with monkeypatch.context() as outage:

        def away(*_: object) -> None:
            raise StoreUnavailable("away")

        outage.setattr(app.store, "report", away)
        worker.settle()
        assert state_of(job) == State.RUNNING
    worker.work()

    assert job.state == State.SUCCEEDED
    assert job.progress is not None
    assert texts(job.logs()) == ["kept"]


def test_a_report_that_cannot_be_stored_does_not_keep_the_job_from_ending(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    @app.action
    def work(ctx: Ctx) -> None:
        ctx.progress(0.5)

    def refuse(*_: object) -> None:
        raise ValueError("no")

    job = app.run(work)
    monkeypatch.setattr(app.store, "report", refuse)
    hire().work()

    assert job.state == State.SUCCEEDED


def test_the_end_of_a_job_waits_for_a_write_that_is_under_way(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise the fence would refuse the last word: its job has ended."""
    gate = Gate()
    report = app.store.report

    def slow(progress: Any, lines: Any, workflows: Any) -> None:
        gate.pass_through()
        report(progress, lines, workflows)

    @app.action
    def work(ctx: Ctx) -> None:
        ctx.progress(1)

    job = app.run(work)
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    monkeypatch.setattr(app.store, "report", slow)
    flusher = threading.Thread(target=worker.worker._reports.flush)
    flusher.start()
    gate.wait_for_one()
    settler = threading.Thread(target=worker.settle)
    settler.start()
    gate.open()
    settler.join()
    flusher.join()

    assert state_of(job) == State.SUCCEEDED
    assert job.progress is not None
    assert job.progress.value == 1


# Log lines ---------------------------------------------------------------------------------------


def test_what_a_job_logs_is_kept_in_order(app: Duly, hire: Hire, clock: ManualClock):
    @app.action
    def work(ctx: Ctx) -> None:
        ctx.log("first")
        ctx.log("second", level="warning")

    job = app.run(work)
    hire().work()

    first, second = job.logs()
    assert (first.text, first.level, first.at) == ("first", "info", from_ms(clock.now()))
    assert (second.text, second.level) == ("second", "warning")
    assert first.seq < second.seq
    assert job.logs(after=first.seq) == [second]
    assert job.logs(after=second.seq) == []


def test_what_logging_records_in_a_job_is_kept_with_it(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None:
        users_log.info("order %d", 7)
        try:
            raise ValueError("broken")
        except ValueError:
            users_log.exception("it failed")
        logging.getLogger("duly.own").warning("not the user's")
        logging.makeLogRecord({"name": "other", "msg": "from elsewhere"})

    @app.action
    async def work_async(ctx: AsyncCtx) -> None:
        users_log.warning("in a task")
        await asyncio.to_thread(users_log.warning, "in its thread")

    users_log.warning("outside of any job")
    job, other = app.run(work), app.run(work_async)
    with app:
        job.result(timeout=60)
        other.result(timeout=60)
        users_log.warning("beside the jobs")

    order, failed = job.logs()
    assert (order.level, order.text) == ("info", "order 7")
    assert failed.level == "error"
    assert failed.text.startswith("it failed\nTraceback")
    assert failed.text.endswith("ValueError: broken")
    assert texts(other.logs()) == ["in a task", "in its thread"]


def test_logging_is_as_it_was_when_no_worker_runs(app: Duly):
    before = logging.getLogRecordFactory()
    handlers = list(logging.getLogger().handlers)

    with app:
        assert logging.getLogRecordFactory() is not before
        assert logging.getLogger().handlers == handlers

    assert logging.getLogRecordFactory() is before


def test_a_factory_that_was_wrapped_meanwhile_is_left_alone(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None:
        users_log.warning("once")

    before = logging.getLogRecordFactory()
    with app:
        ours = logging.getLogRecordFactory()

        def wrapper(*args: Any, **kwargs: Any) -> logging.LogRecord:
            return ours(*args, **kwargs)

        logging.setLogRecordFactory(wrapper)
    try:
        assert logging.getLogRecordFactory() is wrapper
        with app:
            job = app.run(work)
            job.result(timeout=60)
        assert texts(job.logs()) == ["once"]
    finally:
        logging.setLogRecordFactory(before)


def test_a_record_that_cannot_be_formatted_harms_nobody(app: Duly, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)

    @app.action
    def work(ctx: Ctx) -> None:
        users_log.warning("%d", "no number")
        users_log.warning("next")

    job = app.run(work)
    with app:
        job.result(timeout=60)

    assert texts(job.logs()) == ["next"]


def test_capturing_can_be_turned_off(url: str):
    app = Duly(url, capture_logs=False)
    app.migrate()

    @app.action
    def work(ctx: Ctx) -> None:
        users_log.warning("not kept")
        ctx.log("kept")

    job = app.run(work)
    with app:
        job.result(timeout=60)

    assert texts(job.logs()) == ["kept"]
    app.close()


def test_lines_are_bounded_and_the_rest_is_counted(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None:
        ctx.log("x" * (MAX_LINE + 1))
        ctx.progress(0.5, "y" * (MAX_NOTE + 1))
        for number in range(MAX_LINES + 1_234):
            ctx.log(str(number))

    job = app.run(work)
    hire().work()

    lines = job.logs()
    assert len(lines) == MAX_LINES + 1
    assert lines[0].text == "x" * (MAX_LINE - 1) + "…"
    assert (lines[-1].level, lines[-1].text) == ("warning", "1,235 more lines were not stored")
    assert job.progress is not None
    assert job.progress.note is not None
    assert len(job.progress.note) == MAX_NOTE


def test_only_the_last_attempts_keep_their_lines(app: Duly, hire: Hire, clock: ManualClock):
    @app.action(retry=Retry(attempts=15, delay=1, factor=1, jitter=0))
    def work(ctx: Ctx) -> None:
        ctx.log(f"attempt {ctx.attempt}")
        raise ValueError("again")

    job = app.run(work)
    worker = hire()
    for _ in range(15):
        worker.work()
        clock.advance(3600)

    assert job.state == State.FAILED
    assert texts(job.logs()) == [f"attempt {n}" for n in range(16 - MAX_ATTEMPTS, 16)]


def test_redacted_arguments_are_not_in_lines_and_notes(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx, token: Annotated[str, Redact]) -> None:
        ctx.log(f"the token is {token}")
        ctx.log("x" * (MAX_LINE - 5) + token)
        ctx.progress(0.5, f"with {token}")

    job = app.run(work, "s3cret-value")
    hire().work()

    first, second = job.logs()
    assert first.text == "the token is ***"
    assert "s3c" not in second.text
    assert job.progress is not None
    assert job.progress.note == "with ***"


def test_text_that_no_database_takes_is_made_storable(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None:
        ctx.log("a\0b\ud800c")
        ctx.progress(0.5, "a\0b\ud800c")

    job = app.run(work)
    hire().work()

    assert texts(job.logs()) == ["a\\0b\\ud800c"]
    assert job.progress is not None
    assert job.progress.note == "a\\0b\\ud800c"


def test_what_a_mutation_logs_is_committed_with_it(app: Duly):
    @app.mutation
    def work(tx: Tx, fail: bool) -> None:
        users_log.info("a line of a mutation")
        tx.execute("INSERT INTO notes VALUES ('x')")
        if fail:
            raise ValueError("no")

    good, bad = app.run(work, False), app.run(work, True)
    with app:
        good.result(timeout=60)
        assert texts(good.logs()) == ["a line of a mutation"]
        wait_until(lambda: bad.state == State.FAILED)
        assert texts(bad.logs()) == ["a line of a mutation"]


def test_a_mutation_that_ran_twice_keeps_the_lines_of_its_last_run(app: Duly):
    runs = 0

    @app.mutation
    def work(tx: Tx) -> None:
        nonlocal runs
        runs += 1
        users_log.info("run %d", runs)
        _ = tx.connection  # On SQLite it began in a shared transaction, and begins again alone.

    jobs = app.run_many([work.bind(), work.bind()])
    with app:
        for job in jobs:
            job.result(timeout=60)

    assert sorted(len(job.logs()) for job in jobs) == [1, 1]


def test_lines_of_a_canceled_job_that_were_not_yet_written_are_kept(app: Duly, hire: Hire):
    gate = Gate()

    @app.action
    def work(ctx: Ctx) -> None:
        ctx.log("before")
        gate.pass_through()
        ctx.log("while it ends")

    job = app.run(work)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    assert job.cancel()
    worker.beat()
    gate.open()
    worker.work()
    worker.worker._reports.flush()

    assert texts(job.logs()) == ["before", "while it ends"]


def test_an_unknown_job_has_no_progress_and_no_lines(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    job._id = NOBODY

    with pytest.raises(JobNotFound):
        _ = job.progress
    assert job.logs() == []


def test_drain_keeps_progress_and_lines_too(app: Duly, db: Database):
    @app.action
    def work(ctx: Ctx) -> None:
        users_log.info("inline")
        ctx.progress(0.5)

    @app.action
    async def work_async(ctx: AsyncCtx) -> None:
        users_log.info("inline")
        await ctx.progress(0.5)

    @app.mutation
    def write(tx: Tx) -> None:
        users_log.info("inline")

    jobs = [app.run(work), app.run(work_async), app.run(write)]
    drain(app)

    assert [texts(job.logs()) for job in jobs] == [["inline"]] * 3
    assert [job.progress is not None for job in jobs] == [True, True, False]


# Retention ---------------------------------------------------------------------------------------


def test_what_a_job_said_goes_with_it(app: Duly, hire: Hire, db: Database, clock: ManualClock):
    @app.action
    def work(ctx: Ctx, wait: bool = False) -> None:
        ctx.progress(0.5)
        ctx.log("line")

    worker = hire()
    jobs = [app.run(work) for _ in range(3)]
    worker.work()
    later = app.run_after(timedelta(days=30), work)
    clock.advance(6 * DAY)
    tidy(app)
    assert (db.count("@progress"), db.count("@logs")) == (3, 3)

    clock.advance(3 * DAY)
    tidy(app)

    # The newest finished job of a function outlives the others, with all it said.
    kept = [job for job in jobs if app.store.get(job.id) is not None]
    assert len(kept) == 1
    assert (db.count("@progress"), db.count("@logs")) == (1, 1)
    assert texts(kept[0].logs()) == ["line"]

    clock.advance(25 * DAY)
    worker.work()
    tidy(app)
    clock.advance(DAY)
    tidy(app)
    assert later.progress is not None
    assert kept[0].logs() == []
    assert (db.count("@progress"), db.count("@logs")) == (1, 1)


def test_what_an_unfinished_job_said_stays(app: Duly, hire: Hire, db: Database, clock: ManualClock):
    @app.action(retry=Retry(attempts=2, delay=30 * DAY, cap=60 * DAY, jitter=0))
    def work(ctx: Ctx) -> None:
        ctx.progress(0.5)
        ctx.log("line")
        raise ValueError("in a month")

    job = app.run(work)
    hire().work()
    clock.advance(29 * DAY)
    tidy(app)

    assert job.state == State.PENDING
    assert job.progress is not None
    assert texts(job.logs()) == ["line"]


# The tracking row --------------------------------------------------------------------------------


@pytest.mark.spec("R162")
def test_the_row_that_tracks_a_call_and_the_call_commit_together(app: Duly, db: Database):
    @app.action
    def work(ctx: Ctx) -> None: ...

    def start(fail: bool) -> None:
        with app.transaction() as tx:
            job = tx.run(work)
            tx.execute("INSERT INTO notes VALUES (?)", (job.id,))
            if fail:
                raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        start(fail=True)
    assert (db.notes(), db.count("@jobs")) == ([], 0)

    start(fail=False)
    (job_id,) = db.notes()
    assert app.job(job_id).state == State.PENDING


@pytest.mark.spec("R163")
def test_enqueueing_returns_the_id_without_waiting(app: Duly):
    began, go_on = threading.Event(), threading.Event()

    @app.action
    def work(ctx: Ctx) -> None:
        began.set()
        go_on.wait(PATIENCE)

    with app:
        job = app.run(work)

        # A worker runs it, and it cannot end before the caller continues.
        assert began.wait(PATIENCE)
        running = app.job(job.id)
        assert (running.id, running.state) == (job.id, State.RUNNING)
        go_on.set()
        wait_until(lambda: app.job(job.id).state == State.SUCCEEDED)


def test_a_flush_of_many_lines_is_written_in_parts(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None:
        for number in range(900):
            ctx.log(str(number))

    jobs = [app.run(work) for _ in range(5)]
    worker = hire()
    worker.work()

    assert [texts(job.logs()) == [str(n) for n in range(900)] for job in jobs] == [True] * 5
    assert isinstance(worker.worker._reports, Reports)
    assert not worker.worker._reports._waiting
