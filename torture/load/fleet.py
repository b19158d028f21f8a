"""Worker, ticker, server and enqueuer processes over one database, and ways to kill them."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from duly import Duly
from duly.runtime.lifeline import Lifeline
from tests.cli.processes import Process, duly, environment, wait_until
from tests.jobs.support import Database
from tests.torture.kill.trace import Trace
from torture.load import ticks
from torture.load.audit import Verdict, ends, judge
from torture.load.history import keep_log

APP = "torture.load.app:app"
BETWEEN_CHILDREN = 3.0
BACKLOG = 200
LAST_WORDS = 1_000
# Log messages of the supervisor and of workers.
CHILD_ENDED = re.compile(r"worker process (\d+) ended with")
STRANGE = (
    *("was declared dead while it was alive", "killing worker process", "killing the process of"),
    # A hook was found that should have been freed; a transaction that lost against another one was
    # not repeated.
    *("that waited although their jobs had ended", "postgres.errors.Conflict"),
)
LINE = len("00000000-0000-0000-0000-000000000000\n")
TABLES = (
    *("effects (job_id text)", "orders (job_id text)", "received (number text)"),
    "marks (job_id text)",
)


class Fleet:
    """All processes that run on one database during a scene.

    The processes may reach the database by another address than the checks: `seen_at`.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        seen_at: str | None = None,
        schedules: int = 0,
        migrate: Callable[[str], None] | None = None,
    ) -> None:
        self._url = url
        self._seen_at = seen_at or url
        self._schedules = schedules
        self.trace = Trace(folder)
        self._processes: list[Process] = []
        self._seeds = iter(range(1_000_000))
        self._noted: set[int] = set()
        self._surprises: list[str] = []
        self.kills = 0
        (migrate or _migrate)(url)
        self.db = Database(url)
        # No constraint: a doubled effect must be visible, not refused.
        for table in TABLES:
            self.db.execute(f"CREATE TABLE {table}")
        keep_log(self.db)

    # Starting

    def worker(
        self, *options: str, fault: str | None = None, env: Mapping[str, str] | None = None
    ) -> Process:
        """`duly worker`: a parent and its children."""
        command = duly("--app", APP, "worker", "--concurrency=8", *options)
        return self.start(command, fault, env=env)

    def worker_process(self, *, fault: str | None = None) -> Process:
        """One of the processes that `duly worker` starts, without the parent."""
        _, file = Lifeline.create()
        command = duly("--app", APP, "worker", "--concurrency=8", f"--child={file}")
        try:
            return self.start(command, fault, (file,))
        finally:
            os.close(file)

    def ticker(self) -> Process:
        return self.start(duly("--app", APP, "ticker"))

    def server(self, port: int) -> Process:
        return self.start(duly("--app", APP, "serve", f"--port={port}", "--only=api"))

    def enqueuer(
        self,
        port: int | None = None,
        *,
        backlog: int = BACKLOG,
        fault: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        words = map(str, [next(self._seeds), backlog, *([] if port is None else [port])])
        command = [sys.executable, "-m", "torture.load.enqueuer", *words]
        return self.start(command, fault, env=env)

    def start(
        self,
        command: list[str],
        fault: str | None = None,
        pass_fds: tuple[int, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Process:
        told = {
            "TORTURE_FOLDER": str(self.trace.folder),
            "TORTURE_SCHEDULES": str(self._schedules),
            # Without compiled files a start takes three times as long, and there are thousands.
            "PYTHONDONTWRITEBYTECODE": "",
            **({} if fault is None else {"DULY_FAULT": fault}),
            **(env or {}),
        }
        process = Process(command, environment(self._seen_at, **told), pass_fds=pass_fds)
        self._processes.append(process)
        return self._processes[-1]

    # Killing

    def expect_kill(self, process: Process, where: str) -> None:
        """Wait for the SIGKILL of the process's fault point; any other end is an error."""
        wait_until(lambda: not process.is_running, f"it was killed at {where}", patience=60)
        code = process.wait()
        assert code == -signal.SIGKILL, f"{where}: exit {code}, no kill\n{process.errors()}"
        self.note_death(process.pid)
        self.kills += 1

    def kill_children(self, parent: Process) -> None:
        """Kill the children of a process until it is dead itself.

        A child that runs nothing at that moment leaves nothing to rescue, and another has to die.
        """
        next_at = time.monotonic()

        def is_dead() -> bool:
            nonlocal next_at
            if parent.is_running and time.monotonic() >= next_at and self.children_of(parent):
                self.kill_a_child(parent)
                next_at = time.monotonic() + BETWEEN_CHILDREN
            return not parent.is_running

        wait_until(is_dead, "the parent is dead", patience=60)

    def kill_a_child(self, parent: Process) -> None:
        """Send SIGKILL to a registered worker process that the parent has started."""
        pids = wait_until(lambda: self.children_of(parent), "the parent has a child")
        self.note_death(pids[0])
        with suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGKILL)
            self.kills += 1

    def children_of(self, parent: Process) -> list[int]:
        """The youngest first: the oldest row may belong to one that is dead already."""
        rows = self.db.execute("SELECT pid FROM @workers ORDER BY id DESC")
        return [pid for (pid,) in rows if parent.started(pid)]

    def kill_some_child(self, parent: Process, chance: random.Random) -> None:
        """Send SIGKILL to any process that a parent has started, if there is one."""
        children = [pid for pid in _group(parent.pid) if pid != parent.pid]
        if children:
            victim = chance.choice(children)
            self.note_death(victim)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self.kills += 1

    def kill(self, process: Process) -> None:
        """Send SIGKILL to one process. Its children continue, or end by themselves."""
        self.note_death(process.pid)
        process.kill()
        self.kills += 1

    def kill_all(self, process: Process) -> None:
        """Send SIGKILL to a process and all its descendants, so that nothing of it is left."""
        self._end_now(process)
        self._look_back_at(process)
        process.close()
        self._processes.remove(process)
        self.kills += 1

    def note_death(self, pid: int) -> None:
        """Called before the kill: what it holds is free only once it is really dead."""
        self._noted.add(pid)
        self.trace.append("keys", "dies", _now(), "-", pid)

    def surprises(self) -> list[str]:
        """Processes that ended by themselves or were killed by others; living ones declared dead.

        This alone breaks no promise, but it may explain why one is broken.
        """
        for process in self._processes:
            self._look_back_at(process)
        return self._surprises

    def _look_back_at(self, process: Process) -> None:
        lines = process.errors().splitlines()
        self._surprises += [line for line in lines if self._is_strange(line)]

    def _is_strange(self, line: str) -> bool:
        ended = CHILD_ENDED.search(line)
        unnoted = ended is not None and int(ended[1]) not in self._noted
        return unnoted or any(words in line for words in STRANGE)

    def _end_now(self, process: Process) -> None:
        if not process.is_running and process.pid not in self._noted:
            said = process.errors()[-LAST_WORDS:]
            self._surprises.append(f"{process.pid} has ended by itself: {said}")
        for pid in _group(process.pid):
            self.note_death(pid)
        process.kill_all()

    # Looking

    def look_anew(self) -> None:
        """Open a new connection to look: the server may have been away."""
        self.db.close()
        self.db = Database(self._url)

    def acknowledged(self) -> int:
        return self.trace.size("acknowledged") // LINE

    def live(self) -> int:
        return self.db.count("@jobs")

    def workers(self) -> int:
        return self.db.count("@workers")

    def wait_for_some(self, chance: random.Random, most: int = 60) -> None:
        """Wait for a random moment, until this many more jobs were enqueued."""
        until = self.acknowledged() + chance.randint(1, most)
        wait_until(lambda: self.acknowledged() >= until, "jobs are being enqueued")

    def drain(self) -> None:
        """Kill everything that is still running, then let an undisturbed worker finish the rest."""
        for process in self._processes:
            self._end_now(process)
        self.drain_enqueued()

    def drain_enqueued(self) -> None:
        """The same if no worker is running any more."""
        if self._schedules:
            self._catch_up()
        clean = self.worker("--processes=2", "--no-ticker")
        wait_until(lambda: self.live() == 0, "every job has ended", patience=120)
        # Workers that left no job may not have been declared dead yet.
        wait_until(
            lambda: self.workers() == len(self.children_of(clean)),
            "every dead worker was noticed",
            patience=60,
        )
        assert self.end(clean) == 0, clean.errors()

    def _catch_up(self) -> None:
        now = _now()
        clean = self.ticker()
        wait_until(lambda: not ticks.late(self.db, now), "nothing is late", patience=120)
        assert self.end(clean) == 0, clean.errors()

    def end(self, process: Process) -> int:
        """Tell it to stop. Return its exit code."""
        # Until it says so, it does not handle signals.
        wait_until(lambda: "Ctrl-C stops" in process.errors(), "it has started", patience=60)
        process.signal(signal.SIGTERM)
        return process.wait(60)

    def verdict(self) -> Verdict:
        return judge(self.db, self.trace)

    def summary(self, verdict: Verdict) -> str:
        ended = ends(self.db)
        ways = ", ".join(f"{n} {end}" for end, n in sorted(ended.items()))
        return (
            f"{self.kills} kills, {sum(ended.values())} jobs ({ways}), "
            f"{self.acknowledged()} acknowledged: {verdict}"
        )

    def errors(self) -> str:
        """The last error output of every process."""
        return "\n".join(process.errors()[-LAST_WORDS:] for process in self._processes)

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self.db.close()


def _migrate(url: str) -> None:
    app = Duly(url)
    app.migrate()
    app.close()


def _now() -> int:
    return int(time.time() * 1000)


def _group(leader: int) -> Iterator[int]:
    """A process and all its descendants."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(ProcessLookupError):
                if os.getpgid(int(entry.name)) == leader:
                    yield int(entry.name)
