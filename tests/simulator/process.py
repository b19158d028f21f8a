"""One simulated process: the real app and worker, on a store whose statements can go wrong.

Threads are replaced by calls: each loop of the worker is one `act`, bodies run when the simulation
says so, and where a real thread could be overtaken the world may let another one act.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from duly import Duly
from duly.clock import SystemClock
from duly.errors import StoreError
from duly.model.job import Claim, Settlement
from duly.runtime import outbox
from duly.runtime.beat import Beat
from duly.runtime.execute import Attempt, MutationRunner, run_action
from duly.runtime.janitor import Janitor
from duly.runtime.teams import AsyncTeam, Ended, MutationTeam, ThreadTeam
from duly.runtime.worker import Worker
from duly.store.base import ClaimRequest
from duly.store.sqlite import Connection, SqliteSession, SqliteStore
from tests.simulator import functions
from tests.simulator.invariants import EXHAUSTED_MS, RETENTION_MS, Violation

if TYPE_CHECKING:
    from tests.simulator.world import World

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """The process is dead: nothing it does from here on reaches the database."""


# The store -----------------------------------------------------------------------------------


ERRORS = {
    "io": ("SQLITE_IOERR", "disk I/O error"),
    "fu": ("SQLITE_FULL", "database or disk is full"),
}


class Faults:
    """Says of each statement of one process whether it goes wrong.

    `crash` kills the process before the statement, `io` and `fu` fail it (with a + the transaction
    goes too), `busy` fails a BEGIN, `lost` does a COMMIT and says that it failed.
    """

    KINDS = ("crash", "io", "io+", "fu", "fu+", "busy", "lost", "lost")

    def __init__(self) -> None:
        self.dead = False
        self.fired = 0
        self._kind: str | None = None
        self._skip = self._times = 0

    def arm(self, kind: str, skip: int, times: int) -> None:
        self._kind, self._skip, self._times = kind, skip, times

    def disarm(self) -> None:
        self._kind = None

    def before(self, connection: SimConnection, text: str) -> None:
        if self.dead:
            raise SimulatedCrash
        if self._kind == "crash" and self._is_due():
            self.dead = True
            raise SimulatedCrash
        if self._kind == "busy" and text.startswith("BEGIN") and self._is_due():
            raise _error("SQLITE_BUSY", "database is locked")
        kind = self._kind or ""
        # Nothing makes a rollback fail.
        if kind[:2] in ERRORS and not text.startswith("ROLLBACK") and self._is_due():
            if kind.endswith("+"):
                connection.blow_fuse()
            raise _error(*ERRORS[kind[:2]])

    def after(self, text: str) -> None:
        if self._kind == "lost" and text.startswith("COMMIT") and self._is_due():
            raise _error("SQLITE_IOERR", "the answer was lost")

    def _is_due(self) -> bool:
        self._skip -= 1
        if self._skip >= 0:
            return False
        self.fired += 1
        self._times -= 1
        if self._times <= 0:
            self._kind = None
        return True


def _error(name: str, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorname = name
    return error


class SimCursor(sqlite3.Cursor):
    owner: SimConnection

    def execute(self, text: str, parameters: Any = ()) -> SimCursor:
        self.owner.faults.before(self.owner, text)
        super().execute(text, parameters)
        self.owner.faults.after(text)
        return self

    def executemany(self, text: str, rows: Any) -> SimCursor:
        self.owner.faults.before(self.owner, text)
        super().executemany(text, rows)
        return self


class SimConnection(Connection):
    faults: Faults

    def cursor(self, *_: Any) -> SimCursor:  # type: ignore[override]
        cursor = super().cursor(SimCursor)
        cursor.owner = self
        return cursor

    def execute(self, text: str, parameters: Any = ()) -> SimCursor:
        return self.cursor().execute(text, parameters)

    def vanish(self) -> None:
        """Closing is not enough while a cursor is still referred to from some traceback."""
        with suppress(sqlite3.ProgrammingError):
            self.set_authorizer(None)
            if self.in_transaction:
                sqlite3.Cursor(self).execute("ROLLBACK")
        self.close()

    def blow_fuse(self) -> None:
        """Some errors take the transaction along; the authorizer has no say in that."""
        if self.in_transaction:
            with suppress(sqlite3.IntegrityError):
                sqlite3.Cursor(self).execute("INSERT OR ROLLBACK INTO sim_fuse VALUES (1)")


class SimTurnstile:
    """The lock between all writers; nobody waits here, so a lock that is held was forgotten."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world

    def __enter__(self) -> None:
        if not self.process.store.is_writing:
            self.world.interleave(self.process)
        if self.world.writer is not None:
            raise Violation("locks are released", f"{self.world.writer.name} keeps the lock")
        self.world.writer = self.process

    def __exit__(self, *exception: object) -> None:
        if self.world.writer is not self.process:
            raise Violation("locks are released", f"{self.process.name} has no lock to release")
        self.world.writer = None

    def close(self) -> None:
        """Nothing to close."""


class SimStore(SqliteStore):
    """The real store over connections that can fail."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.path, synchronous="OFF")
        self.process = process
        self.opened: list[SimConnection] = []
        self.is_writing = False
        self.finishes_with_claim = process.world.settings.finishes_with_claim
        self._turnstile = SimTurnstile(process)  # type: ignore[assignment]

    def connect(self) -> SimConnection:
        if self.process.faults.dead:
            raise SimulatedCrash
        raw = sqlite3.connect(
            self.path,
            timeout=0,
            isolation_level=None,
            cached_statements=256,
            factory=SimConnection,
        )
        raw.faults = self.process.faults
        self.opened.append(raw)
        sqlite3.Cursor(raw).execute("PRAGMA synchronous = OFF")
        sqlite3.Cursor(raw).execute("PRAGMA foreign_keys = ON")
        return raw

    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        ledger = self.process.world.ledger
        before = ledger.sync()
        try:
            settled, claims = super().exchange(settlements, request, now)
        except StoreError as error:
            if request is None and not isinstance(error, outbox.OUTAGE):
                raise Violation("every end can be stored", str(error)) from error
            raise
        ledger.sync()
        for job_id in settled:
            ledger.settled(job_id, {s.token for s in settlements if s.id == job_id}, before)
        return settled, claims

    def _read(self, ask: Callable[[SqliteSession], T]) -> T:
        self.process.world.interleave(self.process)
        return super()._read(ask)

    def _write(self, work: Callable[[SqliteSession], T]) -> T:
        self.process.world.interleave(self.process)
        self.is_writing = True
        try:
            return super()._write(work)
        finally:
            self.is_writing = False


# Bodies --------------------------------------------------------------------------------------


class SimThreads(ThreadTeam):
    """Sync actions wait until the simulation runs them, each in one go."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(0, ended)
        self.waiting: list[Attempt] = []

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        self.waiting += attempts

    def take_back(self) -> list[Attempt]:
        taken, self.waiting = self.waiting, []
        return taken

    def run(self, attempt: Attempt) -> None:
        self.waiting.remove(attempt)
        try:
            run_action(attempt)
        finally:
            self._ended(attempt)


class SimTask:
    """An async body, resumed by hand."""

    def __init__(self, attempt: Attempt, coroutine: Coroutine[Any, Any, None]) -> None:
        self.attempt = attempt
        self.coroutine = coroutine
        self.begun = self.canceled = False
        attempt.cancel_body = self.cancel

    def cancel(self) -> None:
        self.canceled = True

    def resume(self) -> bool:
        """Go on to the next pause; False when the body has ended."""
        canceled, self.canceled = self.canceled and self.begun, self.canceled and not self.begun
        self.begun = True
        try:
            if canceled:
                self.coroutine.throw(asyncio.CancelledError())
            else:
                self.coroutine.send(None)
        except StopIteration:
            return False
        return True


class SimAsync(AsyncTeam):
    """Async actions, each resumed from pause to pause."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended)
        self.tasks: list[SimTask] = []

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        self.tasks += [SimTask(attempt, self._run(attempt)) for attempt in attempts]

    def resume(self, task: SimTask) -> None:
        if not task.resume() and task in self.tasks:
            self.tasks.remove(task)


class SimMutations(MutationTeam):
    """Mutations wait until the simulation runs some of them, as the real thread would."""

    def __init__(self, worker: SimWorker) -> None:
        super().__init__(worker.store, worker.make_runner, worker._body_ended, worker._forget)
        self.queued: list[Attempt] = []

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        self.queued += attempts

    def waiting(self) -> int:
        return len(self.queued)

    def take_back(self) -> list[Attempt]:
        taken, self.queued = self.queued, []
        return taken

    def run(self, count: int) -> None:
        for attempt in self.queued[:count]:
            self._queue.put(attempt)
        del self.queued[:count]
        self._queue.put(None)
        self._work()


class Blocked(BaseException):
    """A thread has to wait for another one of its process: it does nothing this time."""


class SimLock:
    """A lock between the loops of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.owner: str | None = None

    def acquire(self, timeout: float = 0) -> bool:
        if self.owner is not None:
            return False
        self.owner = self.process.stack[-1]
        return True

    def release(self) -> None:
        self.owner = None

    def __enter__(self) -> None:
        if self.owner == self.process.stack[-1]:
            raise Violation("locks are released", f"{self.owner} waits for itself")
        if not self.acquire():
            raise Blocked

    def __exit__(self, *exception: object) -> None:
        self.release()


class SimWorker(Worker):
    """The real worker with bodies and waits under the simulation's control."""

    def __init__(self, process: Process, alone: str | None = None) -> None:
        concurrency = process.world.settings.concurrency
        super().__init__(process.app.core, concurrency=concurrency, alone=alone)
        self.process = process
        self.claiming = SimLock(process)
        self.threads = SimThreads(self._body_ended)
        self.asyncs = SimAsync(self._body_ended)
        self.mutations = SimMutations(self)
        self._claiming = self.claiming  # type: ignore[assignment]
        self._threads, self._async, self._mutations = self.threads, self.asyncs, self.mutations
        self._runner: MutationRunner | None = None
        self.stopped = False

    def make_runner(self) -> MutationRunner:
        """One for all its life, as the real thread has it."""
        if self._runner is None:
            self._runner = self._make_runner()
            self._runner.close = lambda: None  # type: ignore[method-assign]
        return self._runner

    @property
    def actions(self) -> list[Attempt | SimTask]:
        return [*self.threads.waiting, *self.asyncs.tasks]

    @property
    def attempts(self) -> list[Attempt]:
        """Whatever was claimed and has not ended."""
        running = [task.attempt for task in self.asyncs.tasks]
        return [*self.threads.waiting, *running, *self.mutations.queued]

    def register(self) -> None:
        self.process.worker_ids.add(self.id)
        super().register()

    def start(self) -> None:
        self.register()

    def _forget(self, attempt: Attempt, committed: bool) -> None:
        told = attempt.resolved
        super()._forget(attempt, committed)
        if not told and self.process.world.ledger.is_running(attempt.claim):
            raise Violation("a fence closes for a reason", f"{attempt.claim.function} goes on")

    def _wait_until_quiet(self, seconds: float) -> None:
        if self.process.world.rng.random() < 0.5:
            self.process.run_bodies()
        self.process.check_slots()

    def _flush(self) -> None:
        for _ in range(4):
            if self._held:
                self.process.settle()

    def _end_threads(self) -> None:
        self.stopped = True
        self.process.world.graves += self.asyncs.tasks
        self.asyncs.tasks = []


# The process ---------------------------------------------------------------------------------


class Process:
    """An app, its store and perhaps a worker, from start to death."""

    def __init__(self, world: World, name: str, *, knows_rare: bool = True) -> None:
        self.world = world
        self.name = name
        self.faults = Faults()
        self.stack: list[str] = []
        self.worker_ids: set[str] = set()
        wall, monotonic = lambda: world.clock.now() / 1000, world.clock.monotonic
        self.clock = SystemClock(wall, monotonic)
        self.app = Duly(f"sqlite:///{world.path}", clock=self.clock)
        self.store = SimStore(self)
        self.app.core.store = self.store
        self.worker: SimWorker | None = None
        known = functions.app.functions()
        self.app.core.functions |= {n: f for n, f in known.items() if knows_rare or n != "rare"}
        # Opening takes locks of its own, and is not what is simulated.
        self.is_open = False
        self.app.ready()
        self.is_open = True

    def start(self, alone: str | None = None) -> None:
        """Begin to run jobs."""
        worker = SimWorker(self, alone)
        if alone is not None:
            self.world.ledger.alone.add(worker.id)
        self.beat = Beat(worker)
        self.janitor = Janitor(
            self.store,
            self.clock,
            retention=timedelta(milliseconds=RETENTION_MS),
            exhausted_retention=timedelta(milliseconds=EXHAUSTED_MS),
            alone_runs=self.world.alone_runs,
        )
        worker.start()
        self.worker = worker
        if alone is not None:
            self._run_alone(worker, alone)

    def _run_alone(self, worker: SimWorker, job_id: str) -> None:
        """As service.run_alone does it, beat included."""
        worker.claim_alone(job_id)
        for _ in range(10):
            if not worker.idle:
                self.run_bodies()
                self.settle()
                self.act("beat", self.beat.one_pass)
        worker.stop()

    @property
    def knows_all(self) -> bool:
        return "rare" in self.app.functions()

    @property
    def is_working(self) -> bool:
        return self.worker is not None and not self.worker.stopped

    @property
    def was_declared_dead(self) -> bool:
        """Then it can claim nothing in the name of a worker that has no row any more."""
        rows = self.world.ledger.db.execute("SELECT id FROM duly_workers").fetchall()
        return not self.worker_ids <= {worker_id for (worker_id,) in rows}

    # Acting

    def can(self, loop: str) -> bool:
        """Whether the thread of this loop is free to act now."""
        if self.faults.dead or loop in self.stack:
            return False
        waits_for_claims = loop in ("claim", "stop", "start") and self.worker is not None
        return not (waits_for_claims and self.worker and self.worker.claiming.owner)

    def act(self, loop: str, work: Callable[[], object], outage: bool = False) -> None:
        """One thing that one thread does; whatever goes wrong, goes no further."""
        if not self.can(loop):
            return
        fired = self.faults.fired
        if outage:
            self.faults.arm("io", 0, 100)
        elif not self.stack:
            self.world.maybe_arm(self)
        self.stack.append(loop)
        functions.acting.append(self)
        try:
            work()
        except (SimulatedCrash, Blocked):
            pass
        except StoreError as error:
            if self.faults.fired == fired and not self.was_declared_dead:
                raise Violation("no error without a fault", f"{loop}: {error}") from error
        except Violation:
            raise
        except BaseException as error:
            raise Violation("every loop survives", f"{loop}: {error!r}") from error
        finally:
            self.stack.pop()
            functions.acting.pop()
        if not self.stack:
            self.faults.disarm()
            if self.faults.dead:
                self.die()

    def die(self) -> None:
        """As by SIGKILL: transactions vanish, locks are let go, memory is gone."""
        self.faults.dead = True
        for raw in self.store.opened:
            raw.vanish()
        if self.world.writer is self:
            self.world.writer = None
        for worker_id in list(self.store._worker_locks):
            self.store.abandon(worker_id)
        if self.worker:
            self.world.graves += self.worker.asyncs.tasks
        self.world.remove(self)

    # Loops

    def claim(self) -> None:
        if self.worker:
            self.act("claim", self.worker.one_pass)

    def settle(self) -> None:
        """One pass of whichever loop settles."""
        if self.worker and not self.store.finishes_with_claim:
            self.act("finish", self.worker.finish_pass)
        else:
            self.claim()

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
        if worker is None or worker.stopped or any(map(_is_body, self.stack)):
            return
        if worker._busy != len(worker.attempts):
            raise Violation(
                "slots are accounted for", f"{worker._busy} for {len(worker.attempts)} bodies"
            )
        for attempt in worker.attempts:
            if not attempt.resolved and worker._held.get(attempt.claim.id) is not attempt:
                raise Violation("whoever runs can be told", f"{attempt.claim.function} cannot")

    # What bodies tell

    def started(self, claim: Claim) -> None:
        assert self.worker is not None
        self.world.note(f"    {self.world.ledger.name(claim.id)} {claim.function} begins")
        self.world.ledger.started(claim.id, claim.token, claim.attempt, self.worker_ids)

    def drop_dead(self) -> NoReturn:
        """A body takes its process along."""
        self.faults.dead = True
        raise SimulatedCrash

    def linger(self, seconds: float) -> None:
        """Time passes inside a body, while the watchdog watches."""
        assert self.worker is not None
        self.world.clock.advance(seconds)
        self.worker._watch_pass()


def _is_body(loop: str) -> bool:
    return loop == "mutations" or loop.startswith("body ")
