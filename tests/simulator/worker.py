"""The real worker, whose bodies run, and whose loops wait, as the simulation says."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from duly.model.job import Kind
from duly.runtime.execute import Attempt, MutationRunner, run_action
from duly.runtime.teams import AsyncTeam, Ended, MutationTeam, ThreadTeam
from duly.runtime.worker import Worker
from tests.simulator.log import Violation

if TYPE_CHECKING:
    from tests.simulator.process import Process


class SimThreads(ThreadTeam):
    """Sync actions wait until the simulation runs them, each in one go."""

    def __init__(self, most: int, ended: Ended) -> None:
        super().__init__(most, 0, ended)
        self.waiting: list[Attempt] = []

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        self.waiting += attempts
        self._unended += len(attempts)

    def take_back(self) -> list[Attempt]:
        taken, self.waiting = self.waiting, []
        self._unended -= len(taken)
        return taken

    def run(self, attempt: Attempt) -> None:
        self.waiting.remove(attempt)
        try:
            run_action(attempt)
        finally:
            self._unended -= 1
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
        """Continue to the next pause; False when the body has ended."""
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


class SimRun(SimTask):
    """An async workflow, which runs in one go on an event loop of its own."""

    def resume(self) -> bool:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self.coroutine)
        finally:
            loop.close()
        return False


class SimAsync(AsyncTeam):
    """Async actions, each resumed from pause to pause."""

    def __init__(self, ended: Ended) -> None:
        super().__init__(ended)
        self.tasks: list[SimTask] = []

    def start_many(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            kind = SimRun if attempt.claim.kind == Kind.WORKFLOW else SimTask
            self.tasks.append(kind(attempt, self._run(attempt)))

    def resume(self, task: SimTask) -> None:
        if not task.resume() and task in self.tasks:
            self.tasks.remove(task)


class SimMutations(MutationTeam):
    """Mutations wait until the simulation runs some of them, as the real thread would."""

    def __init__(self, worker: SimWorker) -> None:
        super().__init__(worker.store, worker.make_runner, worker._body_ended, worker._forget)
        self.queued: list[Attempt] = []
        # Time is the simulation's: nothing waits before it tries again.
        self._stopped.set()

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
        settings = process.world.settings
        super().__init__(
            process.app.core,
            concurrency=settings.concurrency,
            threads=settings.threads,
            alone=alone,
        )
        self.process = process
        self.claiming = SimLock(process)
        self.threads = SimThreads(self.max_threads, self._body_ended)
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

    def register(self, *, with_faulty: bool = True) -> None:
        self.process.worker_ids.add(self.id)
        super().register(with_faulty=with_faulty)

    def start(self) -> None:
        self.register()

    def stop(self, drain: float = 0) -> None:
        self.process.world.ledger.stopping.add(self.id)
        super().stop(drain)

    def _forget(self, attempt: Attempt, committed: bool) -> None:
        told = attempt.resolved
        super()._forget(attempt, committed)
        if not told and self.process.world.ledger.is_running(attempt.claim):
            raise Violation("a fence closes for a reason", f"{attempt.claim.function} goes on")

    def _body_ended(self, attempt: Attempt) -> None:
        self.process.world.ledger.limits.ends(attempt.claim.id, attempt.claim.token)
        super()._body_ended(attempt)

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
        self.process.has_frozen |= bool(self.asyncs.tasks)
        self.asyncs.tasks = []
