"""The contexts of workflows: `WorkflowCtx`, and `AsyncWorkflowCtx`, which is the same, awaited."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from random import Random
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    overload,
)
from uuid import UUID

from duly.calls.batches import AsyncBatch, Batch
from duly.calls.jobs import AsyncJob, Job, decoder_of
from duly.calls.verbs import id_of
from duly.clock import from_ms
from duly.errors import InvalidOption
from duly.functions.checks import check_text
from duly.functions.events import ANY
from duly.functions.function import Call, Function
from duly.functions.times import Delay, Instant, after, at
from duly.model.progress import check_line, check_progress
from duly.model.workflow import Decision, Request
from duly.workflows import operations
from duly.workflows.driver import Op, drive, drive_async, hold_if_canceled
from duly.workflows.operations import NO_DEFAULT, Branch, Enqueued, Wait
from duly.workflows.run import Run, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W", bound="_Context")

YES_OR_NO = ("approve", "reject")


class _Context:
    """What both contexts have in common: nothing here waits for the store."""

    def __init__(self, run: Run, scope: Scope) -> None:
        self._run = run
        self._scope = scope

    @property
    def job_id(self) -> str:
        """The id of the run, which is a job."""
        return self._run.id

    @property
    def function(self) -> str:
        """The name of the workflow, as the job has it."""
        return self._run.running.claim.function

    @property
    def begun_at(self) -> datetime:
        """When the run started: the same whenever it continues."""
        return from_ms(self._run.begun_at)

    @property
    def replaying(self) -> bool:
        """Whether the next operation has a record, which it will return."""
        return self._scope.replaying

    @property
    def state(self) -> Any:
        """What `Duly(worker_lifespan=…)` yielded in this worker process."""
        return self._run.core.lifespan.state

    def random(self) -> Random:
        """Return a source of random numbers, the same whenever the run continues."""
        return operations.random_source(self._scope)

    def uuid(self) -> UUID:
        """Return a UUID, the same whenever the run continues."""
        return operations.unique_id(self._scope)

    def timer(self, delay: Delay) -> Wait:
        """A delay, for `gather` and `first`."""
        return Wait(lambda scope: operations.sleep_for(scope, delay), is_timer=True)

    def event(self, name: str, type: Any = ANY) -> Wait:
        """The next event with that name, for `gather` and `first`."""
        _check_event(name)
        return Wait(lambda scope: operations.wait_for(scope, name, type, None))

    def log(self, text: str, *, level: str = "info") -> None:
        """Store a log line with the job, once: nothing while the run replays its records."""
        check_line(text, level)
        if not self.replaying:
            self._run.running.say(level, text)

    def _report(self, value: float, note: str | None) -> None:
        checked = check_progress(value, note)
        self._scope.check()
        if not self.replaying:
            self._run.running.progress(checked, note)

    def _request(
        self, text: str, options: Sequence[str], schema: Any, to: str | None, self_approval: bool
    ) -> Request:
        if isinstance(options, str) or not options or not all(isinstance(o, str) for o in options):
            raise InvalidOption("options", f"give a list of words, not {options!r}")
        return Request(text, tuple(options), schema, to, self_approval)


class WorkflowCtx(_Context):
    """The context of a workflow. What its methods do happens once, and is recorded.

    The function runs again from the top whenever the run continues; each of these calls then
    returns its record. Other code that has effects, or whose result may differ, belongs in a step.
    """

    def _do(self, operation: Op[T]) -> T:
        with self._scope.operating():
            return drive(operation)

    def step(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation, an action or a workflow, once, and return its result.

        A mutation commits together with its record, exactly once. An action runs at most once, or
        as its `retry` says. With options that only a job can have, such as another queue, it runs
        as a child job. Raises StepFailed if it failed permanently.
        """
        result: R = self._do(operations.step(self._scope, function, args, kwargs))
        return result

    def sleep(self, delay: Delay) -> None:
        """Wait for a time, in seconds or as a timedelta, without occupying a worker."""
        self._do(operations.sleep_for(self._scope, delay))

    def sleep_until(self, when: Instant) -> None:
        """Wait until an aware datetime, or milliseconds since 1970 UTC."""
        self._do(operations.sleep_until(self._scope, when))

    @overload
    def wait_for(
        self, name: str, *, timeout: Delay | None = None, default: Any = NO_DEFAULT
    ) -> Any: ...

    @overload
    def wait_for(
        self, name: str, type: type[T], *, timeout: Delay | None = None, default: Any = NO_DEFAULT
    ) -> T: ...

    def wait_for(
        self,
        name: str,
        type: Any = ANY,
        *,
        timeout: Delay | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Wait for the next event with this name, and return its payload.

        Events that were sent before the run waits for them are kept, in order. After `timeout`,
        return `default` or, without one, raise WaitTimeout.
        """
        _check_event(name)
        return self._do(operations.wait_for(self._scope, name, type, timeout, default))

    def wait(self, job: Job[R], *, timeout: Delay | None = None) -> R:
        """Wait for the end of a job, and return its result.

        Raises StepFailed if the job failed or was canceled, and WaitTimeout after `timeout`.
        """
        result: R = self._do(operations.wait(self._scope, job.id, decoder_of(job), timeout))
        return result

    def approval(
        self,
        text: str,
        *,
        name: str = "approval",
        options: Sequence[str] = YES_OR_NO,
        schema: Any = None,
        to: str | None = None,
        timeout: Delay | None = None,
        self_approval: bool = True,
    ) -> Decision:
        """Wait for a person's decision, which is true if the first option was chosen.

        `name`: for `app.approve`. `schema`: a JSON Schema that describes the data of the answer.
        `to`: who is asked. After `timeout` the decision is not approved, and `timed_out`.
        `self_approval=False`: the actor who started the run may not decide.
        """
        check_text("name", name)
        request = self._request(text, options, schema, to, self_approval)
        return self._do(operations.approval(self._scope, name, request, timeout))

    def now(self) -> datetime:
        """Return the current time, the same whenever the run continues."""
        return self._do(operations.now(self._scope))

    def gather(
        self,
        *what: Call[Any] | Job[Any] | Wait | Branch,
        limit: int | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Any]:
        """Wait until all of these have ended, and return their results in this order.

        Calls are steps, which run one after the other here; jobs run on all workers. `limit`: how
        many may be started and unfinished at a time. `errors="return"`: failures are returned in
        the list, instead of the first one being raised.
        """
        return self._do(operations.gather(self._scope, what, limit, errors))

    def first(self, *what: Call[Any] | Job[Any] | Wait | Branch) -> tuple[int, Any]:
        """Wait until one of these has ended; return its index and its value.

        Jobs of this run that have lost are canceled.
        """
        return self._do(operations.first(self._scope, what))

    def branch(
        self, code: Callable[Concatenate[WorkflowCtx, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Branch:
        """A function with its own context, for `gather` and `first`."""
        run = self._run
        return Branch(lambda scope: code(WorkflowCtx(run, scope), *args, **kwargs))

    def run(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a job, once, that runs as soon as a worker is free."""
        return self._enqueued(function, args, kwargs, None)

    def run_after(
        self, delay: Delay, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]:
        """Enqueue a job, once, that runs after a delay."""
        return self._enqueued(function, args, kwargs, partial(after, delay))

    def run_at(
        self, when: Instant, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]:
        """Enqueue a job, once, that runs at an instant."""
        return self._enqueued(function, args, kwargs, partial(at, when))

    def run_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Enqueue many jobs, once, all or none."""
        given = operations.admitted(self._run, list(calls))
        bound, done = self._do(operations.enqueue(self._scope, "run_many", given))
        return self._handles(bound, done)

    def batch(
        self, calls: Iterable[Call[Any]], *, on_complete: Function[..., Any] | None = None
    ) -> Batch:
        """Enqueue many jobs, once, as a batch; see `app.batch`."""
        given = operations.admitted(self._run, list(calls))
        bound, done = self._do(
            operations.enqueue(self._scope, "batch", given, on_complete=on_complete, is_batch=True)
        )
        existing = [job for job in self._handles(bound, done) if job.existed]
        return Batch(self._run.core, done.batch_id or "", unseen=False, existing=existing)

    def cancel(self, job: Job[Any] | str) -> bool:
        """Cancel a job, once; False if it had finished already."""
        return self._do(operations.cancel(self._scope, id_of(job)))

    def send(
        self, job: Job[Any] | str, name: str, payload: Any = None, *, once: str | None = None
    ) -> None:
        """Send an event, once, to another run."""
        self._do(_send(self._scope, id_of(job), name, payload, once))

    def progress(self, value: float, note: str | None = None) -> None:
        """Report how far the run is, from 0 to 1; nothing while it replays its records."""
        self._report(value, note)

    def _enqueued(
        self,
        function: Function[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        due: Callable[[int], int] | None,
    ) -> Job[Any]:
        calls = operations.bound_call(self._run, function, args, kwargs)
        bound, done = self._do(operations.enqueue(self._scope, function.name, calls, due))
        return self._handles(bound, done)[0]

    def _handles(self, calls: Sequence[Call[Any]], done: Enqueued) -> list[Job[Any]]:
        core = self._run.core
        return [
            Job(core, job_id, call.function.signature.decode_result, core.get, existed=existed)
            for call, job_id, existed in zip(calls, done.ids, done.existed, strict=True)
        ]


class AsyncWorkflowCtx(_Context):
    """The context of an async workflow: as `WorkflowCtx`, with coroutines."""

    async def _do(self, operation: Op[T]) -> T:
        with self._scope.operating():
            try:
                return await drive_async(self._run.core, operation)
            except asyncio.CancelledError:
                held = hold_if_canceled(self._run, self._scope)
                if held is None:
                    raise
                raise held from None

    async def step(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation or an action, once, and return its result; see WorkflowCtx.step."""
        result: R = await self._do(operations.step(self._scope, function, args, kwargs))
        return result

    async def sleep(self, delay: Delay) -> None:
        """Wait for a time, in seconds or as a timedelta, without occupying a worker."""
        await self._do(operations.sleep_for(self._scope, delay))

    async def sleep_until(self, when: Instant) -> None:
        """Wait until an aware datetime, or milliseconds since 1970 UTC."""
        await self._do(operations.sleep_until(self._scope, when))

    @overload
    async def wait_for(
        self, name: str, *, timeout: Delay | None = None, default: Any = NO_DEFAULT
    ) -> Any: ...

    @overload
    async def wait_for(
        self, name: str, type: type[T], *, timeout: Delay | None = None, default: Any = NO_DEFAULT
    ) -> T: ...

    async def wait_for(
        self,
        name: str,
        type: Any = ANY,
        *,
        timeout: Delay | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """Wait for an event, and return its payload; see WorkflowCtx.wait_for."""
        _check_event(name)
        return await self._do(operations.wait_for(self._scope, name, type, timeout, default))

    async def wait(self, job: AsyncJob[R] | Job[R], *, timeout: Delay | None = None) -> R:
        """Wait for the end of a job, and return its result.

        Raises StepFailed if the job failed or was canceled, and WaitTimeout after `timeout`.
        """
        result: R = await self._do(operations.wait(self._scope, job.id, decoder_of(job), timeout))
        return result

    async def approval(
        self,
        text: str,
        *,
        name: str = "approval",
        options: Sequence[str] = YES_OR_NO,
        schema: Any = None,
        to: str | None = None,
        timeout: Delay | None = None,
        self_approval: bool = True,
    ) -> Decision:
        """Wait for a person's decision; see WorkflowCtx.approval."""
        check_text("name", name)
        request = self._request(text, options, schema, to, self_approval)
        return await self._do(operations.approval(self._scope, name, request, timeout))

    async def now(self) -> datetime:
        """Return the current time, the same whenever the run continues."""
        return await self._do(operations.now(self._scope))

    async def gather(
        self,
        *what: Call[Any] | AsyncJob[Any] | Wait | Branch,
        limit: int | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Any]:
        """Wait until all of these have ended; calls and branches run side by side.

        See WorkflowCtx.gather.
        """
        return await self._do(operations.gather(self._scope, what, limit, errors))

    async def first(self, *what: Call[Any] | AsyncJob[Any] | Wait | Branch) -> tuple[int, Any]:
        """Wait until one of these has ended; return its index and its value.

        See WorkflowCtx.first.
        """
        return await self._do(operations.first(self._scope, what))

    def branch(
        self,
        code: Callable[Concatenate[AsyncWorkflowCtx, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Branch:
        """An async function with its own context, for `gather` and `first`."""
        run = self._run
        return Branch(lambda scope: code(AsyncWorkflowCtx(run, scope), *args, **kwargs))

    async def run(
        self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Enqueue a job, once, that runs as soon as a worker is free."""
        return await self._enqueued(function, args, kwargs, None)

    async def run_after(
        self, delay: Delay, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Enqueue a job, once, that runs after a delay."""
        return await self._enqueued(function, args, kwargs, partial(after, delay))

    async def run_at(
        self, when: Instant, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Enqueue a job, once, that runs at an instant."""
        return await self._enqueued(function, args, kwargs, partial(at, when))

    async def run_many(self, calls: Iterable[Call[R]]) -> list[AsyncJob[R]]:
        """Enqueue many jobs, once, all or none."""
        given = operations.admitted(self._run, list(calls))
        bound, done = await self._do(operations.enqueue(self._scope, "run_many", given))
        return self._handles(bound, done)

    async def batch(
        self, calls: Iterable[Call[Any]], *, on_complete: Function[..., Any] | None = None
    ) -> AsyncBatch:
        """Enqueue many jobs, once, as a batch; see `app.batch`."""
        given = operations.admitted(self._run, list(calls))
        bound, done = await self._do(
            operations.enqueue(self._scope, "batch", given, on_complete=on_complete, is_batch=True)
        )
        existing = [job for job in self._handles(bound, done) if job.existed]
        return AsyncBatch(self._run.core, done.batch_id or "", unseen=False, existing=existing)

    async def cancel(self, job: AsyncJob[Any] | Job[Any] | str) -> bool:
        """Cancel a job, once; False if it had finished already."""
        return await self._do(operations.cancel(self._scope, id_of(job)))

    async def send(
        self,
        job: AsyncJob[Any] | Job[Any] | str,
        name: str,
        payload: Any = None,
        *,
        once: str | None = None,
    ) -> None:
        """Send an event, once, to another run."""
        await self._do(_send(self._scope, id_of(job), name, payload, once))

    async def progress(self, value: float, note: str | None = None) -> None:
        """Report how far the run is, from 0 to 1; nothing while it replays its records."""
        self._report(value, note)

    async def _enqueued(
        self,
        function: Function[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        due: Callable[[int], int] | None,
    ) -> AsyncJob[Any]:
        calls = operations.bound_call(self._run, function, args, kwargs)
        bound, done = await self._do(operations.enqueue(self._scope, function.name, calls, due))
        return self._handles(bound, done)[0]

    def _handles(self, calls: Sequence[Call[Any]], done: Enqueued) -> list[AsyncJob[Any]]:
        core = self._run.core

        async def read(job_id: str) -> Any:
            return await core.threads.look(partial(core.get, job_id))

        return [
            AsyncJob(core, job_id, call.function.signature.decode_result, read, existed=existed)
            for call, job_id, existed in zip(calls, done.ids, done.existed, strict=True)
        ]


def _send(scope: Scope, job_id: str, name: str, payload: Any, once: str | None) -> Op[None]:
    return operations.send(scope, job_id, name, payload, once)


def _check_event(name: str) -> None:
    check_text("name", name)
