"""The same rows for other queues and workflow engines.

Each runs in a throw-away environment that pip or npm fills.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench import workflows
from bench.cases import ASYNC, PICKUP_RUN, SINGLE, SYNC, Sizes
from bench.databases import Database, Fresh
from bench.figures import Figure, Trial, one, say
from bench.marks import Marks
from bench.product import quantiles

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120.0


@dataclass(frozen=True)
class Peer:
    """Another queue: what to install, which settings to try, how to tell that it is done."""

    name: str
    store: str
    packages: tuple[str, ...]
    row: str
    word: str
    settings: tuple[int, ...]
    """The first one is its default, or 10 if that is 1."""
    unfinished: str
    share: float = 1.0
    node: bool = False


@dataclass(frozen=True)
class FlowPeer:
    """Another engine of durable workflows."""

    name: str
    packages: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    """What it is called in flow_peer.py, and in the table."""
    node = False


# A share below one is for peers that would need minutes for as many jobs.
PEERS = (
    Peer(
        "pgqueuer",
        "postgres",
        ("pgqueuer", "asyncpg"),
        ASYNC,
        "batch size",
        (10, 500, 1000, 2000),
        "SELECT count(*) FROM pgqueuer",
    ),
    Peer(
        "graphile-worker",
        "postgres",
        ("graphile-worker", "pg"),
        ASYNC,
        "concurrent jobs",
        (10, 24, 100),
        "SELECT count(*) FROM graphile_worker._private_jobs",
        node=True,
    ),
    Peer(
        "procrastinate",
        "postgres",
        ("procrastinate", "psycopg[binary]"),
        ASYNC,
        "concurrency",
        (10,),
        "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        0.04,
    ),
    Peer("huey", "sqlite", ("huey",), SYNC, "threads", (1, 4), "SELECT count(*) FROM task", 0.4),
)
# All of them on PostgreSQL.
FLOW_PEERS = (
    FlowPeer(
        "dbos",
        ("dbos",),
        (("dbos", "async, pool of 40"), ("dbos_threads", "threads, pool of 40")),
    ),
    FlowPeer("absurd-sdk", ("absurd-sdk", "absurdctl"), (("absurd", "async"),)),
)
AnyPeer = TypeVar("AnyPeer", Peer, FlowPeer)


@contextmanager
def installed(peers: Sequence[AnyPeer]) -> Iterator[list[tuple[AnyPeer, Path]]]:
    """Those that pip or npm could install, each with its interpreter."""
    with tempfile.TemporaryDirectory(prefix="duly-bench-peers-") as folder:
        found: list[tuple[AnyPeer, Path]] = []
        for peer in peers:
            try:
                found.append((peer, _install(peer, Path(folder, peer.name))))
            except (subprocess.CalledProcessError, FileNotFoundError) as error:
                reason = getattr(error, "stderr", str(error))
                print(f"skipped: {peer.name} cannot be installed: {_last(reason)}")
        yield found


def of_store(store: str) -> list[Peer]:
    return [peer for peer in PEERS if peer.store == store]


def _install(peer: Peer | FlowPeer, folder: Path) -> Path:
    say(f"installing {peer.name}")
    if peer.node:
        npm = ["npm", "install", "--silent", "--prefix", str(folder), *peer.packages]
        subprocess.run(npm, check=True, capture_output=True, text=True)
        return folder / "node_modules"
    python = folder / "bin" / "python"
    # Isolated, so that it does not inherit the ban on connections to other machines.
    pip = [str(python), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, *peer.packages]):
        subprocess.run(command, check=True, capture_output=True, text=True)
    return python


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def peer_trials(
    store: str, fresh: Fresh, sizes: Sizes, peers: Sequence[tuple[Peer, Path]]
) -> dict[str, list[Trial]]:
    """By row, so that peers are measured alternately with duly and the bare database."""
    trials: dict[str, list[Trial]] = {}
    for peer, python in peers:
        name = f"{peer.name} {_version(peer, python)}"
        runner = Runner(peer, python, fresh)
        figure = Figure(store, SINGLE, name, "one by one")
        trials.setdefault(SINGLE, []).append(
            one(figure, runner.enqueue(sizes.singles // 5), optional=True)
        )
        if store == "PostgreSQL":
            best = peer.settings[-1]
            pickups = [
                Figure(store, f"{PICKUP_RUN}, {cut}", name, f"{peer.word} {best}", "ms")
                for cut in ("p50", "p99")
            ]
            trials.setdefault(pickups[0].row, []).append(
                Trial(pickups, runner.pickup(sizes.pings, best), optional=True)
            )
        for setting in peer.settings:
            default = setting == peer.settings[0]
            figure = Figure(store, peer.row, name, f"{peer.word} {setting}", default=default)
            count = max(1, round(sizes.jobs * peer.share / 1000)) * 1000
            trials.setdefault(peer.row, []).append(
                one(figure, runner.end_to_end(count, setting), optional=True)
            )
    return trials


def flow_peer_trials(
    store: str, fresh: Fresh, sizes: Sizes, peers: Sequence[tuple[FlowPeer, Path]]
) -> dict[str, list[Trial]]:
    """The same for engines of workflows: one measurement gives both figures."""
    trials: list[Trial] = []
    for peer, python in peers:
        name = f"{peer.name} {_version(peer, python)}"
        for engine, setting in peer.settings:
            figures = [
                Figure(store, row, name, setting, "steps/s")
                for row in (workflows.ONE, workflows.MANY)
            ]
            measure = partial(_flow_rates, fresh, python, engine, sizes)
            trials.append(Trial(figures, measure, optional=True))
    return {workflows.MANY: trials}


def _flow_rates(fresh: Fresh, python: Path, engine: str, sizes: Sizes) -> Sequence[float]:
    # Enough for a rate; they are several times slower.
    numbers = (sizes.steps // 2, workflows.RUNS, max(1, sizes.steps_each // 4))
    command = [str(python), "-c", "from bench.flow_peer import main; main()", engine]
    with fresh() as database:
        done = subprocess.run(
            [*command, database.url, *map(str, numbers)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    return [float(word) for word in done.stdout.split()[-2:]]


def _version(peer: Peer | FlowPeer, python: Path) -> str:
    if peer.node:
        package = json.loads((python / peer.name / "package.json").read_text())
        return str(package["version"])
    ask = f"from importlib.metadata import version; print(version('{peer.name}'))"
    return subprocess.check_output([python, "-c", ask], text=True).strip()


class Runner:
    """Drives one peer, each verb in its own process."""

    def __init__(self, peer: Peer, python: Path, fresh: Fresh) -> None:
        self._peer = peer
        self._python = python
        self._fresh = fresh

    def enqueue(self, count: int) -> Callable[[], float]:
        def measure() -> float:
            with self._fresh() as database, _marks_file() as marks:
                self._ask(database, marks, "setup")
                return count / float(self._ask(database, marks, "enqueue", count))

        return measure

    def pickup(self, count: int, setting: int) -> Callable[[], Sequence[float]]:
        """p50 and p99 of the milliseconds from the call to the first line of the body."""

        def measure() -> Sequence[float]:
            with self._fresh() as database, _marks_file() as path, closing(Marks(path)) as marks:
                self._ask(database, path, "setup")
                process = self._start(database, path, "work", setting)
                try:
                    self._ask(database, path, "ping", 10)
                    marks.wait_for(10, PATIENCE)
                    self._ask(database, path, "ping", count)
                    marks.wait_for(10 + count, PATIENCE)
                    return quantiles(marks.pings()[10:])
                finally:
                    process.kill()
                    process.communicate()

        return measure

    def end_to_end(self, count: int, setting: int) -> Callable[[], float]:
        """From the first body, which leaves its start-up out, until nothing is unfinished."""

        def measure() -> float:
            with self._fresh() as database, _marks_file() as path, closing(Marks(path)) as marks:
                self._ask(database, path, "setup")
                self._ask(database, path, "fill", count)
                process = self._start(database, path, "work", setting)
                try:
                    marks.wait_for(count, PATIENCE)
                    self._wait_until_finished(database)
                    return count / (time.monotonic() - marks.first_at / 1e9)
                finally:
                    process.kill()
                    process.communicate()

        return measure

    def _ask(self, database: Database, marks: Path, verb: str, *number: int) -> str:
        process = self._start(database, marks, verb, *number)
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self._peer.name} failed at {verb}; see its output above")
        return output

    def _start(
        self, database: Database, marks: Path, verb: str, *number: int
    ) -> subprocess.Popen[str]:
        # Not with -m: procrastinate does not support an app in the main module.
        command = [str(self._python), "-c", "from bench.peer import main; main()", self._peer.name]
        where = {"PYTHONPATH": str(ROOT)}
        if self._peer.node:
            command = ["node", str(ROOT / "bench" / f"{self._peer.name}.cjs")]
            where = {"NODE_PATH": str(self._python)}
        return subprocess.Popen(
            [*command, database.url, str(marks), verb, *map(str, number)],
            env=os.environ | where,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _wait_until_finished(self, database: Database) -> None:
        until = time.monotonic() + PATIENCE
        while database.run(self._peer.unfinished)[0][0]:
            if time.monotonic() > until:
                raise TimeoutError(f"{self._peer.name} left jobs unfinished")
            time.sleep(0.002)


@contextmanager
def _marks_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="duly-bench-") as folder:
        yield Path(folder, "marks")
