"""Priorities and queues: which due job starts first, how many run at once, and pauses."""

import asyncio
import threading
import time
from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, ManualClock, State, Tx
from duly.errors import InvalidOption
from tests.jobs.support import Database, Gate, Hire, wait_until


@pytest.mark.spec("R93", "N7")
@pytest.mark.parametrize("kind", ["mutation", "action", "async"])
def test_jobs_start_by_priority_then_in_due_order(
    app: Duly, clock: ManualClock, hire: Hire, kind: str
):
    started: list[str] = []

    @app.mutation
    def mutation(tx: Tx, name: str) -> None:
        started.append(name)

    @app.action
    def action(ctx: Ctx, name: str) -> None:
        started.append(name)

    @app.action(name="async")
    async def async_action(ctx: AsyncCtx, name: str) -> None:
        started.append(name)

    function: Any = app.function(kind)
    app.run_after(30, function, "third")
    app.run_after(10, function, "first")
    app.run_after(20, function.using(priority=5), "second")
    app.run_after(40, function.using(priority=9), "urgent")
    app.run_after(50, function.using(priority=9), "urgent too")
    app.run_after(1, function.using(priority=0), "last")
    app.run_after(2, function.using(priority=4), "low")
    clock.advance(60)
    hire(concurrency=1).work()

    assert started == ["urgent", "urgent too", "first", "second", "third", "low", "last"]


@pytest.mark.spec("R93")
def test_jobs_of_one_instant_start_in_the_order_in_which_they_came(app: Duly, hire: Hire):
    started: list[int] = []

    @app.action
    def act(ctx: Ctx, n: int) -> None:
        started.append(n)

    for n in range(5):
        app.run(act, n)
    app.run_many(act.bind(n) for n in range(5, 10))
    hire(concurrency=1).work()

    assert started == list(range(10))


@pytest.mark.spec("R93")
def test_a_backlog_of_urgent_jobs_does_not_turn_the_others_around(
    app: Duly, clock: ManualClock, hire: Hire
):
    """Two slots, and every claim is full: the worker then reads on where it stopped."""
    started: list[str] = []
    guard = threading.Lock()

    @app.action
    def act(ctx: Ctx, name: str) -> None:
        with guard:
            started.append(name)

    for n in range(4):
        app.run_after(n, act.using(priority=1), f"low {n}")
    for n in range(4):
        app.run_after(n, act, f"middle {n}")
    for n in range(4):
        app.run_after(50 + n, act.using(priority=9), f"urgent {n}")
    clock.advance(60)
    hire(concurrency=2).work()

    assert [name.split()[0] for name in started] == ["urgent"] * 4 + ["middle"] * 4 + ["low"] * 4


@pytest.mark.spec("R93")
@pytest.mark.parametrize("is_async", [False, True])
def test_at_most_so_many_run_in_parallel(app: Duly, hire: Hire, is_async: bool):
    running, most = 0, 0
    guard = threading.Lock()
    gate = Gate()

    def count(change: int) -> None:
        nonlocal running, most
        with guard:
            running += change
            most = max(most, running)

    @app.action(name="sync")
    def act(ctx: Ctx) -> None:
        count(1)
        gate.pass_through()
        count(-1)

    @app.action(name="async")
    async def act_async(ctx: AsyncCtx) -> None:
        count(1)
        await asyncio.to_thread(gate.pass_through)
        count(-1)

    jobs = [app.run(act_async) if is_async else app.run(act) for _ in range(10)]
    worker = hire(concurrency=3)
    for _ in range(4):
        worker.start_due()
    for _ in range(3):
        gate.wait_for_one()
    assert [job.state for job in jobs].count(State.RUNNING) == 3
    gate.open()
    worker.work()

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert most == 3


@pytest.mark.spec("R94")
@pytest.mark.parametrize("from_elsewhere", [False, True])
def test_an_idle_worker_starts_an_earlier_job_without_waiting_for_a_poll(
    url: str, monkeypatch: pytest.MonkeyPatch, from_elsewhere: bool
):
    """With a poll of ten minutes only the wake-up can bring the job in time."""
    monkeypatch.setattr("duly.runtime.outcomes.POLL_SECONDS", 600.0)
    monkeypatch.setattr("duly.runtime.demand.POLL_SECONDS", 600.0)
    app, elsewhere = Duly(url), Duly(url)
    app.migrate()
    for one in (app, elsewhere):

        @one.action
        def wave(ctx: Ctx) -> str:
            return "hello"

    enqueuer = elsewhere if from_elsewhere else app
    try:
        with app:
            far = app.run_after(3600, app.function("wave"))
            assert app.run(app.function("wave")).result(timeout=60) == "hello"
            wait_until(lambda: app.core.service and app.core.service.worker.idle, "an idle worker")
            began = time.monotonic()
            near = enqueuer.run(enqueuer.function("wave"))
            assert near.result(timeout=60) == "hello"
            soon = enqueuer.run_after(0.05, enqueuer.function("wave"))
            assert soon.result(timeout=60) == "hello"
            with enqueuer.transaction() as tx:
                in_transaction = tx.run(enqueuer.function("wave"))
            assert in_transaction.result(timeout=60) == "hello"
            assert time.monotonic() - began < 10
            assert far.state == State.PENDING
    finally:
        app.close()
        elsewhere.close()


# Queues


@pytest.mark.spec("N7")
def test_a_paused_queue_starts_nothing_and_loses_nothing(app: Duly, clock: ManualClock, hire: Hire):
    gate = Gate()

    @app.action
    def wait(ctx: Ctx) -> str:
        gate.pass_through()
        return "ran on"

    @app.action
    def act(ctx: Ctx, n: int) -> int:
        return n

    running = app.run(wait)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    app.queues.pause("default", by="ada", note="maintenance")
    held = [app.run(act, n) for n in range(3)]
    free = app.run(act.using(queue="other"), 9)
    gate.open()
    worker.work()

    assert running.result(0) == "ran on"
    assert free.result(0) == 9
    assert [job.state for job in held] == [State.PENDING] * 3
    (pause,) = app.queues.paused()
    assert (pause.name, pause.paused_by, pause.note) == ("default", "ada", "maintenance")
    assert pause.paused_at == clock.now()

    app.queues.resume("default")
    worker.work()
    assert [job.result(0) for job in held] == [0, 1, 2]
    assert app.queues.paused() == []


@pytest.mark.spec("N7")
def test_pausing_twice_and_resuming_what_runs_are_harmless(app: Duly):
    app.queues.pause("a", by="ada")
    app.queues.pause("a", by="bob", note="again")
    app.queues.resume("b")

    assert [(pause.name, pause.paused_by) for pause in app.queues.paused()] == [("a", "bob")]


@pytest.mark.spec("N7")
def test_a_worker_serves_only_its_queues(app: Duly, hire: Hire):
    @app.action
    def act(ctx: Ctx) -> None: ...

    jobs = {name: app.run(act.using(queue=name)) for name in ("default", "mail", "reports")}
    hire(queues=["mail", "reports"]).work()

    assert {name: job.state for name, job in jobs.items()} == {
        "default": State.PENDING,
        "mail": State.SUCCEEDED,
        "reports": State.SUCCEEDED,
    }


@pytest.mark.spec("N7")
def test_a_full_queue_does_not_starve_another(app: Duly, hire: Hire):
    started: list[str] = []

    @app.action
    def act(ctx: Ctx, name: str) -> None:
        started.append(name)

    app.run_many(act.using(queue="a").bind("a") for _ in range(20))
    app.run_many(act.using(queue="b").bind("b") for _ in range(3))
    hire(concurrency=1).work()

    assert sorted(started) == ["a"] * 20 + ["b"] * 3
    assert max(place for place, name in enumerate(started) if name == "b") < 8


@pytest.mark.spec("N7")
def test_a_priority_is_a_whole_number_from_0_to_9(app: Duly):
    @app.action
    def act(ctx: Ctx) -> None: ...

    bad: list[Any] = [-1, 10, 5.5, "5", True]
    for priority in bad:
        with pytest.raises(InvalidOption, match="priority"):
            act.using(priority=priority)
        with pytest.raises(InvalidOption, match="priority"):
            app.action(priority=priority)


@pytest.mark.spec("N7")
def test_the_name_of_a_queue_is_printable_text(app: Duly, db: Database):
    bad: list[Any] = ["", "x" * 201, "a\nb", "nul\0", 5, None]
    for name in bad:
        with pytest.raises(InvalidOption, match="queue"):
            app.action(queue=name)
        with pytest.raises(InvalidOption, match="queue"):
            app.queues.pause(name)

    assert db.count("@queues") == 0
