"""Worker and enqueuer processes over one database, and ways to kill them."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from duly import Duly
from duly.runtime.lifeline import Lifeline
from tests.cli.processes import Process, duly, environment, wait_until
from tests.jobs.support import Database
from tests.torture.kill.audit import Auditor, Verdict
from tests.torture.kill.trace import Trace

APP = "tests.torture.kill.app:app"
BETWEEN_CHILDREN = 3.0
LINE = len("00000000-0000-0000-0000-000000000000\n")


class Fleet:
    """Everything that runs on one database during a test."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._trace = Trace(folder)
        self._processes: list[Process] = []
        self._seeds = iter(range(1_000_000))
        self.kills = 0
        _create_tables(url)
        self.db = Database(url)
        self.auditor = Auditor(self.db)

    # Starting

    def worker(self, *options: str, fault: str | None = None) -> Process:
        """`duly worker`: a parent and its children."""
        return self._start(duly("--app", APP, "worker", "--concurrency=8", *options), fault)

    def worker_process(self, *, fault: str) -> Process:
        """One of the processes that `duly worker` starts, without the parent."""
        _, file = Lifeline.create()
        command = duly("--app", APP, "worker", "--concurrency=8", f"--child={file}")
        try:
            return self._start(command, fault, (file,))
        finally:
            os.close(file)

    def enqueuer(self, *, fault: str | None = None) -> Process:
        module = "tests.torture.kill.enqueuer"
        return self._start([sys.executable, "-m", module, str(next(self._seeds))], fault)

    def _start(
        self, command: list[str], fault: str | None, pass_fds: tuple[int, ...] = ()
    ) -> Process:
        armed = {} if fault is None else {"DULY_FAULT": fault}
        env = environment(self._url, KILL_FOLDER=str(self._trace.folder), **armed)
        self._processes.append(Process(command, env, pass_fds=pass_fds))
        return self._processes[-1]

    # Killing

    def expect_kill(self, process: Process, where: str) -> None:
        """The process must end by the SIGKILL of its fault point, and by nothing else."""
        wait_until(lambda: not process.is_running, f"it was killed at {where}", patience=60)
        code = process.wait()
        assert code == -signal.SIGKILL, f"{where}: exit {code}, no kill\n{process.errors()}"
        self.kills += 1
        self.auditor.look()

    def kill_children(self, parent: Process) -> None:
        """Kill what the parent starts until it is dead itself.

        A child that runs nothing just then leaves nothing to rescue, and another has to die.
        """
        next_at = time.monotonic()

        def is_dead() -> bool:
            nonlocal next_at
            if parent.is_running and time.monotonic() >= next_at and self._children_of(parent):
                self.kill_a_child(parent)
                next_at = time.monotonic() + BETWEEN_CHILDREN
            return not parent.is_running

        wait_until(is_dead, "the parent is dead", patience=60)

    def kill_a_child(self, parent: Process) -> None:
        """SIGKILL to a registered worker process that the parent has started."""
        pids = wait_until(lambda: self._children_of(parent), "the parent has a child")
        with suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGKILL)
            self.kills += 1

    def _children_of(self, parent: Process) -> list[int]:
        """The youngest first: the oldest row may be of one that is dead already."""
        rows = self.db.execute("SELECT pid FROM @workers ORDER BY id DESC")
        return [pid for (pid,) in rows if parent.started(pid)]

    def kill(self, kill: Callable[[], None]) -> None:
        kill()
        self.kills += 1

    # Waiting

    def acknowledged(self) -> int:
        return self._trace.size("acknowledged") // LINE

    def wait_for_some(self, chance: random.Random, most: int = 60) -> None:
        """A random moment: when so many more jobs were enqueued."""
        until = self.acknowledged() + chance.randint(1, most)
        wait_until(lambda: self.acknowledged() >= until, "jobs are being enqueued")

    def drain(self) -> None:
        """Kill everything that still runs; then let one worker that nobody kills do the rest."""
        for process in self._processes:
            process.kill_all()
        clean = self.worker("--processes=2")
        wait_until(lambda: self.auditor.live() == 0, "every job has ended", patience=120)
        clean.signal(signal.SIGTERM)
        assert clean.wait() == 0, clean.errors()

    def verdict(self) -> Verdict:
        return self.auditor.verdict(
            acknowledged=self._trace.lines("acknowledged"),
            canceled=self._trace.lines("canceled"),
            starts=self._trace.lines("starts"),
        )

    def summary(self, verdict: Verdict) -> str:
        ends = ", ".join(f"{n} {end}" for end, n in sorted(self.auditor.states().items()))
        jobs = sum(self.auditor.states().values())
        return (
            f"{self.kills} kills, {jobs} jobs ({ends}), {self.acknowledged()} acknowledged: "
            f"{verdict}"
        )

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self.db.close()


def _create_tables(url: str) -> None:
    app = Duly(url)
    app.migrate()
    with app.transaction() as tx:
        # No constraint: a doubled effect must be seen, not refused.
        tx.execute("CREATE TABLE effects (job_id text)")
        tx.execute("CREATE TABLE orders (job_id text)")
    app.close()
