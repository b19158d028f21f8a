"""`app.schedule(…)`: a schedule that is declared in code, checked without the database."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from duly.core import Core
from duly.errors import BadInput, InvalidOption, ScheduleExists
from duly.functions.checks import check_flag
from duly.functions.function import Call, Function
from duly.model.function import Status
from duly.model.rotation import parse as parse_rotation
from duly.model.schedule import POLICIES, Policies
from duly.model.trigger import encode as encode_trigger
from duly.schedules.checks import check_key
from duly.schedules.define import (
    Definition,
    bound,
    calendar_name,
    define,
    from_json,
    to_json,
)

ScheduleSpec = dict[str, Any]
"""The declaration of a schedule, as data; options that are left out have their defaults."""

DEFAULT_SPEC: ScheduleSpec = {
    **{name: msgspec.to_builtins(getattr(Policies(), name)) for name in POLICIES},
    "enabled": True,
    "fire_at_once": False,
}


class DeclaredSchedule:
    """A schedule that is declared in code. Pass it wherever a schedule's key is accepted."""

    def __init__(
        self,
        core: Core,
        key: str,
        call: Call[Any] | Function[..., Any],
        given: Mapping[str, Any],
        source: str,
    ) -> None:
        check_key(key)
        self._core = core
        self._call = call
        self._given = dict(given)
        self._definition: Definition | None = None
        self.key = key
        self.source = source
        """Where it is declared: file and line."""
        _check_flags(given)
        if _is_resolvable(call, given):
            self.definition()
        else:
            _check_without_hints(core, cast(Function[..., Any], call), given)

    def __repr__(self) -> str:
        return f"<declared schedule {self.key!r} of {self.function}>"

    @property
    def function(self) -> str:
        """The name of the function."""
        return self._function.name

    @property
    def _function(self) -> Function[..., Any]:
        call = self._call
        return call.function if isinstance(call, Call) else call

    def definition(self) -> Definition:
        """The declaration, checked; for internal use."""
        if self._definition is None:
            self._definition = define(self._core, self._call, self._given, look_up=False)
            _check_span(self._definition)
        return self._definition

    def admitted(self) -> bool:
        """Whether the schedule may exist: False if its function was deleted."""
        if self._core.functions.status_of(self.function) == Status.DELETED:
            return False
        call = self._call
        self._core.functions.admitted(call if isinstance(call, Call) else bound(call))
        return True

    def spec(self) -> ScheduleSpec:
        """The declaration, as data."""
        definition = self.definition()
        spec = msgspec.structs.asdict(definition)
        policies = msgspec.to_builtins(spec.pop("policies"))
        spec |= policies | {"trigger": encode_trigger(definition.trigger)}
        for name in ("enabled", "fire_at_once", "note"):
            spec[name] = self._given.get(name)
        unusual = {n: v for n, v in spec.items() if v is not None and v != DEFAULT_SPEC.get(n)}
        return cast(ScheduleSpec, from_json(to_json(unusual)))


def declare(
    core: Core,
    key: str,
    call: Call[Any] | Function[..., Any],
    given: Mapping[str, Any],
    source: str,
) -> DeclaredSchedule:
    """Add a declaration; repeating the same one, as when a module is imported again, is allowed."""
    declared = DeclaredSchedule(core, key, call, given, source)
    known: DeclaredSchedule | None = core.declarations.get(key)
    if known is not None and not (known.source == source and _are_the_same(known, declared)):
        raise ScheduleExists(key, (known.source, source))
    core.declarations[key] = declared
    return declared


def _are_the_same(one: DeclaredSchedule, other: DeclaredSchedule) -> bool:
    try:
        return one.spec() == other.spec()
    except BadInput:
        return False


def _check_flags(given: Mapping[str, Any]) -> None:
    for name in ("enabled", "fire_at_once"):
        check_flag(name, given.get(name, False))
    if given.get("calendar") is not None:
        calendar_name(given["calendar"])
    if not isinstance(given.get("note"), str | None):
        raise InvalidOption("note", f"must be text, not {given['note']!r}")


def _is_resolvable(call: Call[Any] | Function[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether all required type hints can be resolved while modules are still being imported."""
    # The hints of bound calls were already resolved when they were bound.
    wanted: list[Any] = [call, given.get("alert")]
    return all(f.signature.is_sound() for f in wanted if isinstance(f, Function))


def _check_without_hints(
    core: Core, function: Function[..., Any], given: Mapping[str, Any]
) -> None:
    """Check everything that needs no type hints; the rest is checked when they can be resolved."""
    parse_rotation(given.get("rotation"))
    with_hints = ("rotation", "alert", "expect")
    rest = {name: value for name, value in given.items() if name not in with_hints}
    _check_span(define(core, Call(function, "{}"), rest, look_up=False))


def _check_span(definition: Definition) -> None:
    start, end = definition.start_at, definition.end_at
    if start is not None and end is not None and end < start:
        raise InvalidOption("end_at", "is before start_at")
