"""`Function`: a registered callable, its options, and calls to it."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from duly.errors import InvalidOption
from duly.functions.options import (
    DEFAULT_TRAITS,
    CallOptions,
    Options,
    Traits,
    published_options,
    refuse_unknown,
)
from duly.model.function import Published
from duly.model.job import Kind
from duly.model.signature import Signature

if TYPE_CHECKING:
    from duly.store.table import Store

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Call(Generic[R_co]):
    """A function with its arguments, not yet enqueued: what `bind` returns."""

    __slots__ = ("args", "function")

    def __init__(self, function: Function[..., R_co], args: str) -> None:
        self.function: Function[..., R_co] = function
        self.args: str = args

    def __repr__(self) -> str:
        return f"<call of {self.function.name}>"


class Function(Generic[P, R_co]):
    """A registered function. Pass it to `run`, `run_after` or `run_at` to call it later."""

    kind: Kind
    takes_context = True
    """Whether the body's first parameter is the context."""

    def __init__(
        self,
        body: Callable[..., Any],
        name: str,
        options: Options,
        traits: Traits = DEFAULT_TRAITS,
        signature: Signature | None = None,
    ) -> None:
        self.body = body
        self.name = name
        self.options = options
        self.traits = traits
        self.wrappers: Sequence[Any] = ()
        """The wrappers of its group; see functions/around.py."""
        self.hooks: Any = None
        """The hooks of its group; see functions/hooks.py."""
        self.signature: Signature = signature or Signature(
            body, name, has_context=self.takes_context
        )
        hook = options.on_complete
        if hook is not None and not isinstance(hook, Function):
            raise InvalidOption("on_complete", f"must be a function of the app, not {hook!r}")
        if name in traits.aliases:
            raise InvalidOption("aliases", f"{name!r} is the function's own name")
        self.__name__, self.__qualname__ = body.__name__, body.__qualname__
        self.__module__, self.__doc__ = body.__module__, body.__doc__

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    @property
    def is_async(self) -> bool:
        """Whether the function is an `async def`."""
        return False

    @property
    def internal(self) -> bool:
        """Whether only code can call it, and not the HTTP API."""
        return self.traits.internal

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Bind arguments, which are checked now, to a call that can be enqueued later."""
        return Call(self, self.signature.encode(args, kwargs))

    def using(self, **options: Unpack[CallOptions]) -> Function[P, R_co]:
        """Return the same function with other options for the calls made through it.

        Options that are not given keep their value from the decorator; None removes an option.
        """
        refuse_unknown("using", options, CallOptions)
        return self._with(options)

    def _with(self, changes: Mapping[str, Any]) -> Function[P, R_co]:
        options = msgspec.structs.replace(self.options, **changes)
        changed = type(self)(self.body, self.name, options, self.traits, self.signature)
        changed.wrappers, changed.hooks = self.wrappers, self.hooks
        return changed

    def published(self, app: str) -> list[Published]:
        """How the function and each of its aliases are published."""
        schema = self.signature.schema_text
        described = msgspec.to_builtins(published_options(self.options))
        options = msgspec.json.encode(described | self.published_more()).decode()
        names: list[tuple[str, str | None]] = [(self.name, None)]
        names += [(alias, self.name) for alias in self.traits.aliases]
        return [
            Published(name, self.kind, app, schema, options, self.internal, alias_of)
            for name, alias_of in names
        ]

    def published_more(self) -> dict[str, Any]:
        """What is published besides the options; a workflow adds its events."""
        return {}

    def source(self) -> str:
        """Where the function is defined, for messages."""
        code = getattr(self.body, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(self.body)

    def is_redefinition_of(self, other: Function[..., Any]) -> bool:
        """Whether both have the same qualified name, as when a notebook cell runs again."""
        mine, theirs = self.body, other.body
        return (mine.__module__, mine.__qualname__) == (theirs.__module__, theirs.__qualname__)


class StoredTarget(ABC):
    """A function whose options are in the store; they are looked up each time it is called."""

    @abstractmethod
    def looked_up(self, store: Store) -> Function[..., Any]:
        """The same function with the options that the store has for it."""


def with_hook(function: Function[P, R], hook: Function[..., Any]) -> Function[P, R]:
    """The function with an admitted hook; everything else stays as the caller set it."""
    same = copy.copy(function)
    same.options = msgspec.structs.replace(function.options, on_complete=hook)
    return same
