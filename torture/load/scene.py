"""One scene: a database under load, faults, a drain, and a verdict on the result."""

from __future__ import annotations

import random
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.cli.processes import wait_until
from tests.postgres import MEMORY, Restartable, fresh_database, restartable_postgres
from tests.torture.kill.proxy import Proxy
from torture.load.audit import Verdict, evidence
from torture.load.chaos import Cast, Director, Plan, Tally
from torture.load.damage import damage
from torture.load.fleet import Fleet
from torture.load.memory import Memory
from torture.load.pace import Pace
from torture.load.ticks import Count, count_slots

CALM_SHARE = 0.15
CALM_AT_MOST = 30.0
SAMPLES = 40
WARM = 200
"""Jobs before which nothing is measured: starting processes slow one another down."""


class Order(NamedTuple):
    """The scene to play."""

    store: str
    seed: int
    seconds: float
    plan: Plan
    schedules: int = 20

    @property
    def replay(self) -> str:
        kills, restarts, connections = self.plan.kills, self.plan.restarts, self.plan.connections
        return (
            f"python -m torture.load --store {self.store} --seed {self.seed}"
            f" --seconds {self.seconds:.0f} --kills {kills} --restarts {restarts}"
            f" --connections {connections} --schedules {self.schedules}"
        )


@dataclass
class Outcome:
    """What was done and observed in one scene."""

    order: Order
    tally: Tally
    verdict: Verdict
    ticks: Count
    acknowledged: int
    jobs: int
    damage: list[str]
    evidence: list[str]
    cut_off: int
    """Attempts whose worker was killed before they had ended."""
    reruns: list[float]
    """Seconds from a kill until interrupted jobs started again."""
    resumed: list[float]
    """Seconds from the return of the database to the first claim."""
    calm: float
    """Jobs per second before the faults, and during them."""
    faulty: float
    growth: float
    """Memory growth of a worker that was not killed."""
    took: float
    """Duration in seconds, including preparation and checks."""

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean and self.ticks.is_clean and not self.damage

    def __str__(self) -> str:
        done = ", ".join(f"{n} × {kind}" for kind, n in sorted(self.tally.kinds.items()))
        return (
            f"{self.order.store} {self.order.seconds:.0f} s, seed {self.order.seed}: {done};"
            f" {self.jobs} jobs, {self.acknowledged} acknowledged; {self.verdict}; {self.ticks}"
        )

    @property
    def figures(self) -> str:
        """How fast it was, and how much memory its worker used."""
        return (
            f"{self.calm:.0f}/s calm, {self.faulty:.0f}/s under faults; growth {self.growth:+.1%};"
            f" {self.cut_off} attempts cut off; longest reruns {sorted(self.reruns)[-3:]}"
            f" of {len(self.reruns)}, resumed"
            f" {sorted(self.resumed)[-3:]}; took {self.took:.0f} s"
        )


def play_on(order: Order) -> Outcome:
    """Play a scene, with its own server if it needs one."""
    if order.store == "sqlite":
        return play(order)
    with restartable_postgres() as server:
        return play(order, server)


def play(order: Order, server: Restartable | None = None) -> Outcome:
    """Play a scene; on PostgreSQL on a new database of that server."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        proxy = None
        if server is None:
            url = seen_at = f"sqlite:///{folder}/duly.db"
        else:
            url = stack.enter_context(fresh_database(server.dsn))
            proxy = Proxy(url)
            stack.callback(proxy.close)
            seen_at = proxy.url
        fleet = Fleet(url, folder, seen_at=seen_at, schedules=order.schedules)
        stack.callback(fleet.close)
        try:
            return _play(order, fleet, server, proxy)
        except AssertionError as error:
            raise AssertionError(f"{error}\nreplay: {order.replay}\n{fleet.errors()}") from error


def _play(order: Order, fleet: Fleet, server: Restartable | None, proxy: Proxy | None) -> Outcome:
    opened = time.monotonic()
    chance = random.Random(order.seed)
    cast = Cast(fleet, _free_port())
    director = Director(chance, cast, server, proxy)
    wait_until(lambda: fleet.workers() >= cast.workers, "the workers work", patience=60)
    wait_until(lambda: fleet.acknowledged() >= WARM, "there is load", patience=60)
    memory = Memory(cast.survivor.pid)
    began = time.time()
    time.sleep(min(CALM_AT_MOST, order.seconds * CALM_SHARE))
    hit = time.time()
    with memory.sampled(order.seconds / SAMPLES):
        director.play(order.plan, order.seconds - (hit - began))
    over = time.time()
    assert cast.survivor.is_running, "a worker has died that was not killed"
    fleet.look_anew()
    fleet.drain()
    verdict = fleet.verdict()
    pace = Pace(fleet.db, fleet.trace)
    return Outcome(
        order=order,
        tally=director.tally,
        verdict=verdict,
        ticks=count_slots(fleet.db),
        acknowledged=fleet.acknowledged(),
        jobs=fleet.db.count("@history"),
        damage=list(damage(fleet.db)),
        evidence=[*evidence(fleet.db, fleet.trace, verdict), *fleet.surprises()],
        cut_off=pace.cut_off,
        reruns=pace.reruns(until=min(director.tally.disturbed_at, over * 1000)),
        resumed=pace.resumed(director.tally.back_at),
        calm=pace.ended_in_a_second(began * 1000, hit * 1000),
        faulty=pace.ended_in_a_second(hit * 1000, over * 1000),
        growth=memory.growth,
        took=time.monotonic() - opened,
    )


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """The folder for the files of a scene: in memory, if possible."""
    parent = MEMORY if Path(MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="duly-torture-", dir=parent) as folder:
        yield Path(folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
