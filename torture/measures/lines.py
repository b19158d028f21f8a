"""Jobs that wait for a key behind paused jobs of the same key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random

from duly import Duly
from tests.cli.processes import Process, duly, environment, wait_until
from torture.load.scene import scratch_folder
from torture.measures.base import NAMES, Share, say
from torture.measures.points import database
from torture.table import Row, at_most

APP = "torture.load.keyed:app"
PAUSED = 200
BEHIND = 20
WITHIN = 10.0
"""They share the machine. If each paused job kept a slot for a second, it would be minutes."""


def run(share: Share) -> Iterator[Row]:
    each = share.seconds / len(share.stores)
    for store in share.stores:
        with ExitStack() as stack:
            scene = Scene(stack, store, share.seed)
            scene.pause_for(each)
            if scene.longest > WITHIN:
                say(share.replay("lines", store))
            tried = f"{scene.rounds * BEHIND} jobs behind {scene.rounds * PAUSED:,} paused"
            words = "time until jobs behind paused ones of the same key end"
            yield at_most(f"{NAMES[store]}: {words}", tried, scene.longest, WITHIN, " s")


class Scene:
    """Two workers, and a client that pauses most of the jobs that wait for a key."""

    def __init__(self, stack: ExitStack, store: str, seed: int) -> None:
        self._rng = Random(seed)
        folder = stack.enter_context(scratch_folder())
        url = stack.enter_context(database(store, folder))
        self.rounds = 0
        self.longest = 0.0
        self.app = app = Duly(url)
        stack.callback(app.close)
        app.migrate()
        command = duly("--app", APP, "worker", "--concurrency=4")
        for _ in range(2):
            stack.callback(Process(command, environment(url)).close)
        wait_until(lambda: len(list(app.workers())) >= 2, "both workers run", 60)
        self._work, self._other = app.function("work"), app.function("other")

    def pause_for(self, seconds: float) -> None:
        """Repeatedly pause most of the waiting jobs, and resume them when the others have ended."""
        over_at = time.monotonic() + seconds
        app = self.app
        ways: tuple[tuple[Callable[[], object], Callable[[], object]], ...] = (
            (lambda: app.queues.pause("p"), lambda: app.queues.resume("p")),
            (lambda: app.functions.pause("other"), lambda: app.functions.resume("other")),
        )
        while not self.rounds or time.monotonic() < over_at:
            pause, resume = self._rng.choice(ways)
            self._one_round(pause)
            resume()
            wait_until(lambda: not app.jobs(state="pending", limit=1), "the paused ones run", 60)
            self.rounds += 1

    def _one_round(self, pause: Callable[[], object]) -> None:
        self.app.run_many([self._other.using(queue="p", priority=9).bind()] * PAUSED)
        time.sleep(0.1)
        jobs = self.app.run_many([self._work.bind()] * BEHIND)
        time.sleep(self._rng.choice((0.05, 0.2)))
        pause()
        began = time.monotonic()
        wait_until(lambda: all(j.state.is_terminal for j in jobs), "they end", 6 * WITHIN)
        self.longest = max(self.longest, time.monotonic() - began)
