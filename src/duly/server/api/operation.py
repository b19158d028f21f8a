"""Operations: the actions of the API, as plain functions that do not need a web framework.

The server turns each into a route (`server/routes.py`); the command line calls them in its own
process (`cli/local.py`). The types of a function's parameters decide what it receives:

- `Duly`: the app;
- a `Principal` with a scope, such as `Reader`: the caller, if it has that scope;
- `Repeatable`: makes a request under an Idempotency-Key take effect once;
- a `Shape`: the body;
- other types: a part of the path if it is named there, otherwise the query or a `Header`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from inspect import Parameter, signature
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from duly.model.access import Principal, Scope
from duly.server.answers import Refused

F = TypeVar("F", bound=Callable[..., Any])

Reader = Annotated[Principal, Scope.READ]
Caller = Annotated[Principal, Scope.ENQUEUE]
Operator = Annotated[Principal, Scope.OPERATE]
Admin = Annotated[Principal, Scope.ADMIN]


class Header(NamedTuple):
    """A parameter that is read from a header."""

    name: str


class Check(NamedTuple):
    """Raises ValueError for a bad value, for a better message than its type would give."""

    refuse: Callable[[object], None]


class Text(NamedTuple):
    """A response that is not JSON."""

    content: str
    headers: Mapping[str, str] = {}


Stream = AsyncGenerator[str]
"""A streaming response."""


class Operation(NamedTuple):
    """One action of the API."""

    method: str
    path: str
    """The path below /api/v1, with `{name}` for a parameter."""
    tags: tuple[str, ...]
    function: Callable[..., Any]
    status: int
    shape: Any
    """The response type, if the function may also return something else; otherwise None."""
    again: Any
    """The type of a 200 response for an existing object, if there is one."""
    media: str | None
    """The media type, if the response is not JSON."""
    says: str | None
    waits: str | None
    """What external service it waits for: the value of this parameter, or this name itself."""

    def match(self, method: str, path: list[str]) -> dict[str, str] | None:
        """The parameters in the path, if this operation matches."""
        parts = self.path.strip("/").split("/")
        if method != self.method or len(parts) != len(path):
            return None
        found: dict[str, str] = {}
        for part, asked in zip(parts, path, strict=True):
            if part.startswith("{") and asked:
                found[part[1:-1]] = asked
            elif part != asked:
                return None
        return found

    @property
    def hints(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    @property
    def parameters(self) -> Iterator[tuple[Parameter, Any]]:
        """The parameters with their types."""
        hints = self.hints
        for name, parameter in signature(self.function).parameters.items():
            yield parameter, hints[name]


class Operations(list[Operation]):
    """The operations of a noun, in the order in which their paths are tried."""

    def __init__(self, tag: str, prefix: str = "") -> None:
        self._tag, self._prefix = tag, prefix
        super().__init__()

    def get(self, path: str, **more: Any) -> Callable[[F], F]:
        return self._add("GET", path, **more)

    def post(self, path: str, **more: Any) -> Callable[[F], F]:
        return self._add("POST", path, **more)

    def put(self, path: str, **more: Any) -> Callable[[F], F]:
        return self._add("PUT", path, **more)

    def patch(self, path: str, **more: Any) -> Callable[[F], F]:
        return self._add("PATCH", path, **more)

    def delete(self, path: str, **more: Any) -> Callable[[F], F]:
        return self._add("DELETE", path, **more)

    def _add(
        self,
        method: str,
        path: str,
        *,
        status: int = 200,
        shape: Any = None,
        again: Any = None,
        media: str | None = None,
        says: str | None = None,
        waits: str | None = None,
        tags: tuple[str, ...] = (),
    ) -> Callable[[F], F]:
        def added(function: F) -> F:
            self.append(
                Operation(
                    *(method, self._prefix + path, (self._tag, *tags), function, status),
                    *(shape, again, media, says, waits),
                )
            )
            return function

        return added


def scope_of(hint: Any) -> Scope | None:
    """The scope that a parameter requires, if it is the principal."""
    return next((each for each in extras(hint) if isinstance(each, Scope)), None)


def header_of(hint: Any) -> str | None:
    return next((each.name for each in extras(hint) if isinstance(each, Header)), None)


def extras(hint: Any) -> tuple[Any, ...]:
    """The metadata that `Annotated` adds to a type."""
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def kind_of(hint: Any) -> Any:
    """A type without its `Annotated` metadata."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def check_scope(principal: Principal, scope: Scope) -> Principal:
    if not principal.may(scope):
        raise Refused(403, "forbidden", f"the scope {scope} is required")
    return principal


def require_all_owners(principal: Principal) -> None:
    """Refuse a principal that is limited to one owner: this concerns all owners."""
    if principal.owner is not None:
        raise Refused(403, "forbidden", "a token with an owner may not do this")
