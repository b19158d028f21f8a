"""Starting and stopping in one process: in any order, from any thread, and not at all."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from duly import Ctx, Duly, State, Tx
from tests.cli.conftest import Shop
from tests.cli.processes import Process, environment
from tests.jobs.support import PATIENCE, wait_until


@pytest.fixture
def app(url: str) -> Iterator[Duly]:
    app = Duly(url)
    app.migrate()

    @app.action
    def answer(ctx: Ctx) -> int:
        return 42

    yield app
    app.close()


def works(app: Duly) -> bool:
    job = app.run(app.function("answer"))
    return bool(job.result(timeout=PATIENCE) == 42)


def test_the_block_can_be_entered_again(app: Duly):
    for _ in range(2):
        with app:
            assert works(app)
            assert len(app.workers()) == 1
        assert app.workers() == []


def test_starting_again_changes_nothing_and_stopping_once_stops(app: Duly):
    with app:
        (worker,) = app.workers()
        app.start()
        with app:
            assert [w.id for w in app.workers()] == [worker.id]
            assert works(app)
        assert app.workers() == []
        left = app.run(app.function("answer"))
    assert left.state == State.PENDING
    with app:
        assert left.result(timeout=PATIENCE) == 42


def test_many_threads_that_start_make_one_worker(app: Duly):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: app.start(), range(8)))
    assert len(app.workers()) == 1
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: app.stop(), range(8)))
    assert app.workers() == []


def test_stopping_what_was_not_started_does_nothing(tmp_path: Path):
    app = Duly(f"sqlite:///{tmp_path}/never-used.db")
    app.stop()
    app.close()
    app.stop()
    assert list(tmp_path.iterdir()) == []


def test_it_starts_again_after_stop_and_after_close(app: Duly):
    for end in (app.stop, app.close):
        app.start()
        assert works(app)
        end()
        assert app.workers() == []
    app.start()
    assert works(app)


# Many threads ------------------------------------------------------------------------------------


@pytest.mark.new_database
def test_sixteen_threads_use_one_app_and_leave_nothing_behind(url: str):
    setup = Duly(url)
    setup.migrate()
    with setup.transaction() as tx:
        tx.execute("CREATE TABLE notes (text text)")
    setup.close()
    threads_before, files_before = set(threading.enumerate()), open_files()

    app = Duly(url)

    @app.mutation
    def note(tx: Tx, text: str) -> str:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
        return text

    @app.action
    def echo(ctx: Ctx, text: str) -> str:
        return text

    def use(thread: int) -> list[str]:
        """What must have been noted at the end."""
        noted: list[str] = []
        for n in range(8):
            text = f"{thread}-{n}"
            kept = app.run(note, text)
            echoed = app.run(echo, text)
            raced = app.run(note, f"{text} raced")
            later = app.run_after(3600, note, f"{text} later")
            assert later.cancel()
            assert app.job(later.id).state == State.CANCELED
            noted += [] if raced.cancel() else [f"{text} raced"]
            assert kept in app.jobs(limit=10_000)
            assert echoed.result(timeout=PATIENCE) == text
            assert kept.result(timeout=PATIENCE) == text
            noted.append(text)
        return noted

    with app, ThreadPoolExecutor(16) as callers:
        expected = [text for texts in callers.map(use, range(16)) for text in texts]
        wait_until(lambda: not app.jobs(state="running"), "all is done")
    with app.transaction() as tx:
        assert Counter(tx.execute("SELECT text FROM notes")) == Counter((t,) for t in expected)
    assert app.jobs(state="pending") == []

    app.close()
    wait_until(lambda: set(threading.enumerate()) <= threads_before, "its threads have ended")
    wait_until(lambda: open_files() <= files_before, "its files and connections are closed")


def open_files() -> Counter[str]:
    """What this process holds open: files by name, sockets by number."""
    found: Counter[str] = Counter()
    for number in os.listdir("/dev/fd"):
        try:
            found[os.readlink(f"/dev/fd/{number}")] += 1
        except OSError:
            continue  # the listing itself
    return found


# Not stopped at all ------------------------------------------------------------------------------

LEAVE = """
import os
from pathlib import Path

from tests.cli.shop import app
from tests.jobs.support import wait_until
from tests.torture.kill.trace import Trace

app.start(concurrency=1, threads=1, beat_every=0.1)
touch_when, note_when, touch = map(app.function, ("touch_when", "note_when", "touch"))
jobs = [touch_when.bind("action", "go"), note_when.bind("mutation", "go"), touch.bind("waiting")]
print(*[job.id for job in app.run_many(jobs)])
trace = Trace(Path(os.environ["SHOP_FOLDER"]))
wait_until(lambda: len(trace.lines("started")) == 2, "both run")
"""


def test_a_process_that_ends_without_stopping_ends_and_its_jobs_are_rescued(shop: Shop):
    env = environment(shop.url, SHOP_FOLDER=str(shop.trace.folder))
    process = Process([sys.executable, "-c", LEAVE], env)
    try:
        assert (process.wait(patience=20), process.errors()) == (0, "")
        action, mutation, waiting = map(shop.app.job, process.output().split())
    finally:
        process.close()
    assert (action.state, mutation.state, waiting.state) == ("running", "running", "pending")

    shop.let_go("go")
    shop.app.start(beat_every=0.1)

    mutation.result(timeout=PATIENCE)
    assert waiting.result(timeout=PATIENCE) == "waiting"
    assert action.error is not None
    assert action.error.kind == "worker_lost"
    assert sorted(shop.started()) == ["action", "mutation", "mutation", "waiting"]
    assert shop.db.notes() == ["mutation"]
