"""A workflow as the worker calls it: from the top, with the records of its run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from duly import errors
from duly.calls.context import Bound
from duly.functions.function import Function
from duly.model.job import ErrorKind, Hold, Outcome, Raised, SystemFailed
from duly.model.stored_values import word
from duly.model.workflow import MAX_RECORDS
from duly.runtime.execute import Unwound
from duly.runtime.transaction_guard import workflow_code
from duly.workflows.contexts import AsyncWorkflowCtx, WorkflowCtx
from duly.workflows.driver import hold_if_canceled
from duly.workflows.run import Run, Scope

if TYPE_CHECKING:
    from duly.core import Core
    from duly.runtime.program import RunningAttempt

TRIED = "this build could not continue the run before"


class BoundWorkflow(Bound):
    """A workflow of one app."""

    def __init__(self, core: Core, function: Function[..., Any]) -> None:
        super().__init__(core, function)
        self._function = function

    def call_action(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        return self.replay(self._load(running), arguments)

    def replay(self, run: Run, arguments: Mapping[str, Any]) -> object:
        """Run the code from the top."""
        scope, running = Scope(run), run.running
        running.context = ctx = WorkflowCtx(run, scope)
        try:
            with workflow_code(), scope.is_current():
                value: object = self._function.body(ctx, **arguments)
        except BaseException as error:
            raise self._end(run, scope, running, error) from None
        return self._result(run, scope, running, value)

    async def call_async(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        run = await self._core.threads.call(lambda: self._load(running))
        return await self.replay_async(run, arguments)

    async def replay_async(self, run: Run, arguments: Mapping[str, Any]) -> object:
        """Run the code of an async workflow from the top."""
        scope, running = Scope(run), run.running
        running.context = ctx = AsyncWorkflowCtx(run, scope)
        in_progress = self._core.records.running
        in_progress.add(run)
        try:
            with workflow_code(), scope.is_current():
                value: object = await self._function.body(ctx, **arguments)
        except BaseException as error:
            await run.write_the_rest()
            raise self._end(run, scope, running, error) from None
        finally:
            in_progress.discard(run)
        await run.write_the_rest()
        return self._result(run, scope, running, value)

    def _load(self, running: RunningAttempt) -> Run:
        fence = running.claim.id, running.claim.token
        try:
            state = self._core.ready().load_run(fence)
            if state is None:
                raise Unwound(None)
            if self._core.paranoid:
                steps = self._core.ready().steps_of(running.claim.id, MAX_RECORDS)
                state = msgspec.structs.replace(state, steps=steps)
        except errors.StoreError as error:
            raise Unwound(SystemFailed(f"the store failed: {error}")) from None
        run = Run(self._core, self._function, running, state)
        running.is_quiet = run.is_quiet
        if run.build in run.builds_before:
            # Another build has freed the run for itself.
            job = self._core.ready().get(run.id)
            hold = Hold.HISTORY if job is None or job.error_traceback is None else Hold.ERROR
            message = TRIED if job is None else job.error_message or TRIED
            shown = None if job is None else job.error_traceback
            raise Unwound(run.held(hold, message, shown))
        return run

    def _result(self, run: Run, scope: Scope, running: RunningAttempt, value: object) -> object:
        """What the function returned, unless it had to end before."""
        try:
            if scope.suspension is not None:
                raise scope.suspension
            if run.ended:
                raise Unwound(run.end)
            run.check()
            scope.check_all_read()
            self.encode_result(value)
        except BaseException as error:
            raise self._end(run, scope, running, error) from None
        return self._checked(running, value)

    def _end(
        self, run: Run, scope: Scope, running: RunningAttempt, error: BaseException
    ) -> BaseException:
        """What an exception that leaves the function means for the run. To be raised."""
        # Whatever the code made of it, the first reason to end counts.
        if scope.suspension is not None and not run.ended:
            return Unwound(run.suspended(scope.suspension.waits))
        if run.ended:
            return Unwound(run.end)
        if isinstance(error, Unwound):
            return error
        if running.canceled:
            return Unwound(None)
        if isinstance(error, run.failures):
            try:
                scope.check_all_read()
            except Unwound as mismatch:
                return mismatch
            return Unwound(self._failed(run, error))
        if isinstance(error, asyncio.CancelledError):
            canceled = hold_if_canceled(run, scope)
            return error if canceled is None else canceled
        if not isinstance(error, (Exception, SystemExit, GeneratorExit)):
            # Ctrl-C, pytest.fail and their like end the process or the test.
            return error
        return Unwound(run.mistake(error))

    def _failed(self, run: Run, error: BaseException) -> Outcome:
        kind = error.kind if isinstance(error, errors.StepFailed) else ErrorKind.USER
        if isinstance(error, errors.WaitTimeout):
            kind = ErrorKind.TIMEOUT
        message, trace = run.for_people(error)
        return Raised(word(kind, ErrorKind, ErrorKind.USER), message, trace, final=True)
