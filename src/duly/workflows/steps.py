"""Runs the bodies of steps, and gives each its context."""

# The contexts of steps extend those of jobs, which are in another module.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from duly.calls.async_tx import AsyncTransaction
from duly.calls.context import AsyncCtx, Ctx, Tx, open_tx
from duly.calls.current import IsCurrent
from duly.errors import CannotCancelSelf
from duly.functions.function import Function
from duly.functions.times import Delay, seconds_of
from duly.model.schedule import check_cost
from duly.model.workflow import Put, Step, id_of_place
from duly.runtime.transaction_guard import OutsideWorkflow, refuse_inside_mutation
from duly.workflows.driver import Effect

if TYPE_CHECKING:
    from duly.core import Core
    from duly.store.base import StoreTx
    from duly.workflows.run import Run


class PlaceTaken(Exception):
    """The record was refused: the run was taken away. Rolls back the step."""


class StepTimedOut(Exception):
    """A step was ended because its time was over."""


class _Step:
    """A step as its context shows it: with the id and the attempt of the step."""

    _run: Run
    _step: Step

    def _is_step(self, run: Run, step: Step) -> None:
        self._run, self._step = run, step

    @property
    def job_id(self) -> str:
        """The id of the step, the same in each of its attempts."""
        return id_of_place(self._run.id, *self._step.place)

    @property
    def workflow_id(self) -> str:
        """The id of the run that the step belongs to."""
        return self._run.id

    @property
    def attempt(self) -> int:
        """The number of this attempt of the step, from 1."""
        return self._step.attempt

    @property
    def function(self) -> str:
        """The name of the function that runs."""
        return self._step.name


class StepCtx(_Step, Ctx):
    """The context of an action that is a step."""

    def _parent_id(self) -> str | None:
        return self.workflow_id

    def _cancel(self, job_id: str) -> bool | None:
        return self._core.cancel(job_id, f"job:{self.workflow_id}")

    def cost(self, amount: float) -> None:
        """Add to the cost of the run, which counts against the budget of its schedule."""
        checked = check_cost(amount)
        refuse_inside_mutation("cost")
        self._run.spend(checked)


class AsyncStepCtx(_Step, AsyncCtx):
    """The context of an async action that is a step."""

    def __init__(self, run: Run, step: Step, sync: StepCtx) -> None:
        self._core, self._running, self._sync = run.core, run.running, sync
        self._is_step(run, step)

    def _parent_id(self) -> str | None:
        return self.workflow_id


class StepTx(_Step, Tx):
    """The transaction of a mutation that is a step."""

    def _cancel(self, job_id: str) -> bool | None:
        won = super()._cancel(job_id)
        # The run may have been that job, or a descendant.
        if won and not self._open().lock_running(*self._run.fence):
            self._doomed = CannotCancelSelf()
            raise self._doomed
        return won

    def _parent_id(self) -> str | None:
        return self.workflow_id


class RunAction(Effect):
    """The body of an action, in this attempt of its step."""

    def __init__(
        self,
        run: Run,
        function: Function[..., Any],
        arguments: Mapping[str, Any],
        step: Step,
    ) -> None:
        self._run = run
        self._function = function
        self._arguments = arguments
        self._step = step

    def run(self) -> Any:
        ctx = self._ctx()
        with OutsideWorkflow(), IsCurrent(ctx):
            return self._run.core.functions.body_of(self._function)(ctx, **self._arguments)

    async def run_async(self, core: Core) -> Any:
        if not self._function.is_async:
            return await asyncio.to_thread(self.run)
        ctx = AsyncStepCtx(self._run, self._step, self._ctx())
        body = core.functions.body_of(self._function)
        timeout = self._function.options.timeout
        with OutsideWorkflow(), IsCurrent(ctx):
            if timeout is None:
                return await body(ctx, **self._arguments)
            return await self._in_time(body(ctx, **self._arguments), timeout)

    async def _in_time(self, running: Coroutine[Any, Any, Any], timeout: Delay) -> Any:
        seconds = seconds_of("timeout", timeout)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await running
        except TimeoutError:
            if not limit.expired():
                raise
            raise StepTimedOut(f"{self._function.name} ran longer than {seconds:g} s") from None

    def _ctx(self) -> StepCtx:
        ctx = StepCtx(self._run.core, self._run.running, self._arguments)
        ctx._is_step(self._run, self._step)
        return ctx


class RunMutation(Effect):
    """The body of a mutation and its record, in one transaction."""

    def __init__(
        self,
        run: Run,
        function: Function[..., Any],
        arguments: Mapping[str, Any],
        step: Step,
        record: Callable[[Any], Step],
        was: str | None,
    ) -> None:
        self._run = run
        self._function = function
        self._arguments = arguments
        self._step = step
        self._record = record
        self._was = was
        self._before: list[Put] = []
        """Records that commit together with this one."""

    def run(self) -> Step:
        self._before = self._run.take_unwritten(self._step.scope)
        try:
            return self._commit()
        except BaseException:
            self._run.bring_back(self._before)
            raise

    def _commit(self) -> Step:
        run = self._run
        with OutsideWorkflow(), open_tx(run.core, as_tx=self._as_tx) as tx, IsCurrent(tx):
            body = run.core.functions.body_of(self._function)
            limit = run.running.limit_step(run.store.mutation_seconds, tx._interrupt)
            try:
                value = body(tx, **self._arguments)
                tx.settle()
            except Exception:
                if not limit.is_over:
                    raise
            finally:
                limit.end()
            if limit.is_over:
                raise StepTimedOut(self._too_long())
            return self._recorded(tx, value)

    def _too_long(self) -> str:
        return f"{self._function.name} ran longer than {self._run.store.mutation_seconds:g} s"

    async def run_async(self, core: Core) -> Step:
        await self._run.written()
        # Here: in another thread it would meet the event loop.
        self._before = self._run.take_unwritten(self._step.scope)
        try:
            if not self._function.is_async:
                return await core.threads.call(self._commit)
            return await self._commit_async(core)
        except BaseException:
            self._run.bring_back(self._before)
            raise

    async def _commit_async(self, core: Core) -> Step:
        run = self._run
        with OutsideWorkflow():
            opening = partial(open_tx, core, as_tx=self._as_tx)
            async with AsyncTransaction(core, opening, is_body=True) as tx:
                tx.call_is(self._function.name, self._arguments)
                seconds = run.store.mutation_seconds
                limit = asyncio.timeout(seconds if math.isfinite(seconds) else None)
                try:
                    with IsCurrent(tx):
                        async with limit:
                            body = run.core.functions.body_of(self._function)
                            value = await body(tx, **self._arguments)
                except TimeoutError:
                    if not limit.expired():
                        raise
                    raise StepTimedOut(self._too_long()) from None
                return await tx._do(lambda inner: self._recorded(inner, value))

    def _as_tx(self, store_tx: StoreTx) -> Tx:
        tx = StepTx(self._run.core, store_tx, parent_id=self._run.id)
        tx._is_step(self._run, self._step)
        tx.call_is(self._function.name, self._arguments)
        return tx

    def _recorded(self, tx: Tx, value: object) -> Step:
        step = self._record(value)
        puts = [*self._before, Put(self._run.fence, step, self._was)]
        if not tx._open().put_steps(puts):
            raise PlaceTaken
        return step
