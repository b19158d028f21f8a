"""Checks which callables can be registered, and which names are valid."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from duly.errors import InvalidFunction, InvalidOption
from duly.ids import is_id, new_id
from duly.model import strict_json

MAX_NAME = 200
CONTEXTS = {"Tx": "tx", "AsyncTx": "tx", "Ctx": "ctx", "AsyncCtx": "ctx"}
"""The contexts, and what their parameters are usually called."""
ALL_CONTEXTS = CONTEXTS | {"WorkflowCtx": "ctx", "AsyncWorkflowCtx": "ctx"}
"""The same with those of workflows, which have no wrappers."""


def check_def(body: object, decorator: str) -> Callable[..., Any]:
    """Refuse anything that is not a def."""
    if not inspect.isfunction(body):
        raise InvalidFunction(
            f"@{decorator} takes a plain function, not {body!r}; write a def in a module"
        )
    if body.__name__ == "<lambda>":
        raise InvalidFunction(f"@{decorator} takes a named function; write a def, not a lambda")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidFunction(f"{body.__qualname__} is a generator; return a value instead")
    return body


def check_context(body: Callable[..., Any], context: str, decorator: str) -> None:
    """Refuse functions whose first parameter is not the context."""
    parameters = _parameters(body)
    if not parameters or _type_name(parameters[0]) != context:
        found = f"{parameters[0]}" if parameters else "no parameter"
        what = "an async def" if context.startswith("Async") else "a def"
        raise InvalidFunction(
            f"{body.__qualname__}: the first parameter of {what} under @{decorator} must be "
            f"`{ALL_CONTEXTS[context]}: {context}`, not {found}"
        )


def takes_context(body: Callable[..., Any], context: str, decorator: str) -> bool:
    """Whether the first parameter is the context. Refuse the context of another kind, or place."""
    parameters = _parameters(body)
    if parameters and _type_name(parameters[0]) == context:
        return True
    for parameter in parameters:
        unannotated = parameter.annotation is inspect.Parameter.empty
        is_named_so = unannotated and parameter.name in ALL_CONTEXTS.values()
        if _type_name(parameter) in ALL_CONTEXTS or (is_named_so and parameter is parameters[0]):
            what = "an async def" if context.startswith("Async") else "a def"
            raise InvalidFunction(
                f"{body.__qualname__}: {parameter} is not the context of {what} under "
                f"@{decorator}; make `{CONTEXTS[context]}: {context}` the first parameter, or "
                "take no context"
            )
    return False


def _parameters(body: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(body).parameters.values())


def _type_name(parameter: inspect.Parameter) -> str:
    """The last part of the annotation's name; annotations may be strings."""
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.strip("'\"").split(".")[-1]


def name_of(body: Callable[..., Any], name: str | None) -> str:
    chosen = body.__name__ if name is None else name
    check_text("name", chosen)
    return chosen


def check_text(option: str, value: object) -> None:
    """Refuse values that cannot be a name."""
    if not isinstance(value, str):
        raise InvalidOption(option, f"must be text, not {value!r}")
    if not value or len(value) > MAX_NAME or not value.isprintable():
        raise InvalidOption(option, f"must be 1 to {MAX_NAME} printable characters: {value!r}")


def check_stored_text(option: str, value: object, what: str) -> None:
    """Refuse text that a database cannot store; `what` says what to give instead."""
    if not isinstance(value, str):
        raise InvalidOption(option, f"must be text, not {value!r}", f"give {what}")
    if wrong := strict_json.fault(str(value)):
        raise InvalidOption(option, f"{wrong.reason}: {value!r}", f"give {what}")


def id_for(chosen: str | None, now: int) -> str:
    """The id of a new object: the one that the caller chose, or a new one."""
    check_id(chosen)
    return new_id(now) if chosen is None else chosen


def check_id(chosen: object) -> None:
    if chosen is not None and not (isinstance(chosen, str) and is_id(chosen)):
        raise InvalidOption("id", f"must be an id as duly generates them, not {chosen!r}")


def check_flag(option: str, value: object) -> None:
    if type(value) is not bool:
        raise InvalidOption(option, f"must be True or False, not {value!r}")


def check_queue(name: object) -> None:
    """Refuse values that cannot be the name of a queue."""
    check_text("queue", name)
    if name == "*":
        raise InvalidOption("queue", "'*' means everything, see app.pause(); give a name")


def words_of(option: str, words: Sequence[str]) -> tuple[str, ...]:
    """Normalize tags or aliases."""
    if isinstance(words, str):
        raise InvalidOption(option, "give a list of words, not one string")
    return tuple(words)
