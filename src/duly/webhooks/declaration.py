"""Webhook declarations: what an app does with the events of one sender."""

# Without a type checker, callers may pass values that contradict the types.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from duly.errors import InvalidFunction, InvalidOption, UnknownFunction
from duly.functions.checks import check_text
from duly.functions.function import Function
from duly.functions.published import Declared
from duly.model.retry import Retry
from duly.webhooks.sources import Source

if TYPE_CHECKING:
    from duly.core import Core
    from duly.webhooks.inbox import WebhookEvent

MAX_BYTES = 1 << 20
RETRY = Retry()
"""The retry policy for webhooks of functions that have none."""

Filter = Callable[["WebhookEvent"], object] | Collection[str]
Entity = Callable[["WebhookEvent"], str | None] | str

_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch
_is_path = re.compile(r"(/[A-Za-z0-9._~-]+)+").fullmatch


@dataclass(frozen=True)
class Webhook:
    """A declared webhook."""

    name: str
    source: Source
    process: Function[..., Any] | None = None
    routes: Mapping[str, Function[..., Any]] = field(default_factory=dict[str, Any])
    filter: Filter | None = None
    path: str | None = None
    entity: Entity | None = None
    owner: str | None = None
    max_bytes: int = MAX_BYTES

    def function_for(self, type_: str | None) -> Function[..., Any] | None:
        """The function that processes events of a type; None if there is none."""
        return self.routes.get(type_ or "", self.process)

    def wants(self, event: WebhookEvent) -> bool:
        """Whether the filter lets the event through."""
        if self.filter is None:
            return True
        if callable(self.filter):
            return bool(self.filter(event))
        return event.type in self.filter

    def entity_of(self, event: WebhookEvent) -> str | None:
        """The entity of the event, if the webhook declares one."""
        if self.entity is None:
            return None
        if callable(self.entity):
            return self.entity(event)
        return at_pointer(event.payload(), self.entity)


def declare(core: Core, webhook: Webhook) -> Webhook:
    """Check a declaration without using the database."""
    if not _is_name(webhook.name):
        raise InvalidOption("name", "give letters, digits, dots, dashes and underscores")
    if not isinstance(webhook.source, Source):
        raise InvalidOption("source", f"give a source such as GitHub(...), not {webhook.source!r}")
    if webhook.path is not None and not _is_path(webhook.path):
        raise InvalidOption("path", f"must look like /hooks/github, not {webhook.path!r}")
    if type(webhook.max_bytes) is not int or webhook.max_bytes < 1:
        raise InvalidOption("max_bytes", "must be a whole number, at least 1")
    if webhook.owner is not None:
        check_text("owner", webhook.owner)
    _check_choices(webhook)
    functions = [*webhook.routes.values(), *([webhook.process] if webhook.process else [])]
    if not functions:
        raise InvalidOption("process", "give a function that processes the events")
    for function in functions:
        _check_function(core, function)
    return webhook


def _check_choices(webhook: Webhook) -> None:
    if isinstance(webhook.filter, str):
        raise InvalidOption("filter", "give a set of types, or a function, not one string")
    entity = webhook.entity
    if entity is not None and not callable(entity) and not entity.startswith("/"):
        raise InvalidOption("entity", 'give a JSON pointer such as "/issue/key", or a function')


def _check_function(core: Core, function: object) -> None:
    if not isinstance(function, Function):
        raise InvalidFunction(
            f"{function!r} is not a duly function; decorate it with @app.action or @app.mutation"
        )
    known = core.functions.registered.get(function.name)
    if not isinstance(function, Declared) and (
        known is None or known.signature is not function.signature
    ):
        raise UnknownFunction(function.name, core.functions.registered)
    schema = function.signature.json_schema()
    first = next(iter(schema["properties"].items()), None)
    if first is None or first[0] != "event_id" or first[1].get("type") != "string":
        raise InvalidFunction(f"{function.name}(): its first argument must be `event_id: str`")
    if schema["required"] not in ([], ["event_id"]):
        raise InvalidFunction(f"{function.name}(): parameters after event_id need defaults")


def at_pointer(payload: Any, pointer: str) -> str | None:
    """The text or number at a JSON pointer, as text; None if there is none."""
    for part in pointer.split("/")[1:]:
        payload = _step(payload, part.replace("~1", "/").replace("~0", "~"))
    if isinstance(payload, str):
        return payload or None
    return str(payload) if type(payload) is int else None


def _step(value: Any, key: str) -> Any:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(key)
    if isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 10:
        return dict(enumerate(cast("Sequence[Any]", value))).get(int(key))
    return None
