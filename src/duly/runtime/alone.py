"""Runs a job that crashed two workers in its own process.

The process is started from the program's own code, never from stored data, and runs a single job.
If it dies while the worker that started it lives on, only that job can be the reason. If both die,
something killed them, and nothing is known about the job.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Sequence

from duly.clock import os_monotonic, os_sleep
from duly.errors import StoreError
from duly.runtime.heartbeat import rescue
from duly.runtime.lifeline import Lifeline
from duly.runtime.program import Program

log = logging.getLogger(__name__)

MAX_AT_ONCE = 4
GRACE = 1.0
"""How long a worker must outlive the process before that counts as a crash, in seconds: when a
container or a machine is killed, its processes die one after the other."""

Command = Callable[[str, int], Sequence[str]]


class AloneRun:
    """The process of one job."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: Lifeline) -> None:
        self.process = process
        self.lifeline = lifeline
        self.stopped = False
        self.seen_dead_at: float | None = None

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def crashed(self) -> bool:
        """Whether it ended without a clean exit.

        A process killed as stuck has crashed too: its job never returned.
        """
        return not self.is_running and self.process.returncode != 0 and not self.stopped

    def is_witnessed(self) -> bool:
        """Whether this process has outlived it for long enough to know why it died."""
        now = os_monotonic()
        if self.seen_dead_at is None:
            self.seen_dead_at = now
        return now - self.seen_dead_at >= GRACE

    def stop(self) -> None:
        self.stopped = True
        self.process.terminate()


class AloneRuns:
    """Starts these processes, one per job and a few at a time, and reports how they died.

    Without a `command`, they cannot be started.
    """

    def __init__(self, program: Program, command: Command | None) -> None:
        self._program = program
        self._command = command
        self._running: dict[str, AloneRun] = {}
        self._guard = threading.Lock()
        self._stopping = False
        self._warned = False

    def start(self, job_id: str) -> None:
        with self._guard:
            if job_id in self._running or self._stopping:
                return
            if self._command is None:
                self._warn(job_id)
            elif len(self._running) < MAX_AT_ONCE:
                self._start(self._command, job_id)

    def _start(self, command: Command, job_id: str) -> None:
        log.warning("job %s crashed two workers; running it in its own process", job_id)
        try:
            self._running[job_id] = self._spawn(command, job_id)
        except OSError as error:
            log.error("the process of job %s cannot be started now: %s", job_id, error)

    def _spawn(self, command: Command, job_id: str) -> AloneRun:
        lifeline, file = Lifeline.create()
        try:
            process = subprocess.Popen(
                command(job_id, file), pass_fds=[file], stdin=subprocess.DEVNULL
            )
        except BaseException:
            lifeline.close()
            raise
        finally:
            os.close(file)
        return AloneRun(process, lifeline)

    def look_after(self) -> None:
        """Send heartbeats for running ones, kill stuck ones, and settle the jobs of dead ones."""
        with self._guard:
            runs = dict(self._running)
        self._beat([run for run in runs.values() if run.is_running])
        for job_id, run in runs.items():
            self._kill_if_stuck(job_id, run)
            if not run.is_running and self._is_settled(run):
                self._forget(job_id)

    def _beat(self, living: Sequence[AloneRun]) -> None:
        """While a body holds the GIL, its process cannot send heartbeats itself."""
        ids = [worker_id for run in living if (worker_id := run.lifeline.worker_id)]
        try:
            if ids:
                self._program.store.beat(ids)
        except StoreError as error:
            log.warning("could not send heartbeats for processes that run a single job: %s", error)

    def _kill_if_stuck(self, job_id: str, run: AloneRun) -> None:
        reason = run.lifeline.stuck()
        if reason and run.is_running:
            log.error("killing the process of job %s: %s", job_id, reason)
            run.process.kill()

    def _is_settled(self, run: AloneRun) -> bool:
        """Whether nothing is left to do about a process that has ended."""
        worker_id = run.lifeline.worker_id
        if not run.crashed or worker_id is None:
            return True
        if not run.is_witnessed():
            return False
        try:
            program = self._program
            hooks = program.hook_calls
            rescue(program.store, program.clock, worker_id, None, hooks, witnessed=True)
        except StoreError as error:
            log.warning("could not rescue the job of a dead process yet: %s", error)
            return False
        return True

    def _forget(self, job_id: str) -> None:
        with self._guard:
            self._running.pop(job_id).lifeline.close()

    def tell_to_stop(self) -> None:
        """Start no more. Running ones get as much time as any worker to end cleanly."""
        with self._guard:
            self._stopping = True
            for run in self._running.values():
                run.stop()

    def wait(self, seconds: float) -> None:
        """Wait until they have ended."""
        until = os_monotonic() + seconds
        while self._is_any_running() and os_monotonic() < until:
            os_sleep(0.01)

    def _is_any_running(self) -> bool:
        with self._guard:
            return any(run.is_running for run in self._running.values())

    def _warn(self, job_id: str) -> None:
        if not self._warned:
            self._warned = True
            log.error(
                "job %s crashed two workers and must now run in its own process, which requires an "
                "app in a module or script, and duly[cli]; run `duly worker`",
                job_id,
            )
