"""Workflows whose processes are killed, and a deploy of code that raises beside sleeping runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from duly import Duly, Job
from tests.cli.processes import Process, duly, wait_until
from torture.load.fleet import Fleet
from torture.load.scene import scratch_folder
from torture.measures.base import NAMES, Share, say
from torture.measures.points import database
from torture.table import Row, none_of

APP = "torture.load.flows:app"
AT_ONCE = 40
"""How many orders are begun together."""
HOURLY_SLEEPERS = 1_000
KILL_EVERY = 0.7
SHORT, LONG = 0.2, 1.0
PATIENCE = 120
EFFECTS = ("mark", "branch", "tell", "child")


def run(share: Share) -> Iterator[Row]:
    each = share.seconds / len(share.stores)
    for store in share.stores:
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_folder())
            url = stack.enter_context(database(store, folder))
            scene = Scene(stack, url, folder, share.seed)
            scene.kill_for(each / 2)
            scene.deploy(share.scaled(HOURLY_SLEEPERS, least=20))
            wrong = scene.wrong()
            if wrong:
                say(*wrong, share.replay("workflows", store))
            tried = f"{scene.orders:,} runs, {scene.fleet.kills:,} kills, {scene.held:,} held"
            words = f"{NAMES[store]}: workflows whose processes were killed or had broken code"
            yield none_of(words, tried, len(wrong))


class Scene:
    """Orders on one database, with workers that are killed, or whose code is broken for a while."""

    def __init__(self, stack: ExitStack, url: str, folder: Path, seed: int) -> None:
        self._rng = Random(seed)
        self.fleet = Fleet(url, folder)
        stack.callback(self.fleet.close)
        self.app = Duly(url)
        stack.callback(self.app.close)
        self.orders = self.held = 0
        self._jobs: list[Job[Any]] = []

    def worker(self, build: str = "fixed") -> Process:
        command = duly("--app", APP, "worker", "--concurrency=8", "--no-ticker")
        return self.fleet.start(command, env={"TORTURE_BUILD": build})

    def order(self, count: int, seconds: float) -> None:
        wait_until(lambda: self.fleet.workers(), "a worker works", PATIENCE)
        functions = (self.app.function("order"), self.app.function("order_async"))
        numbers = range(self.orders, self.orders + count)
        calls = [functions[number % 2].bind(number=number, seconds=seconds) for number in numbers]
        self._jobs += self.app.run_many(calls)
        self.orders += count

    def kill_for(self, seconds: float) -> None:
        """Kill processes that run orders, again and again; then let others finish them."""
        workers = [self.worker(), self.worker()]
        self.order(AT_ONCE, SHORT)
        over_at = time.monotonic() + seconds
        while not self.fleet.kills or time.monotonic() < over_at:
            self.fleet.kill_a_child(self._rng.choice(workers))
            time.sleep(self._rng.random() * KILL_EVERY)
            if sum(not job.state.is_terminal for job in self._jobs[-AT_ONCE:]) < AT_ONCE // 2:
                self.order(AT_ONCE, SHORT)
        wait_until(lambda: self.fleet.live() == 0, "all orders have ended", PATIENCE)
        for worker in workers:
            self.fleet.kill_all(worker)

    def deploy(self, count: int) -> None:
        """Runs wake up in code that raises, wait for other code, and go on there."""
        broken = self.worker("broken")
        self.order(count, LONG)
        wait_until(lambda: self._held() == count, "all of them are held", PATIENCE)
        self.held += count
        self.fleet.kill_all(broken)
        fixed = self.worker()
        wait_until(lambda: self.fleet.live() == 0, "all of them have gone on", PATIENCE)
        assert self.fleet.end(fixed) == 0, fixed.errors()

    def _held(self) -> int:
        return self.fleet.db.count("@jobs WHERE hold = 'error'")

    def wrong(self) -> list[str]:
        """What is not as if nothing had happened."""
        effects = Counter(tag for (tag,) in self.fleet.db.execute("SELECT job_id FROM effects"))
        starts = Counter(tag for (tag,) in self.fleet.trace.lines("starts"))
        return [fault for job in self._jobs for fault in self._wrong_with(job, effects, starts)]

    def _wrong_with(
        self, job: Job[Any], effects: Counter[str], starts: Counter[str]
    ) -> Iterator[str]:
        record = self.app.job(job.id).record
        number = self._jobs.index(job)
        if record.state != "succeeded":
            yield f"order {number} is {record.state}: {record.error_message}"
            return
        result = job.result()
        if result not in [expected(number, how) for how in ("paid", "worker_lost")]:
            yield f"order {number} returns {result}"
        for name in EFFECTS:
            if (count := effects[f"order-{number}-{name}"]) != 1:
                yield f"order {number} has {count} effects of {name}"
        if (count := starts[f"order-{number}-charge"]) > 1 or (result[0] == "paid" and not count):
            yield f"order {number} charges {count} times"
        if starts[f"order-{number}-ask"] < 2:
            yield f"order {number} asks too seldom"


def expected(number: int, payment: str) -> list[object]:
    """What an order returns: undisturbed, it is paid."""
    tag = f"order-{number}"
    return [payment, 2, f"{tag}-branch", f"{tag}-tell", f"{tag}-child", 1]
