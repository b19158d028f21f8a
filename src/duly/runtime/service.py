"""The loops of one process, started and stopped together."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import timedelta

from duly.clock import os_monotonic, os_sleep
from duly.errors import StoreError
from duly.runtime.alone import AloneRuns
from duly.runtime.beat import BEAT_SECONDS, Beat
from duly.runtime.janitor import EXHAUSTED_RETENTION, RETENTION, Janitor
from duly.runtime.lifeline import Lifeline
from duly.runtime.loop import Loop
from duly.runtime.program import Program
from duly.runtime.worker import DRAIN_SECONDS, Worker

log = logging.getLogger(__name__)


class Service:
    """A worker, its proof of life and a janitor, in threads of this process."""

    def __init__(
        self,
        program: Program,
        *,
        concurrency: int,
        queues: Sequence[str] | None = None,
        beat_every: float = BEAT_SECONDS,
        retention: timedelta = RETENTION,
        exhausted_retention: timedelta = EXHAUSTED_RETENTION,
        lifeline: Lifeline | None = None,
        alone_runs: AloneRuns | None = None,
    ) -> None:
        self.worker = Worker(program, concurrency=concurrency, queues=queues, lifeline=lifeline)
        self.beat = Beat(self.worker, beat_every)
        self.janitor = Janitor(
            program.store,
            program.clock,
            retention=retention,
            exhausted_retention=exhausted_retention,
            alone_runs=alone_runs,
        )
        self._alone_runs = alone_runs
        self._pid = os.getpid()
        self._beat_loop = Loop("beat", self.beat.one_pass, program.clock)
        self._janitor_loop = Loop("janitor", self.janitor.one_pass, program.clock)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that started it, and not a forked child."""
        return self._pid == os.getpid()

    def start(self) -> None:
        self._pid = os.getpid()
        self.worker.start()
        self._beat_loop.start()
        self._janitor_loop.start()

    def look(self) -> None:
        """Look at once which jobs were taken away, and do not wait for the next beat."""
        self._beat_loop.wake()

    def stop(self, drain: float = DRAIN_SECONDS) -> None:
        """Claim nothing more at once, let running jobs end for so many seconds."""
        until = os_monotonic() + drain
        self._janitor_loop.stop()
        if self._alone_runs is not None:
            self._alone_runs.tell_to_stop()
        self.worker.stop(drain)
        self._beat_loop.stop()
        if self._alone_runs is not None:
            self._alone_runs.wait(until - os_monotonic())
        for loop in (self._janitor_loop, self._beat_loop):
            loop.join(5)


def run_alone(
    program: Program, job_id: str, lifeline: Lifeline | None, is_over: Callable[[], bool]
) -> None:
    """Run one job that crashed its workers, beating like any worker, and return when it is done.

    `is_over` says that it has to end sooner: then the job gets the time that any other would get.
    """
    worker = Worker(program, concurrency=1, lifeline=lifeline, alone=job_id)
    beat_loop = Loop("beat", Beat(worker).one_pass, program.clock)
    worker.start()
    beat_loop.start()
    _claim_alone(worker, job_id, is_over)
    while not worker.idle and not is_over():
        os_sleep(0.01)
    worker.stop()
    beat_loop.stop()
    beat_loop.join(5)


def _claim_alone(worker: Worker, job_id: str, is_over: Callable[[], bool]) -> None:
    """Claim the job. If the answer is lost it goes back, lest its worker be taken for crashed."""
    try:
        worker.claim_alone(job_id)
    except StoreError as error:
        log.warning("could not claim job %s: %s", job_id, error)
        while not _reconciled(worker) and not is_over():
            os_sleep(1)


def _reconciled(worker: Worker) -> bool:
    try:
        worker.reconcile()
    except StoreError:
        return False
    return True
