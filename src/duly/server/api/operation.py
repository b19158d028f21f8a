"""Operations: what the API can do, as plain functions that no web framework is needed to call.

The server makes a route of each (`server/routes.py`), the command line calls them in its own
process (`cli/local.py`). The parameters of a function say what it is given:

- `Duly`: the app; `Principal` with a scope, such as `Reader`: who asks, if they may;
- `Repeatable`: what makes a request under an Idempotency-Key once;
- a `Shape`: the body; what the path names; everything else: the query, or a `Header`.
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
    """Where a parameter is found."""

    name: str


class Check(NamedTuple):
    """Refuses, with ValueError, what is not as its type says: for words better than a type's."""

    refuse: Callable[[object], None]


class Text(NamedTuple):
    """An answer that is no JSON."""

    content: str
    headers: Mapping[str, str] = {}


Stream = AsyncGenerator[str]
"""An answer that goes on and on."""


class Operation(NamedTuple):
    """One of the things that the API can do."""

    method: str
    path: str
    """From /api/v1 on, with `{name}` for a part that is a parameter."""
    tags: tuple[str, ...]
    function: Callable[..., Any]
    status: int
    shape: Any
    """What it answers, if its function may give something else as well; else None."""
    again: Any
    """What it answers with 200 instead, if it does."""
    media: str | None
    """What it answers if that is no JSON."""
    says: str | None
    waits: str | None
    """What it waits for, if that is somebody else: the value of this parameter, or this itself."""

    def match(self, method: str, path: list[str]) -> dict[str, str] | None:
        """What its path holds, if this is the one that is asked for."""
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
        """With their types."""
        hints = self.hints
        for name, parameter in signature(self.function).parameters.items():
            yield parameter, hints[name]


class Operations(list[Operation]):
    """Those of a noun, in the order in which their paths are tried."""

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
    """Which scope a parameter asks for, if it is who asks."""
    return next((each for each in extras(hint) if isinstance(each, Scope)), None)


def header_of(hint: Any) -> str | None:
    return next((each.name for each in extras(hint) if isinstance(each, Header)), None)


def extras(hint: Any) -> tuple[Any, ...]:
    """What `Annotated` adds to a type."""
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def kind_of(hint: Any) -> Any:
    """A type without what `Annotated` adds."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def check_scope(principal: Principal, scope: Scope) -> Principal:
    if not principal.may(scope):
        raise Refused(403, "forbidden", f"this needs the scope {scope}")
    return principal


def require_all_owners(principal: Principal) -> None:
    """Refuse those who are there for one owner: this is about everybody's things."""
    if principal.owner is not None:
        raise Refused(403, "forbidden", "a token of an owner may not do this")
