"""Chooses which process passes which fault point, and what happens there."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duly import fault
from duly.runtime.lifeline import Lifeline
from tests.cli.processes import Process
from torture.load.fleet import APP, BACKLOG, BETWEEN_CHILDREN, Fleet
from torture.load.terms import MODES

BY_ENQUEUER = ("enqueue.inserted", "enqueue.committed")
BY_RESCUER = ("rescue.moved", "rescue.committed")
BY_TICKER = tuple(p for p in fault.POINTS if p.startswith("ticker."))
# Not passed by any process of the workload. Other tests kill processes there: those of schedules,
# of the index, of bulk jobs, of webhooks and of copying.
OF_OTHERS = tuple(
    p
    for p in fault.POINTS
    if p.startswith(("expect.", "calendar.", "declared.", "index.", "bulk.", "webhook.", "copy."))
)
BY_WORKER = tuple(
    p for p in fault.POINTS if p not in (*BY_RESCUER, *BY_TICKER, *OF_OTHERS, "enqueue.committed")
)
REACHED = (*BY_WORKER, "enqueue.committed", *BY_RESCUER, *BY_TICKER)

AT_ONCE = 5
PAUSE = 12.0
"""Longer than any worker is considered alive without a heartbeat, and than a lock is waited for."""
GOES_ON = 1.5
PATIENCE = 90.0


class Cell(NamedTuple):
    """One fault at one point."""

    mode: str
    point: str

    def __str__(self) -> str:
        return f"{self.mode} at {self.point}"


def cells(modes: Sequence[str] = MODES) -> list[Cell]:
    return [Cell(mode, point) for mode in modes for point in REACHED]


class Trial:
    """One process that meets its fault."""

    def __init__(self, fleet: Fleet, cell: Cell, nth: int) -> None:
        self.cell = cell
        self.fleet = fleet
        self.process = start(fleet, cell, 1 if cell.point in BY_RESCUER else nth)
        self._goes_on_at: float | None = None
        self._child_dies_at = 0.0

    @property
    def has_fired(self) -> bool:
        mark = [self.cell.mode, self.cell.point, str(self.process.pid)]
        return mark in self.fleet.trace.lines("fired")

    def is_over(self) -> bool:
        """Whether it has met its fault and shown what it does afterwards."""
        self._give_it_somebody_to_rescue()
        if not self.process.is_running:
            return True
        if self._goes_on_at is None and self.has_fired:
            wait = PAUSE if self.cell.mode == "pause" else 0.0
            self._goes_on_at = time.monotonic() + wait
        if self._goes_on_at is None or time.monotonic() < self._goes_on_at:
            return False
        if self.cell.mode == "pause":
            self.process.signal(signal.SIGCONT)
        return time.monotonic() > self._goes_on_at + GOES_ON

    def _give_it_somebody_to_rescue(self) -> None:
        if self.cell.point not in BY_RESCUER or time.monotonic() < self._child_dies_at:
            return
        if not self.has_fired and self.fleet.children_of(self.process):
            self.fleet.kill_a_child(self.process)
            self._child_dies_at = time.monotonic() + BETWEEN_CHILDREN

    def end(self) -> None:
        self.fleet.kill_all(self.process)


def start(fleet: Fleet, cell: Cell, nth: int) -> Process:
    command = [sys.executable, "-m", "torture.load.armed", cell.mode, cell.point, str(nth)]
    if cell.point in BY_ENQUEUER:
        return fleet.start([*command, "enqueuer", str(nth), str(BACKLOG)])
    duly = [*command, "duly", "--app", APP]
    if cell.point in BY_TICKER:
        return fleet.start([*duly, "ticker"])
    if cell.point in BY_RESCUER:
        return fleet.start([*duly, "worker", "--concurrency=8", "--no-ticker"])
    _, file = Lifeline.create()
    try:
        words = ["worker", "--concurrency=8", "--no-ticker", f"--child={file}"]
        return fleet.start([*duly, *words], pass_fds=(file,))
    finally:
        os.close(file)


def try_all(fleet: Fleet, wanted: Sequence[Cell], nths: Iterator[int]) -> list[Cell]:
    """Run all of them. Return those whose fault did not happen."""
    missing: list[Cell] = []
    for group in _groups(wanted, fleet.db.is_sqlite):
        missing += _see_through([Trial(fleet, cell, next(nths)) for cell in group])
    return missing


def _groups(wanted: Sequence[Cell], is_sqlite: bool) -> Iterator[list[Cell]]:
    """Cells that run in parallel.

    No process can start while another is stopped with SQLite's lock.
    """
    alone = [cell for cell in wanted if is_sqlite and cell.mode == "pause"]
    others = [cell for cell in wanted if cell not in alone]
    yield from (others[first : first + AT_ONCE] for first in range(0, len(others), AT_ONCE))
    yield from ([cell] for cell in alone)


def _see_through(trials: list[Trial]) -> list[Cell]:
    give_up_at = time.monotonic() + PATIENCE
    over: list[Trial] = []
    while len(over) < len(trials) and time.monotonic() < give_up_at:
        over += [trial for trial in trials if trial not in over and trial.is_over()]
        time.sleep(0.02)
    missing = [trial.cell for trial in trials if not trial.has_fired]
    for trial in trials:
        trial.end()
    return missing
