"""The loops of one process, started and stopped together."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Unpack

from duly.clock import os_monotonic, os_sleep
from duly.errors import StoreError
from duly.runtime.alone import AloneRuns
from duly.runtime.counts import CountsLoop
from duly.runtime.heartbeat import HEARTBEAT_SECONDS, Heartbeat
from duly.runtime.janitor import (
    EXHAUSTED_RETENTION,
    LEDGER_RETENTION,
    RETENTION,
    Janitor,
    RetentionOptions,
)
from duly.runtime.lifeline import Lifeline
from duly.runtime.loop import Loop
from duly.runtime.program import Program
from duly.runtime.ticker import Ticker
from duly.runtime.worker import DRAIN_SECONDS, THREADS, Worker

log = logging.getLogger(__name__)


TICKER_REST_SECONDS = 0.1


class TickerLoop:
    """A ticker in its loop.

    Changes in the store wake it too, but at a limited rate: jobs that have nothing to do with
    schedules are changes as well.
    """

    def __init__(self, program: Program) -> None:
        self.loop = Loop("ticker", Ticker(program).one_pass, program.clock)
        self.changed = threading.Event()
        self._stopped = threading.Event()

    def start(self) -> None:
        self.loop.start()
        threading.Thread(target=self._pass_on, name="duly-ticker-bell", daemon=True).start()

    def _pass_on(self) -> None:
        while self.changed.wait() and not self._stopped.is_set():
            self.changed.clear()
            self.loop.wake()
            self._stopped.wait(TICKER_REST_SECONDS)

    def stop(self) -> None:
        """Make it end after its current pass."""
        self._stopped.set()
        self.changed.set()
        self.loop.stop()


class TickerService:
    """A ticker and a janitor without a worker, in threads of this process."""

    def __init__(self, program: Program, **keep: Unpack[RetentionOptions]) -> None:
        self.ticking = TickerLoop(program)
        self._store = program.store
        janitor = Janitor(program.store, program.clock, hooks=program.hook_calls, **keep)
        self._janitor_loop = Loop("janitor", janitor.one_pass, program.clock)
        self._telling = CountsLoop(program.counts, program.store, program.clock)
        self._stopped = threading.Event()

    def start(self) -> None:
        self._telling.loop.start()
        self._janitor_loop.start()
        self.ticking.start()
        watch = (self.ticking.changed, self._stopped)
        threading.Thread(
            target=self._store.watch, args=watch, name="duly-watch", daemon=True
        ).start()

    def stop(self) -> None:
        self._stopped.set()
        self._janitor_loop.stop()
        self.ticking.stop()
        for loop in (self._janitor_loop, self.ticking.loop):
            loop.join(5)
        self._telling.stop()


class Service:
    """A worker with its heartbeat, a janitor and a ticker, in threads of this process."""

    def __init__(
        self,
        program: Program,
        *,
        concurrency: int,
        threads: int = THREADS,
        queues: Sequence[str] | None = None,
        beat_every: float = HEARTBEAT_SECONDS,
        retention: timedelta = RETENTION,
        exhausted_retention: timedelta = EXHAUSTED_RETENTION,
        ledger_retention: timedelta = LEDGER_RETENTION,
        lifeline: Lifeline | None = None,
        alone_runs: AloneRuns | None = None,
        ticker: bool = True,
    ) -> None:
        self.ticking = TickerLoop(program) if ticker else None
        self.worker = Worker(
            program,
            concurrency=concurrency,
            threads=threads,
            queues=queues,
            lifeline=lifeline,
            also_wake=[self.ticking.changed] if self.ticking else (),
        )
        self.beat = Heartbeat(self.worker, beat_every)
        self.janitor = Janitor(
            program.store,
            program.clock,
            retention=retention,
            exhausted_retention=exhausted_retention,
            ledger_retention=ledger_retention,
            alone_runs=alone_runs,
            hooks=program.hook_calls,
            functions=lambda: self.worker.functions,
            build=lambda: program.build,
            queues=queues,
        )
        self._alone_runs = alone_runs
        self._telling = CountsLoop(program.counts, program.store, program.clock)
        self._pid = os.getpid()
        self._beat_loop = Loop("beat", self.beat.turn, program.clock)
        self._janitor_loop = Loop("janitor", self.janitor.one_pass, program.clock)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that started it, not a forked child."""
        return self._pid == os.getpid()

    def start(self) -> None:
        self._pid = os.getpid()
        self.worker.start()
        self._telling.loop.start()
        self._beat_loop.start()
        self._janitor_loop.start()
        if self.ticking:
            self.ticking.start()

    def wake_ticker(self) -> None:
        """Called when a schedule may be due earlier than the ticker knows."""
        if self.ticking:
            self.ticking.loop.wake()

    def look(self) -> None:
        """Check immediately which jobs were taken away, without waiting for the next heartbeat."""
        self._beat_loop.wake()

    def stop(self, drain: float = DRAIN_SECONDS) -> None:
        """Stop claiming immediately, and give running jobs `drain` seconds to end."""
        until = os_monotonic() + drain
        self._janitor_loop.stop()
        if self.ticking:
            self.ticking.stop()
        if self._alone_runs is not None:
            self._alone_runs.tell_to_stop()
        self.worker.stop(drain)
        self._beat_loop.stop()
        if self._alone_runs is not None:
            self._alone_runs.wait(until - os_monotonic())
        ticking = [self.ticking.loop] if self.ticking else []
        for loop in (self._janitor_loop, self._beat_loop, *ticking):
            loop.join(5)
        self._telling.stop()


def run_alone(
    program: Program,
    job_id: str,
    lifeline: Lifeline | None,
    is_over: Callable[[], bool],
    drain: float = DRAIN_SECONDS,
) -> None:
    """Run one job that crashed its workers, with heartbeats, and return when it is done.

    If `is_over` returns True first, the job gets `drain` seconds to end, like any other.
    """
    worker = Worker(program, concurrency=1, lifeline=lifeline, alone=job_id)
    beat_loop = Loop("beat", Heartbeat(worker).one_pass, program.clock)
    worker.start()
    beat_loop.start()
    _claim_alone(worker, job_id, is_over)
    while not worker.idle and not is_over():
        os_sleep(0.01)
    worker.stop(drain)
    beat_loop.stop()
    beat_loop.join(5)
    CountsLoop(program.counts, program.store, program.clock).stop()


def _claim_alone(worker: Worker, job_id: str, is_over: Callable[[], bool]) -> None:
    """Claim the job. If that fails halfway, give it back, so that it does not count as a crash."""
    try:
        worker.claim_alone(job_id)
    except Exception as error:
        log.warning("could not claim or start job %s: %s", job_id, error)
        while not _reconciled(worker) and not is_over():
            os_sleep(1)


def _reconciled(worker: Worker) -> bool:
    try:
        worker.reconcile()
    except StoreError:
        return False
    return True
