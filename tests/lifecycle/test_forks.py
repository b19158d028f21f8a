"""A process that has used the app forks: both sides go on, each with a worker of its own.

In processes of their own, because pytest has threads.
"""

import subprocess
import sys

import pytest

from duly import Duly
from tests.cli.processes import environment

PRELUDE = """
import multiprocessing, os, signal, sys
from duly import Ctx, Duly, Tx

app = Duly(sys.argv[1])


@app.mutation
def note(tx: Tx, text: str) -> str:
    tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
    return text


@app.action
def whoami(ctx: Ctx) -> int:
    return os.getpid()


def runs_jobs_itself(queue):
    asked = app.run_many(whoami.using(queue=queue).bind() for _ in range(5))
    noted = [app.run(note.using(queue=queue), f"{queue} {n}") for n in range(5)]
    assert [job.result(timeout=60) for job in asked] == [os.getpid()] * 5
    assert [job.result(timeout=60) for job in noted] == [f"{queue} {n}" for n in range(5)]


def child():
    signal.alarm(30)  # rather killed than waiting for ever
    assert app.job(before.id).state == "pending"
    app.run(note.using(queue="nobody's"), "stored before the child has a worker")
    app.start(queues=["child"])
    runs_jobs_itself("child")
    app.close()


def fork(work=child):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return lambda: os.waitpid(pid, 0)[1]


def multiprocess():
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()

    def wait():
        process.join()
        return process.exitcode

    return wait


before = app.run(note.using(queue="nobody's"), "stored before the fork")
"""

USED = """
wait = WAYS[sys.argv[2]]()
app.start(queues=["parent"])
runs_jobs_itself("parent")
assert wait() == 0
"""

STARTED = """
app.start(queues=["parent"])
runs_jobs_itself("parent")
wait = WAYS[sys.argv[2]]()
runs_jobs_itself("parent")
assert wait() == 0
(mine,) = app.workers()
assert mine.pid == os.getpid()
runs_jobs_itself("parent")
"""

WAYS = '\nWAYS = {"os": fork, "multiprocessing": multiprocess}\n'
END = """
app.close()
print("good")
"""


def run(source: str, *arguments: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PRELUDE + WAYS + source + END, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "good\n"), ended.stderr


@pytest.fixture
def migrated(url: str) -> str:
    return migrate(url)


def migrate(url: str) -> str:
    app = Duly(url)
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE notes (text text)")
    app.close()
    return url


@pytest.mark.parametrize("way", ["os", "multiprocessing"])
@pytest.mark.parametrize("source", [USED, STARTED], ids=["used", "started"])
def test_both_sides_of_a_fork_go_on(migrated: str, source: str, way: str):
    run(source, migrated, way)


STOPPED_BY_THE_CHILD = """
app.start(queues=["parent"])
assert fork(app.stop)() == 0
assert fork(app.close)() == 0
(mine,) = app.workers()
assert mine.pid == os.getpid()
runs_jobs_itself("parent")
"""


def test_a_child_that_stops_or_closes_does_not_reach_its_parent(migrated: str):
    run(STOPPED_BY_THE_CHILD, migrated)


# The parent's threads may hold any lock at the moment of a fork, and nobody releases the child's.
WHILE_WAKING = """
app.start(queues=["parent"])
runs_jobs_itself("parent")
bell = app.core.service.worker.loop.bell
with bell._cond:
    bell._flag = False
    wait = fork()
assert wait() == 0
"""


WHILE_STARTING = """
import threading

inside, leave = threading.Event(), threading.Event()


def start_slowly():
    with app.core.lock:
        inside.set()
        leave.wait()


starting = threading.Thread(target=start_slowly)
starting.start()
inside.wait()
wait = fork()
leave.set()
starting.join()
assert wait() == 0
"""


@pytest.mark.parametrize("source", [WHILE_WAKING, WHILE_STARTING], ids=["waking", "starting"])
def test_a_child_waits_for_no_thread_of_its_parent(postgres_url: str, source: str):
    run(source, migrate(postgres_url))
