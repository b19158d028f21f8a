"""The loops of one process, started and stopped together."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import timedelta

from duly.clock import os_sleep
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

    def stop(self, drain: float = DRAIN_SECONDS) -> None:
        """Claim nothing more at once, let running jobs end for so many seconds."""
        self._janitor_loop.stop()
        self.worker.stop(drain)
        self._beat_loop.stop()
        for loop in (self._janitor_loop, self._beat_loop):
            loop.join(5)


def run_alone(program: Program, job_id: str, lifeline: Lifeline | None) -> None:
    """Run one job that crashed its workers, beating like any worker, and return when it is done."""
    worker = Worker(program, concurrency=1, lifeline=lifeline, alone=job_id)
    beat_loop = Loop("beat", Beat(worker).one_pass, program.clock)
    worker.start()
    beat_loop.start()
    worker.claim_alone(job_id)
    while not worker.idle:
        os_sleep(0.01)
    worker.stop()
    beat_loop.stop()
