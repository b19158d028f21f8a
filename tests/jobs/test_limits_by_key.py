"""Limits by key: how many jobs run at once, how many start in a period, and which is next."""

import multiprocessing
import random
import threading
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from duly import Ctx, Duly, Job, Limit, ManualClock, Retry, State, Tx, Unique, fault
from duly.errors import InvalidOption, StoreUnavailable
from duly.model.keys import KeyRoom, Rules
from duly.store import limits
from duly.store import statements as sql
from duly.store.base import ClaimRequest
from duly.store.sqlite import SQL
from duly.testing import drain
from tests.jobs.support import (
    DAY,
    PATIENCE,
    Database,
    Gate,
    Hire,
    ManualWorker,
    in_thread,
    on_postgres,
    rescue_the_dead,
    tidy,
    wait_until,
)
from tests.levels import at_every_level


class Bodies:
    """Bodies that run until they are let go, whatever they are told."""

    def __init__(self) -> None:
        self._guard = threading.Condition()
        self._free: set[int] = set()
        self.running: list[int] = []
        self.started: list[int] = []
        self.most = 0

    def run(self, number: int) -> None:
        with self._guard:
            insort(self.running, number)
            self.started.append(number)
            self.most = max(self.most, len(self.running))
            self._guard.notify_all()
            assert self._guard.wait_for(lambda: number in self._free, PATIENCE)
            self.running.remove(number)
            self._guard.notify_all()

    def wait_for(self, *numbers: int) -> None:
        with self._guard:
            arrived = self._guard.wait_for(lambda: set(numbers) <= set(self.running), PATIENCE)
            assert arrived, f"{numbers} did not all start: {self.running}"

    def end(self, *numbers: int) -> None:
        with self._guard:
            self._free |= set(numbers)
            self._guard.notify_all()
            assert self._guard.wait_for(lambda: not set(numbers) & set(self.running), PATIENCE)

    def end_all(self) -> None:
        self.end(*range(1000))


@pytest.fixture
def bodies() -> Bodies:
    return Bodies()


@pytest.fixture
def hire(hire: Hire, bodies: Bodies) -> Iterator[Hire]:
    """Bodies are let go, and their outcomes recorded, before their workers are stopped."""
    hired: list[ManualWorker] = []

    def make(*args: Any, **settings: Any) -> ManualWorker:
        hired.append(hire(*args, **settings))
        return hired[-1]

    yield make
    bodies.end_all()
    for worker in hired:
        worker.wait_for_bodies()
        worker.settle()


@pytest.fixture
def work(app: Duly, bodies: Bodies) -> Any:
    @app.action(limit=Limit("k", at_once=2))
    def work(ctx: Ctx, number: int) -> int:
        bodies.run(number)
        return number

    return work


def holds(db: Database) -> list[str | None]:
    return [hold for (hold,) in db.execute("SELECT hold FROM @jobs ORDER BY id")]


def pass_until(worker: ManualWorker, holds: Callable[[], object]) -> None:
    """Settle and claim repeatedly until the condition holds."""

    def turn() -> object:
        worker.settle()
        worker.start_due()
        return holds()

    wait_until(turn)


# At once ------------------------------------------------------------------------------------------


@pytest.mark.spec("N7", "N32")
@at_every_level
def test_only_so_many_of_a_key_run_and_the_others_are_held(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    jobs = app.run_many(work.bind(n) for n in range(5))
    worker = hire()
    worker.start_due()
    bodies.wait_for(0, 1)

    assert [job.state for job in jobs] == ["running"] * 2 + ["pending"] * 3
    assert holds(db) == [None, None, "key", "key", "key"]
    assert db.count("@slots") == 2
    # A job that waits holds nothing of its worker.
    assert worker.worker._free_threads() == 8
    bodies.end_all()
    worker.work()
    assert [job.result(0) for job in jobs] == [0, 1, 2, 3, 4]
    assert bodies.most == 2
    assert db.count("@slots") == 0


@pytest.mark.spec("N7", "N32")
@at_every_level
def test_the_limit_holds_over_all_workers(app: Duly, work: Any, hire: Hire, bodies: Bodies):
    app.run_many(work.bind(n) for n in range(3))
    first, second = hire(concurrency=1), hire()
    first.start_due()
    second.start_due()
    bodies.wait_for(0, 1)
    second.start_due()

    assert len(bodies.running) == 2
    bodies.end(0)
    pass_until(first, lambda: 2 in bodies.started)


@pytest.mark.spec("N7", "N32")
def test_who_waits_is_freed_in_order_of_priority_and_age(
    app: Duly, work: Any, hire: Hire, bodies: Bodies, clock: ManualClock
):
    app.run_many(work.bind(n) for n in (0, 1))
    worker = hire(concurrency=4)
    worker.start_due()
    bodies.wait_for(0, 1)
    app.run(work, 12)
    clock.advance(1)
    app.run(work, 13)
    app.run(work.using(priority=1), 14)
    app.run(work.using(priority=8), 11)
    pass_until(worker, lambda: app.held() and app.held()[0].count == 4)
    for number, follower in ((0, 11), (11, 12), (12, 13), (13, 14)):
        bodies.end(number)
        pass_until(worker, lambda: follower in bodies.started)  # noqa: B023

    assert bodies.started[2:] == [11, 12, 13, 14]


@pytest.mark.spec("N7", "N32")
def test_other_keys_and_plain_jobs_are_not_kept_waiting(
    app: Duly, work: Any, hire: Hire, bodies: Bodies
):
    app.run_many(work.bind(n) for n in range(50))
    app.run(work.using(limit=Limit(lambda number: f"own:{number}", at_once=1)), 51)
    app.run(work.using(limit=None), 52)
    worker = hire(concurrency=4)
    pass_until(worker, lambda: len(bodies.running) == 4)

    assert sorted(bodies.running) == [0, 1, 51, 52]


@pytest.mark.spec("N7", "N32")
def test_without_a_key_the_function_is_limited(app: Duly, work: Any, hire: Hire, bodies: Bodies):
    app.run_many(work.using(limit=Limit(at_once=1)).bind(n) for n in range(2))
    worker = hire()
    worker.start_due()
    bodies.wait_for(0)
    worker.start_due()

    assert bodies.running == [0]


@pytest.mark.spec("N7", "N32")
def test_a_canceled_body_counts_until_it_has_ended(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    jobs = app.run_many(work.bind(n) for n in range(3))
    worker = hire()
    worker.start_due()
    bodies.wait_for(0, 1)
    jobs[0].cancel()
    for _ in range(3):
        worker.beat()
        worker.settle()
        worker.start_due()
        tidy(app)

    assert jobs[0].state == State.CANCELED
    assert bodies.running == [0, 1]
    assert db.count("@slots") == 2
    bodies.end(0)
    pass_until(worker, lambda: bodies.running == [1, 2])
    assert bodies.most == 2


@pytest.mark.spec("N7", "N32")
def test_a_body_over_its_time_counts_until_it_has_ended(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies, clock: ManualClock
):
    late = work.using(timeout=5, retry=Retry(attempts=2, delay=0, jitter=0))
    job = app.run(late.using(limit=Limit("k", at_once=1)), 0)
    worker = hire()
    worker.start_due()
    bodies.wait_for(0)
    clock.advance(6)
    worker.watch()
    for _ in range(3):
        worker.settle()
        clock.advance(10)
        worker.beat()
        worker.start_due()
        tidy(app)

    # The second attempt waits for the end of the first.
    assert job.record.attempt == 1
    assert bodies.started == [0]
    assert holds(db) == ["key"]
    bodies.end(0)
    worker.work()
    assert job.result(0) == 0
    assert bodies.started == [0, 0]


@pytest.mark.spec("N7", "N32")
def test_the_end_of_an_earlier_attempt_does_not_free_the_slot_of_a_later_one(
    app: Duly, db: Database, hire: Hire, clock: ManualClock
):
    gates = [Gate(), Gate()]

    @app.action(limit=Limit("k", at_once=2), timeout=5, retry=Retry(2, delay=0, jitter=0))
    def stay(ctx: Ctx) -> None:
        gates[ctx.attempt - 1].pass_through()

    app.run(stay)
    worker = hire()
    worker.start_due()
    gates[0].wait_for_one()
    clock.advance(6)
    worker.watch()
    worker.settle()
    worker.start_due()
    gates[1].wait_for_one()
    assert db.count("@slots") == 2
    gates[0].open()
    wait_until(lambda: worker.worker._slots.are_to_be_freed)
    worker.settle()

    assert db.execute("SELECT token FROM @slots") == [(3,)]
    gates[1].open()


@pytest.mark.spec("N7", "N32")
@at_every_level
def test_the_slot_of_a_killed_worker_is_freed_by_whoever_rescues_its_jobs(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    victim, observer = hire(), hire()
    jobs = app.run_many(work.bind(n) for n in range(3))
    victim.claim_only()
    assert [job.state for job in jobs] == ["running", "running", "pending"]
    observer.start_due()
    assert bodies.started == []
    victim.die()
    rescue_the_dead(observer)

    assert db.count("@slots") == 0
    assert holds(db) == [None]
    observer.start_due()
    bodies.wait_for(2)


@pytest.mark.spec("N7", "N32")
def test_a_job_that_lost_its_worker_keeps_its_turn(app: Duly, clock: ManualClock, hire: Hire):
    """Behind all that came meanwhile, each further loss would cost it as long again."""
    ran: list[int] = []

    @app.action(limit=Limit("k", at_once=1), retry=Retry(delay=5, jitter=0))
    def work(ctx: Ctx, number: int) -> None:
        ran.append(number)

    victim, observer = hire(), hire()
    app.run(work, 0)
    victim.claim_only()
    for number in (1, 2, 3):
        clock.advance(1)
        app.run(work, number)
    observer.start_due()
    victim.die()
    rescue_the_dead(observer)
    observer.start_due()
    clock.advance(5)
    # It is due again, and has to wait for its key.
    hire().start_due()
    observer.work()

    # The slot went to the first of the line before the lost job was due again.
    assert ran == [1, 0, 2, 3]


@pytest.mark.spec("N7", "N32")
def test_a_slot_that_is_just_being_freed_is_no_body_that_goes_on(
    app: Duly, db: Database, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    """A worker that stops meanwhile would keep its row and its jobs while its process lives."""

    @app.action(limit=Limit("k", at_once=1))
    def work(ctx: Ctx) -> None: ...

    app.run(work)
    worker = hire()
    slots, real = worker.worker._slots, app.store.release_slots
    seen: list[tuple[int, bool]] = []

    def release(ended: Any, now: int) -> bool:
        seen.append((slots.counted_bodies(), slots.are_to_be_freed))
        return real(ended, now)

    monkeypatch.setattr(app.store, "release_slots", release)
    worker.work()

    assert seen == [(0, True)]
    assert (db.count("@slots"), slots.are_to_be_freed) == (0, False)


@pytest.mark.spec("N7", "N32")
def test_a_mutation_gives_its_slot_back_too(app: Duly, db: Database, hire: Hire):
    @app.mutation(limit=Limit("k", at_once=1))
    def insert(tx: Tx, number: int) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (str(number),))
        if number == 1:
            raise ValueError

    jobs = app.run_many(insert.bind(n) for n in range(4))
    hire().work()

    assert [job.state for job in jobs] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert db.notes() == ["0", "2", "3"]
    assert db.count("@slots") == 0


@pytest.mark.spec("N7", "N32")
def test_a_claim_whose_answer_was_lost_gives_its_slots_back(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
):
    jobs = app.run_many(work.bind(n) for n in range(3))
    worker = hire()
    store = worker.worker.store
    exchange = store.exchange

    def lose(*asked: Any) -> Any:
        exchange(*asked)
        raise StoreUnavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(store, "exchange", lose)
        worker.start_due()
    assert db.count("@slots") == 2
    # One of them is canceled before the worker has looked.
    jobs[0].cancel()
    worker.beat()

    assert db.count("@slots") == 0
    worker.start_due()
    bodies.wait_for(1, 2)


@pytest.mark.spec("N7", "N32")
def test_a_claim_that_could_not_be_started_gives_its_slots_back(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    def fail(point: str) -> None:
        if point == "worker.claimed":
            raise RuntimeError("no memory")

    app.run_many(work.bind(n) for n in range(2))
    worker = hire()
    with fault.inject(fail), pytest.raises(RuntimeError, match="no memory"):
        worker.start_due()
    assert db.count("@slots") == 2
    worker.beat()

    assert db.count("@slots") == 0
    worker.start_due()
    bodies.wait_for(0, 1)


@pytest.mark.spec("N7", "N32")
def test_a_worker_that_stops_leaves_the_slots_of_bodies_that_go_on(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    app.run_many(work.bind(n) for n in range(3))
    leaving, staying = hire(concurrency=1), hire()
    leaving.start_due()
    bodies.wait_for(0)
    leaving._stopped = True
    with _loops(leaving):
        leaving.worker.stop(0.01)
    staying.start_due()
    bodies.wait_for(1)
    staying.start_due()

    assert bodies.running == [0, 1]
    assert leaving.id in {info.id for info in app.workers()}
    bodies.end(0)
    wait_until(lambda: leaving.id not in {info.id for info in app.workers()})
    pass_until(staying, lambda: bodies.running == [1, 2])


@pytest.mark.spec("N7", "N32")
def test_a_worker_that_stops_while_the_store_fails_keeps_no_slot(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
):
    app.run_many(work.bind(n) for n in range(3))
    leaving, staying = hire(concurrency=2), hire()
    leaving.start_due()
    bodies.wait_for(0, 1)
    bodies.end(0, 1)
    leaving.wait_for_bodies()

    def fail(*asked: Any) -> Any:
        raise StoreUnavailable("as planned")

    monkeypatch.setattr(leaving.worker, "_flush", lambda: leaving.settle())
    with monkeypatch.context() as patch:
        patch.setattr(leaving.worker.store, "release_slots", fail)
        leaving.stop()

    assert leaving.id not in {info.id for info in app.workers()}
    assert db.count("@slots") == 0
    tidy(app)
    staying.start_due()
    bodies.wait_for(2)


@pytest.mark.spec("N7", "N32")
def test_a_worker_that_cannot_deregister_is_rescued_with_its_slots(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies, monkeypatch: pytest.MonkeyPatch
):
    app.run_many(work.bind(n) for n in range(2))
    leaving, staying = hire(), hire()
    leaving.start_due()
    bodies.wait_for(0, 1)
    bodies.end(0, 1)
    leaving.wait_for_bodies()

    def fail(*asked: Any) -> Any:
        raise StoreUnavailable("as planned")

    monkeypatch.setattr(leaving.worker, "_flush", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(leaving.worker.store, "write", fail)
        leaving.stop()
    assert db.count("@slots") == 2
    rescue_the_dead(staying)

    assert leaving.id not in {info.id for info in app.workers()}
    assert db.count("@slots") == 0


@contextmanager
def _loops(worker: ManualWorker) -> Iterator[None]:
    """Let the worker's own loops run for a while."""
    for loop in (worker.worker.loop, worker.worker._finish_loop):
        loop.start()
    yield


@pytest.mark.spec("N7", "N32")
def test_a_job_that_runs_alone_waits_for_its_slot(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies, clock: ManualClock
):
    job = app.run(
        work.using(limit=Limit("k", at_once=1), retry=Retry(attempts=9, delay=0, jitter=0)), 0
    )
    for _ in range(2):
        victim = hire()
        victim.claim_only()
        victim.die()
        rescue_the_dead(hire())
        clock.advance(60)
    assert holds(db) == ["alone"]
    other = hire()
    app.run(work.using(limit=Limit("k", at_once=1)), 1)
    other.start_due()
    bodies.wait_for(1)

    store, alone = app.ready(), hire(alone=job.id)
    assert store.claim_alone(job.id, alone.id, [job.function], clock.now()) is None
    assert list(store.due_alone([job.function], None, clock.now())) == []
    bodies.end(1)
    other.settle()
    clock.advance(5)
    assert list(store.due_alone([job.function], None, clock.now())) == [job.id]
    claim = store.claim_alone(job.id, alone.id, [job.function], clock.now())
    assert claim is not None
    assert claim.holds_slot
    assert store.slots_of(alone.id) == {(job.id, claim.token)}


@pytest.mark.spec("N7", "N32")
def test_jobs_that_were_held_although_there_is_room_are_found(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    app.run_many(work.bind(n) for n in range(3))
    db.execute("UPDATE @jobs SET hold = 'key'")
    hire()
    tidy(app)

    assert sorted(holds(db), key=str) == [None, None, "key"]


@pytest.mark.spec("N7", "N32")
def test_drain_runs_limited_jobs_one_by_one(app: Duly, db: Database):
    done: list[int] = []

    @app.action(limit=Limit(lambda number: str(number % 2), at_once=1))
    def note(ctx: Ctx, number: int) -> None:
        done.append(number)

    app.run_many(note.bind(n) for n in range(6))
    drain(app)

    assert done == [0, 1, 2, 3, 4, 5]
    assert db.count("@slots") == 0


@pytest.mark.spec("N7", "N32")
def test_drain_goes_on_behind_jobs_whose_key_is_taken(
    app: Duly, work: Any, hire: Hire, bodies: Bodies
):
    done: list[int] = []

    @app.action
    def note(ctx: Ctx) -> None:
        done.append(1)

    app.run_many(work.bind(n) for n in range(2))
    hire().start_due()
    bodies.wait_for(0, 1)
    app.run_many([*(work.bind(n) for n in range(2, 9)), note.bind()])
    drain(app)

    assert done == [1]


@pytest.mark.spec("N7", "N32")
def test_a_retried_dead_letter_is_under_the_limit_again(app: Duly, db: Database, hire: Hire):
    @app.action(limit=Limit(lambda number: f"n{number}", at_once=1))
    def fail(ctx: Ctx, number: int) -> None:
        raise ValueError

    job = app.run(fail, 7)
    hire().work()
    again = app.retry(job)

    assert db.scalar("SELECT limit_key FROM @jobs WHERE id = ?", again.id) == "n7"


@pytest.mark.spec("N7", "N32")
def test_limited_and_unique_go_together(app: Duly, work: Any, hire: Hire, bodies: Bodies):
    once = work.using(unique=Unique("u", "unfinished"))
    jobs = [app.run(once, n) for n in range(3)]

    assert [job.existed for job in jobs] == [False, True, True]
    worker = hire()
    worker.start_due()
    bodies.wait_for(0)
    assert app.ready().slots_of(worker.id)


# Many processes -----------------------------------------------------------------------------------

HAMMER = 60


@pytest.mark.spec("N7", "N32")
def test_eight_threads_in_two_processes_never_run_more_than_the_limit(
    app: Duly, url: str, db: Database
):
    context = multiprocessing.get_context("spawn")
    with context.Manager() as shared:
        counter, guard = shared.dict(running=0, most=0, ran=0), shared.Lock()
        enough = shared.Event()
        processes = [
            context.Process(target=_hammer, args=(url, counter, guard, enough)) for _ in range(2)
        ]
        for process in processes:
            process.start()
        try:
            wait_until(lambda: counter["ran"] >= 2 * HAMMER, "the end of all jobs")
        finally:
            enough.set()
            for process in processes:
                process.join(PATIENCE)

        assert [process.exitcode for process in processes] == [0, 0]
        assert counter["most"] <= 2
    assert db.count("@slots") == 0
    assert db.scalar("SELECT count(*) FROM @jobs WHERE hold IS NOT NULL") == 0


def _hammer(url: str, counter: Any, guard: Any, enough: Any) -> None:
    app = Duly(url, concurrency=8)

    @app.action(limit=Limit("k", at_once=2), retry=Retry(attempts=3, delay=0, jitter=0))
    def work(ctx: Ctx, number: int) -> None:
        with guard:
            counter["running"] += 1
            counter["most"] = max(counter["most"], counter["running"])
        with guard:
            counter["running"] -= 1
            counter["ran"] += 1

    with app:
        app.run_many(work.bind(n) for n in range(HAMMER // 2))
        for number in range(HAMMER // 2):
            app.run(work, number)
        enough.wait(PATIENCE)
    app.close()


@pytest.mark.spec("N7", "N32")
@at_every_level
def test_workers_that_claim_and_end_at_the_same_moment_lose_nobody(app: Duly, db: Database):
    """A job must not begin to wait just after the one that would have freed it has looked."""
    guard = threading.Lock()
    running, most = [0], [0]

    @app.action(limit=Limit("k", at_once=1))
    def work(ctx: Ctx, number: int) -> None:
        with guard:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with guard:
            running[0] -= 1

    app.run_many(work.bind(n) for n in range(120))
    stores = app.ready()

    def hammer() -> None:
        worker = ManualWorker(app, concurrency=2)
        while stores.lanes():
            worker.start_due()
            worker.wait_for_bodies()
            worker.settle()
        worker.stop()

    threads = [threading.Thread(target=hammer, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    # No job was freed by the safety net: no janitor ran.
    wait_until(lambda: db.count("@slots") == 0)
    drain(app)
    assert most[0] == 1
    assert db.scalar("SELECT count(*) FROM @jobs WHERE hold = 'key'") == 0
    assert db.count("@history") == 120


@pytest.mark.spec("N7", "N32")
@on_postgres
def test_a_release_waits_for_the_claim_that_is_about_to_let_a_job_wait(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    """Otherwise neither sees the other, and the job waits forever."""
    one = work.using(limit=Limit("k", at_once=1))
    jobs = app.run_many(one.bind(n) for n in range(2))
    worker = hire(concurrency=1)
    worker.start_due()
    bodies.wait_for(0)
    bodies.end(0)
    worker.wait_for_bodies()
    store: Any = app.ready()
    request = ClaimRequest(worker.id, ("default",), ("work",), 1, limited=True)
    gate = Gate()

    def claim_slowly(session: Any) -> None:
        assert session.claim_limited(request, app.clock.now()) == ([], True)
        gate.pass_through()

    with in_thread(lambda: store.write(claim_slowly)) as claimed:
        gate.wait_for_one()
        with in_thread(worker.settle) as settled:
            wait_until(lambda: db.scalar("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            gate.open()
            settled()
        claimed()

    assert jobs[1].record.hold is None


# Rate ---------------------------------------------------------------------------------------------


@pytest.fixture
def starts(app: Duly, clock: ManualClock) -> list[tuple[int, float]]:
    return []


@pytest.fixture
def tick(app: Duly, clock: ManualClock, starts: list[tuple[int, float]]) -> Any:
    begin = clock.now()

    @app.action(limit=Limit("k", rate=2, per=60))
    def tick(ctx: Ctx, number: int) -> None:
        starts.append((number, (clock.now() - begin) / 1000))

    return tick


@pytest.mark.spec("N41")
def test_starts_that_a_clock_ahead_has_noted_count_no_longer_once_it_is_right(
    app: Duly, tick: Any, hire: Hire, clock: ManualClock
):
    worker = hire()
    clock.jump(DAY)
    app.run_many(tick.bind(n) for n in range(2))
    worker.work()
    clock.jump(-DAY)
    jobs = app.run_many(tick.bind(n) for n in range(3))
    worker.work()
    assert [job.state for job in jobs] == ["succeeded"] * 2 + ["pending"]


@pytest.mark.spec("N7", "N22")
@at_every_level
def test_never_more_than_so_many_start_in_any_window(
    app: Duly,
    tick: Any,
    hire: Hire,
    clock: ManualClock,
    starts: list[tuple[int, float]],
    db: Database,
):
    jobs = app.run_many(tick.bind(n) for n in range(5))
    worker = hire()
    worker.work()
    assert sorted(starts) == [(0, 0), (1, 0)]
    assert [job.state for job in jobs] == ["succeeded"] * 2 + ["pending"] * 3
    clock.advance(59.999)
    worker.work()
    assert len(starts) == 2

    clock.advance(0.001)
    worker.work()
    assert sorted(starts[2:]) == [(2, 60), (3, 60)]
    clock.advance(60)
    worker.work()
    assert starts[4:] == [(4, 120)]
    assert db.count("@slots") == 0


@pytest.mark.spec("N7", "N22")
def test_the_window_slides(
    app: Duly, tick: Any, hire: Hire, clock: ManualClock, starts: list[tuple[int, float]]
):
    worker = hire()
    for number in range(6):
        app.run(tick, number)
        worker.work()
        clock.advance(20)
    while len(starts) < 6:
        worker.work()
        clock.advance(1)

    assert starts == [(0, 0), (1, 20), (2, 60), (3, 80), (4, 120), (5, 140)]


@pytest.mark.spec("N7", "N22")
def test_who_waits_for_the_rate_holds_no_slot_and_has_a_time(
    app: Duly, tick: Any, hire: Hire, clock: ManualClock, db: Database
):
    jobs = app.run_many(tick.bind(n) for n in range(50))
    worker = hire()
    worker.work()

    due = app.clock.now() + 60_000
    assert worker.worker._room() == 10
    assert jobs[2].record.run_at == due
    assert jobs[2].record.scheduled_at == app.clock.now()
    # The others cost nothing until it is their turn.
    assert holds(db) == [None] + ["key"] * 47
    assert [lane.run_at for lane in app.ready().lanes()] == [due]


@pytest.mark.spec("N7", "N22")
@pytest.mark.parametrize("seed", range(3))
def test_any_window_of_many_arrivals_is_within_the_rate(
    app: Duly, hire: Hire, clock: ManualClock, seed: int
):

    chance = random.Random(seed)
    started: list[int] = []

    @app.action(limit=Limit("k", rate=3, per=1))
    def tick(ctx: Ctx) -> None:
        started.append(clock.now())

    workers = [hire(), hire()]
    for _ in range(40):
        app.run_many(tick.bind() for _ in range(chance.randrange(3)))
        clock.advance(chance.choice([0.001, 0.1, 0.333, 0.5, 1]))
        for worker in workers:
            worker.work()
    while app.ready().lanes() or app.held():
        clock.advance(0.1)
        workers[0].work()

    assert len(started) > 10
    for nth, after in zip(started, started[3:], strict=False):
        assert after - nth >= 1000


@pytest.mark.spec("N7", "N22")
def test_the_one_that_has_its_turn_may_be_canceled(
    app: Duly, tick: Any, hire: Hire, clock: ManualClock, starts: list[tuple[int, float]]
):
    jobs = app.run_many(tick.bind(n) for n in range(4))
    worker = hire()
    worker.work()
    jobs[2].cancel()
    tidy(app)
    clock.advance(60)
    worker.work()

    assert sorted(starts) == [(0, 0), (1, 0), (3, 60)]


@pytest.mark.spec("N7", "N22")
def test_a_rate_and_a_number_at_once_both_hold(
    app: Duly, work: Any, hire: Hire, clock: ManualClock, bodies: Bodies
):
    both = work.using(limit=Limit("b", at_once=1, rate=2, per=60))
    app.run_many(both.bind(n) for n in range(4))
    worker = hire()
    worker.start_due()
    bodies.wait_for(0)
    worker.start_due()
    assert bodies.running == [0]
    bodies.end(0)
    pass_until(worker, lambda: bodies.running == [1])
    bodies.end(1)
    for _ in range(3):
        worker.settle()
        worker.start_due()
    assert bodies.started == [0, 1]

    clock.advance(60)
    pass_until(worker, lambda: bodies.running == [2])
    worker.start_due()
    assert bodies.started == [0, 1, 2]


@pytest.mark.spec("N7", "N22")
def test_starts_are_forgotten_when_they_do_not_count_any_more(
    app: Duly, tick: Any, hire: Hire, clock: ManualClock, db: Database
):
    app.run_many(tick.bind(n) for n in range(2))
    hire().work()
    assert db.count("@starts") == 2
    clock.advance(60)
    tidy(app)

    assert db.count("@starts") == 0


@pytest.mark.spec("N7", "N22")
def test_room_is_exact_at_the_edge_of_the_window():
    rules = Rules(None, 2, 1000)
    room = KeyRoom(starts=[0, 400])

    assert room.starts_at(rules, 999) == 1000
    assert not room.may_start(rules, 999)
    assert room.may_start(rules, 1000)
    room.take(rules, 1000)
    assert room.starts_at(rules, 1000) == 1400
    assert room.starts_at(rules, 5000) == 5000
    # The clock of another machine may be a little ahead.
    ahead = KeyRoom(starts=[5010, 5000])
    assert ahead.starts_at(rules, 4990) == 6000
    ahead.take(rules, 4990)
    assert ahead.starts_at(Rules(None, 3, 1000), 4990) == 5990
    ahead.take(Rules(9, None, None), 4990)
    assert ahead.starts_at(Rules(None, 4, 1000), 4990) == 4990, "what has no rate does not count"


@pytest.mark.spec("N7", "N22")
def test_room_says_how_many_could_start():
    rate = Rules(None, 3, 1000)
    assert KeyRoom(starts=[0, 400]).startable(rate, 999) == 1
    assert KeyRoom(starts=[0, 400]).startable(rate, 1000) == 2
    assert KeyRoom(starts=[0, 0, 0, 0]).startable(rate, 999) == 0, "the rate was lowered"
    assert KeyRoom(slots=[1]).startable(Rules(2, 3, 1000), 0) == 1
    most = [Rules(None, None, None), Rules(5000, None, None), Rules(None, 5000, 1000)]
    assert [KeyRoom().startable(rules, 0) for rules in most] == [1000] * 3


@pytest.mark.spec("N7", "N32")
def test_a_limit_that_was_lowered_counts_those_above_it():
    room = KeyRoom(slots=[3, 4])

    assert [room.free_slots(Rules(most, None, None)) for most in (1, 2, 3)] == [0, 0, 1]
    assert room.take(Rules(5, None, None), 0) == 1
    assert room.startable(Rules(5, None, None), 0) == 2


# Queues -------------------------------------------------------------------------------------------


@pytest.mark.spec("N7", "N32")
@at_every_level
def test_a_queue_runs_only_so_many_at_once_over_all_workers(
    app: Duly, work: Any, db: Database, hire: Hire, bodies: Bodies
):
    app.queues.limit("small", 2)
    small = work.using(queue="small", limit=None)
    app.run_many([*(small.bind(n) for n in range(4)), work.using(limit=None).bind(10)])
    first, second = hire(), hire()
    first.start_due()
    second.start_due()
    bodies.wait_for(0, 1, 10)
    second.start_due()
    assert len(bodies.running) == 3
    assert app.queues.limits() == {"small": 2}
    # Waiting jobs block no others and are not held: another limit takes effect immediately.
    assert set(holds(db)) == {None}

    bodies.end(0)
    pass_until(first, lambda: bodies.running == [1, 2, 10])
    app.queues.limit("small", None)
    pass_until(second, lambda: len(bodies.running) == 4)
    bodies.end_all()
    first.work()
    second.work()
    assert db.count("@slots") == 0


@pytest.mark.spec("N7", "N32")
def test_a_queue_and_a_key_both_hold(app: Duly, work: Any, hire: Hire, bodies: Bodies):
    app.queues.limit("small", 3)
    app.run_many(work.using(queue="small").bind(n) for n in range(3))
    app.run_many(work.using(queue="small", limit=None).bind(n) for n in range(10, 13))
    worker = hire()
    pass_until(worker, lambda: len(bodies.running) == 3)
    worker.start_due()

    assert sorted(bodies.running) == [0, 1, 10]


@pytest.mark.spec("N7", "N32")
def test_a_limited_queue_can_be_paused_and_keeps_its_limit(app: Duly, work: Any, hire: Hire):
    app.queues.limit("small", 1)
    app.queues.pause("small")
    app.run(work.using(queue="small"), 0)
    worker = hire()
    worker.start_due()
    assert worker.worker.idle
    assert [pause.name for pause in app.queues.paused()] == ["small"]
    app.queues.resume("small")

    assert app.queues.paused() == []
    assert app.queues.limits() == {"small": 1}


@pytest.mark.parametrize("most", [0, -1, True, "2", 1.5])
def test_what_is_no_limit_of_a_queue_is_refused(app: Duly, most: Any):
    with pytest.raises(InvalidOption) as refused:
        app.queues.limit("small", most)
    assert refused.value.option == "at_once"


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.spec("N7", "N32")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Limit("k"), "give at_once, or rate and per"),
        (lambda: Limit("k", at_once=0), "at_once"),
        (lambda: Limit("k", at_once=True), "at_once"),
        (lambda: Limit("k", at_once=1.5), "at_once"),  # type: ignore[arg-type]
        (lambda: Limit("k", rate=5), "rate and per must be given together"),
        (lambda: Limit("k", at_once=1, per=5), "rate and per must be given together"),
        (lambda: Limit("k", rate=0, per=5), "rate must be 1 to 10,000"),
        (lambda: Limit("k", rate=10_001, per=5), "rate must be 1 to 10,000"),
        (lambda: Limit("k", rate=1, per=0), "per must be"),
        (lambda: Limit("k", rate=1, per="minute"), "per must be"),  # type: ignore[arg-type]
        (lambda: Limit(7, at_once=1), "a key must be text, not 7"),  # type: ignore[arg-type]
        (lambda: Limit("k" * 201, at_once=1), "1 to 200 printable characters"),
        (lambda: Limit("queue:x", at_once=1), "are reserved for duly"),
    ],
)
def test_what_cannot_be_a_limit_is_refused(make: Callable[[], Limit], words: str):
    with pytest.raises(InvalidOption, match=words) as refused:
        make()
    assert refused.value.option == "limit"


def test_another_thing_than_a_limit_is_refused(work: Any):
    with pytest.raises(InvalidOption) as refused:
        work.using(limit=2)
    assert refused.value.option == "limit"


def test_a_computed_key_that_is_no_text_is_refused(app: Duly, work: Any):
    with pytest.raises(InvalidOption) as refused:
        app.run(work.using(limit=Limit(lambda number: number, at_once=1)), 1)
    assert refused.value.option == "limit"


@pytest.mark.spec("N7", "N32")
def test_a_declared_function_has_the_limit_that_its_workers_published(
    app: Duly, work: Any, url: str, clock: ManualClock, hire: Hire, db: Database
):
    hire()
    other = Duly(url, clock=clock, name="other")

    @other.declare(name="work")
    def declared(number: int) -> int: ...  # type: ignore[empty-body]

    job: Job[int] = other.run(declared, 7)
    assert db.execute("SELECT limit_key, limits FROM @jobs") == [("k", "[2,null,null]")]
    assert job.state == State.PENDING
    other.close()


# Plans --------------------------------------------------------------------------------------------

WAITING = 30_000


@pytest.mark.new_database
@pytest.mark.spec("N7", "N32")
@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("LINES", "jobs_limit"),
        ("LINES", "jobs_limited"),
        ("WAITERS", "jobs_limit"),
        ("AWAITED_KEYS", "jobs_limit"),
        ("HOLD_LINE", "jobs_limited"),
    ],
)
def test_jobs_that_wait_for_a_key_cost_nothing(app: Duly, db: Database, name: str, index: str):
    columns = "id, function, kind, queue, priority, hold, created_at, scheduled_at, run_at, args"
    row = "'work', 'action', 'default', 5, 'key', 0, 0, 0, '{}', 'k', '[2,null,null]'"
    numbers, make_id = (
        (f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM s WHERE n < {WAITING})", "n")
        if db.is_sqlite
        else (f"WITH s AS (SELECT generate_series(1, {WAITING}) AS n)", "gen_random_uuid()")
    )
    db.execute(
        f"INSERT INTO @jobs ({columns}, limit_key, limits) {numbers} SELECT {make_id}, {row} FROM s"
    )
    line: dict[str, Any] = {"queue": "default", "function": "work", "limits": "[2,null,null]"}
    if not db.is_sqlite and name == "WAITERS":
        line = {f"{name}s": [value] for name, value in line.items()} | {"limits": [line["limits"]]}
    given = {"key": "k", "limit": 2, "now": 10, "after": ""} | line
    statement = getattr(limits, name)
    if db.is_sqlite:
        text = "EXPLAIN QUERY PLAN " + SQL[statement]
        plan = [row[3] for row in db.connect().execute(text, given)]
        assert all("SCAN duly_jobs" not in line for line in plan)
        assert any(f"INDEX duly_{index} " in line for line in plan)
    else:
        text = "EXPLAIN " + sql.render(statement.postgres, "postgres", sql.words_for("postgres"))
        plan = [row[0] for row in db.connect().execute(text, given)]
        assert not any("Seq Scan on jobs" in line for line in plan)
        assert any(f" {index} " in line for line in plan)
