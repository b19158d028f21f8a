"""Processes for jobs that crashed two workers: how many, who says how they died, and what if one
cannot be started."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from duly import AsyncCtx, Duly, State, Tx
from duly.ids import new_id
from duly.runtime import alone
from duly.runtime.alone import MAX_AT_ONCE, AloneRuns
from duly.runtime.heartbeat import find_dead
from duly.runtime.lifeline import BODY_GRACE
from duly.runtime.liveness import ROUNDS_UNTIL_DEAD, LivenessRounds
from duly.runtime.service import run_alone
from duly.runtime.teams import AsyncTeam
from duly.store.base import WorkerInfo
from tests.jobs.support import PATIENCE, Database, on_postgres, on_sqlite, wait_until

SLEEP = [sys.executable, "-S", "-c", f"import time; time.sleep({PATIENCE})"]


class Started:
    """Every process that was asked for."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def __call__(self, job_id: str, file: int) -> Sequence[str]:
        self.jobs.append(job_id)
        return SLEEP


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def app(url: str) -> Iterator[Duly]:
    app = Duly(url, auto_migrate=True)
    app.ready()
    yield app
    app.close()


@pytest.fixture
def runs(app: Duly, started: Started) -> Iterator[AloneRuns]:
    runs = AloneRuns(app.core, started)
    yield runs
    runs.tell_to_stop()
    runs.wait(PATIENCE)
    runs.look_after()
    assert not runs._running


class Case:
    """A job in a process of its own, and how that ends."""

    def __init__(self, app: Duly, url: str, how: str = "") -> None:
        @app.mutation
        def send(tx: Tx) -> None: ...

        self.job = app.run(send)
        now = self.job.record.run_at
        self.worker_id = new_id(now)
        db = Database(url)
        db.execute("UPDATE @jobs SET hold = 'alone', crashes = 3")
        db.close()
        info = WorkerInfo(self.worker_id, "app", "host", 1, None, ("send",), 1, True, 0, now)
        app.store.register(info, now)
        assert app.store.claim_alone(self.job.id, self.worker_id, ["send"], now) is not None
        leave = [sys.executable, "-S", "-c", f"import os; os._exit({how[-1:]})"]
        self.runs = AloneRuns(app.core, lambda *_: leave if "exit" in how else SLEEP)
        self.runs.start(self.job.id)
        self.run = self.runs._running[self.job.id]
        self.run.lifeline.worker_is(self.worker_id)
        if how == "stuck":
            self.run.lifeline.body_began(self, -BODY_GRACE - 1)
            self.runs.look_after()
        if "stop" in how:
            self.runs.tell_to_stop()
        if "SIG" in how:
            self.run.process.send_signal(getattr(signal, how.split()[0]))
        if how:
            wait_until(lambda: not self.run.is_running, "the process has ended")

    def close(self) -> None:
        self.run.process.kill()
        self.run.process.wait()


Play = Callable[[str], Case]


@pytest.fixture
def play(app: Duly, url: str) -> Iterator[Play]:
    with ExitStack() as stack:

        def play(how: str) -> Case:
            case = Case(app, url, how)
            stack.callback(case.close)
            return case

        yield play


@on_sqlite
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit 3", "stuck"])
def test_a_crash_counts_when_the_worker_lives_on(
    play: Play, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(alone, "GRACE", 0.05)
    case = play(how)

    case.runs.look_after()
    assert case.job.state == State.RUNNING  # whatever killed it may be about to kill this process

    def is_settled() -> bool:
        case.runs.look_after()
        return case.job.state.is_terminal

    wait_until(is_settled, "the worker says how it died")
    assert case.job.error is not None
    assert case.job.error.kind == "crash_loop"
    assert not case.runs._running


@on_sqlite
@pytest.mark.parametrize("how", ["exit 0", "SIGTERM at a stop", "SIGKILL at a stop"])
def test_an_end_in_order_and_a_stop_are_not_crashes(
    play: Play, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(alone, "GRACE", 0)
    case = play(how)

    case.runs.look_after()

    assert not case.runs._running
    assert case.job.state == State.RUNNING


@on_sqlite
def test_others_leave_the_verdict_to_the_worker_that_started_it(app: Duly, play: Play) -> None:
    case = play("SIGKILL")
    store: Any = app.store
    store.abandon(case.worker_id)
    assert store.is_dead(case.worker_id)
    observer = LivenessRounds()

    found = [find_dead(store, observer, store.beats()) for _ in range(ROUNDS_UNTIL_DEAD + 1)]

    # If that worker has died too, they do not wait forever.
    assert found == [[]] * ROUNDS_UNTIL_DEAD + [[(case.worker_id, 0)]]


@on_postgres
def test_its_heartbeats_come_from_its_worker_too(app: Duly, play: Play) -> None:
    """A body may hold the interpreter for longer than others wait."""
    case = play("")
    case.runs.look_after()
    assert app.store.beats()[case.worker_id] == 1

    case.close()
    case.runs.look_after()
    assert app.store.beats()[case.worker_id] == 1


@on_sqlite
def test_only_a_few_run_at_once(runs: AloneRuns, started: Started) -> None:
    jobs = [f"job {n}" for n in range(MAX_AT_ONCE + 2)]
    for job_id in jobs:
        runs.start(job_id)
    assert started.jobs == jobs[:MAX_AT_ONCE]

    run = runs._running["job 0"]
    run.process.kill()
    wait_until(lambda: not run.is_running, "one has ended")
    runs.look_after()
    for job_id in jobs[MAX_AT_ONCE:]:
        runs.start(job_id)
    assert started.jobs == jobs[: MAX_AT_ONCE + 1]


@on_sqlite
def test_a_process_that_cannot_be_started_is_tried_again(
    runs: AloneRuns,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        runs.start("job")
    assert "cannot be started now: [Errno 11] Resource temporarily unavailable" in caplog.text
    runs.start("job")

    assert started.jobs == ["job", "job"]
    assert list(runs._running) == ["job"]


@on_sqlite
def test_it_drains_for_as_long_as_its_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_path = Duly(url, auto_migrate=True)
    monkeypatch.setattr(with_path, "found_at", "shop.tasks:app")
    runs = with_path.service(concurrency=1, drain=7.5)._alone_runs
    assert runs is not None
    assert runs._command is not None

    asked = runs._command("id", 3)

    assert list(asked[-4:]) == ["worker", "--drain=7.5", "--alone=id", "--child=3"]
    with_path.close()


@on_sqlite
def test_what_cannot_be_started_in_its_own_process_is_given_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, db = Duly(url, auto_migrate=True), Database(url)

    @app.action
    async def act(ctx: AsyncCtx) -> None: ...

    def refuse(team: AsyncTeam, attempts: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(AsyncTeam, "start_many", refuse)
    job = app.run(act)
    db.execute("UPDATE @jobs SET hold = 'alone', crashes = 2")

    run_alone(app.core, job.id, None, lambda: False)

    record = job.record
    assert (record.state, record.hold, record.crashes) == (State.PENDING, "alone", 2)
    assert record.error_message == "could not be started: can't start new thread"
    assert db.count("@workers") == 0
    db.close()
    app.close()
