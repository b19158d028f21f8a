"""Worlds that end with a job in line for a slot: it must get the slot, but only in its time."""

from __future__ import annotations

from typing import Any

from tests.simulator.log import Violation
from tests.simulator.process import Process
from tests.simulator.promises import LIMITS
from tests.simulator.world import STEPS, Report, World, simulate

PAUSED = 30
ROUNDS = 4
"""In so many, each worker and janitor has had its turn several times, and far fewer than PAUSED."""


class Standoff(World):
    """A world that ends with many paused jobs in line for a slot, and one behind them."""

    def drain(self) -> None:
        super().drain()
        self.note("a stand-off")
        app = self.client.app
        first, late = (
            app.function(name).using(tags=["limit:one"], limit=LIMITS["one"])
            for name in ("dwell", "poke")
        )
        app.run(first)
        app.run_many([late.using(queue="slow").bind()] * PAUSED)
        last = app.run(late)
        process = self.workers[0]
        process.claim()
        app.queues.pause("slow")
        for _ in range(ROUNDS):
            self._one_round()
        if not last.state.is_terminal:
            where = self.ledger.name(last.id)
            raise Violation("a free slot starves nobody", f"{where} waits for paused jobs")
        super().drain()


def simulate_standoff(seed: int, count: int = STEPS // 5) -> Report:
    return simulate(seed, count, Standoff)


class WrongTimes(World):
    """A world that ends with slots that are freed after a job expired, and before one is due."""

    def drain(self) -> None:
        super().drain()
        self.note("slots at the wrong times")
        ahead = self.workers[0]
        self._run(ahead, "dwell")
        self._run(ahead, "poke", expires=1.0)
        self.clock.advance(2)
        self._let_follow(ahead)

        # The clock is set back: what was due for those who saw it before is not for the new worker.
        super().drain()
        ahead = self.workers[0]
        self.ledger.clocks_disagree()
        self.clock.jump(-500)
        self.new_worker()
        self._run(self.workers[-1], "dwell")
        self._run(ahead, "poke")
        self._let_follow(self.workers[-1])
        super().drain()

    def _run(self, process: Process, name: str, **options: Any) -> None:
        limited = process.app.function(name)
        process.app.run(limited.using(tags=["limit:one"], limit=LIMITS["one"], **options))
        process.claim()

    def _let_follow(self, process: Process) -> None:
        """Its body ends, and no janitor comes before the next claim."""
        for _ in range(ROUNDS):
            process.run_bodies()
            process.settle()
            process.claim()
        self.check()


def simulate_wrong_times(seed: int, count: int = STEPS // 5) -> Report:
    return simulate(seed, count, WrongTimes)
