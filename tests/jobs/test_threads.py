"""Sync actions have threads, the other jobs have slots: neither waits for the other."""

import asyncio
import threading
import time

import psycopg
import pytest

from duly import AsyncCtx, Ctx, Duly, Job, ManualClock, State, Tx
from duly.errors import InvalidOption
from duly.runtime.teams import STUCK_SECONDS
from duly.runtime.worker import Worker
from tests.jobs.support import Gate, Hire, wait_until
from tests.postgres import temporary_postgres

SLOW_JOBS = 150
CONNECTIONS = 100


def states(jobs: list[Job[None]]) -> dict[str, int]:
    found = [job.state for job in jobs]
    return {state.value: found.count(state) for state in set(found)}


@pytest.mark.spec("R93", "N48")
def test_no_more_sync_actions_are_claimed_than_there_are_threads(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    jobs = [app.run(act) for _ in range(7)]
    worker = hire(concurrency=5, threads=2)
    for _ in range(5):
        worker.start_due()
        clock.advance(1)
    assert states(jobs) == {"running": 2, "pending": 5}
    assert [job.state for job in jobs[:2]] == [State.RUNNING] * 2

    gate.open()
    worker.work()
    assert states(jobs) == {"succeeded": 7}


@pytest.mark.spec("N48")
@pytest.mark.parametrize("kind", ["mutation", "async"])
def test_a_backlog_of_slow_sync_actions_holds_up_no_other_job(
    app: Duly, clock: ManualClock, hire: Hire, kind: str
):
    gate = Gate()

    @app.action
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    @app.action(name="async")
    async def quick(ctx: AsyncCtx) -> None: ...

    @app.mutation
    def mutation(tx: Tx) -> None: ...

    slow = [app.run(act) for _ in range(50)]
    jobs = [app.run(app.function(kind)) for _ in range(8)]
    worker = hire(concurrency=4, threads=2)
    for _ in range(12):
        worker.start_due()
        wait_until(lambda: worker.worker._busy == worker.worker._threads.busy, "only slow ones run")
        worker.settle()
        clock.advance(0.2)
    assert states(jobs) == {"succeeded": 8}
    assert states(slow) == {"running": 2, "pending": 48}

    late = app.run(app.function(kind))
    worker.worker.notified.set()
    worker.start_due()
    wait_until(lambda: worker.worker._busy == worker.worker._threads.busy, "only slow ones run")
    worker.settle()
    assert late.state == State.SUCCEEDED
    gate.open()
    worker.work()


@pytest.mark.spec("N48")
def test_a_backlog_of_slow_async_actions_holds_up_no_sync_action(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action
    async def slow(ctx: AsyncCtx) -> None:
        await asyncio.to_thread(gate.pass_through)

    @app.action
    def quick(ctx: Ctx) -> None: ...

    waiting = [app.run(slow) for _ in range(20)]
    jobs = [app.run(quick) for _ in range(5)]
    worker = hire(concurrency=4, threads=2)
    for _ in range(8):
        worker.start_due()
        wait_until(lambda: worker.worker._threads.busy == 0, "the threads are free")
        worker.settle()
        clock.advance(0.2)
    assert states(jobs) == {"succeeded": 5}
    assert states(waiting) == {"running": 4, "pending": 16}
    gate.open()
    worker.work()


@pytest.mark.spec("R93", "N48")
def test_priority_decides_among_jobs_that_can_start(app: Duly, clock: ManualClock, hire: Hire):
    started: list[str] = []

    @app.action
    def plain(ctx: Ctx, name: str) -> None:
        started.append(name)

    @app.action(name="async")
    async def coroutine(ctx: AsyncCtx, name: str) -> None:
        started.append(name)

    for priority in (3, 9, 6, 1):
        for function in (plain, coroutine):
            for n in range(3):
                name = f"{priority} {function.name} {n}"
                app.run(function.using(priority=priority), name)
    worker = hire(concurrency=1, threads=1)
    for _ in range(60):
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
        clock.advance(0.2)

    expected = [f"{priority} {{}} {n}" for priority in (9, 6, 3, 1) for n in range(3)]
    for name in ("plain", "async"):
        assert [each for each in started if name in each] == [e.format(name) for e in expected]


def test_claims_for_others_take_turns_with_those_for_sync_actions(
    app: Duly, clock: ManualClock, hire: Hire
):
    """Also if so much time passes between claims that it is always time for both."""

    @app.action
    def quick(ctx: Ctx) -> None: ...

    @app.mutation
    def other(tx: Tx) -> None: ...

    jobs = [app.run(quick) for _ in range(6)]
    worker = hire(concurrency=4, threads=2)
    for _ in range(8):
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
        clock.advance(1)
    assert states(jobs) == {"succeeded": 6}


@pytest.mark.spec("N48")
def test_quick_sync_actions_are_claimed_ahead_and_given_back_if_slow_ones_keep_the_threads(
    app: Duly, hire: Hire
):
    gate = Gate()
    started: list[int] = []

    @app.action
    def quick(ctx: Ctx) -> None: ...

    @app.action
    def act(ctx: Ctx, n: int) -> None:
        started.append(n)
        if n < 2:
            gate.pass_through()

    worker = hire(concurrency=100, threads=2)

    def claims_ahead() -> bool:
        app.run_many([quick.bind()] * 100)
        worker.work()
        return worker.worker._threads.free == 20

    wait_until(claims_ahead, "the bodies were quick")

    jobs = app.run_many(act.bind(n) for n in range(30))
    worker.start_due()
    assert states(jobs) == {"running": 20, "pending": 10}

    assert worker.worker.one_pass() <= STUCK_SECONDS
    wait_until(lambda: worker.worker._threads.until_stuck() == 0, "they wait")
    worker.start_due()
    worker.settle()
    assert states(jobs) == {"running": 2, "pending": 28}

    other = hire()

    def are_run_by_the_other() -> bool:
        other.worker.one_pass()
        other.settle()
        return states(jobs) == {"running": 2, "succeeded": 28}

    wait_until(are_run_by_the_other, "another worker runs them")
    assert {job.record.attempt for job in jobs} == {1}
    gate.open()
    worker.work()
    assert sorted(started) == list(range(30))


def test_a_worker_that_waits_for_threads_neither_spins_nor_sleeps_for_long(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    @app.action(name="async")
    async def quick(ctx: AsyncCtx) -> None: ...

    for _ in range(3):
        app.run(act)
    worker = hire(concurrency=4, threads=1)
    delays = [worker.worker.one_pass() for _ in range(4)]
    gate.open()
    assert delays == [0, 0.1, 0.1, 0.1]
    worker.work()


@pytest.mark.parametrize("threads", [0, -1])
def test_a_worker_needs_a_thread(app: Duly, threads: int):
    app.ready()
    with pytest.raises(InvalidOption, match="threads: must be at least 1"):
        Worker(app.core, threads=threads)
    with pytest.raises(InvalidOption, match="threads: must be at least 1"):
        Duly("sqlite:///:memory:", threads=threads)


def test_an_embedded_worker_has_the_settings_of_its_app(url: str):
    app = Duly(url, concurrency=7, threads=3)
    app.migrate()
    for concurrency, given, slots, threads in (
        (None, None, 7, 3),
        (2, None, 2, 2),
        (20, 5, 20, 5),
    ):
        app.start(concurrency=concurrency, threads=given)
        [worker] = app.workers()
        app.stop()
        assert (worker.slots, worker.threads) == (slots, threads)
    app.close()


@pytest.mark.postgres
@pytest.mark.spec("N49")
def test_slow_sync_actions_with_connections_of_their_own_leave_the_server_some():
    with temporary_postgres({"max_connections": str(CONNECTIONS)}) as url:
        app = Duly(url)
        app.migrate()

        @app.action
        def slow(ctx: Ctx) -> int:
            with psycopg.connect(url) as connection:
                connection.execute("SELECT pg_sleep(0.7)")
            return 1

        refused: list[Exception] = []
        over = threading.Event()

        def knock() -> None:
            while not over.is_set():
                try:
                    psycopg.connect(url).close()
                except psycopg.OperationalError as error:
                    refused.append(error)
                time.sleep(0.005)

        batch = app.batch(slow.bind() for _ in range(SLOW_JOBS))
        client = threading.Thread(target=knock)
        client.start()
        service = app.service()
        try:
            service.start()
            wait_until(lambda: batch.progress().ended == SLOW_JOBS, "all have ended")
        finally:
            over.set()
            client.join()
            service.stop()
        progress = batch.progress()
        app.close()
    assert (progress.succeeded, progress.failed, refused) == (SLOW_JOBS, 0, [])
