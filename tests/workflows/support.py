"""Support for the tests of workflows: workers that die, or are slow, at a named point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from duly import Duly, Job, fault
from duly.model.workflow import Step
from tests.jobs.support import Gate, Hire, ManualWorker, rescue_the_dead, wait_until


class Stop(Gate):
    """Where one thread stops, once."""

    def __init__(self, point: str, nth: int) -> None:
        super().__init__()
        self._point = point
        self._left = nth

    @property
    def has_come(self) -> bool:
        return self._left <= 0

    def __call__(self, name: str) -> None:
        if name == self._point:
            self._left -= 1
            if self._left == 0:
                self.pass_through()


@contextmanager
def stopped_at(point: str, nth: int = 1) -> Iterator[Stop]:
    """The code that reaches the point the nth time waits there until the block ends."""
    stop = Stop(point, nth)
    with fault.inject(stop):
        try:
            yield stop
        finally:
            stop.open()


def start_until(worker: ManualWorker, stop: Stop) -> None:
    """Work until a thread waits there; the run may be claimed several times before."""

    def has_come() -> bool:
        worker.settle()
        worker.start_due()
        return stop.has_come

    wait_until(has_come, "the stop")


def take_over(hire: Hire, dead: ManualWorker) -> ManualWorker:
    """The worker looks dead from now on: its jobs are rescued by another one."""
    dead.die()
    other = hire()
    rescue_the_dead(other)
    return other


def steps_of(app: Duly, job: Job[Any]) -> list[Step]:
    return app.core.ready().steps_of(job.id, 10_000)


def shape_of(app: Duly, job: Job[Any]) -> list[tuple[str, str, str]]:
    """What each record is: its kind, its name and its state."""
    return [(step.kind, step.name, step.state) for step in steps_of(app, job)]
