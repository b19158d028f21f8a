"""Chooses the next victim and fault. A seed determines the choices, but not the timing."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.postgres import Restartable
from tests.torture.kill.proxy import Proxy
from torture.load.fleet import Fleet

KILLS = "kill -9"
RESTARTS = "PostgreSQL stopped with -m immediate"
CONNECTIONS = "connection faults"

WORKERS = 3
LONGER = 4
"""How many times as long as planned all faults may take, on a machine that is too busy."""
KILLS_ALONE = 0.4
"""The share of the time in which the database is hit too."""
UNDISTURBED = 3.0
"""Seconds after a restart without other faults, to measure how soon work resumes."""
Fault = Callable[[], None]


@dataclass(frozen=True)
class Plan:
    """How many faults of each kind to inject."""

    kills: int
    restarts: int = 0
    connections: int = 0

    def shuffled(self, chance: random.Random) -> tuple[list[str], list[str]]:
        """Kills alone first, while the database is always available; then all kinds together."""
        of_database = [RESTARTS] * self.restarts + [CONNECTIONS] * self.connections
        first = self.kills // 2 if of_database else self.kills
        second = [KILLS] * (self.kills - first) + of_database
        chance.shuffle(second)
        return [KILLS] * first, second


@dataclass
class Tally:
    """What was done, and when the database was back."""

    done: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    back_at: list[int] = field(default_factory=list)
    disturbed_at: float = math.inf
    """The time from which the database was not always available."""


class Cast:
    """The processes that may be hit, and a worker and an enqueuer that are not."""

    def __init__(self, fleet: Fleet, port: int) -> None:
        self._fleet = fleet
        self._port = port
        self.survivor = fleet.worker_process()
        self._workers = [fleet.worker_process() for _ in range(WORKERS)]
        self._family = fleet.worker()
        self._ticker = fleet.ticker()
        self._server = fleet.server(port)
        self.enqueuer = fleet.enqueuer(port)

    @property
    def kills(self) -> int:
        return self._fleet.kills

    @property
    def workers(self) -> int:
        """How many are registered once all have started."""
        return 1 + WORKERS + 1

    def kill_a_worker(self, chance: random.Random) -> None:
        which = chance.randrange(WORKERS)
        self._fleet.kill_all(self._workers[which])
        self._workers[which] = self._fleet.worker_process()

    def kill_a_family(self) -> None:
        """The parent with its children."""
        self._fleet.kill_all(self._family)
        self._family = self._fleet.worker()

    def kill_a_child(self, chance: random.Random) -> None:
        """Kill a child; the parent starts another."""
        self._fleet.kill_some_child(self._family, chance)

    def kill_a_parent(self) -> None:
        """Kill a parent; its children let their jobs end, and end."""
        self._fleet.kill(self._family)
        self._family = self._fleet.worker()

    def kill_the_ticker(self) -> None:
        self._fleet.kill_all(self._ticker)
        self._ticker = self._fleet.ticker()

    def kill_the_server(self) -> None:
        self._fleet.kill_all(self._server)
        self._server = self._fleet.server(self._port)

    def kill_the_enqueuer(self) -> None:
        self._fleet.kill_all(self.enqueuer)
        self.enqueuer = self._fleet.enqueuer(self._port)


class Director:
    """Injects one fault after the other, spread over the available time."""

    def __init__(
        self,
        chance: random.Random,
        cast: Cast,
        server: Restartable | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        self._chance = chance
        self._cast = cast
        self._server = server
        self._proxy = proxy
        self.tally = Tally()

    def play(self, plan: Plan, seconds: float) -> None:
        kills, all_together = plan.shuffled(self._chance)
        if not all_together:
            self._spread(kills, seconds)
            return
        # Faults that hit the database take a while themselves.
        self._spread(kills, seconds * KILLS_ALONE)
        self.tally.disturbed_at = time.time() * 1000
        self._spread(all_together, seconds * (1 - KILLS_ALONE))

    def _spread(self, faults: Sequence[str], seconds: float) -> None:
        began = time.monotonic()
        for number, fault in enumerate(faults):
            # A little before or after its turn, so that no two scenes are alike.
            turn = (number + self._chance.random()) / len(faults) * seconds
            time.sleep(max(0.0, began + turn - time.monotonic()))
            if time.monotonic() > began + LONGER * seconds:
                break
            self._do(fault)
        time.sleep(max(0.0, began + seconds - time.monotonic()))

    def _do(self, fault: str) -> None:
        kind, hit = {
            KILLS: self._kill,
            RESTARTS: lambda: ("restart", self._restart),
            CONNECTIONS: self._connection,
        }[fault]()
        kills = self._cast.kills
        hit()
        while fault == KILLS and self._cast.kills == kills:
            # There was no such process at that moment.
            kind, hit = self._kill()
            hit()
        self.tally.done[fault] += 1
        self.tally.kinds[kind] += 1

    def _kill(self) -> tuple[str, Fault]:
        cast = self._cast
        victims: list[tuple[str, Fault, float]] = [
            ("worker", lambda: cast.kill_a_worker(self._chance), 0.45),
            ("parent and children", cast.kill_a_family, 0.1),
            ("child", lambda: cast.kill_a_child(self._chance), 0.05),
            ("parent", cast.kill_a_parent, 0.05),
            ("ticker", cast.kill_the_ticker, 0.15),
            ("server", cast.kill_the_server, 0.1),
            ("enqueuer", cast.kill_the_enqueuer, 0.1),
        ]
        (victim,) = self._chance.choices(victims, [weight for *_, weight in victims])
        return victim[0], victim[1]

    def _restart(self) -> None:
        assert self._server is not None
        self._server.stop_immediately()
        time.sleep(self._chance.uniform(0, 1))
        self._server.start()
        self.tally.back_at.append(int(time.time() * 1000))
        time.sleep(UNDISTURBED)

    def _connection(self) -> tuple[str, Fault]:
        assert self._proxy is not None
        faults: list[tuple[str, Fault]] = [
            ("drop", self._drop),
            ("black hole", self._black_hole),
            ("delay", self._delay),
            ("answer to COMMIT lost", self._lose_commit),
        ]
        return self._chance.choice(faults)

    def _drop(self) -> None:
        assert self._proxy is not None
        self._proxy.cut()
        time.sleep(self._chance.uniform(0, 1))
        self._proxy.restore()

    def _black_hole(self) -> None:
        assert self._proxy is not None
        self._proxy.freeze()
        time.sleep(self._chance.uniform(0.2, 2))
        self._proxy.thaw()

    def _delay(self) -> None:
        assert self._proxy is not None
        self._proxy.delay = 0.05
        time.sleep(self._chance.uniform(0.5, 1.5))
        self._proxy.delay = 0.0

    def _lose_commit(self) -> None:
        assert self._proxy is not None
        loss = self._proxy.lose("COMMIT")
        loss.happened.wait(5)
