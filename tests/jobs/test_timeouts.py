"""Timeouts: what they do to waiting and running bodies, and when they come too late."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, ErrorKind, Job, ManualClock, Retry, State, Tx
from duly.runtime.janitor import Janitor
from tests.cli.processes import Process, duly, environment
from tests.cli.processes import wait_until as wait_longer
from tests.jobs.isolated import FOLDER, make
from tests.jobs.support import (
    Database,
    Gate,
    Hire,
    ManualWorker,
    on_sqlite,
    prepare,
    rescue_the_dead,
    state_of,
    tidy,
    wait_until,
)


def kind_of(job: Job[Any]) -> str | None:
    assert job.error is not None
    return job.error.kind


def pass_limit(worker: ManualWorker, clock: ManualClock, seconds: float) -> None:
    """Let the time pass, let the worker notice and write it down."""
    clock.advance(seconds)
    worker.watch()
    worker.settle()


# Before it runs


def test_a_mutation_that_waits_for_its_turn_does_not_use_up_its_time(
    app: Duly, clock: ManualClock, db: Database, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    """The janitor counts from the claim, and the turn may come long after that."""

    @app.mutation(timeout=1)
    def note(tx: Tx) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('once')")

    job = app.run(note)
    worker = hire()
    team = worker.worker._mutations
    waiting: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(team, "start_many", waiting.extend)
        worker.start_due()
    clock.advance(14)
    worker.beat()
    worker.settle()
    assert job.state == State.RUNNING
    clock.advance(2)
    worker.beat()
    worker.settle()
    assert (job.state, job.attempt) == (State.PENDING, 0)

    clock.advance(20)
    tidy(app)
    team.start_many(waiting)
    worker.work()
    assert (job.state, db.notes()) == (State.SUCCEEDED, ["once"])


def test_a_mutation_on_postgres_waits_for_no_other_while_there_are_connections(
    app: Duly, db: Database, hire: Hire
):
    """SQLite has one writer, and that is the one that is waited for."""
    gate = Gate()

    @app.mutation
    def wait(tx: Tx) -> None:
        gate.pass_through()

    @app.mutation
    def note(tx: Tx) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('done')")

    worker = hire()
    waiting = app.run(wait)
    worker.start_due()
    gate.wait_for_one()
    if db.is_sqlite:
        gate.open()
        worker.wait_for_bodies()
    noting = app.run(note)
    worker.start_due()
    worker.wait_for(noting)

    assert db.notes() == ["done"]
    assert waiting.state == (State.SUCCEEDED if db.is_sqlite else State.RUNNING)
    gate.open()
    worker.wait_for(waiting)


# While it runs


@pytest.mark.spec("R168", "R169")
def test_a_sync_body_fails_at_its_limit_and_its_late_result_is_dropped_and_logged(
    app: Duly, clock: ManualClock, hire: Hire, caplog: pytest.LogCaptureFixture
):
    gate = Gate()

    @app.action(timeout=5)
    def act(ctx: Ctx) -> str:
        gate.pass_through()
        return "late"

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    pass_limit(worker, clock, 5)
    assert (state_of(job), kind_of(job)) == (State.FAILED, ErrorKind.TIMEOUT)
    failed = job.record
    with caplog.at_level(logging.INFO):
        gate.open()
        worker.work()

    assert job.record == failed
    assert f"job {job.id} ended too late; its outcome was dropped" in caplog.text


@pytest.mark.spec("R168", "R169")
def test_an_async_body_that_swallows_its_cancellation_still_loses_its_result(
    app: Duly, clock: ManualClock, hire: Hire, caplog: pytest.LogCaptureFixture
):
    began = threading.Event()
    swallowed = threading.Event()

    @app.action(timeout=5)
    async def act(ctx: AsyncCtx) -> str:
        try:
            began.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()
        return "late"

    job = app.run(act)
    worker = hire()
    worker.start_due()
    assert began.wait(20)
    with caplog.at_level(logging.INFO):
        pass_limit(worker, clock, 5)
        assert swallowed.wait(20)
        worker.work()

    assert (job.state, kind_of(job)) == (State.FAILED, ErrorKind.TIMEOUT)
    assert job.record.result is None
    assert f"job {job.id} ended too late; its outcome was dropped" in caplog.text


def test_an_async_body_past_its_limit_may_clean_up(app: Duly, clock: ManualClock, hire: Hire):
    """It is told again only after a while, so that what it awaits then is not canceled too."""
    began, cleaning, clean = threading.Event(), threading.Event(), threading.Event()
    told: list[str] = []

    @app.action(timeout=5)
    async def act(ctx: AsyncCtx) -> None:
        for event, what in ((began, "the body"), (cleaning, "its clean-up")):
            try:
                event.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                told.append(what)
        clean.set()

    app.run(act)
    worker = hire()
    worker.start_due()
    assert began.wait(20)
    for seconds in (5, 0.1, 0.1, 4.7):
        pass_limit(worker, clock, seconds)
        assert cleaning.wait(20)
    team = worker.worker._async
    assert team._loop is not None
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), team._loop).result(20)
    assert told == ["the body"]

    pass_limit(worker, clock, 0.2)
    assert clean.wait(20)
    assert told == ["the body", "its clean-up"]


@pytest.mark.spec("R168")
def test_an_async_body_that_blocks_its_loop_fails_at_its_limit_all_the_same(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action(timeout=5)
    async def act(ctx: AsyncCtx) -> None:
        gate.pass_through()

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    pass_limit(worker, clock, 5)

    assert (state_of(job), kind_of(job)) == (State.FAILED, ErrorKind.TIMEOUT)
    gate.open()


@pytest.mark.spec("R168")
def test_a_limit_is_the_functions_or_that_of_one_call(app: Duly, clock: ManualClock, hire: Hire):
    gate = Gate()

    @app.action(timeout=5)
    def act(ctx: Ctx) -> str:
        gate.pass_through()
        return "done"

    own, call, none = (app.run(f) for f in (act, act.using(timeout=2), act.using(timeout=None)))
    worker = hire()
    worker.start_due()
    for _ in range(3):
        gate.wait_for_one()
    pass_limit(worker, clock, 2)
    assert [job.state for job in (own, call, none)] == ["running", "failed", "running"]
    pass_limit(worker, clock, 3)
    assert [job.state for job in (own, call, none)] == ["failed", "failed", "running"]
    pass_limit(worker, clock, 86_400)
    gate.open()
    worker.work()

    assert none.result(0) == "done"


@pytest.mark.spec("R168")
def test_a_mutation_takes_the_limit_of_its_call(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.mutation(timeout=4)
    def slow(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        gate.pass_through()

    job = app.run(slow.using(timeout=1))
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    clock.advance(1)
    worker.watch()
    gate.open()
    worker.work()

    assert job.error is not None
    assert job.error.message == "slow ran longer than 1 s"
    assert db.notes() == []


# Too late


@pytest.mark.spec("R168")
def test_a_limit_that_passes_after_the_end_changes_nothing(
    app: Duly, clock: ManualClock, hire: Hire
):
    @app.action(timeout=5)
    def act(ctx: Ctx) -> str:
        return "done"

    @app.mutation(timeout=4)
    def change(tx: Tx) -> str:
        return "done"

    jobs: list[Job[str]] = [app.run(act), app.run(change)]
    worker = hire()
    worker.work()
    before = [job.record for job in jobs]
    pass_limit(worker, clock, 3600)
    tidy(app)

    assert [job.record for job in jobs] == before
    assert [job.result(0) for job in jobs] == ["done", "done"]


@pytest.mark.spec("R168")
def test_a_limit_that_passes_before_the_end_was_written_down_comes_too_late(
    app: Duly, clock: ManualClock, hire: Hire
):
    @app.action(timeout=5)
    def act(ctx: Ctx) -> str:
        return "done"

    job = app.run(act)
    worker = hire()
    worker.start_due()
    worker.wait_for_bodies()
    pass_limit(worker, clock, 5)

    assert job.result(0) == "done"


@pytest.mark.spec("R168")
def test_the_janitor_times_out_what_a_living_worker_does_not(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action(timeout=5)
    def act(ctx: Ctx) -> str:
        gate.pass_through()
        return "late"

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    janitor = Janitor(app.ready(), clock)
    clock.advance(5)
    janitor.one_pass()
    # Another whole timeout, in case the clock was wrong, and half a minute.
    clock.advance(34)
    janitor.one_pass()
    tidy(app)
    assert state_of(job) == State.RUNNING
    clock.advance(1)
    janitor.one_pass()
    failed = job.record
    gate.open()
    worker.work()

    assert (job.state, kind_of(job)) == (State.FAILED, ErrorKind.TIMEOUT)
    assert job.record == failed


@on_sqlite
@pytest.mark.spec("N40")
def test_a_deadline_without_a_time_limit_keeps_no_janitor_from_others(
    app: Duly, db: Database, hire: Hire, clock: ManualClock
):
    """No code writes such a row; code that finds one leaves it alone."""

    @app.action
    def act(ctx: Ctx) -> None: ...

    job = app.run(act)
    hire().claim_only()
    db.execute("UPDATE @jobs SET deadline_at = 1")
    expired = app.run_after(60, act.using(expires=1))
    clock.advance(61)
    tidy(app)
    assert (job.state, expired.state) == (State.RUNNING, State.CANCELED)


@on_sqlite
def test_a_clock_that_steps_forward_times_out_nobody(app: Duly, clock: ManualClock, hire: Hire):
    """All processes share PostgreSQL's clock, which does not jump when a machine wakes up."""
    gate = Gate()

    @app.action(timeout=3600)
    def act(ctx: Ctx) -> str:
        gate.pass_through()
        return "in time"

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    janitor = Janitor(app.ready(), clock)
    janitor.one_pass()
    clock.jump(7200)
    for _ in range(3):
        janitor.one_pass()
        worker.watch()
        clock.advance(1000)
    assert state_of(job) == State.RUNNING
    gate.open()
    worker.work()

    assert job.result(0) == "in time"


# What follows


@pytest.mark.spec("R168")
@pytest.mark.parametrize("kind", ["action", "mutation"])
def test_the_policy_applies_to_timeouts(app: Duly, clock: ManualClock, hire: Hire, kind: str):
    gates = [Gate(), Gate()]
    policy = Retry(attempts=2, delay=10, jitter=0)

    @app.action(timeout=2, retry=policy)
    def act(ctx: Ctx) -> None:
        gates[ctx.attempt - 1].pass_through()

    @app.mutation(timeout=2, retry=policy)
    def change(tx: Tx) -> None:
        gates[tx.attempt - 1].pass_through()

    job = app.run(act) if kind == "action" else app.run(change)
    worker = hire()
    for gate in gates:
        worker.start_due()
        gate.wait_for_one()
        clock.advance(2)
        worker.watch()
        gate.open()
        worker.wait_for_bodies()
        worker.settle()
        if gate is gates[0]:
            assert (state_of(job), job.record.error_kind) == (State.PENDING, ErrorKind.TIMEOUT)
            clock.advance(60)

    assert job.error is not None
    assert job.error.message == f"{job.function} ran longer than 2 s (after 2 attempts)"


def test_a_body_past_its_limit_keeps_its_slot_until_it_returns(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action(timeout=5)
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    @app.action
    def next_one(ctx: Ctx) -> str:
        return "ran"

    app.run(act)
    worker = hire(concurrency=1)
    worker.start_due()
    gate.wait_for_one()
    pass_limit(worker, clock, 5)
    waiting = app.run(next_one)
    worker.start_due()
    assert waiting.state == State.PENDING
    gate.open()
    worker.work()

    assert waiting.result(0) == "ran"


def test_a_worker_that_dies_after_the_limit_leaves_nothing_to_rescue(
    app: Duly, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.action(timeout=5)
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    job = app.run(act)
    worker, other = hire(), hire()
    worker.start_due()
    gate.wait_for_one()
    pass_limit(worker, clock, 5)
    failed = job.record
    worker.die()
    rescue_the_dead(other)
    gate.open()

    assert job.record == failed


# Real processes


@pytest.mark.spec("R168")
def test_an_endless_loop_stops_neither_the_worker_nor_its_other_jobs(url: str, tmp_path: Path):
    app = prepare(make(url, tmp_path))
    env = environment(url, **{FOLDER: str(tmp_path)})
    command = duly("--app", "tests.jobs.isolated:app", "worker", "--concurrency=2", "--drain=0.1")
    worker = Process(command, env)
    try:
        wait_longer(app.workers, "the worker works")
        (before,) = app.workers()
        endless = app.run(app.function("endless").using(timeout=0.5))
        others = [app.run(app.function("plain")) for _ in range(5)]
        assert {job.result(20) for job in others} == {before.pid}
        wait_until(lambda: endless.state.is_terminal, "the limit passes")
        assert kind_of(endless) == ErrorKind.TIMEOUT

        # The loop continues, in its slot; so does everything else.
        (now,) = app.workers()
        assert now.id == before.id
        if url.startswith("postgres"):
            wait_longer(lambda: app.workers()[0].beat > now.beat + 1, "it beats")
        assert app.run(app.function("plain")).result(20) == before.pid
        worker.signal(15)
        assert worker.wait() == 0
    finally:
        worker.close()
        app.close()
