"""A job that takes its worker down is convicted alone; whoever ran beside it is not."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duly import Job, State
from tests.cli.processes import Process, duly, environment, wait_until
from tests.jobs.support import Database
from tests.torture.kill.poison import BYSTANDERS, make
from tests.torture.kill.trace import Trace

APP = "tests.torture.kill.poison:app"
NOTES = 2
DEATHS_UNTIL_CONVICTED = 4


class Ward:
    """A database, an app that enqueues, and a worker over it."""

    def __init__(self, url: str, folder: Path) -> None:
        self._trace = Trace(folder)
        self._app = make(url, folder)
        self._app.migrate()
        with self._app.transaction() as tx:
            tx.execute("CREATE TABLE effects (job_id text)")
        self._db = Database(url)
        self._env = environment(url, KILL_FOLDER=str(folder))
        self._worker: Process | None = None

    def enqueue(self, name: str, count: int = 1) -> list[Job[Any]]:
        function = self._app.function(name)
        return self._app.run_many(function.bind() for _ in range(count))

    def start(self, **env: str) -> Process:
        command = duly("--app", APP, "worker", "--concurrency=30")
        self._worker = Process(command, self._env | env)
        return self._worker

    def send_alone(self) -> None:
        """Let every job look as if it had crashed two workers."""
        self._db.execute("UPDATE @jobs SET hold = 'alone', crashes = 2")

    def has_begun(self, times: int) -> bool:
        """Whether the innocent job has."""
        return len(self._trace.lines("innocents")) == times

    def let_go(self) -> None:
        self._trace.append("go")

    def work_until_all_have_ended(self) -> None:
        self._worker = self._worker or self.start()
        wait_until(lambda: self._db.count("@jobs") == 0, "every job has ended", patience=60)
        self._worker.signal(signal.SIGTERM)
        assert self._worker.wait() == 0, self._worker.errors()
        assert self._db.count("@workers") == 0

    def deaths_of(self, job: Job[Any]) -> int:
        """How many processes it took with it."""
        return self._trace.lines("deaths").count([job.id])

    def effects(self) -> Counter[str]:
        return Counter(str(i) for (i,) in self._db.execute("SELECT job_id FROM effects"))

    def close(self) -> None:
        if self._worker:
            self._worker.close()
        self._db.close()
        self._app.close()


@pytest.fixture
def ward(url: str, tmp_path: Path) -> Iterator[Ward]:
    ward = Ward(url, tmp_path)
    yield ward
    ward.close()


@pytest.mark.spec("N34")
def test_jobs_that_crash_their_worker_are_convicted_alone(ward, long_run):
    notes = ward.enqueue("note", NOTES)
    bystanders = ward.enqueue("bystander", BYSTANDERS)
    guilty = ward.enqueue("crash_inside") + ward.enqueue("crash_outside")
    guilty += ward.enqueue("exhaust") if long_run else []
    notes += ward.enqueue("note", NOTES)

    ward.work_until_all_have_ended()

    for job in guilty:
        assert (job.state, job.error.kind) == (State.FAILED, "crash_loop")
        assert 1 <= ward.deaths_of(job) <= DEATHS_UNTIL_CONVICTED
    assert {job.state for job in notes + bystanders} == {State.SUCCEEDED}
    assert ward.effects() == Counter(job.id for job in notes)


@pytest.mark.spec("N34")
def test_a_job_is_not_convicted_when_its_worker_was_killed_with_it(ward):
    """As by a lost machine, the OOM killer of a whole container or `kill -9 -PGID`."""
    (job,) = ward.enqueue("innocent")
    ward.send_alone()
    for times in (1, 2):
        worker = ward.start(KILL_ROUNDS="2")
        wait_until(partial(ward.has_begun, times), "it runs in a process of its own")
        worker.kill_all()
        worker.close()
    ward.start(KILL_ROUNDS="2")
    ward.let_go()

    ward.work_until_all_have_ended()

    assert (job.state, job.record.crashes) == (State.SUCCEEDED, 2)


@pytest.mark.spec("N34")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_mutation_that_never_returns_does_not_keep_the_database_for_ever(ward):
    (guilty,) = ward.enqueue("spin")
    notes = ward.enqueue("note", NOTES)
    bystanders = ward.enqueue("bystander", BYSTANDERS)

    ward.work_until_all_have_ended()

    assert (guilty.state, guilty.error.kind) == (State.FAILED, "crash_loop")
    assert ward.deaths_of(guilty) == DEATHS_UNTIL_CONVICTED
    assert {job.state for job in notes + bystanders} == {State.SUCCEEDED}
    assert ward.effects() == Counter(job.id for job in notes)
