"""Events that are sent to workflows: how payloads are checked, published, stored and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from duly.errors import InvalidOption
from duly.functions.checks import check_text
from duly.functions.function import Function
from duly.model.function import FunctionInfo
from duly.model.keys import check_key
from duly.model.redact import redacted_in
from duly.model.signature import Signature, check_against
from duly.model.stored_values import read
from duly.nearest import or_nearest
from duly.runtime.transaction_guard import is_inside

ANY: Any = object
"""A payload of any type."""


class Known(Protocol):
    """The functions of an app, as far as events need them."""

    def by_any_name(self, name: str) -> Function[..., Any] | None: ...

    def info(self, name: str) -> FunctionInfo | None: ...


class _Published(msgspec.Struct):
    """The part of the published options that is about events."""

    events: dict[str, dict[str, Any]] | None = None


def encode_event(
    known: Known, function: str | None, name: str, payload: Any, once: str | None
) -> str:
    """The stored form of a payload. Refuses what the workflow does not declare.

    If its code is elsewhere, what its workers have published counts, except inside a transaction,
    which must not wait for another connection.
    """
    check_text("name", name)
    if once is not None:
        check_key("once", once)
    here = None if function is None else known.by_any_name(function)
    if here is not None:
        types = here.traits.events
        _check_name(here.name, name, types)
        return signature_of(name, ANY if types is None else types[name]).encode((payload,), {})
    text = signature_of(name, ANY).encode((payload,), {})
    if function is not None and not is_inside():
        schemas = _schemas(known.info(function))
        _check_name(function, name, schemas)
        if schemas is not None:
            check_against(f"event {name}", schemas[name], text)
    return text


def decode_event(name: str, text: str | None, kind: Any) -> Any:
    """The payload as the workflow gets it."""
    return None if text is None else signature_of(name, kind).decode(text)["payload"]


def published_events(types: Mapping[str, Any] | None) -> dict[str, Any]:
    """The schemas of events as part of the published options."""
    if types is None:
        return {}
    return {"events": {name: signature_of(name, types[name]).json_schema() for name in types}}


def redacted_events(known: Known, function: str) -> frozenset[str]:
    """The events of a workflow whose payloads are redacted, wherever its code is."""
    here = known.by_any_name(function)
    if here is not None:
        types = here.traits.events or {}
        return frozenset(name for name in types if signature_of(name, types[name]).redacted)
    schemas = _schemas(known.info(function)) or {}
    return frozenset(name for name in schemas if redacted_in(schemas[name]))


def _schemas(info: FunctionInfo | None) -> Mapping[str, Any] | None:
    return None if info is None else read(info.options, _Published, _Published()).events


def _check_name(function: str, name: str, declared: Mapping[str, Any] | None) -> None:
    if declared is not None and name not in declared:
        hint = or_nearest(name, declared)
        raise InvalidOption("name", f"{function} reads no event {name!r}{hint}")


def signature_of(name: str, kind: Any) -> Signature:
    """How a payload of this type is checked, encoded and decoded: as an argument of a job."""
    try:
        return _cached(name, kind)
    except TypeError:
        return _uncached(name, kind)


def _uncached(name: str, kind: Any) -> Signature:
    return Signature(_receiver(Any if kind is ANY else kind), f"event {name}", has_context=False)


_cached = lru_cache(maxsize=256)(_uncached)


def _receiver(kind: Any) -> Callable[..., None]:
    def receive(payload: Any) -> None: ...

    receive.__annotations__ = {"payload": kind}
    return receive
