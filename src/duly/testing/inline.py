"""Runs due jobs here and now, one after the other, in the thread that asks for it.

The store, the claims and the fences are the real ones; only the worker's threads are missing. So a
debugger stops in the body, and what a body raises is raised by nobody else.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from duly.ids import new_id
from duly.model.job import Claim, Hold, Kind, NeverStarted, Outcome, settle
from duly.runtime.execute import (
    Attempt,
    Committed,
    MutationRunner,
    TakenAway,
    run_action,
    run_async_action,
)
from duly.runtime.program import Program, Runnable
from duly.store.base import ClaimRequest, Store, WorkerInfo

CHANCE = 0.5
"""Jitter that does not differ from run to run."""


class Ready(Program, Protocol):
    def ready(self) -> Store: ...


class InlineWorker:
    """A worker with a row like any other, and no thread of its own."""

    def __init__(self, program: Ready) -> None:
        self._store = program.ready()
        self._clock = program.clock
        self._runnables: Mapping[str, Runnable] = program.runnables()
        self._id = new_id(self._clock.now())
        self._store.register(self._info(program.name), self._clock.now())
        self._store.publish(program.published(), self._clock.now())

    def _info(self, app: str) -> WorkerInfo:
        return WorkerInfo(
            id=self._id,
            app=app,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=None,
            functions=tuple(sorted(self._runnables)),
            slots=1,
            alone=False,
            beat=0,
            started_at=self._clock.now(),
        )

    def close(self) -> None:
        self._store.deregister(self._id)

    def run_next(self) -> str | None:
        """Run the job that is due first; its id, or None if nothing is due."""
        claim = self._claim()
        if claim is None:
            return None
        runnable = self._runnables[claim.function]
        ends: list[Outcome] = []
        attempt = Attempt(claim, runnable, lambda _, outcome: ends.append(outcome))
        if claim.kind != runnable.kind:
            kinds = f"stored as {claim.kind}, now {runnable.kind}"
            attempt.resolve(NeverStarted(Hold.SIGNATURE, kinds))
        elif runnable.kind == Kind.MUTATION:
            self._run_mutation(attempt)
        elif runnable.is_async:
            _run_async(attempt)
        else:
            run_action(attempt)
        for outcome in ends:
            settlement = settle(claim, outcome, self._clock.now(), CHANCE)
            self._store.exchange([settlement], None, self._clock.now())
        return claim.id

    def _claim(self) -> Claim | None:
        now = self._clock.now()
        queues = tuple(sorted({lane.queue for lane in self._store.lanes() if lane.run_at <= now}))
        if not queues:
            return None
        request = ClaimRequest(self._id, queues, tuple(sorted(self._runnables)), 1)
        _, claims = self._store.exchange([], request, now)
        return claims[0] if claims else None

    def _run_mutation(self, attempt: Attempt) -> None:
        lane = self._store.mutation_lane()
        runner = MutationRunner(self._store, lane, self._clock, _unwatched, _unreleased)
        try:
            for _, end in runner.run([attempt]):
                if not isinstance(end, Committed | TakenAway):
                    attempt.resolve(end)
        finally:
            runner.close()


def _unwatched(attempt: Attempt, seconds: float) -> None:
    """Nobody could stop a body in the thread that would have to stop it."""


def _unreleased(attempt: Attempt) -> None: ...


def _run_async(attempt: Attempt) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(run_async_action(attempt))
    else:
        # An async test: its loop cannot run another one inside.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, run_async_action(attempt)).result()
