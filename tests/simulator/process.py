"""One simulated process: an app, its store and perhaps a worker, from start to death.

Threads are replaced by calls: whatever one of them does is one `act`, and where a real thread could
be overtaken the world may let another one act.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from duly import Duly
from duly.errors import StoreError
from duly.model.job import Claim
from duly.model.signature import Signature
from duly.runtime.heartbeat import Heartbeat, rescue
from duly.runtime.janitor import Janitor
from duly.runtime.ticker import Ticker
from tests.simulator import functions
from tests.simulator.faults import Faults, SimulatedCrash
from tests.simulator.invariants import EXHAUSTED_MS, RETENTION_MS
from tests.simulator.log import Violation
from tests.simulator.store import SimStore
from tests.simulator.worker import Blocked, SimTask, SimWorker

if TYPE_CHECKING:
    from tests.simulator.world import World

# What the schema says to a claim in the name of a worker that was declared dead.
NO_ROW = "a running job needs the row of its worker"
SIGNATURES: dict[str, Signature] = {}
"""Of duly's own functions, which every app makes anew."""


class Process:
    """An app, its store and perhaps a worker, from start to death."""

    def __init__(
        self, world: World, name: str, *, knows_rare: bool = True, build: str | None = None
    ) -> None:
        self.world = world
        self.name = name
        self.build = build
        """Which code it has, in worlds with more than one."""
        self.faults = Faults()
        self.stack: list[str] = []
        self.worker_ids: set[str] = set()
        self.killed_itself = False
        """Whether it died by what a body did."""
        self.has_frozen = False
        """Whether a worker has stopped here without some of its bodies."""
        self.clock = world.clock_of(self)
        floor = timedelta(seconds=1)
        self.app = Duly(
            f"sqlite:///{world.path}", clock=self.clock, min_interval=floor, build=build
        )
        self.store = SimStore(self)
        self.app.core.store = self.store
        self.worker: SimWorker | None = None
        self.inputs: dict[str, int] | None = None
        """Those that its client runs a schedule with."""
        self.ticker = Ticker(self.app.core, page=world.page)
        # Reading annotations takes longer than most of what happens here.
        for name, builtin in self.app.core.functions.builtins.items():
            builtin.signature = SIGNATURES.setdefault(name, builtin.signature)
        known = world.functions
        self.app.core.functions.registered |= {
            n: f for n, f in known.items() if knows_rare or n != "rare"
        }
        # Opening takes locks of its own, and is not what is simulated.
        self.is_open = False
        self.app.ready()
        self.is_open = True

    def start(self, alone: str | None = None) -> None:
        """Begin to run jobs."""
        worker = SimWorker(self, alone)
        self.beat = Heartbeat(worker)
        self.janitor = Janitor(
            self.store,
            self.clock,
            retention=timedelta(milliseconds=RETENTION_MS),
            exhausted_retention=timedelta(milliseconds=EXHAUSTED_MS),
            alone_runs=self.world.alone_runs,
            functions=lambda: worker.functions,
            build=None if self.build is None else lambda: self.app.core.build,
        )
        worker.start()
        self.worker = worker
        if alone is not None:
            self._run_alone(worker, alone)

    def _run_alone(self, worker: SimWorker, job_id: str) -> None:
        """As service.run_alone does it, beat included."""
        self._claim_alone(worker, job_id)
        for _ in range(10):
            if not worker.idle:
                self.run_bodies()
                self.settle()
                self.act("beat", self.beat.one_pass)
        worker.stop()

    def _claim_alone(self, worker: SimWorker, job_id: str) -> None:
        try:
            worker.claim_alone(job_id)
        except StoreError:
            for _ in range(10):
                with suppress(StoreError):
                    return worker.reconcile()

    @property
    def knows_all(self) -> bool:
        return self.world.knows_all(self)

    @property
    def is_working(self) -> bool:
        return self.worker is not None and not self.worker.stopped

    # Acting

    def can(self, loop: str) -> bool:
        """Whether the thread of this loop is free to act now."""
        if self.faults.dead or loop in self.stack:
            return False
        waits_for_claims = loop in ("claim", "stop", "start") and self.worker is not None
        return not (waits_for_claims and self.worker and self.worker.claiming.owner)

    def act(self, loop: str, work: Callable[[], object], outage: int = 0) -> None:
        """One thing that one thread does; whatever goes wrong, goes no further.

        In an outage the next statements fail, so many of them.
        """
        if not self.can(loop):
            return
        fired = self.faults.fired
        if outage:
            self.faults.arm("io", 0, outage)
        elif not self.stack:
            self.world.maybe_arm(self)
        self.stack.append(loop)
        functions.acting.append(self)
        try:
            work()
        except (SimulatedCrash, Blocked):
            pass
        except StoreError as error:
            if self.faults.fired == fired and NO_ROW not in str(error):
                raise Violation("no error without a fault", f"{loop}: {error}") from error
        except Violation:
            raise
        except BaseException as error:
            if not self.faults.dead:
                raise Violation("every loop survives", f"{loop}: {error!r}") from error
        finally:
            self.stack.pop()
            functions.acting.pop()
        if not self.stack:
            self.faults.disarm()
        if self.faults.dead and self in self.world.processes:
            self.die()

    def die(self) -> None:
        """As by SIGKILL: transactions vanish, locks are let go, memory is gone."""
        self.faults.dead = True
        for raw in self.store.opened:
            if raw.vanish() and not self.stack:
                self.world.spare.append(raw)
            else:
                # An unfinished operation must not continue on a connection that is reused.
                raw.close()
        if self.world.writer is self:
            self.world.writer = None
        self.world.ledger.may_leave |= self.worker_ids
        self.world.ledger.limits.die(self.worker_ids)
        for worker_id in list(self.store._worker_locks):
            self.store.abandon(worker_id)
        if self.worker:
            self.world.graves += self.worker.asyncs.tasks
        self.world.remove(self)

    # Loops

    def claim(self) -> None:
        if self.worker:
            if not self.store.finishes_with_claim:
                self.worker.notified.set()
            self.act("claim", self.worker.one_pass)

    def settle(self) -> None:
        """One pass of whichever loop settles."""
        if self.worker and not self.store.finishes_with_claim:
            self.act("finish", self.worker.finish_pass)
        else:
            self.claim()

    def bury(self, worker_ids: set[str]) -> None:
        """What AloneRuns does about a process for one job that has killed itself."""
        for worker_id in sorted(worker_ids):
            rescue(self.store, self.clock, worker_id, None, witnessed=True)

    def tick(self) -> None:
        self.act("ticker", self.ticker.one_pass)

    def watch(self) -> None:
        if self.worker:
            self.act("watch", self.worker._watch_pass)

    def run_mutations(self, count: int) -> None:
        worker = self.worker
        if worker and worker.mutations.queued:
            self.act("mutations", lambda: worker.mutations.run(count))

    def run_actions(self, choose: Callable[[list[Any]], Any]) -> None:
        """Run one waiting sync action, or resume one async body."""
        worker = self.worker
        if worker is None:
            return
        body = choose(worker.actions) if worker.actions else None
        if isinstance(body, SimTask):
            self.act(f"body {body.attempt.claim.id}", lambda: worker.asyncs.resume(body))
        elif body is not None:
            self.act(f"body {body.claim.id}", lambda: worker.threads.run(body))

    def run_bodies(self) -> None:
        """Let everything that was claimed run to its end."""
        if self.worker:
            self.run_mutations(self.worker.mutations.waiting())
        for _ in range(50):
            self.run_actions(lambda bodies: bodies[0])

    def check_slots(self) -> None:
        """Every slot is taken by a body that has not ended, while none is being run."""
        worker = self.worker
        # A crash may have come between the end of a body and its being counted.
        if self.faults.dead or worker is None or worker.stopped or any(map(_is_body, self.stack)):
            return
        if worker._busy != len(worker.attempts):
            raise Violation(
                "slots are accounted for", f"{worker._busy} for {len(worker.attempts)} bodies"
            )
        if len(worker.threads.waiting) > worker.max_threads:
            raise Violation("no claimed job waits for a thread", f"{worker.threads.waiting}")
        for attempt in worker.attempts:
            if not attempt.resolved and worker._held.get(attempt.claim.id) is not attempt:
                raise Violation("whoever runs can be told", f"{attempt.claim.function} cannot")

    # What bodies tell

    def started(self, claim: Claim) -> None:
        assert self.worker is not None
        self.world.note(f"    {self.world.ledger.name(claim.id)} {claim.function} begins")
        self.world.ledger.started(claim, self.worker_ids)

    def drop_dead(self) -> NoReturn:
        """A body takes its process along."""
        self.faults.dead = self.killed_itself = True
        raise SimulatedCrash

    def linger(self, seconds: float) -> None:
        """Time passes inside a body, while the watchdog watches."""
        assert self.worker is not None
        self.world.clock.advance(seconds)
        self.worker._watch_pass()


def _is_body(loop: str) -> bool:
    return loop == "mutations" or loop.startswith("body ")
