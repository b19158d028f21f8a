"""Watching a job: its state now, every newer one, and always the last."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, Event, ManualClock, Retry, State, Tx
from duly.errors import JobNotFound, StoreUnavailable, WouldWaitForItself
from duly.model.progress import Look, event_of, revision_of
from duly.runtime.worker import Worker
from duly.store import statements as sql
from duly.store import steps
from duly.store.statements import Dialect
from duly.store.steps import Steps
from tests.jobs.support import (
    PATIENCE,
    Database,
    Gate,
    Hire,
    in_thread,
    on_postgres,
    on_sqlite,
    prepare,
    tidy,
    wait_until,
)

NOBODY = "00000000-0000-7000-8000-000000000000"


def watching_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("duly-watcher", "duly-listener")]


def is_growing(events: list[Event]) -> bool:
    revisions = [event.revision for event in events]
    return revisions == sorted(set(revisions))


@pytest.fixture
def live(url: str) -> Iterator[Duly]:
    """An app on the real clock, by which progress is written while a job runs."""
    app = prepare(Duly(url))
    yield app
    app.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs this process asked about in each look."""
    sizes: list[int] = []
    look = steps.look

    def counted(dialect: Dialect, job_ids: Any) -> Steps[list[Look]]:
        sizes.append(len(job_ids))
        return look(dialect, job_ids)

    monkeypatch.setattr(steps, "look", counted)
    return sizes


@pytest.mark.spec("R164")
def test_a_watcher_gets_the_state_at_once_then_newer_ones_then_the_last(live: Duly):
    gates = [Gate(), Gate()]

    @live.action
    def work(ctx: Ctx) -> str:
        for step, gate in enumerate(gates):
            ctx.progress(step / 2, f"step {step}")
            gate.pass_through()
        return "done"

    job = live.run(work)
    seen: list[Event] = []
    with live:
        for event in job.watch(timeout=PATIENCE):
            seen.append(event)
            if event.note == "step 0":
                gates[0].open()
            if event.note == "step 1":
                gates[1].open()

    assert is_growing(seen)
    assert seen[0].state in (State.PENDING, State.RUNNING)
    assert {event.job_id for event in seen} == {job.id}
    running = [(e.progress, e.note) for e in seen if e.state == State.RUNNING and e.note]
    assert running == [(0.0, "step 0"), (0.5, "step 1")]
    assert (seen[-1].state, seen[-1].progress, seen[-1].attempt) == (State.SUCCEEDED, 1.0, 1)
    assert job.result() == "done"


@pytest.mark.spec("R164")
def test_the_first_event_comes_without_any_change(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    watch = job.watch()

    event = next(watch)

    assert event == Event(job.id, State.PENDING, 0, None, None, 0)
    watch.close()


@pytest.mark.spec("R164")
def test_a_job_that_has_ended_before_the_first_look_gives_its_end_alone(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None:
        ctx.progress(1.0)

    job = app.run(work)
    hire().work()

    (event,) = job.watch(timeout=PATIENCE)

    assert (event.state, event.progress) == (State.SUCCEEDED, 1.0)


def test_a_job_that_outlived_retention_is_watched_too(app: Duly, hire: Hire, clock: ManualClock):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    hire().work()
    clock.advance(10 * 86_400)
    tidy(app)

    assert [event.state for event in job.watch(timeout=PATIENCE)] == [State.SUCCEEDED]


def test_the_ends_of_a_job_are_all_last(app: Duly, hire: Hire):
    @app.action
    def fail(ctx: Ctx) -> None:
        raise ValueError("no")

    failed, canceled = app.run(fail), app.run(fail)
    canceled.cancel()
    hire().work()

    assert [e.state for e in failed.watch(timeout=PATIENCE)] == [State.FAILED]
    assert [e.state for e in canceled.watch(timeout=PATIENCE)] == [State.CANCELED]


def test_a_retry_is_seen_as_pending_again(app: Duly, hire: Hire, clock: ManualClock):
    @app.action(retry=Retry(attempts=2, delay=10, jitter=0))
    def work(ctx: Ctx) -> None:
        ctx.progress(ctx.attempt / 2)
        if ctx.attempt == 1:
            raise ValueError("once")

    job = app.run(work)
    worker = hire()
    watch = job.watch(timeout=PATIENCE)
    seen = [next(watch)]
    worker.work()
    while (seen[-1].state, seen[-1].attempt) != (State.PENDING, 1):
        seen.append(next(watch))
    clock.advance(20)
    worker.work()
    seen += watch

    assert is_growing(seen)
    assert [(e.state, e.attempt, e.progress) for e in seen if e.state != State.RUNNING] == [
        (State.PENDING, 0, None),
        (State.PENDING, 1, 0.5),
        (State.SUCCEEDED, 2, 1.0),
    ]
    assert {e.progress for e in seen if e.state == State.RUNNING and e.attempt == 2} <= {None, 1.0}


def test_revisions_grow_with_whatever_is_shown():
    def look(state: State, token: int, reported: int | None = None) -> Look:
        return Look("id", state, token, 1, 0.5, None, reported, 0)

    shown = [
        look(State.PENDING, 0),
        look(State.RUNNING, 1),
        look(State.RUNNING, 1, revision_of(1, 1)),
        look(State.RUNNING, 1, revision_of(1, 2)),
        look(State.PENDING, 2, revision_of(1, 2)),
        look(State.RUNNING, 3, revision_of(1, 2)),
        look(State.RUNNING, 3, revision_of(3, 1)),
        look(State.SUCCEEDED, 3, revision_of(3, 1 << 40)),
    ]
    events = [event_of(each) for each in shown]
    assert is_growing(events)
    progress = [event.progress for event in events]
    assert progress == [None, None, 0.5, 0.5, 0.5, None, 0.5, 1.0]


def test_a_watch_ends_after_its_time_limit(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)

    assert [event.state for event in job.watch(timeout=0.3)] == [State.PENDING]
    wait_until(lambda: watching_threads() == [])


def test_whoever_stops_watching_frees_the_watcher(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    assert watching_threads() == []
    for _ in job.watch():
        assert "duly-watcher" in watching_threads()
        break
    wait_until(lambda: watching_threads() == [], "the threads have ended")

    async def watch() -> None:
        async with aclosing(app.aio.watch(job.id)) as events:
            async for _ in events:
                break

    asyncio.run(watch())
    wait_until(lambda: watching_threads() == [], "the threads have ended")


def test_an_unknown_job_cannot_be_watched(app: Duly):
    async def watch() -> None:
        async for _ in app.aio.watch(NOBODY):
            pass

    with pytest.raises(JobNotFound):
        asyncio.run(watch())
    with pytest.raises(JobNotFound):
        asyncio.run(anext(app.aio.watch("no id")))


def test_a_mutation_cannot_watch(app: Duly, hire: Hire):
    @app.action
    def work(ctx: Ctx) -> None: ...

    @app.mutation
    def wait(tx: Tx) -> None:
        with pytest.raises(WouldWaitForItself):
            tx.run(work).watch()

    job = app.run(wait)
    hire().work()

    assert job.state == State.SUCCEEDED


def test_closing_the_app_ends_every_watch(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    watch = job.watch()
    next(watch)
    app.close()

    with pytest.raises(StoreUnavailable):
        next(watch)
    assert watching_threads() == []


def test_async_code_watches_without_a_thread_of_its_own(app: Duly):
    @app.action
    async def work(ctx: AsyncCtx) -> str:
        await ctx.progress(0.5, "half")
        return "done"

    async def watch() -> tuple[list[Event], str]:
        job = await app.aio.run(work)
        events = [event async for event in job.watch(timeout=PATIENCE)]
        return events, await job.result()

    with app:
        events, result = asyncio.run(watch())

    assert is_growing(events)
    assert (events[-1].state, events[-1].note, result) == (State.SUCCEEDED, "half", "done")


def test_an_async_watch_ends_after_its_time_limit(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)

    async def watch() -> list[State]:
        return [event.state async for event in app.aio.watch(job.id, timeout=0.3)]

    assert asyncio.run(watch()) == [State.PENDING]


def test_two_hundred_watchers_cost_one_thread_and_one_statement_a_look(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch, looks: list[int]
):
    @app.action
    def work(ctx: Ctx) -> None: ...

    statements: list[str] = []
    names = {statement: name for name, statement in sql.named_statements()}
    session = type(app.ready().read(lambda s: s))
    run = session.run

    def counted(self: Any, statement: Any, *more: Any) -> Any:
        if names[statement].startswith("LOOK"):
            statements.append(names[statement])
        return run(self, statement, *more)

    jobs = app.run_many([work.bind() for _ in range(200)])
    started = threading.Semaphore(0)

    async def watch_one(job_id: str) -> list[State]:
        states: list[State] = []
        async for event in app.aio.watch(job_id, timeout=PATIENCE):
            if not states:
                started.release()
            states.append(event.state)
        return states

    async def watch_all() -> list[list[State]]:
        return await asyncio.gather(*(watch_one(job.id) for job in jobs))

    with in_thread(lambda: asyncio.run(watch_all())) as answer:
        for _ in jobs:
            assert started.acquire(timeout=PATIENCE)
        monkeypatch.setattr(session, "run", counted)
        before = len(looks)
        wait_until(lambda: len(looks) > before + 2, "some looks at rest")
        assert watching_threads().count("duly-watcher") == 1
        assert len(watching_threads()) == (2 if app.store.tells_changes else 1)
        assert looks[-1] == 200
        assert set(statements) == {"LOOK_LIVE"}
        assert len(statements) <= len(looks) - before + 1
        worker = hire(concurrency=200)
        worker.work()
        states = answer()

    assert [each[-1] for each in states] == [State.SUCCEEDED] * 200


def test_nobody_looks_when_nobody_watches(app: Duly, hire: Hire, looks: list[int]):
    @app.action
    def work(ctx: Ctx) -> None: ...

    app.run(work)
    hire().work()

    assert (looks, watching_threads()) == ([], [])


# Across processes --------------------------------------------------------------------------------


def make_app(url: str) -> Duly:
    app = Duly(url)

    @app.action
    def steps(ctx: Ctx, count: int) -> str:
        for step in range(count):
            ctx.progress(step / count, f"step {step}")
            ctx.log(f"line {step}")
            # Long enough for the watcher to see it.
            threading.Event().wait(0.35)
        return "done"

    return app


@contextmanager
def another_process(url: str) -> Iterator[None]:
    """A worker in its own process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.jobs.test_watch", url],
        env=environment,
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield
    finally:
        process.communicate(timeout=PATIENCE)


@pytest.mark.spec("R164")
def test_a_job_in_another_process_is_watched_live(url: str):
    app = make_app(url)
    app.migrate()
    job = app.run(app.function("steps"), 4)

    with another_process(url):
        seen = list(job.watch(timeout=60))

    assert is_growing(seen)
    assert seen[0].state == State.PENDING
    notes = [event.note for event in seen if event.note and event.state == State.RUNNING]
    assert notes == [f"step {step}" for step in range(4)]
    assert (seen[-1].state, seen[-1].note) == (State.SUCCEEDED, "step 3")
    assert [line.text for line in job.logs()] == [f"line {step}" for step in range(4)]
    app.close()


@on_postgres
@pytest.mark.spec("R165")
def test_a_killed_connection_costs_no_event(app: Duly, hire: Hire, db: Database):
    gate = Gate()

    @app.action
    def work(ctx: Ctx) -> None:
        gate.pass_through()

    job = app.run(work)
    worker = hire()
    watch = job.watch(timeout=PATIENCE)
    seen = [next(watch)]
    worker.start_due()
    gate.wait_for_one()
    seen.append(next(watch))

    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for _ in range(3):
        db.execute(kill)
    gate.open()
    # The worker's own connections were among them.
    wait_until(lambda: _settles(worker))
    seen += watch

    assert is_growing(seen)
    assert [event.state for event in seen] == [State.PENDING, State.RUNNING, State.SUCCEEDED]


@pytest.mark.spec("R165")
def test_an_outage_costs_no_event(app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch):
    """Even if the job ends, and its row moves, while the watcher cannot look."""

    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    worker = hire()
    watch = job.watch(timeout=PATIENCE)
    seen = [next(watch)]
    tried = threading.Event()
    with monkeypatch.context() as outage:

        def away(*_: object) -> None:
            tried.set()
            raise StoreUnavailable("away")

        outage.setattr(app.store, "look", away)
        worker.work()
        assert tried.wait(PATIENCE)
    seen += watch

    assert is_growing(seen)
    assert (seen[0].state, seen[-1].state) == (State.PENDING, State.SUCCEEDED)


@on_sqlite
def test_on_sqlite_a_change_is_told_and_not_waited_for(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.runtime.watch.MAX_LOOK_SECONDS", 3600.0)

    @app.action
    def work(ctx: Ctx) -> None: ...

    job = app.run(work)
    watch = job.watch(timeout=PATIENCE)
    seen = [next(watch)]
    hire().work()
    seen += watch

    assert seen[-1].state == State.SUCCEEDED


def _settles(worker: Any) -> bool:
    inner: Worker = worker.worker
    worker.settle()
    return inner.idle


if __name__ == "__main__":
    with make_app(sys.argv[1]):
        sys.stdin.read()
