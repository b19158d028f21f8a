"""Sends heartbeats, and rescues the jobs of workers that no longer send any."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from duly.clock import Clock
from duly.errors import StoreError
from duly.model.job import Lost, Settlement, settle_lost
from duly.model.measure import RESCUED
from duly.runtime.hooks import HookCalls
from duly.runtime.liveness import LivenessRounds
from duly.runtime.worker import Worker
from duly.store.table import Store

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
# As a share of a heartbeat. Less than one, because waits are not exact.
MIN_HEARTBEAT_SECONDS = 0.9


class Heartbeat:
    """Sends heartbeats for a worker, observes the others, and rescues jobs of dead ones."""

    def __init__(self, worker: Worker, every: float = HEARTBEAT_SECONDS) -> None:
        self._worker = worker
        self._every = every
        self._observer = LivenessRounds()
        self._next_at = worker.clock.monotonic()
        self._failed = ""

    def turn(self) -> float:
        """Do a pass when one is due; earlier, only check which jobs were taken away.

        Between two passes every other worker sends one heartbeat. A worker that made passes faster,
        because it was woken, would take them for dead.
        """
        clock = self._worker.clock
        now = clock.monotonic()
        if now < self._next_at:
            self._worker.reconcile()
            return max(0.0, self._next_at - clock.monotonic())
        self._next_at = now + MIN_HEARTBEAT_SECONDS * self._every
        return self.one_pass()

    def one_pass(self) -> float:
        worker = self._worker
        try:
            present = worker.store.beat([worker.id])
        except StoreError as error:
            self._observer.reset()
            log.warning("could not send a heartbeat: %s", error)
            return self._every
        worker.heartbeat_succeeded()
        if worker.id not in present:
            worker.was_declared_dead()
            return self._every
        self._rescue_the_dead()
        worker.reconcile()
        return self._every

    def _rescue_the_dead(self) -> None:
        try:
            beats = self._worker.store.beats()
            beats.pop(self._worker.id, None)
            dead = find_dead(self._worker.store, self._observer, beats)
        except StoreError as error:
            self._observer.reset()
            log.warning("could not observe the other workers: %s", error)
            return
        # After the one that could not be rescued, so that each has its turn.
        for worker_id, beat in sorted(dead, key=lambda one: (one[0] <= self._failed, one[0])):
            try:
                rescued = rescue(
                    self._worker.store,
                    self._worker.clock,
                    worker_id,
                    beat,
                    self._worker.program.hook_calls,
                )
            except StoreError as error:
                # Another failure may take as long, and this worker has to send heartbeats.
                log.warning("could not rescue the jobs of a dead worker in this round: %s", error)
                self._failed = worker_id
                return
            if rescued:
                self._worker.program.counts.add(RESCUED, value=rescued)
            self._worker.loop.wake()


def find_dead(
    store: Store, observer: LivenessRounds, beats: dict[str, int]
) -> list[tuple[str, int | None]]:
    """Workers that are dead: the kernel knows on SQLite; otherwise rounds are counted.

    A process that runs a single job is left to the worker that started it, which knows how it died.
    If that worker is dead too, the rounds decide.
    """
    verdicts = {worker_id: store.is_dead(worker_id) for worker_id in beats}
    gone = {worker_id for worker_id, verdict in verdicts.items() if verdict}
    left = {worker.id for worker in (store.workers() if gone else ()) if worker.alone} & gone
    dead: list[tuple[str, int | None]] = [(worker_id, None) for worker_id in sorted(gone - left)]
    unknown = {w: b for w, b in beats.items() if verdicts[w] is None or w in left}
    return dead + list(observer.round(unknown))


def rescue(
    store: Store,
    clock: Clock,
    worker_id: str,
    beat: int | None,
    hooks: HookCalls | None = None,
    *,
    witnessed: bool = False,
) -> int:
    """Settle the jobs of a dead worker. Return how many there were.

    `witnessed`: it ran a single job, and the worker that started it saw it die.
    """
    judge = judge_lost(clock, witnessed=witnessed)
    judged: dict[str, tuple[Lost, Settlement]] = {}

    def judge_and_note(job: Lost) -> Settlement:
        settlement = judge(job)
        judged[job.id] = job, settlement
        return settlement

    rescued = store.rescue(worker_id, beat, judge_and_note, clock.now())
    if rescued and hooks is not None:
        hooks.rescued(judged.values())
    if rescued is not None:
        log.warning("worker %s is dead; jobs rescued: %d", worker_id, rescued)
        store.ring()
    return rescued or 0


def judge_lost(clock: Clock, *, witnessed: bool = False) -> Callable[[Lost], Settlement]:
    def judge(job: Lost) -> Settlement:
        return settle_lost(job, clock.now(), random.random(), witnessed=witnessed)

    return judge
