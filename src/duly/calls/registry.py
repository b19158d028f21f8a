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
    Mutation,
    MutationBody,
)
from duly.errors import InvalidFunction, InvalidOption
from duly.functions.checks import check_body, check_text, name_of
from duly.functions.function import Function, P, R
from duly.functions.options import ActionOptions, MutationOptions, decorated, refuse_unknown

F = TypeVar("F", bound=Function[..., Any])
MUTATION_NOT_ISOLATED = (
    "a mutation runs in its worker's transaction; isolate an action, and use ctx.call"
)


class Registry(ABC):
    """The decorators."""

    @abstractmethod
    def _register(self, function: F) -> F:
        """Take in a new function."""

    def _full_name(self, name: str) -> str:
        return name

    @overload
    def mutation(self, body: MutationBody[P, R], /) -> Mutation[P, R]: ...

    @overload
    def mutation(
        self, /, **options: Unpack[MutationOptions]
    ) -> Callable[[MutationBody[P, R]], Mutation[P, R]]: ...

    def mutation(
        self, body: MutationBody[P, R] | None = None, /, **options: Any
    ) -> Mutation[P, R] | Callable[[MutationBody[P, R]], Mutation[P, R]]:
        """Register a function that is one database transaction, run exactly once.

        `aliases`: names it had before; jobs stored under them run it. `internal`: only code may
        call it. `retry_on`: exceptions that are worth another attempt; any, if none are given.
        `on_complete`: a function that is called with `job_id` when the job has ended.
        `unique`, `debounce`: when a call is stored as no other job. `limit`: how many run at once.
        `alone`: never share a commit with others. `group`: on PostgreSQL, do share one;
        only for bodies that insert and do not update common rows.
        """
        if options.pop("isolate", None) is not None:
            raise InvalidOption("isolate", MUTATION_NOT_ISOLATED)
        refuse_unknown("mutation", options, MutationOptions)
        job_options, traits = decorated(options)

        def register(body: MutationBody[P, R]) -> Mutation[P, R]:
            checked = check_body(body, "Tx", "app.mutation")
            if inspect.iscoroutinefunction(checked):
                raise InvalidFunction(
                    f"{checked.__qualname__}: a mutation is a plain def; use @app.action for async"
                )
            full_name = self._full_name(name_of(checked, options.get("name")))
            return self._register(Mutation(checked, full_name, job_options, traits))

        return register if body is None else register(body)

    @overload
    def action(self, body: AsyncActionBody[P, R], /) -> AsyncAction[P, R]: ...

    @overload
    def action(self, body: ActionBody[P, R], /) -> Action[P, R]: ...

    @overload
    def action(self, /, **options: Unpack[ActionOptions]) -> ActionDecorator: ...

    def action(self, body: Any = None, /, **options: Any) -> Any:
        """Register a function with side effects, run at most once unless `retry` is given.

        `aliases`: names it had before; jobs stored under them run it. `internal`: only code may
        call it. `retry_on`: exceptions that are worth another attempt; any, if none are given.
        `on_complete`: a function that is called with `job_id` when the job has ended.
        `unique`, `debounce`: when a call is stored as no other job. `limit`: how many run at once.
        `isolate="process"`: run every job in a process of its own, which can be stopped.
        """
        refuse_unknown("action", options, ActionOptions)
        job_options, traits = decorated(options)

        def register(body: Any) -> Function[..., Any]:
            is_async = inspect.iscoroutinefunction(body)
            kind = AsyncAction[..., Any] if is_async else Action[..., Any]
            checked = check_body(body, "AsyncCtx" if is_async else "Ctx", "app.action")
            full_name = self._full_name(name_of(checked, options.get("name")))
            return self._register(kind(checked, full_name, job_options, traits))

        return register if body is None else register(body)


class ActionDecorator(Protocol):
    """What `@app.action(...)` gives: it keeps sync and async bodies apart for type checkers."""

    @overload
    def __call__(self, body: AsyncActionBody[P, R], /) -> AsyncAction[P, R]: ...

    @overload
    def __call__(self, body: ActionBody[P, R], /) -> Action[P, R]: ...


class Group(Registry):
    """Functions of a module that does not know the app: `app.include(group)` brings them in.

    A function `send` of `Group("billing")` is called `billing.send`.
    """

    def __init__(self, name: str) -> None:
        check_text("name", name)
        if "." in name:
            raise InvalidOption("name", f"the name of a group has no dot: {name!r}")
        self.name = name
        self._functions: list[Function[..., Any]] = []
        self._includers: list[Callable[[Function[..., Any]], object]] = []

    def __repr__(self) -> str:
        return f"<group {self.name!r} with {len(self._functions)} functions>"

    def _full_name(self, name: str) -> str:
        return f"{self.name}.{name}"

    def _register(self, function: F) -> F:
        for include in self._includers:
            include(function)
        self._functions.append(function)
        return function

    def join(self, include: Callable[[Function[..., Any]], object]) -> None:
        """Hand over every function, also those that come later."""
        for function in self._functions:
            include(function)
        if include not in self._includers:
            self._includers.append(include)
