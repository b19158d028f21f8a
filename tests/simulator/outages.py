"""Worlds that end with lost answers, failed ends and merged calls, which a seed seldom combines."""

from __future__ import annotations

from typing import Any

from duly import Unique
from tests.simulator.process import Process
from tests.simulator.promises import LIMITS, Wish
from tests.simulator.world import STEPS, Report, World, simulate

MOST_FAILING = 12
"""By so many statements, a worker that stops has given up storing its ends."""


class Outages(World):
    """A world that ends with the misfortunes that only an unlucky seed would bring about."""

    def drain(self) -> None:
        super().drain()
        self._repeat_merged_call()
        super().drain()
        for failing in range(1, MOST_FAILING):
            self._stop(self.workers[0], failing)
            super().drain()
        # At the end: a worker that stops would give back what another one does not know of.
        self._lose_answer(self.workers[0])
        super().drain()

    def _repeat_merged_call(self) -> None:
        self.note("a call that was merged with another is repeated")
        self._call("pending:a", unique=Unique("a"))
        self._call("pending:a", "once:z", unique=Unique("a"), idempotency_key="z")
        self._call("once:z", idempotency_key="z")

    def _call(self, *labels: str, **options: Any) -> None:
        app = self.client.app
        wish = Wish(app.function("poke").using(tags=labels, **options), ())
        since, called_at = self.ledger.sync(), app.clock.now()
        job = app.run(wish.function)
        self.ledger.answered(wish, job.id, job.existed, called_at, since)

    def _lose_answer(self, process: Process) -> None:
        self.note("a claim is committed, and fails for its worker")
        self._run_limited(process)
        process.faults.arm("lost", 0, 1)
        process.claim()

    def _stop(self, process: Process, failing: int) -> None:
        self.note(f"a worker stops, and its first {failing} statements fail")
        self._run_limited(process)
        process.claim()
        assert process.worker is not None
        process.act("stop", process.worker.stop, outage=failing)

    def _run_limited(self, process: Process) -> None:
        limited = process.app.function("poke").using(tags=["limit:one"], limit=LIMITS["one"])
        process.app.run(limited)


def simulate_outages(seed: int, count: int = STEPS // 5) -> Report:
    return simulate(seed, count, Outages)
