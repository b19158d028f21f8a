"""Paused work in front of a key must not keep jobs behind it from a free slot."""

from __future__ import annotations

from tests.simulator.log import Violation
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
