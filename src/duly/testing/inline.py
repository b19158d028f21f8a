"""Runs due jobs one after the other in the calling thread.

The store, the claims and the fences are the real ones; only the worker's threads are missing. So a
debugger stops in the body, and exceptions of the body are raised directly.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from duly.ids import new_id
from duly.model.job import (
    Claim,
    Hold,
    Kind,
    Lost,
    NeverStarted,
    Outcome,
    Settlement,
    settle,
    settle_lost,
)
from duly.runtime.execute import (
    Attempt,
    Committed,
    MutationRunner,
    TakenAway,
    Unwound,
    run_action,
    run_async_action,
)
from duly.runtime.home import Home
from duly.runtime.hooks import HookCallsHere, HookHost
from duly.runtime.program import Program, Runnable, RunningAttempt
from duly.runtime.reports import Reports, captured_logging, context_of
from duly.store.base import ClaimRequest, StoreTx, WorkerInfo
from duly.store.table import Store

T = TypeVar("T")

CHANCE = 0.5
"""Jitter that is the same in every run."""


class Ready(Program, HookHost, Protocol):
    def ready(self) -> Store: ...


class InlineWorker:
    """A worker with a row like any other, but without its own threads."""

    def __init__(self, program: Ready, home: Home | None = None) -> None:
        self._store = program.ready()
        self._home = home
        self._clock = program.clock
        self._runnables: Mapping[str, Runnable] = program.runnables()
        self._id = new_id(self._clock.now())
        self._reports = Reports(self._store, self._clock)
        self._hooks = HookCallsHere(program)
        self._runner = asyncio.Runner()
        self._shares_loop = False
        self._captures_logs = program.captures_logs
        self._store.register(self._info(program.name), self._clock.now())
        self._store.publish(program.published(), self._clock.now())
        # Jobs that were held while no worker had the functions.
        while self._store.release_known():
            pass

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

    def run_on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop that all async bodies use from now on."""
        self._shares_loop = True
        return _outside_loops(partial(self._runner.run, coroutine), self._home)

    def close(self) -> None:
        """Clean up; jobs that an interruption left running end as after a crash."""
        if self._shares_loop:
            _outside_loops(self._runner.close, self._home)
        if self._store.holdings(self._id):
            self._store.rescue(self._id, None, self._judge_lost, self._clock.now())
        # The interruption may have prevented the body from freeing its slots.
        slots = self._store.slots_of(self._id)
        if slots:
            self._store.release_slots(sorted(slots), self._clock.now())
        self._store.deregister(self._id, self._clock.now())

    def _judge_lost(self, job: Lost) -> Settlement:
        return settle_lost(job, self._clock.now(), CHANCE)

    def run_next(self) -> str | None:
        """Run the first due job; returns its id, or None if nothing is due."""
        claim = self._claim()
        if claim is None:
            return None
        body = _Body(self._runnables[claim.function])
        self._run(claim, body)
        if body.interruption is not None:
            raise body.interruption
        return claim.id

    def _run(self, claim: Claim, body: _Body) -> None:
        runnable = cast(Runnable, body)
        ends: list[Outcome] = []
        attempt = Attempt(
            claim, runnable, lambda _, outcome: ends.append(outcome), self._reports, self._hooks
        )
        with captured_logging() if self._captures_logs else nullcontext():
            self._run_body(attempt)
        attempt.end_report()
        self._reports.flush()
        for outcome in ends:
            settlement = settle(claim, outcome, self._clock.now(), CHANCE)
            settled, _ = self._store.exchange([settlement], None, self._clock.now())
            if attempt.hooks is not None and claim.id in settled:
                attempt.hooks.settled(attempt, settlement)
        self._release_slots([claim])
        self._hooks.wait()

    def _release_slots(self, claims: Sequence[Claim]) -> None:
        held = [(claim.id, claim.token) for claim in claims if claim.holds_slot]
        if held:
            self._store.release_slots(held, self._clock.now())

    def _run_body(self, attempt: Attempt) -> None:
        claim, runnable = attempt.claim, attempt.runnable
        if claim.kind != runnable.kind:
            kinds = f"stored as {claim.kind}, now {runnable.kind}"
            attempt.resolve(NeverStarted(Hold.SIGNATURE, kinds))
        elif runnable.kind == Kind.MUTATION:
            self._run_mutation(attempt)
        elif runnable.is_async:
            self._run_async(attempt)
        else:
            run_action(attempt)

    def _claim(self) -> Claim | None:
        """The first of the due jobs of all queues: by priority, then by time, then by age."""
        now = self._clock.now()
        lanes = self._store.lanes()
        limited = any(lane.limited for lane in lanes)
        queues = sorted({lane.queue for lane in lanes if lane.run_at <= now})
        claims = [claim for queue in queues for claim in self._claim_in(queue, now, limited)]
        claims.sort(key=lambda claim: (-claim.priority, claim.run_at, claim.id))
        if len(claims) > 1:
            others = [settle(claim, NeverStarted(), now, CHANCE) for claim in claims[1:]]
            self._store.exchange(others, None, now)
            self._release_slots(claims[1:])
        return claims[0] if claims else None

    def _claim_in(self, queue: str, now: int, limited: bool) -> Sequence[Claim]:
        functions = tuple(sorted(self._runnables))
        request = ClaimRequest(self._id, (queue,), functions, 1, limited=limited)
        return self._store.exchange([], request, now)[1]

    def _run_mutation(self, attempt: Attempt) -> None:
        lane = self._store.mutation_lane()
        runner = MutationRunner(
            self._store, lane, self._clock, _unwatched, _unreleased, self._serve
        )
        try:
            for _, end in runner.run([attempt]):
                if isinstance(end, Committed):
                    # Its log lines were part of its transaction.
                    attempt.report = None
                    if attempt.hooks is not None:
                        attempt.hooks.committed(attempt)
                elif not isinstance(end, TakenAway):
                    attempt.resolve(end)
        finally:
            runner.close()

    def _run_async(self, attempt: Attempt) -> None:
        # A body that cancels itself has only failed.
        with suppress(asyncio.CancelledError):
            body, context = _heeding_ctrl_c(attempt), context_of(attempt)
            _outside_loops(partial(self._run_in_loop, body, context), self._home)

    def _serve(self, attempt: Attempt, body: Coroutine[Any, Any, Any], home: Home) -> Any:
        """Run the body of an async mutation."""
        return _outside_loops(partial(self._run_in_loop, body, copy_context()), home)

    def _run_in_loop(self, body: Coroutine[Any, Any, Any], context: Context) -> Any:
        """Run a body on the loop of the lifespan, or on its own one."""
        if self._shares_loop:
            return self._runner.run(body, context=context)
        return context.run(asyncio.run, body)


class _Body:
    """A function that records exceptions that must end the test, and not only the job.

    A worker treats every exception of a body as a failure, and so do we; but Ctrl-C, pytest.fail
    and pytest.skip must also reach the test.
    """

    def __init__(self, runnable: Runnable) -> None:
        self._runnable = runnable
        self.interruption: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runnable, name)

    def call_mutation(
        self, running: RunningAttempt, tx: StoreTx, arguments: Mapping[str, Any], shared: bool
    ) -> object:
        with self._remembering():
            return self._runnable.call_mutation(running, tx, arguments, shared)

    def call_action(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        with self._remembering():
            return self._runnable.call_action(running, arguments)

    async def call_async(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        with self._remembering():
            return await self._runnable.call_async(running, arguments)

    @contextmanager
    def _remembering(self) -> Generator[None]:
        try:
            yield
        except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError, Unwound):
            raise
        except BaseException as error:
            self.interruption = error
            raise


def _unwatched(attempt: Attempt, seconds: float) -> None:
    """A body cannot be stopped from the thread that runs it."""


def _unreleased(attempt: Attempt) -> None: ...


def _outside_loops(run: Callable[[], T], home: Home | None) -> T:
    """Run an event loop, in another thread if one is running in this one, as in an async test."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(copy_context().run, run)
        if home is not None:
            home.serve_until(done)
        return done.result()


async def _heeding_ctrl_c(attempt: Attempt) -> None:
    await run_async_action(attempt)
    # Ctrl-C cancels the task, and asyncio raises it if the cancellation is not caught.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
