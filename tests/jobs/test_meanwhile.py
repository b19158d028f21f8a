"""What another process does between two statements of this one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from duly import Ctx, Duly, Job, ManualClock, Retry, State, fault
from duly.errors import StoreUnavailable
from duly.model.job import Finish
from duly.runtime.heartbeat import Heartbeat
from duly.runtime.liveness import ROUNDS_UNTIL_DEAD
from tests.jobs.support import Database, Gate, Hire, in_thread, on_postgres, wait_until
from tests.jobs.support import tidy as run_janitor
from tests.schedules.support import tick_all


def test_a_bulk_cancel_of_pending_jobs_leaves_one_that_has_started_meanwhile(
    app: Duly, hire: Hire
) -> None:
    @app.action
    def send(ctx: Ctx) -> None: ...

    starts, waits = app.run(send), app.run_after(60, send)
    own, thief = hire(queues=["nothing else"]), hire()
    bulk = app.bulk.cancel(state="pending", function=send)
    store: Any = app.store
    live_ids = store.live_ids

    def then_claim(*args: Any) -> Any:
        found = live_ids(*args)
        thief.claim_only()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "live_ids", then_claim)
        own.work()

    assert bulk.result(0) == {"matched": 2, "changed": 1, "skipped": 1}
    assert (starts.state, waits.state) == (State.RUNNING, State.CANCELED)


def test_a_job_that_waits_for_its_next_attempt_does_not_expire(
    app: Duly, clock: ManualClock, hire: Hire
) -> None:
    @app.action(retry=Retry(attempts=3))
    def flaky(ctx: Ctx) -> int:
        if ctx.attempt == 1:
            raise ConnectionError
        return ctx.attempt

    again = app.run(flaky.using(expires=timedelta(seconds=1)))
    never = app.run_after(0.5, flaky.using(expires=timedelta(seconds=1)))
    worker = hire()
    worker.work()
    assert again.state == State.PENDING
    clock.advance(3600)
    run_janitor(app)
    worker.work()

    assert (again.state, again.result(0)) == (State.SUCCEEDED, 2)
    assert never.state == State.CANCELED


@on_postgres
def test_the_children_of_a_child_that_succeeds_meanwhile_are_not_canceled(
    app: Duly, db: Database, hire: Hire
) -> None:
    parent_gate, child_gate, commit_gate = Gate(), Gate(), Gate()
    grandchildren: list[Job[None]] = []

    @app.action
    def grandchild(ctx: Ctx) -> None: ...

    @app.action
    def child(ctx: Ctx) -> None:
        grandchildren.append(ctx.run_after(3600, grandchild))
        child_gate.pass_through()

    @app.action
    def parent(ctx: Ctx) -> None:
        ctx.run(child)
        parent_gate.pass_through()

    job = app.run(parent)
    worker = hire()
    worker.start_due()
    parent_gate.wait_for_one()
    worker.start_due()
    child_gate.wait_for_one()
    (running,) = job.children()
    store: Any = app.store

    def end(session: Any) -> None:
        session.settle([Finish(id=running.id, token=1, state="succeeded")], app.clock.now())
        commit_gate.pass_through()

    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with in_thread(lambda: store.write(end)) as ended:
        commit_gate.wait_for_one()
        with in_thread(job.cancel) as canceled:
            wait_until(lambda: db.scalar(waiting), "the cancel waits for the end of the child")
            commit_gate.open()
            assert canceled() is True
        ended()
    child_gate.open()
    parent_gate.open()

    assert (job.state, running.state) == (State.CANCELED, State.SUCCEEDED)
    assert grandchildren[0].state == State.PENDING


def test_a_job_that_comes_before_a_backlog_is_claimed_within_a_second(
    app: Duly, clock: ManualClock, db: Database, hire: Hire
) -> None:
    order: list[int] = []

    @app.action
    def note(ctx: Ctx, n: int) -> None:
        order.append(n)

    jobs = [app.run(note, n) for n in range(20)]
    worker = hire(concurrency=2)

    def claim_some() -> None:
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()

    while len(order) < 4:
        claim_some()
    # As a retry, or another machine's job, that is due earlier than what was claimed last.
    db.execute("UPDATE @jobs SET run_at = run_at - 1000 WHERE id = ?", jobs[-1].id)
    clock.advance(1.1)
    before = len(order)
    claim_some()
    claim_some()

    assert 19 in order[before : before + 4]


@on_postgres
def test_a_slot_that_is_taken_while_it_is_decided_counts_for_nothing(
    app: Duly, clock: ManualClock, postgres_url: str
) -> None:
    @app.action
    def poke(ctx: Ctx) -> None: ...

    schedule = app.schedules.create("s", poke, every=timedelta(hours=1), remaining=3)
    clock.advance(3600)
    tick_at = clock.now()

    def take_it(point: str) -> None:
        if point == "ticker.decided":
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute(
                    """INSERT INTO duly.ticks (schedule_id, kind, tick_at, outcome, reason,
                        due_at, decided_at)
                    VALUES (%s, 'slot', %s, 'skipped', 'operator', %s, %s)""",
                    (schedule.id, tick_at, tick_at, tick_at),
                )

    with fault.inject(take_it):
        tick_all(app)
    after = app.schedules.get("s")

    assert app.jobs() == []
    assert (after.record.remaining, after.record.last_dispatch_at) == (3, None)
    assert after.record.next_tick_at == tick_at + 3_600_000


@on_postgres
@pytest.mark.parametrize("failing", ["beat", "beats"])
def test_a_failed_heartbeat_resets_the_count_of_silent_rounds(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    @app.action
    def wave(ctx: Ctx) -> None: ...

    job = app.run(wave)
    silent, observer = hire(), hire()
    silent.claim_only()
    silent.fall_silent()
    beat = Heartbeat(observer.worker)

    def rounds(count: int) -> State:
        for _ in range(count):
            beat.one_pass()
        return job.state

    assert rounds(ROUNDS_UNTIL_DEAD) == State.RUNNING

    def fail(*_: object) -> None:
        raise StoreUnavailable("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(app.store, failing, fail)
        beat.one_pass()
    # The last heartbeat that was seen is known, so one round less than at the start.
    assert rounds(ROUNDS_UNTIL_DEAD - 1) == State.RUNNING
    assert rounds(1) != State.RUNNING
