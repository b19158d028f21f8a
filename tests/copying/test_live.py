"""A store is moved under the feet of processes that use it, by a command that is killed."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duly import Duly
from tests.cli.processes import Process, duly, environment, wait_until
from tests.jobs.support import Database
from tests.torture.kill.trace import Trace

WORKER = duly("--app", "tests.copying.live:app", "worker")
ENQUEUER = [sys.executable, "-m", "tests.copying.live"]
KILLS = ["copy.drained", "copy.paged:3", "copy.verified", "copy.handed_over"]
Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Process] = []

    def begin(command: list[str], url: str | None = None, **env: str) -> Process:
        process = Process(command, environment(url, LIVE_FOLDER=str(tmp_path), **env))
        started.append(process)
        return process

    yield begin
    for process in started:
        process.close()


def prepare(url: str) -> Database:
    if url.startswith("sqlite"):
        Duly(url).migrate()
    db = Database(url)
    db.execute("CREATE TABLE notes (text text)")
    return db


@pytest.mark.spec("N17")
def test_nothing_is_lost_or_doubled_while_all_goes_on(start, sqlite_url, postgres_url, tmp_path):
    trace = Trace(tmp_path)
    here, there = prepare(sqlite_url), prepare(postgres_url)
    worker = start(WORKER, sqlite_url)
    enqueuer = start(ENQUEUER, sqlite_url)
    wait_until(lambda: len(trace.lines("touched")) > 50, f"jobs run\n{worker.errors()}")

    copy = duly("copy", sqlite_url, postgres_url, "--json")
    for point in KILLS:
        copier = start(copy, DULY_FAULT=point)
        assert copier.wait() == -signal.SIGKILL, point + copier.output() + copier.errors()
        if point == "copy.drained":
            # What is enqueued meanwhile is accepted, and waits.
            many = len(trace.lines("acknowledged")) + 20
            wait_until(lambda: len(trace.lines("acknowledged")) > many, "calls are accepted")  # noqa: B023
    copier = start(copy)
    assert copier.wait() == 0, copier.errors()
    report = json.loads(copier.output())
    assert (report["resumed"], report["already_done"]) == (True, False)

    assert enqueuer.wait() == 0
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "was moved to" in worker.errors()
    start(WORKER, postgres_url)
    acknowledged = [number for (number,) in trace.lines("acknowledged")]
    noted = acknowledged[::2]
    expected = sorted([*acknowledged[1::2], *(f"by-{number}" for number in noted)])
    wait_until(lambda: len(trace.lines("touched")) >= len(expected), "the rest runs there")
    wait_until(lambda: there.count("@jobs") == 0, "nothing is left")
    assert sorted(text for (text,) in trace.lines("touched")) == expected
    assert sorted([*here.notes(), *there.notes()]) == sorted(noted)
    assert here.notes()
    assert there.notes()

    # The schedule ticks on as if nothing had happened.
    def ticks() -> list[tuple[int, str]]:
        return there.execute("SELECT tick_at, outcome FROM @ticks ORDER BY tick_at")

    moved = len(ticks())
    wait_until(lambda: len(ticks()) > moved, "it ticks there")
    times = [at for at, _ in ticks()]
    assert {b - a for a, b in itertools.pairwise(times)} == {1000}
    assert {outcome for _, outcome in ticks()} == {"dispatched"}
    here.close()
    there.close()
