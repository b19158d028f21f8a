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
from contextlib import nullcontext
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
from duly.runtime.reports import Reports, captured_logging, context_of
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
        self._reports = Reports(self._store, self._clock)
        self._captures_logs = program.captures_logs
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
        # Whatever interrupted a body has also kept it from giving its slots back.
        slots = self._store.slots_of(self._id)
        if slots:
            self._store.release_slots(sorted(slots), self._clock.now())
        self._store.deregister(self._id)

    def run_next(self) -> str | None:
        """Run the job that is due first; its id, or None if nothing is due."""
        claim = self._claim()
        if claim is None:
            return None
        runnable = self._runnables[claim.function]
        ends: list[Outcome] = []
        attempt = Attempt(claim, runnable, lambda _, outcome: ends.append(outcome), self._reports)
        with captured_logging() if self._captures_logs else nullcontext():
            self._run(attempt)
        attempt.end_report()
        self._reports.flush()
        for outcome in ends:
            settlement = settle(claim, outcome, self._clock.now(), CHANCE)
            self._store.exchange([settlement], None, self._clock.now())
        if claim.holds_slot:
            self._store.release_slots([(claim.id, claim.token)], self._clock.now())
        return claim.id

    def _run(self, attempt: Attempt) -> None:
        claim, runnable = attempt.claim, attempt.runnable
        if claim.kind != runnable.kind:
            kinds = f"stored as {claim.kind}, now {runnable.kind}"
            attempt.resolve(NeverStarted(Hold.SIGNATURE, kinds))
        elif runnable.kind == Kind.MUTATION:
            self._run_mutation(attempt)
        elif runnable.is_async:
            _run_async(attempt)
        else:
            run_action(attempt)

    def _claim(self) -> Claim | None:
        now = self._clock.now()
        lanes = self._store.lanes()
        queues = tuple(sorted({lane.queue for lane in lanes if lane.run_at <= now}))
        if not queues:
            return None
        limited = any(lane.limited for lane in lanes)
        functions = tuple(sorted(self._runnables))
        request = ClaimRequest(self._id, queues, functions, 1, limited=limited)
        _, claims = self._store.exchange([], request, now)
        return claims[0] if claims else None

    def _run_mutation(self, attempt: Attempt) -> None:
        lane = self._store.mutation_lane()
        runner = MutationRunner(self._store, lane, self._clock, _unwatched, _unreleased)
        try:
            for _, end in runner.run([attempt]):
                if isinstance(end, Committed):
                    # What it said was part of its transaction.
                    attempt.report = None
                elif not isinstance(end, TakenAway):
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
        _to_the_end(attempt)
    else:
        # An async test: its loop cannot run another one inside.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_to_the_end, attempt).result()


def _to_the_end(attempt: Attempt) -> None:
    context_of(attempt).run(asyncio.run, run_async_action(attempt))
