"""The parent process that starts, watches and restarts worker processes.

It sends heartbeats on their behalf, so that code which holds the GIL does not make a worker look
dead. It kills processes that are stuck, immediately settles the jobs of dead ones, and starts
replacements.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable

from duly.clock import os_monotonic, os_sleep
from duly.errors import StoreError
from duly.runtime.heartbeat import HEARTBEAT_SECONDS, rescue
from duly.runtime.lifeline import Lifeline
from duly.runtime.loop import AFTER_ERROR
from duly.runtime.program import Program

log = logging.getLogger(__name__)

LOOK_EVERY = 0.1
GRACE_AFTER_DRAIN = 10.0
LONGEST_BACKOFF = 10.0

Spawn = Callable[[int], "subprocess.Popen[bytes]"]


class Child:
    """One worker process and its lifeline."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: Lifeline) -> None:
        self.process = process
        self.lifeline = lifeline
        self.started_at = os_monotonic()


class Supervisor:
    """Keeps a number of worker processes alive until stopped."""

    def __init__(self, program: Program, spawn: Spawn, count: int, drain: float) -> None:
        self._program = program
        self._store = program.store
        self._spawn = spawn
        self._count = count
        self._drain = drain
        self._children: list[Child] = []
        self._stops = 0
        self._start_at = 0.0
        self._quick_deaths = 0
        self._beat_at = 0.0

    def stop(self) -> None:
        """Let the children drain. The second call ends them immediately.

        Called by a signal handler, so it takes no lock: the main thread might be holding it.
        """
        self._stops += 1

    def run(self) -> None:
        """Look after the children until stopped, then until the last one has ended."""
        while not self._stops:
            os_sleep(self._look_safely())
        self._drain_children()
        self._program.hook_calls.wait()

    def _look_safely(self) -> float:
        """The children need a parent, whatever goes wrong. Return when to look again."""
        try:
            self._look()
        except Exception:
            log.exception("could not check the worker processes; trying again")
            return AFTER_ERROR
        return LOOK_EVERY

    def _look(self) -> None:
        self._beat()
        self._bury_the_dead()
        self._kill_the_stuck()
        if os_monotonic() >= self._start_at:
            while len(self._children) < self._count:
                self._start_one()

    def _start_one(self) -> None:
        lifeline, file = Lifeline.create()
        os.set_inheritable(file, True)
        try:
            self._children.append(Child(self._spawn(file), lifeline))
        except BaseException:
            lifeline.close()
            raise
        finally:
            os.close(file)

    def _bury_the_dead(self) -> None:
        for child in [c for c in self._children if c.process.poll() is not None]:
            self._children.remove(child)
            log.warning(
                "worker process %d ended with %s; starting another",
                child.process.pid,
                child.process.returncode,
            )
            self._back_off(child)
            self._rescue(child)
            child.lifeline.close()

    def _back_off(self, child: Child) -> None:
        """A process that dies right after its start must not be restarted in a tight loop."""
        lived = os_monotonic() - child.started_at
        self._quick_deaths = self._quick_deaths + 1 if lived < 2 else 0
        wait = min(0.25 * 2**self._quick_deaths, LONGEST_BACKOFF) if self._quick_deaths else 0
        self._start_at = os_monotonic() + wait

    def _rescue(self, child: Child) -> None:
        """The kernel says that the process is gone, so no rounds have to be counted."""
        worker_id = child.lifeline.worker_id
        if worker_id is None:
            return
        try:
            rescue(self._store, self._program.clock, worker_id, None, self._program.hook_calls)
        except StoreError as error:
            log.warning("could not rescue its jobs, other workers will: %s", error)

    def _kill_the_stuck(self) -> None:
        for child in self._children:
            reason = child.lifeline.stuck()
            if reason:
                log.error("killing worker process %d: %s", child.process.pid, reason)
                child.process.kill()
                child.process.wait()

    def _beat(self) -> None:
        if os_monotonic() < self._beat_at:
            return
        self._beat_at = os_monotonic() + HEARTBEAT_SECONDS
        working = [child.lifeline.worker_id for child in self._children]
        try:
            self._store.beat([worker_id for worker_id in working if worker_id])
        except StoreError as error:
            log.warning("could not send heartbeats for the worker processes: %s", error)

    def _drain_children(self) -> None:
        for child in self._children:
            child.process.send_signal(signal.SIGTERM)
        until = os_monotonic() + self._drain + GRACE_AFTER_DRAIN
        while any(c.process.poll() is None for c in self._children):
            self._beat()
            if os_monotonic() > until or self._stops > 1:
                self._end_at_once()
            os_sleep(LOOK_EVERY)
        for child in self._children:
            self._rescue(child)

    def _end_at_once(self) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.kill()
