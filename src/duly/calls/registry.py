"""Registers functions: `@app.action`, `@app.mutation`, and the same on a `Group`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, Unpack, overload

from duly.calls.kinds import (
    Action,
    ActionBody,
    AsyncAction,
    AsyncActionBody,
    AsyncMutation,
    AsyncMutationBody,
    AsyncPlainAction,
    AsyncPlainBody,
    AsyncWorkflow,
    AsyncWorkflowBody,
    Mutation,
    MutationBody,
    PlainAction,
    PlainBody,
    Workflow,
    WorkflowBody,
)
from duly.errors import InvalidOption
from duly.functions.around import W, Wrapper, add_wrapper, wrapper_of
from duly.functions.checks import check_context, check_def, check_text, name_of, takes_context
from duly.functions.function import Function, P, R
from duly.functions.hooks import H, HookList, check_hook
from duly.functions.options import (
    ActionOptions,
    MutationOptions,
    WorkflowOptions,
    decorated,
    refuse_unknown,
)
from duly.model.attempt import Hook
from duly.model.job import State

F = TypeVar("F", bound=Function[..., Any])
MUTATIONS: dict[bool, type[Function[..., Any]]] = {False: Mutation, True: AsyncMutation}
"""The kinds of mutations, by whether they are async."""
ACTIONS: dict[tuple[bool, bool], type[Function[..., Any]]] = {
    (False, True): Action,
    (True, True): AsyncAction,
    (False, False): PlainAction,
    (True, False): AsyncPlainAction,
}
"""The kinds of actions, by whether they are async and have a context parameter."""
WORKFLOWS: dict[bool, type[Function[..., Any]]] = {False: Workflow, True: AsyncWorkflow}
"""The kinds of workflows, by whether they are async."""
WORKFLOW_NOT_RETRIED = (
    "a recorded failure would fail again; give the option to the functions that are its steps"
)
MUTATION_NOT_ISOLATED = (
    "a mutation runs in its worker's transaction; isolate an action instead, and use ctx.call"
)


class Registry(ABC):
    """The decorators that register functions."""

    @abstractmethod
    def _register(self, function: F) -> F:
        """Add a new function."""

    def _full_name(self, name: str) -> str:
        return name

    @abstractmethod
    def _wrap(self, wrapper: Wrapper) -> None:
        """Add a wrapper."""

    def around(self, wrapper: W, /) -> W:
        """Wrap each job's body in a function with one `yield`. The body runs at the `yield`.

        It receives the job's context, and the annotation says which functions it wraps: `tx: Tx`
        mutations, `ctx: Ctx` sync actions, `ctx: AsyncCtx` async ones, a union several, and none
        all. An `async def` wraps only async functions. The first one that is declared is the
        outermost.
        """
        self._wrap(wrapper_of(wrapper))
        return wrapper

    @abstractmethod
    def _hook(self, state: State, hook: Hook) -> None:
        """Add a hook."""

    def on_start(self, hook: H, /) -> H:
        """Call a function with an `AttemptInfo` when the body of a job starts.

        Hooks are called one after the other in their own thread, after the fact: they can neither
        delay nor change the outcome of a job, and their exceptions are only logged.
        """
        return self._hooked(State.RUNNING, hook)

    def on_success(self, hook: H, /) -> H:
        """Call a function with an `AttemptInfo` once the success of a job is stored."""
        return self._hooked(State.SUCCEEDED, hook)

    def on_failure(self, hook: H, /) -> H:
        """Call a function with an `AttemptInfo` once it is stored that a job failed permanently."""
        return self._hooked(State.FAILED, hook)

    def on_retry(self, hook: H, /) -> H:
        """Call a function with an `AttemptInfo` once it is stored that a job will run again."""
        return self._hooked(State.PENDING, hook)

    def _hooked(self, state: State, hook: H) -> H:
        self._hook(state, check_hook(state, hook))
        return hook

    @overload
    def mutation(self, body: AsyncMutationBody[P, R], /) -> AsyncMutation[P, R]: ...

    @overload
    def mutation(self, body: MutationBody[P, R], /) -> Mutation[P, R]: ...

    @overload
    def mutation(self, /, **options: Unpack[MutationOptions]) -> MutationDecorator: ...

    def mutation(self, body: Any = None, /, **options: Any) -> Any:
        """Register a function that runs as one database transaction, exactly once.

        Its first parameter is the transaction: `tx: Tx` or, for an `async def`, `tx: AsyncTx`.
        `aliases`: earlier names of the function; jobs stored under them run it. `internal`: only
        code can call it. `retry_on`: exceptions to retry after; default: all.
        `on_complete`: a function that is called with `job_id` when the job has ended.
        `unique`, `debounce`: when a call returns an existing job instead of storing a new one.
        `limit`: how many run at once, or start in a period.
        `alone`: never share a commit with other jobs; the default for an `async def`. `group`:
        share a commit with other jobs, even on PostgreSQL or if it is an `async def`; only for
        bodies that do not insert or update the same rows.
        """
        if options.pop("isolate", None) is not None:
            raise InvalidOption("isolate", MUTATION_NOT_ISOLATED)
        refuse_unknown("mutation", options, MutationOptions)
        job_options, traits = decorated(options)

        def register(body: Any) -> Function[..., Any]:
            checked = check_def(body, "app.mutation")
            is_async = inspect.iscoroutinefunction(checked)
            check_context(checked, "AsyncTx" if is_async else "Tx", "app.mutation")
            full_name = self._full_name(name_of(checked, options.get("name")))
            return self._register(MUTATIONS[is_async](checked, full_name, job_options, traits))

        return register if body is None else register(body)

    # The first overload that fits counts: a plain body fits any function.
    @overload
    def action(  # type: ignore[overload-overlap]
        self,
        body: AsyncActionBody[P, R],  # pyright: ignore[reportOverlappingOverload]
        /,
    ) -> AsyncAction[P, R]: ...

    @overload
    def action(self, body: ActionBody[P, R], /) -> Action[P, R]: ...

    @overload
    def action(  # type: ignore[overload-overlap]
        self, body: AsyncPlainBody[P, R], /
    ) -> AsyncPlainAction[P, R]: ...

    @overload
    def action(self, body: PlainBody[P, R], /) -> PlainAction[P, R]: ...

    @overload
    def action(self, /, **options: Unpack[ActionOptions]) -> ActionDecorator: ...

    def action(self, body: Any = None, /, **options: Any) -> Any:
        """Register a function with side effects, run at most once unless `retry` is given.

        Its first parameter can be the context, `ctx: Ctx` or, for an `async def`, `ctx: AsyncCtx`.
        `aliases`: earlier names of the function; jobs stored under them run it. `internal`: only
        code can call it. `retry_on`: exceptions to retry after; default: all.
        `on_complete`: a function that is called with `job_id` when the job has ended.
        `unique`, `debounce`: when a call returns an existing job instead of storing a new one.
        `limit`: how many run at once, or start in a period.
        `isolate="process"`: run each job in a separate process, which can be killed.
        """
        refuse_unknown("action", options, ActionOptions)
        job_options, traits = decorated(options)

        def register(body: Any) -> Function[..., Any]:
            checked = check_def(body, "app.action")
            is_async = inspect.iscoroutinefunction(checked)
            with_context = takes_context(checked, "AsyncCtx" if is_async else "Ctx", "app.action")
            kind = ACTIONS[is_async, with_context]
            full_name = self._full_name(name_of(checked, options.get("name")))
            return self._register(kind(checked, full_name, job_options, traits))

        return register if body is None else register(body)

    @overload
    def workflow(self, body: AsyncWorkflowBody[P, R], /) -> AsyncWorkflow[P, R]: ...

    @overload
    def workflow(self, body: WorkflowBody[P, R], /) -> Workflow[P, R]: ...

    @overload
    def workflow(self, /, **options: Unpack[WorkflowOptions]) -> WorkflowDecorator: ...

    def workflow(self, body: Any = None, /, **options: Any) -> Any:
        """Register a function of durable steps, which continues after waits, crashes and deploys.

        Its first parameter is `ctx: WorkflowCtx` or, for an `async def`, `ctx: AsyncWorkflowCtx`.
        `events`: the events that it reads, by name, and the types of their payloads; senders are
        refused others. `raises`: exceptions that fail the run, apart from StepFailed, WaitTimeout
        and Fail; any other one is a mistake in the code, and the run is held until the code has
        changed. `timeout`: for the whole run from its start, waits included.
        """
        refuse_unknown("workflow", options, WorkflowOptions)
        for option in ("retry", "retry_on"):
            if options.get(option):
                raise InvalidOption(option, WORKFLOW_NOT_RETRIED)
        job_options, traits = decorated(options)

        def register(body: Any) -> Function[..., Any]:
            checked = check_def(body, "app.workflow")
            is_async = inspect.iscoroutinefunction(checked)
            context = "AsyncWorkflowCtx" if is_async else "WorkflowCtx"
            check_context(checked, context, "app.workflow")
            full_name = self._full_name(name_of(checked, options.get("name")))
            return self._register(WORKFLOWS[is_async](checked, full_name, job_options, traits))

        return register if body is None else register(body)


class WorkflowDecorator(Protocol):
    """The type of `@app.workflow(...)`, which tells sync and async bodies apart."""

    @overload
    def __call__(self, body: AsyncWorkflowBody[P, R], /) -> AsyncWorkflow[P, R]: ...

    @overload
    def __call__(self, body: WorkflowBody[P, R], /) -> Workflow[P, R]: ...


class MutationDecorator(Protocol):
    """The type of `@app.mutation(...)`, which tells sync and async bodies apart."""

    @overload
    def __call__(self, body: AsyncMutationBody[P, R], /) -> AsyncMutation[P, R]: ...

    @overload
    def __call__(self, body: MutationBody[P, R], /) -> Mutation[P, R]: ...


class ActionDecorator(Protocol):
    """The type of `@app.action(...)`, which tells sync and async bodies apart for type checkers."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        body: AsyncActionBody[P, R],  # pyright: ignore[reportOverlappingOverload]
        /,
    ) -> AsyncAction[P, R]: ...

    @overload
    def __call__(self, body: ActionBody[P, R], /) -> Action[P, R]: ...

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, body: AsyncPlainBody[P, R], /
    ) -> AsyncPlainAction[P, R]: ...

    @overload
    def __call__(self, body: PlainBody[P, R], /) -> PlainAction[P, R]: ...


class Group(Registry):
    """Functions of a module that does not import the app; `app.include(group)` adds them to it.

    A function `send` of `Group("billing")` is called `billing.send`.
    """

    def __init__(self, name: str) -> None:
        check_text("name", name)
        if "." in name:
            raise InvalidOption("name", f"the name of a group cannot contain a dot: {name!r}")
        self.name = name
        self._functions: list[Function[..., Any]] = []
        self._wrappers: list[Wrapper] = []
        self._hooks = HookList()
        self._includers: list[Callable[[Function[..., Any]], object]] = []

    def __repr__(self) -> str:
        return f"<group {self.name!r} with {len(self._functions)} functions>"

    def _full_name(self, name: str) -> str:
        return f"{self.name}.{name}"

    def _register(self, function: F) -> F:
        function.wrappers, function.hooks = self._wrappers, self._hooks
        for include in self._includers:
            include(function)
        self._functions.append(function)
        return function

    def _wrap(self, wrapper: Wrapper) -> None:
        add_wrapper(self._wrappers, wrapper)
        self._include_again()

    def _hook(self, state: State, hook: Hook) -> None:
        self._hooks.add(state, hook)
        self._include_again()

    def _include_again(self) -> None:
        for include in self._includers:
            for function in self._functions:
                include(function)

    def join(self, include: Callable[[Function[..., Any]], object]) -> None:
        """Pass on every function, including those registered later."""
        for function in self._functions:
            include(function)
        if include not in self._includers:
            self._includers.append(include)
