"""`duly worker`: starting, stopping, dying, and who takes over."""

from __future__ import annotations

import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from duly import Duly, State
from duly.runtime import collector
from tests.cli.processes import TOP, Process, duly, environment, wait_until
from tests.jobs.support import on_postgres

WAITERS = 12
ENQUEUES = 7


def test_sigterm_ends_what_runs_and_starts_nothing_more(shop):
    worker = shop.worker(root=("--log-level=info",))
    running = shop.call("touch_when", "running", "go")
    wait_until(lambda: shop.started() == ["running"], "the job runs")

    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stops claiming jobs" in worker.errors(), "the worker was told")
    late = shop.call("touch", "late")
    shop.let_go("go")

    assert worker.wait() == 0
    assert (running.state, late.state, late.attempt) == (State.SUCCEEDED, State.PENDING, 0)
    assert shop.started() == ["running"]
    assert shop.db.count("@workers") == 0
    assert "Traceback" not in worker.errors()


def test_sigterm_gives_back_what_never_started(shop):
    jobs = [shop.call("note_when", str(n), "go") for n in range(WAITERS)]
    worker = shop.worker(root=("--log-level=info",))
    wait_until(lambda: shop.started(), "a mutation runs")
    wait_until(lambda: shop.db.count("@jobs WHERE state = 'running'") == WAITERS, "all are claimed")

    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stops claiming jobs" in worker.errors(), "the worker was told")
    shop.let_go("go")

    assert worker.wait() == 0
    done = set(shop.started())
    assert sorted(shop.db.notes()) == sorted(done)
    assert len(done) < WAITERS
    for job in (job for n, job in enumerate(jobs) if str(n) not in done):
        assert (job.state, job.attempt, job.record.crashes) == (State.PENDING, 0, 0)
    assert shop.db.count("@workers") == 0


def test_ctrl_c_reaches_the_whole_group_and_is_no_error(shop):
    worker = shop.worker()
    job = shop.call("touch_when", "a", "go")
    wait_until(lambda: shop.started() == ["a"], "the job runs")

    worker.signal_all(signal.SIGINT)
    shop.let_go("go")

    assert worker.wait() == 0
    assert job.state == State.SUCCEEDED
    assert shop.db.count("@workers") == 0
    assert "Traceback" not in worker.errors()


def test_the_second_signal_does_not_wait(shop):
    worker = shop.worker(root=("--log-level=info",))
    job = shop.call("touch_when", "a", "never")
    wait_until(lambda: shop.started() == ["a"], "the job runs")

    worker.signal(signal.SIGTERM)
    wait_until(lambda: "stops claiming jobs" in worker.errors(), "the worker was told")
    worker.signal(signal.SIGTERM)
    assert worker.wait(patience=10) == 0

    assert (job.state, job.error.kind) == (State.FAILED, "worker_lost")
    assert shop.db.count("@workers") == 0


def test_two_processes_share_the_work_and_a_killed_one_is_replaced(shop):
    worker = shop.worker("--processes=2", "--concurrency=1")
    jobs = [shop.call("touch_when", text, "go") for text in "ab"]
    wait_until(lambda: len(shop.started()) == 2, "both run at the same time")
    first, second = (int(line[2]) for line in shop.trace.lines("started"))
    assert {first, second} == set(shop.worker_pids(worker))

    os.kill(first, signal.SIGKILL)
    replaced = wait_until(
        lambda: set(shop.worker_pids(worker)) - {first, second}, "another one works", patience=10
    )
    assert len(replaced) == 1
    assert second in shop.worker_pids(worker)
    wait_until(lambda: jobs[0].state.is_terminal or jobs[1].state.is_terminal, "one is settled")

    shop.let_go("go")
    wait_until(lambda: all(job.state.is_terminal for job in jobs), "the other one ends")
    assert sorted(job.state for job in jobs) == [State.FAILED, State.SUCCEEDED]
    assert shop.stop(worker) == 0


@pytest.mark.spec("N65")
def test_each_process_enters_the_lifespan_of_the_app(shop):
    worker = shop.worker("--processes=2")
    wait_until(lambda: len(shop.trace.lines("lifespan")) == 2, "both have entered it")
    wait_until(lambda: shop.db.count("@workers") == 2, "both have started")
    pids = {str(pid) for pid in shop.worker_pids(worker)}
    assert shop.stop(worker) == 0

    lines = shop.trace.lines("lifespan")
    assert [word for word, _ in lines] == ["entered"] * 2 + ["exited"] * 2
    assert {pid for _, pid in lines[:2]} == {pid for _, pid in lines[2:]} == pids


@pytest.mark.spec("N65")
def test_a_worker_whose_lifespan_fails_claims_nothing_and_tries_again(shop):
    job = shop.call("touch", "a")
    (shop.trace.folder / "broken").touch()
    worker = shop.start("worker")
    error = "worker_lifespan: it could not be entered: ConnectionError: no answer"
    wait_until(lambda: worker.errors().count(error) == 2, "it was tried twice")
    assert (job.state, job.attempt, shop.db.count("@workers")) == (State.PENDING, 0, 0)
    assert "Traceback" not in worker.errors()

    (shop.trace.folder / "broken").unlink()
    wait_until(lambda: job.state == State.SUCCEEDED, "the job ran")
    assert shop.stop(worker) == 0


@pytest.mark.spec("N64")
def test_hooks_of_a_killed_process_are_called_in_its_parent(shop):
    worker = shop.worker()
    job = shop.call("touch_when", "a", "never")
    wait_until(lambda: shop.started() == ["a"], "the job runs")
    (child,) = shop.worker_pids(worker)

    os.kill(child, signal.SIGKILL)
    wait_until(lambda: shop.trace.lines("failures"), "the hook is called")
    assert job.state == State.FAILED
    assert shop.stop(worker) == 0
    assert shop.trace.lines("failures") == [[job.id, "worker_lost", str(worker.pid)]]


def test_processes_without_their_parent_end_and_another_worker_goes_on(shop):
    orphaned = shop.worker()
    (child,) = shop.worker_pids(orphaned)
    running = shop.call("touch_when", "running", "go")
    wait_until(lambda: shop.started() == ["running"], "the job runs")

    orphaned.kill()
    shop.let_go("go")
    wait_until(lambda: shop.db.count("@workers") == 0, "the child has said good-bye")
    assert running.state == State.SUCCEEDED

    left = shop.call("touch", "left")
    worker = shop.worker()
    assert left.result(timeout=60) == "left"
    assert shop.stop(worker) == 0
    wait_until(lambda: not orphaned.started(child), "the child has ended")


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_jobs_of_a_parent_and_its_child_that_were_killed_are_rescued(shop):
    gone = shop.worker()
    mutation = shop.call("note", "first")
    mutation.result(timeout=60)
    action = shop.call("touch_when", "cut", "never")
    wait_until(lambda: shop.started() == ["cut"], "the action runs")
    gone.kill_all()
    waiting = shop.call("note", "second")

    worker = shop.worker()
    waiting.result(timeout=60)
    wait_until(lambda: action.state.is_terminal, "the action is settled")
    assert (action.state, action.error.kind) == (State.FAILED, "worker_lost")
    assert shop.db.notes() == ["first", "second"]
    assert len(shop.db.execute("SELECT id FROM @workers")) == 1
    assert shop.stop(worker) == 0


def test_a_signal_is_no_crash_of_a_job_in_a_process_of_its_own(shop):
    job = shop.call("touch_when", "a", "go")
    shop.db.execute("UPDATE @jobs SET hold = 'alone', crashes = 2")
    worker = shop.worker()
    wait_until(lambda: shop.started() == ["a"], "the job runs")
    own = int(shop.trace.lines("started")[0][2])
    assert own in shop.worker_pids(worker)

    worker.signal_all(signal.SIGINT)
    shop.let_go("go")

    assert worker.wait() == 0
    assert job.state == State.SUCCEEDED
    assert shop.db.count("@workers") == 0
    assert "Traceback" not in worker.errors()


@pytest.mark.spec("R94")
def test_a_job_from_another_process_starts_without_waiting_for_a_poll(shop, record_property):
    worker = shop.worker()
    waits: list[float] = []
    for n in range(ENQUEUES):
        began = time.monotonic_ns()
        shop.call("touch", str(n)).result(timeout=60)
        waits.append((int(shop.trace.lines("started")[-1][1]) - began) / 1e9)
    record_property("wake_up_median", statistics.median(waits))
    assert statistics.median(waits) < 0.25, waits
    assert shop.stop(worker) == 0


def test_a_script_is_its_own_command_line(tmp_path: Path):
    script = tmp_path / "shop.py"
    script.write_text(
        "from duly import Ctx, Duly\n"
        "app = Duly('sqlite:///shop.db')\n"
        "@app.action\n"
        "def hello(ctx: Ctx) -> str:\n"
        "    return 'hello'\n"
        "if __name__ == '__main__':\n"
        "    app.migrate()\n"
        "    app.run(hello)\n"
        "    app.main()\n"
    )
    worker = Process([sys.executable, str(script), "worker"], environment(), cwd=tmp_path)
    database = tmp_path / "shop.db"
    try:
        wait_until(lambda: _finished(database), f"the job has run\n{worker.errors()}")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        worker.close()


def _finished(database: Path) -> list[tuple[str, str]]:
    if not database.exists():
        return []
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT state, result FROM duly_history").fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def test_its_processes_look_for_cycles_less_often(shop):
    shop.worker()
    new_objects, left_out = shop.call("look_at_collector").result(timeout=60)
    assert new_objects == collector.NEW_OBJECTS
    assert left_out > 0


@pytest.mark.parametrize("own", ["gc.disable()", "gc.set_threshold(123)"])
def test_an_app_that_has_set_its_collector_keeps_that(own):
    code = f"""
import gc
{own}
from duly.runtime.collector import look_less_often
before = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
look_less_often()
assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TOP)


@pytest.mark.spec("R93")
@pytest.mark.parametrize(
    ("settings", "options", "sizes"),
    [
        ("", (), (100, 10)),
        ("concurrency=7, threads=3", (), (7, 3)),
        ("concurrency=7, threads=3", ("--concurrency=20", "--threads=15"), (20, 15)),
        ("concurrency=7", ("--concurrency=2",), (2, 2)),
    ],
)
def test_an_option_goes_before_the_setting_of_the_app(
    url: str, tmp_path: Path, settings: str, options: tuple[str, ...], sizes: tuple[int, int]
):
    file = tmp_path / "sized.py"
    file.write_text(f"from duly import Duly\napp = Duly({url!r}, {settings})\n")
    app = Duly(url)
    app.migrate()
    process = Process(duly("--app", f"{file}:app", "worker", *options), environment(url))
    try:
        wait_until(lambda: app.workers(), f"the worker works\n{process.errors()}")
        [worker] = app.workers()
        assert (worker.slots, worker.threads) == sizes
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.close()
        app.close()


@on_postgres
@pytest.mark.spec("N49")
@pytest.mark.parametrize(("options", "threads"), [((), 400), (("--threads=300",), 300)])
def test_a_worker_warns_if_the_server_has_too_few_connections(
    url: str, tmp_path: Path, options: tuple[str, ...], threads: int
):
    file = tmp_path / "sized.py"
    settings = "concurrency=500, threads=400"
    file.write_text(f"from duly import Duly\napp = Duly({url!r}, {settings})\n")
    with closing(Duly(url)) as app:
        app.migrate()
    process = Process(duly("--app", f"{file}:app", "worker", *options), environment(url))
    warning = f"{threads} threads × 1 process may open {threads} connections; the server has"
    try:
        wait_until(lambda: warning in process.errors(), "it warns")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        process.close()
