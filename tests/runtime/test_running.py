"""A worker in this process: what blocks whom, and what does not."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import psycopg
import pytest

from duly import AsyncCtx, Ctx, Duly, JobFailure, ManualClock, State, SystemClock, Tx
from duly.errors import Canceled, JobFailed
from duly.runtime import worker as worker_module
from duly.runtime.worker import Worker
from duly.store.base import Lane
from tests.jobs.support import PATIENCE, ManualWorker, on_postgres, wait_until


@pytest.fixture
def app(url: str) -> Iterator[Duly]:
    app = Duly(url, auto_migrate=True, clock=SystemClock())
    yield app
    app.close()


@pytest.fixture
def released() -> Iterator[ExitStack]:
    """Whatever a body waits for is set at the end, so that no thread outlives its test."""
    with ExitStack() as stack:
        yield stack


BEATS_OF_A_LEASE = 8


def test_a_blocked_event_loop_stops_neither_the_beats_nor_sync_jobs(
    app: Duly, url: str, released: ExitStack, long_run: bool
) -> None:
    """However many times as long as a worker is believed to live without a sign."""
    go_on = threading.Event()
    released.callback(go_on.set)
    blocked = threading.Event()
    starts: list[int] = []

    @app.action
    async def block_the_loop(ctx: AsyncCtx) -> None:
        starts.append(ctx.attempt)
        blocked.set()
        go_on.wait(PATIENCE)

    @app.action
    def answer(ctx: Ctx) -> int:
        return 42

    beat_every = 0.1 if long_run else 0.02
    app.start(beat_every=beat_every)
    job = app.run(block_the_loop)
    assert blocked.wait(PATIENCE)
    service = app.core.service
    assert service is not None

    # Another worker watches whether this one lives.
    other = Duly(url)
    released.callback(other.close)
    other.start(beat_every=beat_every)
    seen: set[float] = set()
    leases = 10 if long_run else 1

    def has_beaten() -> bool:
        seen.add(service.worker.last_beat)
        return len(seen) > leases * BEATS_OF_A_LEASE

    wait_until(has_beaten, "beats of some leases")
    assert app.run(answer).result(PATIENCE) == 42
    assert job.state == State.RUNNING
    go_on.set()
    job.result(PATIENCE)
    assert starts == [1]


def test_an_async_action_past_its_limit_is_canceled_and_fails_as_timeout(app: Duly) -> None:
    import asyncio

    stopped = threading.Event()

    @app.action(timeout=0.5)
    async def sleep(ctx: AsyncCtx) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            stopped.set()
            raise

    app.start()
    with pytest.raises(JobFailed, match=r"longer than 0\.5 s") as failed:
        app.run(sleep).result(PATIENCE)
    assert failed.value.kind == "timeout"
    assert stopped.wait(PATIENCE)


def test_a_sync_action_past_its_limit_fails_at_once_and_its_result_is_dropped(
    app: Duly, released: ExitStack
) -> None:
    go_on = threading.Event()
    released.callback(go_on.set)
    notified = threading.Event()
    ended = threading.Event()

    @app.action(timeout=0.05)
    def linger(ctx: Ctx) -> str:
        wait_until(lambda: ctx.canceled)
        notified.set()
        go_on.wait(PATIENCE)
        ended.set()
        return "too late"

    app.start()
    job = app.run(linger)
    with pytest.raises(JobFailed):
        job.result(PATIENCE)
    before = job.record
    assert notified.wait(PATIENCE)
    go_on.set()
    assert ended.wait(PATIENCE)

    app.stop()
    assert app.job(job.id).record == before
    assert job.error == JobFailure("timeout", "linger ran longer than 0.05 s", None)


def test_a_mutation_past_its_limit_is_interrupted_and_leaves_nothing(app: Duly, url: str) -> None:
    endless = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        if url.startswith("sqlite")
        else "SELECT pg_sleep(60)"
    )
    with app.transaction() as tx:
        tx.execute("CREATE TABLE notes (text text)")

    @app.mutation(timeout=0.1)
    def endless_query(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('half done')")
        tx.execute(endless)

    @app.mutation
    def quick(tx: Tx) -> int:
        return 1

    app.start()
    with pytest.raises(JobFailed) as failed:
        app.run(endless_query).result(PATIENCE)
    assert failed.value.kind == "timeout"
    assert app.run(quick).result(PATIENCE) == 1
    with app.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM notes").scalar() == 0


def test_a_mutation_that_computes_past_its_limit_cannot_commit(app: Duly) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE notes (text text)")

    @app.mutation(timeout=0.05)
    def compute(tx: Tx) -> None:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            tx.execute("INSERT INTO notes VALUES ('again')")

    app.start()
    with pytest.raises(JobFailed) as failed:
        app.run(compute).result(PATIENCE)
    assert failed.value.kind == "timeout"
    with app.transaction() as tx:
        assert tx.execute("SELECT count(*) FROM notes").scalar() == 0


def test_a_canceled_action_is_told_within_a_beat(app: Duly) -> None:
    noticed = threading.Event()
    running = threading.Event()

    @app.action
    def wait_for_cancel(ctx: Ctx) -> None:
        running.set()
        wait_until(lambda: ctx.canceled)
        with pytest.raises(Canceled):
            ctx.check()
        noticed.set()

    app.start(beat_every=0.02)
    job = app.run(wait_for_cancel)
    assert running.wait(PATIENCE)
    assert job.cancel()
    assert noticed.wait(PATIENCE)
    assert job.state == State.CANCELED


def test_stopping_lets_running_jobs_end_and_gives_back_what_never_started(app: Duly) -> None:
    go_on = threading.Event()
    running = threading.Event()

    @app.action
    def work(ctx: Ctx) -> str:
        running.set()
        go_on.wait(PATIENCE)
        return "done"

    app.start(concurrency=1)
    first = app.run(work)
    assert running.wait(PATIENCE)
    second = app.run(work)
    stopping = threading.Thread(target=app.stop)
    stopping.start()
    go_on.set()
    stopping.join(PATIENCE)

    assert first.result(PATIENCE) == "done"
    assert (second.state, second.attempt) == (State.PENDING, 0)
    assert app.workers() == []


def test_what_does_not_end_in_time_is_lost_not_left_running(app: Duly, released: ExitStack) -> None:
    go_on = threading.Event()
    released.callback(go_on.set)
    running = threading.Event()

    @app.action
    def never_ends(ctx: Ctx) -> None:
        running.set()
        go_on.wait(PATIENCE)

    app.start()
    job = app.run(never_ends)
    assert running.wait(PATIENCE)
    app.stop(drain=0.05)

    assert (job.state, job.record.error_kind) == (State.FAILED, "worker_lost")
    assert app.workers() == []


@on_postgres
def test_a_statement_that_cannot_be_interrupted_keeps_no_worker_from_stopping(
    app: Duly, released: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: object, *, timeout: float) -> None:
        raise psycopg.OperationalError("the request to cancel was not answered")

    monkeypatch.setattr(psycopg.Connection, "cancel_safe", fail)
    go_on = threading.Event()
    released.callback(go_on.set)
    running = threading.Semaphore(0)

    @app.mutation
    def stuck(tx: Tx) -> None:
        running.release()
        go_on.wait(PATIENCE)

    @app.action
    def also_stuck(ctx: Ctx) -> None:
        running.release()
        go_on.wait(PATIENCE)

    app.start()
    mutation = app.run(stuck)
    assert running.acquire(timeout=PATIENCE)
    action = app.run(also_stuck)
    assert running.acquire(timeout=PATIENCE)
    app.stop(drain=0.05)

    assert (mutation.state, mutation.attempt) == (State.PENDING, 0)
    assert (action.state, action.record.error_kind) == (State.FAILED, "worker_lost")
    assert app.workers() == []


def test_a_worker_that_was_declared_dead_starts_anew(app: Duly) -> None:
    @app.action
    def answer(ctx: Ctx) -> int:
        return 42

    app.start(beat_every=0.02)
    (before,) = app.workers()
    app.store.rescue(before.id, None, lambda job: pytest.fail("nothing ran"), 0)

    wait_until(lambda: [w.id for w in app.workers()] not in ([], [before.id]), "a new worker")
    assert app.run(answer).result(PATIENCE) == 42


@on_postgres
def test_claims_that_waited_for_ends_to_be_written_go_on_at_once(app: Duly) -> None:
    """Nobody is left to wake them: every body has ended."""

    @app.action
    def nothing(ctx: Ctx) -> None: ...

    app.run_many(nothing.bind() for _ in range(4))
    worker = ManualWorker(app, concurrency=1)
    for _ in range(3):
        worker.start_due()
        worker.wait_for_bodies()
    assert worker.worker.one_pass() > 0
    assert worker.worker.claimed == 3
    worker.worker.loop.bell.clear()

    worker.settle()

    assert worker.worker.loop.bell.is_set()
    worker.work()
    assert worker.worker.claimed == 4
    worker.stop()


@pytest.fixture
def still(app: Duly, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the app, which stands still until it is moved."""
    clock = ManualClock()
    monkeypatch.setattr(app.core, "clock", clock)
    return clock


def looks_of(app: Duly, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Lane]]:
    """What a worker has seen whenever it looked where something is due."""
    looks: list[Sequence[Lane]] = []
    look = app.store.lanes

    def note() -> Sequence[Lane]:
        looks.append(look())
        return looks[-1]

    monkeypatch.setattr(app.store, "lanes", note)
    return looks


@on_postgres
def test_a_worker_that_is_told_of_jobs_claims_where_its_last_ones_were_before_it_looks(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.action
    def nothing(ctx: Ctx) -> None: ...

    worker = ManualWorker(app)
    app.run(nothing)
    worker.work()
    app.run(nothing)
    looks = looks_of(app, monkeypatch)
    worker.worker.notified.set()

    worker.start_due()

    assert (worker.worker.claimed, looks) == (2, [])
    worker.work()
    worker.stop()


def test_a_worker_that_is_told_of_jobs_finds_in_one_pass_what_is_elsewhere(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.action
    def nothing(ctx: Ctx) -> None: ...

    worker = ManualWorker(app)
    for n, queue in enumerate(["default", "other", "default", "third"], 1):
        app.run(nothing.using(queue=queue))
        worker.worker.notified.set()
        worker.start_due()
        assert worker.worker.claimed == n, queue
        worker.work()

    worker.worker.notified.set()
    worker.start_due()
    looks = looks_of(app, monkeypatch)
    monkeypatch.setattr(app.store, "exchange", lambda *_: pytest.fail("it was wrong last time"))
    worker.worker.notified.set()
    worker.start_due()
    assert looks == [[]]
    monkeypatch.undo()
    worker.stop()


def test_a_worker_that_is_told_of_a_backlog_goes_on_with_it_and_then_rests(app: Duly) -> None:
    """Also if it has claimed without looking, and what it saw last was nothing."""

    @app.action
    def nothing(ctx: Ctx) -> None: ...

    worker = ManualWorker(app, concurrency=2)
    app.run(nothing)
    worker.work()
    app.run_many(nothing.bind() for _ in range(6))

    for n in (3, 5, 7):
        worker.worker.notified.set()
        worker.start_due()
        assert worker.worker.claimed == n
        worker.wait_for_bodies()
        worker.settle()
    worker.worker.notified.set()
    assert worker.worker.one_pass() > 0
    worker.stop()


def test_a_worker_that_is_told_of_jobs_all_the_time_still_looks_elsewhere(
    app: Duly, still: ManualClock
) -> None:
    @app.action
    def nothing(ctx: Ctx) -> None: ...

    worker = ManualWorker(app)
    app.run(nothing)
    worker.work()
    app.run(nothing.using(queue="other"))
    for _ in range(4):
        app.run(nothing)
        worker.worker.notified.set()
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
        still.advance(0.4)
    assert worker.worker.claimed == 1 + 1 + 4
    worker.stop()


def test_a_worker_whose_last_job_took_long_rests_when_nothing_is_due(
    app: Duly, still: ManualClock
) -> None:
    """Its claim had filled it, and by now it knows no more of what is due."""

    @app.action
    def nothing(ctx: Ctx) -> None: ...

    worker = ManualWorker(app, concurrency=1)
    app.run(nothing)
    worker.start_due()
    worker.wait_for_bodies()
    worker.settle()
    still.advance(2)
    worker.beat()
    assert worker.worker.one_pass() > 0
    worker.stop()


def test_a_worker_that_cannot_prove_its_life_rests_before_a_backlog(
    app: Duly, still: ManualClock
) -> None:
    @app.action
    def nothing(ctx: Ctx) -> None: ...

    worker = ManualWorker(app, concurrency=1)
    app.run_many(nothing.bind() for _ in range(3))
    worker.start_due()
    worker.wait_for_bodies()
    worker.settle()
    still.advance(11)
    assert worker.worker.one_pass() > 0
    assert worker.worker.claimed == 1
    worker.beat()
    worker.work()
    assert worker.worker.claimed == 3
    worker.stop()


class Told(threading.Event):
    """Counts how often somebody has said that jobs have come."""

    times = 0

    def set(self) -> None:
        self.times += 1
        super().set()


def test_a_worker_is_told_of_jobs_where_the_store_says_more_than_that_something_changed(
    app: Duly, url: str
) -> None:
    @app.action
    def answer(ctx: Ctx) -> int:
        return 42

    app.ready()
    worker = Worker(app.core)
    worker.notified = notified = Told()
    worker.start()
    try:
        assert app.run(answer).result(PATIENCE) == 42
        if url.startswith("postgresql"):
            wait_until(lambda: notified.times > 0, "it was told")
        else:
            assert notified.times == 0
    finally:
        worker.stop()


def test_bodies_get_a_head_start_only_where_there_is_no_backlog(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.action
    def nothing(ctx: Ctx) -> None: ...

    worker = ManualWorker(app, concurrency=2)
    app.run_many(nothing.bind() for _ in range(3))
    slept: list[float] = []
    monkeypatch.setattr(worker_module, "os_sleep", slept.append)

    worker.worker._pass_and_yield()
    assert (worker.worker.claimed, slept) == (2, [])
    worker.wait_for_bodies()
    worker.settle()
    assert worker.worker._pass_and_yield() == 0
    assert (worker.worker.claimed, slept) == (3, [worker_module.HEAD_START])
    monkeypatch.undo()
    worker.work()
    worker.stop()
