"""Full disks, removed permissions, long transactions, a stopped lock holder, SIGTERM under load."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from tests.cli.processes import wait_until
from torture.load.audit import ends, evidence
from torture.load.damage import damage
from torture.load.fleet import Fleet
from torture.load.points import Cell
from torture.load.scene import scratch_folder
from torture.measures.base import NAMES, Share, say
from torture.measures.points import database, try_on
from torture.table import Row, none_of

STOPS_HOURLY = 20
LEAST_STOPS = 5
ROOMS = (20_000, 200_000, 1_000_000)
INTERRUPTED = ("worker_lost", "crash_loop")
BARRED = ("file", "folder")
WARM = 200
# Of a client, of a worker that claims and of one that runs a body: each in a transaction.
STOPPED = [Cell("pause", p) for p in ("enqueue.inserted", "finish.moved", "mutation.body_done")]


def run(share: Share) -> Iterator[Row]:
    if "sqlite" in share.stores:
        yield from _on_sqlite(share)
    if "postgres" in share.stores:
        yield hold_transaction(share)
    for store in share.stores:
        stops = share.scaled(STOPS_HOURLY, LEAST_STOPS)
        failed = stop_workers(store, stops)
        words = f"{NAMES[store]}: jobs failed by a SIGTERM to `duly worker` under load"
        yield _judged(none_of(words, f"{stops} times", failed), share, store)


def _on_sqlite(share: Share) -> Iterator[Row]:
    wrong = sum(map(fill_disk, ROOMS))
    words = "SQLite: disk full under load, then freed"
    yield _judged(none_of(words, f"{len(ROOMS)} times", wrong), share, "sqlite")
    wrong = sum(map(take_rights, BARRED))
    words = "SQLite: file or folder read-only under load, then writable"
    yield _judged(none_of(words, f"{len(BARRED)} times", wrong), share, "sqlite")
    tried = try_on("sqlite", STOPPED, share.seed)
    if not tried.is_clean:
        say(tried.verdict, tried.ticks, *tried.missing, *tried.evidence)
    words = "SQLite: SIGSTOP of the process that holds the write lock"
    yield _judged(none_of(words, f"{len(STOPPED)} times", not tried.is_clean), share, "sqlite")


def _judged(row: Row, share: Share, store: str) -> Row:
    if not row.kept:
        say(share.replay("hardship", store))
    return row


def fill_disk(room: int) -> int:
    """How many faults there were in a process that had this many bytes left."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        path = Path(folder, "duly.db")
        fleet = Fleet(f"sqlite:///{path}", folder)
        stack.callback(fleet.close)
        return _see_through(fleet, "torture.load.starved", str(path), str(room))


def take_rights(what: str) -> int:
    """How many faults there were while a file or a folder was read-only."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        path = Path(folder, "db", "duly.db")
        path.parent.mkdir()
        fleet = Fleet(f"sqlite:///{path}", folder)
        stack.callback(fleet.close)
        return _see_through(fleet, "torture.load.barred", str(path), what)


def _see_through(fleet: Fleet, module: str, *arguments: str) -> int:
    """Run a process through hardship. Return how many faults were found."""
    process = fleet.start([sys.executable, "-m", module, *arguments])
    code = process.wait(120)
    fleet.drain()
    verdict = fleet.verdict()
    found = [*damage(fleet.db), *evidence(fleet.db, fleet.trace, verdict)]
    said = process.errors()
    if code or "Traceback" in said:
        found.append(f"exit code {code}: {said[-2_000:]}")
    say(*found)
    return len(found)


def hold_transaction(share: Share) -> Row:
    """Hold a transaction open, so that old row versions cannot be vacuumed."""
    seconds = min(60.0, max(10.0, share.seconds / 4))
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        fleet = Fleet(stack.enter_context(database("postgres", folder)), folder)
        stack.callback(fleet.close)
        fleet.worker("--no-ticker")
        fleet.enqueuer()
        wait_until(lambda: fleet.db.count("@history") > WARM, "there is load", patience=60)
        holder = fleet.db.connect()
        with holder.transaction():
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM duly.jobs")
            ended = _count_ended(fleet, seconds)
        fleet.drain()
        verdict = fleet.verdict()
        say(*evidence(fleet.db, fleet.trace, verdict))
    words = f"PostgreSQL: a transaction held for {seconds:.0f} s under load"
    # A standstill is a violation too: in each part of the time something has to end.
    idle = sum(not n for n in ended)
    tried = f"{ended[0]:,} jobs in the first quarter, {ended[-1]:,} in the last"
    return _judged(none_of(words, tried, idle + (not verdict.is_clean)), share, "postgres")


def _count_ended(fleet: Fleet, seconds: float) -> list[int]:
    """How many jobs ended in each quarter of the time."""
    counts = [fleet.db.count("@history")]
    for _ in range(4):
        time.sleep(seconds / 4)
        counts.append(fleet.db.count("@history"))
    return [after - before for before, after in pairwise(counts)]


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
