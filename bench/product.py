"""Measures duly itself: its public verbs here, its workers in their own processes."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.app import Measured, make_app, new_jobs
from bench.databases import Database
from bench.marks import Marks
from bench.raw import rate
from duly.functions.function import Function

DEFAULT_CONCURRENCY = 100
PATIENCE = 300.0


# Enqueue -----------------------------------------------------------------------------------------


def enqueue_singly(measured: Measured, count: int) -> float:
    """Jobs per second of one caller that waits for each."""
    app, function = measured.app, measured.async_noop
    return rate(count, lambda: [app.run(function, n) for n in range(count)])


def enqueue_at_once(measured: Measured, callers: int, each: int) -> float:
    """Jobs per second of many threads, each of which waits for its own."""
    start = threading.Barrier(callers + 1)

    def call() -> None:
        start.wait()
        for n in range(each):
            measured.app.run(measured.async_noop, n)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()

    def work() -> None:
        start.wait()
        for thread in threads:
            thread.join()

    return rate(callers * each, work)


def enqueue_awaited(measured: Measured, callers: int, each: int) -> float:
    """The same for tasks in one event loop."""
    app, function = measured.app, measured.async_noop

    async def call() -> None:
        for n in range(each):
            await app.aio.run(function, n)

    async def all_of_them() -> None:
        await asyncio.gather(*(call() for _ in range(callers)))

    return rate(callers * each, lambda: asyncio.run(all_of_them()))


def enqueue_in_bulk(measured: Measured, size: int, times: int) -> float:
    """Jobs per second of one caller that hands over many at a time."""
    app, function = measured.app, measured.async_noop

    def work() -> None:
        for _ in range(times):
            app.run_many(function.bind(n) for n in range(size))

    return rate(size * times, work)


# Running -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worker:
    """A worker process that has started, and what its bodies do."""

    pid: int
    marks: Marks

    def cpu_seconds(self) -> float:
        """The processor time it has used, in steps of 10 ms; 0 if the system does not tell."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return 0.0
        # The name in parentheses may hold spaces; utime and stime are fields 14 and 15.
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """How many megabytes of it are in memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
        return int(kilobytes) / 1024


@contextmanager
def worker(database: Database, concurrency: int = DEFAULT_CONCURRENCY) -> Iterator[Worker]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        path = Path(folder, "marks")
        marks = Marks(path)
        command = [sys.executable, "-m", "bench.work", database.url, str(path), str(concurrency)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the worker did not start; see its output above")
            yield Worker(process.pid, marks)
        finally:
            process.communicate()
            marks.close()


@dataclass(frozen=True)
class Run:
    """Jobs per second, microseconds of the worker's processor time for each, and its megabytes."""

    rate: float
    cpu: float
    memory: float


def end_to_end(
    database: Database, function_name: str, count: int, concurrency: int = DEFAULT_CONCURRENCY
) -> Run:
    """From the commit that makes the jobs due until nothing is left unfinished.

    All of them are enqueued in one commit, so the worker, warm and idle, gets the whole backlog at
    once.
    """
    with database.app() as measured, worker(database, concurrency) as running:
        function: Function[[int], None] = getattr(measured, function_name)
        warm_up = min(2 * concurrency, 1000)
        measured.app.run_many(function.bind(n) for n in range(warm_up))
        running.marks.wait_for(warm_up, PATIENCE)
        database.wait_until_finished()
        jobs = new_jobs(measured.app, function, count)
        used = running.cpu_seconds()
        measured.app.store.enqueue(jobs)
        began = time.monotonic()
        measured.app.store.ring()
        running.marks.wait_for(warm_up + count, PATIENCE)
        database.wait_until_finished()
        seconds = time.monotonic() - began
        cpu = (running.cpu_seconds() - used) / count * 1e6
        return Run(count / seconds, cpu, running.memory())


def pickup(database: Database, samples: int) -> list[float]:
    """Milliseconds from the call of `run` to the first line of the body in another process."""
    with database.app() as measured, worker(database) as running:

        def send(sent_at: int) -> None:
            measured.app.run(measured.ping, sent_at)

        return _pings(send, running.marks, samples)


def pickup_on(database: Database, samples: int) -> list[float]:
    """The same if the call is part of the caller's own transaction."""
    with (
        database.app() as measured,
        worker(database) as running,
        closing(database.connect()) as connection,
    ):

        def send(sent_at: int) -> None:
            # A transaction that starts with a read is refused if another process has written since.
            connection.execute("BEGIN" if database.dialect == "postgres" else "BEGIN IMMEDIATE")
            measured.app.on(connection).run(measured.ping, sent_at)
            connection.execute("COMMIT")

        return _pings(send, running.marks, samples)


def pickup_here(database: Database, samples: int) -> list[float]:
    """The same with the worker in this process."""
    with (
        tempfile.TemporaryDirectory(prefix="duly-bench-") as folder,
        closing(Marks(Path(folder, "marks"))) as marks,
    ):
        measured = make_app(database.url, marks)
        measured.app.start(concurrency=DEFAULT_CONCURRENCY)
        try:
            return _pings(lambda at: measured.app.run(measured.ping, at), marks, samples)
        finally:
            measured.app.close()


def _pings(send: Callable[[int], object], marks: Marks, samples: int) -> list[float]:
    """The first one wakes all threads and does not count."""
    send(time.monotonic_ns())
    marks.wait_for(1, PATIENCE)
    time.sleep(1)
    for _ in range(samples):
        time.sleep(random.uniform(0.020, 0.050))
        send(time.monotonic_ns())
    marks.wait_for(1 + samples, PATIENCE)
    return marks.pings()[1:]


def quantiles(times: list[float]) -> tuple[float, float]:
    """p50 and p99."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return cuts[49], cuts[98]
