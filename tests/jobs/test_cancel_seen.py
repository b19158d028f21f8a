"""Canceling as running code sees it, and which writes are refused after the end."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, ErrorKind, Job, ManualClock, State, SystemClock
from duly.errors import JobNotFound
from duly.ids import new_id
from duly.model.job import Again, Claim, Finish, Raised, again, finished, settle
from duly.model.progress import ProgressReport, revision_of
from duly.runtime.execute import timeout_outcome
from duly.runtime.heartbeat import judge_lost
from tests.cli.processes import Process, duly, environment
from tests.jobs.isolated import FOLDER, make
from tests.jobs.support import PATIENCE, Database, Gate, Hire, ManualWorker, prepare, wait_until

# What cancel answers


@pytest.mark.spec("R170", "R172")
def test_the_first_cancel_of_a_pending_job_wins_and_the_second_does_not(
    app: Duly, clock: ManualClock, hire: Hire
):
    bodies: list[str] = []

    @app.action
    def act(ctx: Ctx) -> None:
        bodies.append(ctx.job_id)

    job = app.run_after(60, act)
    assert job.cancel() is True
    assert job.cancel() is False
    assert app.cancel(job.id) is False
    clock.advance(3600)
    hire().work()

    assert job.state == State.CANCELED
    assert job.canceled_by == "operator"
    assert bodies == []


@pytest.mark.spec("R172")
def test_the_second_cancel_of_a_running_job_does_not_win(app: Duly, hire: Hire):
    gate = Gate()

    @app.action
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()

    assert (job.cancel(), job.cancel()) == (True, False)
    gate.open()
    worker.work()


@pytest.mark.spec("R171")
def test_a_finished_job_cannot_be_canceled_and_an_unknown_one_is_an_error(app: Duly, hire: Hire):
    @app.action
    def act(ctx: Ctx, fails: bool) -> None:
        if fails:
            raise ValueError

    jobs = [app.run(act, fails) for fails in (False, True)]
    hire().work()

    assert [job.cancel() for job in jobs] == [False, False]
    assert [job.state for job in jobs] == [State.SUCCEEDED, State.FAILED]
    for unknown in (new_id(0), "no id at all"):
        with pytest.raises(JobNotFound):
            app.cancel(unknown)


# What the body sees


@pytest.fixture
def live(url: str) -> Iterator[Duly]:
    """An app whose worker runs by itself."""
    app = prepare(Duly(url, clock=SystemClock()))
    yield app
    app.close()


def see(ctx: Ctx) -> None:
    wait_until(lambda: ctx.canceled, "the body is told")


@pytest.mark.spec("R173")
def test_a_sync_body_can_see_the_cancel_and_leave_early(app: Duly, hire: Hire):
    gate = Gate()
    steps: list[int] = []

    @app.action
    def act(ctx: Ctx) -> str:
        for step in range(100):
            if ctx.canceled:
                return "left early"
            steps.append(step)
            if step == 3:
                gate.pass_through()
        return "did everything"

    job = app.run(act)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    job.cancel()
    worker.beat()
    gate.open()
    worker.work()

    assert steps == [0, 1, 2, 3]
    assert job.state == State.CANCELED
    assert job.record.result is None


def test_many_cancels_make_nobody_elses_worker_look_dead(
    app: Duly, url: str, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    """The bodies here are told immediately; the others have no time to send heartbeats."""
    gate = Gate()

    @app.action
    def act(ctx: Ctx) -> None:
        gate.pass_through()

    job = app.run(act)
    waiting = [app.run_after(3600, act) for _ in range(20)]
    worker = hire()
    worker.start_due()
    gate.wait_for_one()

    other = Duly(url, clock=app.clock)
    with other:
        service = other.core.service
        assert service is not None
        looks: list[None] = []
        reconcile = service.worker.reconcile

        def look() -> None:
            reconcile()
            looks.append(None)

        monkeypatch.setattr(service.worker, "reconcile", look)
        for number, unwanted in enumerate(waiting, 1):
            other.cancel(unwanted.id)
            wait_until(lambda: len(looks) >= number, "a look after the cancel")  # noqa: B023
    gate.open()
    worker.work()
    assert job.state == State.SUCCEEDED


@pytest.mark.spec("R84", "R173")
def test_a_canceled_async_body_goes_on_where_it_waits_until_its_limit(
    app: Duly, clock: ManualClock, hire: Hire
):
    began, seen = threading.Event(), threading.Event()
    ends: list[str] = []

    @app.action(timeout=5)
    async def act(ctx: AsyncCtx) -> None:
        began.set()
        try:
            while not ctx.canceled:
                await asyncio.sleep(0.001)
            seen.set()
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ends.append("interrupted")
            raise

    job = app.run(act)
    worker = hire()
    worker.start_due()
    assert began.wait(PATIENCE)
    job.cancel()
    worker.beat()
    assert seen.wait(PATIENCE)
    team = worker.worker._async
    assert team._loop is not None
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), team._loop).result(PATIENCE)
    assert ends == []
    clock.advance(5)
    worker.watch()
    worker.wait_for_bodies()
    worker.settle()

    assert ends == ["interrupted"]
    assert job.state == State.CANCELED


@pytest.mark.spec("R173")
@pytest.mark.parametrize("which", ["one", "all", "batch"])
def test_a_body_in_the_same_process_is_told_at_once(live: Duly, which: str):
    began, told = threading.Event(), threading.Event()

    @live.action
    def act(ctx: Ctx) -> None:
        began.set()
        see(ctx)
        told.set()

    # No heartbeat is sent while this test waits.
    live.start(beat_every=3600)
    batch = live.batch([act.bind()])
    assert began.wait(PATIENCE)
    verbs: dict[str, Callable[[], int]] = {
        "one": next(batch.jobs()).cancel,
        "all": partial(live.cancel_all, act),
        "batch": batch.cancel,
    }
    assert verbs[which]() == 1

    assert told.wait(PATIENCE)


@pytest.mark.spec("R173")
def test_a_body_in_another_process_is_told_with_its_next_beat(
    url: str, tmp_path: Path, record_property: Callable[[str, object], None]
):
    app = prepare(make(url, tmp_path))
    env = environment(url, **{FOLDER: str(tmp_path)})
    worker = Process(duly("--app", "tests.jobs.isolated:app", "worker"), env)
    clock = SystemClock()
    try:
        job: Job[Any] = app.run(app.function("look"))
        wait_until((tmp_path / "began").exists, "the body has begun")
        canceled_at = clock.monotonic()
        assert job.cancel() is True
        wait_until((tmp_path / "told").exists, "the body is told")
        record_property("told_after", clock.monotonic() - canceled_at)
    finally:
        worker.close()
        app.close()


# Who may still write


class Ended:
    """A job that has ended, and a claim of it that is still held."""

    def __init__(self, app: Duly, worker: ManualWorker, claim: Claim) -> None:
        self.app = app
        self.worker = worker
        self.claim = claim

    def exchange(self, settlement: Finish | Again) -> bool:
        settled, _ = self.app.store.exchange([settlement], None, self.app.clock.now())
        return bool(settled)


def late_success(job: Ended) -> bool:
    return job.exchange(finished(job.claim, State.SUCCEEDED, result='"late"'))


def late_failure(job: Ended) -> bool:
    error = Raised(ErrorKind.USER, "late")
    return job.exchange(settle(job.claim, error, job.app.clock.now(), 0))


def give_back(job: Ended) -> bool:
    return job.exchange(again(job.claim))


def timeout(job: Ended) -> bool:
    return job.exchange(settle(job.claim, timeout_outcome(job.claim), job.app.clock.now(), 0))


def timeout_by_the_janitor(job: Ended) -> bool:
    def judge(claim: Claim) -> Finish | Again:
        return settle(claim, timeout_outcome(claim), job.app.clock.now(), 0)

    now = job.app.clock.now()
    job.app.store.time_out(now + 3_600_000, judge, now)
    return False


def cancel(job: Ended) -> bool:
    return job.app.cancel(job.claim.id)


def cancel_all(job: Ended) -> bool:
    return bool(job.app.cancel_all(job.claim.function))


def rescue(job: Ended) -> bool:
    judge = judge_lost(job.app.clock)
    return bool(job.app.store.rescue(job.worker.id, None, judge, job.app.clock.now()))


def progress(job: Ended) -> bool:
    claim = job.claim
    revision = revision_of(claim.token, 1)
    report = ProgressReport(claim.id, claim.token, revision, 0.5, "late", job.app.clock.now())
    job.app.store.report([report], [])
    return False


def child(job: Ended) -> bool:
    """Whatever it schedules now is canceled, and it stays what it is."""
    store, claim = job.app.store, job.claim
    told = store.enqueue_child((claim.id, claim.token), [], "parent:x", job.app.clock.now())
    return bool(told)


WRITERS = [
    *(late_success, late_failure, give_back, timeout, timeout_by_the_janitor),
    *(cancel, cancel_all, rescue, progress, child),
]


@pytest.mark.spec("R167")
@pytest.mark.parametrize("end", [State.SUCCEEDED, State.FAILED, State.CANCELED])
@pytest.mark.parametrize("write", WRITERS, ids=[writer.__name__ for writer in WRITERS])
def test_no_writer_changes_a_job_that_has_ended(
    app: Duly,
    db: Database,
    clock: ManualClock,
    hire: Hire,
    write: Callable[[Ended], bool],
    end: State,
):
    @app.action(timeout=5)
    def act(ctx: Ctx) -> None: ...

    job = app.run(act)
    worker = hire()
    worker.claim_only()
    record = job.record
    fields: dict[str, Any] = {n: getattr(record, n, False) for n in Claim.__struct_fields__}
    ended = Ended(app, worker, Claim(**fields))
    if end == State.CANCELED:
        assert job.cancel()
    else:
        assert ended.exchange(Finish(id=job.id, token=record.token, state=end))
    before = db.snapshot() | {"@progress": db.execute("SELECT * FROM @progress")}
    clock.advance(3600)

    assert write(ended) is False
    assert db.snapshot() | {"@progress": db.execute("SELECT * FROM @progress")} == before
    assert job.state == end
