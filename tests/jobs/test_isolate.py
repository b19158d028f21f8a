"""Actions in separate processes: what they return, and what stops them.

The processes are real, so the clock is too.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duly import Ctx, Duly, ErrorKind, Job, ManualClock, State, Tx
from duly.errors import InvalidFunction, InvalidOption, JobFailed
from duly.runtime import isolate
from duly.runtime.execute import Attempt
from duly.testing import drain, override
from tests.cli.processes import Process, duly, environment, wait_until
from tests.jobs.isolated import FOLDER, make
from tests.jobs.support import Database, ManualWorker, on_sqlite, prepare
from tests.torture.kill.trace import Trace

APP = "tests.jobs.isolated:app"
# What happens between the processes is the same on both databases: the other way of each test.
ALSO = partial(pytest.param, marks=pytest.mark.long("postgres"))


class Shop:
    """The app, as the test holds it, and what its bodies have written down."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.app = prepare(make(url, folder))
        self.app.found_at = APP
        self.trace = Trace(folder)
        self.db = Database(url)
        self._workers: list[Process] = []

    def call(self, name: str, *args: Any, **options: Any) -> Job[Any]:
        return self.app.run(self.app.function(name).using(**options), *args)

    def worker(self, *options: str) -> Process:
        """A worker in its own process."""
        env = environment(self.url, **{FOLDER: str(self.trace.folder)})
        self._workers.append(Process(duly("--app", APP, *options, "worker"), env))
        return self._workers[-1]

    def pid_of(self, file: str = "began", line: int = 0) -> int:
        """The process in which a body has started."""
        wait_until(lambda: len(self.trace.lines(file)) > line, "the body has begun")
        return int(self.trace.lines(file)[line][0])

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self.db.close()
        self.app.close()


@pytest.fixture
def shop(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("DULY_DATABASE_URL", url)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    shop = Shop(url, tmp_path)
    yield shop
    shop.app.stop(drain=0)
    shop.close()


@pytest.fixture
def kill_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolate, "KILL_AFTER", 0.2)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; what is left of it may wait to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def wait_for_end(pid: int) -> None:
    wait_until(lambda: is_gone(pid), f"process {pid} is gone")


# What comes back


@pytest.mark.parametrize("name", ["add", ALSO("async.add")])
def test_the_body_runs_elsewhere_and_its_result_comes_back(shop: Shop, name: str):
    with shop.app:
        first, second = (shop.call(name, n, 2).result(20) for n in (1, 2))

    assert [first[0], second[0]] == [3, 4]
    assert len({os.getpid(), first[1], second[1]}) == 3
    assert is_gone(first[1])


def test_an_error_comes_back_with_its_traceback_and_follows_the_policy(shop: Shop):
    with shop.app:
        job, final = shop.call("fail", "hunter2", False), shop.call("fail", "hunter2", True)
        for failing in (job, final):
            with pytest.raises(JobFailed):
                failing.result(20)

    assert job.error is not None
    assert job.error.kind == ErrorKind.USER
    assert job.error.message == "ValueError: attempt 3 with *** (after 3 attempts)"
    assert job.error.traceback is not None
    assert "isolated.py" in job.error.traceback
    assert "hunter2" not in job.error.traceback
    assert (job.attempt, final.attempt) == (3, 1)


@pytest.mark.spec("N65")
@pytest.mark.parametrize("name", ["state", "async.state"])
def test_each_process_enters_its_own_lifespan(shop: Shop, name: str):
    with shop.app:
        given, pid = shop.call(name).result(20)
        assert given == pid != os.getpid()
        wait_for_end(pid)

    own, theirs = str(os.getpid()), str(pid)
    assert shop.trace.lines("lifespan") == [
        ["entered", own],
        ["entered", theirs],
        ["exited", theirs],
        ["exited", own],
    ]


@on_sqlite
@pytest.mark.spec("N65")
def test_a_process_whose_lifespan_fails_does_not_run_its_job(
    shop: Shop, capfd: pytest.CaptureFixture[str]
):
    with shop.app:
        (shop.trace.folder / "broken").touch()
        job = shop.call("state")
        wait_until(lambda: job.error, "it has failed once")
        assert job.error is not None
        assert "exit code 1 before the function started" in job.error.message
        (shop.trace.folder / "broken").unlink()
        job.result(20)

    assert job.attempt == 1
    error = "worker_lifespan: it could not be entered: ConnectionError: no answer"
    assert error in capfd.readouterr().err


@pytest.mark.spec("N64")
def test_hooks_are_called_in_the_worker(shop: Shop):
    with shop.app:
        shop.call("add", 1, 2).result(20)
        with pytest.raises(JobFailed):
            shop.call("die", signal.SIGKILL).result(20)

    pid = str(os.getpid())
    assert shop.trace.lines("hooks") == [
        ["add", "running", "None", pid],
        ["add", "succeeded", "None", pid],
        ["die", "running", "None", pid],
        ["die", "failed", "worker_lost", pid],
    ]


@on_sqlite
def test_a_result_that_cannot_be_stored_fails_the_job(shop: Shop):
    with shop.app, pytest.raises(JobFailed) as failed:
        shop.call("unstorable").result(20)

    assert failed.value.kind == ErrorKind.UNSTORABLE_RESULT


def test_it_schedules_jobs_and_calls_mutations_as_any_action_does(shop: Shop):
    with shop.app:
        job = shop.call("fork_tree")
        child: Job[int] = shop.app.job(job.result(20))

        assert child.result(20) == os.getpid()
    assert child.parent_id == job.id
    assert shop.db.notes() == ["called"]


@pytest.mark.spec("N66")
def test_an_async_one_calls_async_mutations(shop: Shop):
    with shop.app:
        assert shop.call("async.call", "called").result(20) == "called"
    assert shop.db.notes() == ["called"]


@on_sqlite
def test_its_log_lines_come_out_of_the_workers_own_handlers(
    shop: Shop, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.INFO), shop.app:
        job = shop.call("speak")
        job.result(20)

    said = [record for record in caplog.records if record.name == "shop.mail"]
    assert [record.getMessage() for record in said] == ["sent 1 of 2", "one failed"]
    assert [record.levelname for record in said] == ["WARNING", "ERROR"]
    assert {vars(record)["job_id"] for record in said} == {job.id}
    assert "KeyError: 'lost'" in caplog.text


@pytest.mark.parametrize("name", ["report", ALSO("async.report")])
def test_what_it_says_of_itself_is_stored_while_it_runs_and_before_its_end(shop: Shop, name: str):
    with shop.app:
        job = shop.call(name, True)
        wait_until(lambda: job.progress is not None and job.logs(), "it is stored")
        assert job.state == State.RUNNING
        (shop.trace.folder / "go").touch()
        wait_until(lambda: job.state.is_terminal, "it has ended")

        assert job.progress is not None
        assert (job.progress.value, job.progress.note) == (1, "done")
    assert [line.text for line in job.logs()] == ["began", "sent one"]


@on_sqlite
def test_what_a_body_leaves_running_does_not_keep_the_slot(shop: Shop, kill_soon: None):
    shop.app.start(concurrency=1)
    assert shop.call("linger").result(20) == "done"
    left = shop.pid_of()

    assert shop.call("plain").result(20) == os.getpid()
    wait_for_end(left)


# Time limit and cancel


@pytest.mark.spec("R168")
@pytest.mark.parametrize("name", ["spin", ALSO("async.sleep")])
def test_at_its_time_limit_the_body_is_told_and_its_process_ends(shop: Shop, name: str):
    clock = ManualClock()
    shop.app.core.exchange(shop.app.store, clock)
    with shop.app:
        job = shop.call(name, timeout=30)
        pid = shop.pid_of()
        clock.advance(30)
        with pytest.raises(JobFailed) as failed:
            job.result(20)

        assert failed.value.kind == ErrorKind.TIMEOUT
        wait_for_end(pid)
    assert shop.trace.lines("told") == [["True"]]


@pytest.mark.spec("R173")
@pytest.mark.parametrize("name", ["spin", ALSO("async.sleep")])
def test_a_cancel_reaches_the_body_and_ends_its_process(shop: Shop, name: str):
    with shop.app:
        job = shop.call(name)
        pid = shop.pid_of()

        assert job.cancel() is True
        wait_for_end(pid)
    assert job.state == State.CANCELED
    assert shop.trace.lines("told") == [["True"]]


@on_sqlite
def test_a_process_that_does_not_hear_is_killed_with_all_it_has_started(
    shop: Shop, kill_soon: None
):
    with shop.app:
        job = shop.call("ignore")
        pid, child = shop.pid_of(), shop.pid_of("child")
        job.cancel()
        wait_for_end(pid)
        wait_for_end(child)

    assert job.state == State.CANCELED


@on_sqlite
def test_a_process_that_hears_takes_what_it_has_started_with_it(shop: Shop):
    with shop.app:
        job = shop.call("leave.child")
        pid, child = shop.pid_of(), shop.pid_of("child")
        job.cancel()
        wait_for_end(pid)
        wait_for_end(child)


@on_sqlite
def test_a_signal_that_the_worker_did_not_send_stops_nothing(shop: Shop):
    with shop.app:
        job = shop.call("wait.for", "go")
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(shop.pid_of(), number)
        (shop.trace.folder / "go").touch()

        assert job.result(20) == "waited"


# Deaths


@pytest.mark.parametrize("number", [signal.SIGSEGV, ALSO(signal.SIGKILL)])
def test_a_process_that_dies_is_a_lost_worker_and_harms_nobody(shop: Shop, number: int):
    shop.app.start(concurrency=2)
    other = shop.call("wait.for", "go")
    shop.pid_of()
    job = shop.call("die", int(number))
    with pytest.raises(JobFailed) as failed:
        job.result(20)
    (shop.trace.folder / "go").touch()

    assert failed.value.kind == ErrorKind.WORKER_LOST
    assert job.error is not None
    assert job.error.message == f"its process was ended by {signal.Signals(number).name}"
    assert other.result(20) == "waited"
    assert len(shop.trace.lines("began")) == 2


@on_sqlite
def test_a_body_that_leaves_without_a_word_is_lost_too(shop: Shop):
    with shop.app, pytest.raises(JobFailed) as failed:
        shop.call("leave").result(20)

    assert failed.value.kind == ErrorKind.WORKER_LOST
    assert "exit code 3" in str(failed.value)


def test_after_a_death_the_policy_decides(shop: Shop):
    with shop.app:
        assert shop.call("die_once").result(20) == 2


@on_sqlite
def test_a_process_that_does_not_come_to_the_body_costs_no_attempt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    failing = [sys.executable, "-c", "raise SystemExit(7)"]
    monkeypatch.setattr(shop.app.core, "command", lambda: failing)
    with shop.app:
        job = shop.call("add", 1, 2)
        wait_until(lambda: job.record.system_retries, "it was tried")
    monkeypatch.setattr(shop.app.core, "command", shop.app.command)

    assert job.record.error_message == (
        "its process ended with exit code 7 before the function started"
    )
    with shop.app:
        assert job.result(20)[0] == 3
    assert job.attempt == 1


@on_sqlite
def test_a_process_that_cannot_be_started_costs_no_attempt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shop.app.core, "command", lambda: ["/nowhere/python"])
    with shop.app:
        job = shop.call("add", 1, 2)
        wait_until(lambda: job.record.system_retries, "it was tried")

    assert (job.state, job.attempt) == (State.PENDING, 0)


# Only Linux ends a process that lets none of its threads run.
UNHEARING = ["ignore", "hold.interpreter"] if sys.platform == "linux" else ["ignore"]


@pytest.mark.parametrize("name", UNHEARING)
def test_the_process_ends_with_its_worker(shop: Shop, name: str):
    worker = shop.worker()
    job = shop.call(name)
    pid = shop.pid_of()
    # The command, and the process below it that holds the job.
    wait_until(lambda: shop.app.workers(), "the worker is known")
    (info,) = shop.app.workers()
    worker.signal(signal.SIGSTOP)
    os.kill(info.pid, signal.SIGKILL)

    wait_for_end(pid)
    worker.signal(signal.SIGCONT)
    wait_until(lambda: job.state.is_terminal, "the job is settled")
    assert job.error is not None
    assert job.error.kind == ErrorKind.WORKER_LOST


@on_sqlite
def test_the_end_of_the_pipe_is_the_end_of_the_worker(shop: Shop):
    """Where the kernel does not tell."""
    job = shop.call("wait.for", "never")
    worker = ManualWorker(shop.app)
    worker.claim_only()
    runnable = shop.app.core.runnables()["wait.for"]
    attempt = Attempt(isolate._claim(job.record), runnable, lambda attempt, outcome: None)
    command = shop.app.command()
    assert command is not None
    child = isolate.Child(command, attempt)
    pid = shop.pid_of()
    child._files.close()

    wait_for_end(pid)
    child.close()
    worker.stop()


# Stopping


@on_sqlite
def test_a_stop_lets_the_process_end(shop: Shop):
    worker = shop.worker("--log-level=info")
    job = shop.call("wait.for", "go")
    # As systemd stops a service: every process gets the signal.
    os.kill(shop.pid_of(), signal.SIGTERM)
    worker.signal_all(signal.SIGTERM)
    wait_until(lambda: "stops claiming jobs" in worker.errors(), "the worker was told")
    (shop.trace.folder / "go").touch()

    assert worker.wait() == 0
    assert job.result(20) == "waited"


@on_sqlite
def test_a_process_that_does_not_end_in_the_time_of_a_stop_is_stopped(shop: Shop):
    shop.app.start()
    job = shop.call("spin")
    pid = shop.pid_of()
    shop.app.stop(drain=0.05)

    assert job.error is not None
    assert job.error.kind == ErrorKind.WORKER_LOST
    # The worker's process may end now: it has given this one its time.
    assert is_gone(pid)
    assert shop.trace.lines("told") == [["True"]]


@on_sqlite
def test_whatever_goes_wrong_beside_the_process_the_job_has_an_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    def break_down(child: isolate.Child) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(isolate.Child, "_listen", break_down)
    with shop.app, pytest.raises(JobFailed) as failed:
        shop.call("add", 1, 2).result(20)

    assert failed.value.kind == ErrorKind.WORKER_LOST


# Where it cannot be done


@on_sqlite
def test_an_app_that_cannot_be_imported_says_so_when_a_worker_starts(url: str):
    app = prepare(Duly(url))

    @app.action(isolate="process")
    def act(ctx: Ctx) -> None: ...

    with pytest.raises(InvalidFunction, match=r"act: .*module or a script"):
        app.start()
    app.close()


@on_sqlite
def test_a_function_that_is_isolated_too_late_is_left_out(
    url: str, caplog: pytest.LogCaptureFixture
):
    app = prepare(Duly(url))

    @app.action
    def plain(ctx: Ctx) -> int:
        return 1

    with app:

        @app.action(isolate="process")
        def act(ctx: Ctx) -> None: ...

        job = app.run(act)
        assert app.run(plain).result(20) == 1
        wait_until(lambda: "act: isolate" in caplog.text, "it is said")
        assert job.state == State.PENDING
    app.close()


@on_sqlite
def test_a_process_that_finds_another_database_runs_nothing(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other = f"sqlite:///{tmp_path}/other.db"
    prepare(make(other, tmp_path)).close()
    monkeypatch.setenv("DULY_DATABASE_URL", other)
    with shop.app:
        job = shop.call("add", 1, 2)
        wait_until(lambda: job.record.hold, "it is held")

    assert job.record.hold == "signature"
    assert job.record.error_message is not None
    assert "did not find the job" in job.record.error_message


UNGUARDED = """
from duly import Ctx, Duly

app = Duly("sqlite:///shop.db")

@app.action(isolate="process")
def act(ctx: Ctx) -> None: ...

app.migrate()
with app:
    job = app.run(act)
    while not job.record.system_retries:
        pass
"""


def test_a_script_that_starts_its_app_on_import_does_not_start_it_again(tmp_path: Path):
    (tmp_path / "shop.py").write_text(UNGUARDED)
    script = Process([sys.executable, "shop.py"], environment(), cwd=tmp_path)
    try:
        assert script.wait() == 0, script.errors()
        assert 'below `if __name__ == "__main__":`' in script.errors()
    finally:
        script.close()


@on_sqlite
def test_a_function_that_the_module_does_not_define_is_held(shop: Shop):
    @shop.app.action(isolate="process")
    def defined_here(ctx: Ctx) -> None: ...

    with shop.app:
        job = shop.app.run(defined_here)
        wait_until(lambda: job.record.hold, "it is held")

    assert job.record.hold == "signature"
    assert job.record.error_message is not None
    assert "not defined when its module is imported" in job.record.error_message


@pytest.mark.parametrize("word", ["thread", "", True])
def test_there_is_one_way_to_isolate(app: Duly, word: Any):
    with pytest.raises(InvalidOption, match="isolate"):

        @app.action(isolate=word)
        def act(ctx: Ctx) -> None: ...


def test_a_mutation_cannot_be_isolated(app: Duly):
    decorate: Callable[..., Any] = app.mutation
    with pytest.raises(InvalidOption, match="transaction"):

        @decorate(isolate="process")
        def change(tx: Tx) -> None: ...


@on_sqlite
def test_the_test_kit_runs_it_here_and_now(app: Duly):
    @app.action(isolate="process")
    def act(ctx: Ctx) -> int:
        return threading.get_ident()

    with override(app):
        job = app.run(act)
        drain(app)

        assert job.result(0) == threading.get_ident()
