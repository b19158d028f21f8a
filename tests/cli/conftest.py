"""`duly` as a command, and a shop whose jobs it runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from duly import Duly, Job
from tests.cli.places import Place
from tests.cli.processes import TOP, Process, duly, environment, wait_until
from tests.cli.shop import make
from tests.cli.terminal import Terminal
from tests.jobs.support import Database
from tests.torture.kill.trace import Trace

APP = "tests.cli.shop:app"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


# What is tried in place and through a server is tried so on one database each; every pair of them
# with --long.
CROSSED = ({"here", "postgres"}, {"server", "sqlite"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    here = Path(__file__).parent
    tried: dict[str, set[str]] = {}
    values = {item: set(item.name.partition("[")[2].rstrip("]").split("-")) for item in items}
    for item in items:
        tried.setdefault(item.nodeid.partition("[")[0], set()).update(values[item])
    left_out = [
        item
        for item in items
        if item.path.is_relative_to(here)
        and {"sqlite", "postgres"} <= tried[item.nodeid.partition("[")[0]]
        and any(crossed <= values[item] for crossed in CROSSED)
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        dropped = set(left_out)
        items[:] = [item for item in items if item not in dropped]


@pytest.fixture
def run(terminal: Terminal) -> Run:
    """Run `duly` to its end."""

    def run_it(
        *arguments: str,
        url: str | None = None,
        cwd: Path = TOP,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        named = {} if url is None else {"DULY_DATABASE_URL": url}
        ran = terminal.run(*arguments, env={**named, **(env or {})}, cwd=cwd, code=None)
        return subprocess.CompletedProcess(arguments, ran.code, ran.out, ran.err)

    return run_it


class Shop:
    """A migrated database, an app that enqueues into it, and the workers that run its jobs."""

    def __init__(self, url: str, folder: Path, terminal: Terminal | None = None) -> None:
        self.url = url
        self._terminal = terminal
        self.trace = Trace(folder)
        self.app: Duly = make(url, folder)
        self.app.migrate()
        with self.app.transaction() as tx:
            tx.execute("CREATE TABLE notes (text text)")
        self.db = Database(url)
        self._processes: list[Process] = []

    def worker(self, *options: str, root: tuple[str, ...] = ()) -> Process:
        """Start `duly worker` and wait until its processes can claim."""
        process = self.start(*root, "worker", *options)
        wait_until(lambda: self.worker_pids(process), f"the worker works\n{process.errors()}")
        return process

    def start(self, *arguments: str) -> Process:
        """Start a command that goes on."""
        env = environment(self.url, SHOP_FOLDER=str(self.trace.folder))
        words = ("--app", APP, *arguments)
        if self._terminal is None:
            process = Process(duly(*words), env)
        else:
            process = self._terminal.process(*words, env=env)
        self._processes.append(process)
        return process

    def worker_pids(self, parent: Process) -> list[int]:
        """The registered processes of one `duly worker`."""
        rows = self.db.execute("SELECT pid FROM @workers ORDER BY id")
        return [pid for (pid,) in rows if parent.started(pid)]

    def stop(self, worker: Process) -> int:
        worker.signal(signal.SIGTERM)
        return worker.wait()

    def call(self, name: str, *args: Any) -> Job[Any]:
        return self.app.run(self.app.function(name), *args)

    def started(self) -> list[str]:
        """What the bodies that have begun were called with, in order."""
        return [line[0] for line in self.trace.lines("started")]

    def let_go(self, file: str) -> None:
        """Let the bodies go on that wait for this file."""
        (self.trace.folder / file).touch()

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self.db.close()
        self.app.close()


@pytest.fixture
def shop(url: str, tmp_path: Path, terminal: Terminal) -> Iterator[Shop]:
    shop = Shop(url, tmp_path, terminal)
    yield shop
    shop.close()


@pytest.fixture(scope="session")
def terminal() -> Iterator[Terminal]:
    """Runs `duly` quickly, on a terminal or not."""
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture(params=["here", "server"])
def place(
    request: pytest.FixtureRequest, terminal: Terminal, url: str, tmp_path: Path
) -> Iterator[Place]:
    """On SQLite and on PostgreSQL, the commands on the app itself and on its server."""
    place = Place(terminal, url, tmp_path)
    if request.param == "server":
        place.move_to_a_server()
    yield place
    place.close()


@pytest.fixture
def home(terminal: Terminal, tmp_path: Path) -> Iterator[Place]:
    """One of the places is enough for how commands behave."""
    place = Place(terminal, f"sqlite:///{tmp_path}/shop.db", tmp_path)
    yield place
    place.close()
