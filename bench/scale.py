"""Measures how far one PostgreSQL goes, and two databases behind one configuration.

    python -m bench.scale                       32 worker processes, then two databases
    python -m bench.scale --workers 1,8,32 --jobs 100000

docs/scale.md draws the conclusions. All processes share this machine: with two cores, more workers
cannot do more work; the figures show what they cost each other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench import machine
from bench.app import new_jobs
from bench.databases import Database, Fresh, postgres_server
from bench.product import PATIENCE, Worker, worker

IDLE_SECONDS = 10.0
CONCURRENCY = 100


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.scale")
    parser.add_argument(
        "--workers", default="1,2,8,32", help="Numbers of processes to try, one after the other."
    )
    parser.add_argument("--jobs", type=int, default=50_000)
    options = parser.parse_args(arguments)
    for fact, value in machine.describe().items():
        print(f"{fact}: {value}", flush=True)
    with postgres_server() as fresh:
        print(f"\n{HEAD}")
        for count in map(int, options.workers.split(",")):
            print(_one_database(fresh, count, options.jobs), flush=True)
        print(f"\n{HEAD_OF_TWO}")
        for count in (1, 2):
            print(_databases(fresh, count, options.jobs), flush=True)
    return 0


# One database ------------------------------------------------------------------------------------

HEAD = """\
| workers | no-ops/s | server CPU/job | of one | naps/s | connections | idle: commits/s, CPU |
|--:|--:|--:|--:|--:|--:|--:|"""


def _one_database(fresh: Fresh, count: int, jobs: int) -> str:
    with fresh() as database, _workers([database], count) as workers:
        server = Server(database)
        noops = _drain([database], "async_noop", jobs)
        shares = sorted(each.marks.count for each in workers)
        naps = _drain([database], "nap", jobs // 5)
        idle = server.idle()
        cells = [
            f"{count}",
            f"{noops.rate:,.0f}",
            f"{noops.server_cpu:.0f} µs",
            f"{shares[0]:,}, {shares[-1]:,}",
            f"{naps.rate:,.0f}",
            f"{server.connections()}",
            f"{idle.commits:.1f}, {idle.cpu:.1%}",
        ]
        return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Drained:
    """Jobs per second, and microseconds of the server's processor time for each."""

    rate: float
    server_cpu: float


def _drain(databases: Sequence[Database], function: str, jobs: int) -> Drained:
    """Enqueue the same number in each of them. Returns when none is left."""
    server = Server(databases[0])
    with ExitStack() as stack:
        apps = [stack.enter_context(database.app()) for database in databases]
        fills = [new_jobs(each.app, getattr(each, function), jobs) for each in apps]
        for each, fill in zip(apps, fills, strict=True):
            each.app.store.enqueue(fill)
        before, began = server.cpu_seconds(), time.monotonic()
        for each in apps:
            each.app.store.ring()
        for database in databases:
            database.wait_until_finished(PATIENCE)
        took = time.monotonic() - began
        total = jobs * len(databases)
        return Drained(total / took, (server.cpu_seconds() - before) / total * 1e6)


@contextmanager
def _workers(databases: Sequence[Database], count: int) -> Iterator[list[Worker]]:
    """This many processes for each database."""
    with ExitStack() as stack:
        found = [
            stack.enter_context(worker(database, CONCURRENCY))
            for database in databases
            for _ in range(count)
        ]
        time.sleep(1)
        yield found


@dataclass(frozen=True)
class Idle:
    """Commits per second of idle workers, and the share of one core they cost the server."""

    commits: float
    cpu: float


class Server:
    """What the server itself reports about its load."""

    def __init__(self, database: Database) -> None:
        self._url = database.url
        with psycopg.connect(self._url) as connection:
            self._pid = _stat(connection.info.backend_pid)[1]

    def connections(self) -> int:
        """The connections of the workers."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        return self._ask(asked) - 1

    def idle(self) -> Idle:
        ask = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        commits, cpu, began = self._ask(ask), self.cpu_seconds(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        took = time.monotonic() - began
        return Idle((self._ask(ask) - commits) / took, (self.cpu_seconds() - cpu) / took)

    def cpu_seconds(self) -> float:
        """Processor time of the server and all its processes, including those that have ended."""
        everybody = (_stat(int(each.name)) for each in Path("/proc").glob("[0-9]*"))
        children = [stat for stat in everybody if stat[1] == self._pid]
        ticks = sum(_stat(self._pid)[11:15]) + sum(sum(stat[11:13]) for stat in children)
        return ticks / os.sysconf("SC_CLK_TCK")

    def _ask(self, text: str) -> int:
        with psycopg.connect(self._url, autocommit=True) as connection:
            row = connection.execute(text.encode()).fetchone()
            assert row is not None
            return int(row[0])


def _stat(pid: int) -> list[int]:
    """The fields of a process after its name and state: parent first, then many others."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [0] * 20
    return [0, *map(int, text.rpartition(")")[2].split()[1:21])]


# Several databases -------------------------------------------------------------------------------

HEAD_OF_TWO = """| databases | workers | no-ops/s | mutations/s | naps/s |
|--:|--:|--:|--:|--:|"""


def _databases(fresh: Fresh, count: int, jobs: int) -> str:
    """The same number of workers for one database as for both: two of each."""
    with ExitStack() as stack:
        databases = [stack.enter_context(fresh()) for _ in range(count)]
        stack.enter_context(_workers(databases, 4 // count))
        kinds = ("async_noop", "insert_row", "nap")
        rates = [_drain(databases, kind, jobs // count).rate for kind in kinds]
        cells = [str(count), "4", *(f"{rate:,.0f}" for rate in rates)]
        return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
