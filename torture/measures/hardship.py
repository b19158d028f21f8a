"""A full disk, and workers that are told to stop under load."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.cli.processes import wait_until
from torture.load.audit import ends, evidence
from torture.load.damage import damage
from torture.load.fleet import Fleet
from torture.load.scene import scratch_folder
from torture.measures.base import NAMES, Share, say
from torture.measures.points import database
from torture.table import Row, none_of

STOPS_HOURLY = 20
LEAST_STOPS = 5
ROOMS = (20_000, 200_000, 1_000_000)
INTERRUPTED = ("worker_lost", "crash_loop")


def run(share: Share) -> Iterator[Row]:
    if "sqlite" in share.stores:
        wrong = sum(map(fill_disk, ROOMS))
        yield none_of("SQLite: disk full under load, then not", f"{len(ROOMS)} times", wrong)
    for store in share.stores:
        stops = share.scaled(STOPS_HOURLY, LEAST_STOPS)
        failed = stop_workers(store, stops)
        words = f"{NAMES[store]}: jobs that a SIGTERM to `duly worker` under load made fail"
        yield none_of(words, f"{stops} times", failed)


def fill_disk(room: int) -> int:
    """How much went wrong in a process that had so many bytes left."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        fleet = Fleet(f"sqlite:///{folder}/duly.db", folder)
        stack.callback(fleet.close)
        path = Path(folder, "duly.db")
        command = [sys.executable, "-m", "torture.load.starved", str(path), str(room)]
        process = fleet.start(command)
        code = process.wait(120)
        fleet.drain()
        verdict = fleet.verdict()
        found = [*damage(fleet.db), *evidence(fleet.db, fleet.trace, verdict)]
        if code:
            found.append(f"exit code {code}: {fleet.errors()}")
        say(*found)
        return len(found)


def stop_workers(store: str, times: int) -> int:
    """How many jobs failed because their worker was told to stop."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        fleet = Fleet(stack.enter_context(database(store, folder)), folder)
        stack.callback(fleet.close)
        enqueuer = fleet.enqueuer()
        codes = [_stop_one(fleet) for _ in range(times)]
        fleet.kill_all(enqueuer)
        fleet.drain_enqueued()
        ended = ends(fleet.db)
        failed = sum(ended.get(kind, 0) for kind in INTERRUPTED)
        verdict = fleet.verdict()
        if failed or any(codes) or not verdict.is_clean:
            say(ended, f"exit codes {codes}", verdict, fleet.errors())
        return failed + sum(map(bool, codes)) + (not verdict.is_clean)


def _stop_one(fleet: Fleet) -> int:
    worker = fleet.worker("--no-ticker")
    wait_until(lambda: fleet.children_of(worker), "it works", patience=60)
    time.sleep(0.3)
    worker.signal(signal.SIGTERM)
    return worker.wait(60)
