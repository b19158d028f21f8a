"""Processes for jobs that crashed two workers: how many, and what if one cannot be started."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from duly import AsyncCtx, Duly, State
from duly.runtime.alone import MOST_AT_ONCE, AloneRuns
from duly.runtime.service import run_alone
from duly.runtime.teams import AsyncTeam
from tests.jobs.support import PATIENCE, Database, on_sqlite, wait_until

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
def runs(started: Started) -> Iterator[AloneRuns]:
    runs = AloneRuns(started)
    yield runs
    runs.tell_to_stop()
    runs.wait(PATIENCE)
    runs._forget_ended()


def test_only_a_few_run_at_once(runs: AloneRuns, started: Started) -> None:
    jobs = [f"job {n}" for n in range(MOST_AT_ONCE + 2)]
    for job_id in jobs:
        runs.start(job_id)
    assert started.jobs == jobs[:MOST_AT_ONCE]

    process, _ = runs._running["job 0"]
    process.kill()
    wait_until(lambda: process.poll() is not None, "one has ended")
    for job_id in jobs[MOST_AT_ONCE:]:
        runs.start(job_id)
    assert started.jobs == jobs[: MOST_AT_ONCE + 1]


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
