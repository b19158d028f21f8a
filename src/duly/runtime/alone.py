"""How does a job that crashed two workers get a process of its own?

The process is started from the program's own code, never from stored data, and is there for one
job: if it dies, only that job can be the reason.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable, Sequence

from duly.clock import os_monotonic, os_sleep
from duly.runtime.lifeline import Lifeline

log = logging.getLogger(__name__)

MOST_AT_ONCE = 4

Command = Callable[[str, int], Sequence[str]]


class AloneRuns:
    """Starts such processes, one for each job and a few at once.

    `command` None: it cannot be done here.
    """

    def __init__(self, command: Command | None) -> None:
        self._command = command
        self._running: dict[str, tuple[subprocess.Popen[bytes], Lifeline]] = {}
        self._guard = threading.Lock()
        self._stopping = False
        self._warned = False

    def start(self, job_id: str) -> None:
        with self._guard:
            self._forget_ended()
            if job_id in self._running or self._stopping:
                return
            if self._command is None:
                self._warn(job_id)
            elif len(self._running) < MOST_AT_ONCE:
                self._start(self._command, job_id)

    def _start(self, command: Command, job_id: str) -> None:
        log.warning("job %s crashed two workers; it runs in a process of its own", job_id)
        try:
            self._running[job_id] = self._spawn(command, job_id)
        except OSError as error:
            log.error("the process of job %s cannot be started now: %s", job_id, error)

    def _spawn(self, command: Command, job_id: str) -> tuple[subprocess.Popen[bytes], Lifeline]:
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
        return process, lifeline

    def kill_the_stuck(self) -> None:
        with self._guard:
            for job_id, (process, lifeline) in self._running.items():
                reason = lifeline.stuck()
                if reason and process.poll() is None:
                    log.error("killing the process of job %s: %s", job_id, reason)
                    process.kill()

    def tell_to_stop(self) -> None:
        """Start no more; those that run get the time of any worker to end in order.

        Killed together with this process, they would be taken for crashes of their job.
        """
        with self._guard:
            self._stopping = True
            for process, _ in self._running.values():
                process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until they have ended."""
        until = os_monotonic() + seconds
        while self._is_any_running() and os_monotonic() < until:
            os_sleep(0.01)

    def _is_any_running(self) -> bool:
        with self._guard:
            return any(process.poll() is None for process, _ in self._running.values())

    def _forget_ended(self) -> None:
        for job_id, (process, lifeline) in list(self._running.items()):
            if process.poll() is not None:
                lifeline.close()
                del self._running[job_id]

    def _warn(self, job_id: str) -> None:
        if not self._warned:
            self._warned = True
            log.error(
                "job %s crashed two workers and waits for a process of its own, which needs an app "
                "in a module or script; run `duly worker`",
                job_id,
            )
