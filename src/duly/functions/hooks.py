"""Hooks, which are called for every attempt: `@app.on_start`, `@app.on_failure` and so on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar, cast

from duly.errors import InvalidFunction
from duly.functions.around import replace_or_add
from duly.functions.function import Function
from duly.model.attempt import AttemptInfo, Hook, Hooks
from duly.model.job import State

H = TypeVar("H", bound=Callable[[AttemptInfo], object])

WORDS = {
    State.RUNNING: "on_start",
    State.SUCCEEDED: "on_success",
    State.FAILED: "on_failure",
    State.PENDING: "on_retry",
}
"""The decorators, by the state that the job enters."""


class HookList:
    """The hooks of an app or of a group, in the order of their declaration."""

    def __init__(self) -> None:
        self._by_state: dict[State, list[Hook]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_state)

    def add(self, state: State, hook: Hook) -> None:
        """Add a hook. When a notebook cell runs again, it replaces the old one."""
        replace_or_add(self._by_state.setdefault(state, []), hook, lambda known: known)

    def of(self, state: State) -> tuple[Hook, ...]:
        return tuple(self._by_state.get(state, ()))


def hooks_of(function: Function[..., object], of_app: HookList | None) -> Hooks:
    """The hooks of a function: those of the app, then those of its group."""
    lists = [each for each in (of_app, function.hooks) if each]
    found = {state: tuple(hook for each in lists for hook in each.of(state)) for state in WORDS}
    return {state: hooks for state, hooks in found.items() if hooks}


def check_hook(state: State, hook: object) -> Hook:
    """Check what is declared as a hook, and say what to write instead."""
    word = WORDS[state]
    if isinstance(hook, Function):
        raise InvalidFunction(
            f"@app.{word} takes a plain function, not {hook!r}; to enqueue a job when a job of one "
            "function has ended, use on_complete="
        )
    if not callable(hook):
        raise InvalidFunction(f"@app.{word} takes a function, not {hook!r}")
    if inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook):
        raise InvalidFunction(
            f"{_name(hook)}: a function under @app.{word} is a plain def: hooks run in a thread "
            "without an event loop; use asyncio.run inside it, or enqueue an async action"
        )
    if inspect.isgeneratorfunction(hook):
        raise InvalidFunction(
            f"{_name(hook)}: a function under @app.{word} has no `yield`; use @app.around to run "
            "code before and after each job"
        )
    _check_parameters(word, hook)
    return cast("Hook", hook)


def _check_parameters(word: str, hook: Callable[..., object]) -> None:
    try:
        signature = inspect.signature(hook)
    except ValueError:
        return  # some functions of C have none
    try:
        signature.bind(None)
    except TypeError:
        raise InvalidFunction(
            f"{_name(hook)}: a function under @app.{word} is called with one argument, an "
            "AttemptInfo"
        ) from None


def _name(hook: Callable[..., object]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
