"""Published functions and their options, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from duly.errors import InvalidOption, UnknownFunction
from duly.functions.function import Function, P, R_co
from duly.functions.options import (
    CHANGEABLE,
    FIXED,
    CallOptions,
    Options,
    published_options,
    read_options,
)
from duly.model.function import FunctionInfo, PublishedOptions
from duly.model.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, Kind
from duly.model.signature import PublishedSignature, Signature
from duly.model.stored_values import read

NOT_PUBLISHED = "no worker has published it yet; start one, or pass kind= to the declaration"


class Declared(Function[P, R_co]):
    """A function whose code is in another service: it can be called later, but not run here.

    Its jobs run with the options that its workers have published.
    """

    def __init__(
        self,
        stub: Callable[..., Any],
        name: str,
        signature: Signature,
        kind: Kind | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self._declared_kind = kind
        self.changes: dict[str, Any] = dict(changes or {})
        """The options that callers have set; all others are the published ones."""
        options = msgspec.structs.replace(Options(), **self.changes)
        super().__init__(stub, name, options, signature=signature)
        self.kind: Kind = kind or Kind.ACTION

    def __repr__(self) -> str:
        return f"<declared {self.name}>"

    def _with(self, changes: Mapping[str, Any]) -> Declared[P, R_co]:
        given = {**self.changes, **changes}
        changed = Declared[P, R_co](
            self.body, self.name, self.signature, self._declared_kind, given
        )
        # Its published form may already be known here.
        changed.options = msgspec.structs.replace(self.options, **changes)
        return changed

    def as_published(
        self, info: FunctionInfo | None, hook: Function[..., Any] | None = None
    ) -> Declared[P, R_co]:
        """The same with the kind, options and hook that its workers have published."""
        if info is None:
            if self._declared_kind is None:
                raise UnknownFunction(self.name, because=NOT_PUBLISHED)
            return self
        known = Declared[P, R_co](
            self.body, self.name, self.signature, Kind(info.kind), self.changes
        )
        given = read_options(msgspec.structs.asdict(options_of(info)))
        given["on_complete"] = hook
        known.options = Options(**given | self.changes)
        return known


DEFAULT_OPTIONS = PublishedOptions(DEFAULT_QUEUE, DEFAULT_PRIORITY)


def options_of(info: FunctionInfo) -> PublishedOptions:
    """The published options; the defaults if they cannot be read."""
    return read(info.options, PublishedOptions, DEFAULT_OPTIONS)


def schema_of(info: FunctionInfo) -> dict[str, Any]:
    """The JSON Schema of its arguments; one that accepts everything if it cannot be read."""
    return read(info.schema, dict[str, Any], {})


def by_name(info: FunctionInfo) -> Declared[..., Any]:
    """A function of which only the published form is known."""

    def stub() -> None: ...

    schema = schema_of(info)
    return Declared(stub, info.name, PublishedSignature(info.name, schema), Kind(info.kind))


def option_changes(
    function: Function[..., Any], known: Function[..., Any] | None
) -> dict[str, Any]:
    """The options of a call that differ from those of its function, as data."""
    published = msgspec.structs.asdict(published_options(function.options))
    changed = _changed(function, known, published)
    for name in FIXED:
        if name in changed:
            raise InvalidOption(name, "belongs to the function itself; a schedule cannot change it")
    return {name: published[name] for name in CHANGEABLE if name in changed}


def _changed(
    function: Function[..., Any], known: Function[..., Any] | None, published: Mapping[str, Any]
) -> set[str]:
    if isinstance(function, Declared):
        # Not a comparison with today's options: if its workers publish others, those apply.
        return set(function.changes)
    usual = Options() if known is None else known.options
    before = msgspec.structs.asdict(published_options(usual))
    changed = {name for name in CHANGEABLE if published[name] != before[name]}
    if known is not None:
        changed |= {n for n in FIXED if getattr(function.options, n) != getattr(usual, n)}
    return changed


def with_changes(function: Function[..., Any], changes: Mapping[str, Any]) -> Function[..., Any]:
    """The function with options that `option_changes` returned."""
    if not changes:
        return function
    return function.using(**cast(CallOptions, read_options(changes)))
