"""Context managers around the body of each job: `@app.around`."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator, MutableSequence, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

from duly.errors import InvalidFunction
from duly.functions.checks import CONTEXTS
from duly.functions.function import Function
from duly.model.job import Kind

T = TypeVar("T")
W = TypeVar("W", bound=Callable[[Any], Iterator[Any] | AsyncIterator[Any]])

_CONTEXT = re.compile(rf"\b(?:{'|'.join(CONTEXTS)})\b")
_ANY = {"Any", "object"}


class Wrapper(NamedTuple):
    """A generator function whose single `yield` is replaced by the body of a job."""

    function: Callable[..., Any]
    is_async: bool
    open: Callable[..., Any]
    """Returns the context manager."""
    contexts: frozenset[str]
    """The contexts of the bodies that it wraps."""


def wrapper_of(function: object) -> Wrapper:
    """Check a function under `@app.around`, and say what to write instead."""
    if inspect.isgeneratorfunction(function):
        is_async = False
    elif inspect.isasyncgenfunction(function):
        is_async = True
    else:
        raise InvalidFunction(
            f"@app.around takes a function with one `yield`, not {function!r}; write `def` or "
            "`async def`, with `yield` in place of the body, and without @contextmanager"
        )
    to_manager: Any = asynccontextmanager if is_async else contextmanager
    return Wrapper(function, is_async, to_manager(function), _contexts(function, is_async))


def _contexts(function: Callable[..., Any], is_async: bool) -> frozenset[str]:
    name = function.__qualname__
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1:
        raise InvalidFunction(
            f"{name}: a function under @app.around has one parameter, the context; "
            f"this one has {len(parameters)}"
        )
    annotation = parameters[0].annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None)
    # A union has no name, and shows its members.
    text = str(annotation) if text is None else text
    found = frozenset(_CONTEXT.findall(text))
    if annotation is inspect.Parameter.empty or text.rpartition(".")[2] in _ANY:
        found = frozenset(CONTEXTS)
    if not found:
        raise InvalidFunction(
            f"{name}: annotate the parameter of a function under @app.around with the contexts "
            f"that it wraps: {', '.join(CONTEXTS)} or a union of them, not {text}"
        )
    if is_async and (sync := {context for context in found if not context.startswith("Async")}):
        raise InvalidFunction(
            f"{name}: an async function under @app.around can only wrap async functions; annotate "
            f"its parameter with `AsyncTx` or `AsyncCtx`, without {', '.join(sorted(sync))}"
        )
    return found


def add_wrapper(wrappers: MutableSequence[Wrapper], new: Wrapper) -> None:
    """Add a wrapper inside all others. When a notebook cell runs again, it replaces the old one."""
    replace_or_add(wrappers, new, lambda wrapper: wrapper.function)


def replace_or_add(known: MutableSequence[T], new: T, function_of: Callable[[T], Any]) -> None:
    """Replace an earlier version of the same function in a module; otherwise add the new one."""
    function = function_of(new)
    # Local functions and lambdas may have the same name without being the same.
    if inspect.isfunction(function) and "<" not in function.__qualname__:
        for index, each in enumerate(known):
            if _place(function_of(each)) == _place(function):
                known[index] = new
                return
    known.append(new)


def _place(function: Any) -> tuple[Any, Any]:
    return getattr(function, "__module__", None), getattr(function, "__qualname__", None)


def body_of(function: Function[..., Any], wrappers: Sequence[Wrapper]) -> Callable[..., Any]:
    """The body of any function as duly calls it, `run(context, **arguments)`, with its wrappers.

    For an async function it returns a coroutine.
    """
    body = function.body if function.takes_context else _without_context(function.body)
    if function.kind == Kind.WORKFLOW:
        # It runs many times; its steps have their own wrappers.
        return function.body
    kind = "Tx" if function.kind == Kind.MUTATION else "Ctx"
    context = f"Async{kind}" if function.is_async else kind
    chosen = [w for w in (*wrappers, *function.wrappers) if context in w.contexts]
    if not chosen:
        return body
    return _async_inside(chosen, body) if function.is_async else _inside(chosen, body)


def _without_context(body: Callable[..., Any]) -> Callable[..., Any]:
    def run(_: object, /, **arguments: Any) -> Any:
        return body(**arguments)

    return run


def _inside(wrappers: Sequence[Wrapper], body: Callable[..., Any]) -> Callable[..., Any]:
    def run(context: object, /, **arguments: Any) -> Any:
        with ExitStack() as stack:
            for wrapper in wrappers:
                stack.enter_context(wrapper.open(context))
            return body(context, **arguments)
        # Here if a wrapper has caught the exception, as if the body had done so.
        return None

    return run


def _async_inside(wrappers: Sequence[Wrapper], body: Callable[..., Any]) -> Callable[..., Any]:
    async def run(context: object, /, **arguments: Any) -> Any:
        async with AsyncExitStack() as stack:
            for wrapper in wrappers:
                if wrapper.is_async:
                    await stack.enter_async_context(wrapper.open(context))
                else:
                    stack.enter_context(wrapper.open(context))
            return await body(context, **arguments)
        return None

    return run
