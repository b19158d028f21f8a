"""Waiting lines: which job gets a free slot when jobs ahead of it cannot start."""

from collections.abc import Callable
from typing import Any

import pytest

from duly import Ctx, Duly, Job, Limit, ManualClock, State
from duly.model.keys import KeyRoom, Rules, Waiter, WaitingLine, lock_order, next_of, startable
from tests.jobs.support import Database, Hire, ManualWorker, state_of, tidy

pytestmark = pytest.mark.spec("N7", "N46")
BEHIND = 50


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def work(app: Duly, ran: list[str]) -> Any:
    @app.action(limit=Limit("k", at_once=1))
    def work(ctx: Ctx, name: str) -> None:
        ran.append(name)

    return work


@pytest.fixture
def stuck(app: Duly, ran: list[str]) -> Any:
    """Another function of the same key."""

    @app.action(limit=Limit("k", at_once=1))
    def stuck(ctx: Ctx, name: str) -> None:
        ran.append(name)

    return stuck


def wait_for_the_key(db: Database) -> None:
    """As if each had been tried, and turned away."""
    db.execute("UPDATE @jobs SET hold = 'key' WHERE state = 'pending' AND hold IS NULL")


def free(db: Database) -> list[str]:
    return [q for (q,) in db.execute("SELECT queue FROM @jobs WHERE hold IS NULL ORDER BY id")]


def pause_queue(app: Duly) -> None:
    app.queues.pause("p")


def pause_function(app: Duly) -> None:
    app.functions.pause("stuck")


def nothing(app: Duly) -> None:
    """No worker serves queue p: that is enough."""


@pytest.mark.parametrize("prevent", [pause_queue, pause_function, nothing])
def test_a_free_slot_goes_to_the_first_that_can_start(
    app: Duly,
    work: Any,
    stuck: Any,
    ran: list[str],
    db: Database,
    hire: Hire,
    prevent: Callable[[Duly], None],
):
    """In the pass in which it became free, whichever jobs are in front of it."""
    worker = hire(queues=["default"])
    app.run(work, "first")
    app.run_many([stuck.using(queue="p", priority=9).bind("stuck")] * BEHIND)
    late = [app.run(work, name) for name in ("second", "third")]
    worker.start_due()
    wait_for_the_key(db)
    prevent(app)
    worker.wait_for_bodies()
    worker.start_due()
    worker.wait_for_bodies()
    assert ran == ["first", "second"]
    worker.work()
    assert ran == ["first", "second", "third"]
    assert {state_of(job) for job in late} == {State.SUCCEEDED}
    assert db.count("@jobs WHERE hold = 'key'") == BEHIND


def test_what_could_not_start_gets_the_slot_when_it_can(
    app: Duly, work: Any, stuck: Any, ran: list[str], db: Database, hire: Hire
):
    worker = hire()
    app.queues.pause("p")
    app.run_many([stuck.using(queue="p").bind("stuck")] * 3)
    wait_for_the_key(db)
    tidy(app)
    worker.work()
    assert ran == []
    app.queues.resume("p")
    tidy(app)
    worker.work()
    assert ran == ["stuck"] * 3


def test_a_worker_that_comes_is_given_what_waits_for_its_queue(
    app: Duly, work: Any, ran: list[str], db: Database, hire: Hire
):
    hire(queues=["default"])
    app.run_many([work.using(queue="p").bind("p")] * 2)
    wait_for_the_key(db)
    tidy(app)
    assert free(db) == []
    newcomer = hire(queues=["p"])
    tidy(app)
    newcomer.work()
    assert ran == ["p", "p"]


def run_first(app: Duly, worker: ManualWorker, work: Any, db: Database) -> None:
    """A body of the key has ended, and its slot is not free yet."""
    app.run(work, "first")
    worker.start_due()
    wait_for_the_key(db)
    worker.wait_for_bodies()


def test_the_order_holds_over_workers_and_nobody_waits_for_one_that_is_busy(
    app: Duly, work: Any, ran: list[str], db: Database, hire: Hire
):
    """The first in line is freed for its own worker. If that does not come, others continue."""
    here, there = hire(queues=["default"]), hire(queues=["p"])
    app.run(work, "first")
    here.start_due()
    app.run_many([work.using(queue="p", priority=9).bind("p")] * 2)
    app.run_many([work.bind("a"), work.bind("b")])
    wait_for_the_key(db)
    here.wait_for_bodies()
    here.start_due()
    assert free(db)[-1:] == ["p"]
    assert ran == ["first"]
    tidy(app)
    here.work()
    assert ran == ["first", "a", "b"]
    there.work()
    assert ran == ["first", "a", "b", "p", "p"]


def test_a_limit_that_a_deploy_has_raised_holds_for_what_is_called_since(
    app: Duly, work: Any, ran: list[str], db: Database, hire: Hire
):
    """Each job goes by the limit that it was called with: one in front does not decide for all."""
    worker = hire()
    app.run(work, "first")
    worker.start_due()
    db.execute(
        "UPDATE @slots SET worker_id = worker_id, job_id = ?",
        "00000000-0000-7000-8000-000000000000",
    )
    app.run(work, "old")
    raised = work.using(limit=Limit("k", at_once=3))
    app.run_many([raised.bind("new 1"), raised.bind("new 2")])
    wait_for_the_key(db)
    worker.wait_for_bodies()
    worker.settle()
    tidy(app)
    worker.start_due()
    worker.wait_for_bodies()
    assert sorted(ran) == ["first", "new 1", "new 2"]


def test_a_worker_that_leaves_frees_those_that_waited_for_its_slots(
    app: Duly, work: Any, db: Database, hire: Hire
):
    hire()
    leaving = hire()
    app.run(work, "waits")
    wait_for_the_key(db)
    slot = ("k", 1, "00000000-0000-7000-8000-000000000000", 1, leaving.id)
    db.execute("INSERT INTO @slots VALUES (?, ?, ?, ?, ?)", *slot)
    tidy(app)
    assert free(db) == []
    leaving.stop()
    assert free(db) == ["default"]


def test_what_waits_for_a_key_is_canceled_with_its_function(
    app: Duly, work: Any, stuck: Any, ran: list[str], db: Database, hire: Hire
):
    worker = hire()
    gone = [app.run(stuck, "gone") for _ in range(3)]
    kept = app.run(work, "kept")
    wait_for_the_key(db)
    app.functions.delete("stuck")
    tidy(app)
    tidy(app)
    worker.work()
    assert {job.state for job in gone} == {State.CANCELED}
    assert (kept.state, ran) == (State.SUCCEEDED, ["kept"])


def test_an_expired_job_is_not_handed_a_slot(
    app: Duly, work: Any, ran: list[str], db: Database, hire: Hire, clock: ManualClock
):
    worker = hire()
    app.run(work, "first")
    worker.start_due()
    late: Job[None] = app.run(work.using(expires=5), "late")
    app.run(work, "second")
    wait_for_the_key(db)
    clock.advance(5)
    worker.wait_for_bodies()
    worker.work()
    assert ran == ["first", "second"]
    assert state_of(late) == State.PENDING
    tidy(app)
    assert state_of(late) == State.CANCELED


def test_what_a_clock_that_stepped_back_calls_early_is_not_handed_a_slot(
    app: Duly, work: Any, ran: list[str], db: Database, hire: Hire, clock: ManualClock
):
    worker = hire()
    app.run(work, "first")
    worker.start_due()
    app.run_many([work.bind("early"), work.bind("second")])
    wait_for_the_key(db)
    db.execute("UPDATE @jobs SET run_at = run_at + 5000 WHERE args LIKE '%early%'")
    worker.wait_for_bodies()
    worker.work()
    assert ran == ["first", "second"]
    clock.advance(5)
    tidy(app)
    worker.work()
    assert ran == ["first", "second", "early"]


def test_a_paused_job_that_had_a_time_does_not_keep_the_rate_for_itself(
    app: Duly, ran: list[str], db: Database, hire: Hire, clock: ManualClock
):
    @app.action(limit=Limit("r", rate=1, per=10))
    def work(ctx: Ctx, name: str) -> None:
        ran.append(name)

    worker = hire()
    app.run_many([work.bind("first"), work.using(queue="p", priority=9).bind("p")])
    app.run(work, "second")
    worker.work()
    assert len(ran) == 1
    app.queues.pause("p")
    tidy(app)
    clock.advance(10)
    worker.work()
    clock.advance(10)
    tidy(app)
    worker.work()
    assert {"first", "second"} <= set(ran)


def test_a_slot_is_handed_over_in_one_pass(app: Duly, work: Any, db: Database, hire: Hire):
    """The next job gets it as soon as the last one no longer has it."""
    worker = hire()
    app.run_many(work.bind(str(n)) for n in range(3))
    worker.start_due()
    worker.wait_for_bodies()
    (before,) = db.execute("SELECT job_id FROM @slots")
    worker.start_due()
    (after,) = db.execute("SELECT job_id FROM @slots")
    assert after != before
    worker.wait_for_bodies()


def test_what_is_due_and_who_waits_for_a_slot_take_turns(
    app: Duly, work: Any, ran: list[str], db: Database, hire: Hire
):
    """To hand over takes a while on PostgreSQL; other jobs do not wait for it, nor it for them."""

    @app.action
    def other(ctx: Ctx) -> None:
        ran.append("other")

    worker = hire()
    app.run_many(work.bind(name) for name in ("first", "second", "third"))
    for _ in range(2):
        worker.start_due()
        worker.wait_for_bodies()
    app.run(other)
    worker.start_due()
    worker.wait_for_bodies()
    both_at_once = app.store.finishes_with_claim
    assert ran[:2] == ["first", "second"]
    assert set(ran[2:]) == ({"other", "third"} if both_at_once else {"other"})
    app.run(other)
    worker.start_due()
    worker.wait_for_bodies()
    assert set(ran[2:]) == {"other", "third"}
    assert ran.count("other") == 2


def test_a_worker_with_slots_to_free_looks_again_at_once(
    app: Duly, work: Any, db: Database, hire: Hire
):
    """Even when it got nothing of what seemed due."""

    @app.action
    def other(ctx: Ctx) -> None: ...

    worker = hire()
    app.run_many(work.bind(name) for name in ("first", "second", "third"))
    for _ in range(2):
        worker.start_due()
        worker.wait_for_bodies()
    app.run(other)
    db.execute("UPDATE @jobs SET function = 'unknown' WHERE function = 'other'")
    assert worker.worker.one_pass() == 0


# Decisions ----------------------------------------------------------------------------------------

ONE, TWO = Rules(1, None, None), Rules(2, None, None)
RATE = Rules(None, 1, 1000)


def line(rules: str = "[1,null,null]", next_at: int | None = None, queue: str = "q") -> WaitingLine:
    return WaitingLine(queue, "f", rules, False, next_at)


def test_a_line_that_was_offered_a_slot_and_did_not_take_it_is_passed_over() -> None:
    offered, other = line(next_at=5), line(queue="other")
    assert startable([], [offered, other], KeyRoom(), 10) == [other]
    assert startable([offered], [], KeyRoom(), 10) == [offered]
    assert startable([], [offered], KeyRoom(), 4) == [offered]
    assert startable([offered], [other], KeyRoom([1]), 10) == []


def test_a_rate_gives_one_time_at_a_time() -> None:
    rate = "[null,1,1000]"
    assert startable([], [line(rate), line(rate, queue="x")], KeyRoom((), [100]), 200) != []
    assert startable([line(rate)], [], KeyRoom((), [100]), 200) == [line(rate)]
    waits = [line(rate), line(rate, next_at=1100, queue="x")]
    assert startable([], waits, KeyRoom((), [100]), 200) == []


def test_one_that_was_offered_a_slot_does_not_keep_the_time_of_a_rate_from_another() -> None:
    rate, both = line("[null,1,1000]", queue="x"), line("[1,1,1000]", queue="y")
    assert startable([], [line(next_at=5), rate], KeyRoom((), [100]), 200) == [rate]
    assert startable([both], [rate], KeyRoom([1], [100]), 200) == [rate], "no slot, no time"


def test_the_first_come_are_served_as_far_as_the_key_leaves_something() -> None:
    waiters = [Waiter(name, TWO, starts_here=name != "b") for name in "abc"]
    assert next_of(waiters, KeyRoom(), 10, 9) == (["a"], {"b": 0})
    assert next_of(waiters, KeyRoom(), 10, 0) == ([], {"a": 0, "b": 0})


def test_a_waiter_whose_queue_is_full_leaves_the_slot_to_the_next() -> None:
    waiters = [Waiter("full", ONE, True, True), Waiter("a", ONE, True), Waiter("b", ONE, True)]
    assert next_of(waiters, KeyRoom(), 0, 9) == (["a"], {"full": 0})


def test_only_the_first_gets_the_time_of_a_rate() -> None:
    waiters = [Waiter(name, RATE, starts_here=True) for name in "ab"]
    assert next_of(waiters, KeyRoom((), [100]), 200, 9) == ([], {"a": 1100})


def test_keys_are_locked_in_one_order_those_of_queues_first() -> None:
    assert lock_order(["b", "queue:z", "a", "queue:y", "a"]) == ["queue:y", "queue:z", "a", "b"]
